"""Softmax."""

from __future__ import annotations

import torch

from t2t.converters._arguments import positive_dim
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["softmax"]


@converter("aten::_softmax", precision="sensitive")
def softmax(net: Network, self: torch.Tensor, dim: int, half_to_float: bool) -> NetworkTensor:
    """Convert softmax over one dimension, computed in the result's type."""
    del half_to_float  # The result's type says it.
    axis = positive_dim(dim, self.ndim)
    x = net.tensor(self, net.output.dtype)
    if self.ndim > 1:
        return net.add_softmax(x, axis)
    # TensorRT's softmax has no vectors.
    row = net.reshape(x, (1, *(self.shape or (1,))))
    return net.reshape(net.add_softmax(row, 1), net.output.shape)
