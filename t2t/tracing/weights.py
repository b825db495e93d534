"""How the constants of a network are computed from a module's parameters and buffers.

A conversion computes much of it by itself: weights are transposed, cast, sliced, folded into each
other. What it calls for that is recorded here, so that it can be done again with other weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.isolation import storage_key
from t2t.operator_data import Data, data_of, problem_of
from t2t.torch_internals import (
    DispatchMode,
    FakeTensor,
    HigherOrderOperator,
    has_storage,
    is_traceable_wrapper_subclass,
    schema_of,
)
from t2t.tracing.graph import tree_leaves


@dataclass(frozen=True)
class RecordedCall:
    """An operator that was called for constants: its arguments as data, its results by number."""

    operator: str
    args: list[Data]
    kwargs: dict[str, Data]
    results: tuple[int, ...]


@dataclass
class _Known:
    """A tensor that is an input, a constant or a result: its number, and the entries behind it."""

    tensor: torch.Tensor
    number: int
    inputs: frozenset[str]


class WeightRecorder(DispatchMode):
    """Records which operators make tensors of a module's parameters and buffers, where entered.

    A tensor is known by its place in memory, so also through another Python object. What depends on
    the weights in another way than by tensors that operators return (numbers that Python gets,
    writes in place, integers, memory that several entries see differently) is not followed: the
    entries that it comes from are `fixed`.

    Args:
        state: the module's own tensors, by their names in its ``state_dict``.

    Attributes:
        inputs: the names of the entries that are followed, by number from 0 on; several names are
            one tensor.
        calls: what was called, in order.
        fixed: why each entry that is not followed must stay as it is.
        constants: the other tensors that calls read, by number.
    """

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state = dict(state)
        self.inputs: list[list[str]] = []
        self.calls: list[RecordedCall] = []
        self.fixed: dict[str, str] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self._known: dict[object, _Known] = {}
        # By memory: the keys of what is known there, and the names of entries.
        self._keys: dict[int, set[object]] = {}
        self._owners: dict[int, list[str]] = {}
        self._tensors: list[torch.Tensor] = []  # by number; their addresses must stay taken
        for name, x in self.state.items():
            self._owners.setdefault(storage_key(x), []).append(name)
        for names in self._owners.values():
            keys = {_key(self.state[name]) for name in names}
            if keys == {None}:
                self._fix(names, "it is no plain tensor, or has no elements")
            elif len(keys) == 1 and self.state[names[0]].is_floating_point():
                self._add(self.state[names[0]], frozenset(names[:1]))
                self.inputs.append(names)

    def number_of(self, weight: torch.Tensor) -> int | None:
        """Return the number of the tensor whose memory the weights of a network are."""
        return self._addresses.get(_address(weight))

    @cached_property
    def _addresses(self) -> dict[object, int]:
        known = self._known.values()
        return {_address(one.tensor): one.number for one in known if one.tensor.is_contiguous()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        read = [found for x in given if (found := self._find(x)) is not None]
        written = [] if isinstance(func, HigherOrderOperator) else _written(func, args, kwargs)
        inputs = frozenset().union(*(known.inputs for known in read))
        for x in written:
            inputs |= self._forget(x)
        before = {id(x): x.clone() for x in given if inputs and not written and self._is_new(x)}
        output = func(*args, **kwargs)
        # What depends on the network's inputs becomes layers, which read the weights again.
        if inputs and not any(isinstance(x, FakeTensor) for x in (*given, *tree_leaves(output))):
            self._record(func, args, kwargs, output, inputs, before)
        return output

    def _record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        inputs: frozenset[str],
        before: Mapping[int, torch.Tensor],
    ) -> None:
        functions = isinstance(func, HigherOrderOperator)
        problem = "it takes functions" if functions else problem_of(func)
        results = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
        if not problem and all(_key(x) in self._known for x in results):
            return  # an alias
        if not problem and not all(map(_key, results)):
            problem = "its results are no plain tensors"
        try:
            if problem:
                raise ConversionError(problem)

            def number(x: torch.Tensor) -> int:
                known = self._find(x)
                if known is None:
                    known = self._add(x, frozenset())
                    self.constants[known.number] = before[id(x)]
                return known.number

            data = data_of(list(args), number), {k: data_of(x, number) for k, x in kwargs.items()}
        except ConversionError as error:
            self._fix(inputs, f"the conversion reads it by {func}, and {error}")
            return
        numbers = tuple(self._add(x, inputs).number for x in results)
        schema = schema_of(func)
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.calls.append(RecordedCall(name, *data, numbers))

    def _find(self, x: torch.Tensor) -> _Known | None:
        """Return what is known of a tensor; note entries that are read and not followed."""
        key = _key(x)
        known = self._known.get(key)
        if known is None and key is not None and storage_key(x) in self._owners:
            whose = self._owners[storage_key(x)]
            several = "other tensors share its memory"
            self._fix(whose, several if x.is_floating_point() else "it holds integers")
        return known

    def _is_new(self, x: torch.Tensor) -> bool:
        return _key(x) is not None and self._find(x) is None

    def _fix(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            for same in self._owners[storage_key(self.state[name])]:
                self.fixed.setdefault(same, reason)

    def _forget(self, x: torch.Tensor) -> frozenset[str]:
        """Forget what was known of memory that is written; return the inputs behind it."""
        if _key(x) is None:
            return frozenset()
        keys = self._keys.pop(storage_key(x), set())
        inputs = frozenset().union(*(self._known.pop(key).inputs for key in keys))
        return inputs.union(self._owners.get(storage_key(x), ()))

    def _add(self, x: torch.Tensor, inputs: frozenset[str]) -> _Known:
        key = _key(x)
        known = self._known[key] = _Known(x, len(self._tensors), inputs)
        self._keys.setdefault(storage_key(x), set()).add(key)
        self._tensors.append(x)
        return known


def _key(x: torch.Tensor) -> tuple[object, ...] | None:
    """Return where the elements of a tensor lie; None of those that have no data of their own."""
    if isinstance(x, FakeTensor) or x.is_meta or not has_storage(x) or not x.numel():
        return None
    if is_traceable_wrapper_subclass(x) or x.is_quantized:
        return None
    place = storage_key(x), x.storage_offset(), x.shape, x.stride()
    return (*place, x.dtype, x.is_conj(), x.is_neg())


def _address(x: torch.Tensor) -> tuple[object, ...]:
    return x.data_ptr(), x.numel(), x.dtype


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    return found
