"""What happens to every call of a forward pass: recorded, decomposed, or just run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import CodeType
from typing import Any

import torch

from t2t import registry
from t2t.errors import ConversionError, T2TError, UnsupportedArgumentError, UnsupportedOperatorError
from t2t.float32 import default_dtype
from t2t.isolation import storage_key
from t2t.registry import Converter, Formula
from t2t.sizes import has_symbol
from t2t.torch_internals import (
    DispatchMode,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    is_traceable_wrapper_subclass,
    schema_of,
    writes_counted,
)
from t2t.tracing.control_flow import HIGHER_ORDER, NO_LOOPS
from t2t.tracing.graph import Value, tree_leaves
from t2t.tracing.kinds import COMPLEX, QUANTIZED, is_wrapped, unsupported_kind
from t2t.tracing.locations import called_function
from t2t.tracing.masks import Masks
from t2t.tracing.memory import View, may_be_same
from t2t.tracing.mistakes import mistake
from t2t.tracing.observers import FUSED, without_observer
from t2t.tracing.operators import (
    DECISIONS,
    PAIRS,
    OperatorInfo,
    complex_ways,
    draws_random,
    operator_info,
    ways,
)
from t2t.tracing.recorder import Recorder

NUMBERS = (
    "the model needs the value of a tensor that depends on its input (.item(), float(x), "
    "if x > 0, ...), which an engine cannot give to Python; use torch.where"
)

RANDOM = (
    "it draws random numbers, which an engine cannot; call .eval() on the module, or pass the "
    "numbers in as an input"
)

NO_CONVERTER = (
    "this operator has no converter; leave it in PyTorch with partial=True, or write one with "
    "@t2t.converter({name!r})"
)

_BY_OFFSET = (
    torch.ops.aten.as_strided,
    torch.ops.aten.as_strided_,
    torch.ops.aten.as_strided_scatter,
)


LINEAR = "torch.nn.functional.linear"


class ValueNeeded(BaseException):
    """The value of a traced tensor is asked for; a trace that sees functions may do without it.

    No `Exception`, because the model's own handlers are to let it pass.
    """


class Tracer:
    """Takes the calls of patched functions and of operators, for one forward pass in one thread.

    Args:
        mode: the mode of the fake tensors that stand for the inputs.
        state: names of the module's parameters and buffers, which a trace must not change.
        boundary: code of the function that calls the user's module.

    Attributes:
        recorder: what they are recorded by.
        dispatch_mode: shows operators to the tracer where it is entered.
        function_mode: shows it functions before, where ``sees_functions``.
    """

    def __init__(
        self, mode: FakeTensorMode, state: dict[str, torch.Tensor], boundary: CodeType
    ) -> None:
        self.recorder = Recorder(mode, state, boundary, self._perform)
        self.dispatch_mode = _DispatchMode(self)
        self._masks = Masks(self.recorder)
        self.function_mode: AbstractContextManager[Any] = nullcontext()
        self.sees_functions = False
        """Whether calls are seen before torch takes them apart into operators."""
        self.needs_value = False
        """Whether that would have shown what the value of a traced tensor is needed for."""
        self.originals: dict[Any, Any] = {}
        """The functions that stand behind the patched ones."""
        # The operators whose formulas run now, and whether these are of complex numbers.
        self._running: list[tuple[str, bool]] = []

    def call_function(
        self,
        name: str,
        converter: Converter,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a patched function, or just make it where nothing traced goes in."""
        if not self.recorder.is_active():
            return original(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        if any(is_wrapped(x) for x in tensors):
            # torch.func takes its wrappers off before the function's own operators arrive.
            return original(*args, **kwargs)
        traced = [x for x in tensors if self.recorder.is_traced(x)]
        if not traced and not has_symbol((args, tuple(kwargs.values()))):
            output = original(*args, **kwargs)
            self.recorder.constants.note_steps(output, name, args, kwargs)
            return output
        try:
            if name == LINEAR and any(is_traceable_wrapper_subclass(x) for x in tensors):
                args = self._with_plain_weight(original, args)
            return self._record_function(name, converter, original, args, kwargs, traced)
        except UnsupportedArgumentError as error:
            if error.located:
                raise
            # A rule for shapes that gives up.
            text = f"{self.recorder.origin(name)}: {error}"
            raise self.recorder.located(type(error)(text)) from None
        except T2TError:
            raise
        except Exception as error:  # noqa: BLE001  PyTorch raises any
            raise self._mistake(name, original, args, kwargs) or error from None

    def _with_plain_weight(
        self, original: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Let torchao's weights, which are made of other tensors, be what they stand for."""
        if len(args) < 2 or not is_traceable_wrapper_subclass(args[1]):
            return args
        x, weight, *rest = args
        with self.recorder.paused():
            return (x, self.recorder.constants.plain_weight(weight, original), *rest)

    def _record_function(
        self,
        name: str,
        converter: Converter,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: list[torch.Tensor],
    ) -> Any:
        given = _tensors((args, kwargs))
        self._check_kinds(name, given)
        if kwargs.get("out") is not None or any(x.is_complex() for x in given):
            # What is written where, its operators say; and they have formulas of complex numbers.
            return original(*args, **kwargs)
        if "out" not in converter.signature.parameters:
            kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        call = self.recorder.call(name, converter, args, kwargs)
        before = {id(x): writes_counted(self.recorder.fake(x)) for x in traced}
        try:
            converter.signature.bind(None, *args, **kwargs)
        except TypeError as error:
            call.problem = UnsupportedArgumentError(f"{error} (in {converter.qualified_name})")
            output = self.recorder.run(original, args, kwargs)
        else:
            output = self.recorder.run(converter.meta or original, args, kwargs)
        if output is NotImplemented:
            refused = self._mistake(name, original, args, kwargs)
            if refused is not None:
                raise refused
            # The function's own operators arrive one by one.
            return original(*args, **kwargs)
        written = [x for x in traced if writes_counted(self.recorder.fake(x)) != before[id(x)]]
        return self.recorder.register(call, original, output, traced, written)

    def call_outermost(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Take an operator from the dispatcher: the model's own, or a part of a formula."""
        try:
            return self.call_operator(operator, args, kwargs)
        except ConversionError as error:
            if self.recorder.formulas or error.located:
                raise
            # A formula that gives up.
            name = operator_info(operator).name
            raise self.recorder.located(type(error)(f"{name}: {error}")) from None
        except T2TError:
            raise
        except Exception as error:
            if self.recorder.formulas or self.recorder.is_paused:
                raise
            name = operator_info(operator).name
            raise self._mistake(name, operator, args, kwargs) or error from None

    def call_operator(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record an operator that reached the dispatcher, or just run it on constants."""
        if self.recorder.is_paused or operator.namespace == "prim":
            return operator(*args, **kwargs)
        info = operator_info(operator)
        tensors = _tensors((args, kwargs))
        if not any(self.recorder.is_traced(x) for x in tensors):
            random = draws_random(operator, args, kwargs)
            if not random and not has_symbol((args, tuple(kwargs.values()))):
                return self._run_constant(operator, info, args, kwargs, tensors)
        if operator is torch.ops.aten._local_scalar_dense.default:
            self.need_functions()
            number = self.recorder.read_number(args[0])
            if number is None:
                raise self.recorder.located(UnsupportedOperatorError(NUMBERS))
            return number
        if operator is torch.ops.aten._cudnn_rnn.default:
            # The memory in which cudnn has the weights, which are arguments themselves.
            args = (*args[:3], None, *args[4:])
            tensors = _tensors((args, kwargs))
        self._check_kinds(info.name, tensors)
        if operator is FUSED:
            return self.call_operator(*without_observer(*args, **kwargs), {})
        if operator in DECISIONS:
            DECISIONS[operator](*args, **kwargs)
        if operator.overloadpacket in _BY_OFFSET:
            self._check_offset(args, kwargs)
        if self._masks.take(operator) and not registry.is_users(operator):
            with self.dispatch_mode:
                args = self._masks.unified(operator, args)
            way = Formula(functools.partial(self._masks.put, operator), (), "follow")
            result = self._decompose(info, way, args, kwargs, False)
            if result is not NotImplemented:
                return result
        if info.mutated:
            return self._call_mutating(operator, info, args, kwargs)
        return self._call_functional(operator, info, args, kwargs, tensors)

    def need_functions(self) -> None:
        """Return up where a trace that sees functions may find another way."""
        if not self.sees_functions:
            self.needs_value = True
            raise ValueNeeded

    def _mistake(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Exception | None:
        """Return what PyTorch says of a call, where it refuses it."""
        if not name.startswith(("torch.", "aten::")):
            return None
        with self.recorder.paused():
            return mistake(function, *self.recorder.fakes((args, kwargs)))

    def call_higher_order(
        self, operator: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record an operator that takes functions, which may read traced tensors themselves."""
        name = str(operator).removesuffix("_impl")
        if name in HIGHER_ORDER:
            # PyTorch has left both modes to ask them.
            with self.recorder.locating(), self.dispatch_mode, self.function_mode:
                return HIGHER_ORDER[name](self.recorder, *args, **kwargs)
        if any(self.recorder.is_traced(x) for x in tree_leaves((args, kwargs))):
            raise self.recorder.located(UnsupportedOperatorError(NO_LOOPS.format(name=name)))
        return operator(*args, **kwargs)

    def _check_kinds(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        """Raise where an argument or result is none that a network can have."""
        for x in tensors:
            kind = unsupported_kind(x)
            if kind:
                text = f"{self.recorder.origin(name)}: {kind}"
                raise self.recorder.located(UnsupportedOperatorError(text))

    def _run_constant(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: Any,
        tensors: list[torch.Tensor],
    ) -> Any:
        constants = self.recorder.constants
        with self.recorder.locating():
            constants.check_read(tensors)
            for target in self._targets(info, args, kwargs):
                constants.check_written(target)
                constants.before_write(target)
        output = operator(*args, **kwargs)
        if operator is torch.ops.aten.lift_fresh.default:
            # The first that is heard of torch.tensor([1, 2]), and of torch.from_numpy(array).
            if args[0].untyped_storage().resizable():
                constants.note_made(output, [])
            else:
                constants.note_foreign(output)
            return output
        constants.note_made(output, tensors)
        constants.note_steps(output, operator, args, kwargs)
        if info.changes_metadata:
            constants.note_changed_metadata(args[0])
        if info.mutated:
            return output
        constants.note_kinds(output, tensors)
        if args and isinstance(args[0], torch.Tensor):
            self._note_view(operator, info, args, kwargs, output)
        return output

    def _note_view(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: Any,
        output: Any,
    ) -> None:
        """Remember what shares the memory of the constant that an operator took."""
        source = args[0]
        # torch.unsafe_split and its like do not say that they give views.
        shares = any(
            isinstance(x, torch.Tensor) and storage_key(x) == storage_key(source)
            for x in tree_leaves(output)
        )
        if not info.is_view and not shares:
            return

        def view(x: torch.Tensor) -> View:
            if isinstance(output, torch.Tensor):
                return self.recorder.view(operator, args, kwargs, source)
            return self.recorder.view_of_elements(source, x)

        self.recorder.constants.note_view(output, source, view)

    def _call_functional(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        random = draws_random(operator, args, kwargs)
        is_complex = operator not in PAIRS and _is_complex(operator, args, kwargs, tensors)
        # Where a formula leads back to its operator, there is none.
        plain = not random and (info.name, is_complex) not in self._running
        converter, output, problem = None, NotImplemented, ""
        refusal: ConversionError | None = None
        for way in complex_ways(operator) if is_complex else ways(operator):
            if isinstance(way, Formula):
                result = NotImplemented
                try:
                    if plain:
                        result = self._decompose(info, way, args, kwargs, is_complex)
                except (UnsupportedArgumentError, UnsupportedOperatorError) as error:
                    if self.recorder.formulas or error.located:
                        raise
                    # The call may be left to PyTorch, or its result be unused.
                    refusal = error
                    break
                if result is not NotImplemented:
                    problem = self._disagreement(operator, args, kwargs, tensors, result)
                    if problem:
                        break
                    if is_complex and info.is_view and self.recorder.is_traced(args[0]):
                        self._note_views(args[0], result)
                    return result
                continue
            if way.meta is not None:
                output = self.recorder.run(way.meta, args, kwargs)
            if way.meta is None or output is not NotImplemented:
                converter = way
                break
        if operator is torch.ops.aten.as_strided.default and not is_complex:
            return self.recorder.strided(args, kwargs)
        call = self.recorder.call(info.name, converter, args, kwargs)
        try:
            if output is NotImplemented:
                output = self.recorder.run(operator, args, kwargs)
        except Exception:
            if refusal is not None:
                raise refusal from None
            raise
        results = _tensors(output)
        self._check_kinds(info.name, results)
        if converter is None and (is_complex or any(x.is_complex() for x in results)):
            call.problem = refusal or UnsupportedOperatorError(COMPLEX)
        elif converter is None and call.problem is None:
            text = problem or (RANDOM if random else self._no_converter(operator, info))
            call.problem = refusal or UnsupportedOperatorError(text)
        traced = [x for x in tensors if self.recorder.is_traced(x)]
        return self.recorder.register(call, operator, output, traced, [])

    def _no_converter(self, operator: OpOverload, info: OperatorInfo) -> str:
        """Say under which name a converter would take this call."""
        if operator.namespace == "quantized" or info.name.startswith("aten::quantize_"):
            return QUANTIZED
        name = self.recorder.origin(info.name)
        called, by_name = called_function(self.recorder.boundary, name) or (name, True)
        note = "" if by_name else ", and call it by this name"
        return NO_CONVERTER.format(name=called) + note

    def _check_offset(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse an offset in memory that a tensor is to be read at, where its own is unknown."""
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        entries = [self.recorder.memory.find(x) for x in tensors[:1]]
        offset = kwargs.get("storage_offset", args[-1])
        given = offset is not None and not isinstance(offset, list | tuple)
        if given and any(entry and not entry.has_known_offset() for entry in entries):
            raise self.recorder.located(
                UnsupportedOperatorError(
                    "as_strided with a storage_offset, of a view at an index that depends on the "
                    "input; use slices"
                )
            )

    def _call_mutating(
        self, operator: OpOverload, info: OperatorInfo, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        targets = self._targets(info, args, kwargs)
        outs = {a.name for a in schema_of(operator).arguments if a.is_out}
        functional = info.functional
        if functional is not None and _draws(operator, functional):
            functional = None
        resized = {id(x) for x in targets if outs and functional and self.recorder.is_resizable(x)}
        for target in targets:
            if not self.recorder.is_traced(target) and id(target) not in resized:
                self.recorder.promote(target, info.name)
        if info.changes_metadata:
            if info.functional is None:
                text = f"{info.name} on a traced tensor"
                raise self.recorder.located(UnsupportedOperatorError(text))
            self.recorder.change_metadata(operator, info.functional, args, kwargs)
            return args[0]
        if functional is None:
            return self._write_gap(operator, info, args, kwargs, targets)
        if outs:
            kwargs = {key: value for key, value in kwargs.items() if key not in outs}
        result = self.call_operator(functional, args, kwargs)
        results = _tensors(result)
        for target, new in zip(targets, results[-len(targets) :], strict=True):
            if not outs and not may_be_same(new.shape, target.shape):
                raise RuntimeError(f"{info.name} gives another shape than its argument's")
            if id(target) in resized:
                if not has_symbol(tuple(new.shape)):
                    with self.recorder.paused():
                        target.resize_(new.shape)
                self.recorder.promote(target, info.name)
            if not may_be_same(new.shape, target.shape):
                raise self.recorder.located(
                    UnsupportedOperatorError(
                        f"{info.name} writes a tensor of shape {tuple(new.shape)} into one of "
                        f"shape {tuple(target.shape)}; give out= the result's shape"
                    )
                )
            if not torch.can_cast(new.dtype, target.dtype):
                raise RuntimeError(f"{info.name} gives {new.dtype}, and writes to {target.dtype}")
            if new.dtype != target.dtype:
                new = self.call_operator(
                    torch.ops.aten._to_copy.default, (new,), {"dtype": target.dtype}
                )
            self.recorder.write(target, self.recorder.value(new))
        # What is written need not be returned: running statistics, noise.
        returned = schema_of(operator).returns
        fresh = bool(returned) and returned[0].alias_info is None
        if not returned:
            return None
        given = list(results if fresh else targets)[: len(returned)]
        return given[0] if len(given) == 1 else tuple(given)

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
        # The form that does not write, in which PyTorch can run it, has no defaults.
        defaults = {
            a.name: a.default_value
            for a in schema_of(operator).arguments[len(args) :]
            if a.has_default_value()
        }
        call = self.recorder.call(info.name, None, args, {**defaults, **kwargs})
        call.problem = UnsupportedOperatorError(
            RANDOM if random else "it writes to a traced tensor in place, and has no other form"
        )
        call.function = info.functional
        self.recorder.graph.calls.append(call)
        written = []
        for index, target in enumerate(targets):
            written.append(self.recorder.alias(target))
            self.recorder.write(target, Value(written[-1], call, index))
        call.output = written[0] if len(written) == 1 else tuple(written)
        return targets[0]

    def _targets(self, info: OperatorInfo, args: Any, kwargs: Any) -> list[torch.Tensor]:
        found = [
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in zip(info.mutated_positions, info.mutated, strict=True)
        ]
        return _tensors(found)

    def _decompose(
        self, info: OperatorInfo, formula: Formula, args: Any, kwargs: Any, is_complex: bool
    ) -> Any:
        """Run the formula of an operator; its parts come back as operators."""
        self.recorder.formulas.append(info.name)
        self._running.append((info.name, is_complex))
        before = self.recorder.precision
        if formula.precision != "follow":
            self.recorder.precision = formula.precision
        try:
            with self.dispatch_mode, _as_given(formula, args, kwargs):
                return formula.function(*self.recorder.fakes(args), **self.recorder.fakes(kwargs))
        finally:
            self.recorder.formulas.pop()
            self._running.pop()
            self.recorder.precision = before

    def _note_views(self, source: torch.Tensor, results: Any) -> None:
        """Let torch count writes to what a formula has made of views of a tensor as it does.

        What is a copy is not read after a write to the tensor, or the other way round.
        """
        for x in tree_leaves(results):
            self.recorder.memory[x].versions += (writes_counted(source),)
            if storage_key(x) != storage_key(self.recorder.fake(source)):
                self.recorder.note_maybe_shared(source, x)

    def _disagreement(
        self,
        operator: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Iterable[torch.Tensor],
        result: Any,
    ) -> str:
        """Return how a formula's results have other types or shapes than the operator's own.

        Asked for the model's own calls, and not of dynamic sizes, on which torch's rules decide.
        """
        if self.recorder.formulas or has_symbol([tuple(x.shape) for x in tensors]):
            return ""
        try:
            with self.recorder.paused(), self.recorder.mode:
                wanted = operator(*self.recorder.fakes(args), **self.recorder.fakes(kwargs))
        except Exception:  # noqa: BLE001  what has no rule in PyTorch cannot be compared
            return ""
        found, expected = (
            [(x.dtype, tuple(x.shape)) for x in _tensors(out)] for out in (result, wanted)
        )
        return "" if found == expected else f"its formula gives {found}, and PyTorch {expected}"

    def _perform(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call that is none of the model's, so that it is recorded."""
        if isinstance(function, OpOverload):
            return self.call_operator(function, args, kwargs)
        with self.dispatch_mode:
            return function(*args, **kwargs)


class _DispatchMode(DispatchMode):
    """Hands every operator that reaches the dispatcher to a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracer = tracer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        try:
            if isinstance(func, HigherOrderOperator):
                return self._tracer.call_higher_order(func, args, kwargs or {})
            return self._tracer.call_outermost(func, args, kwargs or {})
        except T2TError as error:
            self._tracer.recorder.refused(error)
            raise


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in arguments or results."""
    if isinstance(tree, torch.Tensor):  # as most results are; a walk over trees takes its time
        return [tree]
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _as_given(formula: Formula, args: Any, kwargs: Any) -> AbstractContextManager[Any]:
    """Let a registered formula make its tables where the tensors are that it is given.

    And in float32 where one of them says what the result's type is, whatever the default is.
    """
    # PyTorch's own say so; and inside of such a context they would lead back to themselves.
    tensors = _tensors((args, kwargs)) if formula.names else []
    stack = ExitStack()
    if torch.get_default_dtype() != torch.float32 and any(
        x.is_floating_point() or x.is_complex() for x in tensors
    ):
        stack.enter_context(default_dtype.held())
    device = next((x.device for x in tensors if x.device.type != "cpu"), None)
    if device is not None:
        stack.enter_context(torch.device(device))
    return stack


_MAKES_COMPLEX = (
    torch.ops.aten.complex,
    torch.ops.aten.polar,
    torch.ops.aten.view_as_complex,
    torch.ops.aten._fft_r2c,
)


_NESTED = (list, tuple, dict)


def _is_complex(
    operator: OpOverload, args: Any, kwargs: Mapping[str, Any], tensors: Iterable[torch.Tensor]
) -> bool:
    """Return whether complex numbers go into a call or come out of it."""
    dtype = kwargs.get("dtype")
    return (
        operator.overloadpacket in _MAKES_COMPLEX
        or (isinstance(dtype, torch.dtype) and dtype.is_complex)
        or any(x.is_complex() for x in tensors)
        or any(type(x) in _NESTED and complex in map(type, tree_leaves(x)) for x in args)
        or complex in map(type, args)
    )


def _draws(operator: OpOverload, functional: OpOverload) -> bool:
    """Return whether an operator draws random numbers, and no converter says when it does not."""
    random = torch.Tag.nondeterministic_seeded in operator.tags
    return random and registry.find_operator(functional) is None
