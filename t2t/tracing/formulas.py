"""Operators in terms of others, where PyTorch's own formula is long or hides what is a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from t2t.sizes import is_symbolic

__all__ = ["DECISIONS", "FORMULAS"]

aten = torch.ops.aten


def split(self: torch.Tensor, split_size: Any, dim: int = 0) -> list[torch.Tensor]:
    """Cut into slices of one size, the last one perhaps smaller.

    As slices of their own, those that nobody uses are no layers, and writes to one find their
    place in the whole.
    """
    size = self.shape[dim]
    # torch gives one piece where there is nothing to cut.
    count = 1 if split_size == 0 else max(1, int((size + split_size - 1) // split_size))
    return [
        aten.slice.Tensor(self, dim, index * split_size, (index + 1) * split_size)
        for index in range(count)
    ]


def split_with_sizes(
    self: torch.Tensor, split_sizes: Sequence[Any], dim: int = 0
) -> list[torch.Tensor]:
    """Cut into slices of given sizes."""
    torch._check(
        sum(split_sizes) == self.shape[dim],
        lambda: f"split_with_sizes: {split_sizes} do not add up to {self.shape[dim]}",
    )
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(aten.slice.Tensor(self, dim, start, start + size))
        start = start + size
    return pieces


def unbind(self: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Select every index of a dimension."""
    return [aten.select.int(self, dim, index) for index in range(int(self.shape[dim]))]


def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize by one of three operators, which say what they write: this one does not."""
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    if training:
        return aten._native_batch_norm_legit.default(
            input, weight, bias, running_mean, running_var, True, momentum, eps
        )
    return aten._native_batch_norm_legit_no_training.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )


def batch_norm_no_update(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize by running statistics."""
    training = running_mean is None or running_var is None
    results = native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return *results, torch.empty(0, dtype=torch.uint8)


def diagonal_scatter(
    self: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Write into a diagonal of a copy."""
    out = self.clone()
    aten.diagonal.default(out, offset, dim1, dim2).copy_(src)
    return out


def as_strided_scatter(
    self: torch.Tensor, src: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None
) -> torch.Tensor:
    """Write into a view of a copy."""
    out = self.clone()
    aten.as_strided.default(out, size, stride, storage_offset).copy_(src)
    return out


def put(
    self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Write into the flattened tensor."""
    places, values = [index.reshape(-1)], source.reshape(-1)
    flat: torch.Tensor = aten.index_put.default(self.reshape(-1), places, values, accumulate)
    return flat.reshape(self.shape)


def addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """Add ``self`` to a product of matrices, or of batches of them, or of a matrix and a vector.

    As operators of their own: under ``fp16=True`` the product computes in half, but the sum in
    float32 where ``self`` is a mask of -1e9.
    """
    product = torch.matmul(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        # As torch has it, nothing of ``self`` matters then, not even NaN.
        return product
    return product + (self if beta == 1 else self * beta)


def addbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """Add ``self`` to the sum of all products of a batch: one product of longer rows."""
    rows = batch1.transpose(0, 1).flatten(1)
    return addmm(self, rows, batch2.flatten(0, 1), beta=beta, alpha=alpha)


def convolution(*args: Any) -> torch.Tensor:
    """Convolve; a scripted module calls it with four switches of cuDNN behind the arguments."""
    result: torch.Tensor = aten.convolution.default(*args[:9])
    return result


def searchsorted(
    sorted_sequence: torch.Tensor,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count the boundaries below each value; torch's own search needs a loop."""
    bounds = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    values = torch.as_tensor(self).unsqueeze(-1)
    bounds = bounds.unsqueeze(-2) if bounds.ndim > 1 else bounds
    # Negated, as NaN stands behind all numbers.
    behind = bounds > values if right or side == "right" else bounds >= values
    return (~behind).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def bucketize(
    self: Any, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Count the boundaries below each value."""
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def repeat_interleave(repeats: torch.Tensor, *, output_size: Any = None) -> Any:
    """Give for each place of the result whose repetition stands there."""
    if output_size is None:
        # How long it is depends on the data; torch says so.
        return NotImplemented
    place = torch.arange(output_size, dtype=repeats.dtype)
    return searchsorted(repeats.cumsum(0), place, right=True).to(repeats.dtype)


FORMULAS: dict[OpOverload, Callable[..., Any]] = {
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: unbind,
    aten._convolution.default: convolution,
    aten.addmm.default: addmm,
    aten.addmv.default: addmm,
    aten.baddbmm.default: addmm,
    aten.addbmm.default: addbmm,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten.put.default: put,
    aten.bucketize.Tensor: bucketize,
    aten.bucketize.Scalar: bucketize,
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten.searchsorted.Tensor: searchsorted,
    aten.searchsorted.Scalar: searchsorted,
    aten.native_batch_norm.default: native_batch_norm,
    aten._batch_norm_no_update.default: batch_norm_no_update,
}


def decide_squeeze(self: torch.Tensor, dim: Any = None) -> None:
    """Let a guard say whether a dynamic size is 1.

    torch assumes in silence that it is not; the result would have another rank where it is.
    """
    chosen = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    for axis in chosen:
        if self.ndim and is_symbolic(size := self.shape[axis]):
            bool(size == 1)


DECISIONS: dict[OpOverload, Callable[..., None]] = dict.fromkeys(
    (
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze_.default,
        aten.squeeze_.dim,
        aten.squeeze_.dims,
    ),
    decide_squeeze,
)
"""What must be decided about sizes before an operator runs."""
