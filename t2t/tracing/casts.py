"""What a float32 model says of precision in words that do nothing in float32.

``x.float()`` returns ``x`` itself there, and ``torch.autocast(..., enabled=False)`` switches off
what is off: no operator arrives. Both are noted with the calls, for ``fp16=True`` to respect.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any

import torch

from t2t.precision import Cast
from t2t.torch_internals import ScriptFunction, ScriptMethod, TensorType, unfused
from t2t.tracing.locations import is_hidden
from t2t.tracing.patches import patch
from t2t.tracing.recorder import Recorder

_FLOAT32 = 6
"""torch.float32 in TorchScript's graphs, c10::ScalarType::Float."""


def patch_casts(stack: ExitStack, recorder: Recorder) -> None:
    """Let what casts to float32, and ``torch.autocast``, be noted by a recorder."""
    for name in ("float", "to", "type", "type_as"):
        patch(stack, torch.Tensor, name, functools.partial(_noted, recorder, name))
    for name in ("as_tensor", "asarray"):
        patch(stack, torch, name, functools.partial(_noted, recorder, name))
    for owner in (ScriptFunction, ScriptMethod):
        patch(stack, owner, "__call__", functools.partial(_scripted, recorder))
    patch(stack, torch.autocast, "__enter__", functools.partial(_entered, recorder))
    patch(stack, torch.autocast, "__exit__", functools.partial(_left, recorder))


def _noted(recorder: Recorder, name: str, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def cast_noted(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(x, *args, **kwargs)
        if not recorder.is_active() or not isinstance(x, torch.Tensor):
            return result
        if getattr(result, "dtype", None) != torch.float32:
            return result
        frame = sys._getframe(1)
        if is_hidden(frame.f_code):
            # torch's own code, and t2t's formulas: no word of the model's.
            return result
        cast = _cast(name, frame, args, kwargs)
        return result if cast is None else recorder.note_cast(result, cast)

    return cast_noted


def _cast(name: str, frame: FrameType, args: Any, kwargs: Any) -> Cast | None:
    if name == "float":
        return Cast("float32")
    given = (*args, *kwargs.values())
    other = next((x for x in given if isinstance(x, torch.Tensor)), None)
    if other is not None:
        return Cast("like", other)
    if name != "type" and not any(isinstance(x, torch.dtype) for x in given):
        # To another device or memory format.
        return None
    words = _words(frame.f_code, frame.f_lasti)
    if words & {"float32", ".float32", ".float", ".FloatTensor", "torch.FloatTensor"}:
        return Cast("float32")
    return Cast("like" if ".dtype" in words else "dtype")


@functools.cache
def _words(code: CodeType, position: int) -> frozenset[str]:
    """Return the names, and ``.attributes``, in the arguments of a call that casts.

    ``.to(torch.float32)`` and ``.to(x.dtype)`` are the same in a float32 model, but not in what
    they are for; only the code tells.
    """
    found: set[str] = set()
    for instruction in dis.get_instructions(code):
        word = instruction.argval
        if instruction.offset >= position:
            break
        if word in ("to", "type", "as_tensor", "asarray"):
            found.clear()
        elif isinstance(word, str):
            found.add(f".{word}" if instruction.opname == "LOAD_ATTR" else word)
    return frozenset(found)


def _scripted(recorder: Recorder, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  it takes that place
        if not recorder.is_active():
            return original(self, *args, **kwargs)
        graph = self.inlined_graph  # owns its nodes
        casts = any(map(_casts_up, graph.findAllNodes("aten::to")))
        if casts:
            # They are not seen one by one: what it does with them is float32 as a whole.
            recorder.autocast.append(False)
        try:
            with unfused(self):
                return original(self, *args, **kwargs)
        finally:
            if casts:
                recorder.autocast.pop()

    return __call__


def _casts_up(node: Any) -> bool:
    """Return whether a scripted cast is one of floats, or of what it does not say, to float32."""
    given, *rest = node.inputs()
    kind = given.type().scalarType() if isinstance(given.type(), TensorType) else None
    return kind in (None, "Float") and any(x.toIValue() == _FLOAT32 for x in rest)


def _entered(recorder: Recorder, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def __enter__(self: torch.autocast) -> Any:  # noqa: N807  it takes that place
        if recorder.is_active():
            recorder.autocast.append(self._enabled)
        return original(self)

    return __enter__


def _left(recorder: Recorder, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def __exit__(self: torch.autocast, *error: Any) -> Any:  # noqa: N807  it takes that place
        if recorder.is_active() and recorder.autocast:
            recorder.autocast.pop()
        return original(self, *error)

    return __exit__
