"""Operators that give the same elements under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import positive_dim
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import static_size


@converter("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::_reshape_alias")
def reshape(net: Network, self: torch.Tensor, size: Any, stride: Any = None) -> NetworkTensor:
    """Convert any shape to ``size`` with as many elements; memory layout is not TensorRT's."""
    del size, stride
    return net.reshape(self, net.output.shape)


@converter("aten::view.dtype")
def reinterpret(net: Network, self: torch.Tensor, dtype: torch.dtype) -> NetworkTensor:
    """Convert a change of dtype without a change of bytes: only to the tensor's own dtype."""
    if dtype != self.dtype:
        raise UnsupportedArgumentError(
            f"dtype={dtype}: TensorRT cannot read the bytes of {self.dtype} as another type"
        )
    return net.tensor(self)


@converter("aten::alias", "aten::detach", "aten::clone")
def same(net: Network, self: torch.Tensor, memory_format: Any = None) -> NetworkTensor:
    """Convert a copy or an alias to nothing; ``memory_format`` has no meaning in a network."""
    del memory_format
    return net.tensor(self)


@converter("aten::view_as_complex", "aten::view_as_real")
def pairs(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert complex numbers to pairs (*, 2) and back: to nothing, as a network has them so."""
    return net.tensor(self)


@converter("aten::permute")
def permute(net: Network, self: torch.Tensor, dims: Sequence[int]) -> NetworkTensor:
    """Convert to one shuffle layer."""
    return net.transpose(self, [positive_dim(dim, self.ndim) for dim in dims])


@converter("aten::transpose")
def transpose(net: Network, self: torch.Tensor, dim0: int, dim1: int) -> NetworkTensor:
    """Convert to one shuffle layer."""
    order = list(range(self.ndim))
    a, b = positive_dim(dim0, self.ndim), positive_dim(dim1, self.ndim)
    if a != b:
        order[a], order[b] = b, a
    return net.transpose(self, order)


@converter("aten::t")
def t(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the transpose of a matrix; a vector is given back."""
    return net.transpose(self, range(self.ndim)[::-1])


@converter("aten::squeeze")
def squeeze(net: Network, self: torch.Tensor, dim: Any = None) -> NetworkTensor:
    """Convert to one shuffle layer; which dimensions have size 1, torch has said."""
    del dim
    return net.reshape(self, net.output.shape)


@converter("aten::unsqueeze")
def unsqueeze(net: Network, self: torch.Tensor, dim: int) -> NetworkTensor:
    """Convert to one shuffle layer, or an unsqueeze layer where several sizes are dynamic."""
    return net.unsqueeze(net.tensor(self), [positive_dim(dim, self.ndim + 1)])


@converter("aten::expand")
def expand(net: Network, self: torch.Tensor, size: Any, *, implicit: bool = False) -> NetworkTensor:
    """Convert to one slice layer whose stride is 0 along the repeated dimensions."""
    del size, implicit
    return net.expand(self, net.output.shape)


@converter("aten::diagonal")
def diagonal(
    net: Network, self: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> NetworkTensor:
    """Convert to a strided slice of the flattened matrices."""
    a, b = positive_dim(dim1, self.ndim), positive_dim(dim2, self.ndim)
    rest = [axis for axis in range(self.ndim) if axis not in (a, b)]
    sizes = [self.shape[axis] for axis in rest]
    rows, columns, length = self.shape[a], self.shape[b], net.output.shape[-1]
    if static_size(length) == 0:
        return net.add_slice(
            net.reshape(net.transpose(self, [*rest, a, b]), [*sizes, rows * columns]),
            [0] * (len(rest) + 1),
            [*sizes, 0],
        )
    start = offset if offset >= 0 else -offset * columns
    flat = net.reshape(net.transpose(self, [*rest, a, b]), [*sizes, rows * columns])
    return net.narrow(flat, len(rest), start, length, columns + 1)


@converter("aten::unfold")
def unfold(net: Network, self: torch.Tensor, dimension: int, size: int, step: int) -> NetworkTensor:
    """Convert to a reshape where windows do not overlap, else to one gather layer of windows."""
    if self.ndim == 0:
        return net.reshape(self, net.output.shape)
    axis = positive_dim(dimension, self.ndim)
    windows = net.output.shape[axis]
    order = [*range(axis + 1), *range(axis + 2, self.ndim + 1), axis + 1]
    before, behind = self.shape[:axis], self.shape[axis + 1 :]
    if size == step:
        used = net.narrow(self, axis, 0, windows * size)
        return net.transpose(net.reshape(used, [*before, windows, size, *behind]), order)
    inside = torch.arange(size)
    if static_size(windows) is not None:
        indices: Any = torch.arange(windows).unsqueeze(1) * step + inside
    else:
        first = net.unsqueeze(net.add_linspace([windows], 0, step, torch.int64), [1])
        indices = net.add_elementwise(first, inside, "SUM")
    return net.transpose(net.add_gather(self, indices, axis), order)
