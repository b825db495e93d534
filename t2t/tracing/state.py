"""Tensors that a module keeps between calls: in buffers, attributes, containers and objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.isolation import ATTRIBUTE, Change, Path, Snapshot, render


def keepable(module: Any, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return copies of the tensors that an engine could keep for a module, by their names.

    Args:
        module: the module.
        names: what its forward pass changes, as "encoder.hidden" or "cache['k']"; of a tuple, a
            container or an object, the tensors in it are meant.
    """
    snapshot, found = Snapshot(module), {}
    for name in names:
        for path, x in snapshot.tensors_at(name).items():
            # A parameter is trained, not kept; other classes of tensors have their own functions.
            if type(x) in (torch.Tensor, torch.nn.Buffer):
                found[path] = x.detach().clone()
    return found


class Places:
    """Where a module holds the tensors that a network keeps for it.

    Args:
        module: the module.
        snapshot: of it, before a call.
        names: of the tensors.
    """

    def __init__(self, module: Any, snapshot: Snapshot, names: Iterable[str]) -> None:
        self._module = module
        self._paths: dict[str, list[Path]] = {}
        self._tensors = {name: snapshot.tensors_at(name)[name] for name in names}
        for name, tensor in self._tensors.items():
            paths = snapshot.paths_to(tensor)
            self._paths[name] = [path for path in paths if _read(module, path) is tensor]

    def put(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Let the module hold another tensor; return the one that it held at first."""
        for path in self._paths[name]:
            _write(self._module, path, tensor)
        return self._tensors[name]

    def others(self, changes: Iterable[Change]) -> list[Change]:
        """Return the changes at other places than these."""
        own = {render(path) for paths in self._paths.values() for path in paths}
        return [change for change in changes if change.path not in own]

    def after_call(self, name: str) -> torch.Tensor:
        """Return what the module holds after a call.

        Raises:
            UnsupportedOperatorError: it is no tensor of the same shape and type as before.
        """
        held = [_read(self._module, path) for path in self._paths[name]]
        before, now = self._tensors[name], held[0] if held else None
        problem = ""
        if not isinstance(now, torch.Tensor):
            problem = (
                f"is a tensor before a call and {type(now).__name__} after it; keep a tensor of "
                "one shape"
            )
        elif any(x is not now for x in held):
            problem = (
                "has several names in the module, of which a call gives only some another tensor; "
                "write into the tensor, or keep it under one name"
            )
        elif now.shape != before.shape or now.dtype != before.dtype:
            problem = (
                f"is {before.dtype} {tuple(before.shape)} before a call and {now.dtype} "
                f"{tuple(now.shape)} after it; keep a tensor of one shape, with a mask or a "
                "position that says what of it counts"
            )
        if problem:
            raise UnsupportedOperatorError(f"the module keeps state in {name!r}, which {problem}")
        assert isinstance(now, torch.Tensor)
        return now


def _read(module: Any, path: Path) -> Any:
    """Return what stands at a path; None where nothing does."""
    owner, form, key = path
    if owner is None:
        return module
    holder = _read(module, owner)
    if form == ATTRIBUTE:
        return _attributes(holder, key).get(key, getattr(holder, key, None))
    try:
        return holder[key]
    except (TypeError, LookupError):
        return None


def _write(module: Any, path: Path, value: Any) -> None:
    owner, form, key = path
    holder = _read(module, owner)
    if isinstance(holder, tuple):
        items = [value if index == key else item for index, item in enumerate(holder)]
        named = hasattr(holder, "_fields")
        _write(module, owner, type(holder)(*items) if named else type(holder)(items))
    elif form != ATTRIBUTE:
        holder[key] = value
    elif key in (table := _attributes(holder, key)):
        table[key] = value
    else:
        setattr(holder, key, value)


def _attributes(holder: Any, name: str) -> dict[str, Any]:
    """Return the table in which an object has an attribute; one of a module knows no parameters."""
    if isinstance(holder, torch.nn.Module):
        tables = (holder._buffers, holder._modules)
        return next((table for table in tables if name in table), vars(holder))
    return getattr(holder, "__dict__", {})
