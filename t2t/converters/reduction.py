"""Values of whole dimensions: sums, means, products, extremes, any and all; running sums."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._arguments import dims, positive_dim
from t2t.converters._compute import narrowed, truth, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.registry import converter


def reduced(
    net: Network, op: str, x: NetworkTensor, axes: tuple[int, ...], keepdim: bool
) -> NetworkTensor:
    """Reduce non-negative dimensions; a tensor without dimensions is its own value."""
    return net.add_reduce(x, op, axes, keepdim) if len(x.shape) and axes else x


@converter("aten::sum", precision="sensitive")
def sum(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert the sum over some dimensions, or all; of integers and bools it is int64."""
    return _reduction(net, "SUM", self, dim, keepdim, dtype)


@converter("aten::mean", precision="sensitive")
def mean(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert the mean over some dimensions, or all."""
    return _reduction(net, "AVG", self, dim, keepdim, dtype)


@converter("aten::prod", precision="sensitive")
def prod(
    net: Network,
    self: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert the product over one dimension, or all; of integers and bools it is int64."""
    return _reduction(net, "PROD", self, dim, keepdim, dtype)


@converter("aten::amax", "aten::max.default")
def amax(net: Network, self: torch.Tensor, dim: Any = (), keepdim: bool = False) -> NetworkTensor:
    """Convert the greatest value over some dimensions, or all; TensorRT may overlook NaN."""
    return _reduction(net, "MAX", self, dim, keepdim)


@converter("aten::amin", "aten::min.default")
def amin(net: Network, self: torch.Tensor, dim: Any = (), keepdim: bool = False) -> NetworkTensor:
    """Convert the smallest value over some dimensions, or all; TensorRT may overlook NaN."""
    return _reduction(net, "MIN", self, dim, keepdim)


def _reduction(
    net: Network,
    op: str,
    x: torch.Tensor,
    dim: Any,
    keepdim: bool,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    wanted = dtype or net.output.dtype
    tensor = net.tensor(x, working_dtype(wanted))
    result = reduced(net, op, tensor, dims(dim, x.ndim), keepdim)
    if op in ("MAX", "MIN"):
        return net.cast(result, net.compute_dtype(wanted))
    return narrowed(net, result, wanted)


@converter("aten::any")
def any(net: Network, self: torch.Tensor, dim: Any = None, keepdim: bool = False) -> NetworkTensor:
    """Convert "some element is not zero"."""
    return _quantified(net, "MAX", self, dim, keepdim)


@converter("aten::all")
def all(net: Network, self: torch.Tensor, dim: Any = None, keepdim: bool = False) -> NetworkTensor:
    """Convert "no element is zero"."""
    return _quantified(net, "MIN", self, dim, keepdim)


def _quantified(net: Network, op: str, x: torch.Tensor, dim: Any, keepdim: bool) -> NetworkTensor:
    marks = truth(net, x)
    axes = dims(dim, x.ndim)
    if x.ndim and axes:
        marks = reduced(net, op, net.cast(marks, torch.int32), axes, keepdim)
    # Of uint8, torch gives uint8.
    return net.cast(marks, net.compute_dtype(net.output.dtype))


# -- running sums ----------------------------------------------------------------------------------


@converter("aten::cumsum", precision="sensitive")
def cumsum(
    net: Network, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> NetworkTensor:
    """Convert the running sum along a dimension; of integers and bools it is int64."""
    x = net.tensor(self, dtype or net.output.dtype)
    if self.ndim == 0:
        return x
    return net.add_cumulative(x, positive_dim(dim, self.ndim))
