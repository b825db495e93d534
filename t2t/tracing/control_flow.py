"""Operators that take functions: torch.cond, flex_attention, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.tracing.graph import tree_leaves

__all__ = ["HIGHER_ORDER", "NO_LOOPS"]

NO_LOOPS = (
    "torch.{name} has no converter yet: write a Python loop of fixed length, which is unrolled, or "
    "operators on whole tensors"
)


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """Compute both branches and choose between their results.

    Branches of torch.cond have no side effects and give tensors of the same shapes.
    """
    if not isinstance(pred, torch.Tensor):
        return true_fn(*operands) if pred else false_fn(*operands)
    chosen, other = (list(tree_leaves(branch(*operands))) for branch in (true_fn, false_fn))
    return tuple(
        torch.where(pred.reshape(()), a, b) if isinstance(a, torch.Tensor) else _same(a, b)
        for a, b in zip(chosen, other, strict=True)
    )


def _same(a: Any, b: Any) -> Any:
    if a != b:
        raise UnsupportedOperatorError(
            f"torch.cond: a number that differs between the branches ({a} and {b}); return a tensor"
        )
    return a


def flex_attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """Compute with PyTorch's own definition: all scores, changed by the two functions."""
    from torch._higher_order_ops.flex_attention import math_attention

    out, log_sum, maximum = math_attention(query, *args, **kwargs)
    # In memory the result lies as the query does, on which a .view() behind it may rely.
    strides = query.stride()
    order = sorted(range(4), key=lambda axis: -strides[axis])
    inverse = sorted(range(4), key=lambda axis: order[axis])
    return out.permute(order).contiguous().permute(inverse), log_sum, maximum


HIGHER_ORDER: dict[str, Callable[..., Any]] = {"cond": cond, "flex_attention": flex_attention}
"""What operators that take functions compute, in terms of ordinary ones, by name."""
