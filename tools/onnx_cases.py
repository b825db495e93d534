"""ONNX's node test cases, through NVIDIA's parser, run by the reference executor."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner

from t2t import backend
from t2t.backend import trt
from t2t.errors import T2TError
from t2t.reference import Program, capture

__all__ = ["Case", "Outcome", "arrays", "fixed", "load_cases", "parse", "run_case"]

Case = Any
"""onnx.backend.test.case.test_case.TestCase."""

# numpy has no such types; ml_dtypes' arrays are moved as the integers behind them.
_RAW = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e8m0fnu": (np.uint8, torch.float8_e8m0fnu),
}
# Held in another type by the executor, see t2t.reference.layer.
_HELD = {"int4": np.int8, "float4_e2m1fn": np.float32}


@dataclass
class Outcome:
    """What became of one case.

    ``changed`` lists outputs whose type the parser changed (double becomes float); they are
    compared after conversion to ONNX's type. ``problem`` is empty where everything agrees.
    """

    name: str
    operator: str
    parsed: bool = False
    problem: str = ""
    changed: list[str] = field(default_factory=list)
    reason: str = ""
    evidence: str = ""

    @property
    def agrees(self) -> bool:
        """Return whether the case was parsed and every output agrees."""
        return self.parsed and not self.problem


def load_cases() -> list[Case]:
    """Return every node test case that onnx carries, in its order."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # Making the expected values divides by zero on purpose.
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def operators(cases: Sequence[Case]) -> dict[str, str]:
    """Return the operator that each case is about; expanded cases belong to their operator."""
    own = {case.name: case.model.graph.node[-1].op_type for case in cases}
    return {name: own.get(name.split("_expanded")[0], kind) for name, kind in own.items()}


def parse(model: onnx.ModelProto) -> tuple[Any, Any] | None:
    """Return (network, parser) of a model, None where the parser refuses it.

    The parser owns memory that the network's constants use.
    """
    builder = trt.Builder(backend.logger())
    network = backend.create_network(builder)
    parser = trt.OnnxParser(network, backend.logger())
    return (network, parser) if parser.parse(model.SerializeToString()) else None


def fixed(case: Case) -> Case | None:
    """Return the case with all inputs but the first as initializers, or all of them.

    TensorRT needs many of them (sizes, axes, scales) when the engine is built, so the parser
    takes them only so. None where the parser does not take that either.
    """
    if len(case.data_sets) != 1:
        return None
    given, expected = case.data_sets[0]
    names = [entry.name for entry in case.model.graph.input]
    if len(given) != len(names) or any(value is None or isinstance(value, list) for value in given):
        return None
    values = arrays(given)
    for kept in (1, 0):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for name, value in list(zip(names, values, strict=True))[kept:]:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        del model.graph.input[kept:]
        if parse(model) is not None:
            return dataclasses.replace(case, model=model, data_sets=[(given[:kept], expected)])
    return None


def arrays(values: Sequence[Any]) -> list[np.ndarray]:
    """Return the tensors of a case as arrays."""
    return [
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
        for value in values
    ]


def to_torch(value: np.ndarray) -> torch.Tensor:
    """Return an array as the tensor that the executor takes."""
    name = value.dtype.name
    if name in _RAW:
        integer, dtype = _RAW[name]
        return torch.from_numpy(np.array(value).view(integer)).view(dtype)
    return torch.from_numpy(np.array(value, dtype=_HELD.get(name)))


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """Return a result as an array, of ml_dtypes where numpy has no such type."""
    for name, (integer, dtype) in _RAW.items():
        if value.dtype == dtype:
            raw = value.view(torch.int16 if integer == np.int16 else torch.uint8)
            return np.asarray(raw.numpy()).view(getattr(ml_dtypes, name))
    return np.asarray(value.numpy())


def results(case: Case, program: Program) -> list[list[np.ndarray]]:
    """Run a program on each data set of a case and give its outputs in the model's order."""
    found = []
    for given, _ in case.data_sets:
        names = [entry.name for entry in case.model.graph.input]
        values = dict(zip(names, arrays(given), strict=False))
        # The parser may rename an input; then the order says which it is.
        for info, name in zip(program.inputs, names, strict=False):
            values.setdefault(info.name, values.get(name, np.empty(0)))
        feed = {i.name: to_torch(values[i.name]).to(i.dtype) for i in program.inputs}
        made = program.run(feed)
        found.append([to_numpy(made[entry.name]) for entry in case.model.graph.output])
    return found


def compare(case: Case, found: Sequence[Sequence[np.ndarray]]) -> list[str]:
    """Raise AssertionError unless ONNX's own runner accepts the outputs.

    Returns:
        The outputs whose type is not ONNX's.
    """
    changed = []
    for (_, expected), outputs in zip(case.data_sets, found, strict=True):
        wanted = arrays(expected)
        for entry, got, want in zip(case.model.graph.output, outputs, wanted, strict=True):
            if got.dtype != want.dtype:
                changed.append(f"{entry.name}: {want.dtype} became {got.dtype}")
        typed = [
            got.astype(want.dtype) if got.dtype != want.dtype else got
            for got, want in zip(outputs, wanted, strict=True)
        ]
        Runner.assert_similar_outputs(wanted, typed, case.rtol, case.atol)
    return changed


def run_case(case: Case, operator: str) -> Outcome:
    """Parse, capture, run and compare one case."""
    outcome = Outcome(case.name, operator)
    parsed = parse(case.model)
    if parsed is None:
        return outcome
    outcome.parsed = True
    try:
        outcome.changed = compare(case, results(case, capture(parsed[0])))
    except AssertionError as error:
        outcome.problem = " ".join(str(error).split())[:300]
    except (T2TError, RuntimeError, LookupError, ValueError, TypeError) as error:
        outcome.problem = f"{type(error).__name__}: {error}"[:300]
    return outcome
