"""Bags of embeddings: rows of a table, reduced group by group."""

from __future__ import annotations

import math
from typing import Any

import torch

from t2t.converters._compute import choose
from t2t.converters._indices import count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["embedding_bag"]

MAX_ELEMENTS = 1 << 24
"""Most elements of the tensor in which every bag meets every row."""

_SUM, _MEAN, _MAX = range(3)

_Results = tuple[NetworkTensor, None, None, None]


@converter("aten::_embedding_bag_forward_only", "aten::_embedding_bag", precision="sensitive")
def embedding_bag(
    net: Network,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> _Results:
    """Convert to a gather and a sum, mean or maximum of each bag; an empty bag gives zeros.

    ``indices`` is (N,), ``offsets`` says where each bag begins in it. Rows at ``padding_idx`` are
    in no bag. The other outputs serve training.
    """
    del scale_grad_by_freq, sparse
    number, bags = count(indices.shape), count(net.output[0].shape[:1])
    if number is None or bags is None:
        raise UnsupportedArgumentError("indices: TensorRT needs their number for bags")
    if bags * number * int(weight.shape[1]) > MAX_ELEMENTS:
        raise UnsupportedArgumentError(
            f"{bags} bags of {number} rows in all: every bag meets every row, in at most "
            f"{MAX_ELEMENTS} elements"
        )
    dtype = weight.dtype
    rows = net.add_gather(net.tensor(weight, dtype), indices, 0)
    if per_sample_weights is not None:
        factors = net.unsqueeze(net.tensor(per_sample_weights, dtype), [1])
        rows = net.add_elementwise(rows, factors, "PROD")
    inside = _members(net, offsets, bags, number, include_last_offset)
    if padding_idx >= 0:
        padded = net.add_elementwise(
            net.tensor(indices, torch.int64), padding_idx, "EQUAL", dtype=torch.int64
        )
        inside = net.add_elementwise(
            inside, net.unsqueeze(net.add_unary(padded, "NOT"), [0]), "AND"
        )
    return _reduced(net, rows, inside, mode, dtype), None, None, None


def _members(
    net: Network, offsets: torch.Tensor, bags: int, number: int, include_last_offset: bool
) -> NetworkTensor:
    """Return which position of the indices is in which bag: bool, (bags, positions)."""
    begins = net.tensor(offsets, torch.int64)
    if include_last_offset:
        ends = net.narrow(begins, 0, 1, bags)
        begins = net.narrow(begins, 0, 0, bags)
    else:
        end = net.constant(torch.tensor([number], dtype=torch.int64))
        ends = (
            net.add_concatenation([net.narrow(begins, 0, 1, bags - 1), end], 0) if bags > 1 else end
        )
    positions = torch.arange(number).unsqueeze(0)
    before = net.add_elementwise(positions, net.unsqueeze(begins, [1]), "LESS")
    behind = net.add_elementwise(positions, net.unsqueeze(ends, [1]), "LESS")
    return net.add_elementwise(net.add_unary(before, "NOT"), behind, "AND")


def _reduced(
    net: Network, rows: NetworkTensor, inside: NetworkTensor, mode: Any, dtype: torch.dtype
) -> NetworkTensor:
    wide = net.unsqueeze(inside, [2])
    neutral = -math.inf if mode == _MAX else 0.0
    chosen = choose(net, wide, net.unsqueeze(rows, [0]), neutral, dtype)
    total = net.add_reduce(chosen, "MAX" if mode == _MAX else "SUM", 1, keep_dims=False)
    if mode == _SUM:
        return total
    hits = net.add_reduce(net.cast(inside, torch.int32), "SUM", 1, keep_dims=True)
    if mode == _MEAN:
        most = net.add_elementwise(hits, 1, "MAX", dtype=torch.int32)
        return net.add_elementwise(total, net.cast(most, net.dtype_of(total)), "DIV")
    none = net.add_elementwise(hits, 0, "EQUAL", dtype=torch.int32)
    return choose(net, none, 0.0, total, dtype)
