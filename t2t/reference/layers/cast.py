"""Casts between types."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from t2t.reference.layer import Ready
from t2t.reference.layers.quantization import quantized
from t2t.reference.registry import Kernel, layer


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
