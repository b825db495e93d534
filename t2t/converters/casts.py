"""Conversion between types."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._compute import narrowed, truth
from t2t.errors import UnsupportedArgumentError, require
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["to_copy"]


@converter("aten::_to_copy")
def to_copy(
    net: Network,
    self: torch.Tensor,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> NetworkTensor:
    """Convert to another dtype, floats to integers towards zero; a network has one device."""
    del pin_memory, non_blocking, memory_format  # where and how torch would keep it
    require("layout", layout or torch.strided, torch.strided, "TensorRT's tensors are dense")
    if device is not None and torch.device(device).type != self.device.type:
        raise UnsupportedArgumentError(
            f"device={str(device)!r}: a network runs on one device; supported: {self.device.type!r}"
        )
    return converted(net, self, dtype or self.dtype)


def converted(net: Network, x: torch.Tensor, dtype: torch.dtype) -> NetworkTensor:
    """Return a traced tensor in another dtype, as torch's casts do."""
    if dtype == x.dtype:
        return net.tensor(x)
    if dtype == torch.bool:
        return truth(net, x)
    narrow = dtype in (torch.int8, torch.uint8)
    if narrow and x.dtype in (torch.int32, torch.int64, torch.int8, torch.uint8):
        return narrowed(net, net.tensor(x, torch.promote_types(x.dtype, torch.int32)), dtype)
    return net.tensor(x, dtype)
