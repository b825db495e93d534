"""What of a trace is quantized, and why the rest is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.precision import Policy, fits
from t2t.quantization.forward import is_addition
from t2t.quantization.scales import Quantization, Quantized, Range, Scales, call_key
from t2t.rounding import BLOCK, LARGEST, Bits, Rounding
from t2t.torch_internals import DisabledDispatch, FakeTensor
from t2t.tracing.graph import Call, Graph, Value
from t2t.tracing.quantizing import ADDITION, operands_of, takes_layers

EXCLUDED = "excluded by name"

# Operators whose formulas hand their product through as it is.
_THROUGH = ("aten::addmm", "aten::baddbmm", "aten::_convolution")
# What may stand between a convolution and the addition that takes its result.
_BETWEEN = ("batch_norm", "relu", "relu_", "dropout", "alias", "clone", "detach", "identity")


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        bits: of both factors of products, "int8" or "fp8"; None leaves activations as they are.
        scales: the ranges of activations; needed with bits.
        weights: of the constant factors of matrix products alone, "int8" or "int4".
        exclude: names of modules (shell patterns) whose products stay as they are.
    """

    bits: Bits | None = None
    scales: Scales | None = None
    weights: Bits | None = None
    exclude: tuple[str, ...] = ()

    @property
    def types(self) -> list[str]:
        """What a backend must have for it: "int8", "int4 weights"."""
        given = [self.bits, self.weights and f"{self.weights} weights"]
        return [name for name in given if name]


@dataclass
class Plan:
    """How operands are rounded.

    Attributes:
        roundings: by the id of the call and the operand's place.
        quantization: the same, to look at; with what is not rounded, and why.
    """

    roundings: dict[tuple[int, int], Rounding] = field(default_factory=dict)
    quantization: Quantization = field(default_factory=Quantization)

    def check(self) -> None:
        """Raise ConversionError where nothing is rounded."""
        if not self.roundings:
            rows = self.quantization.calls
            reasons = dict.fromkeys(f"{row.call}: {row.reason}" for row in rows)
            # The names are the user's, or those that a tolerance asks for.
            excluded = rows and all(row.reason == EXCLUDED for row in rows)
            why = "; give a larger tolerance, or exclude fewer modules" if excluded else ""
            raise ConversionError(
                f"there is no product that can be quantized ({'; '.join(reasons) or 'none'}){why}"
            )


def planned(graph: Graph, outputs: Sequence[Value], wanted: Wanted, policy: Policy) -> Plan:
    """Decide for each product and addition of a trace how its operands are rounded.

    Args:
        graph: the trace.
        outputs: the values that are needed; calls of which nothing depends are left out.
        wanted: what is asked for.
        policy: what stays in float32, and so is not quantized.

    Raises:
        ConversionError: the scales are not those of this model.
    """
    calls = [(call, kind) for call in graph.calls if (kind := _kind(call))]
    counted = Counter((call.scope, kind) for call, kind in calls)
    _check_exclude(wanted.exclude, {call.scope for call, _ in calls})
    used = {id(call) for call in graph.used_calls(outputs)}
    plan = Plan()
    rows = []

    def stays(call: Call) -> bool:
        where = call.scope, call.operators
        return fits(call.scope, wanted.exclude) or policy.keeps(*where) or policy.passes(*where)

    numbers: Counter[tuple[str, str]] = Counter()
    for call, kind in calls:
        number = numbers[call.scope, kind]
        numbers[call.scope, kind] += 1
        key = call_key(call.scope, kind, number)
        found: Range | None = None
        if wanted.scales is not None:
            found = _range(wanted.scales, call, kind, key, counted[call.scope, kind])
        if id(call) not in used:
            continue
        if kind == "add":
            roundings, reason = _addition(call, found, wanted, plan)
            if stays(call) or not any(roundings):
                continue
        elif stays(call):
            roundings, reason = (None, None), EXCLUDED
        else:
            roundings, reason = _product(call, kind, found, wanted)
        for place, rounding in enumerate(roundings):
            if rounding is not None:
                plan.roundings[id(call), place] = rounding
        rows.append(Quantized(key, str(call.location or ""), roundings, reason))
    for call in graph.used_calls(outputs):
        if _kind(call) is None and call.short_name in _WHOLE:
            name = call_key(call.scope, call.short_name, 0)
            rows.append(Quantized(name, str(call.location or ""), (), _WHOLE[call.short_name]))
    plan.quantization = Quantization(tuple(rows))
    return plan


_WHOLE = {
    "scaled_dot_product_attention": "attention is one operation here, in float",
    "einsum": "einsum is not quantized: write it as matmul",
    "bilinear": "bilinear is not quantized",
    **dict.fromkeys(("cond", "scan", "while_loop"), "loops and branches compute in float"),
}


def _kind(call: Call) -> str | None:
    """Return what a call is to calibration; None of what that does not see."""
    if call.formulas and call.formulas[0].partition(".")[0] not in _THROUGH:
        return None
    if call.name == ADDITION:
        a, b = _operands(call)
        plain = isinstance(a, Value) and isinstance(b, Value) and call.kwargs.get("alpha", 1) == 1
        own = not call.formulas
        return "add" if own and plain and is_addition(a.tensor, b.tensor) else None
    found = operands_of(call)
    if found is None or not all(isinstance(x, Value) for x in found[1]):
        return None
    return found[0]


def _operands(call: Call) -> list[Any]:
    if call.name == ADDITION:
        return [*call.args[:2], None, None][:2]
    found = operands_of(call)
    return [] if found is None else found[1]


def _range(scales: Scales, call: Call, kind: str, key: str, count: int) -> Range | None:
    """Return what calibration saw at a call.

    Raises:
        ConversionError: it has not seen the same calls.
    """
    seen = 0
    while call_key(call.scope, kind, seen) in scales.ranges:
        seen += 1
    if seen != count:
        if kind == "add":
            return None
        raise ConversionError(
            f"the scales are not of this model: calibration saw {seen} calls {key.split('#')[0]}, "
            f"and the conversion {count} (called at {call.location}); calibrate this module, in "
            "the state in which it is converted"
        )
    found = scales.ranges[key]
    ranks = tuple(x.tensor.dim() for x in _operands(call))
    if found.ranks != ranks:
        raise ConversionError(
            f"the scales are not of this model: the operands of {key} have {ranks} dimensions, and "
            f"had {found.ranks} in calibration"
        )
    return found


def _product(
    call: Call, kind: str, found: Range | None, wanted: Wanted
) -> tuple[tuple[Rounding | None, ...], str]:
    """Return how the factors of a product are rounded, and why not."""
    none = (None, None)
    a, b = _operands(call)
    if call.converter is None or not call.converter.function.__module__.startswith("t2t."):
        return none, "its converter is not t2t's"
    if not all(x.tensor.dtype in _FLOATS for x in (a, b)):
        return none, f"{a.tensor.dtype} is not quantized"
    if min(a.tensor.dim(), b.tensor.dim()) < 2:
        return none, "a product with a vector"
    if not takes_layers(call):
        return none, "a transposed convolution with stride and dilation takes plain weights only"
    if wanted.bits is None:
        return _weights_only(kind, call, b, wanted)
    first = _factor(a, 0, kind, call, found, wanted)
    second = _factor(b, 1, kind, call, found, wanted)
    for one in (first, second):
        if isinstance(one, str):
            return none, one
    return (first, second), ""  # type: ignore[return-value]


_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _factor(
    x: Value, place: int, kind: str, call: Call, found: Range | None, wanted: Wanted
) -> Rounding | str:
    """Return how a factor is rounded, or why it is not."""
    assert wanted.bits is not None
    shifts = _shifts(kind, call, found) if wanted.bits == "int8" else ()
    if _is_constant(x):
        if not _is_finite(x.tensor):
            return "its weights hold NaN or infinity"
        summed, outputs = _axes(kind, call, x.tensor)
        axis = outputs if place else None
        return Rounding(wanted.bits, axis=axis, shifts=shifts, along=summed if shifts else 0)
    if found is not None and shifts:
        rounding = _activation(wanted.bits, found.smoothed)
        weight = _operands(call)[1].tensor
        axis = x.tensor.dim() - (weight.dim() - 1 if kind != "matmul" else 1)
        shifts = tuple(-shift for shift in shifts)
        return (
            rounding if isinstance(rounding, str) else replace(rounding, shifts=shifts, along=axis)
        )
    largest = None if found is None else found.largest[place]
    if largest is None:
        return "calibration did not look at this operand, as it was a parameter there"
    return _activation(wanted.bits, largest)


def _shifts(kind: str, call: Call, found: Range | None) -> tuple[int, ...]:
    """Return the powers of two by which calibration divides the input channels of a constant.

    Raises:
        ConversionError: there are other channels.
    """
    a, b = _operands(call)
    if found is None or not found.shifts or _is_constant(a) or not _is_constant(b):
        return ()
    channels = len(found.shifts)
    inputs = b.tensor.shape[_axes(kind, call, b.tensor)[0]]
    groups = channels // inputs if kind == "conv" else 1
    if inputs * groups != channels or len(b.tensor) % groups:
        raise ConversionError(
            f"the scales are not of this model: the weight of a product called at {call.location} "
            f"has {inputs} input channels, and calibration saw {channels}"
        )
    return found.shifts


def _activation(bits: Bits, largest: float) -> Rounding | str:
    scale = float(torch.tensor(largest / LARGEST[bits], dtype=torch.float32))
    if not torch.finfo(torch.float32).smallest_normal <= scale <= 2.0**126:
        return "it read zeros only during calibration" if not largest else "its range is extreme"
    return Rounding(bits, scale)


def _is_finite(x: torch.Tensor) -> bool:
    with DisabledDispatch():  # a test, which new weights pass when they come
        return bool(x.isfinite().all())


def _is_constant(x: Value) -> bool:
    return not isinstance(x.tensor, FakeTensor)


def _axes(kind: str, call: Call, weight: torch.Tensor) -> tuple[int, int]:
    """Return the dimensions of a second factor: which is summed over, which has the outputs."""
    if kind != "matmul":
        return (1, 0) if kind == "conv" else (0, 1)
    last = weight.dim() - 1
    return (last, last - 1) if call.name.endswith(".linear") else (last - 1, last)


def _weights_only(
    kind: str, call: Call, weight: Value, wanted: Wanted
) -> tuple[tuple[Rounding | None, ...], str]:
    none = (None, None)
    if kind != "matmul":
        return none, "weights alone are quantized in matrix products"
    if not _is_constant(weight):
        return none, "its second factor is no constant"
    _, axis = _axes(kind, call, weight.tensor)
    if not _is_finite(weight.tensor):
        return none, "its weights hold NaN or infinity"
    if wanted.weights == "int4":
        inner = weight.tensor.shape[-1]
        if axis != 0 or weight.tensor.dim() != 2:
            return none, "int4 weights are those of linear layers"
        if inner % BLOCK:
            return none, f"its {inner} inputs are no multiple of {BLOCK}, a block of int4 weights"
        return (None, Rounding("int4", block=BLOCK)), ""
    return (None, Rounding("int8", axis=axis)), ""


def _addition(
    call: Call, found: Range | None, wanted: Wanted, plan: Plan
) -> tuple[tuple[Rounding | None, ...], str]:
    """Return how the residual of an addition behind a convolution is rounded.

    TensorRT adds it where the convolution ends; the convolution's own result is not rounded.
    """
    none = (None, None)
    if wanted.bits is None or found is None:
        return none, ""
    operands = _operands(call)
    if any(_is_constant(x) or x.tensor.dtype not in _FLOATS for x in operands):
        return none, ""
    fresh = [_is_convolved(x, plan) for x in operands]
    if not any(fresh):
        return none, ""
    # Of two convolutions' results, the second is what the residual branch has made.
    place = 0 if fresh[1] and not fresh[0] else 1
    largest = found.largest[place]
    rounding = None if largest is None else _activation(wanted.bits, largest)
    if not isinstance(rounding, Rounding):
        return none, ""
    return (rounding, None) if place == 0 else (None, rounding), ""


def _is_convolved(x: Value, plan: Plan) -> bool:
    """Return whether a value comes from a quantized convolution, with a norm at most between."""
    for _ in range(4):
        call = x.call
        if call is None:
            return False
        if (id(call), 0) in plan.roundings:
            found = operands_of(call)
            return found is not None and found[0] != "matmul"
        if call.short_name not in _BETWEEN:
            return False
        x = next(call.inputs())
    return False


def _check_exclude(patterns: Sequence[str], scopes: set[str]) -> None:
    for pattern in patterns:
        if not any(fits(scope, [pattern]) for scope in scopes):
            names = ", ".join(sorted(scopes)[:8])
            raise ConversionError(
                f"int8_exclude: no module with a product fits {pattern!r}; there are {names}"
            )
