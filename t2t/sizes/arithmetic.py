"""Functions by the names that expressions call them by: of numbers, of arrays and of intervals."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arithmetic = Mapping[str, Callable[..., Any]]
"""What `t2t.sizes.expressions.evaluate` computes with; "constant" makes a value of a number."""

Interval = tuple[float, float]
"""Least and greatest value, both included; ints for integers, infinite where unknown."""

_FUNCTIONS = (
    "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh",
)  # fmt: skip

_OPERATORS: Arithmetic = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "modulo": operator.mod,
    "absolute": abs,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "ratio": operator.truediv,
    "true_divide": operator.truediv,
    "zero": lambda x: x == 0,
    "nonpositive": lambda x: x <= 0,
    "equal": operator.eq,
    "less": operator.lt,
    "less_or_equal": operator.le,
}
"""Python's operators, which arrays have, too."""

NUMBERS: Arithmetic = {
    **_OPERATORS,
    "constant": lambda x: x,
    "number": lambda x: x,
    "minimum": min,
    "maximum": max,
    "power": operator.pow,
    "choose": lambda condition, a, b: a if condition else b,
    "floor": math.floor,
    "ceiling": math.ceil,
    "truncate": math.trunc,
    "round": round,
    "not": operator.not_,
    "all": lambda *conditions: all(conditions),
    "any": lambda *conditions: any(conditions),
    **{name: getattr(math, name) for name in _FUNCTIONS},
}
"""Python's own arithmetic."""


# -- arrays --------------------------------------------------------------------------------------


def _integer(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x).astype(np.int64)


def _power(base: Any, exponent: Any) -> Any:
    if np.result_type(base, exponent).kind != "f":
        return np.power(base, exponent)
    return np.asarray(np.frompyfunc(operator.pow, 2, 1)(base, exponent), dtype=np.float64)


def _python(name: str) -> Callable[[Any], Any]:
    """Apply Python's function to each element: numpy's may differ from it in the last bit."""
    function = np.frompyfunc(getattr(math, name), 1, 1)
    return lambda x: np.asarray(function(x), dtype=np.float64)


ARRAYS: Arithmetic = {
    **_OPERATORS,
    "constant": lambda x: np.asarray(x)[()],
    "minimum": np.minimum,
    "maximum": np.maximum,
    "power": _power,
    "choose": np.where,
    "floor": _integer(np.floor),
    "ceiling": _integer(np.ceil),
    "truncate": _integer(np.trunc),
    "round": _integer(np.rint),
    "not": np.logical_not,
    "all": lambda *conditions: np.logical_and.reduce(np.broadcast_arrays(*conditions)),
    "any": lambda *conditions: np.logical_or.reduce(np.broadcast_arrays(*conditions)),
    **{name: _python(name) for name in _FUNCTIONS},
}
"""numpy's arithmetic, with the same results as Python's; integers are int64."""


# -- intervals -----------------------------------------------------------------------------------

_UNKNOWN: Interval = (-math.inf, math.inf)
_ANY: Interval = (0, 1)


def _corners(function: Callable[[Any, Any], Any]) -> Callable[[Interval, Interval], Interval]:
    """Bound a function that is monotonic in each argument. So is the rounding of its results."""

    def bound(a: Interval, b: Interval) -> Interval:
        found = [function(x, y) for x, y in itertools.product(a, b)]
        return min(found), max(found)

    return bound


def _product(a: float, b: float) -> float:
    # Nothing times an unknown is nothing.
    return 0 if a == 0 or b == 0 else a * b


def _quotient(operation: Callable[[Any, Any], Any]) -> Callable[[Interval, Interval], Interval]:
    def bound(a: Interval, b: Interval) -> Interval:
        if b[0] <= 0 <= b[1] or not all(map(math.isfinite, (*a, *b))):
            return _UNKNOWN
        return _corners(operation)(a, b)

    return bound


def _monotonic(function: Callable[[Any], Any]) -> Callable[[Interval], Interval]:
    def bound(a: Interval) -> Interval:
        low, high = (function(x) if math.isfinite(x) else x for x in a)
        return low, high

    return bound


def _absolute(a: Interval) -> Interval:
    low, high = a
    return (0, max(-low, high)) if low < 0 < high else (min(map(abs, a)), max(map(abs, a)))


def _modulo(a: Interval, b: Interval) -> Interval:
    del a
    return (min(b[0], 0), max(b[1], 0))


def _bitwise(a: Interval, b: Interval) -> Interval:
    largest = max(a[1], b[1])
    if min(a[0], b[0]) < 0 or largest == math.inf:
        return _UNKNOWN
    return 0, (1 << int(largest).bit_length()) - 1


def _truth(always: bool, never: bool) -> Interval:
    return (1, 1) if always else (0, 0) if never else _ANY


INTERVALS: Arithmetic = {
    "constant": lambda x: (x, x),
    "number": lambda a: _UNKNOWN,  # noqa: ARG005
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "subtract": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "multiply": _corners(_product),
    "floor_divide": _quotient(operator.floordiv),
    "modulo": _modulo,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "absolute": _absolute,
    "power": lambda a, b: _UNKNOWN,  # noqa: ARG005
    "bitwise_and": _bitwise,
    "bitwise_or": _bitwise,
    "bitwise_xor": _bitwise,
    "choose": lambda _, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "ratio": _quotient(operator.truediv),
    "true_divide": _quotient(operator.truediv),
    **{name: _monotonic(NUMBERS[name]) for name in ("floor", "ceiling", "truncate", "round")},
    "zero": lambda x: _truth(x == (0, 0), not x[0] <= 0 <= x[1]),
    "nonpositive": lambda x: _truth(x[1] <= 0, x[0] > 0),
    "equal": lambda a, b: _truth(a == b and a[0] == a[1], a[1] < b[0] or b[1] < a[0]),
    "less": lambda a, b: _truth(a[1] < b[0], a[0] >= b[1]),
    "less_or_equal": lambda a, b: _truth(a[1] <= b[0], a[0] > b[1]),
    "not": lambda a: (1 - a[1], 1 - a[0]),
    "all": lambda *conditions: (min(c[0] for c in conditions), min(c[1] for c in conditions)),
    "any": lambda *conditions: (max(c[0] for c in conditions), max(c[1] for c in conditions)),
    **{name: lambda a: _UNKNOWN for name in _FUNCTIONS},  # noqa: ARG005
    "sqrt": lambda a: (math.sqrt(max(a[0], 0)), math.sqrt(max(a[1], 0))),
}
"""Bounds of results by bounds of arguments; a condition is between 0 (never) and 1 (always)."""
