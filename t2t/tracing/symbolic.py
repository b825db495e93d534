"""Functions that would turn a symbolic size into a plain number, kept symbolic for the trace."""

from __future__ import annotations

import functools
import math
from contextlib import ExitStack
from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.sizes import apply_function, has_symbol, is_contiguous, is_symbolic
from t2t.tracing.patches import patch
from t2t.tracing.recorder import Recorder


def patch_numbers(stack: ExitStack, recorder: Recorder) -> None:
    """Patch what asks for the number behind a size, until the stack closes."""
    for name in ("tensor", "as_tensor"):
        patch(stack, torch, name, functools.partial(_tensor, recorder))
    patch(stack, torch, "_shape_as_tensor", functools.partial(_shape_as_tensor, recorder))
    patch(stack, torch, "linspace", functools.partial(_linspace, recorder))
    patch(stack, torch, "_check_with", functools.partial(_check_with, recorder))
    patch(stack, torch.Tensor, "contiguous", functools.partial(_contiguous, recorder))
    for owner in (torch, torch.Tensor):
        patch(stack, owner, "reshape", functools.partial(_reshape, recorder))
        patch(stack, owner, "flatten", functools.partial(_flatten, recorder))
    for name in ("sqrt", "exp", "log", "log2"):
        patch(stack, math, name, functools.partial(_real_function, recorder))
    for name in ("__divmod__", "__rdivmod__"):
        _add_method(stack, torch.SymInt, name, functools.partial(_divided, name))
    # Without it, Python (before 3.14) cuts real numbers by __trunc__, and warns: torch 2.8.
    _add_method(stack, torch.SymFloat, "__int__", _truncated)
    for name in ("is_compiling", "is_exporting"):
        patch(stack, torch.compiler, name, functools.partial(_is_tracing, recorder))


def _tensor(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_active() or not has_symbol(data):
            return original(data, *args, **kwargs)
        dtype, device = kwargs.get("dtype"), kwargs.get("device")
        if dtype is None:
            dtype = torch.get_default_dtype() if _has_float(data) else torch.int64
        return _build(data, dtype, device)

    return tensor


def _build(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_build(item, dtype, device) for item in data])
    if isinstance(data, torch.Tensor):
        return data.to(dtype)
    return torch.scalar_tensor(data, dtype=dtype, device=device)


def _shape_as_tensor(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def shape_as_tensor(self: torch.Tensor) -> torch.Tensor:
        if recorder.is_active() and has_symbol(tuple(self.shape)):
            return _build(list(self.shape), torch.int64, None)
        result: torch.Tensor = original(self)
        return result

    return shape_as_tensor


_NOT_TRUE = "Expected cond to be True, but got False."


def _check_with(recorder: Recorder, original: Any) -> Any:
    """Note what torch._check says, for sizes of which only a call of the model can tell."""

    @functools.wraps(original)
    def check_with(error_type: Any, cond: Any, message: Any) -> None:
        env: Any = recorder.mode.shape_env
        before, env.message = env.message, _NOT_TRUE if message is None else message
        try:
            original(error_type, cond, message)
        finally:
            env.message = before

    return check_with


def _has_float(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(_has_float(item) for item in data)
    if isinstance(data, torch.Tensor):
        return data.is_floating_point()
    return isinstance(data, float | torch.SymFloat)


def _real_function(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def function(x: Any, *base: Any) -> Any:
        if not recorder.is_active() or not has_symbol((x, *base)):
            return original(x, *base)
        value, *divisors = [
            apply_function(original.__name__, n) if is_symbolic(n) else original(n)
            for n in (x, *base)
        ]
        return value / divisors[0] if divisors else value

    return function


def _add_method(stack: ExitStack, owner: Any, name: str, method: Any) -> None:
    """Let symbolic numbers do what PyTorch's do not offer, or an older one's do not."""
    if name not in vars(owner):
        # As a function, which becomes a method of the numbers.
        setattr(owner, name, lambda *numbers: method(*numbers))
        stack.callback(delattr, owner, name)


def _truncated(number: Any) -> int:
    size: Any = math.trunc(number)
    return int(size)


def _divided(name: str, number: Any, other: Any) -> Any:
    a, b = (other, number) if name == "__rdivmod__" else (number, other)
    return a // b, a % b


def _is_tracing(recorder: Recorder, original: Any) -> Any:
    """Let code that asks take its way without caches and shortcuts that need plain sizes."""

    @functools.wraps(original)
    def is_tracing() -> bool:
        return recorder.is_active() or original()

    return is_tracing


def _linspace(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def linspace(start: Any, end: Any, steps: Any, **kwargs: Any) -> Any:
        if not recorder.is_active() or not is_symbolic(steps):
            return original(start, end, steps, **kwargs)
        # torch's own formula, which counts from both ends; PyTorch's operator takes plain steps.
        dtype = kwargs.pop("dtype", None) or torch.get_default_dtype()
        if not dtype.is_floating_point:
            text = (
                f"linspace of {dtype} with dynamic steps, which rounds each element in float64; "
                "make it of floats, or declare the size static"
            )
            raise recorder.located(UnsupportedArgumentError(text))
        index = torch.arange(steps, dtype=dtype, **kwargs)
        width = (end - start) / torch.sym_max(steps - 1, 1)
        # One step is the start.
        first = index < torch.sym_max(steps // 2, 1)
        return torch.where(first, start + width * index, end - width * ((steps - 1) - index))

    return linspace


# Whether these copy depends on the memory layout, and with dynamic sizes on whether one is 1. A
# network has no layout: the guard that the question would install means nothing. Only a write could
# tell a copy from an alias: after one, only what was written may be read.


def _contiguous(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def contiguous(
        self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
    ) -> torch.Tensor:
        if not _is_uncertain(recorder, self) or memory_format != torch.contiguous_format:
            result: torch.Tensor = original(self, memory_format=memory_format)
            return result
        return _copy(recorder, self)

    return contiguous


def _reshape(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def reshape(self: torch.Tensor, *shape: Any, **kwargs: Any) -> torch.Tensor:
        if not _is_uncertain(recorder, self):
            result: torch.Tensor = original(self, *shape, **kwargs)
            return result
        sizes = kwargs.get("shape", shape)
        sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
        return _copy(recorder, self).view(*sizes)

    return reshape


def _flatten(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def flatten(self: torch.Tensor, start_dim: int = 0, end_dim: int = -1) -> torch.Tensor:
        source = _copy(recorder, self) if _is_uncertain(recorder, self) else self
        result: torch.Tensor = original(source, start_dim, end_dim)
        return result

    return flatten


def _is_uncertain(recorder: Recorder, x: torch.Tensor) -> bool:
    return (
        recorder.is_active()
        and recorder.is_traced(x)
        and has_symbol(tuple(x.shape))
        and not is_contiguous(x)
    )


def _copy(recorder: Recorder, x: torch.Tensor) -> torch.Tensor:
    copy = x.clone(memory_format=torch.contiguous_format)
    recorder.note_maybe_shared(x, copy)
    return copy
