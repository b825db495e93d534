"""Inverses, determinants, systems of equations and factors of small matrices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from t2t.precision import Policy
from tests.cases import OpCase, ids, run_case

FP16 = Policy(torch.float16)
UNIT = torch.eye(4)
BATCH = {"dynamic": [{0: (1, 6)}], "shapes": [(5, 4, 4)]}
PIVOTS = "elimination in another order of operations, of matrices that are not well conditioned"


def regular(x: torch.Tensor) -> torch.Tensor:
    """Make drawn matrices such that LAPACK's rounding, which differs by processor, stays small."""
    return x + 8 * torch.eye(x.shape[-1])


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


def singular(x: torch.Tensor) -> torch.Tensor:
    """Make the first matrix of a batch singular at its third step."""
    return x * torch.tensor([0.0, 1.0])[:, None, None] + torch.diag(torch.tensor([1.0, 2, 0, 0]))


class Camera(torch.nn.Module):
    """Lifts pixels to the world, as detectors from a bird's eye view do."""

    def forward(self, pixels: torch.Tensor, intrinsics: torch.Tensor) -> torch.Tensor:
        cameras = torch.eye(3) * 500 + intrinsics
        return (torch.inverse(cameras)[:, None] @ pixels[..., None]).squeeze(-1)


SMALL = [
    OpCase("inverse", lambda x: torch.inverse(regular(x)), [(2, 4, 4)], **BATCH),
    OpCase("inverse-half", lambda x: torch.inverse(regular(x)), [(2, 4, 4)], policy=FP16),
    OpCase("inverse-swaps", lambda x: (x - 9 * UNIT.flip(0)).inverse(), [(2, 4, 4)]),
    OpCase("inverse-drawn", torch.linalg.inv, [(3, 2, 3, 3)], rtol=1e-3, atol=1e-3, reason=PIVOTS),
    OpCase("inverse-one", torch.linalg.inv, [(5, 1, 1)]),
    OpCase("inverse-16", lambda x: torch.inverse(regular(x) + 9 * torch.eye(16)), [(16, 16)]),
    OpCase("inverse-17", torch.inverse, [(17, 17)], raises="17 rows.*supported: up to 16"),
    OpCase("inverse-empty", torch.inverse, [(2, 0, 0)]),
    OpCase("determinant-empty", torch.det, [(2, 0, 0)]),
    OpCase("solve-empty", torch.linalg.solve, [(0, 0), (0, 3)]),
    OpCase("cholesky-empty", torch.linalg.cholesky, [(0, 0)]),
    OpCase("inverse-dynamic", lambda x: torch.inverse(x @ x.mT), [(3, 4)], dynamic=[{0: (1, 4)}],
           raises="rows: elimination"),
    OpCase("inverse-ex", lambda x: torch.linalg.inv_ex(regular(x)), [(2, 4, 4)]),
    OpCase("inverse-info", lambda x: torch.linalg.inv_ex(singular(x)).info, [(2, 4, 4)]),
    OpCase("power", lambda x: torch.linalg.matrix_power(regular(x / 2), -2), [(2, 4, 4)], **BATCH),
    OpCase("camera", Camera(), [(2, 7, 3), (2, 3, 3)],
           dynamic=[{0: ("b", 1, 6), 1: (1, 99)}, {0: ("b", 1, 6)}],
           shapes=[(6, 50, 3), (6, 3, 3)]),
    OpCase("determinant", torch.linalg.det, [(2, 4, 4)], **BATCH),
    OpCase("determinant-of-one", lambda x: x.det(), [(3, 3)]),
    OpCase("determinant-singular", lambda x: torch.det(singular(x)), [(2, 4, 4)]),
    OpCase("determinant-logarithm", lambda x: torch.logdet(positive(x)), [(2, 4, 4)], **BATCH),
    OpCase("determinant-sign", torch.linalg.slogdet, [(7, 5, 5)]),
    OpCase("solve", lambda a, b: torch.linalg.solve(regular(a), b), [(2, 4, 4), (2, 4, 3)]),
    OpCase("solve-vector", lambda a, b: torch.linalg.solve(regular(a), b), [(4, 4), (4,)]),
    OpCase("solve-vectors", lambda a, b: torch.linalg.solve(regular(a), b), [(2, 4, 4), (2, 4)]),
    OpCase("solve-broadcast", lambda a, b: torch.linalg.solve(regular(a), b), [(4, 4), (2, 4, 3)]),
    OpCase("solve-right", lambda a, b: torch.linalg.solve(regular(a), b, left=False),
           [(2, 4, 4), (2, 3, 4)]),
    OpCase("solve-ex", lambda a, b: torch.linalg.solve_ex(regular(a), b)[1], [(2, 4, 4), (2, 4)]),
    OpCase("cholesky", lambda x: torch.linalg.cholesky(positive(x)), [(2, 4, 4)], **BATCH),
    OpCase("cholesky-upper", lambda x: torch.linalg.cholesky(positive(x), upper=True), [(4, 4)]),
    # Only one triangle is read.
    OpCase("cholesky-triangle", lambda x: torch.linalg.cholesky(positive(x).tril() + x.triu(1)),
           [(2, 4, 4)]),
    OpCase("cholesky-info", lambda x: torch.linalg.cholesky_ex(singular(x @ x.mT) - UNIT).info,
           [(2, 4, 4)]),
    OpCase("cholesky-solve",
           lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(positive(a))),
           [(2, 4, 4), (2, 4, 3)]),
    *[
        OpCase(
            f"triangular-{upper}-{left}-{unit}",
            lambda a, b, options=(upper, left, unit): triangular(a, b, *options),
            [(2, 4, 4), (2, 4, 4)],
        )
        for upper in (True, False)
        for left in (True, False)
        for unit in (True, False)
    ],
]  # fmt: skip


def triangular(a: torch.Tensor, b: torch.Tensor, upper: bool, left: bool, unit: bool) -> Any:
    # What stands in the other triangle is not read.
    unread = torch.full((4, 4), math.nan)
    a = regular(a * 0.5)
    a = a.triu() + unread.tril(-1) if upper else a.tril() + unread.triu(1)
    return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)


@pytest.mark.parametrize("case", ids(SMALL))
def test_small_matrices(case: OpCase) -> None:
    run_case(case)
