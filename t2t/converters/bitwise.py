"""Operations on bits. TensorRT has them for bool; of integers, what arithmetic can express."""

from __future__ import annotations

import torch

from t2t.converters._compute import binary, narrowed, working_dtype
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"]


@converter("aten::bitwise_not")
def bitwise_not(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the complement: "not" of bool, ``-1 - self`` of integers."""
    if self.dtype == torch.bool:
        return net.add_unary(self, "NOT")
    dtype = working_dtype(self.dtype)
    return narrowed(net, binary(net, "SUB", -1, self, dtype), self.dtype)


@converter("aten::bitwise_and")
def bitwise_and(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "and" of bool; of integers with a mask of low bits, as ``x & 7``."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, other, "AND", dtype=torch.bool)
    x, mask = (self, other) if net.is_traced(self) else (other, self)
    bits = mask.item() if isinstance(mask, torch.Tensor) and _is_one(net, mask) else mask
    if not isinstance(bits, int) or bits < 0 or bits & (bits + 1):
        raise UnsupportedArgumentError(
            "TensorRT has no bitwise operations on integers; supported: bool, and a mask of low "
            "bits (1, 3, 7, ...)"
        )
    working = working_dtype(net.output.dtype)
    rounds = binary(net, "FLOOR_DIV", x, bits + 1, working)
    whole = binary(net, "PROD", rounds, bits + 1, working)
    return narrowed(net, binary(net, "SUB", x, whole, working), net.output.dtype)


def _is_one(net: Network, x: torch.Tensor) -> bool:
    return x.ndim == 0 and not net.is_traced(x)


@converter("aten::bitwise_or")
def bitwise_or(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "or" of bool."""
    _require_bool(net)
    return net.add_elementwise(self, other, "OR", dtype=torch.bool)


@converter("aten::bitwise_xor")
def bitwise_xor(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "exclusive or" of bool."""
    _require_bool(net)
    return net.add_elementwise(self, other, "XOR", dtype=torch.bool)


def _require_bool(net: Network) -> None:
    if net.output.dtype != torch.bool:
        raise UnsupportedArgumentError(
            f"dtype={net.output.dtype}: TensorRT has no bitwise operations on integers; "
            "supported: bool"
        )


@converter("aten::bitwise_left_shift", "aten::__lshift__")
def shift_left(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self << other`` by a constant number of bits."""
    return binary(net, "PROD", self, _power_of_two(net, other))


@converter("aten::bitwise_right_shift", "aten::__rshift__")
def shift_right(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self >> other`` by a constant number of bits; negative numbers round down."""
    return binary(net, "FLOOR_DIV", self, _power_of_two(net, other))


def _power_of_two(net: Network, bits: TensorLike) -> torch.Tensor:
    dtype = net.output.dtype
    if net.is_traced(bits) or dtype.is_floating_point:
        raise UnsupportedArgumentError(
            "TensorRT has no shifts; supported: integers shifted by a constant number of bits"
        )
    most = torch.iinfo(dtype).bits - 2
    count = torch.as_tensor(bits)
    if bool(((count < 0) | (count > most)).any()):
        raise UnsupportedArgumentError(f"other={bits}: supported: 0 to {most} bits of {dtype}")
    return torch.ones((), dtype=torch.int64) << count
