"""Sizes that depend on the data: which calls make them, and which no engine can hold for that.

An engine takes such sizes with its inputs, within their ranges, but cannot make them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch

from t2t.sizes import expression
from t2t.sizes.expressions import symbols_of
from t2t.sizes.polynomials import symbol_value
from t2t.sizes.proofs import span
from t2t.sizes.terms import Symbol
from t2t.tracing import Call, Graph, Value
from t2t.tracing.graph import symbols_in, symbols_of_call, tree_leaves, with_bodies

_MADE = "a size depends on the data, which TensorRT needs to know when the engine is built"
_NOWHERE = "no tensor has the size, which depends on the data"
# TensorRT reserves memory for the largest sizes, and what depends on the data is often far smaller.
_MOST_ELEMENTS = 1 << 26


class DataSizes:
    """The sizes of one graph that depend on the data.

    Args:
        graph: the graph.
        outputs: its results.

    Attributes:
        made: their symbols.
        read: what numbers and sizes are read from, for results or because they are checked.
        calls: the calls that results and these values depend on.
        makers: for a symbol the value that has it as a size, or that much above its least value.
    """

    def __init__(self, graph: Graph, outputs: Sequence[Value]) -> None:
        self._graph = graph
        self.made = {s for s, d in graph.dimensions.items() if not d.places}
        self.read: list[Value] = []
        self.calls = graph.used_calls(outputs)
        checked = set[Symbol]().union(*(symbols_of(check.value) for check in graph.checks))
        while more := [*self._unread(checked)]:
            self.read += more
            self.calls = graph.used_calls([*outputs, *self.read])
        self.makers = _makers(self.calls, self.made - {*graph.numbers})
        self.makers |= {s: sized for s, (_, sized) in graph.numbers.items() if _is_few(s)}

    def _unread(self, checked: set[Symbol]) -> Iterator[Value]:
        """Yield what sizes are read from, and the calls do not make yet."""
        read = checked.union(*map(symbols_of_call, self.calls)) if self.made else checked
        values = [*_makers(self._graph.calls, checked - {*self._graph.numbers}).values()]
        for symbol in read & {*self._graph.numbers}:
            values += self._graph.numbers[symbol][: 1 + _is_few(symbol)]
        used = {id(call) for call in self.calls}
        yield from (x for x in values if id(x.call) not in used)

    def problem(self, call: Call) -> str:
        """Return why no engine can hold a call; "" where its sizes do not forbid it."""
        inputs = [value.tensor for value in call.inputs()]
        new = symbols_in(call.output) & self.made - symbols_in(call.args, call.kwargs, inputs)
        makers = (x for x in self.makers.values() if call is x.call)
        if new or (call.problem is None and any(makers)):
            return _MADE
        if not symbols_of_call(call) & self.made <= {*self.makers}:
            return _NOWHERE
        for x in tree_leaves(call.output):
            sizes = map(expression, x.shape) if isinstance(x, torch.Tensor) else ()
            most = math.prod(span(size, self._graph.boxes)[1] for size in sizes)
            if most > _MOST_ELEMENTS and symbols_in(x) & self.made:
                return f"it may have {most} elements, for which an engine would reserve memory"
        return ""

    def sources(self, call: Call) -> Iterator[Call]:
        """Yield the calls that must run before one, because its arguments hold their sizes."""
        for symbol in symbols_in(*((x.args, x.kwargs) for x in with_bodies([call]))) & self.made:
            held, _ = self._graph.numbers.get(symbol, (None, None))
            for value in (self.makers.get(symbol), held):
                if value is not None and value.call is not None and value.call is not call:
                    yield value.call

    def places(self) -> dict[Symbol, tuple[torch.Tensor, int | None]]:
        """Return from which dimension of which tensor each size is read, or from its number."""
        made = {s: (x.tensor, _dim(x, s)) for s, x in self.makers.items()}
        numbers = {s: (held.tensor, None) for s, (held, _) in self._graph.numbers.items()}
        return {**made, **numbers}


def _makers(calls: Sequence[Call], symbols: Collection[Symbol]) -> dict[Symbol, Value]:
    """Return the first result of the calls that has each size."""
    sizes = {symbol_value(symbol): symbol for symbol in symbols}
    found: dict[Symbol, Value] = {}
    for call in calls if symbols else ():
        tensors = [x for x in tree_leaves(call.output) if isinstance(x, torch.Tensor)]
        for index, x in enumerate(tensors):
            for symbol in {*map(expression, x.shape)} & {*sizes}:
                found.setdefault(sizes[symbol], Value(x, call, index))
    return found


def _dim(value: Value, symbol: Symbol) -> int | None:
    sizes = [expression(size) for size in value.tensor.shape]
    size = symbol_value(symbol)
    return sizes.index(size) if size in sizes else None


def _is_few(symbol: Symbol) -> bool:
    """Return whether a tensor may have as many elements as a number is above its least value."""
    return symbol.high - symbol.low <= _MOST_ELEMENTS
