"""Slices, in every way that TensorRT treats coordinates out of bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.errors import ShapeError
from t2t.reference.axes import ints
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("SLICE", "start", "shape", "stride", "axes", "mode", host=(1, 2, 3, 5))
def slicing(ready: Ready) -> Kernel:
    """Take ``shape`` elements from ``start`` on in steps of ``stride``, along each axis."""
    a = ready.attributes
    mode, name = a["mode"], ready.name

    def kernel(
        x: Tensor,
        start_in: Tensor | None = None,
        shape_in: Tensor | None = None,
        stride_in: Tensor | None = None,
        fill: Tensor | None = None,
        axes_in: Tensor | None = None,
    ) -> Tensor:
        starts = ints(start_in, a["start"])
        sizes = ints(shape_in, a["shape"])
        strides = ints(stride_in, a["stride"])
        axes = ints(axes_in, a.get("axes")) or list(range(x.dim()))
        outside: Tensor | None = None
        for axis, start, size, stride in zip(axes, starts, sizes, strides, strict=True):
            x, missed = _along(x, axis % x.dim(), start, size, stride, mode, name)
            if missed is not None:
                outside = missed if outside is None else outside | missed
        if outside is None:
            return x
        value = torch.zeros((), dtype=x.dtype, device=x.device) if fill is None else fill
        return torch.where(outside, value.reshape(()).to(x.device, x.dtype), x)

    return kernel


def _along(
    x: Tensor, axis: int, start: int, size: int, stride: int, mode: str, name: str
) -> tuple[Tensor, Tensor | None]:
    """Slice one axis; for FILL, also say which of the result's places lie outside."""
    length = x.shape[axis]
    last = start + (size - 1) * stride
    if size == 0 or (0 <= start < length and 0 <= last < length):
        return _inside(x, axis, start, size, stride), None
    if mode == "STRICT_BOUNDS" or (length == 0 and mode != "FILL"):
        raise ShapeError(
            f"slice {name!r}: {start} to {last} along axis {axis} leaves the input's {length}"
        )
    index = torch.arange(size, device=x.device) * stride + start
    if mode == "FILL":
        outside = (index < 0) | (index >= length)
        missed = outside.reshape([-1 if a == axis else 1 for a in range(x.dim())])
        if length == 0:
            shape = [size if a == axis else n for a, n in enumerate(x.shape)]
            return torch.zeros(shape, dtype=x.dtype, device=x.device), missed
        return x.index_select(axis, index.clamp(0, length - 1)), missed
    return x.index_select(axis, _mapped(index, length, mode)), None


def _inside(x: Tensor, axis: int, start: int, size: int, stride: int) -> Tensor:
    if size == x.shape[axis] and start == 0 and (stride == 1 or size == 1):
        return x
    if stride > 0:
        place = [slice(None)] * x.dim()
        place[axis] = slice(start, start + (size - 1) * stride + 1 if size else start, stride)
        return x[tuple(place)]
    return x.index_select(axis, torch.arange(size, device=x.device) * stride + start)


def _mapped(index: Tensor, length: int, mode: str) -> Tensor:
    if mode == "WRAP":
        return index.remainder(length)
    if mode == "CLAMP":
        return index.clamp(0, length - 1)
    # Reflection about the middle of the first and last element, repeated without end.
    period = max(2 * (length - 1), 1)
    index = index.remainder(period)
    return torch.where(index >= length, period - index, index)
