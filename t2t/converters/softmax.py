"""Softmax and its logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from t2t.converters._arguments import positive_dim
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["log_softmax", "safe_softmax", "softmax"]


@converter("aten::_softmax", precision="sensitive")
def softmax(net: Network, self: torch.Tensor, dim: int, half_to_float: bool) -> NetworkTensor:
    """Convert softmax over one dimension, computed in the result's type."""
    del half_to_float  # The result's type says it.
    return _along(net, self, dim, _softmax)


@converter("aten::_safe_softmax", precision="sensitive")
def safe_softmax(
    net: Network, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> NetworkTensor:
    """Convert softmax that gives zeros, not NaN, where all elements are minus infinity."""
    del dtype  # The result's type says it.
    return _along(net, self, dim, _safe_softmax)


@converter("aten::_log_softmax", precision="sensitive")
def log_softmax(net: Network, self: torch.Tensor, dim: int, half_to_float: bool) -> NetworkTensor:
    """Convert ``x - max - log(sum(exp(x - max)))``, which no magnitude of x overflows."""
    del half_to_float  # The result's type says it.
    return _along(net, self, dim, _log_softmax)


def _along(
    net: Network,
    x: torch.Tensor,
    dim: int,
    emit: Callable[[Network, NetworkTensor, int], NetworkTensor],
) -> NetworkTensor:
    """Emit at rank 2 at least: TensorRT's softmax has no vectors, its reductions no scalars."""
    axis = positive_dim(dim, x.ndim)
    tensor = net.tensor(x, net.output.dtype)
    if x.ndim > 1:
        return emit(net, tensor, axis)
    row = net.reshape(tensor, (1, *(x.shape or (1,))))
    return net.reshape(emit(net, row, 1), net.output.shape)


def _softmax(net: Network, x: NetworkTensor, axis: int) -> NetworkTensor:
    return net.add_softmax(x, axis)


def _safe_softmax(net: Network, x: NetworkTensor, axis: int) -> NetworkTensor:
    largest = net.add_reduce(x, "MAX", axis, keep_dims=True)
    rank = len(x.shape)
    empty = net.add_elementwise(largest, net.tensor(-math.inf, net.output.dtype, rank), "EQUAL")
    zero = net.tensor(0.0, net.output.dtype, rank)
    return net.add_select(empty, zero, net.add_softmax(x, axis))


def _log_softmax(net: Network, x: NetworkTensor, axis: int) -> NetworkTensor:
    shifted = net.add_elementwise(x, net.add_reduce(x, "MAX", axis, keep_dims=True), "SUB")
    total = net.add_reduce(net.add_unary(shifted, "EXP"), "SUM", axis, keep_dims=True)
    return net.add_elementwise(shifted, net.add_unary(total, "LOG"), "SUB")
