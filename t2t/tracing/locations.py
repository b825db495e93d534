"""Where in the user's code a call stands."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

import torch

from t2t.tracing.graph import Location

_HIDDEN = tuple(
    f"{Path(file).resolve().parent}/" for file in (torch.__file__, Path(__file__).parent)
)

_MODULES = f"{Path(torch.__file__).resolve().parent}/nn/modules/"


@functools.cache
def is_hidden(code: CodeType) -> bool:
    """Return whether code is torch's or t2t's, or nobody's: it has no line of the user's."""
    file = code.co_filename
    return file.startswith((*_HIDDEN, "<frozen", "<string>", "<@")) or "/contextlib.py" in file


def user_location(boundary: CodeType) -> Location | None:
    """Find the innermost line that is neither torch's nor t2t's.

    Args:
        boundary: code of the function that runs the user's module; what called that is not looked
            at, so a module of torch's own modules only has no location.
    """
    frame = _user_frame(boundary)
    if frame is None:
        return None
    code = frame.f_code
    return Location(code.co_filename, frame.f_lineno, _name(code))


def _user_frame(boundary: CodeType) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not boundary:
        if not is_hidden(frame.f_code):
            return frame
        frame = frame.f_back
    return None


def called_function(boundary: CodeType, operator: str) -> tuple[str, bool] | None:
    """Name the torch function that the user's line calls now: "torch.linalg.det".

    Args:
        boundary: as for `user_location`.
        operator: name of the operator that the call has led to, "aten::_linalg_det".

    Returns:
        The function's public name, and whether it is called by this name, so that a converter
        registered under it takes the call (``from torch.linalg import det`` makes another name).
        None where the line calls something else, or a method of what may be no tensor.
    """
    frame = _user_frame(boundary)
    called = None if frame is None else _called(frame)
    if frame is None or called is None:
        return None
    path = ast.unparse(called).split(".")
    if isinstance(called, ast.Name | ast.Attribute) and all(map(str.isidentifier, path)):
        scope = {**frame.f_globals, **frame.f_locals}
        owner, found = None, scope.get(path[0])
        for name in path[1:]:
            if isinstance(found, torch.Tensor):
                return _method(name) if name == path[-1] else None
            if not isinstance(found, ModuleType):
                return None
            owner, found = found, getattr(found, name, None)
        public = _public_name(owner, path[-1], found)
        return (public, owner is not None) if public else None
    # A method of an intermediate result: its name must tell that it is the operator's.
    name = path[-1]
    return _method(name) if isinstance(called, ast.Attribute) and name in operator else None


def _name(code: CodeType) -> str:
    """Return a function's name, with that of its class where Python tells (from 3.11)."""
    return str(getattr(code, "co_qualname", code.co_name))


def _called(frame: FrameType) -> ast.expr | None:
    """Return the expression of what a frame calls now, from its source; Python 3.10 lacks it."""
    if sys.version_info < (3, 11):
        return None
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, n) for n in range(first, last + 1)]
    # Columns count bytes.
    lines[-1] = lines[-1].encode()[:end].decode()
    lines[0] = lines[0].encode()[start:].decode()
    try:
        parsed = ast.parse("".join(lines).strip(), mode="eval").body
    except SyntaxError:
        return None
    return parsed.func if isinstance(parsed, ast.Call) else None


def _public_name(owner: ModuleType | None, name: str, found: Any) -> str | None:
    """Find a function in torch's public modules, or in the one that it was read from."""
    homes = (torch.nn.functional, torch.linalg, torch.special, torch.fft, torch)
    # C functions are called "linalg_det" where they stand as torch.linalg.det.
    full = getattr(found, "__name__", "")
    names = [name] if owner is not None else [full, full.partition("_")[2]]
    for home in homes if owner is None else (owner,):
        for known in names:
            public = f"{home.__name__}.{known}"
            if known and callable(found) and getattr(home, known, None) is found:
                return public if public.startswith("torch.") else None
    return None


def _method(name: str) -> tuple[str, bool] | None:
    known = callable(getattr(torch.Tensor, name, None))
    return (f"torch.Tensor.{name}", True) if known else None


def module_location(boundary: CodeType) -> Location | None:
    """Find the innermost line of one of torch's own modules, for a model that has no other lines.

    Args:
        boundary: code of the function that runs the user's module.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not boundary:
        code = frame.f_code
        if code.co_filename.startswith(_MODULES) and "_call_impl" not in code.co_name:
            return Location(code.co_filename, frame.f_lineno, _name(code))
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
        if inside and not is_hidden(code):
            found = Location(code.co_filename, step.tb_lineno, _name(code))
        inside = inside or code is boundary
        step = step.tb_next
    return found
