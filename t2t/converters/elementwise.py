"""Sums, differences, products, quotients and remainders of two tensors, in torch's result type.

Of integers, rounded quotients and remainders are exact. Of floats, ``floor(a / b)`` alone is not
what torch gives: 1 / 0.1 in float32 rounds up to 10, but 0.1 goes into 1 only nine times. So the
quotient is checked against its own remainder, which is computed without rounding: ``b`` is cut into
three parts of 8 bits, whose products with a quotient below 2 ** 16 are exact. Beyond that the
remainder has an absolute error of up to ``abs(a) * 2 ** -24``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from t2t.converters._compute import binary, choose, narrowed, operand, rounded, working_dtype
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter


@converter("aten::add")
def add(net: Network, self: TensorLike, other: TensorLike, alpha: Any = 1) -> NetworkTensor:
    """Convert ``self + alpha * other``; the sum of two bools is their logical or."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, _scaled(net, other, alpha), "OR", dtype=torch.bool)
    return binary(net, "SUM", self, _scaled(net, other, alpha))


@converter("aten::sub")
def sub(net: Network, self: TensorLike, other: TensorLike, alpha: Any = 1) -> NetworkTensor:
    """Convert ``self - alpha * other``."""
    return binary(net, "SUB", self, _scaled(net, other, alpha))


@converter("aten::rsub")
def rsub(net: Network, self: TensorLike, other: TensorLike, alpha: Any = 1) -> NetworkTensor:
    """Convert ``other - alpha * self``."""
    return binary(net, "SUB", other, _scaled(net, self, alpha))


@converter("aten::mul")
def mul(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self * other``; the product of two bools is their logical and."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, other, "AND", dtype=torch.bool)
    return binary(net, "PROD", self, other)


@converter("aten::div")
def div(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self / other``; integers give floats."""
    return binary(net, "DIV", self, other)


@converter("aten::addcmul")
def addcmul(
    net: Network, self: TensorLike, tensor1: TensorLike, tensor2: TensorLike, value: Any = 1
) -> NetworkTensor:
    """Convert ``self + value * tensor1 * tensor2``, in this order: a product may overflow."""
    return binary(net, "SUM", self, binary(net, "PROD", _product(net, value, tensor1), tensor2))


@converter("aten::addcdiv")
def addcdiv(
    net: Network, self: TensorLike, tensor1: TensorLike, tensor2: TensorLike, value: Any = 1
) -> NetworkTensor:
    """Convert ``self + value * tensor1 / tensor2``, in this order."""
    return binary(net, "SUM", self, binary(net, "DIV", _product(net, value, tensor1), tensor2))


def _product(net: Network, factor: Any, x: TensorLike) -> TensorLike:
    if isinstance(factor, bool | int | float) and factor == 1:
        return x
    return binary(net, "PROD", factor, x)


def _scaled(net: Network, x: TensorLike, factor: Any) -> TensorLike:
    """Multiply by ``alpha`` in the result's dtype: at conversion where both are known."""
    if isinstance(factor, bool | int | float) and factor == 1:
        return x
    if net.output.dtype == torch.bool:
        return net.add_elementwise(x, bool(factor), "AND", dtype=torch.bool)
    if not net.is_traced(x) and not net.is_traced(factor):
        product: torch.Tensor = torch.as_tensor(x).to(net.output.dtype) * factor
        return product
    return binary(net, "PROD", x, factor)


# -- rounded quotients and remainders --------------------------------------------------------------


@converter("aten::div.Tensor_mode", "aten::div.Scalar_mode", precision="sensitive")
def div_mode(
    net: Network, self: TensorLike, other: TensorLike, rounding_mode: str | None = None
) -> NetworkTensor:
    """Convert ``self / other``, also rounded towards zero ("trunc") or down ("floor")."""
    if rounding_mode is None:
        return binary(net, "DIV", self, other)
    return rounded_quotient(net, self, other, rounding_mode)


@converter("aten::remainder", precision="sensitive")
def remainder(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self % other`` with the sign of ``other``."""
    dtype = net.output.dtype
    if not dtype.is_floating_point:
        return _integer_remainder(net, self, other, "FLOOR_DIV")
    a, b = _floats(net, self, other)
    return _floor_parts(net, a, b)[1]


@converter("aten::fmod", precision="sensitive")
def fmod(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the remainder with the sign of ``self``."""
    dtype = net.output.dtype
    if not dtype.is_floating_point:
        return _integer_remainder(net, self, other, "DIV")
    a, b = _floats(net, self, other)
    return _divided(net, a, b).remainder


def rounded_quotient(
    net: Network, a: TensorLike, b: TensorLike, rounding_mode: str
) -> NetworkTensor:
    """Divide and round towards zero ("trunc") or down ("floor"), in the result's dtype."""
    if rounding_mode not in ("trunc", "floor"):
        raise UnsupportedArgumentError(
            f"rounding_mode={rounding_mode!r}: supported: None, 'trunc', 'floor'"
        )
    dtype = net.output.dtype
    floor = rounding_mode == "floor"
    if not dtype.is_floating_point:
        return binary(net, "FLOOR_DIV" if floor else "DIV", a, b)
    if not floor:
        return toward_zero(net, binary(net, "DIV", a, b))
    return _floor_parts(net, *_floats(net, a, b))[0]


def _floats(net: Network, a: TensorLike, b: TensorLike) -> list[NetworkTensor]:
    dtype = net.output.dtype
    return net.aligned([rounded(operand(net, x, dtype), dtype) for x in (a, b)], dtype)


def toward_zero(net: Network, x: NetworkTensor) -> NetworkTensor:
    """Drop the digits behind the point; TensorRT has no layer for it."""
    negative = net.add_elementwise(x, 0.0, "LESS", dtype=net.dtype_of(x))
    return net.add_select(negative, net.add_unary(x, "CEIL"), net.add_unary(x, "FLOOR"))


def _integer_remainder(net: Network, a: TensorLike, b: TensorLike, op: str) -> NetworkTensor:
    dtype = net.output.dtype
    working = working_dtype(dtype)
    a, b = (operand(net, x, dtype) for x in (a, b))
    whole = binary(net, "PROD", binary(net, op, a, b, working), b, working)
    return narrowed(net, binary(net, "SUB", a, whole, working), dtype)


class _Division(NamedTuple):
    """What is left of ``a / b``: ``abs(a) == quotient * abs(b) + abs(remainder)``."""

    quotient: NetworkTensor
    remainder: NetworkTensor


def _divided(net: Network, a: NetworkTensor, b: NetworkTensor) -> _Division:
    """Divide the absolute values of floats; the remainder has the sign of ``a``."""
    dtype = net.dtype_of(a)
    size, step = net.add_unary(a, "ABS"), net.add_unary(b, "ABS")
    quotient = net.add_unary(binary(net, "DIV", size, step, dtype), "FLOOR")
    rest = size
    for part in _parts(net, step):
        rest = binary(net, "SUB", rest, binary(net, "PROD", quotient, part, dtype), dtype)
    # The rounded quotient is right or one too large.
    over = net.add_elementwise(rest, 0.0, "LESS", dtype=dtype)
    rest = choose(net, over, binary(net, "SUM", rest, step, dtype), rest, dtype)
    quotient = choose(net, over, binary(net, "SUB", quotient, 1.0, dtype), quotient, dtype)
    # An infinite step has no parts, and all of a finite size is left.
    endless = net.add_elementwise(step, torch.inf, "EQUAL", dtype=dtype)
    finite = net.add_elementwise(size, torch.inf, "LESS", dtype=dtype)
    rest = choose(net, net.add_elementwise(endless, finite, "AND"), size, rest, dtype)
    # Torch divides before it rounds, so it knows nothing of infinity's quotient.
    quotient = choose(net, finite, quotient, torch.nan, dtype)
    negative = net.add_elementwise(a, 0.0, "LESS", dtype=dtype)
    return _Division(quotient, choose(net, negative, net.add_unary(rest, "NEG"), rest, dtype))


def _parts(net: Network, x: NetworkTensor) -> list[NetworkTensor]:
    """Cut floats into three numbers of at most 8 bits each, which add up to them exactly."""
    dtype = net.dtype_of(x)
    high = net.cast(net.cast(x, torch.bfloat16), dtype)
    rest = binary(net, "SUB", x, high, dtype)
    middle = net.cast(net.cast(rest, torch.bfloat16), dtype)
    return [high, middle, binary(net, "SUB", rest, middle, dtype)]


def _floor_parts(
    net: Network, a: NetworkTensor, b: NetworkTensor
) -> tuple[NetworkTensor, NetworkTensor]:
    """Return ``floor(a / b)`` and what is left, which has the sign of ``b``."""
    dtype = net.dtype_of(a)
    quotient, rest = _divided(net, a, b)
    a_below, b_below, rest_below = (
        net.add_elementwise(x, 0.0, "LESS", dtype=dtype) for x in (a, b, rest)
    )
    opposed = net.add_elementwise(a_below, b_below, "XOR")
    signed = choose(net, opposed, net.add_unary(quotient, "NEG"), quotient, dtype)
    left = net.add_unary(net.add_elementwise(rest, 0.0, "EQUAL", dtype=dtype), "NOT")
    crossed = net.add_elementwise(rest_below, b_below, "XOR")
    lower = net.add_elementwise(left, crossed, "AND")
    floor = choose(net, lower, binary(net, "SUB", signed, 1.0, dtype), signed, dtype)
    zero = net.add_elementwise(b, 0.0, "EQUAL", dtype=dtype)
    return (
        choose(net, zero, binary(net, "DIV", a, b, dtype), floor, dtype),
        choose(net, lower, binary(net, "SUM", rest, b, dtype), rest, dtype),
    )
