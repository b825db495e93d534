"""Powers, as torch has them also for negative bases and for integers.

TensorRT's POW is for floats and does not promise anything for negative bases, so whole exponents
become products where they are known, and the sign is put in afterwards where they are not.
"""

from __future__ import annotations

import functools
import math

import torch

from t2t.converters._compute import (
    binary,
    choose,
    filled,
    is_negative,
    narrowed,
    operand,
    working_dtype,
)
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter

MAX_PRODUCTS = 64
"""Largest whole exponent of a float that becomes products."""


@converter("aten::pow", precision="sensitive")
def pow(net: Network, self: TensorLike, exponent: TensorLike) -> NetworkTensor:
    """Convert ``self ** exponent``."""
    dtype = net.output.dtype
    known = _number(net, exponent)
    if known is not None and dtype.is_floating_point:
        return _fixed_power(net, net.tensor(self, dtype), known)
    if known is not None:
        return _integer_power(net, self, int(known))
    if dtype.is_floating_point:
        return _power(net, self, exponent)
    return _integer_powers(net, self, exponent)


def _number(net: Network, x: TensorLike) -> float | int | None:
    """Return an exponent that is known at conversion, and one for all elements."""
    if isinstance(x, bool | int | float):
        return x
    if isinstance(x, torch.Tensor) and x.ndim == 0 and not net.is_traced(x):
        return x.item()
    return None


def _fixed_power(net: Network, base: NetworkTensor, exponent: float) -> NetworkTensor:
    """Raise floats to a known power; roots and small powers as torch's own kernels do."""
    dtype = net.output.dtype
    if exponent in (0.5, -0.5):
        root = net.add_unary(base, "SQRT")
        return root if exponent > 0 else net.add_unary(root, "RECIP")
    if exponent == 0:
        return filled(net, 1.0)
    if float(exponent).is_integer() and abs(exponent) <= MAX_PRODUCTS:
        power = whole_power(net, base, abs(int(exponent)), dtype)
        return power if exponent > 0 else net.add_unary(power, "RECIP")
    if math.isfinite(exponent) and not float(exponent).is_integer():
        # Of a negative base it is NaN, unless that is infinite: said here, not left to TensorRT.
        power = binary(net, "POW", net.add_unary(base, "ABS"), exponent)
        negative = net.add_elementwise(base, 0.0, "LESS", dtype=dtype)
        finite = net.add_elementwise(base, -torch.inf, "GREATER", dtype=dtype)
        return choose(net, net.add_elementwise(negative, finite, "AND"), torch.nan, power)
    return _power(net, base, exponent)


def whole_power(
    net: Network, base: NetworkTensor, exponent: int, dtype: torch.dtype
) -> NetworkTensor:
    """Raise to a positive whole power by squaring: exact for integers and for negative bases."""
    square, factors = base, []
    while exponent:
        if exponent & 1:
            factors.append(square)
        exponent >>= 1
        if exponent:
            square = binary(net, "PROD", square, square, dtype)
    return functools.reduce(lambda a, b: binary(net, "PROD", a, b, dtype), factors)


def _power(net: Network, base: TensorLike, exponent: TensorLike) -> NetworkTensor:
    """Raise floats to powers that differ: a negative base has only whole ones."""
    dtype = net.output.dtype
    if isinstance(base, int | float) and base >= 0:
        return binary(net, "POW", base, exponent)
    a, b = net.aligned([base, exponent], dtype)
    power = binary(net, "POW", net.add_unary(a, "ABS"), b)
    negative = is_negative(net, a)
    whole = net.add_elementwise(net.add_unary(b, "FLOOR"), b, "EQUAL")
    half = binary(net, "PROD", b, 0.5)
    odd = net.add_unary(net.add_elementwise(net.add_unary(half, "FLOOR"), half, "EQUAL"), "NOT")
    signed = choose(net, odd, net.add_unary(power, "NEG"), power)
    # Of an infinite base and of -0.0 every power is known, whole or not.
    zero = net.add_elementwise(a, 0.0, "EQUAL", dtype=dtype)
    extreme = net.add_elementwise(net.add_unary(a, "ISINF"), zero, "OR")
    defined = net.add_elementwise(whole, extreme, "OR")
    opposite = choose(net, net.add_elementwise(whole, odd, "AND"), signed, power)
    return choose(net, negative, choose(net, defined, opposite, torch.nan), power)


def _integer_power(net: Network, base: TensorLike, exponent: int) -> NetworkTensor:
    dtype = net.output.dtype
    if exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    x = net.tensor(base, dtype)
    if exponent == 0:
        return filled(net, 1)
    return whole_power(net, x, exponent, dtype)


def _integer_powers(net: Network, base: TensorLike, exponent: TensorLike) -> NetworkTensor:
    """Raise integers to powers that differ, by all bits of the exponent: products wrap around.

    Negative powers are 0 but for 1 and -1.
    """
    dtype = net.output.dtype
    working = working_dtype(dtype)
    square: NetworkTensor
    rest: NetworkTensor
    square, rest = net.aligned([operand(net, x, dtype) for x in (base, exponent)], working)
    most = torch.iinfo(dtype).max
    if not net.is_traced(exponent):
        most = int(torch.as_tensor(exponent).max())
    bits = max(1, most.bit_length())
    base_tensor, whole = square, rest
    result: NetworkTensor | None = None
    for bit in range(bits):
        half = binary(net, "FLOOR_DIV", rest, 2, working)
        even = net.add_elementwise(binary(net, "PROD", half, 2, working), rest, "EQUAL")
        result = choose(
            net,
            even,
            1 if result is None else result,
            square if result is None else binary(net, "PROD", result, square, working),
            working,
        )
        rest = half
        if bit < bits - 1:
            square = binary(net, "PROD", square, square, working)
    assert result is not None
    result = narrowed(net, result, dtype)
    below = net.add_elementwise(whole, 0, "LESS", dtype=working)
    unit = net.add_elementwise(net.add_unary(base_tensor, "ABS"), 1, "EQUAL", dtype=working)
    return choose(net, net.add_elementwise(below, net.add_unary(unit, "NOT"), "AND"), 0, result)
