"""Views that read memory (as_strided), told by which elements they take instead.

A network's tensors have no strides, and a tensor that was written has other strides in the trace
than it had in the model; element numbers mean the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from t2t.errors import UnsupportedOperatorError
from t2t.sizes import expression, has_symbol, static_size

__all__ = ["REPLAYED", "SHARED", "by_elements", "element_numbers", "may_be_same", "numbered"]

aten = torch.ops.aten

SHARED = "a write to a view whose elements share memory (expand, unfold): call .clone() before it"
OUTSIDE = (
    "as_strided reads memory outside the tensor that it is called on; call it on the whole tensor"
)


def _reshape(x: torch.Tensor, size: Any, stride: Any = None) -> torch.Tensor:
    del stride
    return x.reshape(size)


REPLAYED: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten._reshape_alias.default: _reshape,
}
"""What gives the same elements as a view operator, whatever the strides of its argument."""


def numbered(x: torch.Tensor) -> torch.Tensor:
    """Give a tensor that lies in memory as ``x`` does and holds its elements' numbers."""
    shape = x.shape
    if any(size > 1 and not step for size, step in zip(shape, x.stride(), strict=True)):
        raise UnsupportedOperatorError(SHARED)
    laid = torch.empty_strided(shape, x.stride(), dtype=torch.int64)
    return laid.copy_(torch.arange(math.prod(shape)).reshape(shape))


def by_elements(x: torch.Tensor, view: torch.Tensor) -> tuple[OpOverload, Any]:
    """Give an operator, and its argument besides ``x``, that takes what a view shows.

    Raises:
        UnsupportedOperatorError: the view reaches beyond ``x``, or a size is dynamic.
    """
    if same_layout(x, view):
        return aten.view.default, list(view.shape)
    numbers = element_numbers(x, view)
    if numbers.numel() == x.numel() and bool((numbers.reshape(-1).diff() == 1).all()):
        return aten.reshape.default, list(view.shape)
    return aten.take.default, numbers


def may_be_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Say whether two shapes have no plain sizes that differ."""
    return len(a) == len(b) and all(
        static_size(x) is None or static_size(y) is None or static_size(x) == static_size(y)
        for x, y in zip(a, b, strict=True)
    )


def same_layout(x: torch.Tensor, view: torch.Tensor) -> bool:
    """Say whether a view is its tensor as it is, with sizes and strides that may be dynamic."""
    return all(
        expression(a) == expression(b)
        for a, b in (
            (x.ndim, view.ndim),
            *zip(x.shape, view.shape, strict=False),
            *zip(x.stride(), view.stride(), strict=False),
            (x.storage_offset(), view.storage_offset()),
        )
    )


def element_numbers(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Say which elements of ``x`` a view of its memory shows.

    Args:
        x: a tensor.
        view: another tensor of the same memory.

    Returns:
        int64 numbers in the row-major order of ``x``, in the shape of ``view``.

    Raises:
        UnsupportedOperatorError: the view reaches beyond ``x``, or a size is dynamic.
    """
    if has_symbol((tuple(x.shape), tuple(view.shape), view.stride(), view.storage_offset())):
        raise UnsupportedOperatorError("as_strided with sizes that are dynamic")
    if not view.numel():
        return torch.zeros(view.shape, dtype=torch.int64)
    if not x.numel():
        raise UnsupportedOperatorError(OUTSIDE)
    place = _places(x)
    numbers = torch.full((max(int(place.max()), int(_places(view).max())) + 1,), -1)
    numbers[place.reshape(-1)] = torch.arange(place.numel())
    found = numbers[_places(view)]
    if bool((found < 0).any()):
        raise UnsupportedOperatorError(OUTSIDE)
    return found


def _places(x: torch.Tensor) -> torch.Tensor:
    """Give each element's place in the memory."""
    place = torch.full((), int(x.storage_offset()))
    for size, stride in zip(x.shape, x.stride(), strict=True):
        place = place.unsqueeze(-1) + torch.arange(size) * stride
    return place
