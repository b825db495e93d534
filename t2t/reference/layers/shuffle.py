"""Layers that move or rename dimensions: shuffle, concatenation, squeeze, unsqueeze, shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.axes import ints
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


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
