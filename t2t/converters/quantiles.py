"""Quantiles: of sorted elements, those at computed ranks.

Which ranks these are depends on how many elements are numbers. All answers are computed when the
network is made, exactly, as tables that the network reads by this count.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from t2t.converters._arguments import positive_dim, static_number
from t2t.converters._compute import choose
from t2t.converters.sorting import MAX_K
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import static_size

__all__ = ["nanquantile", "quantile"]


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile_output(
    input: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Any = None,
) -> Any:
    """Return the fake result; PyTorch's own code looks at the values of ``q``, which has none."""
    del out
    heads = tuple(q.shape) if isinstance(q, torch.Tensor) else ()
    number = isinstance(q, int | float) and 0 <= q <= 1
    known = isinstance(q, torch.Tensor) and q.dtype == input.dtype and q.ndim <= 1
    if not (number or known) or interpolation not in _INTERPOLATIONS:
        return NotImplemented
    if input.dtype not in (torch.float32, torch.float64) or 0 in map(static_size, input.shape):
        return NotImplemented
    if dim is None:
        kept: tuple[Any, ...] = (1,) * input.ndim if keepdim else ()
    else:
        axis = positive_dim(dim, input.ndim)
        kept = tuple(
            1 if other == axis else size
            for other, size in enumerate(input.shape)
            if keepdim or other != axis
        )
    return input.new_empty((*heads, *kept))


# The functions, for PyTorch's own code looks at the values of ``q``.
@converter("torch.quantile", "torch.Tensor.quantile", precision="sensitive", meta=_quantile_output)
def quantile(
    net: Network,
    input: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> NetworkTensor:
    """Convert to the quantiles ``q`` (constants) along a dimension, or of all; NaN gives NaN."""
    del keepdim  # torch's output has the shape
    return _Rows(net, input, dim).quantiles(q, interpolation, skip_nan=False)


@converter(
    "torch.nanquantile",
    "torch.Tensor.nanquantile",
    precision="sensitive",
    meta=_quantile_output,
)
def nanquantile(
    net: Network,
    input: torch.Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> NetworkTensor:
    """Convert to the quantiles ``q`` (constants) of the elements that are numbers."""
    del keepdim  # torch's output has the shape
    return _Rows(net, input, dim).quantiles(q, interpolation, skip_nan=True)


def _ranks(q: float, size: int) -> torch.Tensor:
    """Return the rank of a quantile among 0, 1, ... size numbers, as this PyTorch rounds it."""
    counts = torch.arange(size + 1, dtype=torch.float64) - 1
    if not _EXACT_RANKS:
        counts = counts.to(torch.float32)
    return (q * counts).clamp(min=0).double()


# 0.3 of 10 is more than 3, as float32 has 0.3: since PyTorch 2.12 it is not rounded to 3.
_EXACT_RANKS = bool(torch.arange(11.0).quantile(torch.tensor([0.3]), interpolation="higher") == 4)


class _Rows:
    """A tensor as sorted rows, NaN last.

    Args:
        net: the network.
        input: the tensor.
        dim: the dimension that becomes the row; None is all.
    """

    def __init__(self, net: Network, input: torch.Tensor, dim: int | None) -> None:
        self.net = net
        self.dtype = input.dtype
        x = net.tensor(input, self.dtype)
        if dim is None or input.ndim == 0:
            self.size = static_number("number of elements", math.prod(input.shape))
        else:
            axis = positive_dim(dim, input.ndim)
            self.size = static_number(f"size of dim {dim}", input.shape[axis])
            x = net.transpose(x, [*(a for a in range(input.ndim) if a != axis), axis])
        if self.size > MAX_K:
            raise UnsupportedArgumentError(
                f"{self.size} elements: TensorRT's ITopKLayer sorts at most {MAX_K}"
            )
        x = net.reshape(x, [math.prod(input.shape) // self.size, self.size])
        missing = net.add_unary(x, "ISNAN")
        numbers = net.cast(net.add_unary(missing, "NOT"), torch.int32)
        self.counts = net.add_reduce(numbers, "SUM", 1, keep_dims=True)
        x = choose(net, missing, math.inf, x, self.dtype)
        self.sorted, _ = net.add_topk(x, "MIN", self.size, 1)

    def quantiles(self, q: Any, interpolation: str, skip_nan: bool) -> NetworkTensor:
        """Return quantiles in the shape and dtype of the operation's output."""
        net, dtype = self.net, self.dtype
        if net.is_traced(q):
            raise UnsupportedArgumentError("q depends on the input: supported: constants")
        wanted = torch.as_tensor(q, dtype=dtype).double().reshape(-1)
        if not bool(((wanted >= 0) & (wanted <= 1)).all()):
            raise UnsupportedArgumentError(f"q={q}: quantiles lie between 0 and 1")
        results = [self._quantile(float(number), interpolation) for number in wanted]
        joined = results[0] if len(results) == 1 else net.add_concatenation(results, 1)
        enough = 1 if skip_nan else self.size
        few = net.add_elementwise(self.counts, enough, "LESS", dtype=torch.int32)
        joined = choose(net, few, math.nan, joined, dtype)
        return net.reshape(net.transpose(joined, [1, 0]), net.output.shape)

    def _quantile(self, q: float, interpolation: str) -> NetworkTensor:
        net, dtype = self.net, self.dtype
        ranks = _ranks(q, self.size)
        chosen = {"lower": ranks.floor(), "higher": ranks.ceil(), "nearest": ranks.round()}
        if interpolation in chosen:
            return self._at(chosen[interpolation])
        low, high = (self._at(r) for r in (ranks.floor(), ranks.ceil()))
        parts = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks.frac()
        weight = net.add_gather(parts.to(dtype), self.counts, 0)
        # As torch.lerp: from the nearer end, so that it is met exactly.
        span = net.add_elementwise(high, low, "SUB")
        rest = net.add_elementwise(1.0, weight, "SUB", dtype=dtype)
        up = net.add_elementwise(low, net.add_elementwise(span, weight, "PROD"), "SUM")
        down = net.add_elementwise(high, net.add_elementwise(span, rest, "PROD"), "SUB")
        near = net.add_elementwise(weight, 0.5, "LESS", dtype=dtype)
        return net.add_select(near, up, down)

    def _at(self, ranks: torch.Tensor) -> NetworkTensor:
        """Read each row at the rank that stands in a table at the row's count of numbers."""
        index = self.net.add_gather(ranks.to(torch.int32), self.counts, 0)
        return self.net.add_gather(self.sorted, index, 1, mode="ELEMENT")
