"""Adaptive pooling: windows of different sizes, so that there are as many as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import static_number
from t2t.converters._spatial import batched, restored
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.sizes import static_size, times

__all__ = ["adaptive"]


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
    planar = (*windows, 1) if n == 1 else tuple(windows)
    kind = "AVERAGE" if average else "MAX"
    y = net.add_pooling_nd(batched(net, x, n), kind, planar, stride=planar)
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
