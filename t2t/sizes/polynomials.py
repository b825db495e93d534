"""Arithmetic of integer expressions, which keeps them in a normal form.

`32 * h // 2` becomes `16 * h`, and `(h + 1) // 2 // 2` becomes `(h + 1) // 4`, so that sizes which
are equal by arithmetic are equal objects.

Sympy would do, but takes about 40 microseconds for each of the thousands of strides and numbers of
elements that a trace computes; these polynomials take two.
"""

from __future__ import annotations

import math

from t2t.sizes.terms import Atom, Monomial, Operation, Polynomial, Symbol, Value, bounds


def symbol_value(symbol: Symbol) -> Value:
    """Return a symbol as an expression."""
    return symbol.low if symbol.low == symbol.high else Polynomial({(symbol,): 1})


def multiple_of(x: Value, symbol: Symbol) -> tuple[int, int] | None:
    """Return factor (at least 1) and offset where x is ``factor * symbol + offset``, else None."""
    factor = x.terms.get((symbol,), 0) if isinstance(x, Polynomial) else 0
    if factor < 1 or not isinstance(x, Polynomial):
        return None
    return (factor, x.constant) if len(x.terms) == 1 + (x.constant != 0) else None


def atom_of(name: str, *args: Value) -> Value:
    """Return an integer operation as an expression."""
    operation = Operation(name, args, int)
    if operation.low == operation.high:
        return int(operation.low)
    return Polynomial({(operation,): 1})


def polynomial(terms: dict[Monomial, int]) -> Value:
    """Return the sum of terms, none of which is 0; a number where it is one."""
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Polynomial(terms)


def _terms(x: Value) -> dict[Monomial, int]:
    if isinstance(x, Polynomial):
        return x.terms
    assert isinstance(x, int)
    return {(): int(x)} if x else {}


def _put(terms: dict[Monomial, int], monomial: Monomial, coefficient: int) -> None:
    total = terms.get(monomial, 0) + coefficient
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def add(a: Value, b: Value) -> Value:
    """Return a + b."""
    terms = dict(_terms(a))
    for monomial, coefficient in _terms(b).items():
        _put(terms, monomial, coefficient)
    return polynomial(terms)


def subtract(a: Value, b: Value) -> Value:
    """Return a - b."""
    terms = dict(_terms(a))
    for monomial, coefficient in _terms(b).items():
        _put(terms, monomial, -coefficient)
    return polynomial(terms)


def multiply(a: Value, b: Value) -> Value:
    """Return a * b."""
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        if isinstance(a, int):
            return a * b
        if b in (0, 1):
            return a if b else 0
        return Polynomial({monomial: c * b for monomial, c in _terms(a).items()})
    terms: dict[Monomial, int] = {}
    for first, one in _terms(a).items():
        for second, other in _terms(b).items():
            _put(terms, _joined(first, second), one * other)
    return polynomial(terms)


def _joined(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=lambda atom: atom.key))


def floor_divide(a: Value, b: Value) -> Value:
    """Return a // b, rounded down as in Python."""
    if isinstance(b, int):
        return a // b if isinstance(a, int) else _divide_by_number(a, b)
    assert isinstance(b, Polynomial)
    if isinstance(a, Polynomial) and not b.low <= 0 <= b.high:
        exact = exact_quotient(a, b)
        if exact is not None:
            return exact
    return atom_of("floor_divide", a, b)


def _divide_by_number(a: Value, divisor: int) -> Value:
    if divisor == 0:
        raise ZeroDivisionError("a size is divided by 0")
    if divisor < 0:
        a, divisor = multiply(a, -1), -divisor
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(a).items():
        quotient, remainder = divmod(coefficient, divisor)
        if quotient:
            whole[monomial] = quotient
        if remainder:
            rest[monomial] = remainder
    constant = rest.pop((), 0)
    if not rest:
        return polynomial(whole)
    common = math.gcd(divisor, *rest.values())
    divisor, constant = divisor // common, constant // common
    rest = {monomial: coefficient // common for monomial, coefficient in rest.items()}
    dividend = add(polynomial(rest), constant)
    if divisor == 1:
        return add(polynomial(whole), dividend)
    inner = _as_division(rest)
    if inner is None:
        part = atom_of("floor_divide", dividend, divisor)
    else:
        # To round down twice is to round down once.
        numerator, first = inner
        part = _divide_by_number(add(numerator, constant * first), first * divisor)
    return add(polynomial(whole), part)


def _as_division(terms: dict[Monomial, int]) -> tuple[Value, int] | None:
    """Return dividend and divisor where terms are one division by a number, else None."""
    if len(terms) != 1:
        return None
    [(monomial, coefficient)] = terms.items()
    if coefficient != 1 or len(monomial) != 1:
        return None
    atom = monomial[0]
    if isinstance(atom, Symbol) or atom.name != "floor_divide":
        return None
    dividend, divisor = atom.args
    return (dividend, divisor) if isinstance(divisor, int) else None


def order_of(monomial: Monomial) -> tuple[int, list[str]]:
    """Return what orders monomials: their products are ordered likewise."""
    return len(monomial), [atom.key for atom in monomial]


def exact_quotient(a: Polynomial, b: Polynomial) -> Value | None:
    """Divide polynomials as numbers are on paper; None where something is left over."""
    lead = max(b.terms, key=order_of)
    quotient: dict[Monomial, int] = {}
    rest = dict(a.terms)
    while rest:
        top = max(rest, key=order_of)
        missing = list(lead)
        factors = tuple(atom for atom in top if not _taken(atom, missing))
        coefficient, remainder = divmod(rest[top], b.terms[lead])
        if missing or remainder:
            return None
        quotient[factors] = coefficient
        for monomial, other in b.terms.items():
            _put(rest, _joined(factors, monomial), -coefficient * other)
    return polynomial(quotient)


def _taken(atom: Atom, atoms: list[Atom]) -> bool:
    if atom in atoms:
        atoms.remove(atom)
        return True
    return False


def without(monomial: Monomial, atoms: list[Atom]) -> Monomial:
    """Return a product without some of its factors."""
    missing = list(atoms)
    return tuple(atom for atom in monomial if not _taken(atom, missing))


def never_zero_factors(terms: dict[Monomial, int]) -> list[Atom]:
    """Return the factors that all terms share and that are never 0."""
    first, *others = [list(monomial) for monomial in terms]
    shared = []
    for atom in first:
        if not atom.low <= 0 <= atom.high and all(atom in monomial for monomial in others):
            shared.append(atom)
            for monomial in others:
                monomial.remove(atom)
    return shared


def modulo(a: Value, b: Value) -> Value:
    """Return a % b, which has the sign of b as in Python."""
    return subtract(a, multiply(b, floor_divide(a, b)))


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller one."""
    return _extremum("minimum", a, b)


def maximum(a: Value, b: Value) -> Value:
    """Return the larger one."""
    return _extremum("maximum", a, b)


def _extremum(name: str, a: Value, b: Value) -> Value:
    low, high = bounds(subtract(a, b))
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (name == "maximum") else b
    first, second = sorted((a, b), key=repr)
    return atom_of(name, first, second)


def absolute(a: Value) -> Value:
    """Return the value without its sign."""
    low, high = bounds(a)
    if low >= 0:
        return a
    return multiply(a, -1) if high <= 0 else atom_of("absolute", a)
