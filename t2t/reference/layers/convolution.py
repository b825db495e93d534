"""Convolution and deconvolution."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from t2t.errors import UnsupportedLayerError
from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.layers.padding import Window, flat_pads
from t2t.reference.registry import Kernel, layer

_ATTRIBUTES = (
    "num_output_maps",
    "kernel_size_nd",
    "stride_nd",
    "dilation_nd",
    "pre_padding",
    "post_padding",
    "padding_mode",
    "num_groups",
)
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_DECONV = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _weight(ready: Ready, name: str, position: int, shape: tuple[int, ...]) -> Tensor | None:
    """Return a weight in the type it is accumulated in; None where an input brings it."""
    own = ready.weights.get(name, ready.constants.get(position))
    return None if own is None else wide(own.reshape(shape).contiguous())


def _parameters(
    ready: Ready, kernel_shape: tuple[int, ...]
) -> Callable[[Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]:
    kernel = _weight(ready, "kernel", 1, kernel_shape)
    bias = _weight(ready, "bias", 2, (-1,))

    def parameters(kernel_in: Tensor | None, bias_in: Tensor | None) -> tuple[Tensor, Any]:
        weight = wide(kernel_in) if kernel is None and kernel_in is not None else kernel
        if weight is None:
            raise UnsupportedLayerError(f"{ready.kind} {ready.name!r} has no kernel")
        late = bias is None and bias_in is not None
        return weight, wide(bias_in.reshape(-1)) if late and bias_in is not None else bias

    return parameters


def _window(ready: Ready) -> Window:
    a = ready.attributes
    extent = tuple(
        1 + d * (k - 1) for d, k in zip(a["dilation_nd"], a["kernel_size_nd"], strict=True)
    )
    return Window(
        a["padding_mode"],
        extent,
        tuple(a["stride_nd"]),
        tuple(a["pre_padding"]),
        tuple(a["post_padding"]),
    )


@layer("CONVOLUTION", *_ATTRIBUTES, weights=("kernel", "bias"))
def convolution(ready: Ready) -> Kernel:
    """(N, C, *spatial) to (N, K, *spatial): correlation, then the bias, rounded once."""
    a = ready.attributes
    size = tuple(a["kernel_size_nd"])
    parameters = _parameters(ready, (a["num_output_maps"], -1, *size))
    window = _window(ready)
    run = functools.partial(
        _CONV[len(size)],
        stride=tuple(a["stride_nd"]),
        dilation=tuple(a["dilation_nd"]),
        groups=a["num_groups"],
    )

    def kernel(x: Tensor, kernel_in: Tensor | None = None, bias_in: Tensor | None = None) -> Tensor:
        weight, bias = parameters(kernel_in, bias_in)
        sides = [(pre, post + over) for pre, post, over in window.sides(x.shape[2:])]
        data = wide(x)
        if any(pre != post for pre, post in sides):
            data = F.pad(data, flat_pads(sides))
            sides = [(0, 0)] * len(sides)
        return run(data, weight, bias, padding=tuple(pre for pre, _ in sides)).to(ready.dtype)

    return kernel


@layer("DECONVOLUTION", *_ATTRIBUTES, weights=("kernel", "bias"))
def deconvolution(ready: Ready) -> Kernel:
    """(N, C, *spatial) to (N, K, *spatial): each value spreads the kernel; padding crops."""
    a = ready.attributes
    size = tuple(a["kernel_size_nd"])
    groups = a["num_groups"]
    maps = a["num_output_maps"] // groups
    parameters = _parameters(ready, (-1, maps, *size))
    window = _window(ready)
    run = functools.partial(
        _DECONV[len(size)],
        stride=tuple(a["stride_nd"]),
        dilation=tuple(a["dilation_nd"]),
        groups=groups,
    )

    def kernel(x: Tensor, kernel_in: Tensor | None = None, bias_in: Tensor | None = None) -> Tensor:
        weight, bias = parameters(kernel_in, bias_in)
        crops = _crops(window)
        if all(pre == post for pre, post in crops):
            result = run(wide(x), weight, bias, padding=tuple(pre for pre, _ in crops))
        else:
            result = run(wide(x), weight, bias)
            for axis, (pre, post) in enumerate(crops, start=2):
                result = result.narrow(axis, pre, result.shape[axis] - pre - post)
        return result.to(ready.dtype)

    return kernel


def _crops(window: Window) -> list[tuple[int, int]]:
    """Return what is cut off before and after: the padding of the convolution turned round."""
    if not window.mode.startswith("SAME"):
        return list(zip(window.pre, window.post, strict=True))
    crops = []
    for extent, stride in zip(window.extent, window.stride, strict=True):
        total = max(extent - stride, 0)
        small = total // 2
        upper = window.mode == "SAME_UPPER"
        crops.append((small, total - small) if upper else (total - small, small))
    return crops
