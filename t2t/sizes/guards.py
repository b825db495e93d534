"""Which sizes a trace is valid for: the conditions that it met on the way, proved or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2t.errors import GuardError
from t2t.io import Dimension, Place
from t2t.sizes import expressions as ex
from t2t.sizes.nodes import Reason
from t2t.sizes.notation import text
from t2t.sizes.proofs import Box, Range, counterexample
from t2t.sizes.terms import Symbol, Value


@dataclass(frozen=True)
class Guard:
    """A condition that holds for the example.

    Attributes:
        condition: what holds.
        reason: why it was asked.
        location: the user's line, or another place in the code.
    """

    condition: Value
    reason: Reason
    location: Any

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        return f"`{text(self.condition)}`{where}"


class Names:
    """What symbols are to the user.

    Args:
        inputs: names of the inputs.
        dimensions: the dynamic dimension behind each symbol.
    """

    def __init__(self, inputs: Sequence[str], dimensions: Mapping[Symbol, Dimension]) -> None:
        self._inputs = inputs
        self._dimensions = dimensions

    def place(self, place: Place) -> str:
        """Return "dimension 2 of input 'x'"."""
        name = self._inputs[place.input] if self._inputs else place.input
        return f"dimension {place.dim} of input {name!r}"

    def first(self, symbol: Symbol) -> Place:
        """Return the first dimension that a symbol stands in."""
        return self._dimensions[symbol].places[0]

    def sizes(self, point: Mapping[Symbol, int]) -> str:
        """Return "dimension 2 of input 'x' = 33", for values of symbols."""
        return ", ".join(
            f"{self.place(self.first(symbol))} = {self.first(symbol).size(value)}"
            if self._dimensions[symbol].places
            else f"{symbol} = {value}"
            for symbol, value in point.items()
        )

    def range(self, symbol: Symbol, values: Range) -> str:
        """Return the sizes that a dimension has: "160..640 step 32"."""
        place = self.first(symbol)
        low, high = place.size(values.low), place.size(values.high)
        return str(Range(low, high, place.factor * values.step))

    def declaration(self, symbol: Symbol, values: Range) -> str:
        """Return the Dim to declare for these values: "32*torch.export.Dim('h', min=5, max=20)"."""
        place = self.first(symbol)
        low, high = place.size(values.low), place.size(values.high)
        step = place.factor * values.step
        if low == high:
            return f"{low}, as a static size"
        dimension = self._dimensions[symbol]
        name = dimension.name if dimension.named else "n"
        if step == 1:
            return f"torch.export.Dim({name!r}, min={low}, max={high})"
        offset = f"+{low % step}" if low % step else ""
        return f"{step}*torch.export.Dim({name!r}, min={low // step}, max={high // step}){offset}"

    def derived(self, symbol: Symbol, other: Symbol, factor: int, offset: int) -> str:
        """Return how to declare a dimension by another one."""
        wanted = Place(0, 0, factor, offset).text("n")
        return (
            f"If this always holds, declare {self.place(self.first(symbol))} as {wanted}, where n "
            f"is the torch.export.Dim of {self.place(self.first(other))}"
        )

    def one_dim(self, symbols: Sequence[Symbol], values: Range) -> str:
        """Return the declaration that makes dimensions one size."""
        name = next((self._dimensions[s].name for s in symbols if self._dimensions[s].named), "n")
        name = "batch" if all(self.first(s).dim == 0 for s in symbols) and name == "n" else name
        places: dict[str, list[str]] = {}
        for symbol in symbols:
            for place in self._dimensions[symbol].places:
                key = repr(self._inputs[place.input] if self._inputs else place.input)
                places.setdefault(key, []).append(f"{place.dim}: {name}")
        shapes = ", ".join(f"{key}: {{{', '.join(dims)}}}" for key, dims in places.items())
        return (
            f"{name} = torch.export.Dim({name!r}, min={values.low}, max={values.high}); "
            f"dynamic_shapes={{{shapes}}}"
        )


class Guards:
    """The conditions of one trace.

    Args:
        locate: returns the user's line that runs now.
    """

    def __init__(self, locate: Callable[[], Any]) -> None:
        self._locate = locate
        self._guards: dict[Value, Guard] = {}
        self._proved: Callable[[Value], str] | None = None

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def record(self, condition: Value, reason: Reason) -> None:
        """Add a condition.

        Raises:
            GuardError: the trace is over, and the condition does not hold for all sizes.
        """
        if condition in self._guards:
            return
        problem = self._proved(condition) if self._proved is not None else ""
        if problem:
            raise GuardError(
                f"the converter decides on a size: `{text(condition)}` does not hold for "
                f"{problem}; declare a narrower range"
            )
        self._guards[condition] = Guard(condition, reason, self._locate())

    def prove(
        self,
        boxes: Sequence[Box],
        names: Names,
        ties: Mapping[Symbol, Value],
        advise: Callable[[Guard], str],
    ) -> None:
        """Raise GuardError unless every condition holds for all declared sizes.

        Conditions that are added later are proved at once.

        Args:
            boxes: the declared sizes: all those of each box.
            names: what the symbols are to the user.
            ties: symbols that are another one, or computed of others.
            advise: says what to do about a condition that does not hold.
        """

        def problem(condition: Value) -> str:
            tied = ex.substitute(condition, ties) if ties else condition
            points = (counterexample(tied, box) for box in boxes)
            return next((names.sizes(point) for point in points if point is not None), "")

        for guard in self:
            sizes = problem(guard.condition)
            if sizes:
                where = guard.location or "a line of PyTorch's own"
                what = _WHAT[guard.reason].format(where, text(guard.condition), sizes)
                raise GuardError(f"{what}. {advise(guard)}")
        self._proved = problem


_WHAT: dict[Reason, str] = {
    "decision": "the model decides on a size at {0}: `{1}` does not hold for {2}",
    "number": (
        "a size became a plain number (int(), range(), len() and the like do that) at {0}: `{1}` "
        "does not hold for {2}"
    ),
    "internal": (
        "PyTorch's own code takes a size as a plain number at {0}: `{1}` does not hold for {2}"
    ),
    "requirement": "an operator at {0} needs `{1}`, which does not hold for {2}",
}
