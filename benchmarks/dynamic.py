"""What dynamic sizes cost: a module to a network with them, against the same with static sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

from benchmarks.measure import Figures, Row, medians
from t2t.lowering import to_network

BATCH = 1.5
ALL_SIZES = 3
SIDE = 224


def _yolo() -> nn.Module:
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolo11n.yaml", verbose=False)
    # Else the head keeps the anchors of the first size.
    model.model[-1].dynamic = True
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-50": torchvision.models.resnet50,
    "DenseNet-121": torchvision.models.densenet121,
    "ViT-B/16": torchvision.models.vit_b_16,
}
if importlib.util.find_spec("ultralytics"):
    MODELS["YOLO11n"] = _yolo


def _shapes(name: str) -> dict[str, Any]:
    """Return the declarations: the batch, and where the model takes them height and width."""
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    found: dict[str, Any] = {"batch": [batch]}
    if not name.startswith("ViT"):
        h, w = (torch.export.Dim(side, min=5, max=20) for side in "hw")
        found["batch, height, width"] = [{**batch, 2: 32 * h, 3: 32 * w}]
    return found


def figures() -> list[Figures]:
    result = Figures(
        "Module to network with dynamic sizes",
        "The same conversion with static sizes is the measure. Heights and widths are multiples of "
        "32 from 160 to 640. YOLO11n is measured where ultralytics is installed.",
        "dynamic",
        "static",
    )
    for name, make in MODELS.items():
        model, inputs = make().eval(), [torch.rand(1, 3, SIDE, SIDE)]
        shapes = _shapes(name)
        static, *dynamic = medians(
            lambda m=model, i=inputs: to_network(m, i),
            *(
                lambda m=model, i=inputs, s=dims: to_network(m, i, dynamic_shapes=s)
                for dims in shapes.values()
            ),
        )
        for what, seconds in zip(shapes, dynamic, strict=True):
            most = BATCH if what == "batch" else ALL_SIZES
            result.rows.append(Row.within(f"{name}, {what}", seconds, static, most))
    return [result]
