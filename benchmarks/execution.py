"""The reference executor against PyTorch eager on the same machine: time and peak memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torchvision
from torch import nn

import t2t
from benchmarks.measure import REPEATS, Figures, Row, medians, peak_growth

SLOWER = 1.2
LARGER = 1.5


def _vit() -> tuple[nn.Module, torch.Tensor]:
    return torchvision.models.vit_b_16(), torch.rand(1, 3, 224, 224)


def _resnet() -> tuple[nn.Module, torch.Tensor]:
    return torchvision.models.resnet50(), torch.rand(1, 3, 224, 224)


def _video() -> tuple[nn.Module, torch.Tensor]:
    return torchvision.models.video.r3d_18(), torch.rand(1, 3, 8, 112, 112)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "ResNet-50": _resnet,
    "ViT-B/16": _vit,
    "r3d_18": _video,
}


def pair(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the two ways to run a model: its network in the reference executor, and eager."""
    model, x = MODELS[name]()
    model.eval()
    program = t2t.convert(model, [x]).program
    return lambda: program.run([x]), lambda: model(x)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread inside a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def figures() -> list[Figures]:
    times = Figures(
        "Reference executor: time of one run",
        "The finished network, layer by layer in PyTorch, against the module it came from; one "
        "thread, since waiting threads use processor time too.",
        "reference",
        "eager",
    )
    peaks = Figures(
        "Reference executor: peak memory of one run",
        "How far the process's memory rises above what it holds before; the weights are there.",
        "reference",
        "eager",
    )
    for name in MODELS:
        reference, eager = pair(name)
        with one_thread():
            ours, theirs = medians(reference, eager)
        times.rows.append(Row.within(name, ours, theirs, SLOWER))
        ours, theirs = (
            statistics.median(peak_growth(task) for _ in range(REPEATS))
            for task in (reference, eager)
        )
        peaks.rows.append(Row.within(name, ours, theirs, LARGER, unit="B"))
    return [times, peaks]
