"""Whether a condition holds for all sizes: by bounds of whole boxes, and by trying every size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2t.errors import GuardError
from t2t.sizes import expressions as ex
from t2t.sizes.arithmetic import ARRAYS, INTERVALS
from t2t.sizes.notation import text
from t2t.sizes.terms import Operation, Polynomial, Symbol, Value, bounds

BLOCK = 250_000
"""Largest number of combinations of sizes that are tried at once."""

MAX_POINTS = 20_000_000
"""Largest number of combinations that are tried for one condition."""

MAX_BOXES = 4096
"""Largest number of boxes that the ranges are divided into."""

LARGEST = 1 << 62
"""Up to here products of sizes are computed as int64."""


@dataclass(frozen=True)
class Range:
    """The values of a symbol: from ``low`` to ``high``, both included, every ``step``-th."""

    low: int
    high: int
    step: int = 1

    def __len__(self) -> int:
        return (self.high - self.low) // self.step + 1

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and value in range(self.low, self.high + 1, self.step)

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}..{self.high}" + (f" step {self.step}" if self.step > 1 else "")

    def values(self) -> Any:
        """Return the values as an int64 array."""
        return np.arange(self.low, self.high + 1, self.step, dtype=np.int64)

    def halves(self) -> tuple[Range, Range]:
        """Return two ranges that have these values together."""
        middle = self.low + (len(self) // 2 - 1) * self.step
        return Range(self.low, middle, self.step), Range(middle + self.step, self.high, self.step)


Box = Mapping[Symbol, Range]
"""A range for each symbol: all combinations of their values."""


def counterexample(condition: Value, box: Box) -> dict[Symbol, int] | None:
    """Find sizes for which a condition does not hold; None where it always holds.

    Raises:
        GuardError: that cannot be found out.
    """
    if not isinstance(condition, Operation):
        return None if condition else {symbol: r.low for symbol, r in box.items()}
    if condition.name == "all":
        found = (counterexample(part, box) for part in condition.args)
        return next((point for point in found if point is not None), None)
    _check_size(condition)
    symbols = sorted(ex.symbols_of(condition), key=lambda symbol: symbol.name)
    for block in _blocks(condition, {symbol: box[symbol] for symbol in symbols}):
        points = np.meshgrid(*(block[symbol].values() for symbol in symbols), indexing="ij")
        values = {s: axis.ravel() for s, axis in zip(symbols, points, strict=True)}
        failing = np.flatnonzero(~holds(condition, values))
        if failing.size:
            return {symbol: int(axis[failing[0]]) for symbol, axis in values.items()}
    return None


def _blocks(condition: Operation, box: Box) -> Iterator[Box]:
    """Divide a box; give the parts in which bounds do not say that the condition holds."""
    pending = [box]
    points = boxes = 0
    while pending:
        part = pending.pop()
        boxes += 1
        intervals = {symbol: (r.low, r.high) for symbol, r in part.items()}
        if ex.evaluate(condition, intervals, INTERVALS)[0] == 1:
            continue
        size = math.prod(map(len, part.values()))
        if size <= BLOCK:
            points += size
            yield part
        else:
            longest = max(part, key=lambda symbol: len(part[symbol]))
            pending += [{**part, longest: half} for half in part[longest].halves()]
        if points > MAX_POINTS or boxes > MAX_BOXES:
            raise GuardError(
                f"`{text(condition)}` cannot be proved for all declared sizes: there are more than "
                f"{MAX_POINTS} combinations to try; declare narrower ranges, or multiples of a "
                "torch.export.Dim"
            )


def holds(condition: Value, values: Mapping[Symbol, Any]) -> Any:
    """Say for arrays of values of the symbols where a condition holds."""
    shape = np.broadcast_shapes(*(np.shape(value) for value in values.values()))
    with np.errstate(all="ignore"):
        try:
            result = ex.evaluate(condition, values, ARRAYS)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise GuardError(f"`{text(condition)}` cannot be evaluated: {error!r}") from error
    return np.broadcast_to(np.asarray(result).astype(bool), shape)


def span(x: Value, boxes: Sequence[Box]) -> tuple[int, int]:
    """Return the least and greatest value of an integer: exact unless there are too many sizes."""
    if not isinstance(x, Polynomial):
        return int(x), int(x)  # type: ignore[arg-type]
    symbols = sorted(ex.symbols_of(x), key=lambda symbol: symbol.name)
    found: list[int] = []
    for box in boxes:
        if math.prod(len(box[symbol]) for symbol in symbols) > BLOCK:
            intervals = {symbol: (box[symbol].low, box[symbol].high) for symbol in symbols}
            found += ex.evaluate(x, intervals, INTERVALS)
            continue
        points = np.meshgrid(*(box[symbol].values() for symbol in symbols), indexing="ij")
        result = ex.evaluate(x, dict(zip(symbols, points, strict=True)), ARRAYS)
        found += [int(result.min()), int(result.max())]
    return min(found), max(found)


def _check_size(x: Value) -> None:
    pending: list[Any] = [x]
    while pending:
        item = pending.pop()
        if isinstance(item, Polynomial):
            if any(LARGEST < abs(limit) < math.inf for limit in bounds(item)):
                raise GuardError(f"`{text(item)}` is too large to compute for all declared sizes")
            pending += [atom for monomial in item.terms for atom in monomial]
        elif isinstance(item, Operation):
            pending += item.args
