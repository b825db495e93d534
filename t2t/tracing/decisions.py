"""What must be decided about dynamic sizes before an operator runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from t2t.sizes import is_symbolic

__all__ = ["DECISIONS"]

aten = torch.ops.aten


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
