"""Operators that read some elements of a tensor: slices, elements at indices, bags of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from t2t.converters._arguments import agree, positive_dim
from t2t.converters._compute import choose
from t2t.converters._indices import (
    bounded,
    check_elements,
    check_range,
    count,
    integer_indices,
    known_indices,
    points,
    wrapped,
    wrapped_tensor,
)
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter


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


# -- bags of embeddings ----------------------------------------------------------------------------


MAX_ELEMENTS = 1 << 24
"""Most elements of the tensor in which every bag meets every row."""

_SUM, _MEAN, _MAX = range(3)
_MODES = {"sum": "SUM", "mean": "AVG", "max": "MAX"}
"""The reductions of TensorRT, in the order of the numbers that the operator takes."""

_Results = tuple[NetworkTensor, None, None, None]


class _Bags(NamedTuple):
    """The arguments of torch.nn.functional.embedding_bag."""

    input: torch.Tensor
    weight: torch.Tensor
    offsets: torch.Tensor | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    mode: str = "mean"
    sparse: bool = False
    per_sample_weights: torch.Tensor | None = None
    include_last_offset: bool = False
    padding_idx: int | None = None


def _rows_meta(*args: Any, **kwargs: Any) -> Any:
    bags = _Bags(*args, **kwargs)
    input, weight, factors = bags.input, bags.weight, bags.per_sample_weights
    if input.dim() != 2 or bags.max_norm is not None:
        return NotImplemented
    fits = (
        not input.dtype.is_floating_point
        and weight.dim() == 2
        and bags.offsets is None
        and bags.mode in _MODES
        and not bags.include_last_offset
        and (factors is None or bags.mode == "sum")
        and (factors is None or agree(*zip(factors.shape, input.shape, strict=True)))
        and (bags.padding_idx is None or -weight.shape[0] <= bags.padding_idx < weight.shape[0])
        # There must be a row, for all dynamic sizes.
        and input.shape[1] > 0
    )
    if not fits:
        # The tracer asks PyTorch, which says what is wrong.
        raise ValueError("the arguments of bags do not go together")
    return weight.new_empty((input.shape[0], weight.shape[1]))


# Its operator sees all bags one behind the other, and not that all have the same length.
@converter("torch.nn.functional.embedding_bag", precision="sensitive", meta=_rows_meta)
def embedding_bag_of_rows(net: Network, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert bags (N, L) to a gather and a reduction of each; one of padding alone gives zeros."""
    bags = _Bags(*args, **kwargs)
    rows = _weighted_rows(net, bags.weight, bags.input, bags.per_sample_weights)
    if bags.padding_idx is None:
        return net.add_reduce(rows, _MODES[bags.mode], 1, keep_dims=False)
    inside = _not_padding(net, bags.input, bags.padding_idx % int(bags.weight.shape[0]))
    return _reduced(net, rows, inside, list(_MODES).index(bags.mode), bags.weight.dtype)


@converter("aten::_embedding_bag_forward_only", "aten::_embedding_bag", precision="sensitive")
def embedding_bag(
    net: Network,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> _Results:
    """Convert to a gather and a sum, mean or maximum of each bag; an empty bag gives zeros.

    ``indices`` is (N,), ``offsets`` says where each bag begins in it. Rows at ``padding_idx`` are
    in no bag. The other outputs serve training.
    """
    del scale_grad_by_freq, sparse
    number, bags = count(indices.shape), count(net.output[0].shape[:1])
    if number is None or bags is None:
        raise UnsupportedArgumentError("indices: TensorRT needs their number for bags")
    if bags * number * int(weight.shape[1]) > MAX_ELEMENTS:
        raise UnsupportedArgumentError(
            f"{bags} bags of {number} rows in all: every bag meets every row, in at most "
            f"{MAX_ELEMENTS} elements"
        )
    rows = _weighted_rows(net, weight, indices, per_sample_weights)
    inside = _members(net, offsets, bags, number, include_last_offset)
    if padding_idx >= 0:
        kept = net.unsqueeze(_not_padding(net, indices, padding_idx), [0])
        inside = net.add_elementwise(inside, kept, "AND")
    result = _reduced(net, net.unsqueeze(rows, [0]), inside, mode, weight.dtype)
    return result, None, None, None


def _weighted_rows(
    net: Network, weight: torch.Tensor, indices: torch.Tensor, factors: torch.Tensor | None
) -> NetworkTensor:
    """Return the rows of a table at indices (*), each times its factor: (*, columns)."""
    rows = net.add_gather(net.tensor(weight, weight.dtype), indices, 0)
    if factors is None:
        return rows
    wide = net.unsqueeze(net.tensor(factors, weight.dtype), [factors.ndim])
    return net.add_elementwise(rows, wide, "PROD")


def _not_padding(net: Network, indices: torch.Tensor, padding_idx: int) -> NetworkTensor:
    """Return which of the indices are in a bag."""
    found = net.tensor(indices, torch.int64)
    padded = net.add_elementwise(found, padding_idx, "EQUAL", dtype=torch.int64)
    return net.add_unary(padded, "NOT")


def _members(
    net: Network, offsets: torch.Tensor, bags: int, number: int, include_last_offset: bool
) -> NetworkTensor:
    """Return which position of the indices is in which bag: bool, (bags, positions)."""
    begins = net.tensor(offsets, torch.int64)
    if include_last_offset:
        ends = net.narrow(begins, 0, 1, bags)
        begins = net.narrow(begins, 0, 0, bags)
    else:
        end = net.constant(torch.tensor([number], dtype=torch.int64))
        ends = (
            net.add_concatenation([net.narrow(begins, 0, 1, bags - 1), end], 0) if bags > 1 else end
        )
    positions = torch.arange(number).unsqueeze(0)
    before = net.add_elementwise(positions, net.unsqueeze(begins, [1]), "LESS")
    behind = net.add_elementwise(positions, net.unsqueeze(ends, [1]), "LESS")
    return net.add_elementwise(net.add_unary(before, "NOT"), behind, "AND")


def _reduced(
    net: Network, rows: NetworkTensor, inside: NetworkTensor, mode: Any, dtype: torch.dtype
) -> NetworkTensor:
    """Reduce rows (1 or bags, positions, columns) where ``inside`` says so (bags, positions)."""
    wide = net.unsqueeze(inside, [2])
    neutral = -math.inf if mode == _MAX else 0.0
    chosen = choose(net, wide, rows, neutral, dtype)
    total = net.add_reduce(chosen, "MAX" if mode == _MAX else "SUM", 1, keep_dims=False)
    if mode == _SUM:
        return total
    hits = net.add_reduce(net.cast(inside, torch.int32), "SUM", 1, keep_dims=True)
    if mode == _MEAN:
        most = net.add_elementwise(hits, 1, "MAX", dtype=torch.int32)
        return net.add_elementwise(total, net.cast(most, net.dtype_of(total)), "DIV")
    none = net.add_elementwise(hits, 0, "EQUAL", dtype=torch.int32)
    return choose(net, none, 0.0, total, dtype)
