"""Running products, extremes and the like: each element combined with all that stand before it.

TensorRT has running sums only. Here every element takes over what stands 1, then 2, then 4, ...
elements before it, so that it has met all its predecessors after log2(size) steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from t2t.registry import formula
from t2t.sizes import largest

_Combine = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def running(
    combine: _Combine, tensors: Sequence[torch.Tensor], axis: int, longest: int | None = None
) -> Sequence[torch.Tensor]:
    """Combine every element along a dimension with all that stand before it.

    Args:
        combine: what becomes of tensors that stand before, and those that stand behind them; it
            is associative.
        tensors: tensors of one shape, which are combined together.
        axis: the dimension.
        longest: how many elements are combined at most, where ``combine`` stops before.
    """
    number = torch.arange(tensors[0].shape[axis])
    behind = [1] * (tensors[0].ndim - axis - 1)
    step, count = 1, largest(number.shape[0]) if longest is None else longest
    while step < count:
        before = (number - step).clamp(min=0)
        inside = (number >= step).reshape(-1, *behind)
        earlier = [x.index_select(axis, before) for x in tensors]
        combined = combine(earlier, tensors)
        tensors = [torch.where(inside, a, b) for a, b in zip(combined, tensors, strict=True)]
        step *= 2
    return tensors


@formula("aten::cumprod", precision="sensitive")
def cumprod(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Multiply along a dimension; integers and bools give int64."""
    wanted = dtype or (self.dtype if self.is_floating_point() else torch.int64)
    x = self.to(wanted)
    if x.ndim == 0:
        return x.clone()
    wide = x.float() if wanted in (torch.float16, torch.bfloat16) else x
    [result] = running(lambda a, b: [a[0] * b[0]], [wide], dim % x.ndim)
    return result.to(wanted)


@formula("aten::cummax")
def cummax(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the greatest element so far, and where it stood last; a NaN stays."""
    return _extreme(self, dim, torch.ge)


@formula("aten::cummin")
def cummin(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the smallest element so far, and where it stood last; a NaN stays."""
    return _extreme(self, dim, torch.le)


def _extreme(
    x: torch.Tensor, dim: int, wins: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    axis = dim % x.ndim
    is_float = x.is_floating_point()

    def combine(before: Sequence[Any], behind: Sequence[Any]) -> Sequence[torch.Tensor]:
        better = wins(behind[0], before[0])
        if is_float:
            better = (better & ~before[0].isnan()) | behind[0].isnan()
        return [torch.where(better, b, a) for a, b in zip(before, behind, strict=True)]

    index = torch.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - axis - 1)).expand(x.shape)
    values, indices = running(combine, [x, index], axis)
    return values, indices


@formula("aten::logcumsumexp", precision="sensitive")
def logcumsumexp(self: torch.Tensor, dim: int) -> torch.Tensor:
    """Take the logarithm of the sum of exponentials along a dimension; nothing overflows."""
    if self.ndim == 0:
        return self.clone()
    x = self.float() if self.dtype in (torch.float16, torch.bfloat16) else self
    [result] = running(lambda a, b: [torch.logaddexp(a[0], b[0])], [x], dim % self.ndim)
    return result.to(self.dtype)
