"""Runs a module's forward pass once, over fake inputs, with torch patched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_config
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils._sympy.value_ranges import ValueRanges

from t2t import registry
from t2t.errors import T2TError, UnsupportedOperatorError
from t2t.shapes import Range
from t2t.tracing.function_mode import FunctionMode
from t2t.tracing.graph import Graph, map_tree
from t2t.tracing.guards import GuardLog, narrow, prove
from t2t.tracing.kinds import LIMITS
from t2t.tracing.locations import raised_location
from t2t.tracing.patches import TRACE_LOCK, patch
from t2t.tracing.symbolic import patch_numbers
from t2t.tracing.tracer import NUMBERS, Tracer

__all__ = ["Dimension", "trace"]

# What torch's own code says where it looks for what only real tensors have and no mode sees it.
_LIMITS = {
    "its data is not allocated yet": NUMBERS,
    **LIMITS,
    "with symbolic sizes/strides": (
        "PyTorch's own code needs plain numbers for the sizes here, which are dynamic; declare "
        "them static, or use other functions"
    ),
}

Dimension = tuple[str, Range]
"""A dynamic dimension: its name (the same name is the same size) and its range."""


def trace(
    module: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dimensions: Sequence[Mapping[int, Dimension]] = (),
    *,
    names: Sequence[str] = (),
    narrow_shapes: bool = False,
    finish: Callable[[Any, Tracer], Any] | None = None,
) -> Graph:
    """Record the calls of one forward pass.

    Args:
        module: the module (or a function).
        args: example inputs; tensors may stand in nested tuples, lists and dicts.
        kwargs: keyword inputs, likewise.
        dimensions: for each input tensor its dynamic dimensions; none by default.
        names: names of the input tensors, for messages.
        narrow_shapes: shrink the ranges to where the trace is valid, instead of raising.
        finish: called with the raw output and the tracer while values can still be read; its result
            becomes the graph's ``output``.

    Raises:
        ConversionError: the forward pass does what a network cannot.
        GuardError: it took a decision that does not hold for all declared sizes.
    """
    with TRACE_LOCK, ExitStack() as stack:
        env = _shape_env() if any(dimensions) else None
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
        tracer = Tracer(mode, _state(module), _forward.__code__)
        inputs = _Inputs(mode, env, tracer, dimensions)
        fake_args, fake_kwargs = map_tree(inputs.fake, (args, kwargs))
        guards = GuardLog(tracer.deciding_location)
        if env is not None:
            # The log stands in the place of torch's own list, and knows the user's lines.
            env.guards = guards
            # A size of 1 in the example must not be treated as special.
            stack.enter_context(symbolic_config.patch(backed_size_oblivious=True))  # type: ignore[attr-defined]
            stack.enter_context(enable_python_dispatcher())
        stack.enter_context(torch.no_grad())
        stack.callback(tracer.constants.restore)
        _patch_torch(stack, tracer, module)
        if env is not None:
            patch_numbers(stack, tracer)
        try:
            output = _forward(tracer, module, fake_args, fake_kwargs)
        except T2TError:
            raise
        except Exception as error:
            where = _where(tracer, error)
            reason = _limit(error)
            if reason:
                raise UnsupportedOperatorError(f"{reason}{where}") from error
            error.add_note(f"raised by the model itself, while t2t ran its forward pass{where}")
            raise
        graph = tracer.graph
        if finish is not None:
            graph.output = finish(output, tracer)
        graph.symbols, graph.ranges = inputs.symbols, inputs.ranges
        if env is not None:
            labels = inputs.labels(names)
            if narrow_shapes:
                graph.ranges = narrow(guards, inputs.ranges, inputs.examples)
            prove(guards, graph.ranges, labels)
        return graph


def _forward(tracer: Tracer, module: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward pass; lines of whoever called this are not the user's model."""
    with tracer.dispatch_mode, FunctionMode(tracer):
        return module(*args, **kwargs)


def _limit(error: Exception) -> str:
    """Say what PyTorch cannot trace, where that is why it raised; else nothing."""
    reason = next((reason for words, reason in _LIMITS.items() if words in str(error)), "")
    if not reason and isinstance(error, UnsupportedOperatorException):
        return f"{error.func}: PyTorch itself does not know the shape of its result"
    return reason


def _shape_env() -> ShapeEnv:
    # No duck shapes: two dimensions are not the same because the examples are. No special 0 and 1:
    # a batch of 1 in the example says nothing about other batches.
    return ShapeEnv(duck_shape=False, specialize_zero_one=False)


def _state(module: Any) -> dict[str, torch.Tensor]:
    if not isinstance(module, torch.nn.Module):
        return {}
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _where(tracer: Tracer, error: BaseException) -> str:
    location = raised_location(error, _forward.__code__)
    at = f" at {location}" if location else ""
    failed, scope = tracer.failure
    return f"{at} in module {scope!r}" if failed is error and scope else at


class _Inputs:
    """Makes the fake tensors that stand for the inputs, with symbols for dynamic dimensions."""

    def __init__(
        self,
        mode: FakeTensorMode,
        env: ShapeEnv | None,
        tracer: Tracer,
        dimensions: Sequence[Mapping[int, Dimension]],
    ) -> None:
        self._mode, self._env, self._tracer = mode, env, tracer
        self._dimensions = dimensions
        self._sizes: dict[str, Any] = {}
        self.symbols: dict[Any, tuple[int, int]] = {}
        self.ranges: dict[Any, Range] = {}
        self.examples: dict[Any, int] = {}

    def fake(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        index = len(self._tracer.graph.inputs)
        dynamic = self._dimensions[index] if index < len(self._dimensions) else {}
        sizes = [
            self._size(index, dim, size, *dynamic[dim]) if dim in dynamic else size
            for dim, size in enumerate(x.shape)
        ]
        with self._mode:
            tensor = torch.empty(sizes, dtype=x.dtype, device=x.device)
        self._tracer.add_input(tensor)
        return tensor

    def _size(self, index: int, dim: int, example: int, name: str, span: Range) -> Any:
        if span[0] == span[1]:
            return span[0]
        if name not in self._sizes:
            assert self._env is not None
            # torch's compiler takes a second to import, and only dynamic sizes need this of it.
            from torch._dynamo.source import ConstantSource

            source = ConstantSource(f"input{index}_dim{dim}")
            constraint = StrictMinMaxConstraint(vr=ValueRanges(*span), warn_only=False)
            symbol = self._env.create_symbol(
                example, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=constraint
            )
            self._sizes[name] = self._env.create_symintnode(symbol, hint=example, source=source)
            self.symbols[symbol] = (index, dim)
            self.ranges[symbol] = span
            self.examples[symbol] = example
        return self._sizes[name]

    def labels(self, names: Sequence[str]) -> dict[Any, str]:
        return {
            symbol: f"dimension {dim} of input {names[index] if names else index!r}"
            for symbol, (index, dim) in self.symbols.items()
        }


def _patch_torch(stack: ExitStack, tracer: Tracer, module: Any) -> None:
    for name, converter in registry.function_converters().items():
        owner, attribute = registry.resolve(name)
        patch(
            stack,
            owner,
            attribute,
            functools.partial(_wrap, tracer, name, converter),
        )
    paths = (
        {id(m): path for path, m in module.named_modules()}
        if isinstance(module, torch.nn.Module)
        else {}
    )
    patch(stack, torch.nn.Module, "__call__", functools.partial(_scoped, tracer, paths))
    patch(
        stack, torch.backends.mha, "get_fastpath_enabled", functools.partial(_no_fastpath, tracer)
    )
    patch(stack, torch, "compile", functools.partial(_not_compiled, tracer))
    for name in ("numpy", "__array__"):
        patch(stack, torch.Tensor, name, functools.partial(_refuse_numpy, tracer))


def _wrap(tracer: Tracer, name: str, converter: registry.Converter, original: Any) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return tracer.call_function(name, converter, original, args, kwargs)

    tracer.originals[wrapper] = original
    return wrapper


def _scoped(tracer: Tracer, paths: dict[int, str], original: Any) -> Any:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  it takes that place
        if not tracer.is_active():
            return original(self, *args, **kwargs)
        tracer.scopes.append(paths.get(id(self)) or tracer.scopes[-1])
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            if tracer.failure[0] is not error:
                tracer.failure = (error, tracer.scopes[-1])
            raise
        finally:
            tracer.scopes.pop()

    return __call__


def _no_fastpath(tracer: Tracer, original: Any) -> Any:
    """The fused attention of nn.MultiheadAttention has no converter; its parts have."""

    @functools.wraps(original)
    def get_fastpath_enabled() -> bool:
        return False if tracer.is_active() else original()

    return get_fastpath_enabled


def _not_compiled(tracer: Tracer, original: Any) -> Any:
    """Return what a model would compile as it is; torch.cond and the like compile themselves."""

    @functools.wraps(original)
    def compile(model: Any = None, **options: Any) -> Any:
        if not tracer.is_active():
            return original(model, **options)
        return (lambda function: function) if model is None else model

    return compile


def _refuse_numpy(tracer: Tracer, original: Any) -> Any:
    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tracer.is_active() and tracer.is_traced(self):
            raise tracer.located(
                UnsupportedOperatorError(
                    "the model gives a tensor that depends on its input to numpy, which a network "
                    "cannot contain; use torch functions"
                )
            )
        return original(self, *args, **kwargs)

    return method
