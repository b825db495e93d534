"""Functions that would turn a symbolic size into a plain number, kept symbolic for the trace."""

from __future__ import annotations

import functools
import math
from contextlib import ExitStack
from typing import Any

import torch

from t2t.shapes import has_symbol, is_symbolic
from t2t.tracing.patches import patch
from t2t.tracing.tracer import Tracer

__all__ = ["patch_numbers"]


def patch_numbers(stack: ExitStack, tracer: Tracer) -> None:
    """Patch ``torch.tensor``, ``as_tensor``, ``linspace`` and ``math.sqrt`` for a while."""
    for name in ("tensor", "as_tensor"):
        patch(stack, torch, name, functools.partial(_tensor, tracer))
    patch(stack, torch, "linspace", functools.partial(_linspace, tracer))
    patch(stack, math, "sqrt", functools.partial(_sqrt, tracer))


def _tensor(tracer: Tracer, original: Any) -> Any:
    @functools.wraps(original)
    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_active() or not has_symbol(data):
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


def _has_float(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(_has_float(item) for item in data)
    if isinstance(data, torch.Tensor):
        return data.is_floating_point()
    return isinstance(data, float | torch.SymFloat)


def _sqrt(tracer: Tracer, original: Any) -> Any:
    @functools.wraps(original)
    def sqrt(x: Any) -> Any:
        if tracer.is_active() and is_symbolic(x):
            return torch.sym_sqrt(x)
        return original(x)

    return sqrt


def _linspace(tracer: Tracer, original: Any) -> Any:
    @functools.wraps(original)
    def linspace(start: Any, end: Any, steps: Any, **kwargs: Any) -> Any:
        if not tracer.is_active() or not is_symbolic(steps):
            return original(start, end, steps, **kwargs)
        # torch's own formula, which counts from both ends; PyTorch's operator takes plain steps.
        dtype = kwargs.pop("dtype", None) or torch.get_default_dtype()
        index = torch.arange(steps, dtype=dtype, **kwargs)
        width = (end - start) / torch.sym_max(steps - 1, 1)
        return torch.where(
            index < steps // 2, start + width * index, end - width * ((steps - 1) - index)
        )

    return linspace
