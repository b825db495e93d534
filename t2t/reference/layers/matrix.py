"""Matrix multiplication and Einstein summation."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.reference.datatypes import is_half, wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


def _operand(x: Tensor, op: str, column: bool) -> Tensor:
    if op == "TRANSPOSE":
        return x.mT
    if op == "VECTOR":
        return x.unsqueeze(-1 if column else -2)
    return x


@layer("MATRIX_MULTIPLY", "op0", "op1")
def matrix_multiply(ready: Ready) -> Kernel:
    """(..., M, K) by (..., K, N); halves are multiplied in float32 and rounded once."""
    op0, op1 = ready.attributes["op0"], ready.attributes["op1"]
    dtype = ready.dtype
    # A constant operand is widened here, not in every run.
    fixed = {
        position: value.float()
        for position, value in ready.constants.items()
        if is_half(value.dtype)
    }

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        left = _operand(fixed.get(0, a) if fixed else a, op0, column=False)
        right = _operand(fixed.get(1, b) if fixed else b, op1, column=True)
        # One matrix for the whole batch is faster as a matrix than as a batch of one.
        if right.dim() > 2 and op0 == "NONE" and right.shape[:-2].numel() == 1:
            right = right[(0,) * (right.dim() - 2)]
        result = torch.matmul(wide(left), wide(right))
        if op0 == "VECTOR":
            result = result.squeeze(-2)
        if op1 == "VECTOR":
            result = result.squeeze(-1)
        return result.to(dtype)

    return kernel


@layer("EINSUM", "equation")
def einsum(ready: Ready) -> Kernel:
    """Einstein summation by torch's own equation, which TensorRT's is a part of."""
    equation, dtype = ready.attributes["equation"], ready.dtype
    return lambda *operands: torch.einsum(equation, *map(wide, operands)).to(dtype)
