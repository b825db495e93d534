"""What happens to every call of a forward pass: recorded, decomposed, or just run."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from t2t import registry
from t2t.errors import UnsupportedArgumentError, UnsupportedOperatorError
from t2t.registry import Converter
from t2t.sizes import has_symbol
from t2t.tracing.aliasing import View, version_of
from t2t.tracing.formulas import DECISIONS
from t2t.tracing.graph import tree_leaves
from t2t.tracing.mutation import Mutations
from t2t.tracing.operators import OperatorInfo, decomposition, draws_random, operator_info
from t2t.tracing.recorder import NO_CONVERTER, RANDOM

__all__ = ["NUMBERS", "Tracer"]

NUMBERS = (
    "the model needs the value of a tensor that depends on its input (.item(), float(x), "
    "if x > 0, ...), which an engine cannot give to Python; use torch.where"
)


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
            # The function's own operators arrive one by one.
            return original(*args, **kwargs)
        written = [x for x in traced if version_of(self._fake(x)) != before[id(x)]]
        return self._register(call, original, output, traced, written)

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
            raise self.located(UnsupportedOperatorError(NUMBERS))
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
        if info.changes_metadata:
            self.constants.note_turned(args[0])
        if info.is_view and args and isinstance(args[0], torch.Tensor):
            source = args[0]

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
            view = self._view_of_elements(self._fake(args[0]), output)
        except UnsupportedOperatorError as error:
            raise self.located(error) from None
        call = self._call(view.name, view.converter, (args[0], *view.args[1:]), {})
        return self._register(call, view.function, output, [args[0]], [])

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
