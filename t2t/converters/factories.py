"""Operators that make a tensor out of sizes and numbers, which may depend on dynamic sizes.

With plain sizes torch makes such a tensor during the trace, and it is a constant. Where a tensor
lies (``device``, ``layout``, ``pin_memory``, ``memory_format``) has no meaning in a network.
"""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._compute import filled
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

COUNTED = (torch.float32, torch.int32, torch.int64)
"""The dtypes that an IFillLayer counts in."""


@converter("aten::full")
def full(
    net: Network, size: Any, fill_value: Any, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert to a slice layer that repeats one constant."""
    del size, dtype, layout, device, pin_memory
    return filled(net, fill_value)


@converter("aten::full_like")
def full_like(
    net: Network, self: torch.Tensor, fill_value: Any, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None, memory_format: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert as `full`; ``zeros_like`` and ``ones_like`` become this."""
    del self, dtype, layout, device, pin_memory, memory_format
    return filled(net, fill_value)


@converter("aten::empty")
def empty(
    net: Network, size: Any, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert to zeros: any numbers are right, and a model writes before it reads."""
    del size, dtype, layout, device, pin_memory, memory_format
    return filled(net, 0)


@converter("aten::empty_like")
def empty_like(
    net: Network, self: torch.Tensor, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert as `empty`."""
    del self, dtype, layout, device, pin_memory, memory_format
    return filled(net, 0)


@converter("aten::empty_strided")
def empty_strided(
    net: Network, size: Any, stride: Any, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert as `empty`; a network's tensors have no strides."""
    del size, stride, dtype, layout, device, pin_memory
    return filled(net, 0)


@converter("aten::scalar_tensor")
def scalar_tensor(
    net: Network, s: Any, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert to the number itself, a size perhaps."""
    del dtype, layout, device, pin_memory
    return net.tensor(s, net.output.dtype)


@converter("aten::arange.start_step")
def arange(
    net: Network, start: Any, end: Any, step: Any = 1, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,
) -> NetworkTensor:  # fmt: skip
    """Convert to one fill layer; in other dtypes than it has, to one and a cast."""
    del end, dtype, layout, device, pin_memory  # the length that torch has computed says the end
    dtype = net.compute_dtype(net.output.dtype)
    counted = (
        dtype if dtype in COUNTED else torch.float32 if dtype.is_floating_point else torch.int64
    )
    return net.cast(net.add_linspace(net.output.shape, start, step, counted), dtype)
