"""Comparisons, logic, and choices by a condition."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._compute import choose, operand, rounded, truth, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["eq", "ge", "gt", "le", "lt", "masked_fill", "ne", "where"]


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
