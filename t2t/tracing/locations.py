"""Where in the user's code a call stands."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

from t2t.tracing.graph import Location

__all__ = ["user_location"]

_HIDDEN = tuple(
    f"{Path(file).resolve().parent}/" for file in (torch.__file__, Path(__file__).parent)
)


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
