"""Arithmetic and number theory."""

from __future__ import annotations

from typing import Any

import torch

from t2t.registry import formula

__all__ = ["lerp"]


@formula("aten::lerp", precision="sensitive")
def lerp(self: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """Go from one number towards another, counted from the nearer of them, which is met exactly."""
    half = self.dtype in (torch.float16, torch.bfloat16)
    start, stop = (x.float() if half else x for x in (self, end))
    part = weight.to(start.dtype) if isinstance(weight, torch.Tensor) else weight
    span = stop - start
    if isinstance(part, torch.Tensor):
        near = part.abs() < 0.5
        result = torch.where(near, start + part * span, stop - span * (1 - part))
    else:
        result = start + part * span if abs(part) < 0.5 else stop - span * (1 - part)
    return result.to(self.dtype)
