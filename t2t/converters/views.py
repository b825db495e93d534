"""Operators that give the same elements under another shape."""

from __future__ import annotations

from typing import Any

import torch

from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["reshape", "same"]


@converter("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::_reshape_alias")
def reshape(net: Network, self: torch.Tensor, size: Any, stride: Any = None) -> NetworkTensor:
    """Convert any shape to ``size`` with as many elements; memory layout is not TensorRT's."""
    del size, stride
    return net.reshape(self, net.output.shape)


@converter("aten::alias", "aten::detach", "aten::lift_fresh", "aten::contiguous", "aten::clone")
def same(net: Network, self: torch.Tensor, memory_format: Any = None) -> NetworkTensor:
    """Convert a copy or an alias to nothing; ``memory_format`` has no meaning in a network."""
    del memory_format
    return net.tensor(self)
