"""Operators that are rare in models, in terms of others; PyTorch has no formulas of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.registry import formula

aten = torch.ops.aten

# M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2012), single precision:
# polynomials in w - 2.5 and sqrt(w) - 3, where w = -log(1 - x * x); highest power first.
_ERFINV_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


@formula("aten::angle.default")
def angle(self: torch.Tensor) -> torch.Tensor:
    """Return pi for negative numbers, 0 for others, NaN for NaN."""
    dtype = self.dtype if self.is_floating_point() else torch.get_default_dtype()
    result = torch.where(self < 0, math.pi, 0.0).to(dtype)
    return torch.where(self.isnan(), self, result) if self.is_floating_point() else result


@formula("aten::celu")
def celu(self: torch.Tensor, alpha: Any = 1.0) -> torch.Tensor:
    """Return x where positive, ``alpha * (exp(x / alpha) - 1)`` elsewhere."""
    result: torch.Tensor = aten.elu.default(self, alpha, 1, 1 / alpha)
    return result


@formula("aten::erfinv.default", precision="sensitive")
def erfinv(self: torch.Tensor) -> torch.Tensor:
    """Invert the error function, by two polynomials in float32."""
    x = self.float()
    # 1 - x * x would lose the digits that matter near 1.
    w = -torch.log((1 - x) * (1 + x))
    result = torch.where(
        w < 5, _polynomial(_ERFINV_NEAR, w - 2.5), _polynomial(_ERFINV_FAR, w.sqrt() - 3)
    )
    result = torch.where(x.abs() == 1, x * math.inf, result * x)
    return result.to(self.dtype if self.is_floating_point() else torch.get_default_dtype())


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    result = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


@formula("aten::index_reduce.default")
def index_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Reduce whole slices at indices along a dimension: a scatter of their elements."""
    x, rows = (t.reshape(1) if t.ndim == 0 else t for t in (self, source))
    axis = dim % x.ndim
    shape = [1] * x.ndim
    shape[axis] = -1
    indices = index.reshape(shape).expand(rows.shape).long()
    kind = {"mean": "mean", "prod": "prod", "amax": "amax", "amin": "amin"}[reduce]
    result = aten.scatter_reduce.two(x, axis, indices, rows, kind, include_self=include_self)
    reduced: torch.Tensor = result.reshape(self.shape)
    return reduced


@formula("aten::masked_scatter.default")
def masked_scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Write the first elements of ``source``, one after another, where a mask holds."""
    x, where = torch.broadcast_tensors(self, mask)  # type: ignore[no-untyped-call]
    position = where.reshape(-1).long().cumsum(0) - 1
    taken = source.reshape(-1)[position.clamp(0, source.numel() - 1)]
    return torch.where(where, taken.reshape(x.shape), x)


@formula("aten::_trilinear.default")
def trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Multiply three tensors and add up along dimensions, as bilinear layers do."""
    del unroll_dim  # how torch splits the work
    rank = i1.ndim + len(expand1)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    terms = [
        "".join(letter for axis, letter in enumerate(letters) if axis not in missing)
        for missing in (expand1, expand2, expand3)
    ]
    kept = "".join(letter for axis, letter in enumerate(letters) if axis not in sumdim)
    return torch.einsum(f"{','.join(terms)}->{kept}", i1, i2, i3)


@formula("aten::renorm.default", precision="sensitive")
def renorm(self: torch.Tensor, p: Any, dim: int, maxnorm: Any) -> torch.Tensor:
    """Scale the slices along a dimension whose norm is larger than ``maxnorm`` down to it."""
    others = [axis for axis in range(self.ndim) if axis != dim % self.ndim]
    dtype = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    norm = torch.linalg.vector_norm(self, p, others, keepdim=True, dtype=dtype)
    factor = torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)
    return (self * factor).to(self.dtype)
