"""``t2t doctor --run``: engines on the GPU of this machine, compared with PyTorch.

A few models in several precisions, and the rows of t2t's own operator tests where these are: in a
checkout. PyTorch computes on the CPU, so that no kernel of the GPU is compared with itself.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from t2t.cli.running import Refusal
from t2t.conversion import convert
from t2t.dtypes import RTOL
from t2t.errors import T2TError
from t2t.io import map_tree
from t2t.verification import OutputReport
from t2t.verification.metrics import measure

_INT8_RTOL = 0.1
"""Of a small network of random weights; a wrong scale loses more than half of an output."""


@dataclass(frozen=True)
class Trial:
    """Something to convert and to run.

    Attributes:
        name: what it is.
        function: a module or a function of tensors.
        inputs: the inputs of each run, positional; the first are the example.
        options: of `t2t.convert`.
        rtol: largest relative error of an output; more where PyTorch returns half precision.
    """

    name: str
    function: Callable[..., Any]
    inputs: Sequence[Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = RTOL["fp32"]


@dataclass(frozen=True)
class Check:
    """What came of a trial.

    Attributes:
        name: of the trial.
        ok: whether the engine ran and gave what PyTorch gives.
        error: the largest relative error of an output; None where nothing was compared.
        problem: what went wrong, or "".
        seconds: how long all of it took.
    """

    name: str
    ok: bool
    error: float | None
    problem: str
    seconds: float


def run_trials(trials: Sequence[Trial], device: torch.device, backend: str) -> Iterator[Check]:
    """Convert each, run its engine on a device, and compare with PyTorch on the CPU."""
    for trial in trials:
        started = time.perf_counter()
        error, problem = None, ""
        try:
            error, problem = _tried(trial, device, backend)
        except (T2TError, RuntimeError, ValueError, TypeError) as raised:
            problem = f"{type(raised).__name__}: {raised}"
        seconds = time.perf_counter() - started
        yield Check(trial.name, not problem, error, problem, seconds)


def _tried(trial: Trial, device: torch.device, backend: str) -> tuple[float | None, str]:
    def moved(x: Any) -> Any:
        return x.to(device) if isinstance(x, torch.Tensor) else x

    def cloned(x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) else x

    example = map_tree(cloned, list(trial.inputs[0]))
    module = convert(trial.function, example, backend=backend, **trial.options)
    module.require_engine = True
    worst: dict[str, OutputReport] = {}
    for inputs in trial.inputs:
        with torch.no_grad():
            expected = trial.function(*map_tree(cloned, list(inputs)))
        got = module(*map_tree(moved, list(inputs)))
        if structure := measure(expected, got, None, trial.rtol, worst):
            return None, structure
    error = max((output.max_rel_error for output in worst.values()), default=0.0)
    wrong = [f"{output.name} {output.note}".strip() for output in worst.values() if not output.ok]
    return error, f"differs from PyTorch: {', '.join(wrong)}" if wrong else ""


def trials_of_models() -> list[Trial]:
    """Return a few models, in float32 with several sizes, in half precision, and in int8."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    found = []
    for name, model, shapes in _models():
        model = model.eval()
        inputs = [[drawn(*shape)] for shape in shapes]
        sizes = {"max_batch_size": max(shape[0] for shape in shapes)}
        found.append(Trial(f"{name} fp32", model, inputs, sizes))
        found.append(Trial(f"{name} fp16", model, inputs, {**sizes, "fp16": True}, RTOL["fp16"]))
        if name == "convolutions":
            int8 = {**sizes, "int8": True, "calibration": inputs}
            found.append(Trial(f"{name} int8", model, inputs, int8, _INT8_RTOL))
    return found


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)[0]
        return result


def _models() -> Iterator[tuple[str, nn.Module, list[tuple[int, ...]]]]:
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    yield "convolutions", convolutions, [(2, 3, 32, 32), (4, 3, 32, 32)]
    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    yield "attention", attention, [(2, 7, 32), (3, 7, 32)]
    yield "recurrent", _Recurrent(), [(2, 5, 8), (1, 5, 8)]
    if importlib.util.find_spec("torchvision") is not None:
        resnet = importlib.import_module("torchvision").models.resnet18(weights=None)
        yield "torchvision:resnet18", resnet, [(1, 3, 64, 64), (2, 3, 64, 64)]


def trials_of_rows(folder: Path, pattern: str) -> list[Trial]:
    """Return the rows of t2t's operator tests that convert in float32.

    Args:
        folder: ``tests`` of a checkout.
        pattern: which: a shell pattern of "test_pooling/max-pool2d".

    Raises:
        Refusal: the folder holds no such tests, or they cannot be imported.
    """
    if not (folder / "cases.py").is_file():
        raise Refusal(f"{folder} holds no tests of t2t's: --rows takes the folder tests of it")
    sys.path.insert(0, str(folder.resolve().parent))
    try:
        tables = importlib.import_module(f"{folder.name}.test_coverage").tables()
        parts = importlib.import_module(f"{folder.name}.cases").parts_of
    except ImportError as error:
        raise Refusal(f"the tests in {folder} cannot be imported: {error}") from error
    finally:
        del sys.path[0]
    found = []
    for table, rows in tables.items():
        for row in rows:
            name = f"{table}/{row.name}"
            converts = row.raises is None and row.build and row.policy is None
            if converts and fnmatch.fnmatchcase(name, pattern):
                function, inputs, sizes = parts(row)
                found.append(Trial(name, function, inputs, sizes, _tolerance(row, inputs)))
    return found


def _tolerance(row: Any, inputs: Sequence[Sequence[Any]]) -> float:
    """Return a row's own tolerance, or that of the least precise type among its inputs."""
    dtypes = {x.dtype for x in inputs[0] if isinstance(x, torch.Tensor)}
    least = "bf16" if torch.bfloat16 in dtypes else "fp16" if torch.float16 in dtypes else "fp32"
    return max(RTOL[least], row.rtol or 0.0, row.atol or 0.0)
