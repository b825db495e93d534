"""Operators that combine several elements at one index; TensorRT's scatter layer keeps only one.

Three ways, by what is known. Where the indices are constants, each position reads its elements
through a table. Where there are few pairs, every element is compared with every position. Else they
are sorted by their indices, summed up within each run of equal ones in log2(n) steps, and the last
of each run is scattered: time and memory grow as n log n, and no product with zeros lets an
infinity spread to other positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from t2t.formulas.running import running
from t2t.registry import formula
from t2t.sizes import largest, static_size
from t2t.torch_internals import FakeTensor

aten = torch.ops.aten

MAX_PAIRS = 1 << 20
"""Most elements of the tensor in which every element meets every position."""

MAX_SORTED = 3840
"""Most elements that TensorRT's ITopKLayer sorts."""

_Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_COMBINE: dict[str, _Combine] = {
    "sum": torch.add,
    "mean": torch.add,
    "prod": torch.mul,
    "amax": torch.maximum,
    "amin": torch.minimum,
}


@formula("aten::index_put", "aten::_unsafe_index_put", precision="sensitive")
def index_put(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    """Add values at indices, also several at one index."""
    if not accumulate:
        return NotImplemented
    numbered: list[torch.Tensor | None] = []
    for index in indices:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        numbered += index.nonzero().unbind(1) if index is not None and is_mask else [index]
    given = [(axis, index) for axis, index in enumerate(numbered) if index is not None]
    axes = [axis for axis, _ in given]
    order = [*axes, *(axis for axis in range(self.ndim) if axis not in axes)]
    sizes = [self.shape[axis] for axis in axes]
    # Indices, and one value for all, may lie on the CPU where the tensor does not.
    values = values.to(self.device)
    places = [index.to(self.device, torch.int64) for _, index in given]
    numbers = torch.broadcast_tensors(*places)  # type: ignore[no-untyped-call]
    position = torch.zeros((), dtype=torch.int64)
    for number, size in zip(numbers, sizes, strict=True):
        position = position * size + torch.where(number < 0, number + size, number)
    if static_size(position.numel()) == 0:
        return self.clone()
    data = self.permute(order)
    rest = data.shape[len(axes) :]
    # torch puts the indexed dimensions first unless they stand side by side.
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    front = axes[0] if adjacent else 0
    shape = (*self.shape[:front], *position.shape, *(rest[front:]))
    rows = values.expand(shape)
    inner = range(front, front + position.ndim)
    rows = rows.permute([*inner, *(axis for axis in range(rows.ndim) if axis not in inner)])
    total = _along_first(
        data.reshape(math.prod(sizes), math.prod(rest)),
        position.reshape(-1, 1),
        rows.reshape(position.numel(), math.prod(rest)),
        "sum",
        include_self=True,
    )
    back = sorted(range(self.ndim), key=lambda axis: order[axis])
    return total.reshape(data.shape).permute(back)


@formula("aten::index_add", precision="sensitive")
def index_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> torch.Tensor:
    """Add slices at indices along a dimension."""
    x, rows = (t.reshape(1) if t.ndim == 0 else t for t in (self, source))
    if alpha != 1:
        rows = rows * alpha
    positions: list[torch.Tensor | None] = [None] * (dim % x.ndim)
    total: torch.Tensor = aten.index_put.default(x, [*positions, index.reshape(-1)], rows, True)
    return total.reshape(self.shape)


@formula("aten::scatter_add", precision="sensitive")
def scatter_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> torch.Tensor:
    """Add elements at indices along a dimension."""
    return scatter_reduce(self, dim, index, src, "sum")


@formula("aten::scatter.reduce", precision="sensitive")
def scatter_reduce_older(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str
) -> torch.Tensor:
    """Add or multiply elements at indices, in the older spelling."""
    return scatter_reduce(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@formula("aten::scatter.value_reduce", precision="sensitive")
def scatter_reduce_value(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: Any, *, reduce: str
) -> torch.Tensor:
    """Add or multiply a number at indices, in the older spelling."""
    src = torch.full_like(index, value, dtype=self.dtype)
    return scatter_reduce(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@formula("aten::scatter_reduce.two", precision="sensitive")
def scatter_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Combine elements at indices along a dimension with what stands there, or without it."""
    if 0 in (static_size(size) for size in index.shape):
        return self.clone()
    x, positions, source = (t.reshape(1) if t.ndim == 0 else t for t in (self, index, src))
    axis = dim % x.ndim
    # torch reads as much of the source, and writes as much of the tensor, as the index is large.
    part = x
    for other, size in enumerate(positions.shape):
        source = source.narrow(other, 0, size)
        part = part if other == axis else part.narrow(other, 0, size)
    moved, columns = part.movedim(axis, 0), source.movedim(axis, 0)
    width = math.prod(moved.shape[1:])
    total = _along_first(
        moved.reshape(moved.shape[0], width),
        _columns(positions, axis),
        columns.reshape(columns.shape[0], width),
        reduce,
        include_self,
    )
    combined = total.reshape(moved.shape).movedim(0, axis)
    if all(static_size(a - b) == 0 for a, b in zip(part.shape, x.shape, strict=True)):
        return combined.reshape(self.shape)
    out = x.clone()
    target = out
    for other, size in enumerate(positions.shape):
        target = target if other == axis else target.narrow(other, 0, size)
    target.copy_(combined)
    return out.reshape(self.shape)


def _columns(index: torch.Tensor, axis: int) -> torch.Tensor:
    """Return an index along the first dimension, with one column where all columns are the same.

    As an index has them that was expanded to the shape of what it is for.
    """
    others = [other for other in range(index.ndim) if other != axis]
    if all(static_size(index.stride(other)) == 0 for other in others):
        for other in others:
            index = index.narrow(other, 0, 1)
        return index.reshape(-1, 1)
    columns = index.movedim(axis, 0)
    return columns.reshape(columns.shape[0], -1)


def _along_first(
    x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor, reduce: str, include_self: bool
) -> torch.Tensor:
    """Combine rows with those of ``x`` at indices along the first dimension.

    Args:
        x: (length, width).
        index: (n, width), or (n, 1) where all columns go to the same rows; none is negative.
        rows: (n, width).
        reduce: "sum", "mean", "prod", "amax" or "amin".
        include_self: whether what stands in ``x`` is combined too.
    """
    if not isinstance(index, FakeTensor):
        # Behind the last row that it names, nothing changes.
        used = int(index.max()) + 1
        if int(index.min()) < 0 or not x.shape[0] >= used:
            raise IndexError("an index is out of bounds")
        if static_size(x.shape[0]) != used:
            head = _along_first(x[:used], index, rows, reduce, include_self)
            return torch.cat([head, x[used:]])
    dtype = x.dtype
    wide = {torch.bool: torch.int32, torch.int8: torch.int32, torch.uint8: torch.int32,
            torch.float16: torch.float32, torch.bfloat16: torch.float32,
    }.get(dtype, dtype)  # fmt: skip
    data, rows = x.to(wide), rows.to(wide)
    length = x.shape[0]
    counted = reduce == "mean" or not include_self
    total, count = _combined(index.long(), rows, length, reduce, counted)
    combine = _COMBINE[reduce]
    if include_self:
        total = combine(data, total)
    if reduce == "mean":
        number = count + 1 if include_self else count.clamp(min=1)
        total = total / number if wide.is_floating_point else total // number
    if not include_self:
        total = torch.where(count > 0, total, data)
    return total != 0 if dtype == torch.bool else total.to(dtype)


def _combined(
    index: torch.Tensor, rows: torch.Tensor, length: Any, reduce: str, counted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine rows by their indices; an index without any has the neutral number.

    Returns:
        The combined rows (length, width), and how many they are.
    """
    neutral = _neutral(reduce, rows.dtype)
    width = rows.shape[1]
    if not isinstance(index, FakeTensor) and static_size(width) is not None:
        longest = int(torch.bincount(_flat(index)).max())
        if longest * length * width <= max(MAX_PAIRS, 8 * rows.numel()):
            return _by_table(index, rows, length, reduce)
    pairs = largest(index.shape[0]) * largest(length) * largest(width)
    if pairs <= MAX_PAIRS:
        meets = index.unsqueeze(0) == torch.arange(length).reshape(-1, 1, 1)
        chosen = torch.where(meets, rows.unsqueeze(0), neutral)
        count = meets.sum(1) if counted else index
        return _REDUCE[reduce](chosen, 1), count
    position, order = _sorted(index, length)
    ones = torch.ones_like(index)
    sums = _in_runs(position, _taken(rows, order), _COMBINE[reduce])
    count = _in_runs(position, ones, torch.add) if counted else ones
    number = torch.arange(position.shape[0]).unsqueeze(1)
    last = (position.roll(-1, 0) != position) | (number == position.shape[0] - 1)
    # What is not the last of its run goes to a row of its own, behind the others.
    target = torch.where(last, position, length)
    return (
        _spread(sums, target, length, neutral),
        _spread(count, target, length, 0) if counted else count,
    )


def _by_table(
    index: torch.Tensor, rows: torch.Tensor, length: int, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine rows that go to constant indices: each reads its own, then rows that are neutral."""
    width = rows.shape[1]
    if index.shape[1] > 1:
        flat = _flat(index).unsqueeze(1)
        total, count = _by_table(flat, rows.reshape(-1, 1), length * width, reduce)
        return total.reshape(length, width), count.reshape(length, width)
    position, order = (x.reshape(-1) for x in index.sort(stable=True, dim=0))
    count = torch.bincount(position, minlength=length)
    table = torch.full((int(count.max()), length), len(position))
    starts = count.cumsum(0) - count
    table[torch.arange(len(position)) - starts[position], position] = order
    padded = torch.cat([rows, rows.new_full((1, width), _neutral(reduce, rows.dtype))])
    taken = padded.index_select(0, table.reshape(-1)).reshape(*table.shape, width)
    return _REDUCE[reduce](taken, 0), count.unsqueeze(1)


def _flat(index: torch.Tensor) -> torch.Tensor:
    """Number the elements of a constant index as those of the flattened tensor."""
    columns = index.shape[1]
    return (index * columns + torch.arange(columns)).reshape(-1)


_REDUCE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, dim: x.sum(dim, dtype=x.dtype),
    "mean": lambda x, dim: x.sum(dim, dtype=x.dtype),
    "prod": lambda x, dim: x.prod(dim, dtype=x.dtype),
    "amax": torch.amax,
    "amin": torch.amin,
}


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    return limits.min if reduce == "amax" else limits.max


def _taken(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return the rows of a tensor in an order, which may differ from column to column."""
    if static_size(order.shape[1]) == 1:
        return x.index_select(0, order.reshape(-1))
    return x.gather(0, order.expand(-1, x.shape[1]))


def _spread(rows: torch.Tensor, target: torch.Tensor, length: Any, neutral: Any) -> torch.Tensor:
    """Write rows to their targets; those with a target of ``length`` are dropped."""
    out = rows.new_full((length + 1, rows.shape[1]), neutral)
    if static_size(target.shape[1]) == 1:
        out = aten.index_put.default(out, [target.reshape(-1)], rows)
    else:
        out = out.scatter(0, target.expand(-1, rows.shape[1]), rows)
    return out[:-1]


def _in_runs(position: torch.Tensor, rows: torch.Tensor, combine: _Combine) -> torch.Tensor:
    """Combine every row with all before it that have the same index; indices are sorted."""
    longest = (
        None if isinstance(position, FakeTensor) else int(torch.bincount(_flat(position)).max())
    )

    def join(before: Sequence[torch.Tensor], behind: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        same = before[0] == behind[0]
        return [behind[0], torch.where(same, combine(before[1], behind[1]), behind[1])]

    return running(join, [position, rows], 0, longest)[1]


def _sorted(index: torch.Tensor, length: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort every column of an index; return it, and where its elements stood."""
    if largest(index.shape[0]) <= MAX_SORTED:
        position, order = index.sort(0)
        return position, order
    # By one binary digit after another, the least first: those with a 0, then those with a 1.
    order = torch.arange(index.shape[0]).unsqueeze(1).expand(index.shape)
    number, rest = order, index
    for _ in range(max(1, (largest(length) - 1).bit_length())):
        half = rest // 2
        one = rest - half * 2
        zeros = (1 - one).cumsum(0)
        target = torch.where(one == 0, zeros - 1, zeros[-1:] + number - zeros)
        order, rest = order.scatter(0, target, order), half.scatter(0, target, half)
    return index.gather(0, order), order
