"""Where in its input each window of a max pooling has its maximum, as torch numbers the indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import static_number
from t2t.converters._compute import working_dtype
from t2t.converters._windows import Windows
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor

__all__ = ["adaptive_elements", "indices_of_maxima", "window_elements"]

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
