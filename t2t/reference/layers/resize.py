"""Resize, axis by axis, and sampling at given points."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.layer import Kernel, Ready, ints, layer, wide


@layer(
    "RESIZE",
    "shape",
    "scales",
    "resize_mode",
    "coordinate_transformation",
    "nearest_rounding",
    "selector_for_single_pixel",
    "cubic_coeff",
    "exclude_outside",
    host=(1,),
)
def resize(ready: Ready) -> Kernel:
    """Any rank; only axes whose size changes are interpolated."""
    a, dtype = ready.attributes, ready.dtype

    def kernel(x: Tensor, shape_in: Tensor | None = None) -> Tensor:
        scales = [float(scale) for scale in a["scales"] or ()]
        if shape_in is not None:
            sizes = ints(shape_in)
        elif scales:
            sizes = [math.floor(n * scale) for n, scale in zip(x.shape, scales, strict=True)]
        else:
            sizes = list(a["shape"])
        data = wide(x)
        for axis, size in enumerate(sizes):
            ratio = scales[axis] if scales else size / max(x.shape[axis], 1)
            if size != x.shape[axis] or ratio != 1.0:
                data = _along(data, axis, size, ratio, a)
        return data.to(dtype)

    return kernel


def _along(x: Tensor, axis: int, size: int, scale: float, a: dict[str, object]) -> Tensor:
    length = x.shape[axis]
    places = _coordinates(length, size, scale, a)
    if a["resize_mode"] == "NEAREST":
        index = _rounded(places, str(a["nearest_rounding"])).clamp(0, length - 1).long()
        return x.index_select(axis, index.to(x.device))
    if a["resize_mode"] == "LINEAR":
        # Outside the input the border's value is taken.
        places = places.clamp(0, length - 1)
        first = places.floor()
        taps, weights = _linear(places - first)
    else:
        first = places.floor()
        taps, weights = _cubic(places - first, float(str(a["cubic_coeff"])))
    index = first.unsqueeze(1) + taps
    if a["resize_mode"] == "CUBIC" and a["exclude_outside"]:
        weights = weights * ((index >= 0) & (index < length))
        weights = weights / weights.sum(1, keepdim=True)
    index = index.clamp(0, length - 1).long().to(x.device)
    weights = weights.to(x.device, x.dtype)
    shape = [-1 if a_ == axis else 1 for a_ in range(x.dim())]
    result = x.index_select(axis, index[:, 0]) * weights[:, 0].reshape(shape)
    for tap in range(1, index.shape[1]):
        result = result + x.index_select(axis, index[:, tap]) * weights[:, tap].reshape(shape)
    return result


def _coordinates(length: int, size: int, scale: float, a: dict[str, object]) -> Tensor:
    """Return each output element's place in the input, in double precision."""
    index = torch.arange(size, dtype=torch.float64)
    if size == 1 and a["selector_for_single_pixel"] == "UPPER":
        return torch.zeros(1, dtype=torch.float64)
    mode = a["coordinate_transformation"]
    if mode == "ALIGN_CORNERS":
        return index * ((length - 1) / (size - 1)) if size > 1 else index * 0.0
    if mode == "HALF_PIXEL":
        return (index + 0.5) / scale - 0.5
    return index / scale


def _rounded(places: Tensor, rounding: str) -> Tensor:
    if rounding == "HALF_UP":
        return (places + 0.5).floor()
    if rounding == "HALF_DOWN":
        return (places - 0.5).ceil()
    return places.floor() if rounding == "FLOOR" else places.ceil()


def _linear(fraction: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tensor([0.0, 1.0]), torch.stack([1.0 - fraction, fraction], 1)


def _cubic(fraction: Tensor, coefficient: float) -> tuple[Tensor, Tensor]:
    """Weights of the four neighbours by Keys' kernel with the given coefficient."""
    a = coefficient
    distances = torch.stack([1.0 + fraction, fraction, 1.0 - fraction, 2.0 - fraction], 1)
    near = ((a + 2.0) * distances - (a + 3.0)) * distances**2 + 1.0
    far = ((a * distances - 5.0 * a) * distances + 8.0 * a) * distances - 4.0 * a
    weights = torch.where(distances <= 1.0, near, far)
    return torch.tensor([-1.0, 0.0, 1.0, 2.0]), weights


# -- sampling at given points ----------------------------------------------------------------------


_MODES = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
_PADDINGS = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


@layer("GRID_SAMPLE", "interpolation_mode", "align_corners", "sample_mode")
def grid_sample(ready: Ready) -> Kernel:
    """(N, C, *spatial) sampled at (N, *out, 2 or 3): coordinates in [-1, 1], last axis first."""
    a, dtype = ready.attributes, ready.dtype
    mode = _MODES[a["interpolation_mode"]]
    padding, corners = _PADDINGS[a["sample_mode"]], a["align_corners"]

    def kernel(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(wide(x), wide(grid), mode, padding, corners).to(dtype)

    return kernel
