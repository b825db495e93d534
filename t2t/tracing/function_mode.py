"""Calls that must be seen before torch takes them apart into operators.

PyTorch tells a mode of every call of its functions and methods, also those of C. That takes a
third of a trace's time, so the mode is on only where a first trace was asked for a value.
(Replacing ``torch.Tensor.__getitem__`` would show it too, but Python fills the type's slots anew
with that, and tensors would count as sequences ever after.)
"""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

from t2t.tracing.tensor_indices import TensorIndices
from t2t.tracing.tracer import Tracer

__all__ = ["FunctionMode"]


class FunctionMode(TorchFunctionMode):
    """Takes the calls that the tracer must see as they are made.

    Args:
        tracer: what records them.
    """

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer
        self._handlers = TensorIndices(tracer).handlers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        handler = self._handlers.get(func)
        if handler is not None:
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        # A function of torch's in Python looks itself up by name, and finds what is patched there.
        return self._tracer.originals.get(func, func)(*args, **kwargs)
