"""The dynamic sizes of one trace, from the declaration to the proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from t2t.errors import GuardError
from t2t.io import Dimension
from t2t.sizes import expressions as ex
from t2t.sizes.expressions import symbols_of
from t2t.sizes.fakes import SizedFakeMode
from t2t.sizes.guards import Guard, Guards, Names
from t2t.sizes.narrowing import Narrowed, advice, conjuncts, narrow
from t2t.sizes.nodes import Reason, SizeEnvironment
from t2t.sizes.notation import text
from t2t.sizes.polynomials import add, multiply, symbol_value
from t2t.sizes.proofs import Box, Range
from t2t.sizes.terms import Operation, Polynomial, Symbol, Value, bounds

_LARGE = 1 << 26
"""Of sizes up to here, the middle of the range is taken to be usual."""

_REQUIRED = "`{}` does not hold, which an operator requires"


@dataclass(frozen=True)
class Check:
    """What must hold of sizes that depend on the data when the model runs.

    Attributes:
        value: a size or a condition.
        low: its least value; of a condition, True.
        high: its greatest value.
        message: what is raised where it is another one.
    """

    value: Value
    low: int
    high: int
    message: str


@dataclass(frozen=True)
class Known:
    """What the model requires of a size that depends on the data (`torch._check`).

    Attributes:
        low: its least value.
        high: its greatest value.
        too_small: what is raised for smaller ones.
        too_large: what is raised for larger ones.
    """

    low: float = -math.inf
    high: float = math.inf
    too_small: str = ""
    too_large: str = ""


@dataclass(frozen=True)
class Proved:
    """The sizes for which a trace holds.

    Attributes:
        dimensions: the dynamic dimension that each symbol stands for.
        boxes: all sizes of each box.
        notes: what was changed of the declared ones, for the user to know.
    """

    dimensions: dict[Symbol, Dimension]
    boxes: list[Box]
    notes: list[str]


class DynamicSizes:
    """Makes the symbols of the dynamic dimensions, and proves what was decided on them.

    Args:
        dimensions: the dynamic dimensions.
        boxes: the declared sizes: for each profile a range of every dimension, by name.
        names: names of the inputs.
        locate: returns the user's line that runs now.
        known: lets results have sizes that depend on the data; what the model requires of each is
            added, by the order in which they are made. It holds from the next trace on.

    Attributes:
        mode: makes fake tensors of symbolic sizes.
        checks: what is required of sizes that depend on the data.
    """

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        boxes: Sequence[Mapping[str, Range]],
        names: Sequence[str],
        locate: Callable[[], Any],
        known: dict[int, Known] | None = None,
    ) -> None:
        self._guards = Guards(locate)
        self._locate, self._known = locate, known
        self.checks: list[Check] = []
        self._equal: dict[Symbol, Value] = {}
        self._refusal: GuardError | None = None
        self._env = SizeEnvironment(self._record)
        self.mode = SizedFakeMode(self._env)
        if known is not None:
            self.mode.new_size, self._env.leave = self._new_size, self._leave
        self._dimensions = {
            Symbol(d.name, d.low, d.high, order): d for order, d in enumerate(dimensions)
        }
        self._places = {
            (place.input, place.dim): (symbol, place)
            for symbol, dimension in self._dimensions.items()
            for place in dimension.places
        }
        self._boxes: list[dict[Symbol, Range]] = [
            {s: box[s.name] for s in self._dimensions} for box in boxes
        ]
        self._names = Names(names, self._dimensions)

    def shape(self, index: int, example: Sequence[int]) -> list[Any]:
        """Return the sizes of an input, symbolic where they are dynamic."""
        return [self._size(index, dim, size) for dim, size in enumerate(example)]

    def _record(self, condition: Value, reason: Reason) -> None:
        """Note a condition; raise at once where it can hold for no range of sizes."""
        if symbols_of(condition) & self._env.reals:
            self._refusal = GuardError(
                "the model decides on a number that it reads from a tensor, or needs a plain "
                f"one: `{text(condition)}` at {self._locate()}; use torch.where"
            )
            raise self._refusal
        if reason in ("number", "internal") and symbols_of(condition) & self.mode.made:
            # A loop over as many elements as the example's would take long for nothing; where the
            # model catches that, it is raised at the end.
            self._refusal = GuardError(
                "a size that depends on the data becomes a plain number (len(), range())"
            )
            raise self._refusal
        self._guards.record(condition, reason)

    def _new_size(self, operator: str, low: int, high: int) -> Any:
        """Return a size of which only the range is known: what is decided must hold for all.

        Numbers that are read from the data are none of sizes, and may be outside of the range.
        """
        order = len(self._dimensions)
        known = (self._known or {}).get(order, Known())
        least, most = (int(x) for x in (max(low, known.low), min(high, known.high)))
        name = f"{operator.rpartition('::')[2]}_{order}"
        if least > most:
            raise GuardError(f"the model requires more of {name} than any size fulfils")
        symbol = Symbol(name, least, most, order)
        size = symbol_value(symbol)
        self.mode.made.add(symbol)
        if least > low:
            self.checks.append(Check(size, least, high, known.too_small))
        if most < high:
            self.checks.append(Check(size, low, most, known.too_large))
        if low < 0 and (low, high) == (least, most):
            self.checks.append(Check(size, low, high, f"a number is not in {low}..{high}"))
        self._dimensions[symbol] = Dimension(symbol.name, least, most, named=False)
        for box in self._boxes:
            box[symbol] = Range(least, most)
        usual = most // 2 if most <= _LARGE else least + 8
        self._env.examples[symbol] = min(max(least, usual), most)
        return self._env.size(size)

    def _leave(self, condition: Value) -> bool:
        """Let what is required of a size that depends on the data be checked when it is known."""
        made = self.mode.made
        if not symbols_of(condition) & made:
            return False
        given = self._env.message
        where = self._locate() or "a line of PyTorch's own"
        own = f"{_REQUIRED.format(text(condition))} at {where}"
        message = str(given() if callable(given) else given or own)
        self.checks.append(Check(condition, True, True, message))
        for part in conjuncts(condition):
            for symbol in sorted(symbols_of(part) & made, key=lambda s: -s.order):
                self._learn(symbol, part, message)
        return True

    def _learn(self, symbol: Symbol, condition: Value, message: str) -> None:
        """Keep for the next trace what a condition says of the range of a size."""
        assert self._known is not None
        if not isinstance(condition, Operation) or condition.name not in ("zero", "nonpositive"):
            return
        [left] = condition.args
        slope = left.terms.get((symbol,), 0) if isinstance(left, Polynomial) else 0
        rest = ex.subtract(left, ex.multiply(symbol_value(symbol), slope))
        if not slope or symbol in symbols_of(rest):
            return
        if condition.name == "zero" and abs(slope) == 1 and symbol not in self._equal:
            self._equal[symbol] = ex.substitute(ex.multiply(rest, -slope), self._equal)
        # slope * size lies between these.
        least, most = -bounds(rest)[1], -bounds(rest)[0]
        if condition.name == "nonpositive":
            least = -math.inf
        low, high = (least, most) if slope > 0 else (-most, -least)
        known = self._known.get(symbol.order, Known())
        if low / abs(slope) > max(known.low, symbol.low):
            known = replace(known, low=-(-low // abs(slope)), too_small=message)
        if high / abs(slope) < min(known.high, symbol.high):
            known = replace(known, high=high // abs(slope), too_large=message)
        if known != Known():
            self._known[symbol.order] = known

    def _size(self, index: int, dim: int, example: int) -> Any:
        if (index, dim) not in self._places:
            return example
        symbol, place = self._places[index, dim]
        self._env.examples[symbol] = place.root(example)
        size = add(multiply(symbol_value(symbol), place.factor), place.offset)
        return self._env.size(size)

    @property
    def assumed(self) -> str:
        """Which sizes are 1 in the example, though PyTorch took them not to be."""
        return ", ".join(f"`{condition}`" for condition in self._env.assumed)

    def prove(self, narrow_shapes: bool, automatic: Collection[str]) -> Proved:
        """Prove all conditions of the trace; those that are added later are proved at once.

        Args:
            narrow_shapes: shrink all ranges to where conditions hold, instead of raising.
            automatic: names of dimensions whose range is shrunk in any case.

        Raises:
            GuardError: a condition does not hold for all sizes.
        """
        if self._refusal is not None:
            raise self._refusal
        # What converters require from here on is to hold for all sizes.
        self._env.leave = lambda condition: False  # noqa: ARG005
        hull = {s: Range(s.low, s.high, d.step) for s, d in self._dimensions.items()}
        declared = {s for s, d in self._dimensions.items() if d.places}
        allowed = {s for s in declared if narrow_shapes or s.name in automatic}
        boxes, narrowed = self._boxes, Narrowed(hull, {}, {})
        if allowed and len(boxes) == 1:
            narrowed = narrow(self._guards, boxes[0], self._env.examples, allowed)
            boxes = [narrowed.ranges]

        def advise(guard: Guard) -> str:
            if not symbols_of(guard.condition) <= declared:
                return "That size depends on the data, and may be any of them"
            possible = narrow(self._guards, hull, self._env.examples, declared)
            return advice(guard, hull, self._names, possible, not allowed)

        self._guards.prove(boxes, self._names, {**self._equal, **narrowed.ties}, advise)
        notes = [self._note(symbol, hull, narrowed) for symbol in narrowed.causes]
        return Proved(self._tied(narrowed), [dict(box) for box in boxes], notes)

    def _tied(self, narrowed: Narrowed) -> dict[Symbol, Dimension]:
        """Return the dimensions with their new ranges; those that are tied have one name."""
        found = {}
        for symbol, dimension in self._dimensions.items():
            r = narrowed.ranges[symbol]
            found[symbol] = replace(dimension, low=r.low, high=r.high, step=r.step)
        for tied, kept in narrowed.ties.items():
            [main] = [symbol for symbol in found if symbol_value(symbol) == kept]
            both = replace(found[main], places=found[main].places + found[tied].places)
            found[main] = found[tied] = both
        return found

    def _note(self, symbol: Symbol, before: Box, narrowed: Narrowed) -> str:
        guard = narrowed.causes[symbol]
        where = self._names.place(self._names.first(symbol))
        why = f"for {guard}"
        if symbol in narrowed.ties:
            [kept] = [s for s in before if symbol_value(s) == narrowed.ties[symbol]]
            return f"{where} must equal {self._names.place(self._names.first(kept))} {why}"
        old, new = (self._names.range(symbol, r[symbol]) for r in (before, narrowed.ranges))
        return f"{where} was declared as {old} and is {new} {why}"
