"""Peak memory: `t2t.convert` against the same network built by hand; a new process each time."""

from __future__ import annotations

import json
import sys

import torch
import torchvision

import t2t
from benchmarks import handmade
from benchmarks.measure import Figures, Row, in_new_process, peak_growth
from t2t.backend import trt


def figures() -> list[Figures]:
    ours, theirs = (in_new_process("benchmarks.memory", way) for way in ("convert", "hand"))
    return [
        Figures(
            "Peak memory of a conversion",
            "How far the process's memory rises above what it is with the model loaded and "
            "TensorRT imported. By hand: the same layers through the TensorRT API, weights not "
            "copied (benchmarks/handmade.py).",
            "convert()",
            "by hand",
            [Row.within("ResNet-50", ours, theirs, 1.1, unit="B")],
        )
    ]


def main(way: str) -> None:
    model = torchvision.models.resnet50().eval()
    x = torch.zeros(1, 3, 224, 224)
    small = torch.nn.Conv2d(3, 3, 1).eval()
    # Loads what the first conversion of a process loads, in both ways alike.
    t2t.convert(small, [x])
    assert trt.Builder
    tasks = {"convert": lambda: t2t.convert(model, [x]), "hand": lambda: handmade.plan(model)}
    with torch.no_grad():
        print(json.dumps(peak_growth(tasks[way])))


if __name__ == "__main__":
    main(sys.argv[1])
