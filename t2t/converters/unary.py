"""Functions of one number, casts among them: any shape to the same shape."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._compute import choose, filled, is_negative, narrowed, truth, working_dtype
from t2t.errors import UnsupportedArgumentError, require
from t2t.network import Network, NetworkTensor
from t2t.registry import converter


def _one_layer(net: Network, x: torch.Tensor, operation: str) -> NetworkTensor:
    """Convert to one IUnaryLayer, in torch's result type."""
    return net.add_unary(net.tensor(x, net.output.dtype), operation)


@converter("aten::exp", precision="sensitive")
def exp(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``e ** self``."""
    return _one_layer(net, self, "EXP")


@converter("aten::log", precision="sensitive")
def log(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the natural logarithm."""
    return _one_layer(net, self, "LOG")


@converter("aten::sqrt", precision="sensitive")
def sqrt(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the square root; NaN for negative numbers."""
    return _one_layer(net, self, "SQRT")


@converter("aten::reciprocal", precision="sensitive")
def reciprocal(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``1 / self``."""
    return _one_layer(net, self, "RECIP")


@converter("aten::sin", precision="sensitive")
def sin(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the sine of an angle in radians."""
    return _one_layer(net, self, "SIN")


@converter("aten::cos", precision="sensitive")
def cos(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the cosine of an angle in radians."""
    return _one_layer(net, self, "COS")


@converter("aten::tan", precision="sensitive")
def tan(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the tangent of an angle in radians."""
    return _one_layer(net, self, "TAN")


@converter("aten::asin", precision="sensitive")
def asin(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the angle of a sine."""
    return _one_layer(net, self, "ASIN")


@converter("aten::acos", precision="sensitive")
def acos(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the angle of a cosine."""
    return _one_layer(net, self, "ACOS")


@converter("aten::atan", precision="sensitive")
def atan(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the angle of a tangent."""
    return _one_layer(net, self, "ATAN")


@converter("aten::sinh", precision="sensitive")
def sinh(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the hyperbolic sine."""
    return _one_layer(net, self, "SINH")


@converter("aten::cosh", precision="sensitive")
def cosh(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the hyperbolic cosine."""
    return _one_layer(net, self, "COSH")


@converter("aten::asinh", precision="sensitive")
def asinh(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the inverse of the hyperbolic sine."""
    return _one_layer(net, self, "ASINH")


@converter("aten::acosh", precision="sensitive")
def acosh(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the inverse of the hyperbolic cosine."""
    return _one_layer(net, self, "ACOSH")


@converter("aten::atanh", precision="sensitive")
def atanh(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the inverse of the hyperbolic tangent."""
    return _one_layer(net, self, "ATANH")


@converter("aten::erf", precision="sensitive")
def erf(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the error function."""
    return _one_layer(net, self, "ERF")


def _exact(net: Network, x: torch.Tensor, operation: str) -> NetworkTensor:
    """Convert to one IUnaryLayer; bytes take the way over int32."""
    result = net.add_unary(net.tensor(x, working_dtype(x.dtype)), operation)
    return narrowed(net, result, x.dtype)


@converter("aten::abs")
def abs(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the magnitude."""
    return _exact(net, self, "ABS")


@converter("aten::neg")
def neg(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``-self``."""
    return _exact(net, self, "NEG")


def _rounded(net: Network, x: torch.Tensor, operation: str) -> NetworkTensor:
    """Convert to one IUnaryLayer; integers stay as they are."""
    tensor = net.tensor(x)
    return net.add_unary(tensor, operation) if x.dtype.is_floating_point else tensor


@converter("aten::ceil")
def ceil(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert rounding up."""
    return _rounded(net, self, "CEIL")


@converter("aten::floor")
def floor(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert rounding down."""
    return _rounded(net, self, "FLOOR")


@converter("aten::round.default")
def round(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert rounding to the nearest whole number, halves to even."""
    return _rounded(net, self, "ROUND")


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


# -- casts -----------------------------------------------------------------------------------------


@converter("aten::_to_copy")
def to_copy(
    net: Network,
    self: torch.Tensor,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> NetworkTensor:
    """Convert to another dtype, floats to integers towards zero; a network has one device."""
    del pin_memory, non_blocking, memory_format  # where and how torch would keep it
    require("layout", layout or torch.strided, torch.strided, "TensorRT's tensors are dense")
    if device is not None and torch.device(device).type != self.device.type:
        raise UnsupportedArgumentError(
            f"device={str(device)!r}: a network runs on one device; supported: {self.device.type!r}"
        )
    return converted(net, self, dtype or self.dtype)


def converted(net: Network, x: torch.Tensor, dtype: torch.dtype) -> NetworkTensor:
    """Return a traced tensor in another dtype, as torch's casts do."""
    if dtype == x.dtype:
        return net.tensor(x)
    if dtype == torch.bool:
        return truth(net, x)
    narrow = dtype in (torch.int8, torch.uint8)
    if narrow and x.dtype in (torch.int32, torch.int64, torch.int8, torch.uint8):
        return narrowed(net, net.tensor(x, torch.promote_types(x.dtype, torch.int32)), dtype)
    return net.tensor(x, dtype)
