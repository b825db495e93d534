"""Operators that read some elements of a tensor: slices, and elements at given indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import positive_dim
from t2t.converters._indices import (
    bounded,
    check_elements,
    check_range,
    integer_indices,
    known_indices,
    points,
    wrapped,
    wrapped_tensor,
)
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter

__all__ = ["embedding", "gather", "index", "index_select", "select", "slice_", "take"]


@converter("aten::slice")
def slice_(
    net: Network,
    self: torch.Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> NetworkTensor:
    """Convert to one slice layer; bounds may be negative, beyond the end or dynamic."""
    del end  # the size that torch has computed says it
    axis = positive_dim(dim, self.ndim)
    first = bounded("start", 0 if start is None else start, self.shape[axis])
    return net.narrow(self, axis, first, net.output.shape[axis], step)


@converter("aten::select.int")
def select(net: Network, self: torch.Tensor, dim: int, index: Any) -> NetworkTensor:
    """Convert to one gather layer with a scalar index."""
    axis = positive_dim(dim, self.ndim)
    position = wrapped("index", index, self.shape[axis])
    return net.add_gather(self, net.tensor(position, torch.int64), axis)


def _select_shape(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    sizes = list(self.shape)
    if index.ndim > 1:
        raise IndexError("the index must be a vector")
    check_range(index, sizes[dim] if sizes else 1)
    if sizes:
        sizes[dim] = index.numel()
    return self.new_empty(sizes)


@converter("aten::index_select", meta=_select_shape)
def index_select(net: Network, self: torch.Tensor, dim: int, index: torch.Tensor) -> NetworkTensor:
    """Convert to one gather layer; torch allows no negative index here."""
    axis = positive_dim(dim, self.ndim)
    taken = net.add_gather(net.tensor(self, rank=1), net.tensor(index, rank=1), axis)
    return net.reshape(taken, net.output.shape)


@converter("aten::embedding")
def embedding(
    net: Network,
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> NetworkTensor:
    """Convert to one gather layer; all but the first two arguments are for training."""
    del padding_idx, scale_grad_by_freq, sparse
    return net.add_gather(weight, indices, 0)


def _index_shape(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Compute the fake result; how many elements a constant mask selects is known."""
    numbers = known_indices(self, indices)
    return torch.ops.aten.index.Tensor(self, numbers)  # type: ignore[no-any-return]


@converter("aten::index", "aten::_unsafe_index", meta=_index_shape)
def index(
    net: Network, self: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> NetworkTensor:
    """Convert to one gather layer where one dimension is indexed, else to a gather of points."""
    numbers = integer_indices(net, self, indices)
    axes = [axis for axis, number in enumerate(numbers) if number is not None]
    if len(axes) == 1:
        position = wrapped_tensor(net, numbers[axes[0]], self.shape[axes[0]])  # type: ignore[arg-type]
        return net.add_gather(self, position, axes[0])
    found = points(net, self, numbers)
    taken = net.add_gather(net.transpose(self, found.order), found.coordinates, mode="ND")
    return net.transpose(taken, found.result_order(net.output.ndim))


def _gather_shape(
    self: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool = False
) -> torch.Tensor:
    del sparse_grad
    check_elements(self, dim, index)
    return self.new_empty(index.shape)


@converter("aten::gather", meta=_gather_shape)
def gather(
    net: Network, self: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool = False
) -> NetworkTensor:
    """Convert to one gather layer of elements; torch allows no negative index here."""
    del sparse_grad
    axis = positive_dim(dim, self.ndim)
    data = net.tensor(self, rank=1)
    # TensorRT needs equal sizes in the other dimensions, torch takes a smaller index.
    for other, size in enumerate(index.shape):
        if other != axis and not same_sizes([self.shape[other]], [size]):
            data = net.narrow(data, other, 0, size)
    taken = net.add_gather(data, net.tensor(index, rank=1), axis, mode="ELEMENT")
    return net.reshape(taken, net.output.shape)


def _take_shape(self: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    check_range(index, self.numel(), negative=True)
    return self.new_empty(index.shape)


@converter("aten::take", meta=_take_shape)
def take(net: Network, self: torch.Tensor, index: torch.Tensor) -> NetworkTensor:
    """Convert to one gather layer of the flattened tensor."""
    position = wrapped_tensor(net, index, self.numel())
    return net.add_gather(net.reshape(self, [self.numel()]), position, 0)
