"""The sizes that the user declares, in whichever way, brought to one form."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t.errors import ConversionError, ShapeError
from t2t.io import Dimension, Place, Shape, Structure, flatten, range_problem
from t2t.sizes.proofs import Range

DEFAULT_GROWTH, DEFAULT_HIGH = 4, 16
"""A Dim without a max reaches to four times the example's size, and at least to 16."""


@dataclass(frozen=True)
class InputShape:
    """Smallest, usual and largest shape of one input."""

    min: Shape
    opt: Shape
    max: Shape


Profile = list[InputShape]
"""The shapes of all inputs."""


@dataclass
class Declared:
    """What sizes the inputs may have.

    Attributes:
        dimensions: the dynamic dimensions; those of one size, or of multiples of one, together.
        profiles: sets of shapes; sizes must lie within one of them.
        automatic: names of dimensions whose range may be narrowed (Dim.AUTO).
        notes: what was chosen for the user.
    """

    dimensions: list[Dimension] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    automatic: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def boxes(self) -> list[dict[str, Range]]:
        """Return for each profile the range of every dimension, by its name."""
        return [
            {d.name: Range(*_ends(profile, d.places[0]), d.step) for d in self.dimensions}
            for profile in self.profiles
        ]


def _ends(profile: Profile, place: Place) -> tuple[int, int]:
    shape = profile[place.input]
    return place.root(shape.min[place.dim]), place.root(shape.max[place.dim])


def declare(
    structure: Structure,
    names: Sequence[str],
    parameters: Sequence[str],
    examples: Sequence[torch.Tensor],
    *,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
    max_batch_size: int | None = None,
    shape_examples: Any = None,
    profiles: Sequence[Mapping[str, Any]] | None = None,
) -> Declared:
    """Bring the ways of declaring sizes to one form.

    Shapes are given for each input in order, nested as the inputs are, or by name; an input that is
    left out is static.

    Args:
        structure: structure of `(args, kwargs)` of the example inputs.
        names: names of the input tensors.
        parameters: names of the module's positional parameters.
        examples: the example tensors.
        min_shapes: smallest shapes.
        opt_shapes: the shapes to optimize for; by default the examples'.
        max_shapes: largest shapes.
        dynamic_shapes: for each input ``{dim: size}``, where a size is a torch.export.Dim, one
            derived from it (``32 * h``), Dim.AUTO, Dim.DYNAMIC or a pair ``(low, high)``. One Dim
            in several places is one size.
        max_batch_size: dimension 0 of every input is one batch size, from 1 to this.
        shape_examples: an iterable of further inputs. Their sizes and the examples' make the
            ranges, and the most frequent are optimized for.
        profiles: several sets ``{"min": shapes, "opt": shapes, "max": shapes}``.

    Raises:
        ShapeError: the declarations do not fit the examples or each other.
    """
    ways = {
        "min_shapes and max_shapes": min_shapes is not None or max_shapes is not None,
        "shape_examples": shape_examples is not None,
        "profiles": profiles is not None,
        "dynamic_shapes": dynamic_shapes is not None,
    }
    given = [way for way, is_given in ways.items() if is_given]
    if len(given) > 1 and given != ["profiles", "dynamic_shapes"]:
        raise ShapeError(f"give {given[0]}, or {given[1]}, not both")
    if (min_shapes is None) != (max_shapes is None):
        raise ShapeError("min_shapes and max_shapes are given together, or not at all")
    if profiles is not None and not profiles:
        raise ShapeError("profiles is empty")
    if opt_shapes is not None and (profiles or shape_examples or not given):
        raise ShapeError("opt_shapes needs min_shapes and max_shapes, or dynamic_shapes")

    shapes = [tuple(x.shape) for x in examples]
    leaves = Leaves(structure, names, parameters, shapes)
    roots = _Roots(names, shapes)
    for index, dims in enumerate(leaves.spread(dynamic_shapes, "dynamic_shapes")):
        for dim, size in dims.items() if isinstance(dims, Mapping) else enumerate(dims or ()):
            roots.add(index, dim, size)
    if max_batch_size is not None:
        roots.add_batch(max_batch_size)
    best = leaves.spread(opt_shapes, "opt_shapes")
    if profiles is not None:
        sets = [leaves.profile(profile) for profile in profiles]
    elif shape_examples is not None:
        found = [shapes, *shapes_of(shape_examples, structure, names)]
        roots.add_common(found)
        sets = [[extremes(column) for column in zip(*found, strict=True)]]
    else:
        low, high = leaves.spread(min_shapes, "min_shapes"), leaves.spread(max_shapes, "max_shapes")
        sets = [[tuple(three) for three in zip(low, best, high, strict=True)]]
    return roots.declared(sets)


@dataclass
class _Root:
    """A size that dimensions have, or are multiples of."""

    low: int | None
    high: int | None
    example: int
    named: bool = True
    places: list[Place] = field(default_factory=list)


class _Roots:
    """Collects the dynamic dimensions of the inputs."""

    def __init__(self, names: Sequence[str], shapes: Sequence[Shape]) -> None:
        self._names, self._shapes = names, shapes
        self._roots: dict[str, _Root] = {}
        self._result = Declared()

    def _where(self, index: int, dim: int) -> str:
        return f"dimension {dim} of input {self._names[index]!r}"

    def add(self, index: int, dim: Any, size: Any) -> None:
        """Declare one dimension."""
        shape = self._shapes[index]
        if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
            raise ShapeError(
                f"dynamic_shapes: input {self._names[index]!r} has no dimension {dim!r}"
            )
        dim %= len(shape)
        where, example = self._where(index, dim), shape[dim]
        kind = getattr(getattr(size, "type", None), "name", None)
        if size is None or kind == "STATIC":
            return
        if isinstance(size, int):
            if size != example:
                raise ShapeError(f"{where} is {example} in the example, but {size} was declared")
        elif isinstance(size, torch.export.Dim):
            self._add_dim(Place(index, dim, *_line(size)), getattr(size, "root", size), size)
        elif kind in ("AUTO", "DYNAMIC"):
            name = self._add_unnamed(index, dim, size.min, size.max)
            if kind == "AUTO":
                self._result.automatic.add(name)
        elif (
            isinstance(size, tuple | list)
            and len(size) == 2
            and all(isinstance(n, int) for n in size)
        ):
            self._add_unnamed(index, dim, *size)
        else:
            raise ShapeError(
                f"dynamic_shapes: {where} is {size!r}; give torch.export.Dim(name, min=..., "
                "max=...), a multiple of one (32 * h), or (low, high)"
            )

    def add_batch(self, most: int) -> None:
        """Declare dimension 0 of every input as one batch size."""
        if not isinstance(most, int) or most < 1:
            raise ShapeError(f"max_batch_size is {most!r}; it is a number from 1 on")
        taken = [(p.input, p.dim) for root in self._roots.values() for p in root.places]
        batch = torch.export.Dim("batch", min=1, max=most) if most > 1 else 1
        for index, shape in enumerate(self._shapes):
            if shape and (index, 0) in taken:
                raise ShapeError(
                    f"max_batch_size is for {self._where(index, 0)}, which dynamic_shapes declares "
                    "too; leave one of them out"
                )
            if shape:
                self.add(index, 0, batch)

    def _add_dim(self, place: Place, root: Any, size: Any) -> None:
        where, name = self._where(place.input, place.dim), root.__name__
        example = self._shapes[place.input][place.dim]
        if (example - place.offset) % place.factor:
            raise ShapeError(f"{where} is {example} in the example, which is not {size.__name__}")
        # A Dim says 0 where nothing was said.
        low = int(root.min) or None
        high = int(root.max) if isinstance(root.max, int) else None
        new = _Root(low, high, place.root(example))
        known = self._roots.setdefault(name, new)
        if (known.low, known.high) != (low, high):
            raise ShapeError(f"two torch.export.Dim of different ranges have the name {name!r}")
        if known.example != new.example:
            first = self._where(known.places[0].input, known.places[0].dim)
            raise ShapeError(
                f"{name} is {known.example} in {first} of the example, and {new.example} in {where}"
            )
        known.places.append(place)

    def _add_unnamed(self, index: int, dim: int, low: int | None, high: int | None) -> str:
        name = f"{self._names[index]}.shape[{dim}]"
        if name in self._roots:
            raise ShapeError(f"{self._where(index, dim)} is declared twice")
        example = self._shapes[index][dim]
        self._roots[name] = _Root(low, high, example, named=False, places=[Place(index, dim)])
        return name

    def add_common(self, shapes: Sequence[Sequence[Shape]]) -> None:
        """Let a dimension that is the same in several inputs, in all examples, be one size."""
        columns: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for index, column in enumerate(zip(*shapes, strict=True)):
            for dim, sizes in enumerate(zip(*column, strict=False)):
                if len(set(sizes)) > 1:
                    columns.setdefault((dim, sizes), []).append(index)
        for (dim, sizes), indices in columns.items():
            name = f"{self._names[indices[0]]}.shape[{dim}]"
            places = [Place(index, dim) for index in indices]
            self._roots[name] = _Root(min(sizes), max(sizes), sizes[0], named=False, places=places)

    def declared(self, sets: Sequence[Sequence[Any]]) -> Declared:
        """Return the whole declaration.

        Args:
            sets: for each profile, and there for each input, its min, opt and max shape; None where
                the dimensions say it.
        """
        for name, root in self._roots.items():
            self._bound(name, root)
        result = self._result
        result.profiles = [
            [self._shape(index, *three) for index, three in enumerate(threes)] for threes in sets
        ]
        known = {(p.input, p.dim) for root in self._roots.values() for p in root.places}
        for index, shape in enumerate(self._shapes):
            for dim, example in enumerate(shape):
                ends = {n for p in result.profiles for n in (p[index].min[dim], p[index].max[dim])}
                if (index, dim) not in known and len(ends) > 1:
                    self._add_unnamed(index, dim, min(ends), max(ends))
                low, high = min(ends), max(ends)
                if not low <= example <= high:
                    raise ShapeError(
                        f"{self._where(index, dim)}: the example's {example} must lie between min "
                        f"{low} and max {high}"
                    )
        for name, root in self._roots.items():
            values = [n for p in result.profiles for n in self._root_ends(name, root, p)]
            if min(values) != max(values):
                places = tuple(root.places)
                result.dimensions.append(
                    Dimension(name, min(values), max(values), places=places, named=root.named)
                )
        return result

    def _bound(self, name: str, root: _Root) -> None:
        """Choose the bounds that were left out, and say so."""
        if root.high is None:
            root.high = max(DEFAULT_GROWTH * root.example, DEFAULT_HIGH)
            what = f"torch.export.Dim({name!r})" if root.named else self._where(*_first(root))
            self._result.notes.append(
                f"{what} has no max: the engine is built for sizes up to "
                f"{root.places[0].size(root.high)}; give max= for others"
            )
        if root.low is None:
            # No size is negative, and 0 is for those who ask for it.
            needed = (math.ceil((1 - p.offset) / p.factor) for p in root.places)
            root.low = min(max(1, *needed), root.example) if root.named else min(1, root.example)

    def _shape(self, index: int, low: Any, best: Any, high: Any) -> InputShape:
        example, name = self._shapes[index], self._names[index]
        least, most = list(example), list(example)
        for root in self._roots.values():
            for place in root.places:
                if place.input == index:
                    assert root.low is not None
                    assert root.high is not None
                    least[place.dim], most[place.dim] = place.size(root.low), place.size(root.high)
        shapes = [
            tuple(default if given is None else given)
            for given, default in ((low, least), (best, example), (high, most))
        ]
        if best is None:
            # The example's sizes, where they lie within.
            shapes[1] = tuple(min(max(size, a), b) for a, size, b in zip(*shapes, strict=False))
        problem = range_problem((-1,) * len(example), *shapes)
        if problem:
            raise ShapeError(f"input {name!r}: {problem}")
        return InputShape(*shapes)

    def _root_ends(self, name: str, root: _Root, profile: Profile) -> list[int]:
        """Return the least and greatest value of a root in a profile, which all places agree on."""
        ends: list[int] = []
        for part in ("min", "opt", "max"):
            sizes = [getattr(profile[p.input], part)[p.dim] for p in root.places]
            values = set()
            for place, size in zip(root.places, sizes, strict=True):
                if (size - place.offset) % place.factor:
                    raise ShapeError(
                        f"{self._where(place.input, place.dim)}: {part} {size} is not "
                        f"{place.text(name)}"
                    )
                values.add(place.root(size))
            if len(values) > 1:
                where = " and ".join(self._where(p.input, p.dim) for p in root.places)
                raise ShapeError(f"{where} are one size {name}, but {part} has {sizes}")
            ends += values
        low, _, high = ends
        if (
            root.low is not None
            and root.high is not None
            and not root.low <= low <= high <= root.high
        ):
            raise ShapeError(
                f"{name} is declared from {root.low} to {root.high}, not {low} to {high}"
            )
        return [low, high]


def _first(root: _Root) -> tuple[int, int]:
    return root.places[0].input, root.places[0].dim


def _line(size: Any) -> tuple[int, int]:
    """Return factor and offset of a Dim that is derived from another; these are linear."""
    function = getattr(size, "fn", None)
    if function is None:
        return 1, 0
    offset = int(function(0))
    return int(function(1)) - offset, offset


# -- shapes as they are given, for each input ------------------------------------------------------


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
