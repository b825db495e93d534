"""Operators of torchvision, antialiased resizing as it calls it, and distances of pairs."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torchvision import ops
from torchvision.transforms.v2 import functional as transforms

import t2t
from t2t.errors import ConversionError
from t2t.registry import check_formula, formulas
from tests.cases import OpCase, ids, run_case, uniform

IMAGES = (2, 8, 9, 13)
EDGES = torch.tensor(
    [
        [0, 0, 0, 13, 9],
        [1, -1, -1, 14, 10],
        [0, 3, 3, 3, 3],
        [1, 12, 8, 13, 9],
        [0, -20, -20, -10, -10],
        [0, 30, 30, 40, 40],
        [1, -2, -2, 0, 0],
        [0, 0.5, 0.5, 12.5, 8.5],
        [0, -100, -100, 200, 200],
        [1, 8, 7, 2, 3],
    ]
)
"""Whole images, outside, without size, samples on borders, beyond both borders, turned round."""


def boxes(count: int, images: int = 2, low: float = -3, high: float = 14) -> Callable[..., Any]:
    """Draw boxes (count, 5) of images."""

    def draw(generator: torch.Generator) -> torch.Tensor:
        image = torch.randint(0, images, (count, 1), generator=generator).float()
        corners = torch.rand(count, 2, 2, generator=generator) * (high - low) + low
        return torch.cat([image, corners.sort(1).values.flatten(1)], 1)

    return draw


def sized(*counts: int) -> Callable[..., Any]:
    """Draw another number of boxes each time."""
    left = list(counts)
    return lambda generator: boxes(left.pop(0) if len(left) > 1 else left[0])(generator)


ROI_ALIGN: dict[str, dict[str, Any]] = {
    "plain": {"output_size": 3, "sampling_ratio": 2},
    "pair": {"output_size": (3, 2), "sampling_ratio": 2, "spatial_scale": 0.5},
    "aligned": {"output_size": (2, 3), "sampling_ratio": 2, "aligned": True},
    "three": {"output_size": 2, "sampling_ratio": 3, "spatial_scale": 1 / 3, "aligned": True},
    "one": {"output_size": 1, "sampling_ratio": 1, "spatial_scale": 0.25},
}

BOXES = [
    *[
        OpCase(f"roi-align-{name}-{kind}", ops.roi_align, [IMAGES, given], kwargs)
        for name, kwargs in ROI_ALIGN.items()
        for kind, given in (("drawn", boxes(6)), ("edges", EDGES))
    ],
    *[
        OpCase(
            f"roi-align-constant-{ratio}-{aligned}",
            lambda x, ratio=ratio, aligned=aligned: ops.roi_align(
                x, EDGES[:9], (3, 2), 0.7, ratio, aligned
            ),
            [IMAGES],
        )
        for ratio in (-1, 0, 2)
        for aligned in (False, True)
    ],
    OpCase(
        "roi-align-adaptive", lambda x, b: ops.roi_align(x, b, 3), [IMAGES, boxes(4)],
        raises="pass a positive number, as 2",
    ),
    OpCase(
        "roi-align-list", lambda x, a, b: ops.roi_align(x, [a, b], 2, sampling_ratio=2),
        [IMAGES, EDGES[:3, 1:], EDGES[4:, 1:]],
    ),
    OpCase(
        "roi-align-list-empty", lambda x, a, b: ops.roi_align(x, [a, b], 2, sampling_ratio=2),
        [IMAGES, torch.zeros(0, 4), EDGES[:, 1:]],
    ),
    OpCase(
        "roi-align-none", lambda x, b: ops.roi_align(x, b, 2, sampling_ratio=2),
        [IMAGES, torch.zeros(0, 5)],
    ),
    OpCase("roi-align-module", ops.RoIAlign(2, 0.5, 2, aligned=True), [IMAGES, boxes(4)]),
    OpCase(
        # torchvision reads the first element for samples outside, on a CPU and not on a GPU.
        "roi-align-infinite",
        lambda x, b: ops.roi_align(x / (torch.arange(13) != 5), b, 2, sampling_ratio=1),
        [IMAGES, EDGES],
    ),
    OpCase(
        "roi-align-dynamic", lambda x, b: ops.roi_align(x, b, (2, 3), 0.5, 2, True),
        [IMAGES, sized(5, 9)], dynamic=[{0: (1, 4)}, {0: (1, 20)}],
        shapes=[(3, 8, 9, 13), ()],
    ),
    OpCase(
        "roi-align-dynamic-none", lambda x, b: ops.roi_align(x, b, 2, 1.0, 2),
        [IMAGES, sized(5, 0)], dynamic=[{}, {0: (0, 20)}], shapes=[IMAGES, ()],
    ),
    OpCase(
        "roi-align-dynamic-image", lambda x, b: ops.roi_align(x, b, 2, 0.5, 2, True),
        [IMAGES, boxes(5)], dynamic=[{2: (4, 20), 3: (4, 20)}, {}], shapes=[(2, 8, 6, 7), ()],
    ),
    OpCase(
        "roi-align-dynamic-list", lambda x, a, b: ops.roi_align(x, [a, b], 2, sampling_ratio=2),
        [IMAGES, (3, 4), (2, 4)], dynamic=[{}, {0: (1, 9)}, {0: (1, 9)}],
        shapes=[IMAGES, (5, 4), (1, 4)],
    ),
    *[
        OpCase(f"roi-pool-{size}-{scale:.2f}-{kind}", ops.roi_pool, [IMAGES, given],
               {"output_size": size, "spatial_scale": scale})
        for size, scale in ((3, 1.0), ((1, 2), 0.5), ((7, 5), 1 / 3))
        for kind, given in (("drawn", boxes(6)), ("edges", EDGES))
    ],
    OpCase("roi-pool-module", ops.RoIPool((2, 3), 0.5), [IMAGES, boxes(4)]),
    OpCase(
        "roi-pool-special", lambda x, b: ops.roi_pool(torch.where(x > 0, x.log(), -math.inf), b, 2),
        [IMAGES, EDGES],
    ),
    OpCase("roi-pool-nan", lambda x, b: ops.roi_pool(x.sqrt(), b, 2), [IMAGES, EDGES]),
    OpCase("roi-pool-list", lambda x, a, b: ops.roi_pool(x, [a, b], 2),
           [IMAGES, EDGES[:3, 1:], EDGES[4:, 1:]]),
    OpCase(
        "roi-pool-dynamic", lambda x, b: ops.roi_pool(x, b, (2, 3), 0.5), [IMAGES, sized(5, 9)],
        dynamic=[{0: (1, 4), 2: (4, 20)}, {0: (1, 20)}], shapes=[(3, 8, 17, 13), ()],
    ),
    OpCase(
        "roi-pool-places", lambda x, b: torch.ops.torchvision.roi_pool(x, b, 1.0, 2, 2)[1],
        [IMAGES, boxes(4)], raises="torchvision::roi_pool",
    ),
    *[
        OpCase(f"ps-roi-align-{name}-{kind}", ops.ps_roi_align, [IMAGES, given], kwargs)
        for name, kwargs in {
            "plain": {"output_size": 2, "sampling_ratio": 2},
            "pair": {"output_size": (4, 1), "sampling_ratio": 1, "spatial_scale": 0.5},
        }.items()
        for kind, given in (("drawn", boxes(6)), ("edges", EDGES))
    ],
    OpCase("ps-roi-align-constant", lambda x: ops.ps_roi_align(x, EDGES[:9], 2, 0.7, -1), [IMAGES]),
    OpCase("ps-roi-align-adaptive", lambda x, b: ops.ps_roi_align(x, b, 2), [IMAGES, boxes(3)],
           raises="pass a positive number"),
    OpCase("ps-roi-align-channels",
           lambda x, b: torch.ops.torchvision.ps_roi_align(x, b, 1.0, 2, 2, 1), [IMAGES, boxes(3)]),
    OpCase("ps-roi-align-module", ops.PSRoIAlign(2, 0.5, 2), [IMAGES, boxes(4)]),
    OpCase(
        "ps-roi-align-dynamic", lambda x, b: ops.ps_roi_align(x, b, 2, 0.5, 2),
        [IMAGES, sized(5, 9)], dynamic=[{0: (1, 4)}, {0: (1, 20)}], shapes=[(3, 8, 9, 13), ()],
    ),
    *[
        OpCase(f"ps-roi-pool-{size}-{kind}", ops.ps_roi_pool, [IMAGES, given],
               {"output_size": size, "spatial_scale": scale})
        for size, scale in ((2, 1.0), ((1, 4), 0.5))
        for kind, given in (("drawn", boxes(6)), ("edges", EDGES))
    ],
    OpCase("ps-roi-pool-channels",
           lambda x, b: torch.ops.torchvision.ps_roi_pool(x, b, 1.0, 2, 2), [IMAGES, boxes(3)]),
    OpCase("ps-roi-pool-module", ops.PSRoIPool(2, 0.5), [IMAGES, boxes(4)]),
    OpCase(
        "ps-roi-pool-dynamic", lambda x, b: ops.ps_roi_pool(x, b, 2, 0.5), [IMAGES, sized(5, 9)],
        dynamic=[{0: (1, 4)}, {0: (1, 20)}], shapes=[(3, 8, 9, 13), ()],
    ),
]  # fmt: skip


def deformed(
    name: str, *, groups: int = 1, offsets: int = 1, mask: bool = False, kernel: Any = (3, 3),
    spread: float = 2.0, **kwargs: Any,
) -> OpCase:  # fmt: skip
    """Return a row of `deform_conv2d` of (2, 4, 9, 8) with drawn weights, offsets and mask."""
    stride, padding, dilation = (
        torch.nn.modules.utils._pair(kwargs.get(key, default))
        for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    out = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip((9, 8), padding, dilation, kernel, stride, strict=True)
    ]
    taps = kernel[0] * kernel[1]
    inputs: list[Any] = [
        (2, 4, 9, 8), uniform(2, 2 * offsets * taps, *out, low=-spread, high=spread),
        (6, 4 // groups, *kernel), (6,),
    ]  # fmt: skip
    if mask:
        inputs.append(uniform(2, offsets * taps, *out, low=0, high=1))
    return OpCase(
        f"deform-{name}",
        lambda x, o, w, b, m=None: ops.deform_conv2d(x, o, w, b, mask=m, **kwargs),
        inputs,
        rtol=1e-4,
        atol=1e-4,
        reason="grid_sample() takes coordinates between -1 and 1, which rounds them otherwise",
    )


DEFORMED = [
    deformed("plain"),
    deformed("mask", mask=True),
    deformed("groups", groups=2, mask=True),
    deformed("offset-groups", offsets=2, mask=True),
    deformed("both-groups", groups=2, offsets=4),
    deformed("stride", stride=(2, 1), padding=(1, 2), mask=True),
    deformed("dilation", dilation=(1, 2), padding=2),
    deformed("kernel", kernel=(1, 3), padding=(0, 1)),
    deformed("far", spread=20.0, padding=1),
    OpCase(
        "deform-borders", lambda x, o: ops.deform_conv2d(x, o, torch.ones(2, 3, 2, 2), padding=1),
        [(1, 3, 4, 5), torch.arange(240.0).remainder(11).sub(5).reshape(1, 8, 5, 6)],
        rtol=1e-4, atol=1e-4,
        reason="grid_sample() takes coordinates between -1 and 1, which rounds them otherwise",
    ),
    OpCase(
        "deform-module", ops.DeformConv2d(3, 4, 3, padding=1), [(2, 3, 5, 6), (2, 18, 5, 6)],
        rtol=1e-4, atol=1e-4, reason="as above",
    ),
    OpCase(
        "deform-dynamic", lambda x, o: ops.deform_conv2d(x, o, torch.ones(2, 3, 3, 3), padding=1),
        [(2, 3, 5, 6), (2, 18, 5, 6)],
        dynamic=[{0: ("n", 1, 4), 2: ("h", 4, 9)}, {0: ("n", 1, 4), 2: ("h", 4, 9)}],
        shapes=[(3, 3, 7, 6), (3, 18, 7, 6)], rtol=1e-4, atol=1e-4, reason="as above",
    ),
]  # fmt: skip

RESIZED = [
    *[
        OpCase(
            f"resize-{mode}-{size}",
            lambda x, mode=mode, size=size: F.interpolate(x, size, mode=mode, antialias=True),
            [(2, 3, 12, 10)],
        )
        for mode in ("bilinear", "bicubic")
        for size in ((5, 7), (24, 13), (12, 4))
    ],
    OpCase(
        "resize-transform", lambda x: transforms.resize(x, [6, 5], antialias=True), [(3, 12, 10)]
    ),
    OpCase(
        "resize-transform-cubic",
        lambda x: transforms.resize(
            x, [6], transforms.InterpolationMode.BICUBIC, max_size=9, antialias=True
        ),
        [(2, 3, 12, 10)],
    ),
    OpCase(
        "resize-transform-batch", lambda x: transforms.resize(x, [6, 15]), [(2, 3, 12, 10)],
        dynamic=[{0: (1, 5)}], shapes=[(4, 3, 12, 10)],
    ),
    OpCase(
        "resize-dynamic", lambda x: F.interpolate(x, (6, 5), mode="bilinear", antialias=True),
        [(2, 3, 12, 10)], dynamic=[{2: (4, 16)}], shapes=[(2, 3, 7, 10)],
    ),
]  # fmt: skip

PAIRS = [
    *[
        OpCase(f"pdist-{p}", lambda x, p=p: F.pdist(x, p), [(5, 3)])
        for p in (0, 0.5, 1, 2, 3, math.inf)
    ],
    OpCase("pdist-same", lambda x: torch.pdist(x[[0, 0, 1, 1, 2]]), [(3, 4)]),
    OpCase("pdist-zeros", lambda x: torch.pdist(x.round(), p=0.0), [(6, 4)]),
    OpCase("pdist-two", torch.pdist, [(2, 3)]),
    OpCase("pdist-one", torch.pdist, [(1, 3)]),
    OpCase("pdist-empty-rows", torch.pdist, [(4, 0)]),
    OpCase("pdist-dynamic", torch.pdist, [(5, 3)], dynamic=[{0: (2, 9)}], shapes=[(8, 3)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids([*BOXES, *DEFORMED, *RESIZED, *PAIRS]))
def test_vision(case: OpCase) -> None:
    run_case(case)


def test_formulas_have_the_parameters_of_torchvision() -> None:
    """They are registered without a look at the operators, which may not be there yet."""
    names = [name for name in formulas.own if name.startswith("torchvision::")]
    assert len(names) == 5
    for name in names:
        check_formula(formulas.own[name].function, name, views=True)


def test_torchvision_is_not_imported() -> None:
    code = "import sys, t2t, t2t.lowering; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Detector(torch.nn.Module):
    """Scores and boxes by convolution-like products, suppressed, with features of those kept."""

    def __init__(self, suppress: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.suppress = suppress
        self.head = torch.nn.Linear(6, 5)

    def forward(
        self, features: torch.Tensor, rows: torch.Tensor, classes: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the boxes that are kept, their scores and their features."""
        found = self.head(rows.tanh()) * 3
        corner, size = found[:, :2].sigmoid() * 6, found[:, 2:4].sigmoid() * 6
        every, scores = torch.cat([corner, corner + size], 1), found[:, 4].sigmoid() * 2
        kept = self.suppress(every, scores, classes)
        pooled = ops.roi_align(features, [every[kept]], 2, sampling_ratio=2)
        return every[kept], scores[kept], pooled * 2 + 1


SUPPRESSIONS = {
    "nms": lambda boxes, scores, _: ops.nms(boxes, scores, 0.4),
    "batched": lambda boxes, scores, classes: ops.batched_nms(boxes, scores, classes, 0.4),
    "by class": lambda boxes, scores, classes: ops.boxes._batched_nms_vanilla(
        boxes, scores, classes, 0.4
    ),
}


@pytest.mark.filterwarnings("ignore:.create_unbacked_symint")
@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
@pytest.mark.parametrize("name", SUPPRESSIONS)
def test_suppression_stays_in_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model = Detector(SUPPRESSIONS[name]).eval()

    def inputs() -> list[torch.Tensor]:
        return [torch.randn(1, 3, 12, 12), torch.randn(30, 6), torch.randint(0, 3, (30,))]

    example = inputs()
    with pytest.raises(ConversionError, match="with partial=True it stays in PyTorch"):
        t2t.convert(model, example)
    converted = t2t.convert(model, example, partial=True)
    for given in (example, inputs(), inputs()):
        wanted, got = model(*given), converted(*given)
        assert 0 < len(wanted[0]) < 30
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
