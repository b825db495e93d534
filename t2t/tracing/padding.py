"""What nn.TransformerEncoder does with padding: in eval mode it gives zeros there.

With a padding mask that is True behind the sequences only, PyTorch drops the padded places before
the layers (as a nested tensor) and puts zeros there after them. A network has one shape for all
sequences, so the layers run on all places, and the zeros are put in afterwards.
"""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from t2t.tracing.patches import patch
from t2t.tracing.tracer import Tracer

__all__ = ["patch_encoder"]


class _Dropped(Exception):  # noqa: N818  no error: it says that torch would drop the padding
    def __init__(self, kept: Tensor) -> None:
        self.kept = kept


def patch_encoder(stack: ExitStack, tracer: Tracer) -> None:
    """Let the encoder decide as in eval mode, until the stack closes, but compute on all places."""
    encoder = torch.nn.TransformerEncoder
    code = encoder.forward.__code__
    asking = [False]

    def enabled(original: Any) -> Any:
        @functools.wraps(original)
        def get_fastpath_enabled() -> bool:
            if not tracer.is_active():
                return bool(original())
            # The fused attention of the layers has no converter; its parts have.
            return asking[0] and sys._getframe(1).f_code is code and bool(original())

        return get_fastpath_enabled

    def overridden(original: Any) -> Any:
        @functools.wraps(original)
        def has_torch_function(args: Any) -> bool:
            # The trace itself overrides torch's functions, which is not the model's doing.
            ours = tracer.is_active() and asking[0] and sys._getframe(1).f_code is code
            return False if ours else bool(original(args))

        return has_torch_function

    def dropped(original: Any) -> Any:
        @functools.wraps(original)
        def _nested_tensor_from_mask(x: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Any:
            if tracer.is_active() and asking[0]:
                raise _Dropped(mask)
            return original(x, mask, *args, **kwargs)

        return _nested_tensor_from_mask

    def left_aligned(original: Any) -> Any:
        @functools.wraps(original)
        def _nested_tensor_from_mask_left_aligned(x: Tensor, mask: Tensor) -> bool:
            return True if tracer.is_active() and asking[0] else bool(original(x, mask))

        return _nested_tensor_from_mask_left_aligned

    def forward(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: torch.nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
            if not tracer.is_active():
                return original(self, *args, **kwargs)
            asking[0] = True
            try:
                return original(self, *args, **kwargs)
            except _Dropped as found:
                kept = found.kept
            finally:
                asking[0] = False
            output = original(self, *args, **kwargs)
            padded = ~kept
            if getattr(self, "mask_check", True):
                padded = padded & (kept[:, 1:] <= kept[:, :-1]).all()
            nothing = torch.zeros_like(output)
            nothing = nothing if self.norm is None else self.norm(nothing)
            return torch.where(padded.unsqueeze(-1), nothing, output)

        return method

    patch(stack, torch.backends.mha, "get_fastpath_enabled", enabled)
    patch(stack, torch.overrides, "has_torch_function", overridden)
    patch(stack, torch, "_nested_tensor_from_mask", dropped)
    patch(stack, torch, "_nested_tensor_from_mask_left_aligned", left_aligned)
    patch(stack, encoder, "forward", forward)
