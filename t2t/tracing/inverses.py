"""Writing through a view: the value of a tensor after one of its views was overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.sizes import has_symbol
from t2t.tracing.aliasing import Entry
from t2t.tracing.graph import Value, map_tree
from t2t.tracing.layout import SHARED, numbered

__all__ = ["invert"]

Emit = Callable[..., Value]
aten = torch.ops.aten


def invert(emit: Emit, entry: Entry, base: Value, new: Value) -> Value:
    """Give the parent's value after the view ``entry`` was overwritten with ``new``.

    Args:
        emit: records an operator on values and gives its result.
        entry: the view.
        base: its parent's value before.
        new: the view's value after.
    """
    view = entry.view
    assert view is not None
    assert entry.parent is not None
    if new.tensor.dtype != base.tensor.dtype:
        raise UnsupportedOperatorError(f"a write through {view.name}, a view of another dtype")
    name = view.name.partition(".")[0]
    arguments = view.args[1:]
    if name in _SAME_ELEMENTS:
        return emit(aten.reshape.default, new, list(base.tensor.shape))
    if name in _INVERSES:
        return _INVERSES[name](emit, base, new, view.index, *arguments, **view.kwargs)
    return _by_index(emit, entry, base, new)


# Views that only group the same elements, in the same order, into other dimensions.
_SAME_ELEMENTS = frozenset(
    f"aten::{name}"
    for name in ("view", "_unsafe_view", "reshape", "alias", "detach", "squeeze", "unsqueeze",
                 "flatten", "_reshape_alias", "view_as", "unflatten")
)  # fmt: skip


def _slice(
    emit: Emit, base: Value, new: Value, _index: int, dim: int = 0, start: Any = None,
    end: Any = None, step: int = 1,
) -> Value:  # fmt: skip
    return emit(aten.slice_scatter.default, base, new, dim, start, end, step)


def _select(emit: Emit, base: Value, new: Value, _index: int, dim: int, index: int) -> Value:
    return emit(aten.select_scatter.default, base, new, dim, index)


def _transpose(emit: Emit, _base: Value, new: Value, _index: int, dim0: int, dim1: int) -> Value:
    return emit(aten.transpose.int, new, dim0, dim1)


def _t(emit: Emit, _base: Value, new: Value, _index: int) -> Value:
    return emit(aten.t.default, new)


def _permute(emit: Emit, _base: Value, new: Value, _index: int, dims: list[int]) -> Value:
    rank = len(dims)
    inverse = sorted(range(rank), key=lambda axis: dims[axis] % rank)
    return emit(aten.permute.default, new, inverse)


def _split(emit: Emit, base: Value, new: Value, index: int, sizes: Any, dim: int = 0) -> Value:
    start = sum(sizes[:index]) if isinstance(sizes, list | tuple) else sizes * index
    return emit(aten.slice_scatter.default, base, new, dim, start, start + new.tensor.shape[dim])


def _unbind(emit: Emit, base: Value, new: Value, index: int, dim: int = 0) -> Value:
    return emit(aten.select_scatter.default, base, new, dim, index)


def _expand(
    emit: Emit, base: Value, new: Value, _index: int, size: Any, *, implicit: bool = False
) -> Value:
    del size, implicit
    if new.tensor.numel() != base.tensor.numel():
        raise UnsupportedOperatorError(SHARED)
    return emit(aten.reshape.default, new, list(base.tensor.shape))


def _index(emit: Emit, base: Value, new: Value, _index: int, indices: list[Value | None]) -> Value:
    return emit(aten.index_put.default, base, indices, new)


_INVERSES: dict[str, Callable[..., Value]] = {
    "aten::index": _index,
    "aten::slice": _slice,
    "aten::select": _select,
    "aten::transpose": _transpose,
    "aten::t": _t,
    "aten::permute": _permute,
    "aten::split": _split,
    "aten::split_with_sizes": _split,
    "aten::unbind": _unbind,
    "aten::expand": _expand,
}


def _by_index(emit: Emit, entry: Entry, base: Value, new: Value) -> Value:
    """Overwrite by element number: the operator, applied to a tensor of numbers, tells them."""
    view, parent = entry.view, entry.parent
    assert view is not None
    assert parent is not None
    shape = parent.fake.shape
    if has_symbol(tuple(shape)) or has_symbol(tuple(entry.fake.shape)):
        raise UnsupportedOperatorError(
            f"a write through {view.name} into a tensor of dynamic shape"
        )
    args, kwargs = map_tree(
        lambda x: x.tensor if isinstance(x, Value) else x, view.on(numbered(parent.fake))
    )
    picked = view.function(*args, **kwargs)
    picked = picked[view.index] if isinstance(picked, tuple | list) else picked
    if picked.numel() != picked.unique().numel():
        raise UnsupportedOperatorError(SHARED)
    flat = emit(aten.reshape.default, base, [-1])
    index = Value(picked.reshape(-1).clone())
    source = emit(aten.reshape.default, new, [-1])
    return emit(aten.reshape.default, emit(aten.scatter.src, flat, 0, index, source), list(shape))
