"""Positions in tensors: bounds and indices in torch's spelling, brought to TensorRT's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import NoneType
from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError, UnsupportedOperatorError
from t2t.network import Network, NetworkTensor
from t2t.sizes import is_true, static_size
from t2t.torch_internals import FakeTensor, unset_fake_temporarily

MASKS = (torch.bool, torch.uint8)
"""Dtypes of index tensors that are masks."""


def wrapped(name: str, index: Any, size: Any) -> Any:
    """Return an index, counted from the end if negative, as a (symbolic) number from 0 on."""
    if is_true(index >= 0):
        return index
    if is_true(index < 0):
        return index + size
    raise UnsupportedArgumentError(
        f"{name}={index}: it is negative for some of the declared sizes and not for others"
    )


def bounded(name: str, index: Any, size: Any) -> Any:
    """Return a bound of a slice as Python means it: counted from the end, cut at both ends."""
    bound = wrapped(name, index, size)
    if not is_true(bound >= 0):
        bound = torch.sym_max(bound, 0)
    if not is_true(bound <= size):
        bound = torch.sym_min(bound, size)
    return bound


def wrapped_tensor(net: Network, index: torch.Tensor, size: Any) -> torch.Tensor | NetworkTensor:
    """Return an index tensor without negative numbers, as TensorRT needs them."""
    number = static_size(size)
    if not net.is_traced(index):
        if not index.numel():
            return index
        if int(index.min()) >= 0:
            return index
        if number is not None:
            return torch.where(index < 0, index + number, index)
    length = size if number is None else number
    negative = net.add_elementwise(index, 0, "LESS")
    return net.add_select(negative, net.add_elementwise(index, length, "SUM"), index)


def check_range(index: Any, size: Any, negative: bool = False) -> None:
    """Let guards say that a dynamic dimension has the positions that a constant index names.

    Args:
        index: the index.
        size: of the dimension.
        negative: whether torch counts negative ones from the end here.

    Raises:
        IndexError: it has not; torch says it better.
    """
    if isinstance(index, FakeTensor) or not index.numel():
        return
    with unset_fake_temporarily():
        low, high = int(index.min()), int(index.max())
    wrong = low if low < 0 else high
    text = f"index {wrong} is out of bounds for size {size}"
    if not negative and low < 0:
        raise IndexError(text)
    if static_size(size) is not None and not (size > high and size >= -low):
        raise IndexError(text)
    torch._check(size > high, lambda: text)
    torch._check(size >= -low, lambda: text)


def check_elements(self: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    """Check the index of a gather or scatter of elements; what is wrong, torch says better."""
    ranks = max(self.ndim, 1), max(index.ndim, 1)
    if 0 in map(static_size, index.shape):
        return
    if ranks[0] != ranks[1] or index.dtype not in (torch.int32, torch.int64):
        raise IndexError("the index has another rank than the tensor, or is of no integers")
    check_range(index, self.shape[dim] if self.ndim else 1)


def known_indices(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return the indices of a fake tensor, constant masks as numbers; their range is checked."""
    numbers: list[torch.Tensor | None] = []
    for number in indices:
        if isinstance(number, FakeTensor | NoneType) or number.dtype not in MASKS:
            # PyTorch's own rule of shapes takes int8 for a mask, and not uint8.
            is_byte = isinstance(number, FakeTensor) and number.dtype == torch.uint8
            numbers.append(number.bool() if is_byte else number)  # type: ignore[union-attr]
            continue
        with unset_fake_temporarily():
            numbers += mask_indices(number)
    for size, number in zip(self.shape, numbers, strict=False):
        if number is not None:
            check_range(number, size, negative=True)
    return numbers


@dataclass
class Points:
    """Which elements several index tensors name.

    Attributes:
        order: the tensor's dimensions, the indexed ones first.
        count: how many are indexed.
        shape: the shape that the index tensors have together.
        front: how many dimensions of the result stand before that shape, as torch puts it.
        coordinates: an int network tensor of that shape and one more dimension of size ``count``.
        constant: the same as a torch tensor, where it is a constant.
    """

    order: list[int]
    count: int
    shape: tuple[Any, ...]
    front: int
    coordinates: NetworkTensor
    constant: torch.Tensor | None = None

    def result_order(self, rank: int) -> list[int]:
        """Return the order in which dimensions (``shape``, then the rest) stand in the result."""
        inner = len(self.shape)
        rest = list(range(inner, rank))
        return [*rest[: self.front], *range(inner), *rest[self.front :]]


def integer_indices(
    net: Network, self: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return one index or None for every dimension; constant masks become the indices they select.

    Raises:
        UnsupportedOperatorError: a mask depends on the input.
    """
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            found.append(index)
            continue
        if net.is_traced(index):
            raise UnsupportedOperatorError(
                "the number of elements that a mask selects depends on the data, which TensorRT "
                "needs to know when the engine is built; use torch.where or masked_fill"
            )
        found += mask_indices(index)
    return found + [None] * (self.ndim - len(found))


def mask_indices(mask: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the indices where a constant mask holds, one tensor for each of its dimensions."""
    return mask.nonzero().unbind(1)


def points(net: Network, self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Points:
    """Bring the indices of ``self[indices]`` to one tensor of coordinates.

    Args:
        net: the network.
        self: the tensor.
        indices: for each dimension an int tensor, or None for all of it.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    used = [index for index in indices if index is not None]
    shape = broadcast(index.shape for index in used)
    numbers = [wrapped_tensor(net, i, self.shape[a]) for a, i in zip(axes, used, strict=True)]
    constant = None
    known = [n.long() for n in numbers if isinstance(n, torch.Tensor) and not net.is_traced(n)]
    if len(known) == len(numbers):
        constant = torch.stack(torch.broadcast_tensors(*known), -1)  # type: ignore[no-untyped-call]
        coordinates = net.tensor(constant)
    else:
        columns = [
            net.unsqueeze(net.expand(net.tensor(n, torch.int64), shape), [len(shape)])
            for n in numbers
        ]
        coordinates = net.add_concatenation(columns, len(shape))
    # torch's rule: index tensors side by side leave their result in place, others put it first.
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    rest = [axis for axis in range(self.ndim) if axis not in axes]
    front = axes[0] if adjacent else 0
    return Points([*axes, *rest], len(axes), shape, front, coordinates, constant)


def broadcast(shapes: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """Return the shape that several have together; torch has checked that they have one.

    torch.broadcast_shapes would ask whether dynamic sizes are 1.
    """
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    sizes = [next((n for n in column if static_size(n) != 1), 1) for column in columns]
    return tuple(reversed(sizes))


def count(shape: Sequence[Any]) -> int | None:
    """Return the number of elements of a shape, or None where it is dynamic."""
    sizes = [static_size(size) for size in shape]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)
