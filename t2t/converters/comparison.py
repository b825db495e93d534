"""Choices: where, clamp and comparisons."""

from __future__ import annotations

import math
from typing import Any

import torch

from t2t.converters._compute import binary, narrowed, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["clamp", "where"]


@converter("aten::where.self")
def where(
    net: Network, condition: torch.Tensor, self: TensorLike, other: TensorLike
) -> NetworkTensor:
    """Convert the choice of ``self`` where ``condition`` holds, else ``other``; they broadcast."""
    dtype = net.output.dtype
    working = dtype if dtype == torch.bool else working_dtype(dtype)
    return narrowed(net, net.add_select(condition, self, other, dtype=working), dtype)


@converter("aten::clamp")
def clamp(
    net: Network, self: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None
) -> NetworkTensor:
    """Convert the nearest value between two bounds; the upper one counts where they cross."""
    low, high = _bound(net, min, -math.inf), _bound(net, max, math.inf)
    x = net.tensor(self, net.output.dtype)
    if isinstance(low, float) and isinstance(high, float):
        return net.add_activation(x, "CLIP", alpha=low if low < high else high, beta=high)
    if isinstance(low, float) and low == 0 and high is None:
        return net.add_activation(x, "RELU")
    if low is not None:
        x = binary(net, "MAX", x, low)
    if high is not None:
        x = binary(net, "MIN", x, high)
    return x


def _bound(net: Network, bound: Any, open_end: float) -> Any:
    """Give a plain bound of floats as a float, None where it bounds nothing."""
    if bound is None or not isinstance(bound, bool | int | float):
        return bound
    if bound == open_end:
        return None
    if net.output.dtype.is_floating_point:
        return float(bound) if not math.isnan(bound) else torch.tensor(math.nan)
    return bound
