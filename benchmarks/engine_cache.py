"""The engine cache: an engine that is there already, against building it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch
import torchvision
from torch import nn

from benchmarks.measure import Figures, Row, medians
from t2t.building import build
from t2t.lowering import to_network

MOST = 0.1
MODELS: dict[str, Callable[[], nn.Module]] = {
    "MobileNet V2": torchvision.models.mobilenet_v2,
    "ResNet-50": torchvision.models.resnet50,
    "ViT-B/16": torchvision.models.vit_b_16,
}


@torch.no_grad()
def figures() -> list[Figures]:
    shown = Figures(
        "Engine cache: an engine that was built before",
        "Reading the finished network, hashing it and its settings, finding the engine and "
        "checking its bytes, against TensorRT's builder.",
        "found",
        "built",
    )
    for name, make in MODELS.items():
        conversion = to_network(make().eval(), [torch.rand(1, 3, 224, 224)])
        network, builder = conversion.network.raw, conversion.builder
        with tempfile.TemporaryDirectory() as folder:
            build(network, builder=builder, cache_dir=folder)
            ours, theirs = medians(
                lambda: build(network, builder=builder, cache_dir=folder),  # noqa: B023
                lambda: build(network, builder=builder),  # noqa: B023
            )
        shown.rows.append(Row.within(name, ours, theirs, MOST))
    return [shown]
