"""From a module to a finished network, and from the network to a plan.

The competitors: `torch.export` with its decompositions, which ends before TensorRT begins, and
`torch.onnx.export` with NVIDIA's ONNX parser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

from benchmarks import handmade, onnx_path
from benchmarks.measure import Figures, Row, medians
from t2t import backend
from t2t.backend import trt
from t2t.lowering import to_network

LESS_THAN_EXPORT = 5
LESS_THAN_ONNX = 10
BUILD = 1.1

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-50": (torchvision.models.resnet50, (1, 3, 224, 224)),
    "ViT-B/16": (torchvision.models.vit_b_16, (1, 3, 224, 224)),
    "r3d_18": (torchvision.models.video.r3d_18, (1, 3, 8, 112, 112)),
}


def _made(name: str) -> tuple[nn.Module, list[torch.Tensor]]:
    make, shape = MODELS[name]
    return make().eval(), [torch.rand(shape)]


def _plan(builder: Any, network: Any) -> Any:
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    assert plan is not None, backend.error_text()
    return plan


def norms(model: nn.Module) -> int:
    """Count the batch norms, each of which may be one layer more than the ONNX exporter makes."""
    return sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


@torch.no_grad()
def _by_hand(builder: Any) -> Row:
    model, inputs = _made("ResNet-50")
    hand = handmade.resnet(builder, model)
    other = onnx_path.parse(builder, onnx_path.exported(model, inputs))
    ours, parsed = medians(lambda: _plan(builder, hand), lambda: _plan(builder, other.network))
    return Row.timed("ResNet-50 by hand", ours, parsed)


def figures() -> list[Figures]:
    export = Figures(
        "Module to network, against torch.export",
        "t2t until the TensorRT network is finished; torch.export.export and run_decompositions, "
        "which give an ATen graph and no network yet.",
        "t2t",
        "torch.export",
    )
    onnx = Figures(
        "Module to network, against ONNX",
        "torch.onnx.export into memory, then NVIDIA's ONNX parser.",
        "t2t",
        "ONNX",
    )
    layers = Figures(
        "Layers of the network",
        "The ONNX exporter folds a batch norm into the convolution before it; t2t leaves that to "
        "TensorRT's builder and makes it one scale layer. So one layer more for each batch norm "
        "is allowed. The limit is for convolutional networks.",
        "t2t",
        "ONNX + batch norms",
    )
    build = Figures(
        "Network to plan",
        "Build time of the two networks. The last row is a network written by hand with one scale "
        "layer for each batch norm: what it costs the builder to fold them.",
        "t2t's network",
        "the ONNX parser's",
    )
    builder = trt.Builder(backend.logger())
    for name in MODELS:
        model, inputs = _made(name)
        ours, exported, parsed = medians(
            lambda m=model, i=inputs: to_network(m, i),
            lambda m=model, i=inputs: torch.export.export(m, tuple(i)).run_decompositions(),
            lambda m=model, i=inputs: onnx_path.parse(builder, onnx_path.exported(m, i)),
        )
        export.rows.append(Row.faster(name, ours, exported, LESS_THAN_EXPORT))
        onnx.rows.append(Row.faster(name, ours, parsed, LESS_THAN_ONNX))
        mine = to_network(model, inputs).network
        other = onnx_path.parse(builder, onnx_path.exported(model, inputs))
        allowed = other.network.num_layers + norms(model)
        count = mine.raw.num_layers
        limited = norms(model) > 0
        layers.rows.append(
            Row.within(name, count, allowed, 1, unit="")
            if limited
            else Row.shown(name, count, allowed)
        )
        ours, parsed = medians(
            lambda n=mine: _plan(builder, n.raw), lambda n=other: _plan(builder, n.network)
        )
        build.rows.append(Row.within(name, ours, parsed, BUILD))
    build.rows.append(_by_hand(builder))
    return [export, onnx, layers, build]
