"""The greater and the smaller of two numbers, and clamping between bounds.

NaN is kept as torch keeps it. TensorRT's MAX and MIN give the other number where one is NaN, as C's
fmax does, and CLIP gives a bound (https://github.com/NVIDIA/TensorRT/issues/4758 and 4773, of
10.16): so floats are compared and chosen instead.
"""

from __future__ import annotations

import math

import torch

from t2t.converters._compute import binary, operand, rounded
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["clamp", "maximum", "minimum"]


@converter("aten::clamp")
def clamp(
    net: Network, self: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None
) -> NetworkTensor:
    """Convert the nearest value between two bounds; the upper one counts where they cross.

    The bound 0 alone is a RELU, as which it can join the layer before it.
    """
    if isinstance(min, int | float) and min == 0 and max is None and _is_float(net):
        return net.add_activation(net.tensor(self, net.output.dtype), "RELU")
    x = net.tensor(self, net.output.dtype)
    for bound, op, open_end in ((min, "MAX", -math.inf), (max, "MIN", math.inf)):
        if bound is not None and not (isinstance(bound, float) and bound == open_end):
            x = _extreme(net, op, x, bound)
    return x


def _is_float(net: Network) -> bool:
    dtype: torch.dtype = net.output.dtype
    return dtype.is_floating_point


def _extreme(net: Network, op: str, a: TensorLike, b: TensorLike) -> NetworkTensor:
    """Return the greater ("MAX") or smaller ("MIN") of two; NaN where one of them is NaN."""
    dtype = net.output.dtype
    if not dtype.is_floating_point:
        return binary(net, op, a, b)
    a, b = (rounded(operand(net, x, dtype), dtype) for x in (a, b))
    x, y = net.aligned([a, b], dtype)
    better = "GREATER" if op == "MAX" else "LESS"
    if not _may_be_nan(net, b):
        return net.add_select(net.add_elementwise(y, x, better), y, x)
    wins = net.add_elementwise(x, y, better)
    if _may_be_nan(net, a):
        wins = net.add_elementwise(wins, net.add_unary(x, "ISNAN"), "OR")
    return net.add_select(wins, x, y)


def _may_be_nan(net: Network, x: TensorLike) -> bool:
    if isinstance(x, bool | int | float):
        return math.isnan(x)
    if isinstance(x, torch.Tensor) and not net.is_traced(x):
        return bool(torch.isnan(x).any())
    return not isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool)


@converter("aten::maximum")
def maximum(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the greater of two numbers; of bools, whether one holds."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, other, "OR", dtype=torch.bool)
    return _extreme(net, "MAX", self, other)


@converter("aten::minimum")
def minimum(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert the smaller of two numbers; of bools, whether both hold."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, other, "AND", dtype=torch.bool)
    return _extreme(net, "MIN", self, other)
