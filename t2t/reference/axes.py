"""Axes as TensorRT writes them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def axes_of_mask(mask: int) -> tuple[int, ...]:
    """Return the axes of a bit mask, lowest first."""
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def ints(values: Tensor | None, default: Sequence[int] | None = None) -> list[int]:
    """Return the values of a shape tensor, or those read from the layer where there is none."""
    if values is None:
        return list(default or ())
    return [int(value) for value in values.reshape(-1).tolist()]
