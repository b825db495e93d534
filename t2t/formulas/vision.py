"""torchvision's operators on boxes, and its convolution at moved points.

They are registered by name, as `import t2t` does not import torchvision. All boxes are computed at
once: how many there are may be dynamic, and no number of layers depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from t2t.errors import UnsupportedArgumentError
from t2t.formulas.arithmetic import in_float32
from t2t.registry import Formula, Precision, formulas
from t2t.sizes import largest
from t2t.torch_internals import FakeTensor

_F = TypeVar("_F", bound=Callable[..., Any])


def _formula(name: str, precision: Precision) -> Callable[[_F], _F]:
    """Register a formula of an operator that does not exist before torchvision is imported."""

    def register(function: _F) -> _F:
        formulas.add(Formula(function, (f"torchvision::{name}",), precision), override=False)
        return function

    return register


# -- averages of samples ---------------------------------------------------------------------------


@_formula("roi_align", "sensitive")
@in_float32
def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """Average samples of (N, C, H, W) in the bins of boxes (K, 5), to (K, C, *pooled)."""
    offset = 0.5 if aligned else 0.0
    left, top, right, bottom = (rois * spatial_scale - offset)[:, 1:].unbind(1)
    height, width = bottom - top, right - left
    if not aligned:
        height, width = height.clamp(min=1), width.clamp(min=1)
    y = _samples(top, height, pooled_height, sampling_ratio, input.shape[2])
    x = _samples(left, width, pooled_width, sampling_ratio, input.shape[3])
    rows = input.permute(0, 2, 3, 1).reshape(-1, input.shape[1])
    image = rois[:, 0].long().reshape(-1, 1, 1, 1, 1)
    return _average(rows, image, y, x, least=1).permute(0, 3, 1, 2)


@_formula("ps_roi_align", "sensitive")
def ps_roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average samples as `roi_align`, those of each bin in channels of its own."""
    result = _ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio)
    return result, _channels(rois, *result.shape[1:])


@in_float32
def _ps_roi_align(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, *sizes: int
) -> torch.Tensor:
    pooled_height, pooled_width, sampling_ratio = sizes
    left, top, right, bottom = (rois * spatial_scale - 0.5)[:, 1:].unbind(1)
    y = _samples(top, bottom - top, pooled_height, sampling_ratio, input.shape[2])
    x = _samples(left, right - left, pooled_width, sampling_ratio, input.shape[3])
    maps = _by_bin(input, pooled_height, pooled_width).permute(0, 2, 3, 4, 5, 1)
    rows = maps.reshape(-1, maps.shape[-1])
    bins = torch.arange(pooled_height * pooled_width).reshape(1, pooled_height, 1, pooled_width, 1)
    image = rois[:, 0].long().reshape(-1, 1, 1, 1, 1) * (pooled_height * pooled_width) + bins
    return _average(rows, image, y, x, least=0).permute(0, 3, 1, 2)


def _by_bin(input: torch.Tensor, pooled_height: int, pooled_width: int) -> torch.Tensor:
    """Divide the channels: (N, C, *pooled, H, W)."""
    shape = (input.shape[0], -1, pooled_height, pooled_width, *input.shape[2:])
    return input.reshape(shape)


def _channels(rois: torch.Tensor, channels: Any, height: int, width: int) -> torch.Tensor:
    """Return which channel of the input each element is of."""
    numbers = torch.arange(channels * height * width, dtype=torch.int32)
    return numbers.reshape(1, channels, height, width).expand(rois.shape[0], -1, -1, -1)


@dataclass(frozen=True)
class _Samples:
    """Where boxes are sampled along one axis of length ``length``, each (K, bins, samples).

    Attributes:
        length: how many rows of elements there are.
        inside: whether a sample counts.
        low: the element before it.
        high: the element behind it.
        part: how far it is on the way between them.
        count: how many samples each bin has, (K, 1, 1) where that differs.
    """

    length: Any
    inside: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    part: torch.Tensor
    count: Any


def _samples(
    start: torch.Tensor, size: torch.Tensor, bins: int, sampling_ratio: int, length: Any
) -> _Samples:
    """Place samples, by the same steps in floats as torchvision.

    Args:
        start: where the boxes begin, (K,).
        size: how long they are, (K,).
        bins: how many bins each is divided into.
        sampling_ratio: how many samples a bin has; if not positive, one for each element.
        length: how long the images are.
    """
    begin, step = (t.reshape(-1, 1, 1) for t in (start, size / bins))
    count: Any = sampling_ratio
    if sampling_ratio <= 0:
        if isinstance(size, FakeTensor):
            raise UnsupportedArgumentError(
                f"sampling_ratio={sampling_ratio}: how many samples are taken depends on the sizes "
                "of the boxes, which TensorRT needs to know when the engine is built; pass a "
                "positive number, as 2"
            )
        count = step.ceil().clamp(min=0)
    most = int(count.max()) if isinstance(count, torch.Tensor) and count.numel() else count
    number = torch.arange(max(1, most) if isinstance(most, int) else 1)
    place = begin + torch.arange(bins).reshape(-1, 1) * step + (number + 0.5) * step / count
    inside = (place >= -1) & (place <= length)
    if isinstance(count, torch.Tensor):
        inside = inside & (number < count)
        place = torch.where(inside, place, 0.0)
    place = place.clamp(min=0).clamp(max=length - 1)
    low = place.floor()
    high = (low + 1).clamp(max=length - 1)
    return _Samples(length, inside, low.long(), high.long(), place - low, count)


def _average(
    rows: torch.Tensor, image: torch.Tensor, y: _Samples, x: _Samples, least: int
) -> torch.Tensor:
    """Average interpolated samples.

    Args:
        rows: the images' elements, (images * height * width, C).
        image: which image each bin reads, that broadcasts to (K, *bins with samples).
        y: where it reads along the height.
        x: along the width.
        least: what the sum is divided by at least.

    Returns:
        (K, *bins, C).
    """
    # What does not count reads zeros, for it may lie beside something infinite.
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    inside = _down(y.inside) & _across(x.inside)
    total: Any = 0
    for row, by_row in ((y.low, 1 - y.part), (y.high, y.part)):
        for column, by_column in ((x.low, 1 - x.part), (x.high, x.part)):
            index = (image * y.length + _down(row)) * x.length + _across(column)
            index = torch.where(inside, index, rows.shape[0])
            taken = padded.index_select(0, index.reshape(-1)).reshape(*index.shape, rows.shape[1])
            total = total + taken * (_down(by_row) * _across(by_column)).unsqueeze(-1)
    count = y.count * x.count
    if isinstance(count, torch.Tensor):
        count = count.clamp(min=least).unsqueeze(-1)
    result: torch.Tensor = total.sum((2, 4)) / count
    return result


def _down(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(*x.shape, 1, 1)


def _across(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], 1, 1, *x.shape[1:])


# -- whole elements --------------------------------------------------------------------------------


@_formula("roi_pool", "sensitive")
def roi_pool(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima of (N, C, H, W) in the bins of boxes (K, 5), as (K, C, *pooled).

    Where they stand, the second result, is not converted.
    """
    sizes = pooled_height, pooled_width
    # Inside its own formula the operator has no converter: reading this result is refused.
    _, place = torch.ops.torchvision.roi_pool(input, rois, spatial_scale, *sizes)
    return _roi_pool(input, rois, spatial_scale, *sizes), place


@in_float32
def _roi_pool(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, height: int, width: int
) -> torch.Tensor:
    """Take each maximum as that of four squares that cover the bin.

    The maxima of all squares whose sides are powers of two take log2(H) * log2(W) times the memory
    of the input; in return nothing depends on how large the boxes are.
    """
    left, top, right, bottom = _rounded(rois * spatial_scale)[:, 1:].unbind(1)
    y = _bins(top, (bottom - top + 1).clamp(min=1), height, input.shape[2])
    x = _bins(left, (right - left + 1).clamp(min=1), width, input.shape[3])
    lowest = torch.finfo(input.dtype).min
    # As torchvision: NaN is never greater.
    elements = torch.where(input > lowest, input, lowest).permute(0, 2, 3, 1)
    maxima = _maxima(_maxima(elements, 1), 3)
    rows = maxima.reshape(-1, maxima.shape[-1])
    (row_level, rows_at), (column_level, columns_at) = (
        _cover(*place, length) for place, length in zip((y, x), input.shape[2:], strict=True)
    )
    level = column_level.unsqueeze(1) * maxima.shape[1] + row_level.unsqueeze(2)
    image = level * input.shape[0] + rois[:, 0].long().reshape(-1, 1, 1)
    found = []
    for row in rows_at:
        for column in columns_at:
            index = (image * input.shape[2] + row.unsqueeze(2)) * input.shape[3]
            index = index + column.unsqueeze(1)
            taken = rows.index_select(0, index.reshape(-1))
            found.append(taken.reshape(*index.shape, rows.shape[1]))
    most = torch.maximum(torch.maximum(*found[:2]), torch.maximum(*found[2:]))
    filled = (y[1] > y[0]).unsqueeze(2) & (x[1] > x[0]).unsqueeze(1)
    return torch.where(filled.unsqueeze(-1), most, 0.0).permute(0, 3, 1, 2)


def _maxima(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Stack the maxima of 1, 2, 4, ... elements along a dimension, in front."""
    length = x.shape[dim]
    levels = [x]
    while 2 ** len(levels) <= largest(length):
        index = (torch.arange(length) + 2 ** (len(levels) - 1)).clamp(max=length - 1)
        levels.append(torch.maximum(levels[-1], levels[-1].index_select(dim, index)))
    return torch.stack(levels)


def _cover(
    begin: torch.Tensor, end: torch.Tensor, length: Any
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the level of `_maxima` two of which cover a stretch, and where these two begin."""
    sizes = torch.tensor([2**level for level in range(largest(length).bit_length())])
    level = ((end - begin).unsqueeze(-1) >= sizes[1:]).sum(-1)
    starts = begin, end - sizes.index_select(0, level.reshape(-1)).reshape(level.shape)
    return level, [start.clamp(min=0).clamp(max=length - 1) for start in starts]


@_formula("ps_roi_pool", "sensitive")
def ps_roi_pool(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average the elements of each bin, those of each bin in channels of their own.

    Infinity anywhere in an image spreads as NaN, for even a weight of zero has its part in a
    product.
    """
    result = _ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width)
    return result, _channels(rois, *result.shape[1:])


@in_float32
def _ps_roi_pool(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, height: int, width: int
) -> torch.Tensor:
    left, top, right, bottom = _rounded(rois * spatial_scale)[:, 1:].unbind(1)
    maps = _by_bin(input, height, width)
    images, boxes, sizes = input.shape[0], rois.shape[0], input.shape[2:]
    y = _bins(top, (bottom - top).clamp(min=1), height, sizes[0] - 1)
    x = _bins(left, (right - left).clamp(min=1), width, sizes[1] - 1)
    down, across = (_shares(*place, length) for place, length in zip((y, x), sizes, strict=True))
    # (bin, N * C * bins * H, W) by (bin, W, K): over the width for all images and boxes ...
    columns = maps.permute(3, 0, 1, 2, 4, 5).reshape(width, -1, sizes[1])
    sums = torch.matmul(columns, across.permute(1, 2, 0))
    sums = sums.reshape(width, images, maps.shape[1], height, sizes[0], boxes)
    # ... then over the height, of each box's own image.
    own = torch.arange(images).unsqueeze(1) == rois[:, 0].long()
    weights = torch.where(
        own.reshape(images, 1, 1, boxes), down.permute(1, 2, 0), 0.0
    )  # (N, bins, H, K)
    return (sums * weights.unsqueeze(1)).sum((1, 4)).permute(3, 1, 2, 0)


def _shares(begin: torch.Tensor, end: torch.Tensor, length: Any) -> torch.Tensor:
    """Return what part of the average of its bin each element has, (K, bins, length)."""
    place, begin, end = torch.arange(length), begin.unsqueeze(-1), end.unsqueeze(-1)
    inside = (begin <= place) & (place < end)
    return torch.where(inside, 1 / (end - begin).clamp(min=1), 0.0)


def _bins(
    start: torch.Tensor, size: torch.Tensor, bins: int, limit: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the bins begin and end, (K, bins), by the same steps in floats as torchvision.

    Args:
        start: the first element of each box, (K,).
        size: its length, (K,).
        bins: how many bins it is divided into.
        limit: the last place where a bin may begin or end.
    """
    step = (size / bins).unsqueeze(1)
    number, start = torch.arange(bins), start.unsqueeze(1)
    begin = (number * step).floor() + start
    end = ((number + 1) * step).ceil() + start
    begin, end = (place.clamp(min=0).clamp(max=limit).long() for place in (begin, end))
    return begin, end


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Round halves away from zero, as C does."""
    size = x.abs()
    whole = size.floor()
    return torch.where(size - whole >= 0.5, whole + 1, whole) * x.sign()


# -- convolution at moved points -------------------------------------------------------------------


@_formula("deform_conv2d", "follow")
def deform_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    bias: torch.Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> torch.Tensor:
    """Convolve (N, C, H, W) whose elements are read at moved points, to (N, out, *moved)."""
    out, _, rows, columns = weight.shape
    batch, channels, height, width = input.shape
    high, wide = offset.shape[2:]
    taps = rows * columns
    moved = offset.reshape(batch * offset_groups, taps, 2, high, wide)
    # A point of the kernel, and of the result.
    at_row = torch.arange(high).reshape(-1, 1) * stride_h - pad_h
    at_column = torch.arange(wide) * stride_w - pad_w
    tap = torch.arange(taps).reshape(-1, 1, 1)
    y = moved[:, :, 0] + at_row + tap // columns * dilation_h
    x = moved[:, :, 1] + at_column + tap % columns * dilation_w
    # As grid_sample() counts: -1 and 1 are the outer edges of the first and the last element.
    points = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    sampled = F.grid_sample(
        input.reshape(batch * offset_groups, channels // offset_groups, height, width),
        points.reshape(batch * offset_groups, taps * high, wide, 2),
        align_corners=False,
    )
    taken = sampled.reshape(batch * offset_groups, -1, taps, high, wide)
    if use_mask:
        taken = taken * mask.reshape(batch * offset_groups, 1, taps, high, wide)
    taken = taken.reshape(batch, groups, channels // groups * taps, high * wide)
    product = torch.matmul(weight.reshape(groups, out // groups, -1), taken)
    return product.reshape(batch, out, high, wide) + bias.reshape(-1, 1, 1)
