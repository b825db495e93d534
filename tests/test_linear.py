"""Linear layers and products of matrices and vectors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import Autocast, OpCase, ids, integers, run_case

FP16 = Policy(torch.float16)
HALF = {"rtol": 2e-2, "atol": 2e-2, "reason": "computed in half precision, compared with float32"}


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) / 4


W, BIAS, ROW = weight(5, 4), weight(5), weight(4)
TENSOR, INTEGERS = weight(5, 3, 4), torch.arange(20).reshape(5, 4)
RIGHT, LEFT = weight(4, 6), weight(6, 2)


CASES = [
    OpCase("linear", lambda x: F.linear(x, W), [(3, 4)], layers=2),
    OpCase("linear-bias", lambda x: F.linear(x, W, BIAS), [(3, 4)], layers=4),
    OpCase("linear-bias-of-zeros", lambda x: F.linear(x, W, torch.zeros(5)), [(3, 4)], layers=2),
    OpCase("linear-module", nn.Linear(4, 6), [(2, 3, 4)]),
    OpCase("linear-4d", nn.Linear(4, 6), [(2, 3, 5, 4)]),
    OpCase("linear-1d", lambda x: F.linear(x, W, BIAS), [(4,)]),
    OpCase("linear-weight-1d", lambda x: F.linear(x, ROW), [(3, 4)]),
    OpCase("linear-both-1d", lambda x: F.linear(x, ROW), [(4,)]),
    OpCase("linear-traced", lambda x, w, b: F.linear(x, w, b), [(3, 4), (5, 4), (5,)]),
    OpCase("linear-traced-weight", lambda w: F.linear(RIGHT.T, w, BIAS), [(5, 4)]),
    OpCase(
        "linear-dynamic", nn.Linear(4, 6), [(2, 3, 4)], dynamic=[{0: (1, 5), 1: (1, 9)}],
        shapes=[(4, 7, 4)], layers=4,
    ),
    OpCase("linear-fp16", nn.Linear(4, 6), [(2, 3, 4)], policy=FP16, **HALF),
    OpCase(
        "linear-bf16", nn.Linear(4, 6).bfloat16(),
        [lambda g: torch.randn((2, 4), generator=g).bfloat16()],
    ),
    OpCase("linear-autocast", Autocast(nn.Linear(4, 6)), [(3, 4)]),
    OpCase("conv-autocast", Autocast(nn.Conv2d(3, 4, 2)), [(1, 3, 4, 5)]),
    OpCase("pool-autocast", Autocast(nn.AvgPool2d(2)), [(1, 3, 4, 5)]),
    OpCase("linear-aten", lambda x: torch.ops.aten.linear(x, W, BIAS), [(3, 4)]),
    OpCase("matmul", torch.matmul, [(3, 4), (4, 2)], layers=1),
    OpCase("matmul-constant", lambda x: x @ RIGHT, [(3, 4)], layers=2),
    OpCase("matmul-constant-left", lambda x: LEFT.T @ x, [(6, 4)], layers=2),
    OpCase("matmul-method", lambda x, y: x.matmul(y), [(3, 4), (4, 2)], layers=1),
    OpCase("matmul-linalg", torch.linalg.matmul, [(2, 3, 4), (2, 4, 2)], layers=1),
    OpCase("matmul-broadcast", lambda x, y: x @ y, [(2, 1, 3, 4), (5, 4, 2)], layers=2),
    OpCase("matmul-captured", torch.matmul, [(2, 1, 3, 4), (5, 4, 2)]),
    OpCase("matmul-3d-2d", lambda x, y: x @ y, [(2, 3, 4), (4, 2)], layers=2),
    OpCase("matmul-2d-3d", lambda x, y: x @ y, [(3, 4), (2, 4, 2)]),
    OpCase("matmul-1d-1d", lambda x, y: x @ y, [(4,), (4,)]),
    OpCase("matmul-1d-2d", lambda x, y: x @ y, [(4,), (4, 2)]),
    OpCase("matmul-2d-1d", lambda x, y: x @ y, [(3, 4), (4,)]),
    OpCase("matmul-1d-4d", lambda x, y: x @ y, [(4,), (2, 3, 4, 5)]),
    OpCase("matmul-4d-1d", lambda x, y: x @ y, [(2, 3, 5, 4), (4,)]),
    OpCase(
        "matmul-4d-1d-dynamic", lambda x, y: x @ y, [(2, 3, 5, 4), (4,)],
        dynamic=[{0: (1, 4), 1: (1, 4), 2: (1, 6)}, {}], shapes=[(3, 2, 6, 4), (4,)],
    ),
    OpCase(
        "matmul-dynamic", lambda x, y: x @ y, [(2, 3, 4), (2, 4, 5)],
        dynamic=[{0: ("n", 1, 4), 1: (1, 5)}, {0: ("n", 1, 4), 2: (1, 9)}],
        shapes=[(3, 5, 4), (3, 4, 6)], layers=1,
    ),
    OpCase(
        "matmul-dynamic-inner", lambda x: x @ x.transpose(1, 2), [(2, 3, 4)],
        dynamic=[{0: (1, 4), 1: (1, 5), 2: (1, 6)}], shapes=[(3, 5, 2)],
    ),
    OpCase(
        "matmul-int", lambda x, y: x @ y, [integers(2, 3, 4, low=-9), integers(4, 5, low=-9)]
    ),
    OpCase("linear-int", lambda x: F.linear(x, INTEGERS), [integers(2, 3, 4, low=-9)]),
    OpCase("matmul-int-vector", lambda x: x @ x, [integers(4, low=-9)]),
    OpCase("matmul-fp16", torch.matmul, [(3, 4), (4, 2)], policy=FP16, **HALF),
    OpCase("mm", torch.mm, [(3, 4), (4, 2)], layers=1),
    OpCase("bmm", torch.bmm, [(2, 3, 4), (2, 4, 5)], layers=1),
    OpCase("mv", torch.mv, [(3, 4), (4,)]),
    OpCase("dot", torch.dot, [(4,), (4,)]),
    OpCase("vdot", torch.vdot, [(4,), (4,)]),
    OpCase("inner", torch.inner, [(3, 4), (2, 4)]),
    OpCase("outer", torch.outer, [(3,), (4,)]),
    OpCase("tensordot", lambda x, y: torch.tensordot(x, y, 2), [(2, 3, 4), (3, 4, 5)]),
    OpCase("kron", torch.kron, [(2, 3), (2, 2)]),
    OpCase("chain", lambda x, y: torch.linalg.multi_dot([x, y, x]), [(3, 4), (4, 3)]),
    OpCase("addmm", torch.addmm, [(2,), (3, 4), (4, 2)], layers=3),
    OpCase("addmm-scaled", torch.addmm, [(3, 2), (3, 4), (4, 2)], {"beta": 0.5, "alpha": -2}),
    OpCase(
        "addmm-without", torch.addmm, [torch.full((2,), torch.nan), (3, 4), (4, 2)], {"beta": 0}
    ),
    OpCase("addmm-method", lambda x: x.addmm(W, RIGHT), [(5, 6)]),
    OpCase("addmm-in-place", lambda x: x.clone().addmm_(W, RIGHT, alpha=2), [(5, 6)]),
    OpCase("baddbmm", torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    OpCase(
        "baddbmm-scaled", torch.baddbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], {"beta": 2, "alpha": 0.5}
    ),
    OpCase("addbmm", torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
    OpCase(
        "addbmm-scaled", torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], {"beta": 2, "alpha": 0.5}
    ),
    OpCase("addmv", torch.addmv, [(3,), (3, 4), (4,)]),
    # torch cuts the factors of integers to integers.
    OpCase(
        "addmv-int", torch.addmv, [integers(3), integers(3, 4), integers(4)],
        {"beta": 0.2, "alpha": 1.6},
    ),
    OpCase(
        "baddbmm-int", torch.baddbmm, [integers(2, 3, 5), integers(2, 3, 4), integers(2, 4, 5)],
        {"beta": 2.7, "alpha": 0.6},
    ),
    OpCase(
        "addbmm-int", torch.addbmm, [integers(3, 5), integers(2, 3, 4), integers(2, 4, 5)],
        {"beta": 0.2, "alpha": 2.5},
    ),
    OpCase("addmv-scaled", torch.addmv, [(3,), (3, 4), (4,)], {"beta": 2, "alpha": 0.5}),
    OpCase("addr", torch.addr, [(3, 4), (3,), (4,)], {"beta": 2, "alpha": 0.5}),
    OpCase(
        "bilinear-int", lambda x, y: F.bilinear(x, y, torch.arange(60).reshape(5, 3, 4)),
        [torch.tensor([[1, -2, 3]]), torch.tensor([[1, 0, -2, 5]])],
    ),
    OpCase("bilinear", nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)]),
    OpCase("bilinear-3d", lambda x, y: F.bilinear(x, y, TENSOR), [(2, 6, 3), (2, 6, 4)]),
    OpCase("bilinear-traced", lambda x, y, w: F.bilinear(x, y, w), [(2, 3), (2, 4), (5, 3, 4)]),
    OpCase(
        "bilinear-dynamic", nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)],
        dynamic=[{0: ("n", 1, 4)}, {0: ("n", 1, 4)}], shapes=[(3, 3), (3, 4)],
    ),
    OpCase("einsum-product", lambda x, y: torch.einsum("ij,jk->ik", x, y), [(3, 4), (4, 2)]),
    OpCase("einsum-list", lambda x, y: torch.einsum("ij,jk", [x, y]), [(3, 4), (4, 2)]),
    OpCase(
        "einsum-attention", lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        [(2, 3, 4, 5), (2, 3, 6, 5)], layers=1,
    ),
    OpCase("einsum-three", lambda x, y: torch.einsum("ij,jk,kl->il", x, y, x), [(3, 4), (4, 3)]),
    OpCase("einsum-upper", lambda x, y: torch.einsum("Bc,Bd->Bcd", x, y), [(3, 4), (3, 2)]),
    OpCase("einsum-trace", lambda x: torch.einsum("ii", x), [(4, 4)]),
    OpCase("einsum-diagonal", lambda x: torch.einsum("bii->bi", x), [(2, 4, 4)]),
    OpCase("einsum-sum", lambda x: torch.einsum("ij->j", x), [(3, 4)]),
    OpCase("einsum-transpose", lambda x: torch.einsum("ijk->kji", x), [(2, 3, 4)]),
    OpCase("einsum-ellipsis", lambda x: torch.einsum("...ij,jk->...ik", x, RIGHT), [(2, 3, 4)]),
    OpCase("einsum-broadcast", lambda x, y: torch.einsum("bi,bi->b", x, y), [(3, 4), (1, 4)]),
    OpCase("einsum-constant", lambda x: torch.einsum("bi,oi->bo", x, W), [(3, 4)]),
    OpCase(
        "einsum-sublist", lambda x, y: torch.einsum(x, [0, 1], y, [1, 2], [2, 0]),
        [(3, 4), (4, 2)],
    ),
    OpCase(
        "einsum-int", lambda x, y: torch.einsum("ij,jk->ik", x, y),
        [integers(3, 4, low=-9), integers(4, 2, low=-9)],
    ),
    OpCase(
        "einsum-many", lambda x, y: torch.einsum("abcd,cbed->bea", x, y),
        [(2, 3, 4, 5), (4, 3, 2, 5)],
    ),
    OpCase(
        "einsum-summed", lambda x, y: torch.einsum("abc,cd->ad", x, y), [(2, 3, 4), (4, 5)]
    ),
    OpCase("einsum-space", lambda x, y: torch.einsum("a b, c b -> c a", x, y), [(2, 3), (4, 3)]),
    OpCase("einsum-number", lambda x, y: torch.einsum("ab,ab->", x, y), [(2, 3), (2, 3)]),
    OpCase(
        "einsum-implicit", lambda x, y: torch.einsum("zb,ab", x, y), [(2, 3), (4, 3)], layers=2
    ),
    OpCase(
        "einsum-many-dynamic", lambda x, y: torch.einsum("abcd,cbed->bea", x, y),
        [(2, 3, 4, 5), (4, 3, 2, 5)],
        dynamic=[{0: (1, 4), 2: ("c", 1, 5)}, {0: ("c", 1, 5), 2: (1, 4)}],
        shapes=[(3, 3, 2, 5), (2, 3, 4, 5)],
    ),
    OpCase(
        "einsum-dynamic", lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        [(2, 3, 4, 5), (2, 3, 6, 5)],
        dynamic=[{0: ("b", 1, 4), 2: (1, 9)}, {0: ("b", 1, 4), 2: (1, 9)}],
        shapes=[(3, 3, 5, 5), (3, 3, 2, 5)],
    ),
    OpCase(
        "einsum-fp16", lambda x, y: torch.einsum("ij,jk->ik", x, y), [(3, 4), (4, 2)],
        policy=FP16, **HALF,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_linear(case: OpCase) -> None:
    run_case(case)
