"""The layers of max and average pooling, 1-d to 3-d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from t2t.converters._arguments import ntuple
from t2t.converters._spatial import batched, planar, restored, window_count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.sizes import has_symbol, static_size

__all__ = ["Windows", "average_pool", "max_pool"]


class Windows(NamedTuple):
    """The windows of a pooling; one number a spatial dimension, in elements.

    Attributes:
        size: elements a window has.
        stride: its steps.
        padding: padding per side.
        dilation: distance of a window's elements.
        ceil: the last window may stand over the end, if it starts inside.
    """

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil: bool

    @classmethod
    def of(
        cls,
        n: int,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Windows:
        """Bring torch's arguments to tuples of ``n``; a size may be symbolic."""
        size = kernel_size if has_symbol(kernel_size) else ntuple("kernel_size", kernel_size, n)
        size = tuple(size) if isinstance(size, Sequence) else (size,) * n
        # None and an empty list mean: as large as the window.
        given = isinstance(stride, int) or bool(stride)
        steps = size if not given else ntuple("stride", stride, n)
        pads, rates = ntuple("padding", padding, n), ntuple("dilation", dilation, n)
        return cls(size, steps, pads, rates, bool(ceil_mode))

    def counts(self, sizes: Sequence[Any], up: bool | None = None) -> list[Any]:
        """Return how many windows torch uses in a tensor of these spatial sizes."""
        up = self.ceil if up is None else up
        rows = zip(sizes, self.size, self.stride, self.padding, self.dilation, strict=True)
        return [_count(size, d * (k - 1) + 1, s, p, up) for size, k, s, p, d in rows]

    def is_whole(self, sizes: Sequence[Any]) -> bool:
        """Return whether one window is the whole input."""
        return same_sizes(self.size, sizes) and not any(self.padding)


def _count(size: Any, extent: Any, stride: Any, pad: int, up: bool) -> Any:
    count = window_count(size, extent, stride, 2 * pad, up)
    if up and pad + stride - 1 >= extent:
        # A window that would start behind the input and its padding before is dropped.
        count = torch.sym_min(count, (size + pad + stride - 1) // stride)
    return count


def max_pool(net: Network, input: torch.Tensor, n: int, windows: Windows) -> NetworkTensor:
    """Convert ([N], C, *spatial) to ([N], C, *windows), the maximum of each window."""
    sizes = input.shape[-n:]
    x = net.tensor(input)
    if windows.is_whole(sizes):
        return net.add_reduce(x, "MAX", _spatial_axes(x, n), keep_dims=True)
    if max(windows.dilation) > 1 or not input.dtype.is_floating_point:
        return _maximum_of_slices(net, x, input.shape, n, windows)
    return _pooling(net, x, input, n, windows, "MAX")


def _spatial_axes(x: NetworkTensor, n: int) -> range:
    return range(len(x.shape) - n, len(x.shape))


def _pooling(
    net: Network,
    x: NetworkTensor,
    input: torch.Tensor,
    n: int,
    windows: Windows,
    kind: str,
    padding: Sequence[int] | None = None,
    count_padding: bool | None = None,
) -> NetworkTensor:
    """Add the layer; ``padding`` is what is left to it of the windows' own."""
    pads = windows.padding if padding is None else padding
    sizes = input.shape[-n:]
    wanted = windows.counts(sizes)
    down = windows.counts(sizes, up=False)
    up = not same_sizes(wanted, down)
    y = net.add_pooling_nd(
        batched(net, x, n),
        kind,
        planar(ntuple("kernel_size", windows.size, n), 1),
        stride=planar(ntuple("stride", windows.stride, n), 1),
        pre_padding=planar(pads, 0),
        post_padding=planar(pads, 0),
        padding_mode="EXPLICIT_ROUND_UP" if up else "EXPLICIT_ROUND_DOWN",
        average_count_excludes_padding=None if count_padding is None else not count_padding,
    )
    y = restored(net, y, input.dim(), n)
    if up and not same_sizes(wanted, _rounded_up(sizes, windows)):
        y = net.add_slice(y, [0] * input.dim(), [*input.shape[:-n], *wanted])
    return y


def _rounded_up(sizes: Sequence[Any], windows: Windows) -> list[Any]:
    """Return how many windows TensorRT rounds up to."""
    rows = zip(sizes, windows.size, windows.stride, windows.padding, strict=True)
    return [window_count(size, k, s, 2 * p, up=True) for size, k, s, p in rows]


def _maximum_of_slices(
    net: Network, x: NetworkTensor, shape: Sequence[Any], n: int, windows: Windows
) -> NetworkTensor:
    """Take the maximum of shifted strided slices, axis by axis: IPoolingLayer has no dilation."""
    dtype = net.dtype_of(x)
    lowest = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    now = list(shape)
    counts = windows.counts(shape[-n:])
    for i, count in enumerate(counts):
        axis = len(now) - n + i
        length, now[axis] = static_size(now[axis]), count
        step, pad = windows.stride[i], windows.padding[i]
        best: NetworkTensor | None = None
        for start in range(-pad, windows.size[i] * windows.dilation[i] - pad, windows.dilation[i]):
            last = None if static_size(count) is None else start + (int(count) - 1) * step
            inside = start >= 0 and length is not None and last is not None and last < length
            part = net.add_slice(
                x,
                [start if a == axis else 0 for a in range(len(now))],
                now,
                [step if a == axis else 1 for a in range(len(now))],
                mode="STRICT_BOUNDS" if inside else "FILL",
                fill=None if inside else lowest,
            )
            best = part if best is None else net.add_elementwise(best, part, "MAX")
        assert best is not None
        x = best
    return x


def average_pool(
    net: Network,
    input: torch.Tensor,
    n: int,
    windows: Windows,
    count_include_pad: bool,
    divisor_override: int | None,
) -> NetworkTensor:
    """Convert ([N], C, *spatial) to ([N], C, *windows), the mean of each window.

    The divisor is ``divisor_override``, or the number of a window's elements in the input, with
    ``count_include_pad`` also of those in the padding, but never of those behind it.
    """
    if not input.dtype.is_floating_point:
        raise UnsupportedArgumentError(
            f"dtype={input.dtype}: TensorRT's average is of floating types only"
        )
    x = net.tensor(input, net.output.dtype)
    if windows.is_whole(input.shape[-n:]) and divisor_override is None:
        return net.add_reduce(x, "AVG", _spatial_axes(x, n), keep_dims=True)
    if divisor_override is not None:
        return _sum_pool(net, x, input, n, windows, divisor_override)
    if not any(windows.padding) or not count_include_pad:
        return _pooling(net, x, input, n, windows, "AVERAGE", count_padding=False)
    sizes = input.shape[-n:]
    if same_sizes(windows.counts(sizes), windows.counts(sizes, up=False)):
        return _pooling(net, x, input, n, windows, "AVERAGE", count_padding=True)
    # TensorRT has one switch for padding and what stands over the end: torch counts only one.
    fixed = input.dim() - n
    start = [0] * fixed + [-pad for pad in windows.padding]
    larger = [size + 2 * pad for size, pad in zip(sizes, windows.padding, strict=True)]
    x = net.add_slice(x, start, [*input.shape[:fixed], *larger], mode="FILL", fill=0.0)
    return _pooling(net, x, input, n, windows, "AVERAGE", [0] * n, count_padding=False)


def _sum_pool(
    net: Network, x: NetworkTensor, input: torch.Tensor, n: int, windows: Windows, divisor: int
) -> NetworkTensor:
    """Sum each window, as its mean times its size, and divide."""
    size = ntuple("kernel_size", windows.size, n)
    # Rounding up is rounding down with more zeros at the end.
    more = [stride - 1 if windows.ceil else 0 for stride in windows.stride]
    y = net.add_pooling_nd(
        batched(net, x, n),
        "AVERAGE",
        planar(size, 1),
        stride=planar(windows.stride, 1),
        pre_padding=planar(windows.padding, 0),
        post_padding=planar([p + m for p, m in zip(windows.padding, more, strict=True)], 0),
        average_count_excludes_padding=False,
    )
    y = restored(net, y, input.dim(), n)
    sizes, wanted = input.shape[-n:], windows.counts(input.shape[-n:])
    if windows.ceil and not same_sizes(wanted, _rounded_up(sizes, windows)):
        y = net.add_slice(y, [0] * input.dim(), [*input.shape[:-n], *wanted])
    return net.add_elementwise(y, math.prod(size) / divisor, "PROD")
