"""Linear layers and products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._arguments import agree
from t2t.converters._spatial import autocast, squeeze
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.network.movement import same_sizes
from t2t.registry import converter

__all__ = ["addbmm", "addmm", "bilinear", "linear", "matmul", "multiply", "product"]

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
    if net.dtype_of(left).is_floating_point:
        z = net.add_matrix_multiply(left, right, "NONE", op1)
    else:
        z = _integer_product(net, left, right, op1)
    return squeeze(net, z, [rank - 2] * rows + [rank - 1] * columns)


def _integer_product(net: Network, a: NetworkTensor, b: NetworkTensor, op1: str) -> NetworkTensor:
    """(*, m, k) by (*, k, n): TensorRT multiplies matrices of floats only."""
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
        and agree(input.shape[-1], weight.shape[-1])
        and (bias is None or (bias.dtype == input.dtype and bias.dim() < weight.dim()))
    )
    if not fits:
        # What does not go together, torch is to say.
        return NotImplemented
    return input.new_empty((*input.shape[:-1], *weight.shape[:-1]))


@converter("torch.nn.functional.linear", precision="compute", meta=_linear_meta)
def linear(
    net: Network, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> NetworkTensor:
    """Convert (*, in) to (*, out) by a weight (out, in), or to (*) by one of (in,)."""
    y = product(net, input, weight, "TRANSPOSE")
    # A bias of zeros, as fresh layers have it, would be a layer that does nothing.
    if bias is None or not (net.is_traced(bias) or bias.any()):
        return y
    return net.add_elementwise(y, bias, "SUM", dtype=net.output.dtype)


def _matmul_meta(input: torch.Tensor, other: torch.Tensor) -> Any:
    if torch.is_autocast_enabled(input.device.type) or min(input.dim(), other.dim()) < 2:
        return _MATMUL(input, other)
    batches = (input.shape[:-2], other.shape[:-2])
    if all(batches) and not same_sizes(*batches):
        return _MATMUL(input, other)
    if input.dtype != other.dtype or not agree(input.shape[-1], other.shape[-2]):
        return NotImplemented
    return input.new_empty((*max(batches, key=len), input.shape[-2], other.shape[-1]))


@converter(
    "torch.matmul",
    "torch.linalg.matmul",
    "torch.Tensor.matmul",
    "torch.Tensor.__matmul__",
    precision="compute",
    meta=_matmul_meta,
)
def matmul(net: Network, input: torch.Tensor, other: torch.Tensor) -> NetworkTensor:
    """Convert a product of any ranks: (*, m, k) by (*, k, n), 1-D operands being vectors."""
    return product(net, input, other)


@converter("aten::mm", "aten::bmm", precision="compute")
def multiply(net: Network, self: torch.Tensor, mat2: torch.Tensor) -> NetworkTensor:
    """Convert (*, m, k) by (*, k, n) to (*, m, n)."""
    return product(net, self, mat2)


@converter("aten::mv", precision="compute")
def mv(net: Network, self: torch.Tensor, vec: torch.Tensor) -> NetworkTensor:
    """Convert (m, k) by (k,) to (m,)."""
    return product(net, self, vec)


@converter("aten::dot", precision="compute")
def dot(net: Network, self: torch.Tensor, tensor: torch.Tensor) -> NetworkTensor:
    """Convert (k,) by (k,) to a number."""
    return product(net, self, tensor)


@converter("aten::addmm", precision="compute")
def addmm(
    net: Network,
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> NetworkTensor:
    """Convert ``beta * self + alpha * (mat1 @ mat2)``; ``self`` broadcasts."""
    return _plus(net, self, product(net, mat1, mat2), beta, alpha)


@converter("aten::baddbmm", precision="compute")
def baddbmm(
    net: Network,
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> NetworkTensor:
    """Convert ``beta * self + alpha * (batch1 @ batch2)``; ``self`` broadcasts."""
    return _plus(net, self, product(net, batch1, batch2), beta, alpha)


@converter("aten::addbmm", precision="compute")
def addbmm(
    net: Network,
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> NetworkTensor:
    """Convert ``beta * self + alpha * sum(batch1 @ batch2)`` over the batch."""
    total = net.add_reduce(product(net, batch1, batch2), "SUM", 0, keep_dims=False)
    return _plus(net, self, total, beta, alpha)


@converter("aten::addmv", precision="compute")
def addmv(
    net: Network,
    self: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> NetworkTensor:
    """Convert ``beta * self + alpha * (mat @ vec)``."""
    return _plus(net, self, product(net, mat, vec), beta, alpha)


def _plus(
    net: Network, added: torch.Tensor, result: NetworkTensor, beta: Any, alpha: Any
) -> NetworkTensor:
    dtype = net.output.dtype
    if alpha != 1:
        result = net.add_elementwise(result, alpha, "PROD", dtype=dtype)
    # As torch has it, nothing of ``added`` matters then, not even NaN.
    if beta == 0:
        return result
    if beta == 1:
        return net.add_elementwise(result, added, "SUM", dtype=dtype)
    return net.add_elementwise(result, net.add_elementwise(added, beta, "PROD", dtype), "SUM")


@converter("torch.nn.functional.bilinear", "torch.bilinear", precision="compute")
def bilinear(
    net: Network,
    input1: torch.Tensor,
    input2: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> NetworkTensor:
    """Convert (*, a) and (*, b) to (*, out) by a weight (out, a, b)."""
    out, a, b = weight.shape
    dtype = net.output.dtype
    kernel = net.transpose(net.tensor(weight, dtype), [1, 0, 2])
    rows = product(net, input1, net.reshape(kernel, (a, out * b)))
    matrices = net.reshape(rows, (*input1.shape[:-1], out, b))
    column = net.unsqueeze(net.tensor(input2, dtype), [input2.dim()])
    y = squeeze(net, product(net, matrices, column), [input2.dim()])
    return y if bias is None else net.add_elementwise(y, bias, "SUM", dtype=dtype)
