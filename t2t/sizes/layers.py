"""Sizes as shape tensors: expressions become int64 arithmetic of layers, each of them once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from t2t.backend import trt
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.io import Dimension, Place
from t2t.sizes import expressions as ex
from t2t.sizes.arithmetic import ARRAYS, Arithmetic
from t2t.sizes.notation import text
from t2t.sizes.polynomials import add, multiply, symbol_value
from t2t.sizes.proofs import Range
from t2t.sizes.terms import Operation, Polynomial, Symbol, Value, kind_of

LARGEST_TABLE = 1 << 16
"""Most combinations of sizes whose results are kept in a constant."""


class LayerMaker(Protocol):
    """What is needed of the network; `t2t.network` has it."""

    def add(self, method: str, *args: Any, **attributes: Any) -> Any:
        """Add a layer."""

    def result(self, layer: Any, index: int = 0) -> Any:
        """Return an output of a layer."""

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        """Return a network tensor in another dtype."""

    def vector(self, numbers: Sequence[int]) -> Any:
        """Return integers as an int64 constant of one dimension."""

    def number(self, x: float, dtype: torch.dtype, rank: int) -> Any:
        """Return a number as a constant."""


class SizeLayers:
    """Makes size expressions network tensors of shape (1,): int64, or float32 for real numbers.

    Args:
        net: makes the layers.
    """

    def __init__(self, net: LayerMaker) -> None:
        self._net = net
        self._ranges: dict[Symbol, Range] = {}
        self._tensors: dict[Symbol, list[tuple[Any, Place]]] = {}
        self._numbers: dict[Symbol, Any] = {}
        self._shapes: dict[str, Any] = {}
        self._sizes: dict[tuple[str, int], Any] = {}
        self._symbols = _Lazy(self._symbol)
        self._direct: dict[Value, tuple[Any, int]] = {}
        self._known: dict[Value, Any] = {}
        self._arithmetic = _layers(net)

    def bind(self, symbol: Symbol, dimension: Dimension, inputs: Sequence[Any]) -> None:
        """Return which dimensions of the network inputs a symbol stands in."""
        self._ranges[symbol] = Range(dimension.low, dimension.high, dimension.step)
        # The symbol itself before its multiples, from which it must be computed.
        places = sorted(dimension.places, key=lambda place: (place.factor, abs(place.offset)))
        self._tensors[symbol] = [(inputs[place.input], place) for place in places]
        for tensor, place in self._tensors[symbol]:
            size = add(multiply(symbol_value(symbol), place.factor), place.offset)
            self._direct.setdefault(size, (tensor, place.dim))

    def bind_number(self, symbol: Symbol, tensor: Any) -> None:
        """Return the tensor of shape (1,) that holds the real number of a symbol."""
        self._numbers[symbol] = tensor

    def emit(self, x: Value) -> Any:
        """Return the network tensor of an expression.

        Raises:
            UnsupportedArgumentError: real numbers are rounded, for more sizes than a table holds;
                or there is no layer for a function of them.
        """
        if x in self._direct and x not in self._known:
            self._known[x] = self._size_of(*self._direct[x])
        for part in _operations(x):
            if part.kind is float and part.name not in self._arithmetic:
                raise UnsupportedArgumentError(f"no layers compute `{text(part)}` of real numbers")
            if part not in self._known and part.kind is not float and not _has_layer(part):
                self._known[part] = self._table(part)
        return ex.evaluate(x, self._symbols, self._arithmetic, self._known)

    def place_of(self, symbol: Symbol) -> tuple[Any, Place]:
        """Return an input in which a symbol stands, and where.

        Raises:
            ConversionError: there is none.
        """
        if symbol not in self._tensors:
            raise ConversionError(f"the size {symbol} is not a dimension of an input")
        return self._tensors[symbol][0]

    def _symbol(self, symbol: Symbol) -> Any:
        if symbol in self._numbers:
            return self._net.cast(self._numbers[symbol], torch.float32)
        tensor, place = self.place_of(symbol)
        size = self._size_of(tensor, place.dim)
        if place.offset:
            size = self._arithmetic["subtract"](size, self._net.vector([place.offset]))
        if place.factor != 1:
            size = self._arithmetic["floor_divide"](size, self._net.vector([place.factor]))
        return size

    def _size_of(self, tensor: Any, dim: int) -> Any:
        if tensor.name not in self._shapes:
            self._shapes[tensor.name] = self._net.result(self._net.add("add_shape", tensor))
        if (tensor.name, dim) not in self._sizes:
            layer = self._net.add("add_slice", self._shapes[tensor.name], (dim,), (1,), (1,))
            self._sizes[tensor.name, dim] = self._net.result(layer)
        return self._sizes[tensor.name, dim]

    def cases(self, sizes: Sequence[Value]) -> tuple[list[tuple[int, ...]], Any]:
        """Distinguish all values that sizes have together, for what differs with each of them.

        Returns:
            The values, and which of these the sizes have at run time: an index of shape (1,).

        Raises:
            UnsupportedArgumentError: there are more than a table holds.
        """
        symbols = sorted(set().union(*map(ex.symbols_of, sizes)), key=lambda s: s.order)
        points = self._points(symbols, ", ".join(map(text, sizes)))
        columns = [np.broadcast_to(ex.evaluate(x, points, ARRAYS), _shape(points)) for x in sizes]
        rows = np.stack([column.ravel() for column in columns], 1)
        values, places = np.unique(rows, axis=0, return_inverse=True)
        index = self._looked_up(np.ravel(places), symbols)
        return [tuple(int(n) for n in row) for row in values], index

    def _table(self, x: Operation) -> Any:
        """Look up what TensorRT has no exact layers for, as a product with 1.7 rounded down."""
        symbols = sorted(ex.symbols_of(x), key=lambda symbol: symbol.order)
        values = ex.evaluate(x, self._points(symbols, text(x)), ARRAYS)
        return self._looked_up(np.ravel(values), symbols)

    def _points(self, symbols: Sequence[Symbol], what: str) -> dict[Symbol, Any]:
        """Return all combinations of values of symbols."""
        unknown = [symbol for symbol in symbols if symbol not in self._ranges]
        if unknown:
            raise UnsupportedArgumentError(
                f"{what} depends on a real number that is read from a tensor, which no table holds"
            )
        axes = [self._ranges[symbol] for symbol in symbols]
        if math.prod(map(len, axes)) > LARGEST_TABLE:
            raise UnsupportedArgumentError(
                f"what depends on {what} is looked up in a table, which has room for "
                f"{LARGEST_TABLE} combinations of sizes; declare fewer sizes, or compute with "
                "integers (h * 17 // 10)"
            )
        points = np.meshgrid(*(axis.values() for axis in axes), indexing="ij")
        return dict(zip(symbols, points, strict=True))

    def _looked_up(self, values: Any, symbols: Sequence[Symbol]) -> Any:
        """Take a value for each combination of the symbols' values."""
        table = self._net.vector([int(value) for value in values])
        axes = [self._ranges[symbol] for symbol in symbols]
        place: Value = 0
        for symbol, axis in zip(symbols, axes, strict=True):
            step = ex.floor_divide(ex.subtract(symbol_value(symbol), axis.low), axis.step)
            place = add(multiply(place, len(axis)), step)
        return self._net.result(self._net.add("add_gather", table, self.emit(place), 0))


def _operations(x: Value) -> list[Operation]:
    """Return the operations in an expression, those inside others first."""
    found: list[Operation] = []

    def visit(x: Any) -> None:
        if isinstance(x, Polynomial):
            for monomial in x.terms:
                for atom in monomial:
                    visit(atom)
        elif isinstance(x, Operation):
            if x.kind is float or _has_layer(x):
                for arg in x.args:
                    visit(arg)
            found.append(x)

    visit(x)
    return found


def _has_layer(x: Operation) -> bool:
    exact = x.name in ("floor_divide", "minimum", "maximum", "absolute")
    return exact and not any(kind_of(arg) is float for arg in x.args)


def _shape(points: Mapping[Symbol, Any]) -> tuple[int, ...]:
    return next(iter(points.values())).shape  # type: ignore[no-any-return]


class _Lazy(dict[Symbol, Any]):
    """Makes the tensor of a symbol where it is first used."""

    def __init__(self, make: Callable[[Symbol], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, symbol: Symbol) -> Any:
        self[symbol] = self._make(symbol)
        return self[symbol]


def _layers(net: LayerMaker) -> Arithmetic:
    """Return the arithmetic of layers."""

    def constant(x: Any) -> Any:
        return net.vector([x]) if isinstance(x, int) else net.number(x, torch.float32, 1)

    def real(x: Any) -> Any:
        return net.cast(x, torch.float32)

    def binary(operation: str, reals: bool = False) -> Callable[[Any, Any], Any]:
        def apply(a: Any, b: Any) -> Any:
            if reals or a.dtype != b.dtype:
                a, b = real(a), real(b)
            kind = getattr(trt.ElementWiseOperation, operation)
            return net.result(net.add("add_elementwise", a, b, kind))

        return apply

    def unary(operation: str, reals: bool = True) -> Callable[[Any], Any]:
        def apply(a: Any) -> Any:
            kind = getattr(trt.UnaryOperation, operation)
            return net.result(net.add("add_unary", real(a) if reals else a, kind))

        return apply

    def log2(a: Any) -> Any:
        return binary("DIV")(unary("LOG")(a), constant(math.log(2)))

    names = ("sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")
    return {
        "constant": constant,
        "number": lambda x: x,
        "add": binary("SUM"),
        "subtract": binary("SUB"),
        "multiply": binary("PROD"),
        "floor_divide": binary("FLOOR_DIV"),
        "minimum": binary("MIN"),
        "maximum": binary("MAX"),
        "absolute": unary("ABS", reals=False),
        "power": binary("POW", reals=True),
        "ratio": binary("DIV", reals=True),
        "true_divide": binary("DIV", reals=True),
        "log2": log2,
        **{name: unary(name.upper()) for name in names},
    }
