"""Operators that give a tensor with some elements overwritten."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._arguments import positive_dim
from t2t.converters._places import bounded, wrapped
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.shapes import static_size

__all__ = ["copy", "fill", "select_scatter", "slice_scatter", "zero"]


@converter("aten::copy")
def copy(
    net: Network, self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False
) -> NetworkTensor:
    """Convert to the source, cast and broadcast as the target is."""
    del non_blocking
    return net.expand(net.tensor(src, self.dtype), net.output.shape)


@converter("aten::fill")
def fill(net: Network, self: torch.Tensor, value: Any) -> NetworkTensor:
    """Convert to the value, cast and repeated as the target is."""
    return net.expand(net.tensor(value, self.dtype), net.output.shape)


@converter("aten::zero")
def zero(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert to zeros."""
    return net.expand(net.tensor(0, self.dtype), net.output.shape)


@converter("aten::slice_scatter")
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
    part = net.tensor(src, self.dtype)
    if step != 1:
        return _strided(net, self, part, axis, first, step, src.shape[axis])
    return replaced(net, self, part, axis, first, src.shape[axis])


@converter("aten::select_scatter")
def select_scatter(
    net: Network, self: torch.Tensor, src: torch.Tensor, dim: int, index: Any
) -> NetworkTensor:
    """Convert as a slice of size 1."""
    axis = positive_dim(dim, self.ndim)
    place = wrapped("index", index, self.shape[axis])
    part = net.unsqueeze(net.tensor(src, self.dtype), [axis])
    return replaced(net, self, part, axis, place, 1)


def replaced(
    net: Network, x: torch.Tensor, part: NetworkTensor, axis: int, start: Any, size: Any
) -> NetworkTensor:
    """Give ``x`` with ``size`` elements along an axis replaced, from ``start`` on."""
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
    """Give ``x`` with every ``step``-th element replaced: all of both, gathered in order."""
    places = torch.arange(x.shape[axis])
    places[start : start + step * count : step] = torch.arange(count) + x.shape[axis]
    both = net.add_concatenation([x, part], axis)
    return net.add_gather(both, places, axis)
