"""The one door to names of PyTorch's that it does not promise to keep.

Tracing needs them: there is no public way to let tensors without data stand for the inputs, to see
every operator, or to know what an operator's schema says. tests/test_torch_internals.py has a test
for each, which says what t2t relies on, and refuses private names anywhere else in t2t.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch

try:
    import torch.fx.experimental._config as _symbolic
    from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _higher_order_ops
    from torch._ops import _OpNamespace as OpNamespace
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
        UnsupportedOperatorException,
        in_kernel_invocation_manager,
        unset_fake_temporarily,
    )
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import (
        TorchDispatchMode,
        is_traceable_wrapper_subclass,
    )
    from torch.utils._python_dispatch import _disable_current_modes as no_modes

    # What nn.LSTM and its like call, and torch.nn.functional.interpolate.
    rnn_functions = torch._VF
    nn_functions = torch._C._nn
    DisabledDispatch = torch._C._DisableTorchDispatch
    ScriptFunction = torch._C.ScriptFunction
    ScriptMethod = torch._C.ScriptMethod
    TensorType = torch._C.TensorType
    Argument = torch._C.Argument
    CompositeImplicit = torch._C.DispatchKey.CompositeImplicitAutograd
    no_torch_function = torch._C._disabled_torch_function_impl
    is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    _has_storage = torch._C._has_storage
    _storage_at = torch._C._construct_storage_from_data_pointer
except (ImportError, AttributeError) as _error:
    raise ImportError(
        f"PyTorch {torch.__version__} is not one that this t2t knows, which are 2.8 to 2.14: "
        f"{_error}; install one of these, or a newer t2t"
    ) from _error

if TYPE_CHECKING:
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.value_ranges import ValueRanges

# They import sympy, which only a trace with dynamic sizes needs.
_F = TypeVar("_F", bound=Callable[..., Any])

_SLOW = {
    "ShapeEnv": "torch.fx.experimental.symbolic_shapes",
    "SymNode": "torch.fx.experimental.sym_node",
    "ValueRanges": "torch.utils._sympy.value_ranges",
}

__all__ = [
    "Argument",
    "CompositeImplicit",
    "DataDependentOutputException",
    "DisabledDispatch",
    "DispatchMode",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpNamespace",
    "OpOverload",
    "OpOverloadPacket",
    "ScriptFunction",
    "ScriptMethod",
    "ShapeEnv",
    "SymNode",
    "TensorType",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "ValueRanges",
    "constant_when_compiled",
    "decomposition_tables",
    "enable_python_dispatcher",
    "failures_unlogged",
    "flex_attention_in_plain_operators",
    "global_hooks",
    "has_storage",
    "hint_of",
    "in_kernel_invocation_manager",
    "is_functorch_wrapped",
    "is_traceable_wrapper_subclass",
    "nn_functions",
    "no_modes",
    "no_torch_function",
    "one_kind_of_kernels",
    "overload_name",
    "pytree",
    "real_kernels",
    "references_from_cpp",
    "rnn_functions",
    "schema_of",
    "sizes_of_one_are_ordinary",
    "storage_address",
    "tensor_at",
    "unfused",
    "unset_fake_temporarily",
    "writes_counted",
]


def __getattr__(name: str) -> Any:
    if name not in _SLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_SLOW[name]), name)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees operators that take functions, such as torch.cond, like all others."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled inside, and torch's wrapper would import its compiler.
        return False

    if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):  # torch 2.8

        def __enter__(self) -> Any:
            for operator in _higher_order_ops.values():
                if type(self) not in operator.python_key_table:
                    operator.py_impl(type(self))(functools.partial(_show, operator))
            return super().__enter__()  # type: ignore[no-untyped-call]


def _show(operator: HigherOrderOperator, mode: Any, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)


def constant_when_compiled(function: _F) -> _F:
    """Let torch.compile call a function, instead of looking into it, and keep what it returns.

    As torch.compiler.assume_constant_result, but without an import of the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def schema_of(operator: OpOverload) -> Any:
    """Return an operator's schema: its name, arguments and results, and what it writes to."""
    return operator._schema


def overload_name(operator: OpOverload) -> str:
    """Return the name of an overload: "Tensor", or "default"."""
    return operator._overloadname


def decomposition_tables() -> tuple[dict[OpOverload, Callable[..., Any]], ...]:
    """Return PyTorch's own formulas of operators, those of its core set first."""
    core: dict[OpOverload, Callable[..., Any]] = torch._decomp.core_aten_decompositions()  # type: ignore[assignment]
    every: dict[OpOverload, Callable[..., Any]] = torch._decomp.decomposition_table  # type: ignore[assignment]
    return core, every


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one memory, as sparse ones have not."""
    return _has_storage(tensor)


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of the object that owns a tensor's memory, fake ones included."""
    return int(tensor.untyped_storage()._cdata)


def tensor_at(
    address: int, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """Return a contiguous tensor over memory that somebody else owns; nothing is copied."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    storage = _storage_at(address, device, math.prod(shape) * dtype.itemsize)
    empty = torch.empty(0, dtype=dtype, device=device)
    return empty.set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


def writes_counted(tensor: torch.Tensor) -> int:
    """Return torch's count of in-place writes to the tensor's memory; 0 in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def references_from_cpp(tensor: torch.Tensor) -> int:
    """Return how many owners C++ counts of a tensor; Python's one object is one of them."""
    return int(tensor._use_count())  # type: ignore[attr-defined]


def hint_of(number: Any) -> Any:
    """Return the example's number behind a symbolic one."""
    return number.node.hint


def sizes_of_one_are_ordinary() -> AbstractContextManager[None]:
    """Let a symbolic size that is 1 in the example be treated as every other one."""
    return _symbolic.patch(backed_size_oblivious=True)  # type: ignore[attr-defined, no-any-return]


@contextmanager
def failures_unlogged() -> Iterator[None]:
    """Keep PyTorch from logging what fails on fake tensors in this thread: it raises it, too."""
    thread = threading.get_ident()
    logger = logging.getLogger(FakeTensorMode.__module__)

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.exc_info is None or record.thread != thread

    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


def flex_attention_in_plain_operators(*args: Any, **kwargs: Any) -> Any:
    """Compute what flex_attention's operator does by PyTorch's own definition."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(*args, **kwargs)


@contextmanager
def real_kernels() -> Iterator[None]:
    """Let operators compute on real tensors as they do where nothing is traced."""
    with unset_fake_temporarily(), no_python_dispatcher():
        yield


@contextmanager
def one_kind_of_kernels() -> Iterator[None]:
    """Let operators that PyTorch picks by device, mkldnn's and cudnn's, be those of all devices."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def unfused(script: Any) -> Iterator[None]:
    """Let a scripted function or method run operator by operator.

    After a few calls it is kernels of its own, which read memory that fake tensors do not have.
    """
    script._debug_flush_compilation_cache()
    with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        yield


def global_hooks() -> tuple[dict[Any, Any], ...]:
    """Return the tables of hooks that all modules have."""
    tables = vars(torch.nn.modules.module).items()
    return tuple(x for name, x in tables if name.startswith("_global_") and isinstance(x, dict))
