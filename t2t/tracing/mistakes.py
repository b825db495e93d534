"""What PyTorch itself says of a call that it refuses.

A conversion runs on tensors without data, through shape rules of t2t's and PyTorch's own formulas;
what they say of a mistake in the model is not what the model's author knows. So the call is made
again, alone, on real zeros of the example's sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from t2t.sizes import is_symbolic
from t2t.torch_internals import FakeTensor, hint_of
from t2t.tracing.graph import Value, map_tree, tree_leaves

MAX_ELEMENTS = 1 << 24
"""Most elements of the arguments of a call that is made again."""

_HALF = ("Half", "BFloat16", "float16", "bfloat16")


def mistake(function: Callable[..., Any], args: Any, kwargs: Any) -> Exception | None:
    """Return what PyTorch raises for a call, or None where it has nothing against it.

    Args:
        function: a function or operator of PyTorch's.
        args: its arguments, perhaps fake tensors, values and symbolic numbers.
        kwargs: its keyword arguments.
    """
    args, kwargs = map_tree(lambda x: x.tensor if isinstance(x, Value) else x, (args, kwargs))
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if sum(math.prod(_sizes(x)) for x in tensors) > MAX_ELEMENTS:
        return None
    plain_args, plain_kwargs = map_tree(_real, (args, kwargs))
    try:
        function(*plain_args, **plain_kwargs)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the model's
        # A kernel that the device of the example lacks is no mistake.
        lacks = "not implemented for" in str(error) or "not supported" in str(error)
        return None if lacks and any(word in str(error) for word in _HALF) else error
    return None


def is_refused(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Return whether PyTorch refuses a call whatever the data is, by shapes and types alone."""
    args, kwargs = map_tree(_without_data, (args, kwargs))
    try:
        function(*args, **kwargs)
    except Exception:  # noqa: BLE001  what it says, `mistake` tells
        return True
    return False


def _real(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        if not isinstance(x, FakeTensor):
            return x.detach().clone()
        sizes, strides = _sizes(x), [_hint(step) for step in x.stride()]
        extent = 1 + sum(max(n - 1, 0) * step for n, step in zip(sizes, strides, strict=True))
        memory = torch.zeros(extent, dtype=x.dtype, device=x.device)
        return memory.as_strided(sizes, strides)
    return _hint(x)


def _without_data(x: Any) -> Any:
    x = x.tensor if isinstance(x, Value) else x
    if isinstance(x, torch.Tensor):
        return torch.empty(_sizes(x), dtype=x.dtype, device="meta")
    return _hint(x)


def _sizes(x: torch.Tensor) -> list[int]:
    return [_hint(size) for size in x.shape]


def _hint(x: Any) -> Any:
    """Return the example's number where it is symbolic."""
    return hint_of(x) if is_symbolic(x) else x
