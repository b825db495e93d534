"""Operators in terms of others, where PyTorch's own formula is long or hides what is a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

__all__ = ["FORMULAS"]

aten = torch.ops.aten


def split(self: torch.Tensor, split_size: Any, dim: int = 0) -> list[torch.Tensor]:
    """Cut into slices of one size, the last one perhaps smaller.

    As slices of their own, those that nobody uses are no layers, and writes to one find their
    place in the whole.
    """
    size = self.shape[dim]
    # torch gives one piece where there is nothing to cut.
    count = 1 if split_size == 0 else max(1, int((size + split_size - 1) // split_size))
    return [
        aten.slice.Tensor(self, dim, index * split_size, (index + 1) * split_size)
        for index in range(count)
    ]


def split_with_sizes(
    self: torch.Tensor, split_sizes: Sequence[Any], dim: int = 0
) -> list[torch.Tensor]:
    """Cut into slices of given sizes."""
    torch._check(
        sum(split_sizes) == self.shape[dim],
        lambda: f"split_with_sizes: {split_sizes} do not add up to {self.shape[dim]}",
    )
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(aten.slice.Tensor(self, dim, start, start + size))
        start = start + size
    return pieces


def unbind(self: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Select every index of a dimension."""
    return [aten.select.int(self, dim, index) for index in range(int(self.shape[dim]))]


FORMULAS: dict[OpOverload, Callable[..., Any]] = {
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: unbind,
}
