"""Operators that join tensors, and those that repeat, mirror or pad one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._arguments import positive_dim
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter
from t2t.sizes import static_size


@converter("aten::cat")
def cat(net: Network, tensors: Sequence[torch.Tensor], dim: int = 0) -> NetworkTensor:
    """Convert to one concatenation layer; tensors without elements add nothing."""
    axis = positive_dim(dim, net.output.ndim)
    # torch also takes 1-D tensors of size 0 beside tensors of any rank.
    filled = [x for x in tensors if x.ndim > 1 or static_size(x.shape[0]) != 0]
    parts = [x for x in filled if static_size(x.shape[axis]) != 0]
    return net.add_concatenation(parts or tensors[:1], axis, net.output.dtype)


@converter("aten::repeat")
def repeat(net: Network, self: torch.Tensor, repeats: Sequence[Any]) -> NetworkTensor:
    """Convert to one slice layer that wraps around at the ends."""
    del repeats  # the size that torch has computed says it
    sizes = net.output.shape
    tensor = net.tensor(self, rank=len(sizes))
    before = [1] * (len(sizes) - self.ndim) + list(self.shape)
    if same_sizes(before, sizes):
        return tensor
    return net.add_slice(tensor, [0] * len(sizes), sizes, mode="WRAP")


@converter("aten::flip")
def flip(net: Network, self: torch.Tensor, dims: Sequence[int]) -> NetworkTensor:
    """Convert to one slice layer with stride -1."""
    axes = sorted(positive_dim(dim, self.ndim) for dim in dims)
    sizes = [self.shape[axis] for axis in axes]
    if not axes or 0 in (static_size(size) for size in self.shape):
        return net.tensor(self)
    return net.add_slice(
        self, [size - 1 for size in sizes], sizes, [-1] * len(axes), axes=tuple(axes)
    )


@converter("aten::roll")
def roll(net: Network, self: torch.Tensor, shifts: Any, dims: Any = ()) -> NetworkTensor:
    """Convert to one slice layer that wraps around at the end."""
    amounts = list(shifts) if isinstance(shifts, Sequence) else [shifts]
    axes = [dims] if isinstance(dims, int) else list(dims)
    data, sizes = net.tensor(self), list(self.shape)
    if not axes:
        sizes = [self.numel()]
        data, axes = net.reshape(data, sizes), [0]
    starts: list[Any] = [0] * len(sizes)
    for dim, amount in zip(axes, amounts, strict=True):
        starts[positive_dim(dim, len(sizes))] -= amount
    if 0 in (static_size(size) for size in sizes):
        return net.tensor(self)
    rolled = [axis for axis, start in enumerate(starts) if static_size(start) != 0]
    if rolled:
        data = net.add_slice(
            data,
            [starts[axis] % sizes[axis] for axis in rolled],
            [sizes[axis] for axis in rolled],
            mode="WRAP",
            axes=tuple(rolled),
        )
    return net.reshape(data, self.shape)


# -- padding ---------------------------------------------------------------------------------------


_ORIGINAL = F.pad
_MODES = {"constant": "FILL", "reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}


def _padded(
    net: Network, input: torch.Tensor, pad: Sequence[Any], mode: str, value: Any = 0
) -> NetworkTensor:
    """Slice from before the start to behind the end of each dimension.

    ``pad`` is in elements, before and after, of the last dimension first; below zero it crops.
    """
    if mode not in _MODES:
        raise UnsupportedArgumentError(f"mode={mode!r}; supported: {', '.join(_MODES)}")
    x = net.tensor(input)
    sides = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    sides = [(0, 0)] * (input.dim() - len(sides)) + sides
    known = [[static_size(n) for n in side] for side in sides]
    if all(n == 0 for side in known for n in side):
        return x
    if all(n is not None and n <= 0 for side in known for n in side):
        return net.add_slice(x, [-before for before, _ in sides], net.output.shape)
    sizes = list(input.shape)
    if mode == "circular" and any(n is None or n < 0 for side in known for n in side):
        # What wraps around is what is left after the crop.
        crops = [[torch.sym_max(-n, 0) for n in side] for side in sides]
        sizes = [size - sum(crop) for size, crop in zip(sizes, crops, strict=True)]
        x = net.add_slice(x, [crop[0] for crop in crops], sizes)
        sides = [(torch.sym_max(a, 0), torch.sym_max(b, 0)) for a, b in sides]
    return net.add_slice(
        x,
        [-before for before, _ in sides],
        net.output.shape,
        mode=_MODES[mode],
        fill=value if mode == "constant" else None,
    )


def _pad_meta(
    input: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None
) -> torch.Tensor:
    last = input.shape[input.dim() - len(pad) // 2 :][::-1]
    if mode != "circular" or any(n > last[i // 2] for i, n in enumerate(pad)):
        return _ORIGINAL(input, pad, mode, value)
    # The original writes into slices, which asks for more than a padding needs.
    sizes = list(input.shape)
    for i, n in enumerate(pad):
        sizes[-1 - i // 2] += n
    return input.new_empty(sizes)


# The function, for PyTorch writes circular padding slice by slice.
@converter("torch.nn.functional.pad", meta=_pad_meta)
def pad(
    net: Network,
    input: torch.Tensor,
    pad: Sequence[Any],
    mode: str = "constant",
    value: float | None = None,
) -> NetworkTensor:
    """Convert any shape to one larger, or smaller, by ``pad`` elements on each side."""
    return _padded(net, input, pad, mode, 0 if value is None else value)


@converter("aten::constant_pad_nd")
def constant_pad(
    net: Network, self: torch.Tensor, pad: Sequence[Any], value: Any = 0
) -> NetworkTensor:
    """Convert any shape to one larger, or smaller, by ``pad`` elements on each side."""
    return _padded(net, self, pad, "constant", value)


@converter("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(net: Network, self: torch.Tensor, padding: Sequence[Any]) -> NetworkTensor:
    """Convert any shape to a larger one that repeats the input, mirrored at its last elements."""
    return _padded(net, self, padding, "reflect")


@converter("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(net: Network, self: torch.Tensor, padding: Sequence[Any]) -> NetworkTensor:
    """Convert any shape to a larger one that repeats the input's last elements."""
    return _padded(net, self, padding, "replicate")
