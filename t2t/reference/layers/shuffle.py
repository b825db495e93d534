"""Layers that move elements or rename dimensions: shuffles, slices, gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.errors import ShapeError
from t2t.reference.layer import Kernel, Ready, ints, layer


@layer(
    "SHUFFLE",
    "first_transpose",
    "reshape_dims",
    "second_transpose",
    "zero_is_placeholder",
    host=(1,),
)
def shuffle(ready: Ready) -> Kernel:
    """Transpose, reshape, transpose; -1 is the size left over, 0 the input's size there."""
    a = ready.attributes
    first, second = a["first_transpose"], a["second_transpose"]
    dims, placeholder = a["reshape_dims"], a["zero_is_placeholder"]
    from_input = ready.has_input(1)

    def kernel(x: Tensor, dims_in: Tensor | None = None) -> Tensor:
        x = _permuted(x, first)
        if from_input or dims is not None:
            wanted = ints(dims_in, dims)
            if placeholder:
                wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
            x = _reshaped(x, wanted)
        return _permuted(x, second)

    return kernel


def _permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """Transpose by the first entries of TensorRT's eight; nothing where they are in order."""
    wanted = list(order[: x.dim()])
    return x if wanted == sorted(wanted) else x.permute(wanted)


def _reshaped(x: Tensor, sizes: list[int]) -> Tensor:
    if -1 in sizes and x.numel() == 0:
        # torch cannot tell the size left over from no elements; TensorRT says 0.
        sizes = [0 if size == -1 else size for size in sizes]
    return x.reshape(sizes)


@layer("CONCATENATION", "axis")
def concatenation(ready: Ready) -> Kernel:
    """Join tensors along an axis."""
    axis = ready.attributes["axis"]
    return lambda *parts: torch.cat(parts, axis)


@layer("SQUEEZE", host=(1,))
def squeeze(ready: Ready) -> Kernel:  # noqa: ARG001  every kind is prepared from its layer
    """Drop the axes given as input, or every axis of size 1 where none are."""

    def kernel(x: Tensor, axes: Tensor | None = None) -> Tensor:
        return x.squeeze() if axes is None else x.squeeze(tuple(ints(axes)))

    return kernel


@layer("UNSQUEEZE", host=(1,))
def unsqueeze(ready: Ready) -> Kernel:  # noqa: ARG001  every kind is prepared from its layer
    """Insert axes of size 1 at the output's positions given as input."""

    def kernel(x: Tensor, axes: Tensor) -> Tensor:
        positions = ints(axes)
        rank = x.dim() + len(positions)
        for position in sorted(position % rank for position in positions):
            x = x.unsqueeze(position)
        return x

    return kernel


@layer("SHAPE", host=(0,))
def shape(ready: Ready) -> Kernel:
    """The sizes of a tensor, on the host."""
    dtype = ready.dtype
    return lambda x: torch.tensor(x.shape, dtype=dtype)


@layer("PADDING", "pre_padding_nd", "post_padding_nd")
def padding(ready: Ready) -> Kernel:
    """Zeros around the last two dimensions; negative amounts cut off."""
    pre, post = ready.attributes["pre_padding_nd"], ready.attributes["post_padding_nd"]
    pads = [amount for side in zip(reversed(pre), reversed(post), strict=True) for amount in side]
    return lambda x: F.pad(x, pads)


# -- slices ----------------------------------------------------------------------------------------


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


# -- gather and scatter ----------------------------------------------------------------------------


def _wrapped(indices: Tensor, size: int) -> Tensor:
    """Return int64 indices; negative ones count from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def _gather_default(data: Tensor, indices: Tensor, axis: int, shared: int) -> Tensor:
    index = _wrapped(indices, data.shape[axis])
    if shared == 0:
        taken = data.index_select(axis, index.reshape(-1))
        return taken.reshape((*data.shape[:axis], *index.shape, *data.shape[axis + 1 :]))
    rows = [
        _gather_default(part, wanted, axis - 1, shared - 1)
        for part, wanted in zip(data, index, strict=True)
    ]
    return torch.stack(rows)


def _gather_nd(data: Tensor, indices: Tensor, axis: int, shared: int) -> Tensor:  # noqa: ARG001  one signature for the three modes
    batch = data.shape[:shared]
    # Sizes are written out: -1 is ambiguous where there are no elements.
    count, depth = math.prod(batch), indices.shape[-1]
    flat = data.reshape(count, *data.shape[shared:])
    index = indices.long().reshape(count, math.prod(indices.shape[shared:-1]), depth)
    rows = torch.arange(flat.shape[0], device=data.device).unsqueeze(1)
    places = (rows, *(_wrapped(index[..., d], flat.shape[d + 1]) for d in range(depth)))
    taken = flat[places]
    return taken.reshape((*batch, *indices.shape[shared:-1], *flat.shape[1 + depth :]))


def _gather_element(data: Tensor, indices: Tensor, axis: int, shared: int) -> Tensor:  # noqa: ARG001  one signature for the three modes
    return data.gather(axis, _wrapped(indices, data.shape[axis]))


_GATHERS: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {
    "DEFAULT": _gather_default,
    "ND": _gather_nd,
    "ELEMENT": _gather_element,
}


@layer("GATHER", "mode", "axis", "num_elementwise_dims")
def gather(ready: Ready) -> Kernel:
    """DEFAULT, ELEMENT and ND are ONNX's Gather, GatherElements and GatherND."""
    a = ready.attributes
    function, axis, shared = _GATHERS[a["mode"]], a["axis"], a["num_elementwise_dims"]
    return lambda data, indices: function(data, indices, axis, shared)


@layer("SCATTER", "mode", "axis")
def scatter(ready: Ready) -> Kernel:
    """Copy data with updates written at indices; ELEMENT and ND as ONNX's."""
    mode, axis = ready.attributes["mode"], ready.attributes["axis"]

    def element(data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        return data.scatter(axis, _wrapped(indices, data.shape[axis]), updates)

    def nd(data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        result = data.clone(memory_format=torch.contiguous_format)
        place = tuple(_wrapped(indices[..., d], data.shape[d]) for d in range(indices.shape[-1]))
        result[place] = updates
        return result

    return element if mode == "ELEMENT" else nd
