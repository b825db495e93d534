"""What nn.TransformerEncoder does with padding: in eval mode it gives zeros there.

With a padding mask that is True behind the sequences only, PyTorch drops the padded places before
the layers (as a nested tensor) and puts zeros there after them. A network has one shape for all
sequences, so the layers run on all places, and the zeros are put in afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from t2t.tracing.patches import patch
from t2t.tracing.recorder import Recorder

_ENCODER = torch.nn.TransformerEncoder


def patch_encoder(stack: ExitStack, recorder: Recorder) -> None:
    """Let the encoder decide as in eval mode, until the stack closes, but compute on all places."""
    patches = _Patches(recorder)
    patch(stack, torch.backends.mha, "get_fastpath_enabled", patches.fastpath)
    patch(stack, torch, "_nested_tensor_from_mask", patches.nested)
    patch(stack, torch, "_nested_tensor_from_mask_left_aligned", patches.left_aligned)
    patch(stack, torch.compiler, "is_compiling", patches.compiling)
    patch(stack, torch.overrides, "has_torch_function", patches.overridden)
    patch(stack, _ENCODER, "forward", patches.forward)


class _Dropped(Exception):  # noqa: N818  no error: it says that torch would drop the padding
    def __init__(self, kept: Tensor) -> None:
        self.kept = kept


class _Patches:
    """The functions that PyTorch's encoder decides with; it is asked once, then run without them.

    Args:
        recorder: says whether calls are to be recorded.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._asked = False
        self._code = _ENCODER.forward.__code__

    def _is_asked(self) -> bool:
        return self._asked and self._recorder.is_active()

    def fastpath(self, original: Callable[[], bool]) -> Any:
        @functools.wraps(original)
        def get_fastpath_enabled() -> bool:
            if not self._recorder.is_active():
                return original()
            # The fused attention of the layers has no converter; its parts have.
            asking = self._asked and sys._getframe(1).f_code is self._code
            return asking and original()

        return get_fastpath_enabled

    def nested(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def nested_tensor_from_mask(x: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._is_asked():
                raise _Dropped(mask)
            return original(x, mask, *args, **kwargs)

        return nested_tensor_from_mask

    def compiling(self, original: Callable[[], bool]) -> Any:
        @functools.wraps(original)
        def is_compiling() -> bool:
            # With dynamic sizes other code is told so, but what the engine does is no shortcut.
            asking = self._is_asked() and sys._getframe(1).f_code is self._code
            return not asking and original()

        return is_compiling

    def overridden(self, original: Callable[..., bool]) -> Any:
        @functools.wraps(original)
        def has_torch_function(tensors: Any) -> bool:
            # A mode that the trace itself runs in is no reason to keep the padding.
            return not self._is_asked() and original(tensors)

        return has_torch_function

    def left_aligned(self, original: Callable[..., bool]) -> Any:
        @functools.wraps(original)
        def nested_tensor_from_mask_left_aligned(x: Tensor, mask: Tensor) -> bool:
            # It depends on the data: the network looks for itself.
            return self._is_asked() or original(x, mask)

        return nested_tensor_from_mask_left_aligned

    def forward(self, original: Callable[..., Tensor]) -> Any:
        @functools.wraps(original)
        def forward(encoder: torch.nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Tensor:
            if not self._recorder.is_active():
                return original(encoder, *args, **kwargs)
            self._asked = True
            try:
                return original(encoder, *args, **kwargs)
            except _Dropped as found:
                kept = found.kept
            finally:
                self._asked = False
            return _with_zeros(encoder, original(encoder, *args, **kwargs), kept)

        return forward


def _with_zeros(encoder: torch.nn.TransformerEncoder, output: Tensor, kept: Tensor) -> Tensor:
    """Put zeros, normalized as all is, where a mask (batch, length) does not hold."""
    padded = ~kept
    if getattr(encoder, "mask_check", True):
        padded = padded & (kept[:, 1:] <= kept[:, :-1]).all()
    nothing = torch.zeros(1, 1, output.shape[-1], dtype=output.dtype, device=output.device)
    nothing = nothing if encoder.norm is None else encoder.norm(nothing)
    return torch.where(padded.unsqueeze(-1), nothing, output)
