"""Running sums, products and extremes along a dimension."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from t2t.converters._arguments import positive_dim, static_number
from t2t.converters._compute import binary, choose, working_dtype
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]


@converter("aten::cumsum", precision="sensitive")
def cumsum(
    net: Network, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> NetworkTensor:
    """Convert the running sum along a dimension; of integers and bools it is int64."""
    x = net.tensor(self, dtype or net.output.dtype)
    if self.ndim == 0:
        return x
    return net.add_cumulative(x, positive_dim(dim, self.ndim))


@converter("aten::cumprod", precision="sensitive")
def cumprod(
    net: Network, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> NetworkTensor:
    """Convert the running product along a dimension whose size is known.

    TensorRT has running sums only. Here every element is multiplied by what stands 1, then 2, then
    4, ... places before it, so that it collects all its predecessors in log2(size) steps.
    """
    wanted = dtype or net.output.dtype
    x = net.tensor(self, wanted)
    for step, axis in _steps(self, dim):
        x = binary(net, "PROD", x, _moved(net, x, self, axis, step, 1), wanted)
    return x


@converter("aten::cummax")
def cummax(net: Network, self: torch.Tensor, dim: int) -> tuple[NetworkTensor, NetworkTensor]:
    """Convert the running maximum along a dimension whose size is known, and its last place."""
    return _running(net, "GREATER", self, dim)


@converter("aten::cummin")
def cummin(net: Network, self: torch.Tensor, dim: int) -> tuple[NetworkTensor, NetworkTensor]:
    """Convert the running minimum along a dimension whose size is known, and its last place."""
    return _running(net, "LESS", self, dim)


def _running(
    net: Network, op: str, x: torch.Tensor, dim: int
) -> tuple[NetworkTensor, NetworkTensor]:
    """Let every element take over a better one from 1, 2, 4, ... places before it."""
    working = working_dtype(x.dtype)
    values = net.tensor(x, working)
    if x.ndim == 0:
        return net.tensor(x), net.tensor(0, torch.int64)
    axis = positive_dim(dim, x.ndim)
    shape = [1] * x.ndim
    shape[axis] = static_number(f"size of dim {dim}", x.shape[axis])
    line = net.constant(torch.arange(shape[axis], dtype=torch.int64).reshape(shape))
    places = net.expand(line, x.shape)
    worst = _worst(op, working)
    for step, _ in _steps(x, dim):
        before = _moved(net, values, x, axis, step, worst)
        better = net.add_elementwise(before, values, op)
        places = choose(net, better, _moved(net, places, x, axis, step, 0), places, torch.int64)
        values = choose(net, better, before, values, working)
    return net.cast(values, net.compute_dtype(x.dtype)), places


def _worst(op: str, dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return -torch.inf if op == "GREATER" else torch.inf
    limits = torch.iinfo(dtype)
    return limits.min if op == "GREATER" else limits.max


def _steps(x: torch.Tensor, dim: int) -> Iterator[tuple[int, int]]:
    """Give 1, 2, 4, ... below the size of a dimension, with its index."""
    if x.ndim == 0:
        return
    axis = positive_dim(dim, x.ndim)
    size = static_number(f"size of dim {dim}", x.shape[axis])
    step = 1
    while step < size:
        yield step, axis
        step *= 2


def _moved(
    net: Network, x: NetworkTensor, like: torch.Tensor, axis: int, step: int, fill: float | int
) -> NetworkTensor:
    """Move elements along a dimension by some places; ``fill`` moves in."""
    start = [0] * like.ndim
    start[axis] = -step
    value = net.tensor(fill, net.dtype_of(x))
    return net.add_slice(x, start, list(like.shape), mode="FILL", fill=value)
