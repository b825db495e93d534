"""Comparisons, logic, choices by a condition, and the greater and the smaller of two numbers.

NaN is kept as torch keeps it. TensorRT's MAX and MIN give the other number where one is NaN, as C's
fmax does, and CLIP gives a bound (https://github.com/NVIDIA/TensorRT/issues/4758 and 4773, of
10.16): so floats are compared and chosen instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from t2t.converters._compute import binary, choose, operand, rounded, truth, working_dtype
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter


def _operands(
    net: Network, a: TensorLike, b: TensorLike
) -> tuple[NetworkTensor, NetworkTensor, torch.dtype]:
    """Return two operands at one rank, in the dtype in which torch compares them."""
    dtype = _common_dtype(a, b)
    a, b = (rounded(operand(net, x, dtype), dtype) for x in (a, b))
    x, y = net.aligned([a, b], dtype if dtype == torch.bool else working_dtype(dtype))
    return x, y, dtype


def _common_dtype(a: TensorLike, b: TensorLike) -> torch.dtype:
    kinds: list[Any] = [x if isinstance(x, torch.Tensor) else _python_number(x) for x in (a, b)]
    return torch.result_type(kinds[0], kinds[1])


def _truths(net: Network, a: TensorLike, b: TensorLike) -> tuple[NetworkTensor, NetworkTensor]:
    """Return whether two operands are not zero, in the type that they have together."""
    dtype = _common_dtype(a, b)
    return truth(net, operand(net, a, dtype)), truth(net, operand(net, b, dtype))


def _python_number(x: Any) -> Any:
    if isinstance(x, torch.SymInt):
        return 1
    return 1.0 if isinstance(x, torch.SymFloat) else x


@converter("aten::eq")
def eq(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self == other``."""
    x, y, dtype = _operands(net, self, other)
    if dtype == torch.bool:
        return net.add_unary(net.add_elementwise(x, y, "XOR"), "NOT")
    return net.add_elementwise(x, y, "EQUAL")


@converter("aten::ne")
def ne(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self != other``; NaN differs from itself."""
    x, y, dtype = _operands(net, self, other)
    if dtype == torch.bool:
        return net.add_elementwise(x, y, "XOR")
    return net.add_unary(net.add_elementwise(x, y, "EQUAL"), "NOT")


@converter("aten::lt")
def lt(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self < other``."""
    return _compared(net, "LESS", self, other)


@converter("aten::gt")
def gt(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self > other``."""
    return _compared(net, "GREATER", self, other)


@converter("aten::le")
def le(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self <= other``."""
    return _compared_or_equal(net, "LESS", "GREATER", self, other)


@converter("aten::ge")
def ge(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self >= other``."""
    return _compared_or_equal(net, "GREATER", "LESS", self, other)


def _compared(net: Network, op: str, a: TensorLike, b: TensorLike) -> NetworkTensor:
    x, y, dtype = _operands(net, a, b)
    if dtype == torch.bool:
        x, y = (net.cast(tensor, torch.int32) for tensor in (x, y))
    return net.add_elementwise(x, y, op)


def _compared_or_equal(
    net: Network, op: str, opposite: str, a: TensorLike, b: TensorLike
) -> NetworkTensor:
    x, y, dtype = _operands(net, a, b)
    if dtype.is_floating_point:
        # "Not less" would hold for NaN.
        equal = net.add_elementwise(x, y, "EQUAL")
        return net.add_elementwise(net.add_elementwise(x, y, op), equal, "OR")
    if dtype == torch.bool:
        x, y = (net.cast(tensor, torch.int32) for tensor in (x, y))
    return net.add_unary(net.add_elementwise(x, y, opposite), "NOT")


@converter("aten::logical_and")
def logical_and(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "both are not zero"."""
    return net.add_elementwise(*_truths(net, self, other), "AND")


@converter("aten::logical_or")
def logical_or(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "one is not zero"."""
    return net.add_elementwise(*_truths(net, self, other), "OR")


@converter("aten::logical_xor")
def logical_xor(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "exactly one is not zero"."""
    return net.add_elementwise(*_truths(net, self, other), "XOR")


@converter("aten::where.self")
def where(
    net: Network, condition: torch.Tensor, self: TensorLike, other: TensorLike
) -> NetworkTensor:
    """Convert the choice of ``self`` where ``condition`` holds, else ``other``; they broadcast."""
    return choose(net, truth(net, condition), self, other)


@converter("aten::masked_fill")
def masked_fill(
    net: Network, self: TensorLike, mask: torch.Tensor, value: TensorLike
) -> NetworkTensor:
    """Convert the choice of ``value`` where ``mask`` holds."""
    return choose(net, mask, value, self)


# -- the greater and the smaller of two numbers ----------------------------------------------------


@converter("aten::clamp")
def clamp(
    net: Network, self: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None
) -> NetworkTensor:
    """Convert the nearest value between two bounds; the upper one counts where they cross.

    The bound 0 alone is a RELU, as which it can join the layer before it.
    """
    if isinstance(min, int | float) and min == 0 and max is None and _is_float(net):
        return net.add_activation(net.tensor(self, net.output.dtype), "RELU")
    x = net.tensor(self, net.output.dtype)
    for bound, op, open_end in ((min, "MAX", -math.inf), (max, "MIN", math.inf)):
        if bound is not None and not (isinstance(bound, float) and bound == open_end):
            x = _extreme(net, op, x, bound)
    return x


def _is_float(net: Network) -> bool:
    dtype: torch.dtype = net.output.dtype
    return dtype.is_floating_point


def _extreme(net: Network, op: str, a: TensorLike, b: TensorLike) -> NetworkTensor:
    """Return the greater ("MAX") or smaller ("MIN") of two; NaN where one of them is NaN."""
    dtype = net.output.dtype
    if dtype == torch.bool:
        return net.add_elementwise(a, b, "OR" if op == "MAX" else "AND", dtype=torch.bool)
    if not dtype.is_floating_point:
        return binary(net, op, a, b)
    a, b = (rounded(operand(net, x, dtype), dtype) for x in (a, b))
    x, y = net.aligned([a, b], dtype)
    better = "GREATER" if op == "MAX" else "LESS"
    if not _may_be_nan(net, b):
        return net.add_select(net.add_elementwise(y, x, better), y, x)
    wins = net.add_elementwise(x, y, better)
    if _may_be_nan(net, a):
        wins = net.add_elementwise(wins, net.add_unary(x, "ISNAN"), "OR")
    return net.add_select(wins, x, y)


def _may_be_nan(net: Network, x: TensorLike) -> bool:
    if isinstance(x, bool | int | float):
        return math.isnan(x)
    if isinstance(x, torch.Tensor) and not net.is_traced(x):
        return bool(torch.isnan(x).any())
    return not isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool)


@converter("aten::maximum")
def maximum(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the greater of two numbers; of bools, whether one holds."""
    return _extreme(net, "MAX", self, other)


@converter("aten::minimum")
def minimum(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the smaller of two numbers; of bools, whether both hold."""
    return _extreme(net, "MIN", self, other)
