"""Calls that must be seen before torch takes them apart into operators.

PyTorch tells a mode of every call of its functions and methods, also those of C. (Replacing
``torch.Tensor.__getitem__`` would show it too, but Python fills the type's slots anew with that,
and tensors would count as sequences ever after.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from t2t.errors import UnsupportedOperatorError
from t2t.tracing.graph import tree_leaves
from t2t.tracing.tensor_indices import TensorIndices
from t2t.tracing.tracer import Tracer

__all__ = ["FunctionMode"]

_RECURRENT = {
    torch.lstm: "LSTM",
    torch.gru: "GRU",
    torch.rnn_tanh: "RNN",
    torch.rnn_relu: "RNN",
}

_NO_LOOPS = (
    "torch.nn.{name}: recurrent layers have no converter yet (unrolled, every step would be layers "
    "of its own); run this layer in PyTorch, or write a loop of fixed length over nn.{name}Cell"
)


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
        if func in _RECURRENT:
            self._refuse_recurrent(_RECURRENT[func], args)
        # A function of torch's in Python looks itself up by name, and finds what is patched there.
        return self._tracer.originals.get(func, func)(*args, **kwargs)

    def _refuse_recurrent(self, name: str, args: tuple[Any, ...]) -> None:
        tracer = self._tracer
        tensors = (x for x in tree_leaves(args) if isinstance(x, torch.Tensor))
        if tracer.is_active() and any(tracer.is_traced(x) for x in tensors):
            reason = _NO_LOOPS.format(name=name)
            raise tracer.located(UnsupportedOperatorError(reason))
