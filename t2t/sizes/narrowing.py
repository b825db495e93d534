"""The ranges in which conditions on sizes hold, and what to tell the user about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2t.errors import GuardError
from t2t.sizes import expressions as ex
from t2t.sizes.guards import Guard, Guards, Names
from t2t.sizes.polynomials import symbol_value
from t2t.sizes.proofs import Box, Range, counterexample, holds
from t2t.sizes.terms import Operation, Symbol, Value

LARGEST_STEP = 1024
"""Larger multiples are not looked for."""


@dataclass(frozen=True)
class Narrowed:
    """Smaller ranges in which more conditions hold.

    Attributes:
        ranges: the range of each symbol.
        ties: symbols that are another one.
        causes: for each symbol that became narrower or tied, the condition that asked for it.
    """

    ranges: dict[Symbol, Range]
    ties: dict[Symbol, Value]
    causes: dict[Symbol, Guard]


def narrow(
    guards: Guards, box: Box, examples: Mapping[Symbol, int], allowed: set[Symbol]
) -> Narrowed:
    """Find large ranges around the example in which all conditions hold, where there are any.

    Two dimensions that must be equal are tied. A condition on one dimension leaves the longest run
    of values, or of multiples; one on several leaves a box that cannot grow.

    Args:
        guards: the conditions.
        box: the declared ranges.
        examples: the example's value of each symbol.
        allowed: the symbols whose ranges may change.
    """
    result = Narrowed(dict(box), {}, {})
    parts = [(part, guard) for guard in guards for part in conjuncts(guard.condition)]
    for condition, guard in parts:
        _tie(result, condition, guard, allowed)
    tied = [(ex.substitute(condition, result.ties), guard) for condition, guard in parts]
    _fit(result, tied, examples, allowed)
    failing = [
        (condition, guard)
        for condition, guard in tied
        if len(ex.symbols_of(condition)) > 1 and _fails(condition, result.ranges)
    ]
    for condition, guard in failing:
        for symbol in ex.symbols_of(condition) & allowed:
            result.causes.setdefault(symbol, guard)
    _grow(result.ranges, [condition for condition, _ in failing], examples, allowed)
    for symbol, value in result.ties.items():
        [kept] = ex.symbols_of(value)
        result.ranges[symbol] = result.ranges[kept]
    return result


def _tie(result: Narrowed, condition: Value, guard: Guard, allowed: set[Symbol]) -> None:
    """Let two symbols be one where a condition says that they are equal."""
    pair = _equal_symbols(ex.substitute(condition, result.ties))
    if pair is None or not set(pair) <= allowed:
        return
    kept, other = pair
    common = _common(result.ranges[kept], result.ranges[other])
    if common is None:
        return
    for symbol, value in result.ties.items():
        result.ties[symbol] = ex.substitute(value, {other: symbol_value(kept)})
    result.ties[other] = symbol_value(kept)
    result.ranges[kept] = common
    result.causes[other] = guard


def _fit(
    result: Narrowed,
    conditions: Sequence[tuple[Value, Guard]],
    examples: Mapping[Symbol, int],
    allowed: set[Symbol],
) -> None:
    """Leave of each range what conditions on this symbol alone allow."""
    # Not of others: numbers that depend on the data have ranges that no memory holds.
    holding = {symbol: np.ones(len(result.ranges[symbol]), dtype=bool) for symbol in allowed}
    for condition, guard in conditions:
        symbols = ex.symbols_of(condition)
        if len(symbols) == 1 and symbols <= allowed:
            [symbol] = symbols
            good = holds(condition, {symbol: result.ranges[symbol].values()})
            if not good.all():
                result.causes.setdefault(symbol, guard)
                holding[symbol] &= good
    for symbol, good in holding.items():
        result.ranges[symbol] = _largest(result.ranges[symbol], good, examples[symbol])


def _grow(
    ranges: dict[Symbol, Range],
    conditions: Sequence[Value],
    examples: Mapping[Symbol, int],
    allowed: set[Symbol],
) -> None:
    """Shrink ranges to the example, and let them grow as far as conditions on several allow."""
    symbols = {symbol for condition in conditions for symbol in ex.symbols_of(condition)} & allowed
    whole = {symbol: ranges[symbol] for symbol in symbols}
    ranges.update({symbol: Range(examples[symbol], examples[symbol]) for symbol in symbols})
    for symbol in sorted(symbols, key=lambda symbol: symbol.order):
        ranges[symbol] = _grown(symbol, whole[symbol], ranges, conditions, examples[symbol])


def _grown(
    symbol: Symbol, whole: Range, box: Box, conditions: Sequence[Value], example: int
) -> Range:
    """Return a range of one symbol around the example in which conditions hold."""
    values = [int(value) for value in whole.values()]
    here = values.index(example)

    def between(first: int, last: int) -> Range:
        return Range(values[first], values[last], whole.step)

    def fits(values: Range) -> bool:
        return not any(_fails(condition, {**box, symbol: values}) for condition in conditions)

    last = _farthest(lambda place: fits(between(here, place)), here, len(values) - 1)
    first = _farthest(lambda place: fits(between(place, last)), here, 0)
    return between(first, last)


def _farthest(fits: Callable[[int], bool], near: int, far: int) -> int:
    """Return a place toward ``far`` that fits, though the next one does not."""
    if fits(far):
        return far
    while abs(far - near) > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if fits(middle) else (near, middle)
    return near


def _fails(condition: Value, box: Box) -> bool:
    try:
        return counterexample(condition, box) is not None
    except GuardError:
        return True


def conjuncts(condition: Value) -> Sequence[Value]:
    """Return the conditions that hold together where this one does."""
    if isinstance(condition, Operation) and condition.name == "all":
        return condition.args
    return [condition]


def _equal_symbols(condition: Value) -> tuple[Symbol, Symbol] | None:
    """Return the two symbols that a condition says are equal, the first in order first."""
    relation = _relation(condition)
    if relation is None or relation[2:] != (1, 0):
        return None
    first, second = sorted(relation[:2], key=lambda symbol: symbol.order)
    return first, second


def _common(a: Range, b: Range) -> Range | None:
    shared = np.intersect1d(a.values(), b.values())
    if not shared.size:
        return None
    step = int(shared[1] - shared[0]) if shared.size > 1 else 1
    return Range(int(shared[0]), int(shared[-1]), step)


def _largest(values: Range, good: Any, example: int) -> Range:
    """Return the longest run of good values, or of every n-th value, that holds the example."""
    if good.all():
        return values
    here = (example - values.low) // values.step
    best = Range(example, example)
    for step in range(1, min(LARGEST_STEP, len(good)) + 1):
        first, last = _run(good[here % step :: step], here // step)
        if last - first + 1 > len(best):
            start = values.low + (here % step + first * step) * values.step
            stop = values.low + (here % step + last * step) * values.step
            best = Range(start, stop, step * values.step)
    return best


def _run(good: Any, here: int) -> tuple[int, int]:
    """Return the ends of the run of True around a place."""
    bad = np.flatnonzero(~good)
    below, above = bad[bad < here], bad[bad > here]
    first = int(below.max()) + 1 if below.size else 0
    return first, int(above.min()) - 1 if above.size else len(good) - 1


def advice(guard: Guard, box: Box, names: Names, narrowed: Narrowed, can_narrow: bool) -> str:
    """Return what to do about a condition that does not hold for all sizes of a box.

    Args:
        guard: the condition.
        box: the declared ranges.
        names: what the symbols are to the user.
        narrowed: ranges in which more conditions hold.
        can_narrow: whether narrow_shapes=True would be new to the user.
    """
    fixes = []
    relation = _relation(guard.condition)
    if relation is not None and _equal_symbols(guard.condition) is None:
        fixes.append(names.derived(*relation))
    elif fix := _one_size(guard, box, names) or _smaller_ranges(guard, box, names, narrowed):
        fixes.append(fix + (", or pass narrow_shapes=True" if can_narrow else ""))
    else:
        fixes.append("Declare one of these dimensions static")
    # Nobody can change what PyTorch's own modules do.
    if guard.reason in ("decision", "number") and "/torch/nn/" not in str(guard.location):
        fixes.append(
            "Or compute the size with operations that keep it symbolic: //, *, torch.sym_max, "
            "torch.sym_min, torch.sym_int"
        )
        if _compares_with_number(guard.condition):
            fixes.append(
                "If the module compares sizes with those that it keeps from an earlier call, "
                "convert it before it is called"
            )
    return ". ".join(fixes)


def _compares_with_number(condition: Value) -> bool:
    """Return whether a condition asks if a dimension is a number."""
    if not isinstance(condition, Operation):
        return False
    if condition.name != "zero":
        return any(map(_compares_with_number, condition.args))
    terms = getattr(condition.args[0], "terms", {})
    return () in terms and len(terms) == 2 and sum(map(len, terms)) == 1


def _one_size(guard: Guard, box: Box, names: Names) -> str:
    """Return how to declare two dimensions that must be equal; "" for others."""
    pair = _equal_symbols(guard.condition)
    common = None if pair is None else _common(box[pair[0]], box[pair[1]])
    if pair is None or common is None:
        return ""
    return f"If both are always the same size, declare them as one: {names.one_dim(pair, common)}"


def _relation(condition: Value) -> tuple[Symbol, Symbol, int, int] | None:
    """Return a, b, factor and offset where a condition is a == factor*b + offset, else None."""
    terms = condition.args[0].terms if _is_zero(condition) else {}  # type: ignore[union-attr]
    linear = {m[0]: c for m, c in terms.items() if len(m) == 1 and isinstance(m[0], Symbol)}
    if len(linear) != 2 or len(linear) + (() in terms) != len(terms):
        return None
    for symbol, other in (list(linear), list(linear)[::-1]):
        sign, factor = linear[symbol], linear[other]
        if sign in (1, -1) and -sign * factor > 0:
            return symbol, other, -sign * factor, -sign * terms.get((), 0)
    return None


def _is_zero(condition: Value) -> bool:
    return isinstance(condition, Operation) and condition.name == "zero"


def _smaller_ranges(guard: Guard, box: Box, names: Names, narrowed: Narrowed) -> str:
    """Return which smaller ranges make a condition hold; "" where none are known."""
    symbols = sorted(ex.symbols_of(guard.condition), key=lambda symbol: symbol.order)
    changed = [symbol for symbol in symbols if narrowed.ranges[symbol] != box[symbol]]
    if not changed or _fails(ex.substitute(guard.condition, narrowed.ties), narrowed.ranges):
        return ""
    found = [
        f"{names.place(names.first(s))} = {names.range(s, narrowed.ranges[s])}" for s in changed
    ]
    declared = " and ".join(names.declaration(s, narrowed.ranges[s]) for s in changed)
    return f"It holds for {', '.join(found)}: declare {declared}"
