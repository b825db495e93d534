"""Records calls as a graph of values, and knows which value each tensor has now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from t2t import registry
from t2t.errors import (
    ConversionError,
    StateError,
    T2TError,
    UnsupportedOperatorError,
)
from t2t.isolation import Interrupts, storage_key
from t2t.precision import Cast
from t2t.registry import Converter, Precision
from t2t.sizes import expression, has_symbol
from t2t.sizes.expressions import EXACT, symbols_of
from t2t.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    writes_counted,
)
from t2t.tracing.constants import Constants
from t2t.tracing.graph import Call, Graph, Location, Value, map_tree
from t2t.tracing.locations import module_location, user_location
from t2t.tracing.memory import Entry, Memory, View, view_of_elements
from t2t.tracing.operators import operator_info

UNSEEN = (
    "a tensor that depends on the input was made where t2t does not see it (kept from an earlier "
    "call, or made inside a converted function or one that a loop or a branch runs)"
)

_NUMBER = "the model reads a number of it, which an engine cannot give to Python"

aten = torch.ops.aten


class Recorder:
    """Turns the calls of one forward pass, in one thread, into a `Graph`.

    Args:
        mode: the mode of the fake tensors that stand for the inputs.
        state: names of the module's parameters and buffers, which a trace must not change.
        boundary: code of the function that calls the user's module.
        perform: makes a call so that it is recorded, ``perform(function, args, kwargs)``.
    """

    def __init__(
        self,
        mode: FakeTensorMode,
        state: dict[str, torch.Tensor],
        boundary: CodeType,
        perform: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        self.mode = mode
        self.interrupts = Interrupts()
        self.boundary = boundary
        self.graph = Graph()
        self.constants = Constants(state)
        self.memory = Memory(self.apply)
        self.scopes = [""]
        """Paths of the modules that the forward pass is in, innermost last."""
        self.failure: tuple[BaseException | None, str] = (None, "")
        """The last exception that left a module, and that module."""
        self.autocast: list[bool] = []
        """The regions of torch.autocast that the forward pass is in: whether each is enabled."""
        self.formulas: list[str] = []
        """The operators whose formulas run now, outermost first."""
        self.precision: Precision | None = None
        """How the parts of the formula that runs now are computed, if it says so."""
        self.is_paused = False
        self.state_errors: list[T2TError] = []
        """What is raised at the end: writes to tensors that outlive the forward pass."""
        self.refusal: T2TError | None = None
        """What the model was refused first: its own handlers may have caught it."""
        self._cast: Cast | None = None
        # Tensors, kept by `memory`, that are one to the model: casts that did nothing.
        self._same: set[int] = set()
        self._thread = threading.get_ident()
        self._perform = perform

    # -- where the forward pass is -----------------------------------------------------------------

    def is_active(self) -> bool:
        """Return whether calls of this thread are to be recorded now."""
        return not self.is_paused and threading.get_ident() == self._thread

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let torch run as it is, to compute the shapes of results."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def location(self) -> Location | None:
        """Return the user's line that runs now."""
        return user_location(self.boundary)

    def deciding_location(self) -> Location | None:
        """Return the user's line that runs now, or torch's own where the model has none."""
        return self.location() or module_location(self.boundary)

    def located(self, error: T2TError) -> T2TError:
        """Return an error with the user's line and the module in its text."""
        location = self.location()
        where = [f"at {location}"] if location else []
        where += [f"in module {self.scopes[-1]!r}"] if self.scopes[-1] else []
        result = type(error)(" ".join([str(error), *where]))
        result.__dict__.update(error.__dict__)
        if isinstance(result, ConversionError):
            result.located = True
        return result

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Add the user's line to what is refused inside the ``with`` block."""
        try:
            yield
        except UnsupportedOperatorError as error:
            if error.located:
                raise
            raise self.located(error) from None

    def refused(self, error: T2TError) -> T2TError:
        """Note what leaves t2t for the model, and return it."""
        if not self.formulas and not self.is_paused:
            self.refusal = self.refusal or error
        return error

    def origin(self, name: str) -> str:
        """Return the operator that the model called, without its overload."""
        name = self.formulas[0] if self.formulas else name
        return name.partition(".")[0] if "::" in name else name

    # -- values ------------------------------------------------------------------------------------

    def is_traced(self, x: Any) -> bool:
        """Return whether a tensor depends on the inputs, or was written with what does."""
        if isinstance(x, FakeTensor):
            return x.fake_mode is self.mode
        return isinstance(x, torch.Tensor) and self.constants.is_promoted(x)

    def add_input(self, tensor: torch.Tensor) -> Value:
        """Note a fake tensor as the next network input."""
        value = Value(tensor)
        self.memory.add_root(tensor, value)
        self.graph.inputs.append(value)
        return value

    def value(self, x: torch.Tensor) -> Value:
        """Return the value that a tensor has now.

        Raises:
            ConversionError: it is not known.
        """
        if not isinstance(x, FakeTensor) and not self.constants.is_promoted(x):
            return self.constants.value(x, self.location)
        return self.memory.read(self._entry(x))

    def fakes(self, args: Any) -> Any:
        """Replace constants that traced values were written to by their fake tensors."""
        return map_tree(self.fake, args) if self.constants.promoted else args

    def fake(self, x: Any) -> Any:
        """Return the fake tensor that stands for a traced tensor; what else is given, as it is."""
        if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) and self.is_traced(x):
            with self.locating():
                return self._entry(x).fake
        return x

    def _entry(self, x: torch.Tensor) -> Entry:
        entry = self.memory.find(x)
        if entry is None:
            raise UnsupportedOperatorError(UNSEEN)
        return entry

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record a call on values; return what it gives as values.

        This is how views are taken again of what was written, and how a write to a view finds its
        way into the whole: by the same operators that a model may call, in terms of values.
        """

        def stand_in(x: Any) -> Any:
            if not isinstance(x, Value):
                return x
            if not isinstance(x.tensor, FakeTensor):
                return self.constants.stand_in(x)
            tensor = self.alias(x.tensor)
            self.memory.add_root(tensor, x)
            return tensor

        args, kwargs = map_tree(stand_in, (args, kwargs))
        result = self._perform(function, args, kwargs)
        return map_tree(lambda x: self.value(x) if isinstance(x, torch.Tensor) else x, result)

    def alias(self, x: torch.Tensor) -> torch.Tensor:
        """Return another fake tensor of a tensor's memory; nothing is recorded."""
        with self.paused():
            return aten.alias.default(self.fake(x))  # type: ignore[no-any-return]

    # -- functions of loops and branches -----------------------------------------------------------

    @contextmanager
    def body(
        self, shapes: Iterable[Sequence[Any]] = (), likes: Iterable[torch.Tensor] = ()
    ) -> Iterator[tuple[Graph, list[torch.Tensor]]]:
        """Record what a function does, that a network runs in a loop or a branch, apart.

        Args:
            shapes: the shapes of its arguments.
            likes: tensors of the types of its arguments.

        Yields:
            The graph, whose output is to be set before the end, and the arguments.
        """
        outer, self.graph.calls = self.graph.calls, []
        try:
            with self.memory.body(), self.constants.body():
                arguments = [self.empty(*pair) for pair in zip(shapes, likes, strict=True)]
                values = [Value(x) for x in arguments]
                for x, value in zip(arguments, values, strict=True):
                    self.memory.add_root(x, value)
                    # A write to an argument would be one to a tensor from outside.
                    self.memory[x].storage.depth -= 1
                yield Graph(values, self.graph.calls), arguments
        finally:
            self.graph.calls = outer

    def note_results(self, values: Iterable[Value]) -> None:
        """Let what such a function gave be read, as its calls become a part of the outer graph."""
        for value in values:
            if isinstance(value.tensor, FakeTensor) and self.memory.find(value.tensor) is None:
                self.memory.add_root(value.tensor, value)

    def empty(self, shape: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor of some shape, and of the type and device of another tensor."""
        of = {"dtype": like.dtype, "device": like.device}
        return self.run(torch.empty, (tuple(shape),), of)  # type: ignore[no-any-return]

    # -- calls -------------------------------------------------------------------------------------

    def call(self, name: str, converter: Converter | None, args: Any, kwargs: Any) -> Call:
        """Return a call on the values that tensors have now, which is not in the graph yet."""
        formulas = tuple(self.formulas)
        call = Call(name, converter, (), {}, self.scopes[-1], self.location(), formulas)
        call.precision = self.precision
        try:
            call.args, call.kwargs = map_tree(
                lambda x: self.value(x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
            )
            call.cast = self._stated_cast()
        except T2TError as error:
            call.problem = error
        return call

    def _stated_cast(self) -> Cast | None:
        """Return what the model says of precision where it makes a call."""
        cast = self._cast
        if cast is not None and cast.like is not None:
            return Cast("like", self.value(cast.like))
        off = self.autocast and not self.autocast[-1]
        return Cast("region") if cast is None and off else cast

    def note_cast(self, x: torch.Tensor, cast: Cast) -> torch.Tensor:
        """Return an alias of a float32 tensor that stands for it after a cast to float32."""
        if not self.is_traced(x):
            return self.constants.cast(x, cast)
        self._cast = cast
        try:
            alias: torch.Tensor = aten.alias.default(x)
        finally:
            self._cast = None
        self._same |= {id(x), id(alias)}
        return alias

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute the fake result of a call."""
        try:
            # Ctrl-C while PyTorch leaves its mode would leave that active for good.
            with self.interrupts.held(), self.paused(), self.mode:
                return function(*self.fakes(args), **self.fakes(kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            refused = UnsupportedOperatorError(
                f"{error.func}: its shape or value depends on the data, which TensorRT needs to "
                "know when the engine is built; with partial=True it stays in PyTorch if its size "
                "has a bound"
            )
            chosen = error.func in (aten.nonzero.default, aten.masked_select.default)
            refused.by_mask = chosen and function is not aten.nonzero.default
            raise self.located(refused) from error

    def register(
        self,
        call: Call,
        function: Callable[..., Any] | None,
        output: Any,
        traced: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> Any:
        """Put a call into the graph; return its outputs as the caller gets them.

        Args:
            call: the call.
            function: what was called.
            output: the fake tensors that it gave.
            traced: its traced arguments.
            written: those of them that it wrote to in place.
        """
        call.function = function
        self.graph.calls.append(call)
        owners = {storage_key(self.fake(x)): x for x in traced}
        values: list[Value] = []
        returned: set[int] = set()

        def note(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            entry = self.memory.find(x)
            if entry is not None:
                alias = self.alias(x)
                if any(entry.fake is self.fake(target) for target in written):
                    values.append(Value(alias, call, len(values)))
                    returned.add(id(entry))
                    entry.storage.counts += writes_counted(x) - min(entry.versions)
                    self.write(x, values[-1])
                    return x
                # An argument returned as it is: the result is a value of its own all the same.
                x = alias
            values.append(Value(x, call, len(values)))
            self._note_output(x, values[-1], function, owners.get(storage_key(x)))
            return x

        if isinstance(output, torch.Tensor):  # as most are; a walk over trees takes its time
            result = note(output)
            call.output = values[0].tensor
        else:
            result = map_tree(note, output)
            tensors = iter(values)
            call.output = map_tree(
                lambda x: next(tensors).tensor if isinstance(x, torch.Tensor) else x, output
            )
        if written and any(id(self.memory.find(x)) not in returned for x in written):
            raise self.located(
                UnsupportedOperatorError(f"{call.name} changes an argument in place")
            )
        return result

    def _note_output(
        self,
        x: torch.Tensor,
        value: Value,
        function: Callable[..., Any] | None,
        source: torch.Tensor | None,
    ) -> None:
        call = value.call
        parent = None if source is None else self.memory.find(source)
        assert call is not None
        if parent is not None and call.problem is None:
            assert function is not None
            view = View(function, call.args, call.kwargs, parent.value, value.index)
            self.memory.add_view(x, value, parent, view)
            return
        self.memory.add_root(x, value)
        why: object = call.problem or "an operator whose views t2t does not know"
        if parent is None:
            if not isinstance(function, OpOverload) or not operator_info(function).is_view:
                return
            why = "a constant cut to a dynamic size; build the result with torch.cat or F.pad"
        text = f"a write into a view by {call.name}: {why}"
        self.memory[x].storage.unwritable = UnsupportedOperatorError(text)

    def read_number(self, x: torch.Tensor) -> Any:
        """Return the number in a traced tensor, an integer as a size that depends on the data.

        None where such sizes are refused, and where it is a bool or complex.
        """
        new_size = getattr(self.mode, "new_size", None)
        if new_size is None or x.dtype == torch.bool or x.is_complex():
            return None
        if x.dtype.is_floating_point:
            number = new_size("item", 1, 2)  # the example is 1, of which most functions are known
            [symbol] = symbols_of(expression(number))
            value = self.value(self._in_pytorch(aten.clone.default, x))
            self.graph.numbers[symbol] = (value, value)
            env: Any = self.mode.shape_env
            return env.real(number)
        limits = torch.iinfo(x.dtype)
        # Of larger ones too little can be proved; the converted module raises.
        number = new_size("item", max(limits.min, -EXACT), min(limits.max, EXACT))
        [symbol] = symbols_of(expression(number))

        held = self._in_pytorch(aten.clone.default, x)
        size = [number - symbol.low]
        sized = self._in_pytorch(aten.new_empty.default, held, size, dtype=torch.bool)
        self.graph.numbers[symbol] = (self.value(held), self.value(sized))
        return number

    def _in_pytorch(self, operator: OpOverload, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Record an operator that no engine holds."""
        call = self.call(operator_info(operator).name, None, args, kwargs)
        call.problem = UnsupportedOperatorError(_NUMBER)
        output = self.run(operator, args, kwargs)
        return self.register(call, operator, output, [], [])  # type: ignore[no-any-return]

    # -- views and writes --------------------------------------------------------------------------

    def write(self, x: torch.Tensor, value: Value) -> None:
        """Let a traced tensor, and with it all that share its memory, have a new value."""
        with self.locating():
            self.memory.write(self._entry(x), value)

    def note_maybe_shared(self, x: torch.Tensor, copy: torch.Tensor) -> None:
        """Note that two traced tensors may share memory, or not."""
        self.memory[x].storage.note_maybe_shared(self.memory[copy].storage)

    def view(self, operator: OpOverload, args: Any, kwargs: Any, source: torch.Tensor) -> View:
        """Return how a view comes from its source; one of memory takes elements instead."""
        if operator is aten.as_strided.default:
            with self.paused():
                return self.view_of_elements(source, operator(*args, **kwargs))
        return View(operator, args, kwargs, source)

    def view_of_elements(self, source: torch.Tensor, x: torch.Tensor) -> View:
        """Return a view by which elements of its source it shows."""
        view = view_of_elements(source, x)
        self.constants.note_made(view.args, [source])
        return view

    def strided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Record a view of a traced tensor's memory, by the arguments of ``as_strided``."""
        output: torch.Tensor = self.run(aten.as_strided.default, args, kwargs)
        entry = self.memory[args[0]]
        with self.locating():
            view = self.view_of_elements(entry.fake, output)
        value = self.memory.view(view, self.value(args[0]))
        self.memory.add_view(output, value, entry, view)
        return output

    def view_at(self, x: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
        """Record the view of a tensor at a traced index: one element (0-d), or several in a row.

        In memory the view lies at the first elements; which ones it shows, only its value says.
        """
        operator = aten.index.Tensor
        name = operator_info(operator).name
        unwritable = None
        if not self.is_traced(x):
            try:
                self._promote(self.constants.promote(x, name))
            except UnsupportedOperatorError as error:
                unwritable = error
        indices = [None] * axis + [index]
        call = self.call(name, registry.find_operator(operator), (x, indices), {})
        if index.ndim:
            output = self.run(aten.narrow.default, (x, axis, 0, index.shape[0]), {})
        else:
            output = self.run(aten.select.int, (x, axis, 0), {})
        result: torch.Tensor = self.register(call, operator, output, [x], [])
        self.memory[result].storage.unwritable = unwritable
        return result

    def is_resizable(self, x: torch.Tensor) -> bool:
        """Return whether ``out=`` gives a tensor the result's shape: an empty constant."""
        return not self.is_traced(x) and self.constants.is_resizable(x)

    def promote(self, target: torch.Tensor, operator: str) -> None:
        """Let a constant tensor become a traced one, as a traced value is written to it.

        The trace goes on where that is state, to find all of it, and its errors wait for its end.
        """
        try:
            self.constants.check_written(target)
            try:
                self._promote(self.constants.promote(target, operator))
            except StateError as error:
                self._promote(self.constants.promote(target, operator, may_be_kept=True))
                self.state_errors.append(self.located(error))
        except UnsupportedOperatorError as error:
            raise self.located(error) from error

    def _promote(
        self, chain: Iterator[tuple[torch.Tensor, torch.Tensor | None, View | None]]
    ) -> None:
        for tensor, parent, view in [*chain]:
            if view is None or parent is None:
                with self.paused():
                    fake = self.mode.from_tensor(tensor, static_shapes=True)
                    self.memory.add_root(tensor, Value(tensor.detach().clone()), fake)
                continue
            entry = self.memory[parent]
            value = self.memory.view(view, entry.value)
            args, kwargs = view.on(entry.fake)
            with self.paused():
                fake = view.pick(view.function(*args, **kwargs))
            self.memory.add_view(tensor, value, entry, view, fake)

    def change_metadata(
        self, operator: OpOverload, functional: OpOverload, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        """Change the shape of a traced tensor in place, as ``transpose_`` does.

        Args:
            operator: the operator.
            functional: the one that returns what it makes of its first argument.
            args: their arguments.
            kwargs: their keyword arguments.
        """
        target = args[0]
        if id(target) in self._same:
            text = (
                f"{operator_info(operator).name} changes the shape of a tensor in place that a "
                "cast returned as it was, so that it has two names; use the form that returns "
                "a new tensor (without the underscore)"
            )
            raise self.located(UnsupportedOperatorError(text))
        entry = self.memory[target]
        value = self.value(target)
        old, fake = entry.fake, target
        with self.paused():
            if target is old:
                old = aten.alias.default(target)
                if has_symbol(tuple(target.shape)):
                    # Dynamic tensors have no memory, for which torch looks here; none is taken.
                    target.untyped_storage().resize_(1 << 40)
                self._rename((value, entry.made), target, old)
            else:
                fake = functional(old, *args[1:], **kwargs)
            operator(*args, **kwargs)
        view = self.view(functional, (old, *args[1:]), kwargs, old)
        changed = self.memory.view(view, value)
        self.memory.change_metadata(entry, old, fake, changed, view)

    def _rename(self, values: Iterable[Value], tensor: torch.Tensor, old: torch.Tensor) -> None:
        """Let calls already recorded refer to a tensor as it was before it changed its shape."""
        for value in values:
            if value.tensor is tensor:
                value.tensor = old
                if value.call is not None:
                    value.call.output = map_tree(
                        lambda x: old if x is tensor else x, value.call.output
                    )
