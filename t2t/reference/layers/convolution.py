"""Convolution, deconvolution and pooling: windows that slide over padded tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.errors import UnsupportedLayerError
from t2t.reference.layer import Kernel, Ready, layer, wide

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


# -- pooling ---------------------------------------------------------------------------------------


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


# -- padding of windows ----------------------------------------------------------------------------


class Window(NamedTuple):
    """A sliding window as convolution and pooling have it; one number a spatial dimension.

    Attributes:
        mode: name of the PaddingMode.
        extent: the window's size, dilation included.
        stride: the window's steps.
        pre: explicit padding before.
        post: explicit padding after.
    """

    mode: str
    extent: tuple[int, ...]
    stride: tuple[int, ...]
    pre: tuple[int, ...]
    post: tuple[int, ...]

    def sides(self, sizes: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return (padding before, padding after, overhang) for the sizes of an input.

        The overhang is what the last window of EXPLICIT_ROUND_UP needs beyond the padding.
        """
        if self.mode.startswith("SAME"):
            return [
                (*_same(self.mode, size, extent, stride), 0)
                for size, extent, stride in zip(sizes, self.extent, self.stride, strict=True)
            ]
        rows = zip(sizes, self.extent, self.stride, self.pre, self.post, strict=True)
        return [
            (pre, post, self._overhang(size + pre + post, extent, stride))
            for size, extent, stride, pre, post in rows
        ]

    def _overhang(self, padded: int, extent: int, stride: int) -> int:
        if self.mode != "EXPLICIT_ROUND_UP":
            return 0
        steps = math.ceil((padded - extent) / stride)
        return max(steps * stride + extent - padded, 0)


def _same(mode: str, size: int, extent: int, stride: int) -> tuple[int, int]:
    total = max((size - 1) // stride * stride + extent - size, 0)
    small = total // 2
    return (small, total - small) if mode == "SAME_UPPER" else (total - small, small)


def flat_pads(sides: Sequence[tuple[int, int]]) -> list[int]:
    """Return paddings in the order of torch.nn.functional.pad: last dimension first."""
    return [amount for side in reversed(sides) for amount in side]
