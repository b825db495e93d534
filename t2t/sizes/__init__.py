"""Dynamic sizes: from a declared Dim to a shape tensor.

`declared` brings what the user declares to dimensions and profiles. During the trace every size is
an expression of these dimensions (`terms`, `polynomials`, `expressions`) behind a torch.SymInt
(`nodes`, `fakes`); what the model decides on sizes is recorded and proved for all declared ones
(`guards`, `proofs`). `layers` computes them in the network, and `notation` writes them.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

from t2t.sizes.notation import text
from t2t.sizes.polynomials import floor_divide, multiply
from t2t.sizes.terms import Operation, Polynomial, Value, bounds, value_of
from t2t.torch_internals import hint_of

__all__ = [
    "apply_function",
    "example_size",
    "expression",
    "has_symbol",
    "is_contiguous",
    "is_symbolic",
    "is_true",
    "largest",
    "size_texts",
    "smallest",
    "static_size",
    "times",
]


def is_symbolic(value: Any) -> bool:
    """Return whether a size or number depends on a dynamic dimension."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def has_symbol(value: Any) -> bool:
    """Return whether a (nested) argument holds a symbolic number."""
    if isinstance(value, list | tuple):
        return any(has_symbol(item) for item in value)
    return is_symbolic(value)


def apply_function(name: str, x: Any) -> Any:
    """Return a function of `math`, such as "log", of a symbolic number."""
    return torch.SymFloat(getattr(x.node, f"sym_{name}")())


def example_size(size: Any) -> Any:
    """Return a size as it is in the example inputs."""
    return hint_of(size) if is_symbolic(size) else size


def expression(value: Any) -> Value:
    """Return a plain or symbolic number as an expression; equal ones compare equal."""
    return value_of(value)


def static_size(value: Any) -> int | None:
    """Return a size as an int, or None where it really depends on a dynamic dimension."""
    if not is_symbolic(value):
        return int(value)
    known = value_of(value)
    return None if isinstance(known, Polynomial | Operation) else int(known)


def is_contiguous(x: torch.Tensor) -> bool:
    """Return whether a tensor is known to be contiguous for all sizes; nothing is recorded."""
    step: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if static_size(size) != 1 and value_of(stride) != value_of(step):
            return False
        step = step * torch.sym_max(size, 1)
    return True


def largest(size: Any) -> int:
    """Return a bound that a size does not exceed in the declared ranges."""
    known = value_of(size)
    if not isinstance(known, Polynomial):
        return sys.maxsize if isinstance(known, Operation) else int(known)
    high = bounds(known)[1]
    return int(high) if math.isfinite(high) else sys.maxsize


def smallest(size: Any) -> int:
    """Return a bound that a size is not less than in the declared ranges."""
    known = value_of(size)
    low = bounds(known)[0] if isinstance(known, Polynomial | Operation) else known
    return int(low) if math.isfinite(low) else -sys.maxsize


def is_true(condition: Any) -> bool:
    """Return whether a condition on sizes is known to hold for all of them; nothing is recorded."""
    return value_of(condition) is True


def times(size: Any, other: Any) -> int | None:
    """Return how many times larger a size is than another, where that is one whole number."""
    if static_size(other) != 0:
        quotient = floor_divide(value_of(size), value_of(other))
        if isinstance(quotient, int) and multiply(quotient, value_of(other)) == value_of(size):
            return quotient
    return None


def size_texts(x: torch.Tensor) -> tuple[str, ...]:
    """Return the sizes of a traced tensor in the user's names: ("batch", "3", "32*h")."""
    return tuple(text(value_of(size)) for size in x.shape)
