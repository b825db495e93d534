"""Names of a network's inputs and outputs: of parameters, keys and places."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from t2t.errors import ConversionError
from t2t.io.tree import leaf_paths


def input_names_of(
    structure: Any, parameters: Sequence[str], given: Sequence[str] | None
) -> list[str]:
    """Return the names of a network's inputs.

    Args:
        structure: of the positional and the keyword arguments.
        parameters: names of the positional parameters.
        given: names that the user wants instead, in order.

    Raises:
        ConversionError: those that are given are too many, too few or not different.
    """
    positional, keyword = structure["items"]
    names = []
    for position, item in enumerate(positional["items"]):
        name = parameters[position] if position < len(parameters) else f"input_{position}"
        names += _leaf_names(item, name)
    for key, item in zip(keyword["keys"], keyword["items"], strict=True):
        names += _leaf_names(item, str(key))
    return _given_names("input_names", given, names)


def output_names_of(
    structure: Any, count: int, given: Sequence[str] | None, inputs: Sequence[str]
) -> list[str]:
    """Return the names of a network's outputs.

    Args:
        structure: of what the module returns.
        count: the number of its tensors; one in several places is one output.
        given: names that the user wants instead, in order.
        inputs: names of the inputs.

    Raises:
        ConversionError: those that are given are too many, too few, taken or not different.
    """
    if structure.get("keys"):
        names = [
            leaf
            for key, item in zip(structure["keys"], structure["items"], strict=True)
            for leaf in _leaf_names(item, str(key))
        ]
    else:
        names = _leaf_names(structure, "output")
    # A tensor that stands in several places is one output.
    names = list(dict.fromkeys(names))[:count]
    names = _given_names("output_names", given, names)
    taken = [name for name in names if name in inputs]
    if taken and given is not None:
        raise ConversionError(f"output_names: an input has the name {taken[0]!r} already")
    # Under one name a network has one tensor.
    for name in taken:
        fresh = (f"{name}_{n}" for n in itertools.count(1))
        others = {*names, *inputs}
        names[names.index(name)] = next(new for new in fresh if new not in others)
    return names


def as_name(path: str) -> str:
    """Return a path, as "layers.0['k']", as a name of a tensor: "layers_0_k"."""
    return re.sub(r"[^0-9A-Za-z]+", "_", path).strip("_")


def _leaf_names(structure: Any, name: str) -> list[str]:
    return [
        as_name(path)
        for path, leaf in leaf_paths(structure, name).items()
        if leaf["kind"] == "tensor"
    ]


def _given_names(what: str, given: Sequence[str] | None, names: list[str]) -> list[str]:
    if given is not None and len(given) != len(names):
        raise ConversionError(f"{what} has {len(given)} names, needed are {len(names)}: {names}")
    result = list(given) if given is not None else names
    if len(set(result)) != len(result):
        raise ConversionError(f"{what}: names must differ, but are {result}")
    return result
