"""Linear layers and products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._arguments import agree
from t2t.converters._compute import product_precision
from t2t.converters._spatial import autocast, squeeze
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.network.movement import same_sizes
from t2t.registry import Precision, converter

__all__ = ["linear", "matmul", "multiply", "product"]

MAX_RANK = 8
"""TensorRT's largest number of dimensions."""

_LINEAR, _MATMUL = F.linear, torch.matmul


def product(net: Network, a: TensorLike, b: TensorLike, op1: str = "NONE") -> NetworkTensor:
    """Multiply as torch.matmul does, in torch's result type; ``op1`` may "TRANSPOSE" ``b``."""
    dtype = net.output.dtype
    ranks = [len(a.shape), len(b.shape)]  # type: ignore[union-attr]
    rows, columns = ranks[0] == 1, ranks[1] == 1
    rank = max(*ranks, 2)
    left = net.tensor(a, dtype, rank)
    if columns:
        # As matrices of one row or column, for TensorRT's vectors do not mix with other ranks.
        right, op1 = net.unsqueeze(net.tensor(b, dtype), [1]), "NONE"
    else:
        right = net.tensor(b, dtype, rank)
    if not net.dtype_of(left).is_floating_point or _is_sum(net, left, right, op1):
        z = _by_terms(net, left, right, op1)
    else:
        z = net.add_matrix_multiply(left, right, "NONE", op1)
    return squeeze(net, z, [rank - 2] * rows + [rank - 1] * columns)


def _is_sum(net: Network, a: NetworkTensor, b: NetworkTensor, op1: str) -> bool:
    """Return whether a product is better off as its terms: where few are float32 in a half network.

    TensorRT-RTX has no products of float32 matrices for Turing, whose networks are all half.
    """
    if net.policy.low is None or net.dtype_of(a) != torch.float32:
        return False
    columns = b.shape[-2 if op1 == "TRANSPOSE" else -1]
    return len(a.shape) < MAX_RANK and (columns == 1 or 0 <= a.shape[-1] < 8)


def _by_terms(net: Network, a: NetworkTensor, b: NetworkTensor, op1: str) -> NetworkTensor:
    """(*, m, k) by (*, k, n), also of integers, which TensorRT's layer does not multiply."""
    rank = max(len(a.shape), len(b.shape))
    a, b = net.tensor(a, rank=rank), net.tensor(b, rank=rank)
    a, b = net.unsqueeze(a, [rank]), net.unsqueeze(b, [rank - 2])
    if op1 == "TRANSPOSE":
        b = net.transpose(b, [*range(rank - 1), rank, rank - 1])
    terms = net.add_elementwise(a, b, "PROD")
    return net.add_reduce(terms, "SUM", len(terms.shape) - 2, keep_dims=False)


def _linear_meta(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    known = autocast(input, _LINEAR, weight, bias)
    if known is not None:
        return known
    fits = (
        input.dtype == weight.dtype
        and input.dim() > 0
        and weight.dim() in (1, 2)
        and agree((input.shape[-1], weight.shape[-1]))
        and (bias is None or (bias.dtype == input.dtype and bias.dim() < weight.dim()))
    )
    if not fits:
        # What does not go together, torch is to say.
        return NotImplemented
    return input.new_empty((*input.shape[:-1], *weight.shape[:-1]))


def _linear_precision(
    output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
) -> Precision:
    del input, bias
    return product_precision(output.shape[-1] if weight.dim() > 1 else 1)


# The function, for PyTorch flattens the batch around its product of matrices.
@converter("torch.nn.functional.linear", precision=_linear_precision, meta=_linear_meta)
def linear(
    net: Network, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> NetworkTensor:
    """Convert (*, in) to (*, out) by a weight (out, in), or to (*) by one of (in,)."""
    y = product(net, input, weight, "TRANSPOSE")
    # A bias of zeros, as fresh layers have it, would be a layer that does nothing.
    if bias is None or not (net.is_traced(bias) or net.refittable or bias.any()):
        return y
    return net.add_elementwise(y, bias, "SUM", dtype=net.output.dtype)


def _matmul_meta(input: torch.Tensor, other: torch.Tensor) -> Any:
    if torch.is_autocast_enabled(input.device.type) or min(input.dim(), other.dim()) < 2:
        return _MATMUL(input, other)
    batches = (input.shape[:-2], other.shape[:-2])
    if all(batches) and not same_sizes(*batches):
        return _MATMUL(input, other)
    fits = input.dtype == other.dtype and agree((input.shape[-1], other.shape[-2]))
    if not fits:
        return NotImplemented
    return input.new_empty((*max(batches, key=len), input.shape[-2], other.shape[-1]))


def _matmul_precision(output: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Precision:
    return product_precision(output.shape[-1] if b.dim() > 1 else 1, a.shape[-1])


# The functions, for PyTorch repeats what is broadcast, and flattens the batch, around its product.
@converter(
    "torch.matmul",
    "torch.linalg.matmul",
    "torch.Tensor.matmul",
    "torch.Tensor.__matmul__",
    precision=_matmul_precision,
    meta=_matmul_meta,
)
def matmul(net: Network, input: torch.Tensor, other: torch.Tensor) -> NetworkTensor:
    """Convert a product of any ranks: (*, m, k) by (*, k, n), 1-D operands being vectors."""
    return product(net, input, other)


@converter("aten::mm", "aten::bmm", "aten::mv", "aten::dot", precision=_matmul_precision)
def multiply(net: Network, self: torch.Tensor, mat2: torch.Tensor) -> NetworkTensor:
    """Convert (*, m, k) by (*, k, n), (m, k) by (k,), or (k,) by (k,)."""
    return product(net, self, mat2)
