"""Calls that stay in PyTorch, written as operators that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from t2t.errors import CheckpointError, ConversionError, T2TError
from t2t.isolation import storage_key
from t2t.module import CheckStep, OperatorStep
from t2t.operator_data import data_of, find_operator
from t2t.sizes import expression
from t2t.sizes.arithmetic import NUMBERS
from t2t.sizes.dynamic import Check
from t2t.sizes.expressions import evaluate, symbols_of
from t2t.sizes.terms import Symbol
from t2t.torch_internals import (
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    enable_python_dispatcher,
    one_kind_of_kernels,
    schema_of,
    sizes_of_one_are_ordinary,
)
from t2t.tracing import Call, Value
from t2t.tracing.emit import located
from t2t.tracing.graph import map_tree, tree_leaves
from t2t.tracing.memory import GROUPING
from t2t.tracing.operators import operator_info

aten = torch.ops.aten

Recorded = tuple[OpOverload, tuple[Any, ...], dict[str, Any], Any]
"""An operator, its arguments, its keyword arguments and its fake result."""

# They ask for places in memory, which a tensor of the converted module may have elsewhere.
_BY_MEMORY = (aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter)
# Of their results each is written to as if it had memory of its own: nobody reads the whole again.
_SPLITTING = (aten.unsafe_chunk, aten.unsafe_split, aten.unsafe_split_with_sizes)


class Operators:
    """Numbers the tensors of a partition, and writes calls as steps.

    Args:
        numbers: the numbers of the inputs, by the id of the tensor; others are added.
        constants: gets the constants that steps read, by number.
        sizes: for each symbol a tensor's number, the dimension in which it stands, and by which
            factor and offset; without a dimension it is the number in the tensor.
    """

    def __init__(
        self,
        numbers: dict[int, int],
        constants: dict[int, torch.Tensor],
        sizes: Mapping[Symbol, tuple[int, int | None, int, int]],
    ) -> None:
        self._numbers, self._constants = numbers, constants
        # An id may be taken again when its tensor is gone.
        self._alive: list[torch.Tensor] = []
        self._symbols = {
            symbol: dict(zip(("tensor", "dim", "factor", "offset"), place, strict=True))
            for symbol, place in sizes.items()
        }

    def number(self, x: torch.Tensor) -> int:
        """Return the number of a tensor; one that is new gets one, as a constant if it is real."""
        if id(x) not in self._numbers:
            self._numbers[id(x)] = len(self._numbers)
            self._alive.append(x)
            if not isinstance(x, FakeTensor):
                self._constants[self._numbers[id(x)]] = x
        return self._numbers[id(x)]

    def steps(self, call: Call) -> Iterator[OperatorStep]:
        """Yield the operators of a call.

        Raises:
            ConversionError: it is none that a checkpoint can hold; the text says where it stands.
        """
        try:
            for operator, args, kwargs, output in operators_of(call):
                name = operator_info(operator).name
                find_operator(name)
                results = [self.number(x) for x in tree_leaves(output) if _is_tensor(x)]
                yield OperatorStep(
                    name,
                    [self._data(x) for x in args],
                    {key: self._data(x) for key, x in kwargs.items()},
                    results,
                )
        except (CheckpointError, ConversionError) as error:
            raise located(ConversionError(f"it cannot stay in PyTorch: {error}"), call) from error

    def check(self, check: Check) -> CheckStep:
        """Return what is required of a size as a step."""
        low, high = int(check.low), int(check.high)
        return CheckStep(self._size(check.value), low, high, check.message)

    def _data(self, x: Any) -> Any:
        """Return an argument as data."""
        return data_of(x, self.number, lambda size: self._size(expression(size)))

    def _size(self, x: Any) -> Any:
        """Return what computes a size of the sizes of tensors, as data."""
        unknown = symbols_of(x) - {*self._symbols}
        if unknown:
            raise ConversionError(f"no tensor has the size {unknown.pop()}")
        functions = {name: _written(name) for name in NUMBERS}
        return evaluate(x, self._symbols, {**functions, "constant": lambda number: number})


def _written(name: str) -> Callable[..., list[Any]]:
    return lambda *args: [name, *args]


def operators_of(call: Call) -> list[Recorded]:
    """Return the operators that compute a call.

    They are functions of values: none writes to its arguments, or asks how these lie in memory.

    Raises:
        ConversionError: there are none such.
    """
    args, kwargs = map_tree(
        lambda x: x.tensor if isinstance(x, Value) else x, (call.args, call.kwargs)
    )
    if call.function in GROUPING:
        return [(aten.reshape.default, (args[0], args[1]), {}, call.output)]
    if isinstance(call.function, OpOverload):
        return [(call.function, args, kwargs, call.output)]
    if call.bodies():
        raise ConversionError("a loop or a branch does so only with the module that it stands in")
    if call.function is None:
        raise ConversionError("it writes to its argument, and has no other form")
    return _recorded(call.function, args, kwargs, call.output)


def _recorded(
    function: Callable[..., Any], args: Any, kwargs: Any, expected: Any
) -> list[Recorded]:
    """Run a function of Python on fake tensors, and return the operators that it calls."""
    fakes = [x for x in tree_leaves((args, kwargs, expected)) if isinstance(x, FakeTensor)]
    recorder = _Recorder([x for x in tree_leaves((args, kwargs)) if _is_tensor(x)])
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        # Kernels for one kind of device would not run on others.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(one_kind_of_kernels())
        stack.enter_context(fakes[0].fake_mode)
        stack.enter_context(recorder)
        if fakes[0].fake_mode.shape_env is not None:
            stack.enter_context(sizes_of_one_are_ordinary())
            stack.enter_context(enable_python_dispatcher())
        try:
            made = function(*args, **kwargs)
        except T2TError:
            raise
        except Exception as error:
            raise ConversionError(f"PyTorch cannot take it apart: {error}") from error
    wanted = [x for x in tree_leaves(expected) if _is_tensor(x)]
    given = [recorder.value(x) for x in tree_leaves(made) if _is_tensor(x)]
    if [(x.dtype, x.ndim) for x in wanted] != [(x.dtype, x.ndim) for x in given]:
        raise ConversionError("PyTorch computes it by other operators than in the trace")
    # The trace's own results; one that is given back as it came, or twice, is a copy.
    copies: list[Recorded] = [
        (aten.alias.default, (x,), {}, y) for x, y in zip(given, wanted, strict=True)
    ]
    return [*recorder.calls, *copies]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that reach the dispatcher, those that write as their other forms.

    Args:
        inputs: what the function gets; it must not write to that.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Recorded] = []
        self._inputs = {storage_key(x) for x in inputs}
        self._memory: dict[Any, set[int]] = {}
        self._values: dict[int, torch.Tensor] = {}

    def value(self, x: Any) -> Any:
        """Return the result that a tensor holds now; others as they are."""
        return self._values.get(id(x), x)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        before = map_tree(self.value, (args, dict(kwargs or {})))
        output = func(*args, **(kwargs or {}))
        if func.namespace == "prim":
            return output  # a question of the dispatcher's, such as on which device a tensor is
        if func.overloadpacket in _BY_MEMORY:
            raise ConversionError(f"{func} asks for places in memory")
        if func.overloadpacket in _SPLITTING:
            output = [aten.clone.default(x) for x in output]
        operator = aten.reshape.default if func in GROUPING else func
        if not operator_info(func).mutated:
            for x in filter(_is_tensor, tree_leaves(output)):
                self._memory.setdefault(storage_key(x), set()).add(id(x))
            self.calls.append((operator, *before, output))
            return output
        functional, target = operator_info(func).functional, args[0]
        key = storage_key(target)
        alone = key not in self._inputs and self._memory.get(key) == {id(target)}
        if functional is None or operator_info(func).mutated_positions != (0,) or not alone:
            raise ConversionError(f"{func} writes to a tensor that others may read")
        self._values[id(target)] = aten.alias.default(target)
        given, named = before
        # The other form may have no default where this one has, as bernoulli's p.
        left = schema_of(func).arguments[len(given) :]
        defaults = {x.name: x.default_value for x in left if x.default_value is not None}
        kept = {x.name for x in schema_of(functional).arguments}
        named = {name: x for name, x in {**defaults, **named}.items() if name in kept}
        self.calls.append((functional, given, named, self._values[id(target)]))
        return output


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)
