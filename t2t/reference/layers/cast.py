"""Casts between types."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("CAST", "to_type")
def cast(ready: Ready) -> Kernel:
    """Convert every element: to a float by rounding, from float to integer towards zero."""
    dtype = ready.dtype
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
