"""What a converted module answers for the original: attributes that other people's code reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.io import Structure, check_structure, classes_of, flatten, leaf_paths, unflatten

# Larger ones are data, not settings: vocabularies, caches.
_LARGEST = 1000


@dataclass(frozen=True)
class Stored:
    """An attribute as a checkpoint has it: its class is looked up when it is asked for."""

    structure: Structure

    def value(self) -> Any:
        """Return the attribute."""
        return unflatten(self.structure, ())


def attributes_of(module: Any) -> dict[str, Any]:
    """Return a module's public attributes that are settings: plain data, and config objects.

    Plain data is copied; an object whose class is called ...Config is the module's own.
    """
    if not isinstance(module, torch.nn.Module):
        return {}
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        structure = _plain(value)
        if structure is not None:
            found[name] = unflatten(structure, (), classes_of(value))
        elif type(value).__name__.endswith("Config"):
            found[name] = value
    return found


def attribute_data(attributes: Mapping[str, Any]) -> dict[str, Structure]:
    """Return what a checkpoint keeps of the attributes: the plain data."""
    plain = {
        name: value.structure if isinstance(value, Stored) else _plain(value)
        for name, value in attributes.items()
    }
    return {name: structure for name, structure in plain.items() if structure is not None}


def read_attributes(data: Mapping[str, Structure]) -> dict[str, Any]:
    """Read what `attribute_data` returned.

    Raises:
        CheckpointError: it is damaged.
    """
    return {str(name): Stored(check_structure(structure, 0)) for name, structure in data.items()}


def first_parameter(module: Any) -> torch.Tensor | None:
    """Return a module's first parameter, whose dtype and device people take for the module's."""
    return next(module.parameters(), None) if isinstance(module, torch.nn.Module) else None


def _plain(value: Any) -> Structure | None:
    try:
        leaves, structure = flatten(value)
    except (ConversionError, RecursionError):
        return None
    return None if leaves or len(leaf_paths(structure)) > _LARGEST else structure
