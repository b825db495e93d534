"""Sizes as expressions of the inputs' dynamic dimensions, and proofs about them.

A dynamic dimension is a sympy symbol; every size of the trace is an expression of these symbols.
`evaluate` walks such an expression with any arithmetic: numpy's (to prove a guard over the whole
declared range) or the network's (to emit shape tensors, in `t2t.network.sizes`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy.interp import _run_sympy_handler, sympy_interp

from t2t.errors import GuardError

__all__ = [
    "Range",
    "apply",
    "counterexample",
    "describe",
    "evaluate",
    "expression",
    "has_symbol",
    "is_symbolic",
    "largest",
    "static_size",
]

Range = tuple[int, int]
"""Least and greatest value of a dynamic dimension, both included."""

MAX_POINTS = 1_000_000
"""Largest number of combinations of sizes that a proof enumerates."""


def is_symbolic(value: Any) -> bool:
    """Say whether a size or number depends on a dynamic dimension."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def has_symbol(value: Any) -> bool:
    """Say whether a (nested) argument holds a symbolic number."""
    if isinstance(value, list | tuple):
        return any(has_symbol(item) for item in value)
    return is_symbolic(value)


def expression(value: Any) -> sympy.Expr:
    """Give the sympy expression of a plain or symbolic number."""
    return value.node.expr if is_symbolic(value) else sympy.sympify(value)


def static_size(value: Any) -> int | None:
    """Give a size as an int, or None where it really depends on a dynamic dimension."""
    if not is_symbolic(value):
        return int(value)
    expr = expression(value)
    return int(expr) if expr.is_number else None


def largest(value: Any) -> int:
    """Return the largest number that a size may be, by the declared ranges."""
    if not is_symbolic(value):
        return int(value)
    bound = value.node.shape_env.bound_sympy(value.node.expr).upper
    return int(bound) if bound.is_finite else sys.maxsize


def evaluate(expr: sympy.Basic, symbols: Mapping[sympy.Symbol, Any], arithmetic: Any) -> Any:
    """Walk an expression with an arithmetic (an object with the methods of `NumpyArithmetic`)."""
    return sympy_interp(arithmetic, dict(symbols), expr)


def apply(expr: sympy.Basic, args: Sequence[Any], arithmetic: Any) -> Any:
    """Apply only the outermost function of an expression to values of its arguments."""
    return _run_sympy_handler(arithmetic, list(args), expr)


class NumpyArithmetic:
    """Arithmetic of size expressions over numpy arrays; integers are int64 and exact."""

    @staticmethod
    def constant(value: Any, dtype: torch.dtype) -> Any:
        """Give a number, with the type that the expression means."""
        if dtype == torch.bool:
            return np.bool_(value)
        return np.int64(value) if dtype == torch.int64 else np.float64(value)

    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)
    mul = staticmethod(np.multiply)
    floordiv = staticmethod(np.floor_divide)
    mod = python_mod = staticmethod(np.mod)
    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    abs = staticmethod(np.abs)
    sqrt = staticmethod(np.sqrt)
    log = staticmethod(np.log)
    log2 = staticmethod(np.log2)
    exp = staticmethod(np.exp)
    where = staticmethod(np.where)
    eq = staticmethod(np.equal)
    ne = staticmethod(np.not_equal)
    lt = staticmethod(np.less)
    le = staticmethod(np.less_equal)
    gt = staticmethod(np.greater)
    ge = staticmethod(np.greater_equal)
    and_ = staticmethod(np.logical_and)
    or_ = staticmethod(np.logical_or)
    not_ = staticmethod(np.logical_not)
    truediv = int_truediv = staticmethod(np.true_divide)
    trunc = staticmethod(np.trunc)

    @staticmethod
    def identity(value: Any) -> Any:
        """Give the value itself."""
        return value

    @staticmethod
    def modular_indexing(value: Any, divisor: Any, modulus: Any) -> Any:
        """Compute (value // divisor) % modulus."""
        return np.mod(np.floor_divide(value, divisor), modulus)

    @staticmethod
    def to_dtype(value: Any, dtype: torch.dtype) -> Any:
        """Convert to float64 or int64."""
        return np.asarray(value).astype(np.int64 if dtype == torch.int64 else np.float64)

    @staticmethod
    def pow_by_natural(base: Any, exponent: Any) -> Any:
        """Raise to a non-negative integer power."""
        return np.power(base, exponent)

    @staticmethod
    def pow(base: Any, exponent: Any) -> Any:
        """Raise to any power, as floats."""
        return np.power(np.asarray(base).astype(np.float64), exponent)

    @staticmethod
    def trunc_to_int(value: Any, dtype: torch.dtype) -> Any:  # noqa: ARG004  sympy_interp's call
        """Round toward zero."""
        return np.trunc(value).astype(np.int64)

    @staticmethod
    def floor_to_int(value: Any, dtype: torch.dtype) -> Any:  # noqa: ARG004  sympy_interp's call
        """Round down."""
        return np.floor(value).astype(np.int64)

    @staticmethod
    def ceil_to_int(value: Any, dtype: torch.dtype) -> Any:  # noqa: ARG004  sympy_interp's call
        """Round up."""
        return np.ceil(value).astype(np.int64)

    @staticmethod
    def round_to_int(value: Any, dtype: torch.dtype) -> Any:  # noqa: ARG004  sympy_interp's call
        """Round to nearest, halves to even, as Python."""
        return np.rint(value).astype(np.int64)


def counterexample(
    guard: sympy.Basic, ranges: Mapping[sympy.Symbol, Range]
) -> dict[sympy.Symbol, int] | None:
    """Find sizes inside the ranges for which a guard does not hold; None when it always holds.

    All combinations are tried, up to `MAX_POINTS`.

    Raises:
        GuardError: the combinations are too many to try, or the guard has an unknown function.
    """
    symbols: Sequence[sympy.Symbol] = sorted(guard.free_symbols, key=str)
    if not symbols:
        return None if bool(guard) else {}
    spans = [ranges[symbol] for symbol in symbols]
    points = math.prod(high - low + 1 for low, high in spans)
    if points > MAX_POINTS:
        raise GuardError(
            f"the condition {guard} cannot be proved: its {points} combinations of sizes are more "
            f"than the {MAX_POINTS} that are tried; declare narrower ranges"
        )
    axes = [np.arange(low, high + 1, dtype=np.int64) for low, high in spans]
    grid = np.meshgrid(*axes, indexing="ij")
    flat = dict(zip(symbols, (axis.ravel() for axis in grid), strict=True))
    try:
        with np.errstate(all="ignore"):
            holds = np.broadcast_to(evaluate(guard, flat, NumpyArithmetic), (points,))
    except (KeyError, AttributeError, TypeError) as error:
        raise GuardError(f"the condition {guard} cannot be evaluated: {error!r}") from error
    failing = np.flatnonzero(~holds.astype(bool))
    if not failing.size:
        return None
    return {symbol: int(values[failing[0]]) for symbol, values in flat.items()}


def describe(point: Mapping[sympy.Symbol, int]) -> str:
    """Write sizes as "s0=1, s1=3"."""
    return ", ".join(f"{symbol}={value}" for symbol, value in point.items())
