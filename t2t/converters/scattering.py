"""Operators that give a tensor with some elements overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import positive_dim, require_broadcast
from t2t.converters._compute import binary
from t2t.converters._indices import (
    MASKS,
    bounded,
    check_elements,
    integer_indices,
    known_indices,
    points,
    wrapped,
)
from t2t.converters.unary import converted
from t2t.errors import UnsupportedOperatorError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter
from t2t.sizes import has_symbol, static_size
from t2t.torch_internals import FakeTensor


def _like_first(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute the fake result; torch's own would lay it out as its argument, by guards."""
    del args, kwargs
    return self.new_empty(self.shape)


def _copy_output(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    del non_blocking
    require_broadcast(src, self.shape)
    return self.new_empty(self.shape)


@converter("aten::copy", meta=_copy_output)
def copy(
    net: Network, self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False
) -> NetworkTensor:
    """Convert to the source, cast and broadcast as the target is."""
    del non_blocking
    return net.expand(_as(net, src, self.dtype), net.output.shape)


@converter("aten::fill")
def fill(net: Network, self: torch.Tensor, value: Any) -> NetworkTensor:
    """Convert to the value, cast and repeated as the target is."""
    return net.expand(_as(net, value, self.dtype), net.output.shape)


def _as(net: Network, x: Any, dtype: torch.dtype) -> NetworkTensor:
    """Return what is written in the dtype of what it is written to."""
    if isinstance(x, torch.Tensor) and net.is_traced(x):
        return converted(net, x, dtype)
    return net.tensor(x, dtype)


@converter("aten::slice_scatter", meta=_like_first)
def slice_scatter(
    net: Network,
    self: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> NetworkTensor:
    """Convert to a concatenation of what stands before, ``src``, and what stands behind."""
    del end
    axis = positive_dim(dim, self.ndim)
    size = self.shape[axis]
    first = bounded("start", 0 if start is None else start, size)
    part = _as(net, src, self.dtype)
    if step != 1:
        return _strided(net, self, part, axis, first, step, src.shape[axis])
    return replaced(net, self, part, axis, first, src.shape[axis])


@converter("aten::select_scatter", meta=_like_first)
def select_scatter(
    net: Network, self: torch.Tensor, src: torch.Tensor, dim: int, index: Any
) -> NetworkTensor:
    """Convert as a slice of size 1."""
    axis = positive_dim(dim, self.ndim)
    position = wrapped("index", index, self.shape[axis])
    part = net.unsqueeze(_as(net, src, self.dtype), [axis])
    return replaced(net, self, part, axis, position, 1)


def replaced(
    net: Network, x: torch.Tensor, part: NetworkTensor, axis: int, start: Any, size: Any
) -> NetworkTensor:
    """Return ``x`` with ``size`` elements along an axis replaced, from ``start`` on."""
    total = x.shape[axis]
    behind = start + size
    pieces = [part]
    if static_size(start) != 0:
        pieces.insert(0, net.narrow(x, axis, 0, start))
    if static_size(total - behind) != 0:
        pieces.append(net.narrow(x, axis, behind, total - behind))
    return net.add_concatenation(pieces, axis)


def _strided(
    net: Network,
    x: torch.Tensor,
    part: NetworkTensor,
    axis: int,
    start: Any,
    step: int,
    count: Any,
) -> NetworkTensor:
    """Return ``x`` with every ``step``-th element replaced: all of both, gathered in order."""
    both = net.add_concatenation([x, part], axis)
    total = x.shape[axis]
    if any(static_size(number) is None for number in (start, count, total)):
        return net.add_gather(both, _strided_indices(net, start, step, count, total), axis)
    indices = torch.arange(total)
    indices[start : start + step * count : step] = torch.arange(count) + total
    return net.add_gather(both, indices, axis)


def _strided_indices(net: Network, start: Any, step: int, count: Any, total: Any) -> NetworkTensor:
    """Say for each of ``total`` indices where to read: there, or as far behind as is replaced."""
    integer = torch.int64
    position = net.add_linspace([total], 0, 1, integer)
    beyond = net.add_elementwise(position, net.tensor(start, integer), "SUB")
    turn = net.add_elementwise(beyond, net.tensor(step, integer), "FLOOR_DIV")
    whole = net.add_elementwise(turn, net.tensor(step, integer), "PROD")
    inside = net.add_elementwise(
        net.add_elementwise(beyond, net.tensor(-1, integer), "GREATER"),
        net.add_elementwise(turn, net.tensor(count, integer), "LESS"),
        "AND",
    )
    hit = net.add_elementwise(net.add_elementwise(whole, beyond, "EQUAL"), inside, "AND")
    return net.add_select(
        hit, net.add_elementwise(turn, net.tensor(total, integer), "SUM"), position
    )


def _scatter_shape(
    self: torch.Tensor, dim: int, index: torch.Tensor, *values: Any, **others: Any
) -> torch.Tensor:
    del values, others
    check_elements(self, dim, index)
    return self.new_empty(self.shape)


@converter("aten::scatter.src", meta=_scatter_shape)
def scatter(
    net: Network, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> NetworkTensor:
    """Convert to one scatter layer of elements; torch allows no negative index here."""
    axis = positive_dim(dim, self.ndim)
    updates = net.tensor(src, self.dtype, rank=1)
    # torch reads as much of the source as the index is large.
    for other, size in enumerate(index.shape):
        if not same_sizes([src.shape[other]], [size]):
            updates = net.narrow(updates, other, 0, size)
    return _scattered(net, self, axis, index, updates)


@converter("aten::scatter.value", meta=_scatter_shape)
def scatter_value(
    net: Network, self: torch.Tensor, dim: int, index: torch.Tensor, value: Any
) -> NetworkTensor:
    """Convert to one scatter layer of a repeated number."""
    axis = positive_dim(dim, self.ndim)
    sizes = index.shape or (1,)
    return _scattered(net, self, axis, index, net.expand(net.tensor(value, self.dtype), sizes))


def _scattered(
    net: Network, x: torch.Tensor, axis: int, index: torch.Tensor, updates: NetworkTensor
) -> NetworkTensor:
    if 0 in (static_size(size) for size in index.shape):
        return net.tensor(x)
    data, indices = net.tensor(x, rank=1), net.tensor(index, rank=1)
    return net.reshape(net.add_scatter(data, indices, updates, "ELEMENT", axis), net.output.shape)


def _index_put_shape(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    numbers = known_indices(self, indices)
    given = [number for number in numbers if number is not None]
    masks = any(number.dtype in MASKS for number in given)
    if not masks and has_symbol((tuple(self.shape), tuple(values.shape))):
        require_broadcast(values, torch.ops.aten.index.Tensor(self, numbers).shape)
    by_mask = len(given) == 1 and isinstance(given[0], FakeTensor) and given[0].dtype in MASKS
    if accumulate and not by_mask:
        # Several values for one element are added up by a formula.
        return NotImplemented
    return self.new_empty(self.shape)


@converter("aten::index_put", "aten::_unsafe_index_put", meta=_index_put_shape)
def index_put(
    net: Network,
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> NetworkTensor:
    """Convert to a choice by a mask, or to one scatter layer of points."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    axis, first = given[0]
    if len(given) == 1 and net.is_traced(first) and first.dtype in MASKS:
        return _put_by_mask(net, self, axis, first, values, accumulate)
    numbers = integer_indices(net, self, indices)
    found = points(net, self, numbers)
    rank = len(found.shape) + self.ndim - found.count
    order = found.result_order(rank)
    rest = [self.shape[axis] for axis in found.order[found.count :]]
    sizes = [(*found.shape, *rest)[axis] for axis in order]
    if 0 in (static_size(size) for size in sizes):
        return net.tensor(self)
    updates = net.transpose(net.expand(net.tensor(values, self.dtype), sizes), _inverse(order))
    data = net.transpose(self, found.order)
    result = net.add_scatter(data, found.coordinates, updates, "ND")
    return net.transpose(result, _inverse(found.order))


def _put_by_mask(
    net: Network,
    x: torch.Tensor,
    axis: int,
    mask: torch.Tensor,
    values: torch.Tensor,
    accumulate: bool,
) -> NetworkTensor:
    """Overwrite where a mask holds that covers the dimensions from ``axis`` on.

    ``values`` have one dimension where the mask's stand; it must be of size 1, as how many
    elements the mask selects is not known.
    """
    behind = x.ndim - axis - mask.ndim
    selected = values.ndim - 1 - behind
    if selected >= 0 and static_size(values.shape[selected]) != 1:
        raise UnsupportedOperatorError(
            "as many values as a mask selects: their number depends on the data; write one value, "
            "or use torch.where"
        )
    new = net.tensor(values, x.dtype)
    if selected >= 0:
        sizes = list(values.shape)
        new = net.reshape(new, [*sizes[:selected], *[1] * mask.ndim, *sizes[selected + 1 :]])
    if accumulate:
        new = binary(net, "SUM", x, new)
    condition = net.tensor(mask, torch.bool)
    for _ in range(behind):
        condition = net.unsqueeze(condition, [len(condition.shape)])
    return net.add_select(condition, new, x)


def _inverse(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes another."""
    return sorted(range(len(order)), key=lambda axis: order[axis])
