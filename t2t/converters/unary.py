"""Functions of one number, any shape to the same shape."""

from __future__ import annotations

import math

import torch

from t2t.converters._compute import binary, choose, filled, is_negative, narrowed, working_dtype
from t2t.converters.division import toward_zero
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import Precision, converter

__all__ = ["erfc", "expm1", "log1p", "round", "rsqrt", "sign", "trunc"]


def _register(operation: str, *names: str, precision: Precision = "follow") -> None:
    """Let a torch function be one layer, in torch's result type."""

    @converter(*names, precision=precision)
    def unary(net: Network, self: torch.Tensor) -> NetworkTensor:
        """Convert to one IUnaryLayer."""
        return net.add_unary(net.tensor(self, net.output.dtype), operation)


_register("EXP", "aten::exp", precision="sensitive")
_register("LOG", "aten::log", precision="sensitive")
_register("SQRT", "aten::sqrt", precision="sensitive")
_register("RECIP", "aten::reciprocal", precision="sensitive")
_register("SIN", "aten::sin", precision="sensitive")
_register("COS", "aten::cos", precision="sensitive")
_register("TAN", "aten::tan", precision="sensitive")
_register("ASIN", "aten::asin", precision="sensitive")
_register("ACOS", "aten::acos", precision="sensitive")
_register("ATAN", "aten::atan", precision="sensitive")
_register("SINH", "aten::sinh", precision="sensitive")
_register("COSH", "aten::cosh", precision="sensitive")
_register("ASINH", "aten::asinh", precision="sensitive")
_register("ACOSH", "aten::acosh", precision="sensitive")
_register("ATANH", "aten::atanh", precision="sensitive")
_register("ERF", "aten::erf", precision="sensitive")


def _register_exact(operation: str, *names: str) -> None:
    """Let a torch function be one layer; bytes take the way over int32."""

    @converter(*names)
    def unary(net: Network, self: torch.Tensor) -> NetworkTensor:
        """Convert to one IUnaryLayer."""
        result = net.add_unary(net.tensor(self, working_dtype(self.dtype)), operation)
        return narrowed(net, result, self.dtype)


_register_exact("ABS", "aten::abs")
_register_exact("NEG", "aten::neg")


def _register_rounding(operation: str, *names: str) -> None:
    """Let a torch function round floats, and leave integers as they are."""

    @converter(*names)
    def rounding(net: Network, self: torch.Tensor) -> NetworkTensor:
        """Convert to one IUnaryLayer; of integers to nothing."""
        x = net.tensor(self)
        return net.add_unary(x, operation) if self.dtype.is_floating_point else x


_register_rounding("CEIL", "aten::ceil")
_register_rounding("FLOOR", "aten::floor")
_register_rounding("ROUND", "aten::round.default")


@converter("aten::round.decimals")
def round(net: Network, self: torch.Tensor, decimals: int = 0) -> NetworkTensor:
    """Convert rounding to a number of decimals, halves to even."""
    x = net.tensor(self)
    if not self.dtype.is_floating_point:
        return x
    if decimals == 0:
        return net.add_unary(x, "ROUND")
    # Torch's order: a power of ten below one would be rounded itself.
    power = float(10 ** abs(decimals))
    there, back = ("PROD", "DIV") if decimals > 0 else ("DIV", "PROD")
    return binary(net, back, net.add_unary(binary(net, there, x, power), "ROUND"), power)


@converter("aten::trunc")
def trunc(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert rounding towards zero."""
    x = net.tensor(self)
    return toward_zero(net, x) if self.dtype.is_floating_point else x


@converter("aten::frac")
def frac(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert what is behind the point, with the sign of the number."""
    x = net.tensor(self)
    return binary(net, "SUB", x, toward_zero(net, x))


@converter("aten::sign", "aten::sgn")
def sign(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to -1, 0 or 1; bool stays as it is."""
    if self.dtype == torch.bool:
        return net.tensor(self)
    x = net.tensor(self, working_dtype(self.dtype))
    result = net.add_unary(x, "SIGN")
    if self.dtype.is_floating_point:
        # Torch's sign of NaN is 0; TensorRT's is not defined.
        result = choose(net, net.add_unary(x, "ISNAN"), 0.0, result)
    return net.cast(result, net.compute_dtype(self.dtype))


@converter("aten::signbit")
def signbit(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to whether a number is negative, which -0.0 is too."""
    if self.dtype.is_floating_point:
        return is_negative(net, net.tensor(self))
    dtype = working_dtype(self.dtype)
    return net.add_elementwise(net.tensor(self, dtype), 0, "LESS", dtype=dtype)


@converter("aten::isnan")
def isnan(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to bool; no integer is NaN."""
    if self.dtype.is_floating_point:
        return net.add_unary(self, "ISNAN")
    return filled(net, False)


@converter("aten::isinf")
def isinf(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to bool; no integer is infinite."""
    if self.dtype.is_floating_point:
        return net.add_unary(self, "ISINF")
    return filled(net, False)


@converter("aten::isposinf")
def isposinf(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to bool; no integer is infinite."""
    if self.dtype.is_floating_point:
        return net.add_elementwise(self, math.inf, "EQUAL")
    return filled(net, False)


@converter("aten::isneginf")
def isneginf(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to bool; no integer is infinite."""
    if self.dtype.is_floating_point:
        return net.add_elementwise(self, -math.inf, "EQUAL")
    return filled(net, False)


@converter("aten::rsqrt", precision="sensitive")
def rsqrt(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``1 / sqrt(self)``."""
    return net.add_unary(net.add_unary(net.tensor(self, net.output.dtype), "SQRT"), "RECIP")


@converter("aten::exp2", precision="sensitive")
def exp2(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``2 ** self``."""
    return binary(net, "POW", 2.0, self)


@converter("aten::expm1", precision="sensitive")
def expm1(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``exp(self) - 1``, exact near 0 too: it is ``tanh(x / 2) * (exp(x) + 1)``."""
    x = net.tensor(self, net.output.dtype)
    half = net.add_activation(binary(net, "PROD", x, 0.5), "TANH")
    return binary(net, "PROD", half, binary(net, "SUM", net.add_unary(x, "EXP"), 1.0))


@converter("aten::log1p", precision="sensitive")
def log1p(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``log(1 + self)``, exact near 0 too: there it is ``2 * atanh(x / (2 + x))``."""
    x = net.tensor(self, net.output.dtype)
    ratio = binary(net, "DIV", x, binary(net, "SUM", x, 2.0))
    near = binary(net, "PROD", net.add_unary(ratio, "ATANH"), 2.0)
    far = net.add_unary(binary(net, "SUM", x, 1.0), "LOG")
    is_near = net.add_elementwise(net.add_unary(x, "ABS"), 0.5, "LESS", dtype=net.output.dtype)
    return choose(net, is_near, near, far)


@converter("aten::log2", precision="sensitive")
def log2(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the logarithm of base 2."""
    natural = net.add_unary(net.tensor(self, net.output.dtype), "LOG")
    return binary(net, "DIV", natural, math.log(2))


@converter("aten::log10", precision="sensitive")
def log10(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the logarithm of base 10."""
    natural = net.add_unary(net.tensor(self, net.output.dtype), "LOG")
    return binary(net, "DIV", natural, math.log(10))


# Numerical Recipes' erfcc: erfc(x) = t * exp(-x * x + polynomial(t)), t = 1 / (1 + x / 2), for
# x >= 0, with a relative error below 1.2e-7 everywhere. (1 - erf(x) has no digits left at 4.)
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


@converter("aten::erfc", precision="sensitive")
def erfc(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``1 - erf(self)``, with all digits also where it is small."""
    dtype = net.output.dtype
    x = net.tensor(self, dtype)
    size = net.add_unary(x, "ABS")
    t = net.add_unary(binary(net, "SUM", binary(net, "PROD", size, 0.5), 1.0), "RECIP")
    polynomial: TensorLike = _ERFC[-1]
    for factor in reversed(_ERFC[:-1]):
        polynomial = binary(net, "SUM", binary(net, "PROD", polynomial, t), factor)
    exponent = binary(net, "SUB", polynomial, binary(net, "PROD", x, x))
    positive = binary(net, "PROD", t, net.add_unary(exponent, "EXP"))
    negative = net.add_elementwise(x, 0.0, "LESS", dtype=dtype)
    return choose(net, negative, binary(net, "SUB", 2.0, positive), positive)


@converter("aten::logit", precision="sensitive")
def logit(net: Network, self: torch.Tensor, eps: float | None = None) -> NetworkTensor:
    """Convert ``log(x / (1 - x))``, with x kept between ``eps`` and ``1 - eps``."""
    dtype = net.output.dtype
    x = net.tensor(self, dtype)
    if eps is not None:
        # Two choices, not MAX and MIN, which may lose a NaN; the lower bound wins, as in torch.
        below = net.add_elementwise(x, eps, "LESS", dtype=dtype)
        above = net.add_elementwise(x, 1.0 - eps, "GREATER", dtype=dtype)
        x = choose(net, below, eps, choose(net, above, 1.0 - eps, x))
    return net.add_unary(binary(net, "DIV", x, binary(net, "SUB", 1.0, x)), "LOG")


@converter("aten::deg2rad")
def deg2rad(net: Network, self: TensorLike) -> NetworkTensor:
    """Convert degrees to radians."""
    return binary(net, "PROD", self, math.pi / 180.0)


@converter("aten::rad2deg")
def rad2deg(net: Network, self: TensorLike) -> NetworkTensor:
    """Convert radians to degrees."""
    return binary(net, "PROD", self, 180.0 / math.pi)
