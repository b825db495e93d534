"""The layers of max, average and adaptive pooling, 1-d to 3-d, and the indices of maxima."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from t2t.converters._arguments import ntuple, static_number
from t2t.converters._compute import working_dtype
from t2t.converters._spatial import batched, planar, restored, window_count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.sizes import has_symbol, static_size, times


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


# -- adaptive pooling ------------------------------------------------------------------------------


def adaptive(
    net: Network, x: NetworkTensor, sizes: Sequence[Any], after: Sequence[Any], average: bool
) -> NetworkTensor:
    """Pool the last ``len(after)`` dimensions to the sizes ``after``.

    As torch, window ``i`` of ``m`` over ``n`` elements goes from floor(i n / m) to
    ceil((i + 1) n / m).

    Args:
        net: the network.
        x: the tensor, batched or not.
        sizes: all its sizes, perhaps symbolic.
        after: sizes of the result.
        average: pool by the mean; else by the maximum.
    """
    now = list(sizes)
    fixed = len(now) - len(after)
    kind = "AVG" if average else "MAX"
    whole = [
        fixed + i
        for i, m in enumerate(after)
        if static_size(m) == 1 and static_size(now[fixed + i]) != 1
    ]
    if whole:
        x = net.add_reduce(x, kind, whole, keep_dims=True)
        now = [1 if axis in whole else size for axis, size in enumerate(now)]
    windows = [_ratio(size, m) for size, m in zip(now[fixed:], after, strict=True)]
    if net.dtype_of(x).is_floating_point and any(window > 1 for window in windows):
        x = _equal_windows(net, x, windows, average)
        for i, window in enumerate(windows):
            now[fixed + i] = now[fixed + i] if window == 1 else after[i]
    for i, m in enumerate(after):
        axis = fixed + i
        if same_sizes([now[axis]], [m]):
            continue
        count = static_number("output_size", m)
        if static_size(now[axis]) is None:
            x = _dynamic_axis(net, x, now, axis, count, kind)
        else:
            x = _static_axis(net, x, now, axis, count, average)
        now[axis] = count
    return x


def _ratio(size: Any, count: Any) -> int:
    """Return the size of all windows, or 1 where they differ or are not known."""
    return times(size, count) or 1


def _equal_windows(
    net: Network, x: NetworkTensor, windows: Sequence[int], average: bool
) -> NetworkTensor:
    n, rank = len(windows), len(x.shape)
    size, kind = planar(windows, 1), "AVERAGE" if average else "MAX"
    y = net.add_pooling_nd(batched(net, x, n), kind, size, stride=size)
    return restored(net, y, rank, n)


def _bounds(length: Any, count: int) -> list[tuple[Any, Any]]:
    return [(i * length // count, ((i + 1) * length + count - 1) // count) for i in range(count)]


def _static_axis(
    net: Network, x: NetworkTensor, now: Sequence[Any], axis: int, count: int, average: bool
) -> NetworkTensor:
    """Gather each window's elements into a new dimension, and reduce that."""
    length = int(now[axis])
    bounds = _bounds(length, count)
    extents = [end - start for start, end in bounds]
    longest = max(extents)
    even = min(extents) == longest
    # A window that is shorter repeats its last element, or for sums takes a zero from behind.
    rows = [
        [start + j if start + j < end else (length if average else end - 1) for j in range(longest)]
        for start, end in bounds
    ]
    if longest == 1:
        return net.add_gather(x, torch.tensor([row[0] for row in rows], dtype=torch.int32), axis)
    if average and not even:
        longer = [size + 1 if i == axis else size for i, size in enumerate(now)]
        x = net.add_slice(x, [0] * len(longer), longer, mode="FILL", fill=0.0)
    gathered = net.add_gather(x, torch.tensor(rows, dtype=torch.int32), axis)
    if even or not average:
        return net.add_reduce(gathered, "AVG" if average else "MAX", axis + 1, keep_dims=False)
    total = net.add_reduce(gathered, "SUM", axis + 1, keep_dims=False)
    shape = [count if i == axis else 1 for i in range(len(now))]
    divisor = net.constant(torch.tensor(extents).reshape(shape), net.dtype_of(x))
    return net.add_elementwise(total, divisor, "DIV")


def _dynamic_axis(
    net: Network, x: NetworkTensor, now: Sequence[Any], axis: int, count: int, kind: str
) -> NetworkTensor:
    """Slice each window out, and reduce it: the number of windows is fixed, not their sizes."""
    parts = []
    for start, end in _bounds(now[axis], count):
        first = [start if i == axis else 0 for i in range(len(now))]
        extent = [end - start if i == axis else size for i, size in enumerate(now)]
        parts.append(net.add_reduce(net.add_slice(x, first, extent), kind, axis, keep_dims=True))
    return net.add_concatenation(parts, axis)


# -- indices of maxima -----------------------------------------------------------------------------


MAX_ELEMENTS = 1 << 20
"""Most entries of the table of all windows' elements."""


def window_elements(sizes: Sequence[Any], windows: Windows) -> torch.Tensor:
    """Return each window's elements, (windows, elements), numbered over the spatial dimensions.

    What lies in the padding is replaced by the window's first element.
    """
    lengths = _static(sizes)
    rows = zip(
        lengths, windows.counts(sizes), windows.size, windows.stride, windows.padding,
        windows.dilation, strict=True,
    )  # fmt: skip
    axes = []
    for length, count, size, stride, padding, dilation in rows:
        starts = [index * stride - padding for index in range(int(count))]
        ends = [start + int(size) * dilation for start in starts]
        windows_of_axis = [
            range(start, end, dilation) for start, end in zip(starts, ends, strict=True)
        ]
        axes.append([[index for index in w if 0 <= index < length] for w in windows_of_axis])
    return _table(lengths, axes)


def adaptive_elements(sizes: Sequence[Any], counts: Sequence[Any]) -> torch.Tensor:
    """Return the elements of the windows of an adaptive pooling, as `window_elements` does."""
    lengths = _static(sizes)
    axes = [
        [
            list(range(index * length // count, -(-(index + 1) * length // count)))
            for index in range(count)
        ]
        for length, count in zip(lengths, _static(counts), strict=True)
    ]
    return _table(lengths, axes)


def _static(sizes: Sequence[Any]) -> list[int]:
    return [static_number("return_indices=True: size", size) for size in sizes]


def _table(lengths: Sequence[int], axes: Sequence[Sequence[Sequence[int]]]) -> torch.Tensor:
    most = math.prod(max(map(len, windows)) for windows in axes)
    entries = most * math.prod(map(len, axes))
    if entries > MAX_ELEMENTS:
        raise UnsupportedArgumentError(
            f"return_indices=True: its windows have {entries} elements, at most {MAX_ELEMENTS}"
        )
    steps = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    rows = []
    for windows in itertools.product(*axes):
        row = [
            sum(index * step for index, step in zip(point, steps, strict=True))
            for point in itertools.product(*windows)
        ]
        rows.append(row + row[:1] * (most - len(row)))
    return torch.tensor(rows, dtype=torch.int32)


def indices_of_maxima(
    net: Network, input: torch.Tensor, n: int, table: torch.Tensor, output: torch.Tensor
) -> NetworkTensor:
    """Convert ([N], C, *spatial) to the index of each window's maximum, int64.

    Torch takes the first of equal ones, and the last NaN.

    Args:
        net: the network.
        input: what is pooled.
        n: number of spatial dimensions.
        table: the windows' elements.
        output: torch's answer.
    """
    lead = input.shape[: input.ndim - n]
    plane = math.prod(int(size) for size in input.shape[input.ndim - n :])
    x = net.tensor(input, working_dtype(input.dtype))
    elements = net.add_gather(net.reshape(x, [*lead, plane]), table, len(lead))
    axis = len(lead) + 1
    shaped = table.reshape([1] * len(lead) + list(table.shape))
    best = net.add_reduce(elements, "MAX", axis, keep_dims=True)
    found = net.add_elementwise(elements, best, "EQUAL")
    first = net.add_select(found, shaped, plane - 1, dtype=torch.int32)
    indices = net.add_reduce(first, "MIN", axis, keep_dims=False)
    if input.is_floating_point():
        missing = net.add_unary(elements, "ISNAN")
        last = net.add_select(missing, shaped, -1, dtype=torch.int32)
        last = net.add_reduce(last, "MAX", axis, keep_dims=False)
        some = net.add_elementwise(last, 0, "LESS", dtype=torch.int32)
        indices = net.add_select(some, indices, last)
    return net.cast(net.reshape(indices, output.shape), torch.int64)
