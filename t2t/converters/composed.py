"""Functions of two numbers for which TensorRT has no layer."""

from __future__ import annotations

import math

from t2t.converters._compute import binary, choose, is_negative, operand, rounded, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["atan2", "copysign", "heaviside", "hypot", "xlogy"]


@converter("aten::atan2", precision="sensitive")
def atan2(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the angle of the point (x = ``other``, y = ``self``), from -pi to pi."""
    dtype = net.output.dtype
    y, x = net.aligned([self, other], dtype)
    height, width = net.add_unary(y, "ABS"), net.add_unary(x, "ABS")
    # 0 / 0 and inf / inf have a meaning here.
    same = net.add_elementwise(height, width, "EQUAL")
    some = net.add_elementwise(height, 0.0, "GREATER", dtype=dtype)
    diagonal = choose(net, some, 1.0, 0.0)
    steepness = choose(net, same, diagonal, binary(net, "DIV", height, width))
    angle = net.add_unary(steepness, "ATAN")
    angle = choose(net, is_negative(net, x), binary(net, "SUB", math.pi, angle), angle)
    return choose(net, is_negative(net, y), net.add_unary(angle, "NEG"), angle)


@converter("aten::hypot", precision="sensitive")
def hypot(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``sqrt(self ** 2 + other ** 2)``, whose squares may overflow."""
    dtype = net.output.dtype
    a, b = (net.add_unary(x, "ABS") for x in net.aligned([self, other], dtype))
    a_longer = net.add_elementwise(a, b, "GREATER")
    long, short = choose(net, a_longer, a, b), choose(net, a_longer, b, a)
    ratio = binary(net, "DIV", short, long)
    root = net.add_unary(binary(net, "SUM", binary(net, "PROD", ratio, ratio), 1.0), "SQRT")
    length = binary(net, "PROD", long, root)
    zero = net.add_elementwise(binary(net, "SUM", a, b), 0.0, "EQUAL", dtype=dtype)
    infinite = net.add_elementwise(net.add_unary(a, "ISINF"), net.add_unary(b, "ISINF"), "OR")
    return choose(net, zero, 0.0, choose(net, infinite, math.inf, length))


@converter("aten::copysign")
def copysign(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the size of ``self`` with the sign of ``other``."""
    size = net.add_unary(net.tensor(self, net.output.dtype), "ABS")
    negative = is_negative(net, net.tensor(other, net.output.dtype))
    return choose(net, negative, net.add_unary(size, "NEG"), size)


@converter("aten::xlogy", precision="sensitive")
def xlogy(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self * log(other)``, which is 0 where ``self`` is 0 and ``other`` is a number."""
    dtype = net.output.dtype
    x, y = net.aligned([rounded(operand(net, z, dtype), dtype) for z in (self, other)], dtype)
    product = binary(net, "PROD", x, net.add_unary(y, "LOG"))
    zero = net.add_elementwise(x, 0.0, "EQUAL", dtype=dtype)
    return choose(net, net.add_unary(y, "ISNAN"), y, choose(net, zero, 0.0, product))


@converter("aten::heaviside")
def heaviside(net: Network, self: TensorLike, values: TensorLike) -> NetworkTensor:
    """Convert to 0 below zero, 1 above it and ``values`` at it."""
    dtype = net.output.dtype
    working = working_dtype(dtype)
    x = net.tensor(self, working)
    above = net.add_elementwise(x, 0, "GREATER", dtype=working)
    at = net.add_elementwise(x, 0, "EQUAL", dtype=working)
    return choose(net, at, values, choose(net, above, 1, 0))
