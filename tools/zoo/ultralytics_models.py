"""Ultralytics' detectors from their descriptions: every task, with dynamic batch and sizes."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from zoo.case import Case, images

__all__ = ["cases"]


class Forgetful(torch.nn.Module):
    """A detector whose head makes its anchors anew, and does not keep those of the first size."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        """Detect in images, ``(batch, 3, height, width)``."""
        head = self.model.model[-1]
        head.shape, head.shapes = None, []
        return self.model(x)


TASKS = {"": "Detection", "-seg": "Segmentation", "-pose": "Pose", "-obb": "OBB",
         "-cls": "Classification"}  # fmt: skip
FAMILIES = ("yolov8n", "yolo11n")
DETECTORS = ("yolov5n", "yolov9t", "yolov10n", "yolo12n", "yolo26n")
TRANSFORMERS = ("rtdetr-l", "rtdetr-resnet50", "yolov8-rtdetr")


def cases() -> Iterator[Case]:
    """Yield the cases of ultralytics."""
    for family in FAMILIES:
        for task, kind in TASKS.items():
            yield from _cases(f"{family}{task}", kind, 2)
    for name in DETECTORS:
        yield from _cases(name, "Detection", 2)
    for name in TRANSFORMERS:
        yield from _cases(name, "RTDETRDetection", 5)


def _cases(name: str, kind: str, least: int) -> Iterator[Case]:
    make = functools.partial(_make, name, kind)
    yield Case(f"ultralytics/{name}", make, images(2, 3, 160, 192))
    h, w = (torch.export.Dim(side, min=least, max=10) for side in "hw")
    shapes = {0: torch.export.Dim("batch", min=1, max=8), 2: 32 * h, 3: 32 * w}
    yield Case(f"ultralytics/{name} dynamic", make, images(2, 3, 160, 192, second=(3, 3, 224, 160)),
               {"dynamic_shapes": [shapes]})  # fmt: skip


def _make(name: str, kind: str) -> torch.nn.Module:
    # It writes its settings when it is imported.
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.gettempdir())
    from ultralytics.nn import tasks

    model: Any = getattr(tasks, f"{kind}Model")(f"{name}.yaml", verbose=False)
    if kind == "RTDETRDetection":
        # Of a few queries with scores far apart, rounding errors cannot change the order.
        model.model[-1].num_queries = 4
    return Forgetful(model).eval()
