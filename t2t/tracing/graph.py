"""What a trace records: the calls of converted operators, as a graph of values.

A `Value` is one tensor at one point of the program and never changes: an in-place operation makes
a new value. So the calls can be turned into layers after the forward pass, only those whose
results are used, with torch unpatched again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t.io import Dimension
from t2t.io import tree as walker
from t2t.isolation import Change
from t2t.precision import Cast, Kind
from t2t.registry import Converter, Precision
from t2t.rounding import Steps
from t2t.sizes import expression, is_symbolic
from t2t.sizes.dynamic import Check
from t2t.sizes.expressions import symbols_of
from t2t.sizes.proofs import Box
from t2t.sizes.terms import Symbol


@dataclass(frozen=True)
class Location:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(eq=False, slots=True)
class Value:
    """One tensor at one point of the program.

    Attributes:
        tensor: a fake tensor (its shape and dtype), or the data of a constant.
        call: the call that made it; None for inputs and constants.
        index: which of the call's outputs it is.
        version: for a constant, torch's count of writes to it when it was read.
        kind: what a constant counts as under ``fp16=True``.
        steps: by what a constant was rounded, if the model did so.
    """

    tensor: torch.Tensor
    call: Call | None = None
    index: int = 0
    version: int = 0
    kind: Kind = Kind.FLOAT
    steps: Steps | None = None


@dataclass(eq=False, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        name: the operator's name, as "torch.nn.functional.conv2d" or "aten::add.Tensor".
        converter: what turns it into layers; None where there is nothing: see ``problem``.
        args: its arguments; tensors are `Value`s.
        kwargs: its keyword arguments.
        scope: path of the module that made the call.
        location: the user's line, where one is known.
        formulas: the operators whose formulas made the call, that of the model first.
        function: what was called.
        precision: how it is computed under fp16, where the formula that it is a part of says so.
        cast: what the model says of precision where it makes the call.
        output: the fake tensors that it gives, nested as torch gives them.
        problem: why the call cannot be converted; raised only where a result is used.
    """

    name: str
    converter: Converter | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: str
    location: Location | None
    formulas: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    precision: Precision | None = None
    cast: Cast | None = None
    output: Any = None
    problem: Exception | None = None

    @property
    def origin(self) -> str:
        """The operator that the model called, where this is a part of its formula; else ""."""
        return self.formulas[0] if self.formulas and self.formulas[0] != self.name else ""

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operator, and of those whose formulas the call is a part of."""
        return (self.name, *self.formulas)

    @property
    def short_name(self) -> str:
        """The operator's name in layer names: "conv2d"."""
        name = self.name.rpartition("::")[2] if "::" in self.name else self.name
        parts = name.split(".")
        return parts[0] if "::" in self.name else parts[-1]

    def inputs(self) -> Iterator[Value]:
        """Yield the values that the call reads, also in the functions that it takes."""
        for leaf in tree_leaves((self.args, self.kwargs)):
            if isinstance(leaf, Value):
                yield leaf
            elif isinstance(leaf, Graph):
                yield from leaf.captured()

    def bodies(self) -> list[Graph]:
        """Return the functions that the call takes, as a loop does."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Graph)]


@dataclass
class Graph:
    """A whole trace, or that of a function that a call takes.

    Attributes:
        inputs: the values of the network inputs, in the order of the examples; of the arguments of
            a function.
        calls: all calls, in program order.
        output: what the forward pass returned, with `Value`s in place of tensors.
        dimensions: for every symbol of a size, the dynamic dimension that it stands for.
        boxes: the sizes for which the trace holds: all those of each box.
        notes: what was decided about sizes, for the user to know.
        kept: what the forward pass has kept in the module or elsewhere, beside its result.
        state: what the network keeps for the module: the values, after the pass, of the last
            ``len(state)`` inputs.
        reseeded: whether it set the seed of random numbers.
        checks: what must hold of sizes that depend on the data.
        numbers: for the symbol of a number that the model has read, the tensor that it is read from
            and one whose size is as much as the number is above its least value; of a real number
            the same again.
    """

    inputs: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    output: Any = None
    dimensions: dict[Symbol, Dimension] = field(default_factory=dict)
    boxes: list[Box] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: list[Change] = field(default_factory=list)
    state: list[Value] = field(default_factory=list)
    reseeded: bool = False
    checks: list[Check] = field(default_factory=list)
    numbers: dict[Symbol, tuple[Value, Value]] = field(default_factory=dict)

    def used_calls(self, roots: Sequence[Value]) -> list[Call]:
        """Return the calls that the values depend on, in program order."""
        used: set[int] = set()
        pending = [value.call for value in roots if value.call is not None]
        while pending:
            call = pending.pop()
            if id(call) in used:
                continue
            used.add(id(call))
            pending += [value.call for value in call.inputs() if value.call is not None]
        return [call for call in self.calls if id(call) in used]

    def captured(self) -> list[Value]:
        """Return the values from outside that the output of a function depends on, each once."""
        calls = self.used_calls(self.output)
        own = {id(call) for call in calls}
        read = itertools.chain(self.output, *(call.inputs() for call in calls))
        return [
            value
            for value in {id(value): value for value in read}.values()
            if id(value.call) not in own and value not in self.inputs
        ]


def with_bodies(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield calls, and after each those of the functions that it takes."""
    for call in calls:
        yield call
        for body in call.bodies():
            yield from with_bodies(body.used_calls(body.output))


def symbols_of_call(call: Call) -> set[Symbol]:
    """Return the symbols of all sizes that a call reads or makes."""
    inputs = [value.tensor for value in call.inputs()]
    return symbols_in(
        inputs, *((part.args, part.kwargs, part.output) for part in with_bodies([call]))
    )


def symbols_in(*arguments: Any) -> set[Symbol]:
    """Return the symbols of numbers, and of the sizes of tensors."""
    found: set[Symbol] = set()
    for x in tree_leaves(arguments):
        for size in x.shape if isinstance(x, torch.Tensor) else [x]:
            found |= symbols_of(expression(size)) if is_symbolic(size) else set()
    return found


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the leaves of arguments, in which a `Value` and a `Graph` are leaves."""
    return walker.map_tree(function, tree, _LEAVES)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of arguments, in which a `Value` and a `Graph` are leaves."""
    return walker.tree_leaves(tree, _LEAVES)


_LEAVES = (torch.Tensor, Value, Graph)
