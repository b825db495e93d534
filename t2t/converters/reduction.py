"""Sums, means and other values of whole dimensions."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._arguments import dims
from t2t.converters._compute import narrowed, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["mean", "sum"]


@converter("aten::sum", precision="sensitive")
def sum(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert the sum over some dimensions, or all; integers and bools give int64."""
    del dtype  # torch's output has it
    return reduce(net, "SUM", self, dims(dim, self.ndim), keepdim)


@converter("aten::mean", precision="sensitive")
def mean(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert the mean over some dimensions, or all."""
    del dtype  # torch's output has it
    return reduce(net, "AVG", self, dims(dim, self.ndim), keepdim)


def reduce(
    net: Network, op: str, x: torch.Tensor, axes: tuple[int, ...], keepdim: bool
) -> NetworkTensor:
    """Reduce some dimensions in the result's dtype."""
    dtype = net.output.dtype
    tensor = net.tensor(x, working_dtype(dtype))
    if axes and x.ndim:
        tensor = net.add_reduce(tensor, op, axes, keepdim)
    return narrowed(net, tensor, dtype)
