"""Sizes of plans with int8, fp8 and weights of few bits; what calibration costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

import t2t
from benchmarks.measure import Figures, Row, medians

MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": torchvision.models.resnet18,
    "ResNet-50": torchvision.models.resnet50,
    "ViT-B/16": torchvision.models.vit_b_16,
}
# Against float32. The engine's own code is a few megabytes, whatever the weights are, which is much
# of a small network's plan.
HALF, EIGHT_BITS, FOUR_BITS = 0.51, 0.27, 0.17
EIGHT_BITS_OF_RESNETS = 0.35
# Where the rest stays in float32; TensorRT-RTX 1.7's kernels are the difference (see below).
EIGHT_BITS_AND_FLOAT32 = 0.275
CALIBRATION = 1.3
IMAGES, BATCH = 100, 10


def _ways(name: str, data: list[torch.Tensor]) -> dict[str, tuple[dict[str, Any], float]]:
    transformer = name.startswith("ViT")
    eight = EIGHT_BITS_AND_FLOAT32 if transformer else EIGHT_BITS_OF_RESNETS
    ada = {"compute_capabilities": ["8.9", "12.0"]}
    ways: dict[str, tuple[dict[str, Any], float]] = {
        "int8": ({"int8": True, "calibration": data}, eight),
        "fp8": ({"fp8": True, "calibration": data, **ada}, eight),
    }
    if transformer:
        ways |= {
            "fp16": ({"fp16": True}, HALF),
            "int8 and fp16": ({"int8": True, "fp16": True, "calibration": data}, EIGHT_BITS),
            "weights int8": ({"weight_only": "int8"}, eight),
            "weights int4": ({"weight_only": "int4"}, FOUR_BITS),
        }
    return ways


def _sizes() -> Figures:
    result = Figures(
        "Size of the plan, quantized",
        "All products in int8 or fp8, or the weights of linear layers alone (transformers), where "
        "convolutions, embeddings and norms stay in float32, or in half with fp16=True. "
        "TensorRT-RTX 1.7 keeps the CUDA source of each fused elementwise kernel in the plan, "
        "0.14 MB, and shares those that float32's equal blocks have in common; beside int8, whose "
        "rounding has other scales in each block, it keeps 49 of them, where ViT-B/16's weights "
        "alone are 0.25 of float32's. So int8 is held to 0.27 where the rest is in half.",
        "quantized",
        "float32",
    )
    x = torch.rand(1, 3, 224, 224)
    for name, make in MODELS.items():
        model = make().eval()
        plain = len(t2t.convert(model, [x], keep_program=False).engine.plan)
        for way, (options, most) in _ways(name, [x]).items():
            plan = t2t.convert(model, [x], keep_program=False, **options).engine.plan
            result.rows.append(Row.within(f"{name}, {way}", len(plan), plain, most, unit="B"))
    return result


def _calibration() -> Figures:
    result = Figures(
        "Calibration",
        f"`calibrate` on {IMAGES} images of 224x224 in batches of {BATCH}, in one thread, and the "
        "same forward passes alone.",
        "calibration",
        "forward passes",
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    data = list(torch.rand(IMAGES, 3, 224, 224).split(BATCH))
    for name in ("ResNet-18", "ResNet-50"):
        model = MODELS[name]().eval()
        ours, alone = medians(
            lambda m=model: t2t.calibrate(m, data, progress=False),  # type: ignore[misc]
            lambda m=model: _run(m, data),  # type: ignore[misc]
            repeats=3,
        )
        result.rows.append(Row.within(name, ours, alone, CALIBRATION))
    torch.set_num_threads(threads)
    return result


@torch.no_grad()
def _run(model: nn.Module, data: list[torch.Tensor]) -> None:
    for x in data:
        model(x)


def figures() -> list[Figures]:
    return [_sizes(), _calibration()]
