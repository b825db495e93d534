"""Functions of one number, any shape to the same shape."""

from __future__ import annotations

import torch

from t2t.converters._compute import choose, filled, is_negative, narrowed, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.registry import Precision, converter

__all__ = ["rsqrt", "sign"]


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


@converter("aten::rsqrt", precision="sensitive")
def rsqrt(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``1 / sqrt(self)``."""
    return net.add_unary(net.add_unary(net.tensor(self, net.output.dtype), "SQRT"), "RECIP")
