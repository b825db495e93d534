"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.layers.padding import Window, flat_pads
from t2t.reference.registry import Kernel, layer

_MAX = {2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {2: F.avg_pool2d, 3: F.avg_pool3d}
_Sides = list[tuple[int, int, int]]


@layer(
    "POOLING",
    "type",
    "window_size_nd",
    "stride_nd",
    "pre_padding",
    "post_padding",
    "padding_mode",
    "blend_factor",
    "average_count_excludes_padding",
)
def pooling(ready: Ready) -> Kernel:
    """(N, C, *spatial): maximum, average, or (1 - blend) * maximum + blend * average."""
    a = ready.attributes
    window = Window(
        a["padding_mode"],
        tuple(a["window_size_nd"]),
        tuple(a["stride_nd"]),
        tuple(a["pre_padding"]),
        tuple(a["post_padding"]),
    )
    inside_only = a["average_count_excludes_padding"]
    blend = a["blend_factor"]

    def blended(x: Tensor, window: Window, sides: _Sides) -> Tensor:
        average = _average(x, window, sides, inside_only)
        return torch.lerp(_maximum(x, window, sides), average, blend)

    def average(x: Tensor, window: Window, sides: _Sides) -> Tensor:
        return _average(x, window, sides, inside_only)

    pools: dict[str, Callable[[Tensor, Window, _Sides], Tensor]] = {
        "MAX": _maximum,
        "AVERAGE": average,
        "MAX_AVERAGE_BLEND": blended,
    }
    pool = pools[a["type"]]

    def kernel(x: Tensor) -> Tensor:
        spatial = len(window.extent)
        batched = x if x.dim() >= spatial + 2 else x.unsqueeze(0)
        # More than one batch dimension is one to TensorRT.
        flat = batched.reshape(-1, *batched.shape[-spatial - 1 :])
        result = pool(wide(flat), window, window.sides(x.shape[-spatial:])).to(ready.dtype)
        return result.reshape(*x.shape[: -spatial - 1], *result.shape[-spatial - 1 :])

    return kernel


def _maximum(x: Tensor, window: Window, sides: _Sides) -> Tensor:
    pads = [(pre, post + over) for pre, post, over in sides]
    even = all(
        pre == post and 2 * pre <= extent
        for (pre, post), extent in zip(pads, window.extent, strict=True)
    )
    run = _MAX[len(pads)]
    if even:
        return run(x, window.extent, window.stride, tuple(pre for pre, _ in pads))
    padded = F.pad(x, flat_pads(pads), value=-math.inf)
    return run(padded, window.extent, window.stride)


def _average(x: Tensor, window: Window, sides: _Sides, inside_only: bool) -> Tensor:
    run = _AVERAGE[len(sides)]
    if not any(map(any, sides)):
        return run(x, window.extent, window.stride)
    if all(pre == post and not over for pre, post, over in sides) and all(
        2 * pre <= extent for (pre, _, _), extent in zip(sides, window.extent, strict=True)
    ):
        padding = tuple(pre for pre, _, _ in sides)
        return run(x, window.extent, window.stride, padding, count_include_pad=not inside_only)
    pads = [(pre, post + over) for pre, post, over in sides]
    sums = run(F.pad(x, flat_pads(pads)), window.extent, window.stride, divisor_override=1)
    # The divisor is the overlap of window and input, padded by all but the overhang.
    counted = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    if not inside_only:
        counted = F.pad(counted, flat_pads([(pre, post) for pre, post, _ in sides]), value=1.0)
        pads = [(0, over) for _, _, over in sides]
    counts = run(F.pad(counted, flat_pads(pads)), window.extent, window.stride, divisor_override=1)
    return sums / counts
