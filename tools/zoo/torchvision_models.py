"""torchvision: all its float models."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from zoo.case import Case, Inputs, images

__all__ = ["cases"]

# What detection models do with boxes has sizes that depend on the data.
DETECTION = {
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn",
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2",
    "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn_v2",
    "retinanet_resnet50_fpn",
    "retinanet_resnet50_fpn_v2",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
}
# Weights of 1.3 GB and more, of the same design as their smaller relatives.
HUGE = {"regnet_y_128gf", "vit_h_14"}
SIZES = {
    "efficientnet_b5": 160,
    "efficientnet_b6": 160,
    "efficientnet_v2_m": 192,
    "efficientnet_v2_l": 160,
    "maxvit_t": 224,
    "swin_v2_t": 128,
    "swin_v2_s": 128,
    "swin_v2_b": 128,
}
VIDEO = {"mc3_18": (8, 56), "r3d_18": (8, 56), "r2plus1d_18": (8, 56), "s3d": (16, 224)}
FP16 = ("resnet18", "mobilenet_v3_small", "vit_b_32", "swin_t", "convnext_tiny", "r3d_18",
        "raft_small")  # fmt: skip
DYNAMIC = ("resnet18", "mobilenet_v3_small", "densenet121", "vit_b_32", "swin_t", "convnext_tiny")
ANY_SIZE = ("resnet18", "efficientnet_b0", "fcn_resnet50", "lraspp_mobilenet_v3_large")


def cases() -> Iterator[Case]:
    """Yield the cases of torchvision."""
    from torchvision import models

    for name in models.list_models():
        if not name.startswith("quantized_") and name not in HUGE:
            yield _case(name)
    for name in FP16:
        yield _case(name, " fp16", fp16=True)
    for name in DYNAMIC:
        batch = {"dynamic_shapes": [{0: (1, 8)}]}
        size = _size(name)
        yield _case(
            name, " dynamic batch", images(4, 3, size, size, second=(5, 3, size, size)), batch
        )
    for name in ANY_SIZE:
        any_size = {"dynamic_shapes": [{0: (1, 4), 2: (32, 256), 3: (32, 256)}]}
        draw = images(4, 3, 64, 96, second=(3, 3, 100, 83))
        yield _case(name, " dynamic size", draw, any_size)


def _case(name: str, suffix: str = "", draw: Any = None, options: Any = None, **more: Any) -> Case:
    make = functools.partial(_make, name)
    if name in DETECTION:
        return Case(f"torchvision/{name}", make, _detection, refused=r"depends on|data", **more)
    return Case(f"torchvision/{name}{suffix}", make, draw or _draw(name), options or {}, **more)


def _size(name: str) -> int:
    return SIZES.get(name, 224 if name.startswith("vit") else 96)


def _draw(name: str) -> Any:
    if name.startswith("raft"):
        return _pairs
    if name in VIDEO:
        frames, size = VIDEO[name]
        return images(1 if size == 224 else 2, 3, frames, size, size)
    if name.startswith("swin3d"):
        return images(1, 3, 8, 64, 64)
    if name.startswith("mvit"):
        return images(1, 3, 16, 224, 224)
    return images(1 if name.startswith("vit") else 4, 3, _size(name), _size(name))


def _make(name: str) -> torch.nn.Module:
    from torchvision import models

    more = {"weights_backbone": None} if "fpn" in name or "ssd" in name else {}
    if name.startswith(("deeplab", "fcn", "lraspp")):
        more = {"weights_backbone": None}
    if name in ("googlenet", "inception_v3"):
        more = {"init_weights": False}
    return models.get_model(name, weights=None, **more).eval()


def _pairs(generator: torch.Generator, run: int) -> Inputs:
    """Two pictures, the second shifted; RAFT needs 128 pixels a side."""
    del run
    first = torch.randn(1, 3, 128, 136, generator=generator)
    return (first, first.roll((2, 3), (2, 3))), {}


def _detection(generator: torch.Generator, run: int) -> Inputs:
    del run
    return ([torch.rand(3, 96, 96, generator=generator)],), {}
