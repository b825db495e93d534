"""Where the greatest and smallest values are, the k best of them, and sorted tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from t2t.converters._arguments import dims, positive_dim
from t2t.converters._compute import working_dtype
from t2t.converters.reduction import reduced
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import largest, static_size

__all__ = ["argmax", "argmin", "max_dim", "min_dim", "sort", "topk"]

MAX_K = 3840
"""Most elements that TensorRT's ITopKLayer gives."""

_Pair = tuple[NetworkTensor, NetworkTensor]
_Maybe = tuple[NetworkTensor | None, NetworkTensor | None]


@converter("aten::argmax")
def argmax(
    net: Network, self: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> NetworkTensor:
    """Convert to the index of the first greatest element along a dimension, or of all."""
    return _index_of(net, "MAX", self, dim, keepdim)


@converter("aten::argmin")
def argmin(
    net: Network, self: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> NetworkTensor:
    """Convert to the index of the first smallest element along a dimension, or of all."""
    return _index_of(net, "MIN", self, dim, keepdim)


def _index_of(
    net: Network, op: str, x: torch.Tensor, dim: int | None, keepdim: bool
) -> NetworkTensor:
    if x.ndim == 0:
        return net.tensor(0, torch.int64)
    tensor = net.tensor(x, working_dtype(x.dtype))
    if dim is None:
        count = math.prod(x.shape)
        found = _first(net, op, net.reshape(tensor, [count]), 0, count, False)
        return net.reshape(found, net.output.shape)
    axis = positive_dim(dim, x.ndim)
    return _first(net, op, tensor, axis, x.shape[axis], keepdim)


def _first(
    net: Network,
    op: str,
    x: NetworkTensor,
    axis: int,
    size: Any,
    keepdim: bool,
    best: NetworkTensor | None = None,
) -> NetworkTensor:
    """Return the first index of the extreme, which ITopKLayer does not promise among equals."""
    if best is None:
        best = reduced(net, op, x, (axis,), True)
    found = net.add_elementwise(x, best, "EQUAL")
    if net.dtype_of(x).is_floating_point:
        # The extreme of what holds a NaN is NaN, which is first at its index.
        found = net.add_elementwise(found, net.add_unary(x, "ISNAN"), "OR")
    last = net.tensor(size - 1, torch.int32, len(x.shape))
    # The last index stands for "not here".
    indices = net.add_select(found, _count(net, size, axis, len(x.shape)), last)
    return net.cast(reduced(net, "MIN", indices, (axis,), keepdim), torch.int64)


def _count(net: Network, size: Any, axis: int, rank: int) -> NetworkTensor:
    """Return 0, 1, 2, ... along one dimension, as int32."""
    number = static_size(size)
    if number is not None:
        shape = [1] * rank
        shape[axis] = number
        return net.constant(torch.arange(number, dtype=torch.int32).reshape(shape))
    line = net.add_linspace([size], 0, 1, torch.int32)
    others = [other for other in range(rank) if other != axis]
    return net.unsqueeze(line, others) if others else line


@converter("aten::max.dim")
def max_dim(net: Network, self: torch.Tensor, dim: int, keepdim: bool = False) -> _Maybe:
    """Convert to the greatest values along a dimension, and their first indices."""
    return _extreme(net, "MAX", self, dim, keepdim)


@converter("aten::min.dim")
def min_dim(net: Network, self: torch.Tensor, dim: int, keepdim: bool = False) -> _Maybe:
    """Convert to the smallest values along a dimension, and their first indices."""
    return _extreme(net, "MIN", self, dim, keepdim)


def _extreme(net: Network, op: str, x: torch.Tensor, dim: int, keepdim: bool) -> _Maybe:
    tensor = net.tensor(x, working_dtype(x.dtype))
    axes = dims(dim, x.ndim)
    if not net.is_used(1):
        values = reduced(net, op, tensor, axes, keepdim)
        return net.cast(values, net.compute_dtype(x.dtype)), None
    if x.ndim == 0:
        return net.tensor(x), net.tensor(0, torch.int64)
    best = reduced(net, op, tensor, axes, True)
    indices = _first(net, op, tensor, axes[0], x.shape[axes[0]], keepdim, best)
    if not net.is_used(0):
        return None, indices
    values = best if keepdim else net.reshape(best, net.output[0].shape)
    return net.cast(values, net.compute_dtype(x.dtype)), indices


def _topk_output(
    self: torch.Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """Return torch's fake results, where ITopKLayer gives as many elements."""
    return _if_few(k, torch.topk, self, k, dim, largest, sorted)


def _sort_output(
    self: torch.Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> Any:
    """Return torch's fake results; a formula sorts stably, and more than ITopKLayer can."""
    if stable:
        return NotImplemented
    return _if_few(self.shape[dim] if self.ndim else 1, torch.sort, self, dim, descending)


def _if_few(count: Any, function: Callable[..., Any], *args: Any) -> Any:
    return NotImplemented if largest(count) > MAX_K else function(*args)


@converter("aten::topk", meta=_topk_output)
def topk(
    net: Network,
    self: torch.Tensor,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> _Pair:
    """Convert to the ``k`` greatest or smallest elements along a dimension, and their indices.

    They are sorted in any case. Which of equal elements comes first is not defined.
    """
    del sorted  # TensorRT's always are
    return _best(net, self, k, dim, "MAX" if largest else "MIN")


@converter("aten::sort", meta=_sort_output)
def sort(
    net: Network,
    self: torch.Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = None,
) -> _Pair:
    """Convert to the sorted elements along a dimension of up to 3840, and their indices.

    Which of equal elements comes first is not defined: where it is to be, a formula takes over.
    """
    del stable
    size = self.shape[dim] if self.ndim else 1
    return _best(net, self, size, dim, "MAX" if descending else "MIN")


def _best(net: Network, x: torch.Tensor, k: Any, dim: int, op: str) -> _Pair:
    """Return the k best along a dimension of a tensor of any rank, and their int64 indices."""
    tensor = net.tensor(x)
    if x.ndim == 0:
        return tensor, net.tensor(0, torch.int64)
    axis = positive_dim(dim, x.ndim)
    if x.ndim == 1:
        pair = _layer(net, net.unsqueeze(tensor, [0]), x.dtype, k, 1, op)
        return net.reshape(pair[0], [k]), net.reshape(pair[1], [k])
    if x.ndim - axis <= 4:
        return _layer(net, tensor, x.dtype, k, axis, op)
    # TopK takes one of the last four dimensions.
    order = [other for other in range(x.ndim) if other != axis] + [axis]
    back = [order.index(other) for other in range(x.ndim)]
    pair = _layer(net, net.transpose(tensor, order), x.dtype, k, x.ndim - 1, op)
    return net.transpose(pair[0], back), net.transpose(pair[1], back)


def _layer(net: Network, x: NetworkTensor, dtype: torch.dtype, k: Any, axis: int, op: str) -> _Pair:
    if static_size(k) == 0:
        raise UnsupportedArgumentError("k=0: TensorRT's ITopKLayer gives one element at least")
    tensor = net.cast(x, net.compute_dtype(working_dtype(dtype)))
    values, indices = net.add_topk(tensor, op, k, axis)
    return net.cast(values, net.compute_dtype(dtype)), net.cast(indices, torch.int64)
