"""Variance, norms and logarithms of sums."""

from __future__ import annotations

import math
from typing import Any

import torch

from t2t.converters._arguments import dims
from t2t.converters._compute import binary, choose, truth
from t2t.converters.powers import whole_power
from t2t.converters.reduction import reduced
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import static_size

__all__ = [
    "cdist",
    "euclidean_dist",
    "logsumexp",
    "norm",
    "std",
    "std_mean",
    "var",
    "var_mean",
    "vector_norm",
]


@converter("aten::var.correction", precision="sensitive")
def var(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> NetworkTensor:
    """Convert ``sum((x - mean) ** 2) / (n - correction)``; correction is 1 unless given."""
    return _variance(net, self, dim, correction, keepdim)


@converter("aten::std.correction", precision="sensitive")
def std(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> NetworkTensor:
    """Convert the square root of the variance."""
    return net.add_unary(_variance(net, self, dim, correction, keepdim), "SQRT")


@converter("aten::var_mean.correction", precision="sensitive")
def var_mean(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[NetworkTensor, NetworkTensor]:
    """Convert the variance and the mean."""
    variance = _variance(net, self, dim, correction, keepdim)
    return variance, reduced(net, "AVG", net.tensor(self), dims(dim, self.ndim), keepdim)


@converter("aten::std_mean.correction", precision="sensitive")
def std_mean(
    net: Network,
    self: torch.Tensor,
    dim: Any = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[NetworkTensor, NetworkTensor]:
    """Convert the standard deviation and the mean."""
    variance, mean = var_mean(net, self, dim, correction, keepdim)
    return net.add_unary(variance, "SQRT"), mean


def _variance(
    net: Network, x: torch.Tensor, dim: Any, correction: float | None, keepdim: bool
) -> NetworkTensor:
    axes, dtype = dims(dim, x.ndim), x.dtype
    tensor = net.tensor(x)
    mean = reduced(net, "AVG", tensor, axes, True)
    offset = binary(net, "SUB", tensor, mean, dtype)
    square = binary(net, "PROD", offset, offset, dtype)
    lost = 1 if correction is None else correction
    if lost == 0:
        return reduced(net, "AVG", square, axes, keepdim)
    total = reduced(net, "SUM", square, axes, keepdim)
    return binary(net, "DIV", total, _freedom(net, x, axes, lost), dtype)


def _freedom(net: Network, x: torch.Tensor, axes: tuple[int, ...], lost: float) -> Any:
    """Give the number of elements less the correction, but not below zero."""
    count = math.prod(x.shape[axis] for axis in axes)
    number = static_size(count)
    if number is not None:
        return float(max(0, number - lost))
    left = binary(net, "SUB", count, float(lost), x.dtype)
    return binary(net, "MAX", left, 0.0, x.dtype)


@converter("aten::linalg_vector_norm", precision="sensitive")
def vector_norm(
    net: Network,
    self: torch.Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert ``sum(abs(x) ** ord) ** (1 / ord)``, and what it tends to for 0 and infinity."""
    wanted = dtype or net.output.dtype
    axes = dims(dim, self.ndim)
    return _norm(net, net.tensor(self, wanted), ord, axes, keepdim, wanted)


def _norm(
    net: Network,
    x: NetworkTensor,
    ord: float,
    axes: tuple[int, ...],
    keepdim: bool,
    wanted: torch.dtype,
) -> NetworkTensor:
    if ord == 2:
        return net.add_unary(reduced(net, "SUM", _square(net, x), axes, keepdim), "SQRT")
    if ord == 0:
        marks = net.cast(truth(net, x), net.compute_dtype(wanted))
        return reduced(net, "SUM", marks, axes, keepdim)
    size = net.add_unary(x, "ABS")
    if math.isinf(ord):
        return reduced(net, "MAX" if ord > 0 else "MIN", size, axes, keepdim)
    if ord == 1:
        return reduced(net, "SUM", size, axes, keepdim)
    small = float(ord).is_integer() and 0 < ord <= 4
    power = (
        whole_power(net, size, int(ord), wanted)
        if small
        else binary(net, "POW", size, float(ord), wanted)
    )
    return binary(net, "POW", reduced(net, "SUM", power, axes, keepdim), 1.0 / ord, wanted)


def _square(net: Network, x: NetworkTensor) -> NetworkTensor:
    return net.add_elementwise(x, x, "PROD")


@converter("aten::norm", precision="sensitive")
def norm(
    net: Network,
    self: torch.Tensor,
    p: float | None = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert a vector norm under its older name."""
    return vector_norm(net, self, 2 if p is None else p, dim, keepdim, dtype)


@converter("aten::_cdist_forward", precision="sensitive")
def cdist(
    net: Network, x1: torch.Tensor, x2: torch.Tensor, p: float = 2, compute_mode: Any = None
) -> NetworkTensor:
    """Convert (*, P, M) and (*, R, M) to the distances (*, P, R) of all pairs."""
    del compute_mode  # how torch would compute it
    rank = len(net.output.shape)
    a, b = net.aligned([x1, x2], net.output.dtype)
    pairs = net.unsqueeze(a, [rank - 1]), net.unsqueeze(b, [rank - 2])
    return _norm(net, binary(net, "SUB", *pairs), p, (rank,), False, net.output.dtype)


@converter("aten::_euclidean_dist", precision="sensitive")
def euclidean_dist(net: Network, x1: torch.Tensor, x2: torch.Tensor) -> NetworkTensor:
    """Convert (*, P, M) and (*, R, M) to the distances (*, P, R) of all pairs."""
    return cdist(net, x1, x2)


@converter("aten::logsumexp", precision="sensitive")
def logsumexp(
    net: Network, self: torch.Tensor, dim: Any = None, keepdim: bool = False
) -> NetworkTensor:
    """Convert ``log(sum(exp(x)))``, whose terms must not overflow."""
    dtype, axes = net.output.dtype, dims(dim, self.ndim)
    x = net.tensor(self, dtype)
    most = reduced(net, "MAX", x, axes, True)
    # An infinite maximum would make NaN of itself.
    most = choose(net, net.add_unary(most, "ISINF"), 0.0, most)
    terms = net.add_unary(binary(net, "SUB", x, most), "EXP")
    total = net.add_unary(reduced(net, "SUM", terms, axes, True), "LOG")
    result = binary(net, "SUM", total, most)
    return result if keepdim else net.reshape(result, net.output.shape)
