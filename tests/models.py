"""Architectures of the kinds that users convert, small enough to write down here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["C3D", "Behind", "OpenPose", "UNet"]


def _stage(channels: int, out: int, width: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.PReLU(width),
        nn.Conv2d(width, width, 7, padding=3),
        nn.PReLU(width),
        nn.Conv2d(width, out, 1),
    )


class OpenPose(nn.Module):
    """A VGG front, then stages with PReLU whose two branches are concatenated with the features."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, pool in ((16, False), (16, True), (32, False), (32, True), (64, False)):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2, 2)] if pool else []
            channels = width
        self.front = nn.Sequential(*layers)
        self.affinity = nn.ModuleList([_stage(64, 38), _stage(64 + 38 + 19, 38)])
        self.heat = nn.ModuleList([_stage(64, 19), _stage(64 + 38 + 19, 19)])

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features = self.front(image)
        joined = features
        for affinity, heat in zip(self.affinity, self.heat, strict=True):
            a, h = affinity(joined), heat(joined)
            joined = torch.cat([features, a, h], 1)
        return a, h


class C3D(nn.Module):
    """Video convolutions with MaxPool3d of changing windows and paddings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool1 = nn.Conv3d(3, 16, 3, padding=1), nn.MaxPool3d((1, 2, 2), (1, 2, 2))
        self.conv2, self.pool2 = nn.Conv3d(16, 32, 3, padding=1), nn.MaxPool3d(2, 2)
        self.conv3, self.pool3 = nn.Conv3d(32, 32, 3, padding=1), nn.MaxPool3d(2, 2)
        self.conv4 = nn.Conv3d(32, 32, 3, padding=1)
        self.pool4 = nn.MaxPool3d(2, 2, padding=(0, 1, 1))
        self.head = nn.Sequential(
            nn.Linear(32 * 2 * 4 * 4, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)
        )

    def forward(self, clip: Tensor) -> Tensor:
        x = self.pool1(self.conv1(clip).relu())
        x = self.pool2(self.conv2(x).relu())
        x = self.pool3(self.conv3(x).relu())
        x = self.pool4(self.conv4(x).relu())
        return self.head(x.view(x.size(0), -1)).softmax(1)


def _double(channels: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (channels, out):
        layers += [nn.Conv2d(before, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)]
        layers += [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down by max pooling, up by transposed convolutions, with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double(3, 16), _double(16, 32), _double(32, 64)])
        self.pool = nn.MaxPool2d(2)
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ConvTranspose2d(32, 16, 2, stride=2)]
        )
        self.up = nn.ModuleList([_double(64, 32), _double(32, 16)])
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        skips, x = [], image
        for down in self.down[:-1]:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for rise, up, skip in zip(self.rise, self.up, reversed(skips), strict=True):
            x = up(torch.cat([skip, rise(x)], 1))
        return self.last(x)


class Behind(nn.Module):
    """Layers behind a choice by the data."""

    def __init__(self, choose: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.choose = nn.Linear(6, 6), choose
        self.last = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Any:
        return self.choose(self, x, (self.first(x).tanh() + 1).square())
