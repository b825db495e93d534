"""Records the calls of one forward pass: torch is patched, tensors are fake."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from torch.utils._python_dispatch import TorchDispatchMode

from t2t import registry
from t2t.errors import T2TError, UnsupportedArgumentError, UnsupportedOperatorError
from t2t.registry import Converter
from t2t.shapes import has_symbol
from t2t.tracing.aliasing import Entry, Memory, View, storage_key, version_of
from t2t.tracing.constants import Constants
from t2t.tracing.formulas import DECISIONS
from t2t.tracing.graph import Call, Graph, Location, Value, map_tree, tree_leaves
from t2t.tracing.inverses import invert
from t2t.tracing.layout import REPLAYED, by_elements, may_be_same
from t2t.tracing.locations import user_location
from t2t.tracing.operators import OperatorInfo, decomposition, draws_random, operator_info

__all__ = ["Tracer"]

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


class Tracer:
    """Turns the calls of one forward pass, in one thread, into a `Graph`.

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
        self.constants = Constants(state)
        self.dispatch_mode = _DispatchMode(self)
        self._boundary = boundary
        self._thread = threading.get_ident()
        self._paused = 0
        # The operators whose decompositions run now, outermost first.
        self._decomposing: list[str] = []
        self._memory = Memory(self._refresh, self._invert)

    # -- what is ours ------------------------------------------------------------------------------

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
        return self.constants.value(x)

    def forbid_writes(self, x: torch.Tensor, why: str) -> None:
        """Let a later write to the memory of a traced tensor raise."""
        entry = self._memory.find(x)
        assert entry is not None
        entry.storage.unwritable = why

    # -- calls of Python functions -----------------------------------------------------------------

    def call_function(
        self,
        name: str,
        converter: Converter,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a patched function, or just make it where nothing traced goes in."""
        if not self.is_active():
            return original(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        traced = [x for x in tensors if self.is_traced(x)]
        if not traced and not has_symbol((args, tuple(kwargs.values()))):
            return original(*args, **kwargs)
        call = self._call(name, converter, args, kwargs)
        before = {id(x): version_of(self._fake(x)) for x in traced}
        try:
            converter.signature.bind(None, *args, **kwargs)
        except TypeError as error:
            call.problem = UnsupportedArgumentError(f"{error} (in {converter.qualified_name})")
            output = self._run(original, args, kwargs)
        else:
            output = self._run(converter.meta or original, args, kwargs)
        if output is NotImplemented:
            # The function's own operators arrive one by one.
            return original(*args, **kwargs)
        written = [x for x in traced if version_of(self._fake(x)) != before[id(x)]]
        return self._register(call, original, output, traced, written)

    # -- operators ---------------------------------------------------------------------------------

    def call_operator(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record an operator that reached the dispatcher, or just run it on constants."""
        if self._paused or operator.namespace == "prim":
            return operator(*args, **kwargs)
        info = operator_info(operator)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(self.is_traced(x) for x in tensors):
            random = draws_random(operator, args, kwargs)
            if not random and not has_symbol((args, tuple(kwargs.values()))):
                return self._run_constant(operator, info, args, kwargs, tensors)
        if operator is torch.ops.aten._local_scalar_dense.default:
            raise self.located(
                UnsupportedOperatorError(
                    "the model needs the value of a tensor that depends on its input (.item(), "
                    "float(x), if x > 0, ...), which an engine cannot give to Python; "
                    "use torch.where"
                )
            )
        if operator in DECISIONS:
            DECISIONS[operator](*args, **kwargs)
        if info.mutated:
            return self._call_mutating(operator, info, args, kwargs)
        return self._call_functional(operator, info, args, kwargs, tensors)

    def _run_constant(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: Any,
        tensors: list[torch.Tensor],
    ) -> Any:
        for target in self._targets(info, args, kwargs):
            self.constants.before_write(target)
        output = operator(*args, **kwargs)
        if operator is torch.ops.aten.lift_fresh.default:
            # The first that is heard of torch.tensor([1, 2]).
            self.constants.note_made(output, [])
            return output
        self.constants.note_made(output, tensors)
        if info.is_view and args and isinstance(args[0], torch.Tensor):
            try:
                view = self._view(info.name, operator, args, kwargs, args[0])
            except UnsupportedOperatorError:
                self.constants.note_unknown(args[0])
                return output
            views = (replace(view, index=index) for index in itertools.count())
            self.constants.note_view(output, args[0], views)
        return output

    def _call_functional(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        converter = registry.find_operator(operator)
        random = draws_random(operator, args, kwargs)
        # Where a formula leads back to its operator, there is none.
        if converter is None and not random and info.name not in self._decomposing:
            formula = decomposition(operator)
            if formula is not None:
                output = self._decompose(info, formula, args, kwargs)
                if output is not NotImplemented:
                    return output
        if operator is torch.ops.aten.as_strided.default:
            return self._call_strided(operator, args, kwargs)
        call = self._call(info.name, converter, args, kwargs)
        if converter is None and call.problem is None:
            text = RANDOM if random else NO_CONVERTER.format(name=self._origin(info.name))
            call.problem = UnsupportedOperatorError(text)
        run = converter.meta if converter is not None and converter.meta else operator
        output = self._run(run, args, kwargs)
        traced = [x for x in tensors if self.is_traced(x)]
        return self._register(call, operator, output, traced, [])

    def _call_strided(self, operator: OpOverload, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record a view of memory as a view of elements."""
        output = self._run(operator, args, kwargs)
        try:
            name, function, converter, rest = self._elements(self._fake(args[0]), output)
        except UnsupportedOperatorError as error:
            raise self.located(error) from None
        call = self._call(name, converter, (args[0], rest), {})
        return self._register(call, function, output, [args[0]], [])

    def _elements(self, x: torch.Tensor, view: torch.Tensor) -> Any:
        function, rest = by_elements(x, view)
        return operator_info(function).name, function, registry.find_operator(function), rest

    def _decompose(
        self, info: OperatorInfo, formula: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run PyTorch's own formula of an operator; its parts come back as operators."""
        self._decomposing.append(info.name)
        try:
            with self.dispatch_mode:
                return formula(*self._fakes(args), **self._fakes(kwargs))
        finally:
            self._decomposing.pop()

    def _call_mutating(
        self, operator: OpOverload, info: OperatorInfo, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        targets = self._targets(info, args, kwargs)
        for target in targets:
            if not self.is_traced(target):
                self._promote(target, info.name)
        if info.changes_metadata:
            return self._change_metadata(operator, info, args, kwargs)
        if info.functional is None or _draws(operator, info.functional):
            return self._write_gap(operator, info, args, kwargs, targets)
        outs = {a.name for a in operator._schema.arguments if a.is_out}
        if outs:
            kwargs = {key: value for key, value in kwargs.items() if key not in outs}
        result = self.call_operator(info.functional, args, kwargs)
        results = result if isinstance(result, tuple | list) else (result,)
        for target, new in zip(targets, results[-len(targets) :], strict=True):
            entry = self._memory.find(target)
            assert entry is not None
            if not may_be_same(new.shape, target.shape):
                raise self.located(
                    UnsupportedOperatorError(
                        f"{info.name} writes a tensor of shape {tuple(new.shape)} into one of "
                        f"shape {tuple(target.shape)}; give out= the result's shape"
                    )
                )
            if new.dtype != target.dtype:
                new = self.call_operator(
                    torch.ops.aten._to_copy.default, (new,), {"dtype": target.dtype}
                )
            self._write(entry, self.value(new))
        # What is written need not be returned: running statistics, noise.
        returned = operator._schema.returns
        fresh = bool(returned) and returned[0].alias_info is None
        given = list(results if fresh else targets)[: len(returned)]
        return given[0] if len(given) == 1 else tuple(given)

    def _write(self, entry: Entry, value: Value) -> None:
        if entry.storage.unwritable:
            raise self.located(UnsupportedOperatorError(entry.storage.unwritable))
        self._memory.write(entry, value)

    def _write_gap(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: Any,
        targets: list[torch.Tensor],
    ) -> Any:
        """Let what an unconvertible operator wrote have values that raise when they are read."""
        random = draws_random(operator, args, kwargs)
        call = self._call(info.name, None, args, kwargs)
        call.problem = UnsupportedOperatorError(
            RANDOM if random else "it writes to a traced tensor in place, and has no other form"
        )
        self.graph.calls.append(call)
        for index, target in enumerate(targets):
            entry = self._memory.find(target)
            assert entry is not None
            self._write(entry, Value(self._alias(entry.fake), call, index))
        return targets[0]

    def _change_metadata(
        self, operator: OpOverload, info: OperatorInfo, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        target = args[0]
        entry = self._memory.find(target)
        if info.functional is None or entry is None or target is not entry.fake:
            raise self.located(UnsupportedOperatorError(f"{info.name} on a traced tensor"))
        value = self.value(target)
        with self.paused():
            old = torch.ops.aten.alias.default(target)
            operator(*args, **kwargs)
        # Calls already recorded refer to the tensor as it was.
        for known in (value, entry.made):
            if known.tensor is target:
                known.tensor = old
                if known.call is not None:
                    known.call.output = map_tree(
                        lambda x: old if x is target else x, known.call.output
                    )
        arguments = (old, *args[1:])
        functional, name = info.functional, operator_info(info.functional).name
        view = self._view(name, functional, arguments, kwargs, old)
        self._memory.change_metadata(entry, old, self._refresh(view, value), view)
        return target

    # -- recording ---------------------------------------------------------------------------------

    def _call(self, name: str, converter: Converter | None, args: Any, kwargs: Any) -> Call:
        origin = self._decomposing[0] if self._decomposing else ""
        origin = "" if origin == name else origin
        call = Call(name, converter, (), {}, self.scopes[-1], self.location(), origin)
        try:
            call.args, call.kwargs = map_tree(self._lift, (args, kwargs))
        except T2TError as error:
            call.problem = error
        return call

    def _origin(self, name: str) -> str:
        """Name the operator that the model called, without its overload."""
        return (self._decomposing[0] if self._decomposing else name).partition(".")[0]

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
            return
        view = View(
            call.name, function, call.converter, call.args, call.kwargs, parent.value, value.index
        )
        self._memory.add_view(x, value, parent, view)

    def _alias(self, x: torch.Tensor) -> torch.Tensor:
        with self.paused():
            return torch.ops.aten.alias.default(x)  # type: ignore[no-any-return]

    # -- views and writes --------------------------------------------------------------------------

    def _view(
        self, name: str, operator: OpOverload, args: Any, kwargs: Any, source: torch.Tensor
    ) -> View:
        if operator is torch.ops.aten.as_strided.default:
            with self.paused():
                view = operator(*args, **kwargs)
            name, function, converter, rest = self._elements(source, view)
            return View(name, function, converter, (source, rest), {}, source)
        return View(name, operator, registry.find_operator(operator), args, kwargs, source)

    def _refresh(self, view: View, parent: Value) -> Value:
        # A value that was written may have other strides than the tensor had.
        function = REPLAYED.get(view.function, view.function)
        if not isinstance(parent.tensor, FakeTensor):
            args, kwargs = view.on(parent.tensor)
            result = function(*args, **kwargs)
            result = result[view.index] if isinstance(result, tuple | list) else result
            return Value(result)
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
        output = self._run(function, *plain)
        self.graph.calls.append(call)
        call.output = output
        index = iter(range(1 << 30))
        return map_tree(
            lambda x: Value(x, call, next(index)) if isinstance(x, torch.Tensor) else x, output
        )

    def _targets(self, info: OperatorInfo, args: Any, kwargs: Any) -> list[torch.Tensor]:
        found = []
        for position, name in zip(info.mutated_positions, info.mutated, strict=True):
            target = args[position] if position < len(args) else kwargs.get(name)
            if isinstance(target, torch.Tensor):
                found.append(target)
        return found

    def _promote(self, target: torch.Tensor, operator: str) -> None:
        """Let a constant tensor become a traced one, as a traced value is written to it."""
        try:
            chain = list(self.constants.promote(target, operator))
        except UnsupportedOperatorError as error:
            raise self.located(error) from None
        with self.paused():
            for tensor, parent, view in chain:
                if view is None or parent is None:
                    fake = self.mode.from_tensor(tensor, static_shapes=True)
                    self._memory.add_root(tensor, Value(tensor.detach().clone()), fake)
                    continue
                entry = self._memory.find(parent)
                assert entry is not None
                value = self._refresh(view, entry.value)
                args, kwargs = view.on(entry.fake)
                made = view.function(*args, **kwargs)
                fake = made[view.index] if isinstance(made, tuple | list) else made
                self._memory.add_view(tensor, value, entry, view, fake)

    # -- errors ------------------------------------------------------------------------------------

    def located(self, error: T2TError) -> T2TError:
        """Add the user's line and the module to an error's text."""
        location = self.location()
        where = [f"at {location}"] if location else []
        where += [f"in module {self.scopes[-1]!r}"] if self.scopes[-1] else []
        return type(error)(" ".join([str(error), *where]))


def _draws(operator: OpOverload, functional: OpOverload) -> bool:
    """Say whether an operator draws random numbers, and no converter says when it does not."""
    random = torch.Tag.nondeterministic_seeded in operator.tags
    return random and registry.find_operator(functional) is None


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every operator that reaches the dispatcher to a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracer = tracer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled during a trace, and torch's wrapper would import its compiler.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        return self._tracer.call_operator(func, args, kwargs or {})
