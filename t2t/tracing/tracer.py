"""What happens to every call of a forward pass: recorded, decomposed, or just run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from t2t import registry
from t2t.errors import ConversionError, T2TError, UnsupportedArgumentError, UnsupportedOperatorError
from t2t.isolation import storage_key
from t2t.registry import Converter, Formula
from t2t.sizes import has_symbol
from t2t.tracing.aliasing import View, version_of
from t2t.tracing.control_flow import HIGHER_ORDER, NO_LOOPS
from t2t.tracing.decisions import DECISIONS
from t2t.tracing.graph import tree_leaves
from t2t.tracing.kinds import COMPLEX, QUANTIZED, is_wrapped, unsupported_kind
from t2t.tracing.locations import called_function
from t2t.tracing.mistakes import mistake
from t2t.tracing.mutation import Mutations
from t2t.tracing.observers import FUSED, without_observer
from t2t.tracing.operators import OperatorInfo, draws_random, operator_info, ways
from t2t.tracing.recorder import NO_CONVERTER, RANDOM

__all__ = ["NUMBERS", "Tracer", "ValueNeeded"]

NUMBERS = (
    "the model needs the value of a tensor that depends on its input (.item(), float(x), "
    "if x > 0, ...), which an engine cannot give to Python; use torch.where"
)

_BY_OFFSET = (
    torch.ops.aten.as_strided,
    torch.ops.aten.as_strided_,
    torch.ops.aten.as_strided_scatter,
)


class ValueNeeded(BaseException):
    """The value of a traced tensor is asked for; a trace that sees functions may do without it.

    No `Exception`, because the model's own handlers are to let it pass.
    """


class Tracer(Mutations):
    """Takes the calls of patched functions and of operators, for one forward pass in one thread.

    Args:
        mode: the mode of the fake tensors that stand for the inputs.
        state: names of the module's parameters and buffers, which a trace must not change.
        boundary: code of the function that calls the user's module.
    """

    def __init__(
        self, mode: FakeTensorMode, state: dict[str, torch.Tensor], boundary: CodeType
    ) -> None:
        super().__init__(mode, state, boundary)
        self.dispatch_mode = _DispatchMode(self)
        self.sees_functions = False
        """Whether calls are seen before torch takes them apart into operators."""
        self.needs_value = False
        """Whether that would have shown what the value of a traced tensor is needed for."""
        self.originals: dict[Any, Any] = {}
        """The functions that stand behind the patched ones."""

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
        if any(is_wrapped(x) for x in tensors):
            # torch.func takes its wrappers off before the function's own operators arrive.
            return original(*args, **kwargs)
        traced = [x for x in tensors if self.is_traced(x)]
        if not traced and not has_symbol((args, tuple(kwargs.values()))):
            return original(*args, **kwargs)
        try:
            return self._record_function(name, converter, original, args, kwargs, traced)
        except UnsupportedArgumentError as error:
            if error.located:
                raise
            # A rule for shapes that gives up.
            raise self.located(type(error)(f"{self._origin(name)}: {error}")) from None
        except T2TError:
            raise
        except Exception as error:  # noqa: BLE001  PyTorch raises any
            raise self._mistake(name, original, args, kwargs) or error from None

    def _record_function(
        self,
        name: str,
        converter: Converter,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: list[torch.Tensor],
    ) -> Any:
        self._check_kinds(name, (x for x in tree_leaves((args, kwargs)) if _is_tensor(x)))
        if kwargs.get("out") is not None:
            # What is written where, its operators say.
            return original(*args, **kwargs)
        if "out" not in converter.signature.parameters:
            kwargs = {key: value for key, value in kwargs.items() if key != "out"}
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
            refused = self._mistake(name, original, args, kwargs)
            if refused is not None:
                raise refused
            # The function's own operators arrive one by one.
            return original(*args, **kwargs)
        written = [x for x in traced if version_of(self._fake(x)) != before[id(x)]]
        return self._register(call, original, output, traced, written)

    def call_outermost(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Take an operator from the dispatcher: the model's own, or a part of a formula."""
        try:
            return self.call_operator(operator, args, kwargs)
        except ConversionError as error:
            if self._decomposing or error.located:
                raise
            # A formula that gives up.
            name = operator_info(operator).name
            raise self.located(type(error)(f"{name}: {error}")) from None
        except T2TError:
            raise
        except Exception as error:
            if self._decomposing or self._paused:
                raise
            name = operator_info(operator).name
            raise self._mistake(name, operator, args, kwargs) or error from None

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
            self.need_functions()
            raise self.located(UnsupportedOperatorError(NUMBERS))
        self._check_kinds(info.name, tensors)
        if operator is FUSED:
            return self.call_operator(*without_observer(*args, **kwargs), {})
        if operator in DECISIONS:
            DECISIONS[operator](*args, **kwargs)
        if operator.overloadpacket in _BY_OFFSET:
            self._check_offset(args, kwargs)
        if info.mutated:
            return self._call_mutating(operator, info, args, kwargs)
        return self._call_functional(operator, info, args, kwargs, tensors)

    def need_functions(self) -> None:
        """Give up where a trace that sees functions may find another way."""
        if not self.sees_functions:
            self.needs_value = True
            raise ValueNeeded

    def _mistake(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Exception | None:
        """Return what PyTorch says of a call, where it refuses it."""
        if not name.startswith(("torch.", "aten::")):
            return None
        with self.paused():
            return mistake(function, *self._fakes((args, kwargs)))

    def call_higher_order(
        self, operator: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute an operator that takes functions in terms of ordinary ones, or refuse it."""
        name = str(operator).removesuffix("_impl")
        leaves = list(tree_leaves((args, kwargs)))
        if not any(isinstance(x, torch.Tensor) and self.is_traced(x) for x in leaves):
            return operator(*args, **kwargs)
        if name not in HIGHER_ORDER:
            raise self.located(UnsupportedOperatorError(NO_LOOPS.format(name=name)))
        try:
            with self.dispatch_mode:
                return HIGHER_ORDER[name](*args, **kwargs)
        except UnsupportedOperatorError as error:
            raise (error if error.located else self.located(error)) from None

    def _check_kinds(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        """Raise where an argument or result is none that a network can have."""
        for x in tensors:
            kind = unsupported_kind(x)
            if kind:
                raise self.located(UnsupportedOperatorError(f"{self._origin(name)}: {kind}"))

    def _run_constant(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: Any,
        tensors: list[torch.Tensor],
    ) -> Any:
        for target in self._targets(info, args, kwargs):
            try:
                self.constants.before_write(target)
            except UnsupportedOperatorError as error:
                raise self.located(error) from None
        output = operator(*args, **kwargs)
        if operator is torch.ops.aten.lift_fresh.default:
            # The first that is heard of torch.tensor([1, 2]), and of torch.from_numpy(array).
            if args[0].untyped_storage().resizable():
                self.constants.note_made(output, [])
            else:
                self.constants.note_foreign(output)
            return output
        self.constants.note_made(output, tensors)
        self.constants.note_steps(output, operator, args, kwargs)
        if not info.mutated:
            self.constants.note_kinds(output, tensors)
        if info.changes_metadata:
            self.constants.note_turned(args[0])
        if args and isinstance(args[0], torch.Tensor) and not info.mutated:
            source = args[0]
            # torch.unsafe_split and its like do not say that they give views.
            shares = any(
                isinstance(x, torch.Tensor) and storage_key(x) == storage_key(source)
                for x in tree_leaves(output)
            )
            if not info.is_view and not shares:
                return output

            def view(x: torch.Tensor) -> View:
                if isinstance(output, torch.Tensor):
                    return self._view(info.name, operator, args, kwargs, source)
                return self._view_of_elements(source, x)

            self.constants.note_view(output, source, view)
        return output

    def _call_functional(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        random = draws_random(operator, args, kwargs)
        is_complex = _is_complex(operator, args, kwargs, tensors)
        # Where a formula leads back to its operator, there is none.
        plain = not random and not is_complex and info.name not in self._decomposing
        converter, output = None, NotImplemented
        for way in ways(operator):
            if isinstance(way, Formula):
                result = self._decompose(info, way, args, kwargs) if plain else NotImplemented
                if result is not NotImplemented:
                    return result
                continue
            if way.meta is not None:
                output = self._run(way.meta, args, kwargs)
            if way.meta is None or output is not NotImplemented:
                converter = way
                break
        if operator is torch.ops.aten.as_strided.default:
            return self._call_strided(operator, args, kwargs)
        call = self._call(info.name, converter, args, kwargs)
        if converter is None and call.problem is None:
            text = RANDOM if random else self._no_converter(operator, info)
            call.problem = UnsupportedOperatorError(text)
        if is_complex:
            call.problem = UnsupportedOperatorError(COMPLEX)
        output = self._run(operator, args, kwargs) if output is NotImplemented else output
        results = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
        self._check_kinds(info.name, results)
        traced = [x for x in tensors if self.is_traced(x)]
        return self._register(call, operator, output, traced, [])

    def _no_converter(self, operator: OpOverload, info: OperatorInfo) -> str:
        """Say under which name a converter would take this call."""
        if operator.namespace == "quantized" or info.name.startswith("aten::quantize_"):
            return QUANTIZED
        name = self._origin(info.name)
        called, by_name = called_function(self._boundary, name) or (name, True)
        note = "" if by_name else ", and call it by this name"
        return NO_CONVERTER.format(name=called) + note

    def _call_strided(self, operator: OpOverload, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record a view of memory as a view of elements."""
        output = self._run(operator, args, kwargs)
        try:
            view = self._view_of_elements(self._fake(args[0]), output)
        except UnsupportedOperatorError as error:
            raise self.located(error) from None
        call = self._call(view.name, view.converter, (args[0], *view.args[1:]), {})
        return self._register(call, view.function, output, [args[0]], [])

    def view_at(self, x: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
        """Record the view of a tensor at a traced index: one place (0-d), or several in a row.

        In memory the view lies at the first places; which ones it shows, only its value says.
        """
        operator = torch.ops.aten.index.Tensor
        unwritable = "" if self.is_traced(x) else self._try_promote(x, operator_info(operator).name)
        converter = registry.find_operator(operator)
        indices = [None] * axis + [index]
        call = self._call(operator_info(operator).name, converter, (x, indices), {})
        if index.ndim:
            output = self._run(torch.ops.aten.narrow.default, (x, axis, 0, index.shape[0]), {})
        else:
            output = self._run(torch.ops.aten.select.int, (x, axis, 0), {})
        result: torch.Tensor = self._register(call, operator, output, [x], [])
        if unwritable:
            entry = self._memory.find(result)
            assert entry is not None
            entry.storage.unwritable = unwritable
        return result

    def _try_promote(self, x: torch.Tensor, operator: str) -> str:
        """Let a constant be written through a view to come; return why it cannot, if so."""
        try:
            self.promote(x, operator)
        except UnsupportedOperatorError as error:
            return str(error.__cause__)
        return ""

    def _check_offset(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse an offset in memory that a tensor is to be read at, where its own is unknown."""
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        entries = [self._memory.find(x) for x in tensors[:1]]
        offset = kwargs.get("storage_offset", args[-1])
        given = offset is not None and not isinstance(offset, list | tuple)
        if given and any(entry and not entry.has_known_place() for entry in entries):
            raise self.located(
                UnsupportedOperatorError(
                    "as_strided with a storage_offset, of a view at an index that depends on the "
                    "input; use slices"
                )
            )

    def _decompose(self, info: OperatorInfo, formula: Formula, args: Any, kwargs: Any) -> Any:
        """Run the formula of an operator; its parts come back as operators."""
        self._decomposing.append(info.name)
        before = self.precision
        if formula.precision != "follow":
            self.precision = formula.precision
        try:
            with self.dispatch_mode:
                return formula.function(*self._fakes(args), **self._fakes(kwargs))
        finally:
            self._decomposing.pop()
            self.precision = before


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every operator that reaches the dispatcher to a tracer."""

    supports_higher_order_operators = True

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
        if isinstance(func, HigherOrderOperator):
            return self._tracer.call_higher_order(func, args, kwargs or {})
        return self._tracer.call_outermost(func, args, kwargs or {})


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


_MAKES_COMPLEX = (
    torch.ops.aten.complex,
    torch.ops.aten.polar,
    torch.ops.aten.view_as_complex,
    torch.ops.aten._fft_r2c,
)


def _is_complex(
    operator: OpOverload, args: Any, kwargs: Mapping[str, Any], tensors: Iterable[torch.Tensor]
) -> bool:
    """Return whether complex numbers go into a call or come out of it."""
    dtype = kwargs.get("dtype")
    return (
        operator.overloadpacket in _MAKES_COMPLEX
        or (isinstance(dtype, torch.dtype) and dtype.is_complex)
        or any(x.is_complex() for x in tensors)
        or any(isinstance(x, complex) for x in tree_leaves(args))
    )
