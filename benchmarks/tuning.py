"""How long it takes to find what has to stay in float32, in the reference executor."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torchvision
from torch import nn

import t2t
from benchmarks.measure import Figures, Row


def _vit() -> nn.Module:
    model = torchvision.models.vit_b_16()
    # Its last layer is zeros at first, and so all outputs would be.
    torch.nn.init.normal_(model.heads.head.weight)
    return model


# Models, tolerances at about two thirds of what float16 loses, and the seconds that are allowed.
CASES: dict[str, tuple[Callable[[], nn.Module], float, float]] = {
    "ResNet-50": (torchvision.models.resnet50, 5e-4, 120),
    "ViT-B/16": (_vit, 5e-4, 240),
}


def figures() -> list[Figures]:
    times = Figures(
        "Tuning: what has to stay in float32",
        "Processor time of convert(fp16=True, tolerance=5e-4) with random weights, once, and what "
        "was allowed for it.",
        "taken",
        "allowed",
    )
    counts = Figures(
        "Tuning: networks that were tried",
        "One trace, no engine but the last; beside it how many modules and operators stay.",
        "tried",
        "stay",
    )
    torch.manual_seed(0)
    x = torch.rand(1, 3, 224, 224)
    for name, (make, tolerance, seconds) in CASES.items():
        model = make().eval()
        started = time.process_time()
        tuning = t2t.convert(model, [x], fp16=True, tolerance=tolerance).tuning
        taken = time.process_time() - started
        times.rows.append(Row.within(name, taken, seconds, 1))
        kept = len(tuning.fp32_modules) + len(tuning.fp32_ops)
        counts.rows.append(Row.shown(name, len(tuning.trials), max(kept, 1)))
    return [times, counts]
