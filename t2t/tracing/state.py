"""Tensors that a module keeps between calls: buffers, and attributes that hold a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError

__all__ = ["after_call", "keepable", "put"]


def keepable(module: Any, paths: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return copies of the tensors that an engine could keep for a module, by their paths.

    Args:
        module: the module.
        paths: what its forward pass changes, as "encoder.hidden" or "cache['k']".
    """
    found = {}
    for path in paths:
        table, name = _place(module, path)
        x = table.get(name)
        # A parameter is trained, not kept; other classes of tensors have functions of their own.
        if isinstance(x, torch.Tensor) and type(x) in (torch.Tensor, torch.nn.Buffer):
            found[path] = x.detach().clone()
    return found


def put(module: Any, path: str, tensor: torch.Tensor) -> torch.Tensor:
    """Let a module hold another tensor; return the one that it held."""
    table, name = _place(module, path)
    before: torch.Tensor = table[name]
    table[name] = tensor
    return before


def after_call(module: Any, path: str, before: torch.Tensor) -> torch.Tensor:
    """Return what a module holds after a call.

    Raises:
        UnsupportedOperatorError: it is no tensor of the same shape and type as before.
    """
    table, name = _place(module, path)
    now = table.get(name)
    if not isinstance(now, torch.Tensor):
        raise UnsupportedOperatorError(
            f"the module keeps state in {path!r}, which is a tensor before a call and "
            f"{type(now).__name__} after it; keep a tensor of one shape"
        )
    if now.shape != before.shape or now.dtype != before.dtype:
        raise UnsupportedOperatorError(
            f"the module keeps state in {path!r}, which is {before.dtype} {tuple(before.shape)} "
            f"before a call and {now.dtype} {tuple(now.shape)} after it; keep a tensor of one "
            "shape, with a mask or a position that says what of it counts"
        )
    return now


def _place(module: Any, path: str) -> tuple[dict[str, Any], str]:
    """Return the table of a module's attributes that has a path's last name, and that name."""
    owner, _, name = path.rpartition(".")
    try:
        part = module.get_submodule(owner)
    except AttributeError:
        return {}, name
    return (part._buffers if name in part._buffers else vars(part)), name
