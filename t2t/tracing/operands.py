"""What decides about the precision of a call: its operands, and what the model says of them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from t2t.converters._chains import is_step
from t2t.network import Network, Operation
from t2t.precision import Cast, Kind, Operand
from t2t.registry import Precision
from t2t.sizes import has_symbol
from t2t.sizes.terms import value_of
from t2t.torch_internals import DisabledDispatch, FakeTensor, OpOverload, schema_of
from t2t.tracing.graph import Call, Value


def describe_precision(
    call: Call, precision: Precision, operation: Operation, net: Network
) -> Precision:
    """Write into an operation what the policy wants to know of its call.

    Returns:
        The precision of the call, which is not its converter's where it takes squares, or moves
        what was not rounded to half yet: who reads the result rounds it, or not at all.
    """
    operation.operands = _operands(call, net)
    operation.numbers = _numbers(call)
    operation.cast = call.cast or _asked_cast(call, precision)
    if call.cast is not None and call.cast.like is not None:
        operation.like = _kind(call.cast.like, net)
    wide = _is_square(call) or (operation.cast is None and _moves_unrounded(call, net))
    return "sensitive" if wide else precision


def _moves_unrounded(call: Call, net: Network) -> bool:
    if not is_step(call.converter, call.args, call.output):
        return False
    return isinstance(call.args[0], Value) and net.is_unrounded(call.args[0].tensor)


def _operands(call: Call, net: Network) -> list[Operand]:
    """Return the operands that are floats, and those that are integers which half may not hold.

    What half cannot count to is no weight, also where it is a parameter: fixed tables are some.
    """
    found = []
    mixes = _mixes_types(call)
    for value in call.inputs():
        x = value.tensor
        if x.is_floating_point() or x.is_complex():
            kind = _kind(value, net)
            table = mixes and kind is Kind.WEIGHT and _exceeds(x, net.policy.largest)
            found.append(Operand(Kind.FLOAT if table else kind, x.dim()))
        elif mixes and x.dtype in (torch.int32, torch.int64):
            found.append(Operand(Kind.FLOAT, x.dim()))
    return found


def _exceeds(x: torch.Tensor, limit: float) -> bool:
    with DisabledDispatch():  # a test, which new weights pass when they come
        return x.numel() > 0 and float(x.detach().abs().max()) > limit


def _kind(value: Value, net: Network) -> Kind:
    known = net.kind(value.tensor) if isinstance(value.tensor, FakeTensor) else None
    return value.kind if known is None else known


def _numbers(call: Call) -> list[Any]:
    """Return the numbers among the operands, perhaps symbolic: no sizes, indices or epsilons."""
    assert call.converter is not None
    if "::" in call.name:
        types = _types(call.name)
        given = dict(zip(types, call.args, strict=False)) | call.kwargs
        # A number may stand for a tensor, as in x + 1.
        found = [given.get(name) for name, kind in types.items() if kind in ("number", "Tensor")]
    else:
        # Of torch's functions that are converted as such, pad() takes a number; it has this name.
        bound = call.converter.signature.bind(None, *call.args, **call.kwargs)
        found = [bound.arguments.get("value")]
    points = [value.tensor for value in call.inputs() if not value.tensor.dim()]
    found += [x.item() for x in points if not isinstance(x, FakeTensor)]
    found = [x for x in found if isinstance(x, int | float | torch.SymInt | torch.SymFloat)]
    return [_as_factor(x, call.short_name) for x in found if not _is_far_bound(x, call.short_name)]


def _as_factor(x: Any, name: str) -> Any:
    """Return what a divisor multiplies by, and other numbers as they are."""
    return 1 / x if name == "div" and isinstance(x, int | float) and x else x


def _is_far_bound(x: Any, name: str) -> bool:
    """Return whether a number is a bound that halfs do not reach."""
    bounds = name in ("clamp", "clamp_min", "clamp_max", "hardtanh")
    return bounds and isinstance(x, int | float) and not -1 < x < 1


def _asked_cast(call: Call, precision: Precision) -> Cast | None:
    """Return the cast that the model asks a delicate operator for: ``x.sum(dtype=torch.float32)``.

    Other operators that take a dtype make tensors, and mostly take it from another one.
    """
    asked = precision == "sensitive" and call.kwargs.get("dtype") == torch.float32
    return Cast("float32") if asked else None


@functools.cache
def _types(name: str) -> dict[str, str]:
    """Return the names of an operator's parameters and their types, as "number"."""
    arguments = schema_of(_operator(name)).arguments
    return {x.name: str(x.type).removeprefix("Optional[").rstrip("]") for x in arguments}


def _mixes_types(call: Call) -> bool:
    """Return whether a call promotes all its operands, rather than take indices or statistics."""
    return call.short_name == "cat" or _is_pointwise(call.name)


@functools.cache
def _is_pointwise(name: str) -> bool:
    return "::" in name and torch.Tag.pointwise in _operator(name).tags


def _operator(name: str) -> OpOverload:
    namespace, _, operator = name.partition("::")
    packet, _, overload = operator.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet)
    return getattr(found, overload or "default")  # type: ignore[no-any-return]


# -- squares ---------------------------------------------------------------------------------------

_PRODUCTS = ("mul", "addcmul", "dot", "vdot", "mm", "bmm", "matmul", "__matmul__", "einsum")
_SAME_ELEMENTS = (
    "alias", "clone", "detach", "neg", "permute", "reshape", "t", "transpose", "view",
)  # fmt: skip


def _is_square(call: Call) -> bool:
    """Return whether a call multiplies a value with itself, as norms and variances begin.

    Squares, and sums of them, leave half's range long before other products do.
    """
    if call.short_name not in _PRODUCTS:
        return False
    *_, a, b = None, None, *call.inputs()
    return a is not None and _same(a, b, depth=3)


def _same(a: Any, b: Any, depth: int) -> bool:
    """Return whether two arguments have the same elements, as far as so many calls back tell."""
    if a is b:
        return True
    if not isinstance(a, Value) or not isinstance(b, Value):
        return type(a) is type(b) and not has_symbol((a, b)) and bool(a == b)
    a, b = _source(a), _source(b)
    if a.tensor is b.tensor:
        return True
    if a.call is None or b.call is None or not depth:
        return False
    alike = (a.call.name, a.index, len(a.call.args)) == (b.call.name, b.index, len(b.call.args))
    if not alike or a.call.kwargs or b.call.kwargs:
        return False
    return all(_same(x, y, depth - 1) for x, y in zip(a.call.args, b.call.args, strict=True))


def _source(value: Value) -> Value:
    """Return what a value shows the elements of, copied, scaled or in another arrangement."""
    while value.call is not None and (
        value.call.short_name in _SAME_ELEMENTS
        or (value.call.short_name in ("mul", "div") and isinstance(value.call.args[1], int | float))
        or (value.call.short_name == "slice" and _sizes(value) == _sizes(value.call.args[0]))
    ):
        value = value.call.args[0]
    return value


def _sizes(value: Value) -> list[Any]:
    """Return the sizes, symbolic ones as expressions: to compare these decides nothing."""
    return [value_of(size) for size in value.tensor.shape]
