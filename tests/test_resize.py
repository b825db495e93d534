"""Resizing, pixel shuffling and grid sampling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import Autocast, OpCase, ids, integers, run_case

FP16 = Policy(torch.float16)
HALF = {"rtol": 2e-2, "atol": 2e-2, "reason": "computed in half precision, compared with float32"}
BOTH = [{0: (1, 4), 2: (3, 20), 3: (3, 20)}]
OTHER = [(3, 2, 6, 9)]
CAPTURED, GENERATOR = F.interpolate, torch.affine_grid_generator
IMAGE = (1, 2, 5, 7)
ROUNDED = {
    "rtol": 1e-4, "atol": 1e-5,
    "reason": "torch computes places and weights in float32, the executor in float64",
}  # fmt: skip


def resized(mode: str, **kwargs: object) -> object:
    return lambda x: F.interpolate(x, mode=mode, **kwargs)


NEAREST = [
    OpCase("nearest-double", lambda x: F.interpolate(x, scale_factor=2), [IMAGE], layers=1),
    OpCase("nearest-size", lambda x: F.interpolate(x, (10, 21)), [IMAGE], layers=1),
    OpCase("nearest-int-size", lambda x: F.interpolate(x, 13), [IMAGE]),
    OpCase("nearest-odd", lambda x: F.interpolate(x, size=(8, 3)), [IMAGE]),
    OpCase("nearest-scales", lambda x: F.interpolate(x, scale_factor=(1.7, 0.6)), [IMAGE]),
    OpCase("nearest-half", lambda x: F.interpolate(x, scale_factor=0.5), [(1, 2, 8, 6)], layers=1),
    OpCase(
        "nearest-recomputed",
        lambda x: F.interpolate(x, scale_factor=1.7, recompute_scale_factor=True), [IMAGE],
    ),
    OpCase("nearest-many", lambda x: F.interpolate(x, scale_factor=11.0), [(1, 1, 9, 9)]),
    OpCase("nearest-same", lambda x: F.interpolate(x, (5, 7)) + 1, [IMAGE], layers=2),
    OpCase("nearest-int", lambda x: F.interpolate(x[None], scale_factor=2)[0], [IMAGE[1:]]),
    OpCase("nearest-module", nn.Upsample(scale_factor=(2, 3)), [IMAGE], layers=1),
    OpCase("nearest-1d", lambda x: F.interpolate(x, scale_factor=2), [(1, 2, 5)], layers=1),
    OpCase("nearest-1d-odd", lambda x: F.interpolate(x, 7), [(1, 2, 5)]),
    OpCase("nearest-3d", lambda x: F.interpolate(x, (6, 2, 5)), [(1, 2, 3, 4, 5)]),
    OpCase("nearest-captured", lambda x: CAPTURED(x, size=(8, 3)), [IMAGE]),
    OpCase("nearest-exact", resized("nearest-exact", size=(8, 3)), [IMAGE]),
    OpCase("nearest-exact-double", resized("nearest-exact", scale_factor=2.0), [IMAGE], layers=1),
    OpCase("nearest-exact-half", resized("nearest-exact", scale_factor=0.5), [(1, 2, 8, 6)]),
    OpCase("nearest-exact-1d", resized("nearest-exact", scale_factor=1.3), [(1, 2, 9)]),
    OpCase("nearest-exact-3d", resized("nearest-exact", size=(4, 4, 4)), [(1, 2, 3, 5, 7)]),
    OpCase("nearest-bytes", lambda x: F.interpolate(x, (8, 3)),
           [integers(*IMAGE, dtype=torch.uint8)]),
    OpCase(
        "nearest-dynamic", lambda x: F.interpolate(x, scale_factor=2), [IMAGE], dynamic=BOTH,
        shapes=OTHER, layers=1,
    ),
    OpCase(
        "nearest-dynamic-size", lambda x: F.interpolate(x, (2 * x.shape[2], 3 * x.shape[3])),
        [IMAGE], dynamic=BOTH, shapes=OTHER, layers=1,
    ),
    OpCase(
        "nearest-dynamic-int-size",
        lambda x: F.interpolate(x, size=(int(2 * x.shape[2]), int(2 * x.shape[3]))), [IMAGE],
        dynamic=BOTH, raises="became a plain number|decides on a size",
    ),
    OpCase(
        "nearest-dynamic-to-fixed", lambda x: F.interpolate(x, (9, 4)), [IMAGE], dynamic=BOTH,
        shapes=OTHER,
    ),
    OpCase(
        "nearest-dynamic-scale", lambda x: F.interpolate(x, scale_factor=(1.7, 0.6)), [IMAGE],
        dynamic=BOTH, shapes=OTHER,
    ),
    OpCase(
        "nearest-exact-dynamic", resized("nearest-exact", scale_factor=1.5), [IMAGE],
        dynamic=BOTH, shapes=OTHER,
    ),
    OpCase(
        "nearest-like-another", lambda x, y: F.interpolate(x, y.shape[-2:]), [IMAGE, (1, 2, 9, 8)],
        dynamic=[{2: (3, 9), 3: (3, 9)}, {2: (3, 20), 3: (3, 20)}],
        shapes=[(1, 2, 6, 4), (1, 2, 5, 11)],
    ),
    OpCase(
        "nearest-fp16", nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample((9, 14))), [IMAGE],
        policy=FP16, **HALF,
    ),
]  # fmt: skip

SMOOTH = [
    OpCase("bilinear", resized("bilinear", scale_factor=2), [IMAGE], layers=1),
    OpCase("bilinear-corners", resized("bilinear", scale_factor=2, align_corners=True), [IMAGE]),
    OpCase("bilinear-size", resized("bilinear", size=(3, 11)), [IMAGE], layers=1),
    OpCase("bilinear-one", resized("bilinear", size=(1, 1), align_corners=True), [IMAGE]),
    OpCase(
        "bilinear-from-one", resized("bilinear", size=(4, 3), align_corners=True), [(1, 2, 1, 1)]
    ),
    OpCase("bilinear-same", lambda x: F.interpolate(x, (5, 7), mode="bilinear") + 1, [IMAGE]),
    OpCase("bilinear-rounded", resized("bilinear", scale_factor=1.5), [IMAGE], **ROUNDED),
    OpCase(
        "bilinear-rounded-odd", resized("bilinear", scale_factor=(1.7, 0.6)), [IMAGE], **ROUNDED
    ),
    OpCase(
        "bilinear-recomputed",
        resized("bilinear", scale_factor=1.7, recompute_scale_factor=True), [IMAGE], **ROUNDED,
    ),
    OpCase("bilinear-module", nn.Upsample(scale_factor=2, mode="bilinear"), [(1, 4, 12, 12)]),
    OpCase(
        "bilinear-module-corners",
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), [(1, 4, 12, 12)],
        **ROUNDED,
    ),
    OpCase("bilinear-upsample", lambda x: F.upsample(x, scale_factor=2, mode="bilinear"), [IMAGE]),
    OpCase("bilinear-module-2d", nn.UpsamplingBilinear2d(scale_factor=2), [IMAGE], **ROUNDED),
    OpCase("bilinear-captured", lambda x: CAPTURED(x, (3, 9), mode="bilinear"), [IMAGE], **ROUNDED),
    OpCase(
        "bilinear-int", resized("bilinear", scale_factor=2),
        [integers(*IMAGE, dtype=torch.uint8)], raises="dtype",
    ),
    OpCase("linear", resized("linear", size=8), [(1, 2, 5)], **ROUNDED),
    OpCase("linear-corners", resized("linear", scale_factor=3, align_corners=True), [(1, 2, 5)],
           **ROUNDED),
    OpCase("linear-rounded", resized("linear", scale_factor=1.3), [(1, 2, 5)], **ROUNDED),
    OpCase("trilinear", resized("trilinear", size=(4, 3, 7)), [(1, 2, 3, 4, 5)], **ROUNDED),
    OpCase(
        "trilinear-corners", resized("trilinear", scale_factor=2, align_corners=True),
        [(1, 2, 3, 4, 5)], **ROUNDED,
    ),
    OpCase(
        "trilinear-rounded", resized("trilinear", scale_factor=1.3), [(1, 2, 3, 4, 5)], **ROUNDED
    ),
    OpCase("bicubic", resized("bicubic", scale_factor=2), [IMAGE], layers=1, **ROUNDED),
    OpCase("bicubic-corners", resized("bicubic", size=(4, 6), align_corners=True), [(1, 2, 4, 4)],
           **ROUNDED),
    OpCase("bicubic-down", resized("bicubic", size=(3, 4)), [(1, 2, 8, 9)], **ROUNDED),
    OpCase("bicubic-rounded", resized("bicubic", scale_factor=0.7), [(1, 2, 8, 9)], **ROUNDED),
    OpCase("bilinear-antialias", resized("bilinear", size=(3, 4), antialias=True), [(1, 2, 8, 9)],
           **ROUNDED),
    OpCase("bilinear-antialias-scale",
           resized("bilinear", scale_factor=0.4, antialias=True), [(1, 2, 8, 9)], **ROUNDED),
    OpCase(
        "bilinear-antialias-corners",
        resized("bilinear", size=(3, 12), antialias=True, align_corners=True), [(1, 2, 8, 9)],
        **ROUNDED,
    ),
    OpCase("bicubic-antialias", resized("bicubic", size=(3, 14), antialias=True), [(1, 2, 8, 9)],
           **ROUNDED),
    OpCase("antialias-dynamic-batch", resized("bilinear", size=(3, 4), antialias=True),
           [(1, 2, 8, 9)], dynamic=[{0: (1, 4)}], shapes=[(3, 2, 8, 9)], **ROUNDED),
    OpCase("antialias-dynamic", resized("bilinear", size=(3, 4), antialias=True),
           [(1, 2, 8, 9)], dynamic=BOTH, shapes=[(2, 2, 5, 19)], **ROUNDED),
    OpCase(
        "bilinear-dynamic", resized("bilinear", scale_factor=2), [IMAGE], dynamic=BOTH,
        shapes=OTHER, **ROUNDED,
    ),
    OpCase(
        "bilinear-dynamic-rounded", resized("bilinear", scale_factor=1.5), [IMAGE], dynamic=BOTH,
        shapes=OTHER, **ROUNDED,
    ),
    OpCase(
        "bilinear-dynamic-odd", resized("bilinear", scale_factor=0.7), [IMAGE], dynamic=BOTH,
        shapes=OTHER, **ROUNDED,
    ),
    *(
        OpCase(
            f"{mode}-{scale}-{which}", resized(mode, scale_factor=scale), [shape],
            dynamic=[dims], shapes=[other], **ROUNDED,
        )
        for mode, shape in (
            ("linear", (2, 3, 7)), ("bilinear", (2, 3, 5, 7)), ("bicubic", (2, 3, 5, 7)),
            ("trilinear", (2, 3, 4, 5, 6)), ("nearest", (2, 3, 5, 7)),
            ("nearest-exact", (2, 3, 5, 7)),
        )
        for scale in (1.7, 0.6)
        for which, dims, other in (
            ("batch", {0: (1, 4)}, (3, *shape[1:])),
            ("width", {0: (1, 4), len(shape) - 1: (4, 12)}, (3, *shape[1:-1], 11)),
        )
    ),
    OpCase(
        "area-batch", resized("area", scale_factor=1.7), [(2, 3, 5, 7)], dynamic=[{0: (1, 4)}],
        shapes=[(3, 3, 5, 7)],
    ),
    OpCase(
        "corners-batch", resized("bilinear", scale_factor=1.7, align_corners=True),
        [(2, 3, 5, 7)], dynamic=[{0: (1, 4)}], shapes=[(3, 3, 5, 7)], **ROUNDED,
    ),
    OpCase(
        "antialias-batch", resized("bilinear", scale_factor=0.6, antialias=True), [(2, 3, 5, 7)],
        dynamic=[{0: (1, 4)}], shapes=[(3, 3, 5, 7)], **ROUNDED,
    ),
    OpCase(
        "upsample-batch", torch.nn.Upsample(scale_factor=1.7, mode="bilinear"), [(2, 3, 5, 7)],
        dynamic=[{0: (1, 4)}], shapes=[(3, 3, 5, 7)], **ROUNDED,
    ),
    OpCase(
        "bilinear-like-another",
        lambda x, y: F.interpolate(x, size=y.shape[2:], mode="bilinear", align_corners=True),
        [IMAGE, (1, 2, 9, 8)],
        dynamic=[{2: (3, 9), 3: (3, 9)}, {2: (3, 20), 3: (3, 20)}],
        shapes=[(1, 2, 6, 4), (1, 2, 5, 11)], **ROUNDED,
    ),
    OpCase(
        "bicubic-dynamic", resized("bicubic", size=(9, 4)), [IMAGE], dynamic=BOTH, shapes=OTHER,
        **ROUNDED,
    ),
    OpCase("area", resized("area", size=(3, 4)), [IMAGE]),
    OpCase("area-scale", resized("area", scale_factor=0.5), [IMAGE]),
    OpCase("area-1d", resized("area", size=3), [(1, 2, 7)]),
    OpCase("area-3d", resized("area", size=(3, 2, 4)), [(1, 2, 5, 4, 6)]),
    OpCase(
        "bilinear-fp16", nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample((9, 14), mode="bilinear")),
        [IMAGE], policy=FP16, **HALF,
    ),
]  # fmt: skip

SHUFFLED = [
    OpCase("pixel-shuffle", nn.PixelShuffle(2), [(1, 8, 3, 4)]),
    OpCase("pixel-shuffle-function", lambda x: F.pixel_shuffle(x, 3), [(2, 9, 3, 4)]),
    OpCase("pixel-shuffle-3d", nn.PixelShuffle(2), [(8, 3, 4)]),
    OpCase(
        "pixel-shuffle-dynamic", nn.PixelShuffle(2), [(1, 8, 3, 4)],
        dynamic=[{0: (1, 4), 2: (1, 9), 3: (1, 9)}], shapes=[(2, 8, 5, 2)],
    ),
    OpCase("pixel-unshuffle", nn.PixelUnshuffle(2), [(1, 2, 4, 6)]),
    OpCase(
        "pixel-unshuffle-dynamic", nn.PixelUnshuffle(2), [(1, 2, 4, 6)], dynamic=[{0: (1, 4)}],
        shapes=[(3, 2, 4, 6)],
    ),
    OpCase("channel-shuffle", nn.ChannelShuffle(2), [(1, 6, 3, 4)]),
    OpCase("channel-shuffle-function", lambda x: F.channel_shuffle(x, 3), [(2, 6, 3, 4)]),
]  # fmt: skip

GRID = {"rtol": 1e-4, "atol": 1e-5, "reason": "weights of places far apart are rounded"}
SAMPLED = [
    OpCase(
        "grid-border",
        lambda x, g: F.grid_sample(x, g, "bilinear", "border", align_corners=True),
        [(1, 3, 32, 52), (1, 32, 52, 2)], layers=1, **GRID,
    ),
    *(
        OpCase(
            f"grid-{mode}-{padding}-{corners}",
            lambda x, g, a=(mode, padding, corners): F.grid_sample(x, g, *a),
            [(2, 3, 5, 6), (2, 4, 3, 2)], **GRID,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    ),
    OpCase("grid-3d", lambda x, g: F.grid_sample(x, g, align_corners=False),
           [(1, 2, 3, 4, 5), (1, 2, 3, 4, 3)], **GRID),
    OpCase(
        "grid-dynamic", lambda x, g: F.grid_sample(x, g, align_corners=False),
        [(2, 3, 5, 6), (2, 4, 3, 2)],
        dynamic=[{0: ("n", 1, 4), 2: (2, 9)}, {0: ("n", 1, 4), 1: (2, 9)}],
        shapes=[(3, 3, 7, 6), (3, 2, 3, 2)], **GRID,
    ),
    OpCase("grid-fp16", lambda x, g: F.grid_sample(x, g, align_corners=False),
           [(2, 3, 5, 6), (2, 4, 3, 2)], policy=FP16, **GRID),
    OpCase("affine-grid", lambda t: F.affine_grid(t, (2, 3, 4, 5), False), [(2, 2, 3)]),
    OpCase(
        "affine-grid-autocast", Autocast(lambda t: F.affine_grid(t, (2, 3, 4, 5), False)),
        [(2, 2, 3)], rtol=2e-2, atol=2e-2, reason="PyTorch computes in bfloat16, not only rounds",
    ),
    OpCase("affine-grid-corners", lambda t: F.affine_grid(t, (2, 3, 4, 5), True), [(2, 2, 3)]),
    OpCase("affine-grid-3d", lambda t: F.affine_grid(t, (2, 3, 4, 5, 3), False), [(2, 3, 4)]),
    OpCase(
        "affine-grid-dynamic-image", lambda x, t: F.affine_grid(t, x.size(), False),
        [(2, 3, 4, 5), (2, 2, 3)], dynamic=[{2: (2, 9)}, {}], raises="size=",
    ),
    OpCase("affine-grid-generator", lambda t: GENERATOR(t, [2, 3, 4, 5], False), [(2, 2, 3)]),
    OpCase("affine-grid-constant", lambda x: F.grid_sample(
        x, F.affine_grid(torch.eye(2, 3)[None], [1, 2, 3, 4], False), align_corners=False),
        [(1, 2, 5, 6)], **GRID,
    ),
    OpCase(
        "affine-grid-like-image",
        lambda x, t: F.grid_sample(x, F.affine_grid(t, x.size(), False), align_corners=False),
        [(2, 3, 4, 5), (2, 2, 3)], **GRID,
    ),
    OpCase(
        "affine-grid-dynamic",
        lambda x, t: F.grid_sample(x, F.affine_grid(t, x.size(), False), align_corners=False),
        [(2, 3, 4, 5), (2, 2, 3)], dynamic=[{0: ("n", 1, 4)}, {0: ("n", 1, 4)}],
        shapes=[(3, 3, 4, 5), (3, 2, 3)], **GRID,
    ),
]  # fmt: skip


# torch announces that F.upsample will go, and what align_corners is by default.
@pytest.mark.filterwarnings("ignore:`nn.functional.upsample` is deprecated")
@pytest.mark.filterwarnings("ignore:The default value of recompute_scale_factor")
@pytest.mark.parametrize("case", ids([*NEAREST, *SMOOTH, *SHUFFLED, *SAMPLED]))
def test_resize(case: OpCase) -> None:
    run_case(case)
