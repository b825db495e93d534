"""Variance, norms, distances, softmax and logarithms of sums, histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.formulas.arithmetic import in_float32
from t2t.registry import formula
from t2t.sizes import static_size


@formula("aten::var.correction", precision="sensitive")
@in_float32
def var(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """Return ``sum((x - mean) ** 2) / (n - correction)``; correction is 1 unless given."""
    axes = list(dim or [])
    offset = self - self.mean(axes, keepdim=True)
    square = offset * offset
    lost = 1 if correction is None else correction
    if lost == 0:
        return square.mean(axes, keepdim)
    sizes = [self.shape[axis] for axis in axes or range(self.ndim)] if self.ndim else []
    freedom: Any = torch.sym_max(0, math.prod(sizes) - lost)
    variance: torch.Tensor = square.sum(axes, keepdim) / freedom
    return variance


@formula("aten::std.correction", precision="sensitive")
@in_float32
def std(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """Return the square root of the variance."""
    return var(self, dim, correction=correction, keepdim=keepdim).sqrt()


@formula("aten::var_mean.correction", precision="sensitive")
def var_mean(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the variance and the mean."""
    variance = var(self, dim, correction=correction, keepdim=keepdim)
    return variance, self.mean(list(dim or []), keepdim)


@formula("aten::std_mean.correction", precision="sensitive")
def std_mean(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the standard deviation and the mean."""
    deviation = std(self, dim, correction=correction, keepdim=keepdim)
    return deviation, self.mean(list(dim or []), keepdim)


@formula("aten::linalg_vector_norm", precision="sensitive")
def vector_norm(
    self: torch.Tensor,
    ord: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``sum(abs(x) ** ord) ** (1 / ord)``, and what it tends to for 0 and infinity."""
    x = self if dtype is None else self.to(dtype)
    return _norm(x, ord, list(dim or []), keepdim)


@in_float32
def _norm(x: torch.Tensor, ord: Any, axes: list[int], keepdim: bool) -> torch.Tensor:
    if ord == 2:
        return (x * x).sum(axes, keepdim).sqrt()
    if ord == 0:
        return (x != 0).sum(axes, keepdim, dtype=x.dtype)
    size = x.abs()
    if math.isinf(ord):
        return size.amax(axes, keepdim) if ord > 0 else size.amin(axes, keepdim)
    if ord == 1:
        return size.sum(axes, keepdim)
    return torch.pow((size**ord).sum(axes, keepdim), 1 / ord)


@formula("aten::_cdist_forward", precision="sensitive")
@in_float32
def cdist(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: Any) -> torch.Tensor:
    """Return the distances (*, P, R) of all pairs of (*, P, M) and (*, R, M)."""
    del compute_mode  # how torch would compute it
    distance: torch.Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    return distance


@formula("aten::_euclidean_dist", precision="sensitive")
@in_float32
def euclidean_dist(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """Return the distances (*, P, R) of all pairs of (*, P, M) and (*, R, M)."""
    return cdist(x1, x2, 2.0, None)


@formula("aten::_pdist_forward", precision="sensitive")
@in_float32
def pdist(self: torch.Tensor, p: float = 2) -> torch.Tensor:
    """Return the distances (N * (N - 1) / 2,) of the pairs of different rows of (N, M)."""
    rows = self.shape[0]
    pairs = rows * (rows - 1) // 2
    # Row i stands first in n - 1 - i pairs, behind those of the rows before it.
    number = torch.arange(rows)
    starts = number * (2 * rows - 1 - number) // 2
    pair = torch.arange(pairs)
    first = torch.searchsorted(starts[:-1], pair, right=True) - 1
    second = pair - starts.index_select(0, first) + first + 1
    difference = self.index_select(0, first) - self.index_select(0, second)
    distance: torch.Tensor = torch.linalg.vector_norm(difference, p, -1)
    return distance


@formula("aten::logsumexp", precision="sensitive")
@in_float32
def logsumexp(self: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """Return ``log(sum(exp(x)))``; the maximum is taken out, so that no term overflows."""
    axes = list(dim) or list(range(self.ndim))
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    if x.ndim and any(static_size(x.shape[axis]) == 0 for axis in axes):
        # The sum of nothing is 0; amax() asks for one element at least.
        return x.sum(axes, keepdim=keepdim).log()
    most = x.amax(axes, keepdim=True)
    # An infinite maximum would make NaN of itself.
    most = torch.where(most.isinf(), 0.0, most)
    result = torch.exp(x - most).sum(axes, keepdim=True).log() + most
    return result if keepdim else result.squeeze(axes)


@formula("aten::_log_softmax", precision="sensitive")
def log_softmax(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Return ``x - max - log(sum(exp(x - max)))``, which no magnitude of x overflows."""
    # As torch's own kernel has it, of which there are other views than of a permuted result.
    return _log_softmax(self.float() if half_to_float else self, dim).contiguous()


@in_float32
def _log_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    if 0 in map(static_size, x.shape):
        return x.clone()
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@formula("aten::_safe_softmax", precision="sensitive")
def safe_softmax(self: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return softmax with zeros, not NaN, where all elements are minus infinity."""
    x = self if dtype is None else self.to(dtype)
    if 0 in map(static_size, x.shape):
        return x.clone()
    return torch.where(x.amax(dim, keepdim=True) == -math.inf, 0.0, x.softmax(dim))


@formula("aten::histc", precision="sensitive")
def histc(self: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> torch.Tensor:
    """Count how many elements are in each of (bins,); those outside count nowhere."""
    if min == max:
        raise UnsupportedArgumentError(
            f"min={min}, max={max}: the bins would depend on the data; give bounds"
        )
    x = self.reshape(-1).float()
    above = x - float(min) if min else x
    index = torch.floor(above * float(bins) / float(max - min))
    # The greatest element belongs to the last bin.
    index = torch.where(x > max, float(bins), index.clamp(max=bins - 1))
    count: torch.Tensor = (index == torch.arange(bins).unsqueeze(1)).sum(1)
    return count.to(self.dtype)
