"""Arithmetic and conditions of sizes: integers, real numbers and truth values.

Integers have a normal form (`t2t.sizes.polynomials`). So have most real numbers, as an integer
divided by one ("ratio", `x.shape[2] * 0.5`): what is rounded of these is an integer division again.
Conditions on integers are "zero" (x == 0) and "nonpositive" (x <= 0) of a polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from t2t.sizes import polynomials as integers
from t2t.sizes.arithmetic import NUMBERS, Arithmetic
from t2t.sizes.terms import Monomial, Operation, Polynomial, Symbol, Value, bounds, kind_of

EXACT = 1 << 53
"""Up to here float64 represents every integer."""


def _is_number(*values: Value) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_real(*values: Value) -> bool:
    return any(kind_of(value) is float for value in values)


# -- arithmetic ----------------------------------------------------------------------------------


def add(a: Value, b: Value) -> Value:
    """Return a + b."""
    if not _is_real(a, b):
        return integers.add(a, b)
    one, other = _as_ratio(a), _as_ratio(b)
    if _is_number(a, b) or one is None or other is None:
        return _real("add", a, b)
    numerator = integers.add(
        integers.multiply(one[0], other[1]), integers.multiply(other[0], one[1])
    )
    return _exactly(_ratio(numerator, one[1] * other[1]), "add", a, b)


def subtract(a: Value, b: Value) -> Value:
    """Return a - b."""
    return add(a, multiply(b, -1)) if _is_real(a, b) else integers.subtract(a, b)


def multiply(a: Value, b: Value) -> Value:
    """Return a * b."""
    if not _is_real(a, b):
        return integers.multiply(a, b)
    one, other = _as_ratio(a), _as_ratio(b)
    if _is_number(a, b) or one is None or other is None:
        return _real("multiply", a, b)
    product = _ratio(integers.multiply(one[0], other[0]), one[1] * other[1])
    return _exactly(product, "multiply", a, b)


def floor_divide(a: Value, b: Value) -> Value:
    """Return a // b, rounded down as in Python."""
    return _real("floor_divide", a, b) if _is_real(a, b) else integers.floor_divide(a, b)


def modulo(a: Value, b: Value) -> Value:
    """Return a % b, which has the sign of b as in Python."""
    return _real("modulo", a, b) if _is_real(a, b) else integers.modulo(a, b)


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller one."""
    return _real("minimum", a, b) if _is_real(a, b) else integers.minimum(a, b)


def maximum(a: Value, b: Value) -> Value:
    """Return the larger one."""
    return _real("maximum", a, b) if _is_real(a, b) else integers.maximum(a, b)


def absolute(a: Value) -> Value:
    """Return the value without its sign."""
    return _real("absolute", a) if _is_real(a) else integers.absolute(a)


def power(a: Value, b: Value) -> Value:
    """Return a ** b; an integer where both are integers and b is not negative."""
    if isinstance(b, int) and 0 <= b <= 64 and not _is_real(a):
        result: Value = 1
        for _ in range(b):
            result = integers.multiply(result, a)
        return result
    if not _is_real(a, b) and bounds(b)[0] >= 0:
        return integers.atom_of("power", a, b)
    return _real("power", a, b)


def bitwise(name: str, a: Value, b: Value) -> Value:
    """Return a & b, a | b or a ^ b, by the name of the arithmetics: "bitwise_and"."""
    if _is_number(a, b):
        return NUMBERS[name](a, b)  # type: ignore[no-any-return]
    return integers.atom_of(name, a, b)


def choose(condition: Value, a: Value, b: Value) -> Value:
    """Return a where the condition holds, else b."""
    if not isinstance(condition, Operation):
        return a if condition else b
    if a == b and type(a) is type(b):
        return a
    if _is_real(a, b):
        return Operation("choose", (condition, real(a), real(b)), float)
    return integers.atom_of("choose", condition, a, b)


def true_divide(a: Value, b: Value) -> Value:
    """Return a / b as a float."""
    one, other = _as_ratio(a), _as_ratio(b)
    if _is_number(a, b) or one is None or other is None:
        return _real("true_divide", a, b)
    numerator = integers.multiply(one[0], other[1])
    if not isinstance(other[0], int) or other[0] <= 0:
        return _real("true_divide", a, b)
    # The quotient of two integers that float64 represents is rounded once, as PyTorch's is.
    divisor = one[1] * other[0]
    fits = max(map(abs, bounds(numerator))) < EXACT and divisor < EXACT
    return _ratio(numerator, divisor) if fits else _real("true_divide", a, b)


# -- real numbers --------------------------------------------------------------------------------


def real(a: Value) -> Value:
    """Return a number as a float."""
    if isinstance(a, int | float):
        return float(a)
    return a if kind_of(a) is float else _ratio(a, 1)


def number(symbol: Symbol) -> Value:
    """Return a real number of which nothing is known, under the name of a symbol."""
    return Operation("number", (integers.symbol_value(symbol),), float)


def _real(name: str, *args: Value) -> Value:
    if _is_number(*args):
        return NUMBERS[name](*args)  # type: ignore[no-any-return]
    return Operation(name, tuple(map(real, args)), float)


def _ratio(a: Value, divisor: int) -> Value:
    if isinstance(a, int):
        return a / divisor
    assert isinstance(a, Polynomial)
    common = math.gcd(divisor, *a.terms.values())
    if common > 1:
        return _ratio(integers.floor_divide(a, common), divisor // common)
    return Operation("ratio", (a, divisor), float)


def _as_ratio(a: Value) -> tuple[Value, int] | None:
    """Return numerator and denominator of what float64 represents exactly, else None."""
    if isinstance(a, int | float):
        if not math.isfinite(a):
            return None
        numerator, divisor = float(a).as_integer_ratio()
        return (numerator, divisor) if abs(numerator) < EXACT and divisor <= EXACT else None
    if isinstance(a, Polynomial):
        return (a, 1) if max(map(abs, bounds(a))) < EXACT else None
    if a.name != "ratio":
        return None
    top, bottom = a.args
    assert isinstance(bottom, int)
    exact = bottom & (bottom - 1) == 0 and max(map(abs, bounds(top))) < EXACT
    return (top, bottom) if exact else None


def _exactly(result: Value, name: str, a: Value, b: Value) -> Value:
    """Return a ratio where float64 represents it exactly, else the operation as it is."""
    return _real(name, a, b) if _as_ratio(result) is None else result


def function(name: str, a: Value) -> Value:
    """Return sqrt, exp, log, sin or another function of a real number."""
    return _real(name, a)


def floor(a: Value) -> Value:
    """Return a real number rounded down, as an integer."""
    return _rounded("floor", a)


def ceiling(a: Value) -> Value:
    """Return a real number rounded up, as an integer."""
    return _rounded("ceiling", a)


def truncate(a: Value) -> Value:
    """Return a real number rounded toward zero, as an integer."""
    low, high = bounds(a)
    return _rounded("floor" if low >= 0 else "ceiling" if high <= 0 else "truncate", a)


def round_even(a: Value) -> Value:
    """Return a real number rounded to the nearest integer, halves to even."""
    return _rounded("round", a)


def _rounded(name: str, a: Value) -> Value:
    if isinstance(a, int | float):
        return NUMBERS[name](a)  # type: ignore[no-any-return]
    if not _is_real(a):
        return a
    assert isinstance(a, Operation)
    # The quotient of integers as small as these is never rounded across an integer.
    quotient = a.args if a.name == "ratio" else _integer_quotient(a)
    if quotient is not None:
        top, bottom = quotient
        if bottom == 1:
            return top
        if name == "floor":
            return integers.floor_divide(top, bottom)
        if name == "ceiling":
            down = integers.floor_divide(integers.multiply(top, -1), bottom)
            return integers.multiply(down, -1)
    return integers.atom_of(name, a)


def _integer_quotient(a: Operation) -> tuple[Value, ...] | None:
    """Return two integers whose quotient a real number is, else None."""
    if a.name != "true_divide":
        return None
    one, other = map(_as_ratio, a.args)
    if one is None or other is None or bounds(other[0])[0] <= 0:
        return None
    return integers.multiply(one[0], other[1]), integers.multiply(other[0], one[1])


# -- conditions ----------------------------------------------------------------------------------


def equal(a: Value, b: Value) -> Value:
    """Return the condition a == b."""
    if a is b and kind_of(a) is not float:  # NaN does not equal itself
        return True
    if _is_number(a, b):
        return bool(a == b)
    if kind_of(a) is bool or kind_of(b) is bool:
        return disjunction(conjunction(a, b), conjunction(negation(a), negation(b)))
    difference = _difference(a, b)
    if difference is None:
        return Operation("equal", (real(a), real(b)), bool)
    return _is_zero(difference)


def less_or_equal(a: Value, b: Value) -> Value:
    """Return the condition a <= b."""
    difference = _difference(a, b)
    return _ordered("less_or_equal", a, b) if difference is None else _is_nonpositive(difference)


def less(a: Value, b: Value) -> Value:
    """Return the condition a < b."""
    difference = _difference(a, b)
    if difference is None:
        return _ordered("less", a, b)
    return _is_nonpositive(integers.add(difference, 1))


def _difference(a: Value, b: Value) -> Value | None:
    """Return an integer of the sign of a - b, or None where there is no exact one."""
    if not _is_real(a, b):
        return integers.subtract(a, b)
    one, other = _as_ratio(a), _as_ratio(b)
    if one is None or other is None:
        return None
    return integers.subtract(
        integers.multiply(one[0], other[1]), integers.multiply(other[0], one[1])
    )


def _ordered(name: str, a: Value, b: Value) -> Value:
    if _is_number(a, b):
        return NUMBERS[name](a, b)  # type: ignore[no-any-return]
    return _condition(name, real(a), real(b))


def _condition(name: str, *args: Value) -> Value:
    condition = Operation(name, args, bool)
    return bool(condition.low) if condition.low == condition.high else condition


def _is_zero(x: Value) -> Value:
    if isinstance(x, int):
        return x == 0
    assert isinstance(x, Polynomial)
    common = math.gcd(*(c for monomial, c in x.terms.items() if monomial))
    if x.constant % common:
        return False
    shared = integers.never_zero_factors(x.terms)
    if x.terms[max(x.terms, key=integers.order_of)] < 0:
        common = -common
    terms = {integers.without(m, shared): c // common for m, c in x.terms.items()}
    return _condition("zero", integers.polynomial(terms))


def _is_nonpositive(x: Value) -> Value:
    if isinstance(x, int):
        return x <= 0
    assert isinstance(x, Polynomial)
    terms = {monomial: c for monomial, c in x.terms.items() if monomial}
    common = math.gcd(*terms.values())
    # common * p + constant <= 0 means p + ceil(constant / common) <= 0.
    rest = integers.polynomial({monomial: c // common for monomial, c in terms.items()})
    return _condition("nonpositive", integers.add(rest, -(-x.constant // common)))


def negation(a: Value) -> Value:
    """Return the condition that a does not hold."""
    if not isinstance(a, Operation):
        return not a
    if a.name == "not":
        return a.args[0]
    if a.name == "nonpositive":
        return _is_nonpositive(integers.subtract(1, a.args[0]))
    if a.name in ("all", "any"):
        combine = disjunction if a.name == "all" else conjunction
        return combine(*map(negation, a.args))
    return Operation("not", (a,), bool)


def conjunction(*conditions: Value) -> Value:
    """Return the condition that all hold."""
    return _combined("all", False, conditions)


def disjunction(*conditions: Value) -> Value:
    """Return the condition that one holds."""
    return _combined("any", True, conditions)


def _combined(name: str, decisive: bool, conditions: tuple[Value, ...]) -> Value:
    parts: dict[Value, None] = {}
    for condition in conditions:
        if not isinstance(condition, Operation):
            if bool(condition) == decisive:
                return decisive
        elif condition.name == name:
            parts.update(dict.fromkeys(condition.args))
        else:
            parts[condition] = None
    if len(parts) <= 1:
        return next(iter(parts), not decisive)
    return Operation(name, tuple(parts), bool)


# -- evaluation ----------------------------------------------------------------------------------


def evaluate(
    x: Value,
    values: Mapping[Symbol, Any],
    arithmetic: Arithmetic,
    known: dict[Value, Any] | None = None,
) -> Any:
    """Compute an expression with any arithmetic.

    Args:
        x: the expression.
        values: the value of each symbol.
        arithmetic: functions by the names of operations.
        known: results by expression; those of this one are added.
    """
    known = {} if known is None else known

    def visit(x: Any) -> Any:
        if isinstance(x, Symbol):
            return values[x]
        if not isinstance(x, Polynomial | Operation):
            return arithmetic["constant"](x)
        if x not in known:
            if isinstance(x, Polynomial):
                known[x] = total(x)
            else:
                known[x] = arithmetic[x.name](*map(visit, x.args))
        return known[x]

    def total(x: Polynomial) -> Any:
        result: Any = None
        for monomial, coefficient in sorted_terms(x):
            factors: list[Any] = [*monomial]
            size = coefficient if result is None else abs(coefficient)
            if size != 1 or not factors:
                factors.append(size)
            part = visit(factors[0])
            for factor in factors[1:]:
                part = arithmetic["multiply"](part, visit(factor))
            if result is None:
                result = part
            else:
                result = arithmetic["add" if coefficient > 0 else "subtract"](result, part)
        return result

    return visit(x)


def sorted_terms(x: Polynomial) -> list[tuple[Monomial, int]]:
    """Return the terms as they are written: positive before negative, products before numbers."""
    return sorted(
        x.terms.items(), key=lambda item: (item[1] < 0, -len(item[0]), [a.key for a in item[0]])
    )


def symbols_of(x: Value) -> set[Symbol]:
    """Return the symbols that an expression depends on."""
    found: set[Symbol] = set()
    pending: list[Any] = [x]
    while pending:
        item = pending.pop()
        if isinstance(item, Symbol):
            found.add(item)
        elif isinstance(item, Operation):
            pending += item.args
        elif isinstance(item, Polynomial):
            pending += [atom for monomial in item.terms for atom in monomial]
    return found


def substitute(x: Value, values: Mapping[Symbol, Value]) -> Value:
    """Return an expression with others in place of some symbols."""
    chosen = {symbol: values.get(symbol, integers.symbol_value(symbol)) for symbol in symbols_of(x)}
    result: Value = evaluate(x, chosen, _EXPRESSIONS)
    return result


_EXPRESSIONS: Arithmetic = {
    **{name: (lambda a, name=name: function(name, a)) for name in NUMBERS},
    "constant": lambda x: x,
    "number": lambda x: Operation("number", (x,), float),
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "floor_divide": floor_divide,
    "modulo": modulo,
    "minimum": minimum,
    "maximum": maximum,
    "absolute": absolute,
    "bitwise_and": lambda a, b: bitwise("bitwise_and", a, b),
    "bitwise_or": lambda a, b: bitwise("bitwise_or", a, b),
    "bitwise_xor": lambda a, b: bitwise("bitwise_xor", a, b),
    "power": power,
    "choose": choose,
    "ratio": true_divide,
    "true_divide": true_divide,
    "floor": floor,
    "ceiling": ceiling,
    "truncate": truncate,
    "round": round_even,
    "zero": lambda x: equal(x, 0),
    "nonpositive": lambda x: less_or_equal(x, 0),
    "equal": equal,
    "less": less,
    "less_or_equal": less_or_equal,
    "not": negation,
    "all": conjunction,
    "any": disjunction,
}
"""The functions of this module."""
