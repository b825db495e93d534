"""Whole models: converted, built, and compared with PyTorch on two inputs, in fp32 and fp16."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

import t2t
from tests.models import C3D, OpenPose, UNet

IMAGE, SMALL, CLIP = (1, 3, 224, 224), (1, 3, 96, 96), (1, 3, 8, 64, 64)
models, video = torchvision.models, torchvision.models.video

MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "alexnet": (models.alexnet, IMAGE),
    "vgg11_bn": (models.vgg11_bn, SMALL),
    "resnet18": (models.resnet18, SMALL),
    "resnet50": (models.resnet50, SMALL),
    "resnext50_32x4d": (models.resnext50_32x4d, SMALL),
    "wide_resnet50_2": (models.wide_resnet50_2, SMALL),
    "squeezenet1_1": (models.squeezenet1_1, SMALL),
    "densenet121": (models.densenet121, SMALL),
    "googlenet": (lambda: models.googlenet(init_weights=False), SMALL),
    "inception_v3": (lambda: models.inception_v3(init_weights=False), (1, 3, 299, 299)),
    "mobilenet_v2": (models.mobilenet_v2, SMALL),
    "mobilenet_v3_small": (models.mobilenet_v3_small, SMALL),
    "mnasnet1_0": (models.mnasnet1_0, SMALL),
    "shufflenet_v2_x1_0": (models.shufflenet_v2_x1_0, SMALL),
    "efficientnet_b0": (models.efficientnet_b0, SMALL),
    "regnet_y_400mf": (models.regnet_y_400mf, SMALL),
    "convnext_tiny": (models.convnext_tiny, SMALL),
    "vit_b_16": (models.vit_b_16, IMAGE),
    "r3d_18": (video.r3d_18, CLIP),
    "mc3_18": (video.mc3_18, CLIP),
    "r2plus1d_18": (video.r2plus1d_18, CLIP),
    "s3d": (video.s3d, (1, 3, 16, 224, 224)),
    "openpose": (OpenPose, SMALL),
    "c3d": (C3D, (1, 3, 16, 48, 48)),
    "unet": (UNet, SMALL),
}


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    build, shape = MODELS[name]
    torch.manual_seed(0)
    module = build().eval()
    _give_statistics(module)
    return module, torch.randn(shape)


def _give_statistics(module: nn.Module) -> None:
    """Fresh norms are identities and fresh biases zeros, which would hide mistakes in them."""
    for parameter in module.parameters():
        if parameter.unique().numel() == 1:
            with torch.no_grad():
                parameter += 0.02 * torch.randn_like(parameter)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
            nn.init.uniform_(part.weight, 0.8, 1.2)
            nn.init.uniform_(part.bias, -0.1, 0.1)


def _norm(output: Any) -> float:
    tensors = output if isinstance(output, tuple) else [output]
    return min(float(x.detach().norm()) for x in tensors)


@pytest.mark.parametrize("fp16", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, fp16: bool) -> None:
    module, x = make(name)
    converted = t2t.convert(module, [x], fp16=fp16, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", t2t.ReferenceExecutionWarning)
        report = t2t.verify(module, converted, [x], rtol=2e-2 if fp16 else 1e-4)
    assert report.ok, str(report)
    # An output of zeros would pass whatever the network does.
    assert _norm(module(x)) > 1e-3


def test_converting_twice_gives_the_same_plan() -> None:
    module, x = make("shufflenet_v2_x1_0")
    plans: list[Any] = [
        t2t.convert(module, [x], progress=False).state_dict()["engine"] for _ in range(2)
    ]
    assert torch.equal(*plans)
