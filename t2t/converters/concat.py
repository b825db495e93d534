"""Operators that join tensors, and those that repeat or mirror one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import positive_dim
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


@converter("aten::stack")
def stack(net: Network, tensors: Sequence[torch.Tensor], dim: int = 0) -> NetworkTensor:
    """Convert to one concatenation layer of tensors with a new dimension."""
    axis = positive_dim(dim, net.output.ndim)
    dtype = net.output.dtype
    parts = [net.unsqueeze(net.tensor(x, dtype), [axis]) for x in tensors]
    return net.add_concatenation(parts, axis)


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
