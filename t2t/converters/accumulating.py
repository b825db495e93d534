"""Operators that add several elements up in one place, which TensorRT's scatter layer cannot.

The contributions to every place are listed: where the places are constants, in a table that one
gather layer reads; where they are traced, by comparing every index with every place, which takes
memory for all pairs and is refused above `MAX_PAIRS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import positive_dim
from t2t.converters._compute import binary, narrowed, working_dtype
from t2t.converters._places import Places, count
from t2t.errors import UnsupportedOperatorError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import static_size

__all__ = [
    "accumulated",
    "scatter_add",
    "scatter_reduce",
    "scatter_reduce_tensor",
    "scatter_reduce_value",
]

MAX_PAIRS = 1 << 24
"""Most elements of the tensor in which every index meets every place."""

_LAYERS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "amax": "MAX", "amin": "MIN"}


def accumulated(
    net: Network,
    data: NetworkTensor,
    found: Places,
    updates: NetworkTensor,
    sizes: Sequence[Any],
) -> NetworkTensor:
    """Give ``data`` with updates added at places, also several at one.

    Args:
        net: the network.
        data: the tensor, its indexed dimensions first.
        found: the places.
        updates: what is added, of shape (*found.shape, *other dimensions).
        sizes: the shape of ``data``.
    """
    indexed, rest = sizes[: found.count], list(sizes[found.count :])
    places, number = count(indexed), count(found.shape)
    if places is None or number is None:
        raise UnsupportedOperatorError("adding up at indices along a dynamic dimension")
    dtype = working_dtype(net.output.dtype)
    rows = net.reshape(net.cast(updates, net.compute_dtype(dtype)), [number, *rest])
    if found.constant is not None:
        total = _by_table(net, _linear(found.constant, indexed), rows, places, rest)
    else:
        total = _by_comparison(net, found, indexed, rows, [number, places, *rest])
    return binary(net, "SUM", data, net.reshape(total, sizes))


def _linear(coordinates: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """Number the places of constant coordinates in row-major order."""
    steps = [math.prod(int(size) for size in sizes[axis + 1 :]) for axis in range(len(sizes))]
    return (coordinates.long() * torch.tensor(steps)).sum(-1).reshape(-1)


def _by_table(
    net: Network, index: torch.Tensor, rows: NetworkTensor, places: int, rest: list[Any]
) -> NetworkTensor:
    """Add up rows that go to constant places: each place reads its rows, then rows of zeros."""
    order = index.argsort(stable=True)
    counts = torch.bincount(index, minlength=places)
    table = torch.full((int(counts.max()), places), len(index))
    starts = counts.cumsum(0) - counts
    target = index[order]
    table[torch.arange(len(index)) - starts[target], target] = order
    zeros = net.expand(net.tensor(0, net.dtype_of(rows)), [1, *rest])
    padded = net.add_concatenation([rows, zeros], 0)
    if len(table) == 1:
        return net.add_gather(padded, table[0], 0)
    return net.add_reduce(net.add_gather(padded, table, 0), "SUM", 0, keep_dims=False)


def _by_comparison(
    net: Network, found: Places, indexed: Sequence[Any], rows: NetworkTensor, sizes: list[Any]
) -> NetworkTensor:
    """Add up rows whose places are traced; ``sizes`` are (rows, places, other dimensions)."""
    number, places, *rest = sizes
    _check_pairs(sizes)
    steps = [math.prod(int(size) for size in indexed[axis + 1 :]) for axis in range(found.count)]
    index = net.reshape(found.coordinates, [number, found.count])
    if found.count > 1:
        index = net.add_elementwise(index, torch.tensor([steps]), "PROD")
        index = net.add_reduce(index, "SUM", 1, keep_dims=True)
    meets = net.add_elementwise(index, torch.arange(places).unsqueeze(0), "EQUAL")
    meets = net.reshape(meets, [number, places, *[1] * len(rest)])
    zero = net.tensor(0, net.dtype_of(rows))
    chosen = net.add_select(meets, net.unsqueeze(rows, [1]), zero)
    return net.add_reduce(chosen, "SUM", 0, keep_dims=False)


def _check_pairs(sizes: Sequence[Any]) -> None:
    pairs = count(sizes)
    if pairs is None or pairs > MAX_PAIRS:
        raise UnsupportedOperatorError(
            "TensorRT's scatter layer adds nothing up, and comparing every index with every place "
            f"would take {'a dynamic number of' if pairs is None else pairs} elements (at most "
            f"{MAX_PAIRS})"
        )


@converter("aten::scatter_add", precision="sensitive")
def scatter_add(
    net: Network, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> NetworkTensor:
    """Convert to a comparison, a choice and a sum."""
    return scatter_reduce(net, self, dim, index, src, "sum")


@converter("aten::scatter.reduce", precision="sensitive")
def scatter_reduce_tensor(
    net: Network, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str
) -> NetworkTensor:
    """Convert the older spelling: ``reduce`` is "add" or "multiply"."""
    return scatter_reduce(net, self, dim, index, src, _NEWER[reduce])


@converter("aten::scatter.value_reduce", precision="sensitive")
def scatter_reduce_value(
    net: Network, self: torch.Tensor, dim: int, index: torch.Tensor, value: Any, reduce: str
) -> NetworkTensor:
    """Convert the older spelling with a number as source."""
    src = torch.full([int(size) for size in index.shape], value, dtype=self.dtype)
    return scatter_reduce(net, self, dim, index, src, _NEWER[reduce])


_NEWER = {"add": "sum", "multiply": "prod"}


@converter("aten::scatter_reduce.two", precision="sensitive")
def scatter_reduce(
    net: Network,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool = True,
) -> NetworkTensor:
    """Convert to a comparison of every index with every place, a choice and a reduction."""
    if 0 in (static_size(size) for size in index.shape):
        return net.tensor(self)
    axis = positive_dim(dim, self.ndim)
    sizes = list(index.shape) or [1]
    places = list(self.shape or [1])[axis]
    _check_pairs([*sizes, places])
    dtype = working_dtype(self.dtype)
    whole = part = net.tensor(self, dtype, rank=1)
    source = net.tensor(src, dtype, rank=1)
    for other, size in enumerate(sizes):
        source = net.narrow(source, other, 0, size)
        if other != axis:
            part = net.narrow(part, other, 0, size)
    numbers = torch.arange(int(places)).reshape([-1] + [1] * (len(sizes) - axis - 1))
    indices = net.unsqueeze(net.tensor(index, torch.int64, rank=1), [axis + 1])
    meets = net.add_elementwise(indices, numbers, "EQUAL")
    result = _reduced(
        net, part, meets, net.unsqueeze(source, [axis + 1]), axis, reduce, include_self
    )
    result = narrowed(net, _put_back(net, whole, result, axis, sizes), self.dtype)
    return net.reshape(result, net.output.shape)


def _reduced(
    net: Network,
    part: NetworkTensor,
    meets: NetworkTensor,
    source: NetworkTensor,
    axis: int,
    reduce: str,
    include_self: bool,
) -> NetworkTensor:
    """Reduce what meets each place, with what stands there or, if nothing meets it, only that."""
    layer = _LAYERS[reduce]
    dtype = net.dtype_of(part)
    neutral = net.tensor(_neutral(reduce, dtype), dtype)
    total = net.add_reduce(net.add_select(meets, source, neutral), layer, axis, keep_dims=False)
    hits = net.add_reduce(net.cast(meets, torch.int32), "SUM", axis, keep_dims=False)
    if include_self:
        total = net.add_elementwise(part, total, layer)
    if reduce == "mean":
        number = net.add_elementwise(
            net.cast(hits, dtype), net.tensor(1, dtype), "SUM" if include_self else "MAX"
        )
        total = net.add_elementwise(
            total, number, "DIV" if dtype.is_floating_point else "FLOOR_DIV"
        )
    if include_self:
        return total
    touched = net.add_elementwise(hits, net.tensor(0, torch.int32), "GREATER")
    return net.add_select(touched, total, part)


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    return torch.iinfo(dtype).min if reduce == "amax" else torch.iinfo(dtype).max


def _put_back(
    net: Network, whole: NetworkTensor, part: NetworkTensor, axis: int, sizes: Sequence[Any]
) -> NetworkTensor:
    """Join a part, which starts at the first corner, with the rest of the whole tensor."""
    others = [other for other in range(len(sizes)) if other != axis]
    for place in reversed(range(len(others))):
        other = others[place]
        total, size = whole.shape[other], static_size(sizes[other])
        if size is None or total in (-1, size):
            continue
        behind = net.narrow(whole, other, size, total - size)
        for before in others[:place]:
            behind = net.narrow(behind, before, 0, sizes[before])
        part = net.add_concatenation([part, behind], other)
    return part
