"""What it costs to leave a part of a model in PyTorch: memory and time of ``partial=True``."""

from __future__ import annotations

import json
import sys
import time

import torch
import torchvision
from torch import nn

import t2t
from benchmarks.measure import Figures, Row, in_new_process, peak_growth

MEMORY = 1.2
DETECTOR_SECONDS = 15
SIDE = 320


class InTwo(nn.Module):
    """ResNet-50 with an operator in its middle that TensorRT has not: two engines and a step."""

    def __init__(self) -> None:
        super().__init__()
        whole = torchvision.models.resnet50()
        layers = dict(whole.named_children())
        names = list(layers)
        middle = names.index("layer4")
        self.first = nn.Sequential(*[layers[name] for name in names[:middle]])
        self.second = nn.Sequential(layers["layer4"], layers["avgpool"], nn.Flatten(), layers["fc"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.second(torch.where(x < -1, torch.lgamma(x), x))  # type: ignore[no-any-return]


def figures() -> list[Figures]:
    parts, whole = (in_new_process("benchmarks.partial", way) for way in ("parts", "whole"))
    memory = Figures(
        "Peak memory of a partial conversion",
        "How far the process's memory rises above what it is with the model loaded and TensorRT "
        "imported. The parts: two engines with one operator between them that stays in PyTorch.",
        "in parts",
        "whole",
        [Row.within("ResNet-50", parts, whole, MEMORY, unit="B")],
    )
    times = Figures(
        "Partial conversion of a detector",
        f"Processor time in one thread, of a photograph with sides of {SIDE}; decisions on values "
        "and the choice of boxes stay in PyTorch, which runs the model several times.",
        "taken",
        "allowed",
        [Row.within("Faster R-CNN, ResNet-50", _detector(), DETECTOR_SECONDS, 1)],
    )
    return [memory, times]


def _detector() -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=SIDE, max_size=SIDE
    ).eval()
    photo = torch.rand(3, SIDE, SIDE)
    started = time.process_time()
    t2t.convert(model, [[photo]], partial=True, progress=False)
    taken = time.process_time() - started
    torch.set_num_threads(threads)
    return taken


def main(way: str) -> None:
    model = (InTwo() if way == "parts" else torchvision.models.resnet50()).eval()
    x = torch.zeros(1, 3, 224, 224)
    # Loads what the first conversion of a process loads, in both ways alike.
    small = nn.Conv2d(3, 3, 1).eval()
    t2t.convert(
        lambda x: torch.lgamma(small(x)), [x], partial=True, min_block_size=1, progress=False
    )

    def convert() -> None:
        converted = t2t.convert(model, [x], partial=way == "parts", progress=False)
        if way == "parts":
            assert sum(part.in_engine for part in converted.parts) == 2

    with torch.no_grad():
        print(json.dumps(peak_growth(convert)))


if __name__ == "__main__":
    main(sys.argv[1])
