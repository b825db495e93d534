"""Torch's many spellings of an argument, brought to one form before a converter uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.sizes import example_size, is_symbolic, static_size


def ntuple(name: str, value: Any, n: int) -> tuple[int, ...]:
    """Return an int, or a sequence of 1 or ``n`` ints, as a tuple of ``n``."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(numbers) == 1:
        numbers *= n
    if len(numbers) != n:
        raise UnsupportedArgumentError(f"{name}={value!r}: one number or {n} are needed")
    return tuple(static_number(name, number) for number in numbers)


def static_number(name: str, value: Any) -> int:
    """Return a number that the engine must know when it is built."""
    number = static_size(value)
    if number is None:
        raise UnsupportedArgumentError(
            f"{name}={value}: it depends on a dynamic dimension; TensorRT needs a plain number here"
        )
    return number


def agree(*pairs: tuple[Any, Any]) -> bool:
    """Return whether the two sizes of each pair are equal; dynamic ones are required to be."""
    for size, wanted in pairs:
        if is_symbolic(size) or is_symbolic(wanted):
            torch._check(size == wanted, lambda: f"a size is {size}, but must be {wanted}")  # noqa: B023
        elif size != wanted:
            return False
    return True


def require_broadcast(x: torch.Tensor, sizes: Sequence[Any]) -> None:
    """Require that a tensor, where it has dynamic sizes, can be broadcast to others."""
    for size, wanted in zip(reversed(x.shape), reversed(sizes), strict=False):
        if static_size(size) != 1:
            # As the example does it: repeated where it is 1 there and the other is not.
            agree((size, 1 if example_size(size) == 1 != example_size(wanted) else wanted))


def positive_dim(dim: int, rank: int) -> int:
    """Return a dimension, counted from the end if negative, as an index from the front.

    Raises:
        IndexError: there is none of this number, in torch's words.
    """
    extent = max(rank, 1)
    if not -extent <= dim < extent:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-extent}, {extent - 1}], "
            f"but got {dim})"
        )
    return dim % extent


def dims(dim: Any, rank: int) -> tuple[int, ...]:
    """Return one dimension, several, or all (None or empty) as sorted indices from the front."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(rank))
    several = dim if isinstance(dim, Sequence) else [dim]
    return tuple(sorted(positive_dim(d, rank) for d in several))
