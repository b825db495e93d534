"""Where the greatest and smallest values are, the k best of them, sorted tensors and quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from t2t.converters._arguments import dims, positive_dim, static_number
from t2t.converters._compute import choose, working_dtype
from t2t.converters.reduction import reduced
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import largest, static_size

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


# -- quantiles -------------------------------------------------------------------------------------


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile_output(
    input: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Any = None,
) -> Any:
    """Return the fake result; PyTorch's own code looks at the values of ``q``, which has none."""
    del out
    heads = tuple(q.shape) if isinstance(q, torch.Tensor) else ()
    number = isinstance(q, int | float) and 0 <= q <= 1
    known = isinstance(q, torch.Tensor) and q.dtype == input.dtype and q.ndim <= 1
    if not (number or known) or interpolation not in _INTERPOLATIONS:
        return NotImplemented
    if input.dtype not in (torch.float32, torch.float64) or 0 in map(static_size, input.shape):
        return NotImplemented
    if dim is None:
        kept: tuple[Any, ...] = (1,) * input.ndim if keepdim else ()
    else:
        axis = positive_dim(dim, input.ndim)
        kept = tuple(
            1 if other == axis else size
            for other, size in enumerate(input.shape)
            if keepdim or other != axis
        )
    return input.new_empty((*heads, *kept))


# The functions, for PyTorch's own code looks at the values of ``q``.
@converter("torch.quantile", "torch.Tensor.quantile", precision="sensitive", meta=_quantile_output)
def quantile(
    net: Network,
    input: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> NetworkTensor:
    """Convert to the quantiles ``q`` (constants) along a dimension, or of all; NaN gives NaN."""
    del keepdim  # torch's output has the shape
    return _Rows(net, input, dim).quantiles(q, interpolation, skip_nan=False)


@converter(
    "torch.nanquantile",
    "torch.Tensor.nanquantile",
    precision="sensitive",
    meta=_quantile_output,
)
def nanquantile(
    net: Network,
    input: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> NetworkTensor:
    """Convert to the quantiles ``q`` (constants) of the elements that are numbers."""
    del keepdim  # torch's output has the shape
    return _Rows(net, input, dim).quantiles(q, interpolation, skip_nan=True)


def _ranks(q: float, size: int) -> torch.Tensor:
    """Return the rank of a quantile among 0, 1, ... size numbers, as this PyTorch rounds it."""
    counts = torch.arange(size + 1, dtype=torch.float64) - 1
    if not _EXACT_RANKS:
        counts = counts.to(torch.float32)
    return (q * counts).clamp(min=0).double()


# 0.3 of 10 is more than 3, as float32 has 0.3: since PyTorch 2.12 it is not rounded to 3.
_EXACT_RANKS = bool(torch.arange(11.0).quantile(torch.tensor([0.3]), interpolation="higher") == 4)


class _Rows:
    """A tensor as sorted rows, NaN last.

    Args:
        net: the network.
        input: the tensor.
        dim: the dimension that becomes the row; None is all.
    """

    def __init__(self, net: Network, input: torch.Tensor, dim: int | None) -> None:
        self.net = net
        self.dtype = input.dtype
        x = net.tensor(input, self.dtype)
        if dim is None or input.ndim == 0:
            self.size = static_number("number of elements", math.prod(input.shape))
        else:
            axis = positive_dim(dim, input.ndim)
            self.size = static_number(f"size of dim {dim}", input.shape[axis])
            x = net.transpose(x, [*(a for a in range(input.ndim) if a != axis), axis])
        if self.size > MAX_K:
            raise UnsupportedArgumentError(
                f"{self.size} elements: TensorRT's ITopKLayer sorts at most {MAX_K}"
            )
        x = net.reshape(x, [math.prod(input.shape) // self.size, self.size])
        missing = net.add_unary(x, "ISNAN")
        numbers = net.cast(net.add_unary(missing, "NOT"), torch.int32)
        self.counts = net.add_reduce(numbers, "SUM", 1, keep_dims=True)
        x = choose(net, missing, math.inf, x, self.dtype)
        self.sorted, _ = net.add_topk(x, "MIN", self.size, 1)

    def quantiles(self, q: Any, interpolation: str, skip_nan: bool) -> NetworkTensor:
        """Return quantiles in the shape and dtype of the operation's output."""
        net, dtype = self.net, self.dtype
        if net.is_traced(q):
            raise UnsupportedArgumentError("q depends on the input: supported: constants")
        wanted = torch.as_tensor(q, dtype=dtype).double().reshape(-1)
        if not bool(((wanted >= 0) & (wanted <= 1)).all()):
            raise UnsupportedArgumentError(f"q={q}: quantiles lie between 0 and 1")
        results = [self._quantile(float(number), interpolation) for number in wanted]
        joined = results[0] if len(results) == 1 else net.add_concatenation(results, 1)
        enough = 1 if skip_nan else self.size
        few = net.add_elementwise(self.counts, enough, "LESS", dtype=torch.int32)
        joined = choose(net, few, math.nan, joined, dtype)
        return net.reshape(net.transpose(joined, [1, 0]), net.output.shape)

    def _quantile(self, q: float, interpolation: str) -> NetworkTensor:
        net, dtype = self.net, self.dtype
        ranks = _ranks(q, self.size)
        chosen = {"lower": ranks.floor(), "higher": ranks.ceil(), "nearest": ranks.round()}
        if interpolation in chosen:
            return self._at(chosen[interpolation])
        low, high = (self._at(r) for r in (ranks.floor(), ranks.ceil()))
        parts = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks.frac()
        weight = net.add_gather(parts.to(dtype), self.counts, 0)
        # As torch.lerp: from the nearer end, so that it is met exactly.
        span = net.add_elementwise(high, low, "SUB")
        rest = net.add_elementwise(1.0, weight, "SUB", dtype=dtype)
        up = net.add_elementwise(low, net.add_elementwise(span, weight, "PROD"), "SUM")
        down = net.add_elementwise(high, net.add_elementwise(span, rest, "PROD"), "SUB")
        near = net.add_elementwise(weight, 0.5, "LESS", dtype=dtype)
        return net.add_select(near, up, down)

    def _at(self, ranks: torch.Tensor) -> NetworkTensor:
        """Read each row at the rank that stands in a table at the row's count of numbers."""
        index = self.net.add_gather(ranks.to(torch.int32), self.counts, 0)
        return self.net.add_gather(self.sorted, index, 1, mode="ELEMENT")
