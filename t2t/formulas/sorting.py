"""Sorting beyond what TensorRT's ITopKLayer does: stable, or of more elements than it takes."""

from __future__ import annotations

import math
from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.registry import formula
from t2t.sizes import largest

MAX_PAIRS = 1 << 27
"""Most comparisons of elements of one dimension with each other."""


@formula("aten::sort")
def sort(
    self: torch.Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort by counting for each element those that come before it; NaN counts as the greatest."""
    del stable
    if self.ndim == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64)
    x = self.movedim(dim, -1)
    pairs = math.prod(largest(size) for size in x.shape) * largest(x.shape[-1])
    if pairs > MAX_PAIRS:
        raise UnsupportedArgumentError(
            f"{largest(x.shape[-1])} elements: sorting them compares each with each, {pairs} pairs "
            f"of at most {MAX_PAIRS}"
        )
    key = x.to(torch.int32) if x.dtype in (torch.bool, torch.int8, torch.uint8) else x
    other, own = key.unsqueeze(-2), key.unsqueeze(-1)
    number = torch.arange(x.shape[-1])
    sooner = number < number.unsqueeze(-1)
    before = other > own if descending else other < own
    same = other == own
    if x.is_floating_point():
        other_nan, own_nan = other.isnan(), own.isnan()
        before = before | ((other_nan & ~own_nan) if descending else (own_nan & ~other_nan))
        same = same | (other_nan & own_nan)
    rank = (before | (same & sooner)).sum(-1)
    order = torch.zeros_like(rank).scatter(-1, rank, number.expand(rank.shape))
    return x.gather(-1, order).movedim(-1, dim), order.movedim(-1, dim)


@formula("aten::topk")
def topk(
    self: torch.Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the first of the sorted elements."""
    del sorted
    if self.ndim == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64)
    values, indices = torch.sort(self, dim, descending=largest)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


@formula("aten::kthvalue")
def kthvalue(
    self: torch.Tensor, k: Any, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last of the k smallest elements, and its index."""
    values, indices = torch.topk(self, k, dim, largest=False)
    return _at(values, dim, k - 1, keepdim), _at(indices, dim, k - 1, keepdim)


@formula("aten::median.dim")
def median_dim(
    self: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the middle one of the sorted elements, or the last where that is NaN."""
    values, indices = torch.sort(self, dim)
    if self.ndim == 0:
        return values, indices
    middle = (self.shape[dim] - 1) // 2
    value, index = (_at(x, dim, middle, keepdim) for x in (values, indices))
    if not self.is_floating_point():
        return value, index
    last, last_index = (_at(x, dim, self.shape[dim] - 1, keepdim) for x in (values, indices))
    missing = last.isnan()
    return torch.where(missing, last, value), torch.where(missing, last_index, index)


@formula("aten::median.default")
def median(self: torch.Tensor) -> torch.Tensor:
    """Return the middle one of all sorted elements."""
    return median_dim(self.reshape(-1), 0)[0]


@formula("aten::nanmedian.dim")
def nanmedian_dim(
    self: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the middle one of the sorted elements that are numbers; NaN stands behind them."""
    if self.ndim == 0 or not self.is_floating_point():
        return median_dim(self, dim, keepdim)
    values, indices = torch.sort(self, dim)
    numbers = (~self.isnan()).sum(dim, keepdim=True)
    middle = ((numbers - 1) // 2).clamp(min=0)
    value, index = values.gather(dim, middle), indices.gather(dim, middle)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


@formula("aten::nanmedian.default")
def nanmedian(self: torch.Tensor) -> torch.Tensor:
    """Return the middle one of all numbers."""
    return nanmedian_dim(self.reshape(-1), 0)[0]


def _at(x: torch.Tensor, dim: int, index: Any, keepdim: bool) -> torch.Tensor:
    if x.ndim == 0:
        return x
    return x.narrow(dim, index, 1) if keepdim else x.select(dim, index)
