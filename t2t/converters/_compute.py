"""Arithmetic in the type that torch computes in, also where TensorRT's layers lack it."""

from __future__ import annotations

from typing import Any

import torch

from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import Precision
from t2t.sizes import static_size

_BYTES = (torch.int8, torch.uint8)
_WRAPPING = ("SUM", "SUB", "PROD")
_TILE = 8  # the least size of a matrix that NVIDIA's tensor cores multiply in half


def product_precision(columns: Any = _TILE, terms: Any = _TILE) -> Precision:
    """Return the precision of a matrix product, which tensor cores may be too large for.

    Args:
        columns: how many columns the result has.
        terms: of how many terms each of its elements is the sum.
    """
    return "small" if is_less(columns, _TILE) or is_less(terms, _TILE) else "compute"


def is_less(size: Any, limit: int) -> bool:
    """Return whether a size, perhaps symbolic, is known to be less than a number."""
    known = static_size(size)
    return known is not None and known < limit


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute ``dtype`` in: TensorRT has no arithmetic on bool and bytes."""
    # int16 is what int8 and uint8 are compared in.
    return torch.int32 if dtype in (torch.bool, torch.int16, *_BYTES) else dtype


def narrowed(net: Network, x: NetworkTensor, dtype: torch.dtype) -> NetworkTensor:
    """Return an integer result in a narrower type as torch does: bytes keep their low bits.

    TensorRT does not say what its cast makes of a number that does not fit.
    """
    if dtype in _BYTES and net.dtype_of(x) != dtype:
        wide = net.dtype_of(x)
        low = int(torch.iinfo(dtype).min)
        shifted = binary(net, "SUB", x, low, wide) if low else x
        rounds = net.add_elementwise(shifted, 256, "FLOOR_DIV", dtype=wide)
        x = binary(net, "SUB", x, binary(net, "PROD", rounds, 256, wide), wide)
    return net.cast(x, net.compute_dtype(dtype))


def operand(net: Network, x: TensorLike, dtype: torch.dtype) -> TensorLike:
    """Return an operand as torch takes it into the type that it computes in.

    A number or a tensor without dimensions does not widen the type: what does not fit into it
    keeps its low bits, or becomes infinite.
    """
    if isinstance(x, bool | int) and not dtype.is_floating_point and dtype != torch.bool:
        return int(torch.tensor(x).to(dtype))
    if not isinstance(x, torch.Tensor) or x.dtype == dtype:
        return x
    if not net.is_traced(x):
        return x.to(dtype)
    if dtype in _BYTES and x.dtype in (torch.int32, torch.int64):
        return narrowed(net, net.tensor(x), dtype)
    return x


def rounded(x: TensorLike, dtype: torch.dtype) -> TensorLike:
    """Return a number as it is in a half type, to compare with; anything else as it is."""
    if isinstance(x, int | float) and dtype in (torch.float16, torch.bfloat16):
        return float(torch.tensor(float(x), dtype=torch.float64).to(dtype))
    return x


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
    a, b = (operand(net, x, wanted) for x in (a, b))
    low = net.compute_dtype(working)
    if low in (torch.float16, torch.bfloat16) and any(_is_wider(net, x, low) for x in (a, b)):
        # As torch's half kernels, which compute in float32 inside.
        with net.precision("sensitive"):
            result = net.add_elementwise(a, b, op, dtype=working)
        # What is half only under ``fp16=True`` is rounded where it is read as half.
        return result if wanted == torch.float32 else net.cast(result, low)
    result = net.add_elementwise(_in(net, a, working), _in(net, b, working), op, dtype=working)
    if op in _WRAPPING:
        return narrowed(net, result, wanted)
    return net.cast(result, net.compute_dtype(wanted))


def _is_wider(net: Network, x: TensorLike, low: torch.dtype) -> bool:
    """Return whether an operand has digits, or a size, that a half type has not."""
    if isinstance(x, bool | int | float):
        limits = torch.finfo(low)
        return x != 0 and not limits.smallest_normal <= abs(x) <= limits.max
    if isinstance(x, torch.Tensor):
        return net.is_wide(x)
    return _is_network_tensor(x) and net.dtype_of(x) == torch.float32  # type: ignore[arg-type]


def choose(
    net: Network,
    condition: TensorLike,
    then: TensorLike,
    otherwise: TensorLike,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Take ``then`` where a bool condition holds, in ``dtype`` or in the result's dtype."""
    wanted = dtype or net.output.dtype
    # ISelectLayer has every type but uint8.
    working = torch.int32 if wanted == torch.uint8 else wanted
    chosen = [_in(net, operand(net, x, wanted), working) for x in (then, otherwise)]
    result = net.add_select(condition, chosen[0], chosen[1], dtype=working)
    return net.cast(result, net.compute_dtype(wanted))


def filled(net: Network, value: bool | int | float) -> NetworkTensor:
    """Return one number in the result's shape and dtype."""
    return net.expand(net.tensor(value, net.output.dtype), net.output.shape)


def truth(net: Network, x: TensorLike) -> NetworkTensor:
    """Return "is not zero" as bool; NaN is not zero."""
    dtype = net.dtype_of(x) if _is_network_tensor(x) else _dtype_of(x)  # type: ignore[arg-type]
    if dtype == torch.bool:
        return net.tensor(x, torch.bool)
    working = working_dtype(dtype)
    zero = net.add_elementwise(_in(net, x, working), 0, "EQUAL", dtype=working)
    return net.add_unary(zero, "NOT")


def is_negative(net: Network, x: NetworkTensor) -> NetworkTensor:
    """Return the sign bit of floats as bool: negative numbers have it, and -0.0."""
    dtype = net.dtype_of(x)
    is_zero = net.add_elementwise(x, 0.0, "EQUAL", dtype=dtype)
    probe = net.add_select(is_zero, net.add_unary(x, "RECIP"), x)
    return net.add_elementwise(probe, 0.0, "LESS", dtype=dtype)


def _dtype_of(x: Any) -> torch.dtype:
    if isinstance(x, torch.Tensor):
        return x.dtype
    if isinstance(x, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(x, int | torch.SymInt) else torch.float32


def _is_network_tensor(x: Any) -> bool:
    return hasattr(x, "dtype") and not isinstance(x, torch.Tensor)


def _in(net: Network, x: TensorLike, dtype: torch.dtype) -> TensorLike:
    # Network tensors have a dtype of their own; everything else is taken in the one asked for.
    if _is_network_tensor(x):
        return net.cast(x, net.compute_dtype(dtype))  # type: ignore[arg-type]
    return x
