"""Operators that join tensors, and those that repeat or mirror one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from t2t.converters._arguments import positive_dim
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.shapes import static_size

__all__ = ["cat", "stack"]


@converter("aten::cat")
def cat(net: Network, tensors: Sequence[torch.Tensor], dim: int = 0) -> NetworkTensor:
    """Convert to one concatenation layer; tensors without elements add nothing."""
    axis = positive_dim(dim, net.output.ndim)
    # torch also takes 1-D tensors of size 0 beside tensors of any rank.
    parts = [x for x in tensors if x.shape != (0,) and static_size(x.shape[axis]) != 0]
    return net.add_concatenation(parts or tensors[:1], axis, net.output.dtype)


@converter("aten::stack")
def stack(net: Network, tensors: Sequence[torch.Tensor], dim: int = 0) -> NetworkTensor:
    """Convert to one concatenation layer of tensors with a new dimension."""
    axis = positive_dim(dim, net.output.ndim)
    dtype = net.output.dtype
    parts = [net.unsqueeze(net.tensor(x, dtype), [axis]) for x in tensors]
    return net.add_concatenation(parts, axis)
