"""Replacing torch's functions for the time of a trace, and putting back exactly what was there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

TRACE_LOCK = threading.RLock()
"""Held while torch is patched: two traces at once would restore each other's functions."""

_MISSING = object()


def patch(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by ``make(original)`` until the stack closes.

    An attribute that a class inherits is deleted again, not written over; static and class methods
    stay what they are.
    """
    original = getattr(owner, name)
    own = vars(owner).get(name, _MISSING)
    replacement = make(original)
    if isinstance(own, staticmethod):
        replacement = staticmethod(replacement)

    def restore() -> None:
        if own is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    stack.callback(restore)
    setattr(owner, name, replacement)
