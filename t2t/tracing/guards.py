"""Which sizes a trace is valid for: the conditions that it met on the way, proved or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy

from t2t.errors import GuardError
from t2t.shapes import NumpyArithmetic, Range, counterexample, describe, evaluate
from t2t.tracing.graph import Location

__all__ = ["GuardLog", "narrow", "prove"]


class GuardLog(list[Any]):
    """A list of torch's guards that notes the user's line as each one is added.

    Attributes:
        locations: for each guard the user's line.
        proved: the ranges for which the guards were proved; those that converters add later, as
            they look at a size, are proved at once.
    """

    def __init__(self, locate: Any) -> None:
        super().__init__()
        self.locations: list[Location | None] = []
        self.proved: Mapping[sympy.Symbol, Range] | None = None
        self._locate = locate

    def append(self, guard: Any) -> None:
        """Add a guard.

        Raises:
            GuardError: the trace is over, and the guard does not hold for all sizes.
        """
        super().append(guard)
        self.locations.append(self._locate())
        if self.proved is not None:
            point = counterexample(guard.expr, self.proved)
            if point is not None:
                raise GuardError(
                    f"the converter decides on a size: {guard.expr} does not hold for "
                    f"{describe(point)}; declare a narrower range"
                )


def prove(guards: GuardLog, ranges: Mapping[sympy.Symbol, Range], names: Mapping[Any, str]) -> None:
    """Raise GuardError unless every condition holds for all declared sizes.

    Args:
        guards: the conditions.
        ranges: least and greatest value of each symbol.
        names: what the symbols are to the user, as "dimension 2 of input 'x'".
    """
    for guard, location in zip(guards, guards.locations, strict=True):
        point = counterexample(guard.expr, ranges)
        if point is None:
            continue
        sizes = ", ".join(f"{names[symbol]} = {value}" for symbol, value in point.items())
        text = guard.expr
        for symbol in guard.expr.free_symbols:
            text = text.subs(symbol, sympy.Symbol(f"[{names[symbol]}]"))
        # torch's own line where no line of the user's runs, as in nn.TransformerEncoder.
        where = f" at {location or guard.sloc}"
        specialised = (
            "; a size became a plain number there (int(), range(), len() and the like do that)"
            if isinstance(guard.expr, sympy.Eq)
            else ""
        )
        raise GuardError(
            f"the model decides on a size{where}: {text} does not hold for {sizes}{specialised}. "
            "Declare a narrower range, pass narrow_shapes=True, or compute the size with "
            "operations that keep it symbolic (//, *, torch.sym_max, torch.sym_int)"
        )
    guards.proved = ranges


def narrow(
    guards: GuardLog, ranges: Mapping[sympy.Symbol, Range], examples: Mapping[sympy.Symbol, int]
) -> dict[sympy.Symbol, Range]:
    """Give the largest ranges around the example sizes in which all one-size conditions hold."""
    result = dict(ranges)
    for guard in guards:
        symbols = list(guard.expr.free_symbols)
        if len(symbols) != 1:
            continue
        symbol = symbols[0]
        low, high = result[symbol]
        values = np.arange(low, high + 1, dtype=np.int64)
        holds = np.broadcast_to(
            evaluate(guard.expr, {symbol: values}, NumpyArithmetic), values.shape
        )
        failing = values[~holds.astype(bool)]
        below = failing[failing < examples[symbol]]
        above = failing[failing > examples[symbol]]
        result[symbol] = (
            int(below.max()) + 1 if below.size else low,
            int(above.min()) - 1 if above.size else high,
        )
    return result
