"""Casts; quantize, dequantize and dynamic quantization."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from t2t.errors import UnsupportedLayerError
from t2t.reference.layer import FP4_GRID, Kernel, Ready, layer

_INTEGERS = {"INT8": (-128, 127), "UINT8": (0, 255), "INT4": (-8, 7)}
_LARGEST = {"FP8": 448.0, "FP4": 6.0}


def quantized(x: Tensor, to_type: str) -> Tensor:
    """Round float32 values, already divided by their scale, to a type; too large ones saturate."""
    if to_type in _INTEGERS:
        low, high = _INTEGERS[to_type]
        dtype = torch.uint8 if to_type == "UINT8" else torch.int8
        return x.round().clamp(low, high).to(dtype)
    largest = _LARGEST[to_type]
    clipped = x.clamp(-largest, largest)
    return clipped.to(torch.float8_e4m3fn) if to_type == "FP8" else _to_fp4(clipped)


def _to_fp4(x: Tensor) -> Tensor:
    """Round to the nearest value of the FP4 grid, halves to the one with an even code."""
    grid = torch.tensor(FP4_GRID, device=x.device)
    middles = (grid[1:] + grid[:-1]) / 2
    size = x.abs()
    above = torch.bucketize(size, middles, right=True)
    below = torch.bucketize(size, middles, right=False)
    code = torch.where(below % 2 == 0, below, above)
    return grid[code].copysign(x)


def _spread(scale: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return a scale that broadcasts to x: one in all, one a channel, or one a block."""
    scale = scale.float()
    if scale.dim() == x.dim() and scale.numel() > 1:
        for dim, size in enumerate(x.shape):
            if scale.shape[dim] not in (1, size):
                scale = scale.repeat_interleave(size // scale.shape[dim], dim)
        return scale
    if scale.numel() == 1:
        return scale.reshape(())
    return scale.reshape([-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())])


@layer("QUANTIZE", "axis", "to_type", "block_shape")
def quantize(ready: Ready) -> Kernel:
    """clamp(round(x / scale) + zero point), halves to even."""
    axis, to_type = ready.attributes["axis"], ready.types[0]

    def kernel(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        steps = x.float() / _spread(scale, x, axis)
        if zero is not None and to_type in _INTEGERS:
            steps = steps.round() + _spread(zero, x, axis)
        return quantized(steps, to_type)

    return kernel


@layer("DEQUANTIZE", "axis", "to_type", "block_shape")
def dequantize(ready: Ready) -> Kernel:
    """(x - zero point) * scale."""
    axis, dtype = ready.attributes["axis"], ready.dtype

    def kernel(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        steps = x.float()
        if zero is not None:
            steps = steps - _spread(zero, x, axis)
        return (steps * _spread(scale, x, axis)).to(dtype)

    return kernel


@layer("DYNAMIC_QUANTIZE", "axis", "block_size", "block_shape", "to_type", "scale_type")
def dynamic_quantize(ready: Ready) -> Kernel:
    """Quantize blocks, each by a scale of its own that maps its largest value to the type's.

    Returns the values and the scales: FP8 scales are themselves divided by the scalar input 1;
    E8M0 scales are powers of two, rounded up so that nothing saturates.
    """
    a = ready.attributes
    to_type, scale_type = ready.types

    def kernel(x: Tensor, double_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sizes = a.get("block_shape") or []
        if not sizes:
            sizes = [a["block_size"] if d == a["axis"] % x.dim() else 1 for d in range(x.dim())]
        largest = _block_maxima(x.float().abs(), sizes)
        exact = largest / _LARGEST[to_type]
        if scale_type == "E8M0":
            power = torch.exp2(exact.clamp_min(2.0**-127).log2().ceil())
            kept, used = power.to(torch.float8_e8m0fnu), power
        else:
            outer = torch.ones(()) if double_scale is None else double_scale.float()
            kept = quantized(exact / outer.to(x.device), "FP8")
            used = kept.float() * outer.to(x.device)
        steps = x.float() / _spread(used, x, -1)
        return quantized(torch.where(steps.isfinite(), steps, 0.0), to_type), kept

    return kernel


def _block_maxima(x: Tensor, sizes: list[int]) -> Tensor:
    for dim, size in enumerate(sizes):
        if size == -1:
            size = x.shape[dim]
        if size < 1 or x.shape[dim] % size:
            raise UnsupportedLayerError(f"blocks of {sizes} do not divide {tuple(x.shape)}")
        x = torch.unflatten(x, dim, (-1, size)).amax(dim + 1)
    return x


# -- casts -----------------------------------------------------------------------------------------


def _to_int4(x: Tensor) -> Tensor:
    low = x.long() & 15
    return torch.where(low > 7, low - 16, low).to(torch.int8)


# TensorRT-RTX 1.7 takes these casts into a network, but its builder refuses every one of them;
# so ONNX, whose casts they come from, decides: FP8 and FP4 saturate, INT4 keeps the low bits,
# and what FP4 has no value for is 0.
_UNDEFINED: dict[str, Callable[[Tensor], Tensor]] = {
    "FP8": lambda x: quantized(x.float(), "FP8"),
    "FP4": lambda x: quantized(x.float().nan_to_num(0.0, torch.inf, -torch.inf), "FP4"),
    "INT4": _to_int4,
}


@layer("CAST", "to_type")
def cast(ready: Ready) -> Kernel:
    """Convert every element: to a float by rounding, from float to integer towards zero."""
    dtype, to_type = ready.dtype, ready.types[0]
    if to_type in _UNDEFINED:
        return _UNDEFINED[to_type]
    limits = None
    if not dtype.is_floating_point and dtype != torch.bool:
        limits = torch.iinfo(dtype)

    def kernel(x: Tensor) -> Tensor:
        if limits is None or not x.dtype.is_floating_point:
            return x.to(dtype)
        # Where C leaves the conversion undefined, the GPU's gives the nearest integer; NaN is 0.
        wide = x.double().nan_to_num(0.0, torch.inf, -torch.inf)
        inside = wide.clamp(limits.min, limits.max)
        return inside.to(dtype) if dtype != torch.int64 else _int64(inside)

    return kernel


def _int64(x: Tensor) -> Tensor:
    """Convert doubles that may be 2 ** 63, which no int64 is."""
    top = 2.0**63
    return torch.where(x >= top, torch.iinfo(torch.int64).max, x.clamp(max=top - 1024).long())
