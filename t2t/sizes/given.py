"""What is given for nested inputs, brought to one entry for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from t2t.errors import ConversionError, ShapeError
from t2t.io import Shape, Structure, flatten


class Leaves:
    """Brings what is given for nested inputs to one entry for each tensor."""

    def __init__(
        self,
        structure: Structure,
        names: Sequence[str],
        parameters: Sequence[str],
        shapes: Sequence[Shape],
    ) -> None:
        positional, keyword = structure["items"]
        self._arguments = [*positional["items"], *keyword["items"]]
        self._names = list(names)
        self._shapes = shapes
        named = [*parameters[: len(positional["items"])]]
        named += [f"input_{i}" for i in range(len(named), len(positional["items"]))]
        self._by_name = dict(zip([*named, *keyword["keys"]], self._arguments, strict=True))

    def spread(self, given: Any, what: str) -> list[Any]:
        """Return an entry for each tensor; None where nothing is given."""
        found: list[Any] = [None] * len(self._names)
        if given is None:
            return found
        if len(self._names) == 1 and _is_entry(given, len(self._shapes[0])):
            return [given]
        if isinstance(given, Mapping):
            for key, entry in given.items():
                if key in self._names:
                    found[self._names.index(key)] = entry
                elif key in self._by_name:
                    self._visit(self._by_name[key], entry, f"{what}[{key!r}]", found)
                else:
                    raise ShapeError(f"{what}: there is no input {key!r}; inputs: {self._names}")
            return found
        if not isinstance(given, Sequence):
            raise ShapeError(f"{what} is {given!r}; give a list with an entry for each input")
        flat = len(given) == len(self._names) and all(
            entry is None or _is_entry(entry, len(shape))
            for entry, shape in zip(given, self._shapes, strict=True)
        )
        if flat:
            return list(given)
        if len(given) != len(self._arguments):
            raise ShapeError(
                f"{what} has {len(given)} entries, the module has inputs {self._names}"
            )
        for index, (argument, entry) in enumerate(zip(self._arguments, given, strict=True)):
            self._visit(argument, entry, f"{what}[{index}]", found)
        return found

    def _visit(self, node: Structure, entry: Any, path: str, found: list[Any]) -> None:
        if node["kind"] == "tensor":
            if not (entry is None or isinstance(entry, Mapping | Sequence)):
                raise ShapeError(f"{path} is {entry!r}, but the input there is a tensor")
            found[node["index"]] = entry
        if entry is None or node["kind"] in ("tensor", "value"):
            return
        keys = node.get("keys", range(len(node["items"])))
        if isinstance(entry, Mapping) and "keys" in node:
            unknown = [key for key in entry if key not in node["keys"]]
            if unknown:
                raise ShapeError(f"{path}: there is no input {unknown[0]!r}; there are {keys}")
            entries = [entry.get(key) for key in keys]
        elif isinstance(entry, Sequence) and len(entry) == len(node["items"]):
            entries = list(entry)
        else:
            raise ShapeError(
                f"{path} is {entry!r}, but the input is a {node['kind']} of {len(keys)}"
            )
        for key, item, part in zip(keys, node["items"], entries, strict=True):
            self._visit(item, part, f"{path}[{key!r}]", found)

    def profile(self, profile: Any) -> list[Any]:
        """Return min, opt and max shape of each tensor in a profile."""
        if not isinstance(profile, Mapping) or not {"min", "max"} <= set(profile) <= _PARTS:
            raise ShapeError(
                f'a profile is {{"min": shapes, "opt": shapes, "max": shapes}}, not {profile!r}'
            )
        parts = [
            self.spread(profile.get(part), f"profiles: {part}") for part in ("min", "opt", "max")
        ]
        return list(zip(*parts, strict=True))


_PARTS = {"min", "opt", "max"}


def _is_entry(given: Any, rank: int) -> bool:
    """Return whether something is a shape, or the sizes of one tensor's dimensions."""
    if isinstance(given, Mapping):
        return all(isinstance(key, int) for key in given) and bool(given)
    if not isinstance(given, Sequence) or isinstance(given, str):
        return False
    sizes = all(size is None or isinstance(size, int) or _is_dim(size) for size in given)
    return sizes and len(given) == rank


def _is_dim(size: Any) -> bool:
    return isinstance(size, torch.export.Dim) or hasattr(size, "type")


def shapes_of(given: Any, structure: Structure, names: Sequence[str]) -> Iterator[list[Shape]]:
    """Return the shapes of further inputs; they may come from a data set."""
    if not isinstance(given, Iterable):
        # A data set of PyTorch has a length and items, and need not be iterable.
        given = map(given.__getitem__, range(len(given)))
    keys = structure["items"][1]["keys"]
    for number, entry in enumerate(given):
        call: Any = ((entry,) if isinstance(entry, torch.Tensor) else entry, {})
        if isinstance(entry, Mapping) and keys:
            call = ((), entry)
        elif keys and len(call[0]) == 2 and isinstance(call[0][1], Mapping):
            call = entry
        try:
            tensors = flatten(call)[0]
        except ConversionError as error:
            raise ShapeError(f"shape_examples: entry {number}: {error}") from error
        if len(tensors) != len(names):
            raise ShapeError(
                f"shape_examples: entry {number} has {len(tensors)} tensors, the module has inputs "
                f"{list(names)}; give the inputs alone, as (x for x, label in data)"
            )
        yield [tuple(tensor.shape) for tensor in tensors]


def extremes(shapes: Sequence[Shape]) -> tuple[Shape, Shape, Shape]:
    """Return the smallest, most frequent and largest size of each dimension."""
    if len({len(shape) for shape in shapes}) > 1:
        raise ShapeError(f"shape_examples: an input has {set(map(len, shapes))} dimensions")
    columns = [*zip(*shapes, strict=True)]
    # Of sizes that are as frequent, the largest.
    often = [max(Counter(column).items(), key=lambda item: item[::-1])[0] for column in columns]
    return tuple(map(min, columns)), tuple(often), tuple(map(max, columns))
