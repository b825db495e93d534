"""Values of whole dimensions: sums, extremes, statistics, order and running values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

FP16 = Policy(torch.float16)
HALF = "half has 11 bits"
INF, NAN = torch.inf, torch.nan
INTS = integers(2, 3, 4, low=-9, high=10)
FLAGS = integers(2, 3, 4, high=2, dtype=torch.bool)
MANY_EQUAL = integers(5, 6, high=3)
DYNAMIC: dict[str, Any] = {"dynamic": [{0: (1, 8), 1: (1, 9)}], "shapes": [(5, 7, 4)]}


def reduced(name: str, *, several: bool = True, dtypes: bool = True) -> list[OpCase]:
    """Give rows for one reduction: every form of dim, keepdim, dtype, rank and input type."""
    function = getattr(torch, name)
    rows = [
        OpCase(name, function, [(2, 3, 4)]),
        OpCase(f"{name}-method", lambda x: getattr(x, name)(1), [(2, 3, 4)]),
        OpCase(f"{name}-dim", function, [(2, 3, 4)], {"dim": 1}, layers=1),
        OpCase(f"{name}-dim-negative", function, [(2, 3, 4)], {"dim": -3}),
        OpCase(f"{name}-keepdim", function, [(2, 3, 4)], {"dim": -1, "keepdim": True}),
        OpCase(f"{name}-0d", function, [()]),
        OpCase(f"{name}-0d-dim", function, [()], {"dim": -1}),
        OpCase(f"{name}-1d", function, [(5,)], {"dim": 0}),
        OpCase(f"{name}-dynamic", function, [(2, 3, 4)], {"dim": 1}, **DYNAMIC),
        OpCase(f"{name}-dynamic-all", function, [(2, 3, 4)], **DYNAMIC),
        OpCase(f"{name}-fp16", lambda x: function(x.mul(0.5), 1),
               [uniform(2, 3, 4, dtype=torch.half)], policy=FP16, rtol=2e-2, atol=2e-2,
               reason=HALF),
    ]  # fmt: skip
    if several:
        rows += [
            OpCase(f"{name}-dims", function, [(2, 3, 4)], {"dim": (0, -1)}),
            OpCase(f"{name}-dims-list", function, [(2, 3, 4)], {"dim": [1, 2], "keepdim": True}),
            OpCase(f"{name}-dims-empty", function, [(2, 3, 4)], {"dim": ()}),
        ]
    if dtypes:
        rows += [
            OpCase(f"{name}-dtype", function, [INTS], {"dtype": torch.float32}),
            OpCase(f"{name}-dtype-dim", function, [FLAGS], {"dim": 1, "dtype": torch.float32}),
        ]
    return rows


MATRIX: dict[str, Any] = {"dynamic": [{0: (1, 4), 1: (2, 9)}], "shapes": [(3, 7)]}


def with_nan(generator: torch.Generator) -> torch.Tensor:
    x = torch.randint(-3, 3, (4, 6), generator=generator).float()
    return torch.where(torch.rand(4, 6, generator=generator) < 0.2, torch.nan, x)


SUMS = [
    *reduced("sum"),
    OpCase("sum-none", torch.sum, [(2, 3)], {"dim": None, "keepdim": True}),
    OpCase("sum-int", torch.sum, [INTS], {"dim": 0}, layers=1),
    OpCase("sum-int32", lambda x: x.int().sum(), [INTS]),
    OpCase("sum-bool", torch.sum, [FLAGS], {"dim": 1}),
    OpCase("sum-byte", lambda x: x.sum(1), [integers(2, 9, high=256, dtype=torch.uint8)]),
    OpCase("sum-byte-dtype", lambda x: x.sum(1, dtype=torch.uint8),
           [integers(2, 9, high=256, dtype=torch.uint8)]),
    OpCase("sum-half", torch.sum, [uniform(2, 300, dtype=torch.half)], {"dim": 1}),
    OpCase("nansum", torch.nansum, [torch.tensor([[1.0, NAN], [NAN, NAN]])], {"dim": 1}),
    *reduced("mean", dtypes=False),
    OpCase("mean-dtype", torch.mean, [INTS], {"dtype": torch.float32}),
    OpCase("mean-pool", lambda x: x.mean((2, 3)), [(1, 3, 4, 4)], layers=1),
    *reduced("prod", several=False),
    OpCase("prod-int", torch.prod, [INTS], {"dim": 0}),
    OpCase("prod-bool", torch.prod, [FLAGS], {"dim": 1}),
    OpCase("count-nonzero", torch.count_nonzero, [INTS]),
    OpCase("count-nonzero-dim", torch.count_nonzero, [INTS], {"dim": 1}),
    OpCase("count-nonzero-dims", lambda x: torch.count_nonzero(x > 0, (0, 2)), [(2, 3, 4)]),
]  # fmt: skip

EXTREMES = [
    *reduced("amax", dtypes=False),
    *reduced("amin", dtypes=False),
    OpCase("amax-int", torch.amax, [INTS], {"dim": 1}, layers=1),
    OpCase("amax-bool", torch.amax, [FLAGS], {"dim": 1}),
    OpCase("amin-byte", lambda x: x.amin(1), [integers(2, 9, high=256, dtype=torch.uint8)]),
    OpCase("max", torch.max, [(2, 3, 4)], layers=1),
    OpCase("max-0d", torch.max, [()]),
    OpCase("min-int", torch.min, [INTS]),
    OpCase("max-bool", torch.max, [FLAGS]),
    OpCase("aminmax", lambda x: tuple(torch.aminmax(x)), [(2, 3)]),
    OpCase("aminmax-dim", lambda x: tuple(torch.aminmax(x, dim=1, keepdim=True)), [(2, 3)]),
    OpCase("any", torch.any, [FLAGS]),
    OpCase("any-dim", lambda x: (x > 1).any(1), [(2, 3, 4)]),
    OpCase("any-dims", torch.any, [INTS], {"dim": (0, 2)}),
    OpCase("any-keepdim", torch.any, [FLAGS], {"dim": 1, "keepdim": True}),
    OpCase("any-0d", lambda x: torch.any(x > 0), [()]),
    OpCase("any-float", torch.any, [torch.tensor([[0.0, 0.5], [0.0, -0.0], [NAN, 0.0]])],
           {"dim": 1}),
    OpCase("all", torch.all, [FLAGS]),
    OpCase("all-dim", lambda x: (x > -1).all(-1), [(2, 3, 4)]),
    OpCase("all-dims", torch.all, [INTS], {"dim": (0, 2), "keepdim": True}),
    OpCase("all-byte", torch.all, [integers(2, 2, high=2, dtype=torch.uint8)], {"dim": 0}),
]  # fmt: skip

STATISTICS = [
    OpCase("var", torch.var, [(2, 3, 4)]),
    OpCase("var-dim", torch.var, [(2, 3, 4)], {"dim": 1}),
    OpCase("var-dims", torch.var, [(2, 3, 4)], {"dim": (0, 2), "keepdim": True}),
    OpCase("var-biased", torch.var, [(2, 3, 4)], {"dim": 1, "unbiased": False}),
    OpCase("var-correction", torch.var, [(2, 3, 4)], {"dim": 1, "correction": 2}),
    OpCase("var-correction-0", torch.var, [(2, 3, 4)], {"correction": 0}),
    OpCase("var-dynamic", torch.var, [(2, 3, 4)], {"dim": (0, 1)}, **DYNAMIC),
    OpCase("var-correction-dynamic", torch.var, [(2, 3, 4)], {"dim": 1, "correction": 0.5},
           dynamic=[{1: (1, 9)}], shapes=[(2, 1, 4)]),
    OpCase("std", torch.std, [(2, 3, 4)], {"dim": 1, "keepdim": True}),
    OpCase("std-biased", lambda x: x.std(-1, unbiased=False), [(2, 3, 4)]),
    OpCase("std-fp16", lambda x: x.mul(2).std(1), [uniform(2, 30, dtype=torch.half)], policy=FP16,
           rtol=2e-2, atol=2e-2, reason=HALF),
    OpCase("var-mean", torch.var_mean, [(2, 3, 4)], {"dim": 1}),
    OpCase("var-mean-keepdim", torch.var_mean, [(2, 3, 4)], {"dim": (1, 2), "keepdim": True}),
    OpCase("std-mean", torch.std_mean, [(2, 3, 4)], {"dim": 1, "correction": 0}),
    OpCase("norm", torch.linalg.vector_norm, [(2, 3, 4)], layers=3),
    *(
        OpCase(f"norm-{ord}", torch.linalg.vector_norm, [(2, 3, 4)], {"ord": ord, "dim": 1})
        for ord in (0, 1, 2, 3, 0.5, -1, -2, 2.5, 85, INF, -INF)
    ),
    OpCase("norm-dims", torch.linalg.vector_norm, [(2, 3, 4)], {"dim": (0, 2), "keepdim": True}),
    OpCase("norm-dtype", torch.linalg.vector_norm, [uniform(2, 3, dtype=torch.half)],
           {"dim": 1, "dtype": torch.float32}),
    OpCase("norm-0d", torch.linalg.vector_norm, [()]),
    OpCase("norm-torch", torch.norm, [(2, 3, 4)]),
    OpCase("norm-torch-p", torch.norm, [(2, 3, 4)], {"p": 1, "dim": 1}),
    OpCase("norm-torch-fro", torch.norm, [(2, 3, 4)], {"p": "fro", "dim": (1, 2)}),
    OpCase("norm-method", lambda x: x.norm(dim=-1, keepdim=True), [(2, 3, 4)], layers=3),
    OpCase("norm-method-inf", lambda x: x.norm(INF), [(2, 3, 4)]),
    OpCase("matrix-norm", torch.linalg.matrix_norm, [(2, 3, 4)]),
    OpCase("norm-dynamic", torch.linalg.vector_norm, [(2, 3, 4)], {"dim": 1}, **DYNAMIC),
    OpCase("norm-fp16", lambda x: x.mul(99).norm(dim=1), [uniform(2, 30, dtype=torch.half)],
           policy=FP16, rtol=2e-2, reason=HALF),
    OpCase("logsumexp", torch.logsumexp, [uniform(2, 3, low=-200.0, high=200.0)], {"dim": 1}),
    OpCase("logsumexp-dims", torch.logsumexp, [(2, 3, 4)], {"dim": (0, -1), "keepdim": True}),
    OpCase("logsumexp-scalar", torch.logsumexp, [()], {"dim": (0,), "keepdim": True}),
    OpCase("logsumexp-scalar-method", lambda x: x.logsumexp(-1), [()]),
    OpCase("logsumexp-of-nothing", torch.logsumexp, [(3, 0)], {"dim": 1}),
    OpCase("logsumexp-without-elements", torch.logsumexp, [(3, 0)], {"dim": 0}),
    OpCase("logsumexp-infinite", torch.logsumexp,
           [torch.tensor([[-INF, -INF], [INF, 1.0], [-INF, 2.0]])], {"dim": 1}),
    OpCase("logsumexp-dynamic", torch.logsumexp, [(2, 3, 4)], {"dim": 1}, **DYNAMIC),
    OpCase("cdist", torch.cdist, [(2, 3, 4), (2, 5, 4)]),
    OpCase("cdist-1", torch.cdist, [(3, 4), (5, 4)], {"p": 1.0}),
    OpCase("cdist-many", torch.cdist, [(30, 4), (27, 4)]),
    OpCase("cdist-dynamic", torch.cdist, [(3, 4), (5, 4)], dynamic=[{0: (1, 8)}, {0: (1, 9)}],
           shapes=[(6, 4), (2, 4)]),
    OpCase("normalize-85", torch.nn.functional.normalize, [(9, 2)], {"p": 85}),
    OpCase("dist", torch.dist, [(2, 3), (2, 3)]),
]  # fmt: skip

ORDER = [
    OpCase("argmax", torch.argmax, [(2, 3, 4)]),
    OpCase("argmax-keepdim", torch.argmax, [(2, 3)], {"keepdim": True}),
    OpCase("argmax-dim", torch.argmax, [(2, 3, 4)], {"dim": 1}),
    OpCase("argmax-dim-keepdim", torch.argmax, [(2, 3, 4)], {"dim": -1, "keepdim": True}),
    OpCase("argmax-equal", torch.argmax, [MANY_EQUAL], {"dim": 1}),
    OpCase("argmax-nan", torch.argmax, [torch.tensor([[1, INF, NAN], [NAN, NAN, 1]])], {"dim": 1}),
    OpCase("max-dim-nan", lambda x: tuple(x.max(1)), [torch.tensor([[1, INF, NAN], [NAN, 2, 1]])]),
    OpCase("argmax-equal-all", torch.argmax, [MANY_EQUAL]),
    OpCase("argmax-1d", torch.argmax, [(5,)], {"dim": 0}),
    OpCase("argmax-0d", torch.argmax, [()]),
    OpCase("argmax-byte", torch.argmax, [integers(5, 6, high=3, dtype=torch.uint8)], {"dim": 1}),
    OpCase("argmax-infinite", torch.argmax, [torch.full((2, 3), -INF)], {"dim": 1}),
    OpCase("argmax-dynamic", torch.argmax, [(2, 3, 4)], {"dim": 1}, **DYNAMIC),
    OpCase("argmax-dynamic-all", torch.argmax, [(2, 3, 4)], **DYNAMIC),
    OpCase("argmax-fp16", lambda x: x.mul(2).argmax(1), [uniform(3, 9, dtype=torch.half)],
           policy=FP16),
    OpCase("argmin", torch.argmin, [MANY_EQUAL], {"dim": 0}),
    OpCase("argmin-all", lambda x: x.argmin(), [(2, 3)]),
    OpCase("max-dim", lambda x: tuple(torch.max(x, 1)), [MANY_EQUAL]),
    OpCase("max-dim-values", lambda x: x.max(1, keepdim=True)[0], [(2, 3, 4)], layers=1),
    OpCase("max-dim-places", lambda x: x.max(-1)[1], [(2, 3, 4)], layers=9),
    OpCase("max-dim-bool", lambda x: tuple(x.max(1)), [FLAGS]),
    OpCase("max-dim-layers", lambda x: tuple(x.max(1, keepdim=True)), [(2, 3)], layers=9),
    OpCase("max-dim-byte", lambda x: tuple(x.max(1)), [integers(5, 9, high=9, dtype=torch.uint8)]),
    OpCase("max-dim-0d", lambda x: tuple(x.max(0)), [()]),
    OpCase("max-dim-dynamic", lambda x: tuple(x.max(1)), [(2, 3, 4)], **DYNAMIC),
    OpCase("min-dim", lambda x: tuple(torch.min(x, -1, keepdim=True)), [(2, 3, 4)]),
    OpCase("topk", lambda x: tuple(torch.topk(x, 2)), [(3, 5)]),
    OpCase("topk-smallest", lambda x: tuple(x.topk(3, 0, largest=False)), [(5, 3)]),
    OpCase("topk-unsorted", lambda x: x.topk(2, sorted=False).values.sum(1), [(3, 5)]),
    OpCase("topk-1d", lambda x: tuple(x.topk(2)), [(5,)]),
    OpCase("topk-0d", lambda x: tuple(x.topk(1)), [()]),
    OpCase("topk-int", lambda x: x.topk(2)[0], [INTS]),
    OpCase("topk-rank-6", lambda x: tuple(x.topk(2, 1)), [(2, 3, 2, 1, 2, 2)]),
    OpCase("topk-dynamic", lambda x: tuple(x.topk(2, 2)), [(2, 3, 4)], **DYNAMIC),
    OpCase("topk-of-dynamic", lambda x: tuple(x.topk(2, 1)), [(2, 3, 4)],
           dynamic=[{1: (2, 9)}], shapes=[(2, 7, 4)]),
    OpCase("topk-many", lambda x: x.topk(3841), [(5000,)]),
    OpCase("topk-k-dynamic", lambda x: x.topk(x.shape[0])[0], [(3, 9)], dynamic=[{0: (1, 8)}],
           shapes=[(5, 9)]),
    OpCase("topk-half-of-dynamic", lambda x: x.topk(x.shape[1] // 2, 1), [(2, 5)], **MATRIX),
    OpCase("sort", lambda x: tuple(torch.sort(x)), [(3, 5)]),
    OpCase("sort-descending", lambda x: tuple(x.sort(0, descending=True)), [(5, 3)]),
    OpCase("sort-int", lambda x: x.sort()[0], [INTS]),
    *(
        OpCase(f"sort-stable-{name}-{down}", torch.sort, [given],
               {"stable": True, "dim": dim, "descending": down})
        for down in (False, True)
        for name, given, dim in (
            ("nan", with_nan, 1), ("int", integers(4, 6, high=3), -1),
            ("bool", integers(4, 6, high=2, dtype=torch.bool), 0),
            ("int8", integers(4, 6, low=-3, high=3, dtype=torch.int8), 0),
        )
    ),
    OpCase("sort-stable-0d", lambda x: torch.sort(x, stable=True), [()]),
    OpCase("argsort-stable-dynamic", torch.argsort, [integers(2, 5, high=3)],
           {"stable": True, "descending": True}, **MATRIX),
    OpCase("sort-many", lambda x: x.sort(), [(5000,)]),
    OpCase("sort-too-many", lambda x: x.sort()[0], [(50000,)], raises="50000 elements"),
    OpCase("sort-dynamic", lambda x: x.sort(1), [(2, 5)], **MATRIX),
    OpCase("sort-vector-dynamic", lambda x: x.sort(descending=True), [(5,)],
           dynamic=[{0: (1, 9)}], shapes=[(7,)]),
    OpCase("median-dynamic", lambda x: x.median(1)[0], [(2, 5)], **MATRIX),
    OpCase("median-all-dynamic", lambda x: x.median(), [(2, 5)], **MATRIX),
    OpCase("median-many", lambda x: x.median(0), [(5000, 1)]),
    OpCase("median-many-keepdim", lambda x: x.median(0, keepdim=True), [(5000, 1)]),
    OpCase("median-all-many", lambda x: x.median(), [integers(100, 50)]),
    OpCase("median-many-nan", lambda x: x.median(0),
           [lambda g: torch.rand(5000, generator=g).where(torch.arange(5000) != 7, torch.nan)]),
    OpCase("kthvalue-many", lambda x: x.kthvalue(4500), [(5000,)]),
    OpCase("kthvalue-dynamic", lambda x: x.kthvalue(2, 1)[0], [(2, 5)], **MATRIX),
    OpCase("argsort", torch.argsort, [(3, 5)], {"dim": 1, "descending": True}),
    OpCase("msort", torch.msort, [(5, 3)]),
    OpCase("kthvalue", lambda x: tuple(x.kthvalue(2, 1)), [(3, 5)]),
    OpCase("kthvalue-keepdim", lambda x: tuple(x.kthvalue(2, 0, keepdim=True)), [(3, 5)]),
    OpCase("median", torch.median, [(3, 4)]),
    OpCase("median-dim", lambda x: tuple(x.median(1)), [(3, 4)]),
    OpCase("median-dim-keepdim", lambda x: tuple(x.median(-1, keepdim=True)), [(3, 5)]),
    OpCase("median-0d", torch.median, [()]),
    OpCase("mode", lambda x: torch.mode(x, 1)[0], [MANY_EQUAL], raises="aten::mode"),
]  # fmt: skip

RUNNING = [
    OpCase("cumsum", torch.cumsum, [(2, 3, 4)], {"dim": 1}),
    OpCase("cumsum-negative", lambda x: x.cumsum(-1), [(2, 3, 4)]),
    OpCase("cumsum-int", torch.cumsum, [INTS], {"dim": 0}),
    OpCase("cumsum-bool", torch.cumsum, [FLAGS], {"dim": 1}),
    OpCase("cumsum-dtype", torch.cumsum, [INTS], {"dim": 1, "dtype": torch.float32}),
    OpCase("cumsum-0d", torch.cumsum, [()], {"dim": 0}),
    OpCase("cumsum-dynamic", torch.cumsum, [(2, 3, 4)], {"dim": 1}, **DYNAMIC),
    OpCase("cumsum-fp16", lambda x: x.mul(2).cumsum(1), [uniform(2, 9, dtype=torch.half)],
           policy=FP16, rtol=2e-2, atol=2e-2, reason=HALF),
    OpCase("cumprod", torch.cumprod, [(2, 7)], {"dim": 1}),
    OpCase("cumprod-int", torch.cumprod, [INTS], {"dim": -1}),
    OpCase("cumprod-dtype", torch.cumprod, [FLAGS], {"dim": 1, "dtype": torch.float32}),
    OpCase("cumprod-0d", torch.cumprod, [()], {"dim": 0}),
    OpCase("cumprod-dynamic", torch.cumprod, [(2, 7)], {"dim": 1}, dynamic=[{0: (1, 8)}],
           shapes=[(4, 7)]),
    OpCase("cumprod-of-dynamic", torch.cumprod, [(2, 7)], {"dim": 1}, dynamic=[{1: (1, 8)}],
           shapes=[(2, 5)]),
    OpCase("cumprod-half", torch.cumprod, [uniform(5, 3, dtype=torch.half)], {"dim": 0}),
    OpCase("cumprod-bool", torch.cumprod, [integers(5, 3, high=2, dtype=torch.bool)], {"dim": 0}),
    *(
        OpCase(f"{name}-{kind}", getattr(torch, name), [given], {"dim": 1}, **more)
        for name in ("cummax", "cummin")
        for kind, given, more in (
            ("nan", with_nan, {}),
            ("dynamic", (2, 5), MATRIX),
            ("bool", integers(3, 5, high=2, dtype=torch.bool), {}),
            ("int8", integers(3, 5, low=-9, dtype=torch.int8), {}),
            ("uint8", integers(3, 5, dtype=torch.uint8), {}),
        )
    ),
    OpCase("cummax-0d", torch.cummax, [()], {"dim": 0}),
    OpCase("cummax", lambda x: tuple(torch.cummax(x, 1)), [integers(4, 9, high=5)]),
    OpCase("cummax-float", lambda x: tuple(x.cummax(0)), [(7, 3)]),
    OpCase("cummin", lambda x: tuple(torch.cummin(x, -1)), [integers(4, 9, high=5)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(SUMS + EXTREMES + STATISTICS + ORDER + RUNNING))
def test_reduction(case: OpCase) -> None:
    run_case(case)
