"""Sizes of plans with int8, fp8 and weights of few bits, against float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

import t2t
from benchmarks.measure import Figures, Row

MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": torchvision.models.resnet18,
    "ResNet-50": torchvision.models.resnet50,
    "ViT-B/16": torchvision.models.vit_b_16,
}
# The engine's own code is a few megabytes, whatever the weights are.
EIGHT_BITS, FOUR_BITS = 0.35, 0.25


def _ways(data: list[torch.Tensor]) -> dict[str, tuple[dict[str, Any], float]]:
    ada = {"compute_capabilities": ["8.9", "12.0"]}
    return {
        "int8": ({"int8": True, "calibration": data}, EIGHT_BITS),
        "fp8": ({"fp8": True, "calibration": data, **ada}, EIGHT_BITS),
        "weights int8": ({"weight_only": "int8"}, EIGHT_BITS),
        "weights int4": ({"weight_only": "int4"}, FOUR_BITS),
    }


def figures() -> list[Figures]:
    result = Figures(
        "Size of the plan, quantized",
        "All products in int8 or fp8, or the weights of linear layers alone (transformers), where "
        "convolutions, embeddings and norms stay in float32.",
        "quantized",
        "float32",
    )
    x = torch.rand(1, 3, 224, 224)
    for name, make in MODELS.items():
        model = make().eval()
        plain = len(t2t.convert(model, [x], keep_program=False).engine.plan)
        for way, (options, most) in _ways([x]).items():
            if way.startswith("weights") and not name.startswith("ViT"):
                continue
            plan = t2t.convert(model, [x], keep_program=False, **options).engine.plan
            result.rows.append(Row.within(f"{name}, {way}", len(plan), plain, most, unit="B"))
    return [result]
