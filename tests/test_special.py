"""Quantiles, and rare operators that are converted by formulas of their own."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.cases import TORCH, OpCase, ids, integers, run_case, uniform

NAN, INF = math.nan, math.inf
HOLES = torch.tensor([[1, NAN, 3, 0, 5], [4, 2, -1, INF, 7], [1, 2, 3, 4, 5], [NAN, NAN, 2, 9, 1]])
EMPTY_ROW = torch.tensor([[NAN, NAN, NAN], [1, NAN, 2]])
Q = torch.tensor([0.3, 0.7, 0.5])
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")

QUANTILES = [
    *[
        OpCase(
            f"quantile-{kind}", lambda x, kind=kind: x.quantile(Q, dim=1, interpolation=kind),
            [(3, 11)],
        )
        for kind in INTERPOLATIONS
    ],
    *[
        OpCase(
            f"nanquantile-{kind}",
            lambda x, kind=kind: torch.nanquantile(x, Q, dim=1, interpolation=kind), [HOLES],
        )
        for kind in INTERPOLATIONS
    ],
    OpCase("quantile-all", lambda x: torch.quantile(x, 0.4), [(3, 11)]),
    OpCase("quantile-nan", lambda x: torch.quantile(x, 0.4, 1), [HOLES]),
    OpCase("quantile-keepdim", lambda x: x.quantile(0.4, 0, True), [(3, 4, 5)]),
    OpCase("quantile-ends", lambda x: (x.quantile(1, 0), x.quantile(0, 0)), [(3, 4)]),
    OpCase(
        "quantile-beyond", lambda x: x.quantile(torch.tensor([0.5, 1.5]), 1), [(3, 4)],
        raises="between 0 and 1",
    ),
    OpCase("quantile-scalar", lambda x: x.quantile(0.4), [()]),
    OpCase("nanquantile-method", lambda x: x.nanquantile(0.4, 1, keepdim=True), [EMPTY_ROW]),
    OpCase(
        "quantile-dynamic", lambda x: x.quantile(0.4, dim=-1), [(3, 4, 5)], dynamic=[{0: (1, 8)}],
        shapes=[(5, 4, 5)],
    ),
    OpCase("quantile-long", lambda x: x.quantile(0.4), [(2, 2000)], raises="at most 3840"),
    OpCase(
        "quantile-traced", lambda x: torch.quantile(x, x[0].clamp(0, 1)), [(3,)], raises="constants"
    ),
    OpCase("quantile-no-out", lambda x: torch.quantile(x, 0.4, out=None), [(3,)]),
    # It is computed by the operators of PyTorch's own, which since then compute in double.
    OpCase(
        "quantile-out", lambda x: torch.quantile(x, 0.4, out=torch.zeros(())), [(3,)],
        raises="float64" if TORCH >= (2, 14) else None,
    ),
    OpCase("nanmedian", torch.nanmedian, [HOLES]),
    OpCase("nanmedian-dim", lambda x: torch.nanmedian(x, 1), [HOLES]),
    OpCase("nanmedian-empty", lambda x: x.nanmedian(1, keepdim=True).values, [EMPTY_ROW]),
    OpCase("nanmedian-int", lambda x: x.nanmedian(0), [torch.tensor([[3, 1], [2, 8], [1, 7]])]),
    OpCase("nanmedian-scalar", torch.nanmedian, [()]),
]  # fmt: skip

POINTS = torch.tensor([-0.99999, -0.5, -1e-3, 0, 1e-6, 0.3, 0.9999999, 1, -1, 2, NAN])
FALLING = torch.tensor([-INF, -INF, 1, 2, -1e4, 3])

FORMULAS = [
    OpCase("angle", torch.angle, [torch.tensor([1, -2, 0.0, -0.0, NAN, -INF])]),
    OpCase("angle-int", torch.angle, [torch.tensor([1, -2, 0])]),
    OpCase("erfinv", torch.erfinv, [POINTS]),
    OpCase("erfinv-in-place", lambda x: (x * 1).erfinv_(), [POINTS]),
    OpCase("erfinv-int", torch.special.erfinv, [torch.tensor([1, -1, 0])]),
    OpCase("logit-crossed", lambda x: x.logit(0.6), [uniform(5, low=0, high=1)]),
    OpCase("masked-scatter", lambda x, s: x.masked_scatter(x > 0, s), [(3, 5), (15,)]),
    OpCase("masked-scatter-row", lambda x, s: x.masked_scatter(x[:1] > 0, s), [(3, 5), (4, 5)]),
    OpCase("logcumsumexp", lambda x: (x * 30).logcumsumexp(1), [(3, 7)]),
    OpCase("logcumsumexp-falling", lambda x: torch.logcumsumexp(x, 0), [FALLING]),
    OpCase("logcumsumexp-long", lambda x: x.logcumsumexp(0), [(5000,)]),
    OpCase("logcumsumexp-dynamic", lambda x: (x * 30).logcumsumexp(1), [(2, 5)],
           dynamic=[{0: (1, 4), 1: (2, 9)}], shapes=[(3, 7)]),
    OpCase("bilinear", nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)]),
    OpCase("bilinear-vectors", lambda x, y: F.bilinear(x, y, torch.ones(5, 3, 4)), [(3,), (4,)]),
    OpCase("bilinear-batches", nn.Bilinear(3, 4, 5, bias=False), [(6, 2, 3), (6, 2, 4)]),
    OpCase(
        "trilinear",
        lambda x, y: torch._trilinear(
            x, torch.ones(5, 3, 4), y, [1, 3], [0], [1, 2], [2, 3]
        ),
        [(2, 3), (2, 4)],
    ),
    OpCase("renorm", lambda x: x.renorm(2, 0, 1.0), [(3, 7)]),
    OpCase("renorm-half", lambda x: x.renorm(1, -1, 1.0), [uniform(3, 7, dtype=torch.float16)]),
    *[
        OpCase(
            f"index-reduce-{kind}-{own}",
            lambda x, i, y, kind=kind, own=own: x.index_reduce(1, i, y, kind, include_self=own),
            [(3, 5), integers(4, high=5), (3, 4)],
        )
        for kind in ("mean", "prod", "amax", "amin")
        for own in (True, False)
    ],
]  # fmt: skip


WORDS, OFFSETS = integers(9, high=6), torch.tensor([0, 2, 2, 7])
TABLE = torch.randn(6, 3, generator=torch.Generator().manual_seed(5))

BAGS = [
    *[
        row
        for mode in ("sum", "mean", "max")
        for row in (
            OpCase(
                f"bag-{mode}", lambda i, m=mode: F.embedding_bag(i, TABLE, OFFSETS, mode=m), [WORDS]
            ),
            OpCase(
                f"bag-{mode}-padding",
                lambda i, m=mode: F.embedding_bag(i, TABLE, OFFSETS, mode=m, padding_idx=2),
                [WORDS],
            ),
            OpCase(f"bag-{mode}-module", nn.EmbeddingBag(6, 3, mode=mode), [WORDS, OFFSETS]),
            OpCase(
                f"bag-{mode}-rows", lambda i, m=mode: F.embedding_bag(i, TABLE, mode=m),
                [integers(4, 3, high=6)],
            ),
            OpCase(
                f"bag-{mode}-rows-dynamic",
                lambda x, m=mode: F.embedding_bag((x * 2).long().clamp(0, 5), TABLE, mode=m),
                [(4, 3)], dynamic=[{0: (1, 9000), 1: (1, 90)}], shapes=[(7, 5)],
            ),
            OpCase(
                f"bag-{mode}-rows-padding",
                lambda i, m=mode: F.embedding_bag(i, TABLE, mode=m, padding_idx=-2),
                [torch.tensor([[4, 4], [0, 4], [5, 1]])], dynamic=[{0: (1, 9000)}],
            ),
        )
    ],
    OpCase(
        "bag-rows-weighted",
        lambda x: F.embedding_bag(
            x.long().clamp(0, 5), TABLE, mode="sum", per_sample_weights=x, padding_idx=1
        ),
        [(4, 3)], dynamic=[{0: (1, 9)}], shapes=[(7, 3)],
    ),
    OpCase(
        "bag-last-offset",
        lambda i, o: F.embedding_bag(i, TABLE, o, mode="mean", include_last_offset=True),
        [WORDS, torch.tensor([0, 2, 9])],
    ),
    OpCase(
        "bag-weighted",
        lambda i, w: F.embedding_bag(i, TABLE, OFFSETS, mode="sum", per_sample_weights=w),
        [WORDS, (9,)],
    ),
    OpCase("bag-one", lambda i: F.embedding_bag(i, TABLE, OFFSETS[:1]), [WORDS]),
    OpCase("bag-table", F.embedding_bag, [integers(4, 3, high=6), (6, 3)]),
    OpCase(
        "bag-operator", lambda i: torch.ops.aten._embedding_bag(TABLE, i, OFFSETS)[0], [WORDS]
    ),
    OpCase(
        "bag-sizes", lambda i: torch.embedding_bag(TABLE, i, OFFSETS)[2], [WORDS],
        raises="must not be used",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(BAGS))
def test_bags(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(QUANTILES))
def test_quantiles(case: OpCase) -> None:
    run_case(case)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("case", ids(FORMULAS))
def test_formulas(case: OpCase) -> None:
    run_case(case)
