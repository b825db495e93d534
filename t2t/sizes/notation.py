"""Size expressions as text, in Python's notation and the user's names: "21*h*w", "h % 32 == 0"."""

from __future__ import annotations

import itertools
import math
from typing import Any

from t2t.sizes import polynomials as integers
from t2t.sizes.expressions import sorted_terms, symbols_of
from t2t.sizes.terms import Monomial, Operation, Polynomial, Symbol

_SUM, _PRODUCT, _ATOM = range(3)
_BETWEEN = {
    "floor_divide": "//", "true_divide": "/", "ratio": "/", "modulo": "%", "multiply": "*",
    "add": "+", "subtract": "-", "power": "**", "bitwise_and": " & ", "bitwise_or": " | ",
    "bitwise_xor": " ^ ", "equal": " == ", "less": " < ",
    "less_or_equal": " <= ",
}  # fmt: skip
_FUNCTIONS = {
    "minimum": "min", "maximum": "max", "absolute": "abs", "floor": "math.floor",
    "ceiling": "math.ceil", "truncate": "int", "round": "round",
}  # fmt: skip


def text(x: Any) -> str:
    """Write a number, symbol or expression."""
    if isinstance(x, Polynomial):
        return _sum(x)[0]
    if not isinstance(x, Operation):
        return str(x)
    if x.name == "zero":
        return _comparison(x.args[0], "==")
    if x.name == "nonpositive":
        return _comparison(x.args[0], "<=")
    if x.name == "not":
        inner = x.args[0]
        if isinstance(inner, Operation) and inner.name == "zero":
            return _comparison(inner.args[0], "!=")
        return f"not ({text(inner)})"
    if x.name in ("all", "any"):
        word = " and " if x.name == "all" else " or "
        return word.join(f"({text(arg)})" for arg in x.args)
    if x.name == "choose":
        condition, a, b = map(text, x.args)
        return f"({a} if {condition} else {b})"
    if (x.name == "ratio" and x.args[1] == 1) or x.name == "number":
        return text(x.args[0])
    if x.name in _BETWEEN:
        return _BETWEEN[x.name].join(map(_factor, x.args))
    name = _FUNCTIONS.get(x.name, f"math.{x.name}")
    if x.name == "floor" and x.low >= 0:
        name = "int"
    return f"{name}({', '.join(map(text, x.args))})"


def _factor(x: Any) -> str:
    """Write an expression so that it may stand beside an operator."""
    if isinstance(x, Polynomial):
        written, level = _sum(x)
        return written if level == _ATOM else f"({written})"
    if isinstance(x, Operation) and x.name in ("ratio", "number") and x.args[1:] in ((), (1,)):
        return _factor(x.args[0])
    return f"({text(x)})" if isinstance(x, Operation) and x.name not in _FUNCTIONS else text(x)


def _sum(x: Polynomial) -> tuple[str, int]:
    """Write a polynomial, and say what it is: a sum, a product or one atom."""
    remainder = _as_remainder(x)
    if remainder is not None:
        times, dividend, divisor, rest = remainder
        written = f"{_factor(dividend)} % {divisor}"
        written = written if times == 1 else f"{times}*({written})"
        return (written if rest == 0 else f"{text(rest)} + ({written})"), _SUM
    terms = sorted_terms(x)
    written = ""
    for monomial, coefficient in terms:
        sign = "-" if coefficient < 0 else "+" if written else ""
        written += sign + _term(monomial, abs(coefficient), sign == "-")
    if len(terms) > 1 or terms[0][1] < 0:
        return written, _SUM
    monomial, coefficient = terms[0]
    single = coefficient == 1 and len(monomial) == 1
    is_atom = single and (isinstance(monomial[0], Symbol) or monomial[0].name in _FUNCTIONS)
    return written, _ATOM if is_atom else _PRODUCT


def _term(monomial: Monomial, coefficient: int, negative: bool) -> str:
    factors = [str(coefficient)] if coefficient != 1 or not monomial else []
    alone = len(monomial) == 1 and not factors and not negative
    for atom, run in itertools.groupby(monomial):
        # a*(b//c) is not a*b//c, and -(b//c) is not -b//c.
        plain = alone or isinstance(atom, Symbol) or atom.name in _FUNCTIONS
        times = len(list(run))
        power = f"**{times}" if times > 1 else ""
        factors.append((text(atom) if plain else f"({text(atom)})") + power)
    return "*".join(factors)


def _first_symbol(terms: dict[Monomial, int]) -> float:
    """Return the order of the first symbol in terms."""
    symbols = symbols_of(integers.polynomial(terms))
    return min((symbol.order for symbol in symbols), default=math.inf)


def _remainder_comparison(times: int, dividend: Any, divisor: int, rest: Any, sign: str) -> str:
    """Write `times * (dividend % divisor) + rest` compared with 0."""
    if sign != "<=" and times == -1:
        times, rest = 1, integers.multiply(rest, -1)
    if sign == "<=" or times != 1 or not isinstance(rest, int):
        written = f"{_factor(dividend)} % {divisor}"
        written = written if times == 1 else f"{times}*({written})"
        return f"{written} {sign} {text(integers.multiply(rest, -1))}"
    # (h + 1) % 2 == 1 is h % 2 == 0.
    constant = getattr(dividend, "constant", 0)
    plain = integers.subtract(dividend, constant)
    return f"{_factor(plain)} % {divisor} {sign} {(-rest - constant) % divisor}"


def _as_remainder(x: Polynomial) -> tuple[int, Any, int, Any] | None:
    """Take a sum `times * (a - b*(a//b)) + rest` apart: times, a, b, rest; None for other sums."""
    for monomial, coefficient in x.terms.items():
        atom = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, Operation) or atom.name != "floor_divide":
            continue
        dividend, divisor = atom.args
        if not isinstance(divisor, int) or coefficient % divisor:
            continue
        times = -coefficient // divisor
        quotient = Polynomial({monomial: 1})
        part = integers.subtract(dividend, integers.multiply(quotient, divisor))
        rest = integers.subtract(x, integers.multiply(part, times))
        # Both the quotient and the dividend must be gone.
        if isinstance(rest, Polynomial) and len(rest.terms) >= len(x.terms) - 1:
            continue
        return times, dividend, divisor, rest
    return None


def _comparison(x: Any, sign: str) -> str:
    """Write a comparison of a sum with 0, with what is subtracted on the other side."""
    assert isinstance(x, Polynomial)
    remainder = _as_remainder(x)
    if remainder is not None:
        return _remainder_comparison(*remainder, sign)
    left = {monomial: c for monomial, c in x.terms.items() if c > 0}
    right = {monomial: -c for monomial, c in x.terms.items() if c < 0}
    swapped = sign != "<=" and _first_symbol(right) < _first_symbol(left)
    if not any(left) or (swapped and any(right)):
        # A number stands on the right: h >= 3, not 3 <= h.
        left, right, sign = right, left, {"<=": ">="}.get(sign, sign)
    return f"{text(integers.polynomial(left))} {sign} {text(integers.polynomial(right))}"
