"""Max, average, adaptive and lp pooling."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import Autocast, OpCase, ids, integers, run_case

FP16 = Policy(torch.float16)
HALF = {"rtol": 2e-2, "atol": 2e-2, "reason": "computed in half precision, compared with float32"}
BOTH = [{0: (1, 4), 2: (5, 20), 3: (5, 20)}]


def with_infinity(generator: torch.Generator) -> torch.Tensor:
    x = torch.randn((2, 3, 5, 7), generator=generator)
    x[0, 0, 4, 6] = torch.inf
    return x


MAX = [
    OpCase("max2d", F.max_pool2d, [(2, 3, 7, 8)], {"kernel_size": 3}, layers=1),
    OpCase("max2d-torch", lambda x: torch.max_pool2d(x, (3, 2), 1), [(2, 3, 7, 8)], layers=1),
    OpCase("max2d-tuples", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)), [(2, 3, 7, 8)]),
    OpCase("max2d-stride-one", lambda x: F.max_pool2d(x, 3, 1, 1), [(2, 3, 7, 8)], layers=1),
    OpCase("max2d-list-of-one", lambda x: F.max_pool2d(x, [3], [2]), [(2, 3, 7, 8)]),
    OpCase("max2d-dilation", lambda x: F.max_pool2d(x, 3, 2, 1, 2), [(2, 3, 9, 8)]),
    OpCase(
        "max2d-dilation-tuple", lambda x: F.max_pool2d(x, 2, 1, (0, 1), (3, 1), ceil_mode=True),
        [(2, 3, 9, 8)],
    ),
    OpCase(
        "max2d-dilation-dynamic", lambda x: F.max_pool2d(x, 3, 2, 1, 2), [(2, 3, 9, 8)],
        dynamic=BOTH, shapes=[(1, 3, 12, 7)],
    ),
    OpCase("max2d-int", lambda x: F.max_pool2d(x, 3, 2, 1), [integers(2, 3, 7, 8, low=-9)]),
    OpCase("max2d-unbatched", nn.MaxPool2d(2), [(3, 7, 8)]),
    OpCase("max2d-whole", lambda x: F.max_pool2d(x, x.shape[2:]), [(2, 3, 7, 8)], layers=1),
    OpCase(
        "max2d-whole-dynamic", lambda x: F.max_pool2d(x, x.shape[2:]), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 5, 9)], layers=1,
    ),
    OpCase(
        "max2d-symbolic-window", lambda x: F.max_pool2d(x, (x.shape[2] // 2, 1)), [(2, 3, 7, 8)],
        dynamic=BOTH, raises="kernel_size",
    ),
    OpCase(
        "max2d-dynamic", nn.MaxPool2d(3, 2, 1), [(2, 3, 7, 8)], dynamic=BOTH,
        shapes=[(3, 3, 10, 5)], layers=1,
    ),
    OpCase(
        "max2d-ceil-dynamic", nn.MaxPool2d(3, 2, ceil_mode=True), [(2, 3, 7, 8)], dynamic=BOTH,
        shapes=[(3, 3, 10, 5)], layers=1,
    ),
    OpCase(
        "max2d-ceil-dropped-dynamic", nn.MaxPool2d(2, 3, 1, ceil_mode=True), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 10, 6)],
    ),
    OpCase("max2d-ceil", nn.MaxPool2d(3, 2, ceil_mode=True), [(1, 3, 8, 8)], layers=1),
    OpCase(
        "max2d-indices-unused", lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
        [(2, 3, 7, 8)], layers=1,
    ),
    OpCase(
        "max2d-indices-used", lambda x: F.max_pool2d(x, 2, return_indices=True), [(2, 3, 7, 8)],
    ),
    OpCase(
        "max2d-indices-only", lambda x: F.max_pool2d(x, 2, return_indices=True)[1], [(2, 3, 7, 8)],
    ),
    OpCase(
        "max2d-indices-all",
        nn.MaxPool2d((3, 2), 2, 1, dilation=(2, 1), ceil_mode=True, return_indices=True),
        [(2, 3, 7, 8)],
    ),
    OpCase(
        "max2d-indices-equal", nn.MaxPool2d(3, 1, 1, return_indices=True),
        [integers(2, 3, 7, 8, high=2, dtype=torch.float32)],
    ),
    OpCase(
        "max2d-indices-int", nn.MaxPool2d(3, 1, 1, return_indices=True), [integers(3, 7, 8)],
    ),
    OpCase(
        "max2d-indices-infinite", nn.MaxPool2d(3, 2, 1, return_indices=True),
        [torch.full((1, 1, 7, 8), -math.inf)],
    ),
    OpCase(
        "max2d-indices-nan", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
        [torch.tensor([1.0, math.nan, 2, 3, math.nan, 4] * 8).reshape(1, 1, 6, 8)],
    ),
    OpCase(
        "max2d-indices-batches", nn.MaxPool2d(2, return_indices=True), [(2, 3, 7, 8)],
        dynamic=[{0: (1, 8)}], shapes=[(5, 3, 7, 8)],
    ),
    OpCase(
        "max2d-indices-dynamic", nn.MaxPool2d(2, return_indices=True), [(2, 3, 7, 8)],
        dynamic=BOTH, raises="return_indices=True",
    ),
    OpCase("max1d-indices", nn.MaxPool1d(3, 2, 1, return_indices=True), [(2, 3, 9)]),
    OpCase("max3d-indices", nn.MaxPool3d((1, 2, 3), 2, return_indices=True), [(2, 3, 4, 5, 6)]),
    OpCase(
        "max2d-unpool",
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), [(2, 3, 6, 8)],
    ),
    OpCase(
        "average2d-out", lambda x: F.avg_pool2d(x, 2, out=torch.zeros(2, 3, 3, 4)), [(2, 3, 7, 8)],
    ),
    OpCase("max2d-aten", lambda x: torch.ops.aten.max_pool2d(x, [3, 2], [2]), [(2, 3, 7, 8)]),
    OpCase("max2d-fp16", nn.MaxPool2d(3, 2), [(2, 3, 7, 8)], policy=FP16, **HALF),
    OpCase("max1d", F.max_pool1d, [(2, 3, 9)], {"kernel_size": 2}, layers=3),
    OpCase("max1d-torch", lambda x: torch.max_pool1d(x, 3, 2, 1, 1, True), [(2, 3, 9)]),
    OpCase("max1d-dilation", nn.MaxPool1d(3, 1, 1, dilation=2), [(2, 3, 9)]),
    OpCase("max1d-unbatched", nn.MaxPool1d(3), [(3, 9)]),
    OpCase("max1d-aten", lambda x: torch.ops.aten.max_pool1d(x, [3], [2]), [(2, 3, 9)]),
    OpCase(
        "max1d-dynamic", nn.MaxPool1d(3, 2, 1), [(2, 3, 9)], dynamic=[{0: (1, 4), 2: (4, 20)}],
        shapes=[(1, 3, 12)],
    ),
    OpCase(
        "max1d-dynamic-autocast", Autocast(nn.MaxPool1d(3, 2, 1)), [(2, 3, 9)],
        dynamic=[{0: (1, 4), 2: (4, 20)}], shapes=[(1, 3, 12)],
    ),
    OpCase("max3d", F.max_pool3d, [(2, 3, 5, 6, 7)], {"kernel_size": 2}, layers=1),
    OpCase(
        "max3d-all", lambda x: F.max_pool3d(x, (2, 3, 1), (1, 2, 3), (1, 1, 0), 1, True),
        [(2, 3, 5, 6, 7)],
    ),
    OpCase("max3d-dilation", nn.MaxPool3d(2, 1, 0, dilation=(2, 1, 3)), [(2, 3, 5, 6, 7)]),
    OpCase("max3d-unbatched", nn.MaxPool3d(2), [(3, 5, 6, 7)]),
    OpCase("max3d-aten", lambda x: torch.ops.aten.max_pool3d(x, [2, 3, 1]), [(2, 3, 5, 6, 7)]),
]  # fmt: skip

AVERAGE = [
    OpCase("avg2d", F.avg_pool2d, [(2, 3, 7, 8)], {"kernel_size": 3}, layers=1),
    OpCase("avg2d-tuples", lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)), [(2, 3, 7, 8)]),
    OpCase(
        "avg2d-exclude", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        [(2, 3, 7, 8)], layers=1,
    ),
    OpCase("avg2d-divisor", lambda x: F.avg_pool2d(x, 3, 2, divisor_override=4), [(2, 3, 7, 8)]),
    OpCase(
        "avg2d-divisor-ceil",
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), 1, True, False, 5), [(2, 3, 8, 7)],
    ),
    OpCase(
        "avg2d-ceil-dynamic", nn.AvgPool2d(3, 2, 1, ceil_mode=True), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 10, 5)],
    ),
    OpCase(
        "avg2d-divisor-dynamic", nn.AvgPool2d(2, 3, 1, True, True, 3), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 10, 6)],
    ),
    OpCase(
        "avg2d-dynamic-autocast", Autocast(nn.AvgPool2d(2, 3, 1, True, True, 3)), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 10, 6)],
    ),
    OpCase(
        "avg2d-whole-dynamic", lambda x: F.avg_pool2d(x, kernel_size=x.size()[2:]),
        [(2, 3, 7, 8)], dynamic=BOTH, shapes=[(3, 3, 5, 9)], layers=1,
    ),
    OpCase(
        "avg2d-whole-dynamic-autocast", Autocast(lambda x: F.avg_pool2d(x, x.size()[2:])),
        [(2, 3, 7, 8)], dynamic=BOTH, shapes=[(3, 3, 5, 9)],
    ),
    OpCase("avg2d-unbatched", nn.AvgPool2d(2), [(3, 7, 8)]),
    OpCase("avg2d-int", lambda x: F.avg_pool2d(x, 2), [integers(1, 2, 4, 4)], raises="dtype"),
    OpCase("avg2d-aten", lambda x: torch.ops.aten.avg_pool2d(x, [3, 2], [2]), [(2, 3, 7, 8)]),
    OpCase("avg2d-fp16", nn.AvgPool2d(3, 2), [(2, 3, 7, 8)], policy=FP16, **HALF),
    OpCase("avg1d", F.avg_pool1d, [(2, 3, 9)], {"kernel_size": 2}, layers=3),
    OpCase("avg1d-torch", lambda x: torch.avg_pool1d(x, 3, 2, 1, True, False), [(2, 3, 9)]),
    OpCase("avg1d-module", nn.AvgPool1d(3, 2, 1, True, True), [(2, 3, 8)]),
    OpCase("avg1d-unbatched", nn.AvgPool1d(3), [(3, 9)]),
    OpCase("avg3d", F.avg_pool3d, [(2, 3, 5, 6, 7)], {"kernel_size": 2}, layers=1),
    OpCase(
        "avg3d-all", lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 2, 3), (1, 1, 0), True, True, 3),
        [(2, 3, 5, 6, 7)],
    ),
    OpCase("avg3d-ceil", nn.AvgPool3d(3, 2, 1, True), [(2, 3, 6, 6, 7)]),
    OpCase("avg3d-aten", lambda x: torch.ops.aten.avg_pool3d(x, [2]), [(2, 3, 5, 6, 7)]),
]  # fmt: skip

# Every way that a last window can stand: over the padding, over the end, or dropped.
EDGES = [
    OpCase(
        f"{kind.__name__}-edge-{kernel}-{stride}-{padding}-{size}-{extra}",
        kind(kernel, stride, padding, ceil_mode=True, **extra),
        [(1, 2, size, size + 1)],
    )
    for (kind, extra) in (
        (nn.MaxPool2d, {}),
        (nn.AvgPool2d, {"count_include_pad": True}),
        (nn.AvgPool2d, {"count_include_pad": False}),
    )
    for (kernel, stride, padding), size in itertools.product(
        ((2, 2, 1), (3, 2, 1), (2, 3, 1), (3, 3, 0), (1, 2, 0), (4, 3, 2)), (5, 8)
    )
]

ADAPTIVE = [
    OpCase("adaptive-avg2d", nn.AdaptiveAvgPool2d(3), [(1, 3, 5, 6)]),
    OpCase("adaptive-avg2d-one", nn.AdaptiveAvgPool2d(1), [(2, 3, 5, 7)], layers=1),
    OpCase("adaptive-avg1d-one", nn.AdaptiveAvgPool1d(1), [(2, 3, 7)], layers=1),
    OpCase("adaptive-avg1d-one-torch", lambda x: torch.adaptive_avg_pool1d(x, 1), [(2, 3, 7)],
           dynamic=[{0: (1, 4), 2: (1, 9)}], shapes=[(4, 3, 5)], layers=1),
    OpCase("adaptive-avg3d-one", nn.AdaptiveAvgPool3d(1), [(2, 3, 5, 7, 4)], layers=1),
    OpCase("adaptive-avg2d-of-one", lambda x: nn.AdaptiveAvgPool2d(1)(x) + 1, [(2, 3, 1, 1)],
           layers=2),
    OpCase("adaptive-avg2d-channels-last", lambda x: nn.AdaptiveAvgPool2d(1)(x.permute(0, 3, 1, 2)),
           [(2, 5, 7, 3)], dynamic=[{0: (1, 4), 1: (1, 9)}], shapes=[(4, 3, 7, 3)], layers=2),
    OpCase("adaptive-avg2d-channels-last-operator",
           lambda x: torch.ops.aten.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), [1, 1]),
           [(2, 5, 7, 3)], dynamic=[{0: (2, 4)}], shapes=[(4, 5, 7, 3)]),
    OpCase("adaptive-avg2d-half", nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1)),
           [(2, 3, 5, 7)], policy=FP16, layers=4,
           rtol=2e-3, atol=2e-3, reason="computed in half precision"),
    OpCase("adaptive-avg2d-divisible", nn.AdaptiveAvgPool2d((3, 2)), [(2, 3, 6, 8)], layers=1),
    OpCase("adaptive-avg2d-half-divisible", nn.AdaptiveAvgPool2d((3, 5)), [(2, 3, 6, 7)]),
    OpCase("adaptive-avg2d-larger", nn.AdaptiveAvgPool2d((7, 7)), [(1, 512, 1, 1)]),
    OpCase("adaptive-avg2d-larger-uneven", nn.AdaptiveAvgPool2d((7, 9)), [(2, 3, 5, 4)]),
    OpCase("adaptive-avg2d-none", nn.AdaptiveAvgPool2d((None, 4)), [(1, 2, 5, 7)]),
    OpCase("adaptive-avg2d-none-one", nn.AdaptiveAvgPool2d((1, None)), [(1, 2, 5, 7)], layers=1),
    OpCase("adaptive-avg2d-same", lambda x: F.adaptive_avg_pool2d(x, 5) + 1, [(1, 2, 5, 5)]),
    OpCase("adaptive-avg2d-infinity", nn.AdaptiveAvgPool2d(3), [with_infinity]),
    OpCase("adaptive-avg2d-unbatched", nn.AdaptiveAvgPool2d((2, 3)), [(3, 6, 7)]),
    OpCase(
        "adaptive-avg2d-dynamic", nn.AdaptiveAvgPool2d((1, 1)), [(2, 3, 7, 8)], dynamic=BOTH,
        shapes=[(3, 3, 5, 9)], layers=1,
    ),
    OpCase(
        "adaptive-avg2d-dynamic-autocast", Autocast(nn.AdaptiveAvgPool2d(1)), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(1, 3, 5, 9)], layers=1,
    ),
    OpCase(
        "adaptive-avg2d-dynamic-uneven", nn.AdaptiveAvgPool2d((3, 2)), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 5, 9)],
    ),
    OpCase(
        "adaptive-avg2d-dynamic-none", nn.AdaptiveAvgPool2d((None, 2)), [(2, 3, 7, 8)],
        dynamic=BOTH, shapes=[(3, 3, 5, 9)],
    ),
    OpCase(
        "adaptive-avg2d-dynamic-ratio",
        lambda x: F.adaptive_avg_pool2d(
            torch.cat([x, x], 2), (x.shape[2], x.shape[3])
        ), [(2, 3, 7, 8)], dynamic=BOTH, shapes=[(3, 3, 5, 9)],
    ),
    OpCase(
        "adaptive-avg2d-dynamic-size",
        lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, 1)), [(2, 3, 7, 8)], dynamic=BOTH,
        raises="output_size",
    ),
    OpCase(
        "adaptive-avg2d-aten", lambda x: torch.ops.aten.adaptive_avg_pool2d(x, [2, 3]),
        [(2, 3, 5, 7)],
    ),
    OpCase(
        "adaptive-avg2d-fp16", nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d((3, 4))),
        [(2, 3, 5, 7)], policy=FP16, **HALF,
    ),
    OpCase("adaptive-avg1d", nn.AdaptiveAvgPool1d(4), [(2, 3, 7)]),
    OpCase("adaptive-avg1d-divisible", lambda x: torch.adaptive_avg_pool1d(x, 4), [(2, 3, 8)]),
    OpCase("adaptive-avg3d", nn.AdaptiveAvgPool3d((2, 1, 3)), [(2, 3, 4, 5, 7)]),
    OpCase("adaptive-avg3d-aten", lambda x: torch.ops.aten.adaptive_avg_pool3d(x, [2, 2, 2]),
           [(2, 3, 4, 5, 7)]),
    OpCase("adaptive-max2d", nn.AdaptiveMaxPool2d((6, 6)), [(1, 1, 10, 10)]),
    OpCase("adaptive-max2d-none", nn.AdaptiveMaxPool2d((None, 4)), [(1, 2, 5, 7)]),
    OpCase("adaptive-max2d-one", nn.AdaptiveMaxPool2d(1), [(1, 2, 5, 7)], layers=1),
    OpCase("adaptive-max2d-larger", nn.AdaptiveMaxPool2d(7), [(1, 2, 5, 4)]),
    OpCase(
        "adaptive-max2d-dynamic", nn.AdaptiveMaxPool2d((3, 2)), [(2, 3, 7, 8)], dynamic=BOTH,
        shapes=[(3, 3, 5, 9)],
    ),
    OpCase(
        "adaptive-max2d-indices", lambda x: F.adaptive_max_pool2d(x, 3, True)[0], [(1, 2, 5, 7)]
    ),
    OpCase(
        "adaptive-max2d-indices-used", nn.AdaptiveMaxPool2d(3, return_indices=True), [(1, 2, 5, 7)],
    ),
    OpCase(
        "adaptive-max1d-indices", nn.AdaptiveMaxPool1d(4, return_indices=True), [(2, 3, 7)],
    ),
    OpCase(
        "adaptive-max3d-indices", nn.AdaptiveMaxPool3d((2, 1, 3), return_indices=True),
        [(2, 3, 4, 5, 7)],
    ),
    OpCase(
        "adaptive-max2d-aten", lambda x: torch.ops.aten.adaptive_max_pool2d(x, [2, 3])[0],
        [(2, 3, 5, 7)],
    ),
    OpCase("adaptive-max1d", nn.AdaptiveMaxPool1d(4), [(2, 3, 7)]),
    OpCase("adaptive-max3d", nn.AdaptiveMaxPool3d((2, 1, 3)), [(2, 3, 4, 5, 7)]),
]  # fmt: skip

LP = [
    OpCase("lp1d", nn.LPPool1d(2, 3, 2), [(2, 3, 9)]),
    OpCase("lp2d", nn.LPPool2d(2, 3), [(2, 3, 7, 8)]),
    OpCase("lp2d-odd", lambda x: F.lp_pool2d(x, 3, (2, 3), 2, True), [(2, 3, 7, 8)]),
    OpCase("lp2d-real", lambda x: F.lp_pool2d(x.abs(), 1.5, 2), [(2, 3, 7, 8)]),
    OpCase("lp2d-infinity", lambda x: F.lp_pool2d(x, torch.inf, 2), [(2, 3, 7, 8)]),
    OpCase("lp3d", nn.LPPool3d(2, 2), [(2, 3, 5, 6, 7)]),
]


@pytest.mark.parametrize("case", ids([*MAX, *AVERAGE, *EDGES, *ADAPTIVE, *LP]))
def test_pooling(case: OpCase) -> None:
    run_case(case)
