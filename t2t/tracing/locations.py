"""Where in the user's code a call stands."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch

from t2t.tracing.graph import Location

__all__ = ["module_location", "raised_location", "user_location"]

_HIDDEN = tuple(
    f"{Path(file).resolve().parent}/" for file in (torch.__file__, Path(__file__).parent)
)

_MODULES = f"{Path(torch.__file__).resolve().parent}/nn/modules/"


@functools.cache
def _is_hidden(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith((*_HIDDEN, "<frozen", "<string>", "<@")) or "/contextlib.py" in file


def user_location(boundary: CodeType) -> Location | None:
    """Find the innermost line that is neither torch's nor t2t's.

    Args:
        boundary: code of the function that runs the user's module; what called that is not looked
            at, so a module of torch's own modules only has no location.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not boundary:
        code = frame.f_code
        if not _is_hidden(code):
            return Location(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None


def module_location(boundary: CodeType) -> Location | None:
    """Find the innermost line of one of torch's own modules, for a model that has no other lines.

    Args:
        boundary: code of the function that runs the user's module.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not boundary:
        code = frame.f_code
        if code.co_filename.startswith(_MODULES) and "_call_impl" not in code.co_name:
            return Location(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None


def raised_location(error: BaseException, boundary: CodeType) -> Location | None:
    """Find the line of the user's module that an exception came through last.

    Args:
        error: an exception that was raised while the function ran that runs the module.
        boundary: code of that function.
    """
    found, inside = None, False
    step: TracebackType | None = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if inside and not _is_hidden(code):
            found = Location(code.co_filename, step.tb_lineno, code.co_qualname)
        inside = inside or code is boundary
        step = step.tb_next
    return found
