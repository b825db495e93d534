"""What size expressions are made of: symbols, operations and polynomials.

An integer is a polynomial over symbols and over operations that no polynomial can express, such as
`h // 2`. Equal expressions compare equal, and every one knows bounds of its value. A constant is a
plain Python number.
"""

from __future__ import annotations

from typing import Any

import torch

from t2t.sizes.arithmetic import INTERVALS, Interval


class Symbol:
    """An unknown integer: a dynamic dimension, or the root that dimensions are derived from.

    Args:
        name: a unique name, such as "batch".
        low: its least value.
        high: its greatest value.
        order: its place among the symbols of a trace.
    """

    __slots__ = ("high", "key", "low", "name", "order")

    def __init__(self, name: str, low: int, high: int, order: int = 0) -> None:
        self.name = self.key = name
        self.low, self.high, self.order = low, high, order

    def __repr__(self) -> str:
        return self.name


class Operation:
    """A function of expressions: a part of a polynomial, a real number or a condition.

    Args:
        name: the function, as the tables of `t2t.sizes.arithmetic` name it.
        args: what it is applied to.
        kind: int, float or bool.
    """

    __slots__ = ("_hash", "_key", "args", "high", "kind", "low", "name")
    # What PyTorch asks an expression of sympy.
    is_number = is_Boolean = False  # noqa: N815
    free_symbols: frozenset[Any] = frozenset()

    def __init__(self, name: str, args: tuple[Value, ...], kind: type) -> None:
        self.name, self.args, self.kind = name, args, kind
        self.low, self.high = INTERVALS[name](*map(bounds, args))
        self._hash = hash((name, args))
        self._key = ""

    @property
    def key(self) -> str:
        """Text that orders the factors of a monomial."""
        if not self._key:
            self._key = f"{self.name}{self.args}"
        return self._key

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Operation)
            and self._hash == other._hash
            and self.name == other.name
            and self.args == other.args
            # 1, 1.0 and True are equal in Python.
            and list(map(type, self.args)) == list(map(type, other.args))
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.key


Atom = Symbol | Operation

Monomial = tuple[Atom, ...]
"""Factors in the order of their keys; () is 1."""


class Polynomial:
    """An integer that is no constant: a sum of products of atoms with integer coefficients.

    Args:
        terms: the coefficient of each monomial; none is 0.
    """

    __slots__ = ("_hash", "_key", "high", "low", "terms")
    is_number = is_Boolean = False  # noqa: N815
    free_symbols: frozenset[Any] = frozenset()
    args: tuple[Any, ...] = ()

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))
        self._key = ""
        low: float = 0
        high: float = 0
        for monomial, coefficient in terms.items():
            least, most = _product_bounds(monomial)
            if coefficient > 0:
                low, high = low + coefficient * least, high + coefficient * most
            else:
                low, high = low + coefficient * most, high + coefficient * least
        self.low, self.high = low, high

    @property
    def constant(self) -> int:
        """The term without atoms."""
        return self.terms.get((), 0)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Polynomial)
            and self._hash == other._hash
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        if not self._key:
            parts = ["*".join([str(c), *(atom.key for atom in m)]) for m, c in self.terms.items()]
            self._key = "(" + "+".join(sorted(parts)) + ")"
        return self._key


Value = Polynomial | Operation | int | float | bool
"""A number, a condition or an expression of one."""


def _product_bounds(monomial: Monomial) -> Interval:
    low: float = 1
    high: float = 1
    for atom in monomial:
        if atom.low >= 0 and low >= 0 and high != 0:
            low, high = low * atom.low, high * atom.high
        else:
            low, high = INTERVALS["multiply"]((low, high), (atom.low, atom.high))
    return low, high


def bounds(x: Value) -> Interval:
    """Return bounds of a number or expression."""
    return (x.low, x.high) if isinstance(x, Polynomial | Operation) else (x, x)


def kind_of(x: Value) -> type:
    """Return int, float or bool."""
    if isinstance(x, Polynomial):
        return int
    return x.kind if isinstance(x, Operation) else type(x)


def value_of(x: Any) -> Value:
    """Return a plain or symbolic number of PyTorch as an expression."""
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        x = x.node.value  # type: ignore[attr-defined]
    value: Value = x
    return value
