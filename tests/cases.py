"""Tables of operator tests: one row for each behaviour, checked at three depths.

A row's function is converted to a network, whose shapes and dtypes `Network` compares with torch's;
the reference executor runs it on two different inputs and must give what torch gives; the real
builder makes an engine of it. A row with ``raises`` must be refused with that text instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from t2t.building import build
from t2t.errors import T2TError
from t2t.lowering import Conversion, to_network
from t2t.precision import Policy
from t2t.reference import capture
from t2t.registry import supported_operators

__all__ = [
    "TORCH",
    "OpCase",
    "ids",
    "integers",
    "leaves",
    "operators_of",
    "parts_of",
    "run_case",
    "uniform",
]

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
"""The version of PyTorch, for what differs between versions."""

# fp32: the executor and torch add in different orders; everything that moves data is exact.
TOLERANCES = {
    torch.float32: (1e-5, 1e-6),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
}


def uniform(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = torch.float32) -> Any:
    """Draw real numbers between two bounds."""
    return lambda generator: (
        torch.rand(shape, generator=generator, dtype=torch.float32) * (high - low) + low
    ).to(dtype)


def integers(*shape: int, low: int = 0, high: int = 10, dtype: Any = torch.int64) -> Any:
    """Draw integers from ``low`` to ``high - 1``."""
    return lambda generator: torch.randint(low, high, shape, generator=generator).to(dtype)


@dataclass
class OpCase:
    """One behaviour of one operator.

    Attributes:
        name: what the row shows.
        function: a function of tensors, or a module (put in eval mode).
        inputs: for each input a shape (standard normal float32), a tensor (given both times), or
            a function of a generator (`uniform`, `integers`).
        kwargs: further arguments of the function; constants.
        dynamic: for each input a dict of dynamic dimensions, ``{dim: (low, high)}``; a string
            instead of a pair names a Dim shared by several: ``{dim: ("n", low, high)}``.
        shapes: shapes of the second run, where dimensions are dynamic; by default the example's.
        raises: a regular expression that the refusal's text must match.
        rtol: relative tolerance, where another one than the dtype's is right.
        atol: absolute tolerance, likewise.
        reason: why; required with rtol or atol.
        build: False where TensorRT-RTX's builder is known to refuse what the network API takes;
            needs a reason.
        layers: the exact number of layers in the network, where that matters.
        policy: precision policy (fp16).
    """

    name: str
    function: Callable[..., Any]
    inputs: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: Sequence[Mapping[int, Any]] = ()
    shapes: Sequence[Sequence[int]] = ()
    raises: str | None = None
    rtol: float | None = None
    atol: float | None = None
    reason: str = ""
    build: bool = True
    layers: int | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if (self.rtol or self.atol or not self.build) and not self.reason:
            raise ValueError(f"{self.name}: a widened tolerance needs its reason")

    def assert_close(self, result: torch.Tensor, wanted: torch.Tensor) -> None:
        """Raise where a result differs from PyTorch's by more than the row allows."""
        assert result.dtype == wanted.dtype
        rtol, atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            result,
            wanted,
            rtol=rtol if self.rtol is None else self.rtol,
            atol=atol if self.atol is None else self.atol,
            equal_nan=True,
        )


class Autocast(nn.Module):
    """Calls a function or a module inside of ``torch.autocast``."""

    def __init__(self, call: Callable[..., Any], dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.call = call
        self.dtype = dtype

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(inputs[0].device.type, self.dtype):
            return self.call(*inputs)


def ids(cases: Sequence[OpCase]) -> list[Any]:
    """Give the rows as pytest parameters, named."""
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"rows of the same name: {sorted(twice)}")
    return [pytest.param(case, id=case.name) for case in cases]


def run_case(case: OpCase) -> Conversion | None:
    """Check one row; gives its conversion for further checks."""
    function = _function(case)
    first = _draw(case, 1, None)
    dims = _dynamic(case)
    if case.raises is not None:
        with pytest.raises(T2TError, match=case.raises) as caught:
            to_network(function, _cloned(first), policy=case.policy, **dims)
        assert re.search(r"\.py:\d+ in|called by the module itself", str(caught.value))
        return None
    conversion = to_network(function, _cloned(first), policy=case.policy, **dims)
    if case.layers is not None:
        assert conversion.network.raw.num_layers == case.layers, _listing(conversion)
    program = capture(conversion.network.raw, conversion.network.weights)
    second = _draw(case, 2, case.shapes or None)
    for inputs in (first, second):
        expected = leaves(function(*_cloned(inputs)))
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        got = program.run(_cloned(tensors))
        results = [got[spec.name] for spec in conversion.signature.outputs]
        assert len(results) == len(expected)
        for result, wanted in zip(results, expected, strict=True):
            case.assert_close(result, wanted)
    if case.build:
        plan = build(
            conversion.network.raw,
            builder=conversion.builder,
            profiles=conversion.profiles(),
            progress=False,
        )
        assert plan
    return conversion


def _function(case: OpCase) -> Callable[..., Any]:
    if isinstance(case.function, torch.nn.Module):
        case.function.eval()
        if not case.kwargs:
            return case.function

    def function(*tensors: torch.Tensor) -> Any:
        with torch.no_grad():
            return case.function(*tensors, **case.kwargs)

    return function


def _draw(case: OpCase, seed: int, shapes: Sequence[Sequence[int]] | None) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for index, given in enumerate(case.inputs):
        if callable(given):
            drawn.append(given(generator))
        elif isinstance(given, torch.Tensor):
            drawn.append(given)
        else:
            shape = shapes[index] if shapes else given
            drawn.append(torch.randn(tuple(shape), generator=generator))
    return drawn


def _dynamic(case: OpCase) -> dict[str, Any]:
    if not case.dynamic:
        return {}
    dims: dict[str, Any] = {}

    def declared(bounds: Any) -> Any:
        if len(bounds) == 2:
            return bounds
        name, low, high = bounds
        return dims.setdefault(name, torch.export.Dim(name, min=low, max=high))

    return {
        "dynamic_shapes": [
            {dim: declared(bounds) for dim, bounds in of_input.items()} for of_input in case.dynamic
        ]
    }


def _cloned(inputs: Sequence[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def leaves(output: Any) -> list[torch.Tensor]:
    """Return the tensors of an output."""
    if isinstance(output, torch.Tensor):
        return [output]
    items = output.values() if isinstance(output, Mapping) else output
    return [leaf for item in items for leaf in leaves(item)]


def _listing(conversion: Conversion) -> str:
    raw = conversion.network.raw
    return ", ".join(raw.get_layer(index).name for index in range(raw.num_layers))


def parts_of(case: OpCase) -> tuple[Callable[..., Any], list[list[Any]], dict[str, Any]]:
    """Return a row's function, its inputs of both runs, and its sizes as `t2t.convert` takes them.

    ``t2t doctor --run`` runs the rows on a GPU with it.
    """
    inputs = [_draw(case, 1, None), _draw(case, 2, case.shapes or None)]
    return _function(case), inputs, _dynamic(case)


def operators_of(case: OpCase) -> set[str]:
    """Give the registered names of what a row calls (not of what it is refused for)."""
    function, inputs = _function(case), _cloned(_draw(case, 1, None))
    try:
        conversion = to_network(function, inputs, policy=case.policy, **_dynamic(case))
    except T2TError:
        return set()
    known = supported_operators()
    # An overload called "default" is recorded without its name.
    forms = {
        form
        for call in conversion.graph.calls
        for name in (call.name, *call.formulas)
        for form in (name, name.partition(".")[0], f"{name}.default")
    }
    return forms & set(known)
