"""Linear algebra of small matrices, by elimination that is written out step by step."""

from __future__ import annotations

import math

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.registry import formula
from t2t.sizes import static_size

MOST_ROWS = 16


def _rows(a: torch.Tensor) -> int:
    """Return the number of rows of matrices, for each of which there is a step."""
    rows = static_size(a.shape[-1])
    if rows is None or rows > MOST_ROWS:
        raise UnsupportedArgumentError(
            f"matrices of {a.shape[-1]} rows: elimination is written out step by step; "
            f"supported: up to {MOST_ROWS}, or partial=True, which leaves them in PyTorch"
        )
    return rows


def _eliminated(
    a: torch.Tensor, b: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Solve ``a @ x = b`` by Gauss-Jordan elimination, with the pivots that LAPACK's LU takes.

    Returns:
        x like ``b``; the pivots (*, rows); and (*), -1 where rows were swapped an odd number of
        times, else 1.
    """
    rows = torch.arange(_rows(a))
    table = a if b is None else torch.cat([a, b], -1)
    if not len(rows):
        ones = torch.ones(a.shape[:-2], dtype=a.dtype)
        return table[..., len(rows) :], a.diagonal(dim1=-2, dim2=-1), ones
    sign, pivots = torch.ones_like(a[..., 0, 0]), []
    for step in range(len(rows)):
        largest = table[..., step:, step].abs().argmax(-1, keepdim=True) + step
        order = torch.where(rows == step, largest, torch.where(rows == largest, step, rows))
        # By a product: for gathers of four steps, TensorRT-RTX's builder does not come to an end.
        table = (order.unsqueeze(-1) == rows).to(table.dtype) @ table
        sign = torch.where(largest.squeeze(-1) == step, sign, -sign)
        pivot = table[..., step : step + 1, step : step + 1]
        pivots.append(pivot[..., 0, 0])
        # Of a singular matrix, too, the determinant is a number.
        row = table[..., step : step + 1, :] / torch.where(pivot == 0, 1, pivot)
        others = table - table[..., step : step + 1] * row
        table = torch.where((rows == step).unsqueeze(-1), row, others)
    return table[..., len(rows) :], torch.stack(pivots, -1), sign


def _factors(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what stands for the LU factors, which no function of torch shows, and the swaps."""
    return torch.full_like(a, math.nan), torch.zeros_like(
        a.diagonal(dim1=-2, dim2=-1), dtype=torch.int32
    )


def _info(failed: torch.Tensor) -> torch.Tensor:
    """Return the number of the first step that failed, counted from 1; 0 where none did."""
    if not failed.shape[-1]:
        return torch.zeros(failed.shape[:-1], dtype=torch.int32)
    steps = torch.arange(1, failed.shape[-1] + 1)
    first = torch.where(failed, steps, failed.shape[-1] + 1).amin(-1)
    return torch.where(failed.any(-1), first, 0).to(torch.int32)


@formula("aten::linalg_inv_ex", precision="sensitive")
def inv_ex(A: torch.Tensor, *, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: N803
    """Return the inverse, NaN of a singular matrix, and which pivot is zero."""
    del check_errors
    x, pivots, _ = _eliminated(A, torch.eye(_rows(A), dtype=A.dtype).expand(A.shape))
    info = _info(pivots == 0)
    return torch.where((info != 0)[..., None, None], math.nan, x), info


@formula("aten::_linalg_solve_ex", precision="sensitive")
def solve_ex(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    *,
    left: bool = True,
    check_errors: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Return X of ``A @ X = B`` (right: ``X @ A = B``), NaN of a singular A; and the zero pivot."""
    del check_errors
    vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    b = B.unsqueeze(-1) if vector else B
    a, b = (A, b) if left else (A.mT, b.mT)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    x, pivots, _ = _eliminated(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]))
    failed = (pivots == 0).any(-1)[..., None, None]
    x = torch.where(failed, math.nan, x)
    x = x if left else x.mT
    # For each matrix of A, and not for each that it is broadcast to.
    info = _info(_eliminated(A)[1] == 0)
    return x.squeeze(-1) if vector else x, *_factors(a), info


@formula("aten::_linalg_det", precision="sensitive")
def det(A: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: N803
    """Return the determinant, the product of the pivots."""
    _, pivots, sign = _eliminated(A)
    return pivots.prod(-1) * sign, *_factors(A)


@formula("aten::_linalg_slogdet", precision="sensitive")
def slogdet(A: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: N803
    """Return the determinant's sign, and the logarithm of its absolute value."""
    _, pivots, sign = _eliminated(A)
    return pivots.sign().prod(-1) * sign, pivots.abs().log().sum(-1), *_factors(A)


@formula("aten::linalg_cholesky_ex", precision="sensitive")
def cholesky_ex(
    self: torch.Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Cholesky factor, column by column, and the first minor that is not positive."""
    del check_errors
    a, rows = self.mT if upper else self, torch.arange(_rows(self))
    columns: list[torch.Tensor] = []
    squares = []
    for step in range(len(rows)):
        rest = a[..., step]
        for column in columns:
            rest = rest - column * column[..., step : step + 1]
        squares.append(rest[..., step])
        column = rest / rest[..., step : step + 1].sqrt()
        columns.append(torch.where(rows < step, 0, column))
    if not columns:
        return self.clone(), _info(self.diagonal(dim1=-2, dim2=-1))
    info = _info(~(torch.stack(squares, -1) > 0))
    factor = torch.stack(columns, -2 if upper else -1)
    return torch.where((info != 0)[..., None, None], math.nan, factor), info


@formula("aten::linalg_solve_triangular", precision="sensitive")
def solve_triangular(
    self: torch.Tensor,
    B: torch.Tensor,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> torch.Tensor:
    """Return X of ``self @ X = B`` (right: ``X @ self = B``), row by row."""
    if not left:
        return solve_triangular(self.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    order = range(_rows(self))
    # The other triangle is not read.
    a = self.triu() if upper else self.tril()
    solved: dict[int, torch.Tensor] = {}
    for step in reversed(order) if upper else order:
        rest = B[..., step, :]
        for other, x in solved.items():
            rest = rest - a[..., step, other].unsqueeze(-1) * x
        solved[step] = rest if unitriangular else rest / a[..., step, step].unsqueeze(-1)
    return torch.stack([solved[step] for step in order], -2) if solved else B.clone()


@formula("aten::cholesky_solve", precision="sensitive")
def cholesky_solve(self: torch.Tensor, input2: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Return X of ``A @ X = self``, of whose A ``input2`` is the Cholesky factor."""
    lower = input2.mT if upper else input2
    y = solve_triangular(lower, self, upper=False)
    return solve_triangular(lower.mT, y, upper=True)
