"""Sizes of a plugin's outputs: expressions of its inputs' sizes, as data and for TensorRT.

As data a size is a number, a dimension of an input (``(size - offset) // factor``), or the name of
a function with its arguments, as `t2t.operator_data` has them for arguments that are sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.errors import UnsupportedArgumentError
from t2t.io import Place
from t2t.operator_data import Data
from t2t.sizes import expression, is_symbolic
from t2t.sizes.arithmetic import INTERVALS, NUMBERS, Arithmetic, Interval
from t2t.sizes.expressions import evaluate, symbols_of
from t2t.sizes.polynomials import multiple_of
from t2t.sizes.terms import Symbol, Value, bounds

# TensorRT's expressions are of these; other functions of integers are made of them.
_OPERATIONS = {
    "add": "SUM",
    "subtract": "SUB",
    "multiply": "PROD",
    "floor_divide": "FLOOR_DIV",
    "minimum": "MIN",
    "maximum": "MAX",
}

_Ranged = tuple[Data, Interval]


class InputSizes:
    """Writes sizes in terms of the dimensions of a plugin's inputs.

    Args:
        carrier: gives the number of a further input of the plugin in which a symbol stands, and
            where, for those that stand in none of the known ones.
    """

    def __init__(self, carrier: Callable[[Symbol], Place]) -> None:
        self._carrier = carrier
        self._places: dict[Symbol, Place] = {}
        self._equal: dict[Value, Place] = {}

    def note(self, number: int, x: torch.Tensor) -> None:
        """Let sizes be read from an input."""
        for dim, size in enumerate(x.shape):
            if not is_symbolic(size):
                continue
            value = expression(size)
            self._equal.setdefault(value, Place(number, dim))
            for symbol in symbols_of(value):
                found = multiple_of(value, symbol)
                if found is not None:
                    self._places.setdefault(symbol, Place(number, dim, *found))

    def dimension(self, size: Any) -> Data:
        """Return the size of an output as data that `to_dimension` takes.

        Raises:
            UnsupportedArgumentError: TensorRT's expressions cannot compute it.
        """
        value = expression(size)
        known = {equal: (_leaf(place), bounds(equal)) for equal, place in self._equal.items()}
        leaves = {
            symbol: (_leaf(self._place(symbol)), (symbol.low, symbol.high))
            for symbol in symbols_of(value)
            if value not in known
        }
        data: Data = evaluate(value, leaves, _DIMENSIONS, known)[0]
        return data

    def number(self, x: Any) -> Data:
        """Return a symbolic number as data from which Python computes it at run time."""
        value = expression(x)
        known = {equal: _leaf(place) for equal, place in self._equal.items()}
        leaves = {
            symbol: _leaf(self._place(symbol)) for symbol in symbols_of(value) if value not in known
        }
        functions = {name: _written(name) for name in NUMBERS}
        arithmetic = {**functions, "constant": lambda number: number}
        return evaluate(value, leaves, arithmetic, known)

    def _place(self, symbol: Symbol) -> Place:
        if symbol not in self._places:
            self._places[symbol] = self._carrier(symbol)
        return self._places[symbol]


def _leaf(place: Place) -> Data:
    return {
        "tensor": place.input,
        "dim": place.dim,
        "factor": place.factor,
        "offset": place.offset,
    }


def _written(name: str) -> Callable[..., Data]:
    return lambda *args: [name, *args]


def _ranged(name: str) -> Callable[..., _Ranged]:
    def apply(*args: _Ranged) -> _Ranged:
        return [name, *(data for data, _ in args)], INTERVALS[name](*(high for _, high in args))

    return apply


def _floor_divide(a: _Ranged, b: _Ranged) -> _Ranged:
    """Divide numbers of 0 and more: how TensorRT rounds others, its interface does not say."""
    divisor, (least, _) = b
    if a[1][0] >= 0 and least > 0:
        return _ranged("floor_divide")(a, b)
    if not isinstance(divisor, int) or divisor <= 0 or a[1][0] <= -NEGATIVE:
        return _refuse("a division of negative numbers")(a, b)
    # By a whole number larger, so that it is not negative.
    more = -(int(a[1][0]) // divisor)
    add, subtract = _ranged("add"), _ranged("subtract")
    moved = add(a, _number(more * divisor))
    return subtract(_ranged("floor_divide")(moved, b), _number(more))


NEGATIVE = 1 << 31
"""Below its negative, a size's bounds are those of something unknown."""


def _number(x: int) -> _Ranged:
    return x, (x, x)


def _refuse(what: str) -> Callable[..., _Ranged]:
    def apply(*_: _Ranged) -> _Ranged:
        raise UnsupportedArgumentError(
            f"the size of a plugin's output depends on {what}, which TensorRT's expressions of "
            f"sizes cannot compute; they know {', '.join(_OPERATIONS)}"
        )

    return apply


_DIMENSIONS: Arithmetic = {
    **{name: _refuse(f"the function {name!r}") for name in NUMBERS},
    **{name: _ranged(name) for name in _OPERATIONS},
    "floor_divide": _floor_divide,
    "constant": _number,
}


def to_dimension(data: Data, inputs: Sequence[Any], builder: Any) -> Any:
    """Return a size as TensorRT's expression.

    Args:
        data: the size.
        inputs: the sizes of the plugin's inputs, DimsExprs.
        builder: an IExprBuilder.
    """

    def apply(operation: str, a: Any, b: Any) -> Any:
        return builder.operation(getattr(trt.DimensionOperation, operation), a, b)

    if isinstance(data, Mapping):
        size = inputs[data["tensor"]][data["dim"]]
        if data["offset"]:
            size = apply("SUB", size, builder.constant(data["offset"]))
        if data["factor"] != 1:
            size = apply("FLOOR_DIV", size, builder.constant(data["factor"]))
        return size
    if isinstance(data, list):
        name, *args = data
        return apply(_OPERATIONS[name], *(to_dimension(x, inputs, builder) for x in args))
    return builder.constant(data)
