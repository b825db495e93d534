"""Records calls as a graph of values, and knows which value each tensor has now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

from t2t import registry
from t2t.errors import ConversionError, T2TError, UnsupportedOperatorError
from t2t.isolation import storage_key
from t2t.precision import Cast
from t2t.registry import Converter, Precision
from t2t.tracing.aliasing import Entry, Memory, View, version_of
from t2t.tracing.constants import Constants
from t2t.tracing.graph import Call, Graph, Location, Value, map_tree, tree_leaves
from t2t.tracing.inverses import invert
from t2t.tracing.kinds import COMPLEX
from t2t.tracing.layout import REPLAYED, by_elements
from t2t.tracing.locations import module_location, user_location
from t2t.tracing.operators import operator_info

__all__ = ["NO_CONVERTER", "RANDOM", "UNSEEN", "Recorder"]

RANDOM = (
    "it draws random numbers, which an engine cannot; call .eval() on the module, or pass the "
    "numbers in as an input"
)

UNSEEN = (
    "a tensor that depends on the input was made where t2t does not see it (kept from an earlier "
    "call, or made inside a converted function)"
)

NO_CONVERTER = (
    "this operator has no converter; write one with @t2t.converter({name!r}), or leave it out"
)


class Recorder:
    """Turns calls in one thread into a `Graph`.

    Args:
        mode: the mode of the fake tensors that stand for the inputs.
        state: names of the module's parameters and buffers, which a trace must not change.
        boundary: code of the function that calls the user's module.
    """

    def __init__(
        self, mode: FakeTensorMode, state: dict[str, torch.Tensor], boundary: CodeType
    ) -> None:
        self.mode = mode
        self.graph = Graph()
        self.scopes = [""]
        self.failure: tuple[BaseException | None, str] = (None, "")
        """The last exception that left a module, and that module."""
        self.constants = Constants(state)
        # The regions of torch.autocast that the forward pass is in: whether each is enabled.
        self.autocast: list[bool] = []
        self._cast: Cast | None = None
        self._boundary = boundary
        self._thread = threading.get_ident()
        self._paused = 0
        # The operators whose decompositions run now, outermost first.
        self._decomposing: list[str] = []
        self.precision: Precision | None = None
        """How the parts of the formula that runs now are computed, if it says so."""
        self._memory = Memory(self._refresh, self._invert)

    def is_active(self) -> bool:
        """Say whether calls of this thread are to be recorded now."""
        return not self._paused and threading.get_ident() == self._thread

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let torch run as it is, to compute the shapes of results."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def is_traced(self, x: Any) -> bool:
        """Say whether a tensor depends on the inputs, or was written with what does."""
        if isinstance(x, FakeTensor):
            return x.fake_mode is self.mode
        return isinstance(x, torch.Tensor) and self.constants.is_promoted(x)

    def location(self) -> Location | None:
        """Give the user's line that runs now."""
        return user_location(self._boundary)

    def deciding_location(self) -> Location | None:
        """Return the user's line that runs now, or torch's own where the model has none."""
        return self.location() or module_location(self._boundary)

    def add_input(self, tensor: torch.Tensor) -> Value:
        """Note a fake tensor as the next network input."""
        value = Value(tensor)
        self._memory.add_root(tensor, value)
        self.graph.inputs.append(value)
        return value

    def value(self, x: torch.Tensor) -> Value:
        """Give the value that a tensor has now."""
        entry = self._memory.find(x)
        if entry is not None and (isinstance(x, FakeTensor) or self.constants.is_promoted(x)):
            return self._memory.read(entry)
        if isinstance(x, FakeTensor):
            raise UnsupportedOperatorError(UNSEEN)
        if self.constants.is_promoted(x):
            raise UnsupportedOperatorError(UNSEEN)
        return self.constants.value(x, self.location)

    def tie(self, x: torch.Tensor, copy: torch.Tensor) -> None:
        """Note that two traced tensors may share memory, or not."""
        first, second = self._memory.find(x), self._memory.find(copy)
        assert first is not None
        assert second is not None
        first.storage.tie(second.storage)

    def note_cast(self, x: torch.Tensor, cast: Cast) -> torch.Tensor:
        """Return an alias of a float32 tensor that stands for it after a cast to float32."""
        if not self.is_traced(x):
            return self.constants.cast(x, cast)
        self._cast = cast
        try:
            return torch.ops.aten.alias.default(x)  # type: ignore[no-any-return]
        finally:
            self._cast = None

    def call_operator(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record an operator that reached the dispatcher, or just run it on constants."""
        raise NotImplementedError

    def located(self, error: T2TError) -> T2TError:
        """Add the user's line and the module to an error's text."""
        location = self.location()
        where = [f"at {location}"] if location else []
        where += [f"in module {self.scopes[-1]!r}"] if self.scopes[-1] else []
        result = type(error)(" ".join([str(error), *where]))
        if isinstance(result, ConversionError):
            result.located = True
        return result

    def _call(self, name: str, converter: Converter | None, args: Any, kwargs: Any) -> Call:
        formulas = tuple(self._decomposing)
        call = Call(name, converter, (), {}, self.scopes[-1], self.location(), formulas)
        call.precision = self.precision
        try:
            call.args, call.kwargs = map_tree(self._lift, (args, kwargs))
            call.cast = self._said()
        except T2TError as error:
            call.problem = error
        return call

    def _said(self) -> Cast | None:
        """Return what the model says of precision where it makes a call."""
        cast = self._cast
        if cast is not None and cast.like is not None:
            return Cast("like", self.value(cast.like))
        off = self.autocast and not self.autocast[-1]
        return Cast("region") if cast is None and off else cast

    def _origin(self, name: str) -> str:
        """Name the operator that the model called, without its overload."""
        name = self._decomposing[0] if self._decomposing else name
        return name.partition(".")[0] if "::" in name else name

    def _lift(self, x: Any) -> Any:
        return self.value(x) if isinstance(x, torch.Tensor) else x

    def _fakes(self, args: Any) -> Any:
        """Replace constants that traced values were written to by their fake tensors."""
        if not self.constants.promoted:
            return args
        return map_tree(self._fake, args)

    def _fake(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) and self.is_traced(x):
            entry = self._memory.find(x)
            if entry is None:
                raise self.located(UnsupportedOperatorError(UNSEEN))
            return entry.fake
        return x

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute the fake result of a call."""
        try:
            with self.paused(), self.mode:
                return function(*self._fakes(args), **self._fakes(kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise self.located(
                UnsupportedOperatorError(
                    f"{error.func}: its shape or value depends on the data, which TensorRT needs "
                    "to know when the engine is built"
                )
            ) from error

    def _register(
        self,
        call: Call,
        function: Callable[..., Any],
        output: Any,
        traced: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> Any:
        """Note a call and let its outputs have values; give them as the caller gets them.

        Args:
            call: the call.
            function: what was called.
            output: the fake tensors that it gave.
            traced: its traced arguments.
            written: those of them that it wrote to in place.
        """
        if any(isinstance(x, torch.Tensor) and x.is_complex() for x in tree_leaves(output)):
            call.problem = UnsupportedOperatorError(COMPLEX)
        call.function = function
        self.graph.calls.append(call)
        owners = {storage_key(self._fake(x)): x for x in traced}
        values: list[Value] = []
        given_back: set[int] = set()

        def note(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            entry = self._memory.find(x)
            if entry is not None:
                alias = self._alias(x)
                if any(entry.fake is self._fake(target) for target in written):
                    values.append(Value(alias, call, len(values)))
                    given_back.add(id(entry))
                    entry.storage.counts += version_of(x) - min(entry.versions)
                    self._write(entry, values[-1])
                    return x
                # An argument given back as it is: the result is a value of its own all the same.
                x = alias
            values.append(Value(x, call, len(values)))
            self._note_output(x, values[-1], function, owners.get(storage_key(x)))
            return x

        result = map_tree(note, output)
        tensors = iter(values)
        call.output = map_tree(
            lambda x: next(tensors).tensor if isinstance(x, torch.Tensor) else x, output
        )
        if any(id(self._memory.find(x)) not in given_back for x in written):
            raise self.located(
                UnsupportedOperatorError(f"{call.name} changes an argument in place")
            )
        return result

    def _write(self, entry: Entry, value: Value) -> None:
        if entry.storage.unwritable:
            raise self.located(UnsupportedOperatorError(entry.storage.unwritable))
        self._memory.write(entry, value)

    def _note_output(
        self,
        x: torch.Tensor,
        value: Value,
        function: Callable[..., Any],
        source: torch.Tensor | None,
    ) -> None:
        call = value.call
        parent = None if source is None else self._memory.find(source)
        assert call is not None
        if parent is None or call.problem is not None:
            self._memory.add_root(x, value)
            why: object = call.problem or "an operator whose views t2t does not know"
            if parent is None:
                if not isinstance(function, OpOverload) or not operator_info(function).is_view:
                    return
                why = "a constant cut to a dynamic size; build the result with torch.cat or F.pad"
            entry = self._memory.find(x)
            assert entry is not None
            entry.storage.unwritable = f"a write into a view by {call.name}: {why}"
            return
        view = View(
            call.name, function, call.converter, call.args, call.kwargs, parent.value, value.index
        )
        self._memory.add_view(x, value, parent, view)

    def _alias(self, x: torch.Tensor) -> torch.Tensor:
        with self.paused():
            return torch.ops.aten.alias.default(x)  # type: ignore[no-any-return]

    def _view(
        self, name: str, operator: OpOverload, args: Any, kwargs: Any, source: torch.Tensor
    ) -> View:
        if operator is torch.ops.aten.as_strided.default:
            with self.paused():
                view = operator(*args, **kwargs)
            return self._view_of_elements(source, view)
        return View(name, operator, registry.find_operator(operator), args, kwargs, source)

    def _view_of_elements(self, source: torch.Tensor, x: torch.Tensor) -> View:
        """Give a view by which elements of its source it shows."""
        function, rest = by_elements(source, x)
        self.constants.note_made(rest, [])
        converter = registry.find_operator(function)
        return View(operator_info(function).name, function, converter, (source, rest), {}, source)

    def _refresh(self, view: View, parent: Value) -> Value:
        # A value that was written may have other strides than the tensor had.
        function = REPLAYED.get(view.function, view.function)
        if not isinstance(parent.tensor, FakeTensor):
            args, kwargs = view.on(parent.tensor)
            result = function(*args, **kwargs)
            result = result[view.index] if isinstance(result, tuple | list) else result
            return Value(result, kind=parent.kind)
        args, kwargs = view.on(parent)
        result = self._emit(view.name, view.converter, function, args, kwargs)
        value: Value = result[view.index] if isinstance(result, tuple | list) else result
        return value

    def _invert(self, entry: Entry, base: Value, new: Value) -> Value:
        def emit(operator: OpOverload, *args: Any) -> Value:
            name = operator_info(operator).name
            converter = registry.find_operator(operator)
            value: Value = self._emit(name, converter, operator, args, {})
            return value

        try:
            return invert(emit, entry, base, new)
        except UnsupportedOperatorError as error:
            raise self.located(error) from None

    def _emit(
        self,
        name: str,
        converter: Converter | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call on values, and give its results as values."""
        plain = map_tree(lambda x: x.tensor if isinstance(x, Value) else x, (args, kwargs))
        call = self._call(name, converter, args, kwargs)
        if converter is None:
            call.problem = UnsupportedOperatorError(NO_CONVERTER.format(name=name))
        output = self._run((converter and converter.meta) or function, *plain)
        self.graph.calls.append(call)
        call.function, call.output = function, output
        index = iter(range(1 << 30))
        return map_tree(
            lambda x: Value(x, call, next(index)) if isinstance(x, torch.Tensor) else x, output
        )
