"""What a mask chooses, computed for all elements where the same mask puts it back.

``x[mask] = f(y[mask])`` is ``torch.where(mask, f(y), x)`` where ``f`` computes each row by itself:
that the number of rows depends on the data matters to nobody. The calls of ``f`` are recorded
again, on a tensor in which one dimension has all rows where the chosen ones have theirs. So their
arguments stay as they are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from t2t.sizes import expression, is_symbolic
from t2t.sizes.expressions import symbols_of
from t2t.torch_internals import FakeTensor, OpOverload, schema_of
from t2t.tracing.graph import Call, Value, map_tree, tree_leaves
from t2t.tracing.operators import draws_random
from t2t.tracing.recorder import Recorder

aten = torch.ops.aten

_CHOOSING = (aten.index.Tensor, aten.masked_select.default, aten.nonzero.default)
_PUTTING = (
    aten.index_put.default,
    aten._unsafe_index_put.default,
    aten.masked_scatter.default,
)

# Besides those that PyTorch says to be: these compute elements by themselves,
_BY_ELEMENT = frozenset(
    f"aten::{name}"
    for name in ("_to_copy", "alias", "copy", "detach", "fill", "floor_divide", "full_like",
                 "hardswish", "lift_fresh", "ones_like", "unsqueeze", "zero", "zeros_like")
)  # fmt: skip
# and these along the dimensions that they are given.
_BY_DIMENSION = frozenset(
    f"aten::{name}"
    for name in ("_softmax", "amax", "amin", "cat", "linalg_vector_norm", "mean", "select",
                 "select_scatter", "slice", "slice_scatter", "squeeze", "sum")
)  # fmt: skip
# A number that is not chosen may be 0, and integers have no infinity.
_DIVIDING = frozenset(f"aten::{name}" for name in ("div", "floor_divide", "fmod", "remainder"))

# Start, end and step of a slice.
_ALL = [0, sys.maxsize, 1]

_DEPTH = 8
"""How many calls lie at most between a mask and what two computations of it have in common."""


class Masks:
    """Takes the calls that put into a tensor what a mask has chosen.

    Args:
        recorder: where calls are recorded.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # The values of masks, and for each a tensor that nobody writes to.
        self._known: list[tuple[Value, torch.Tensor]] = []

    def take(self, operator: OpOverload) -> bool:
        """Return whether an operator may have a mask that makes a size, where a trace has such."""
        has_sizes = getattr(self._recorder.mode, "new_size", None) is not None
        return has_sizes and operator in (*_CHOOSING, *_PUTTING)

    def unified(self, operator: OpOverload, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return arguments in which masks of the same value are one tensor."""
        place = 0 if operator is aten.nonzero.default else 1
        return (*args[:place], map_tree(self._unified, args[place]), *args[place + 1 :])

    def _unified(self, x: Any) -> Any:
        if not (
            isinstance(x, torch.Tensor) and x.dtype == torch.bool and self._recorder.is_traced(x)
        ):
            return x
        value = self._recorder.value(x)
        for known, stand_in in self._known:
            # What a loop or a branch has made is forgotten behind it.
            if self._recorder.memory.find(stand_in) is not None and _is_same(known, value):
                return stand_in
        stand_in = self._recorder.empty(x.shape, x)
        self._recorder.memory.add_root(stand_in, value)
        self._known.append((value, stand_in))
        return stand_in

    def put(self, operator: OpOverload, *args: Any) -> Any:
        """Return the result of a call that puts as many values as its mask chooses.

        NotImplemented of others, and where these are not chosen by this mask, or not computed row
        by row.
        """
        if operator not in _PUTTING:
            return NotImplemented
        x = args[0]
        if operator is aten.masked_scatter.default:
            mask, source = args[1:]
            x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
            shape, behind, accumulate = x.shape, 0, False
            full = self._full(args[1], shape, source, 0)
        else:
            indices, source, accumulate = (*args[1:], False)[:3]
            given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
            axis, mask = given[0]
            if len(given) > 1 or not self._recorder.is_traced(mask) or mask.dtype != torch.bool:
                return NotImplemented
            shape, behind = mask.shape, x.ndim - axis - mask.ndim
            full = self._full(mask, shape, source, source.ndim - 1 - behind)
        if full is None or full.dtype != x.dtype:
            return NotImplemented
        axis = full.ndim - 1 - behind
        if len(shape) != 1:
            full = full.reshape(*full.shape[:axis], *shape, *full.shape[axis + 1 :])
        condition = mask
        for _ in range(behind):
            condition = condition.unsqueeze(-1)
        return torch.where(condition, x + full if accumulate else full, x)

    def _full(
        self, mask: torch.Tensor, shape: Sequence[Any], source: torch.Tensor, axis: int
    ) -> torch.Tensor | None:
        """Return ``source`` with a row for each element of the mask; None if that is unknown.

        Args:
            mask: the mask.
            shape: the shape to which it is broadcast.
            source: what is computed of what the mask has chosen.
            axis: where its rows stand.
        """
        if axis < 0 or not is_symbolic(source.shape[axis]):
            return None
        count = expression(source.shape[axis])
        rows = _Rows(self._recorder, self._recorder.value(mask), shape, count)
        return rows.all_of(self._recorder.value(source))


class _Rows:
    """The calls by which a value comes from what a mask has chosen.

    Args:
        recorder: where they are recorded again.
        mask: the mask.
        shape: the shape to which it is broadcast.
        count: how many rows it has chosen, as an expression.
    """

    def __init__(self, recorder: Recorder, mask: Value, shape: Sequence[Any], count: Any) -> None:
        self._recorder, self._mask, self._count = recorder, mask, count
        self._shape = [*shape]
        self._calls: dict[int, Call] = {}

    def all_of(self, value: Value) -> torch.Tensor | None:
        """Return the value for all rows; None where the mask did not choose what it comes from."""
        if not self._follow(value):
            return None
        made: dict[int, list[torch.Tensor]] = {}

        def again(x: Any) -> Any:
            is_made = isinstance(x, Value) and id(x.call) in made
            return made[id(x.call)][x.index] if is_made else x

        for key, call in self._calls.items():
            if call.function in _CHOOSING:
                results = self._source(call)
            else:
                args, kwargs = map_tree(again, (call.args, call.kwargs))
                results = self._repeat(call, args, kwargs)
            made[key] = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        return made[id(value.call)][value.index]

    def _follow(self, value: Value) -> bool:
        """Note the calls, in order, that a value with a dimension of rows comes from."""
        call = value.call
        if call is None or not isinstance(call.function, OpOverload):
            return False
        if id(call) in self._calls:
            return True
        outputs = [x for x in tree_leaves(call.output) if isinstance(x, torch.Tensor)]
        if any(self._axis(x) is None for x in outputs):
            return False
        if not self._chooses(call) and not self._computes(call, call.function):
            return False
        self._calls[id(call)] = call
        return True

    def _computes(self, call: Call, function: OpOverload) -> bool:
        """Return whether a call computes rows by themselves, of rows that the mask has chosen."""
        name = schema_of(function).name
        leaves = tree_leaves((call.args, call.kwargs))
        operands = [x for x in leaves if isinstance(x, Value)]
        rows = [x for x in operands if self._is_sized(*x.tensor.shape)]
        if draws_random(function, call.args, call.kwargs) or self._is_sized(*leaves):
            return False
        if name in _DIVIDING and not call.output.is_floating_point() and operands[-1] in rows:
            return False
        if name in _BY_DIMENSION:
            first = operands[0]
            along = () if _takes_all(call) else _dimensions(call, first.tensor.ndim)
            if first not in rows or self._axis(first.tensor) in along:
                return False
        elif torch.Tag.pointwise not in function.tags and name not in _BY_ELEMENT:
            return False
        return bool(rows) and all(
            self._axis(x.tensor) is not None and self._follow(x) for x in rows
        )

    def _is_sized(self, *sizes: Any) -> bool:
        """Return whether a size is computed of the number of rows."""
        symbols = symbols_of(self._count)
        return any(symbols & symbols_of(expression(size)) for size in sizes if is_symbolic(size))

    def _axis(self, x: torch.Tensor) -> int | None:
        """Return the dimension of rows; None where other sizes depend on their number, too."""
        found = [dim for dim, size in enumerate(x.shape) if self._is_sized(size)]
        is_one = len(found) == 1 and expression(x.shape[found[0]]) == self._count
        return found[0] if is_one else None

    def _chooses(self, call: Call) -> bool:
        """Return whether this is what the mask has chosen."""
        if call.function is aten.masked_select.default:
            x, mask = call.args
            both = torch.broadcast_tensors(x.tensor, mask.tensor)[0].shape  # type: ignore[no-untyped-call]
            return mask is self._mask and _equal(both, self._shape)
        if call.function is not aten.index.Tensor:
            return False
        given = [index for index in call.args[1] if index is not None]
        chosen = len(given) == 1 and given[0] is self._mask
        return chosen and _equal(given[0].tensor.shape, self._shape)

    def _source(self, call: Call) -> torch.Tensor:
        """Return all rows of what the mask has chosen from, in one dimension."""
        x = self._tensor(call.args[0])
        if call.function is aten.masked_select.default:
            return x.expand(self._shape).reshape(-1)
        axis = next(axis for axis, index in enumerate(call.args[1]) if index is not None)
        if len(self._shape) == 1:
            return x
        end = axis + len(self._shape)
        return x.reshape(*x.shape[:axis], math.prod(self._shape), *x.shape[end:])

    def _tensor(self, value: Value) -> torch.Tensor:
        """Return a tensor that has the value, also where its own was written since."""
        if not isinstance(value.tensor, FakeTensor):
            return value.tensor
        tensor = self._recorder.empty(value.tensor.shape, value.tensor)
        self._recorder.memory.add_root(tensor, value)
        return tensor

    def _repeat(self, call: Call, args: Any, kwargs: Any) -> Any:
        """Record a call once more, on other rows."""
        recorder = self._recorder
        fakes = map_tree(lambda x: x.tensor if isinstance(x, Value) else x, (args, kwargs))
        values = map_tree(
            lambda x: recorder.value(x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        meta = None if call.converter is None else call.converter.meta
        output = NotImplemented if meta is None else recorder.run(meta, *fakes)
        if output is NotImplemented:
            output = recorder.run(call.function, *fakes)  # type: ignore[arg-type]
        again = replace(call, args=values[0], kwargs=values[1])
        return recorder.register(again, call.function, output, [], [])


def _dimensions(call: Call, rank: int) -> Collection[int | None]:
    """Return the dimensions that an operator works along, all if it is given none."""
    assert isinstance(call.function, OpOverload)
    arguments = schema_of(call.function).arguments
    given = dict(zip((x.name for x in arguments), call.args, strict=False)) | call.kwargs
    default = {x.name: x.default_value for x in arguments if x.has_default_value()}
    dims = next((x for name, x in {**default, **given}.items() if name in ("dim", "axis")), None)
    if dims is None or dims == []:
        return range(rank)
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)]


def _takes_all(call: Call) -> bool:
    """Return whether a call is of x[:], which older PyTorch makes for that part of an index."""
    if call.function not in (aten.slice.Tensor, aten.slice_scatter.default):
        return False
    first = 2 if call.function is aten.slice.Tensor else 3
    return [*call.args[first:], *_ALL[len(call.args) - first :]] == _ALL


def _equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return [*map(expression, a)] == [*map(expression, b)]


def _is_same(a: Value, b: Value, depth: int = _DEPTH) -> bool:
    """Return whether two values are computed alike of the same values."""
    if a is b:
        return True
    if a.call is None or b.call is None:
        is_constant = not isinstance(a.tensor, FakeTensor)
        return is_constant and a.tensor is b.tensor and a.version == b.version
    if a.call.function is not b.call.function or a.index != b.index or not depth:
        return False
    if not isinstance(a.call.function, OpOverload):
        return False
    if draws_random(a.call.function, a.call.args, a.call.kwargs):
        return False
    both = [tree_leaves((call.args, sorted(call.kwargs.items()))) for call in (a.call, b.call)]
    return len(both[0]) == len(both[1]) and all(
        _is_same(x, y, depth - 1)
        if isinstance(x, Value) and isinstance(y, Value)
        else _written(x) == _written(y)
        for x, y in zip(*both, strict=True)
    )


def _written(x: Any) -> Any:
    """Return an argument as what it can be compared by: 1, True and 1.0 differ, as 0.0 and -0.0."""
    return expression(x) if is_symbolic(x) else repr(x) if not isinstance(x, Value) else id(x)
