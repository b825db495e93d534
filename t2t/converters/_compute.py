"""Arithmetic in the type that torch computes in, also where TensorRT's layers lack it."""

from __future__ import annotations

from typing import Any

import torch

from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike

__all__ = ["binary", "is_float", "narrowed", "working_dtype"]


def is_float(dtype: torch.dtype) -> bool:
    """Say whether a dtype is a floating type."""
    return dtype.is_floating_point


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype to compute ``dtype`` in: TensorRT has no arithmetic on bool and bytes."""
    return torch.int32 if dtype in (torch.bool, torch.int8, torch.uint8) else dtype


def narrowed(net: Network, x: NetworkTensor, dtype: torch.dtype) -> NetworkTensor:
    """Give an int32 result as torch has it: bytes keep their low bits, bool is "not zero".

    TensorRT's own cast need not keep the low bits of a number that does not fit.
    """
    if dtype in (torch.int8, torch.uint8) and net.dtype_of(x) != dtype:
        low = int(torch.iinfo(dtype).min)
        shifted = net.add_elementwise(x, low, "SUB", dtype=torch.int32) if low else x
        rounds = net.add_elementwise(shifted, 256, "FLOOR_DIV", dtype=torch.int32)
        whole = net.add_elementwise(rounds, 256, "PROD", dtype=torch.int32)
        x = net.add_elementwise(x, whole, "SUB")
    return net.cast(x, net.compute_dtype(dtype))


def binary(
    net: Network, op: str, a: TensorLike, b: TensorLike, dtype: torch.dtype | None = None
) -> NetworkTensor:
    """Combine two operands, in ``dtype`` or in the result's dtype, as torch promotes them.

    Args:
        net: the network.
        op: name of an ElementWiseOperation with numbers as result.
        a: first operand.
        b: second operand.
        dtype: torch's dtype of the result; by default that of ``net.output``.
    """
    wanted = dtype or net.output.dtype
    working = working_dtype(wanted)
    operands: list[Any] = [_in(net, x, working) for x in (a, b)]
    return narrowed(net, net.add_elementwise(*operands, op, dtype=working), wanted)


def _in(net: Network, x: TensorLike, dtype: torch.dtype) -> TensorLike:
    # Network tensors have a dtype of their own; everything else is taken in the one asked for.
    if isinstance(x, torch.Tensor | bool | int | float) or not hasattr(x, "dtype"):
        return x
    return net.cast(x, net.compute_dtype(dtype))  # type: ignore[arg-type]
