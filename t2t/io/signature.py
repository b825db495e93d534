"""What a converted module takes and returns: names, dtypes, shapes, ranges and structure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from t2t.dtypes import dtype_name, named_dtype
from t2t.errors import CheckpointError, ShapeError
from t2t.io.tree import VALUES, Structure, check_structure, collect, same_value, unflatten

FORMAT = 2
"""Version of the JSON form; a reader refuses newer ones. Format 1 had no names of sizes."""

Shape = tuple[int, ...]

Profile = tuple[tuple[Shape, Shape, Shape], ...]
"""Minimum, optimum and maximum of each input's shape."""

Facts = list[tuple[torch.Size, torch.dtype, torch.device]]
"""All of a call's tensors that checks ask for: where it is as before, the checks are done."""


def facts_of(tensors: Sequence[torch.Tensor]) -> Facts:
    """Return shape, dtype and device of each tensor."""
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


@dataclass(frozen=True)
class Place:
    """A dimension of an input whose size is ``factor * root + offset``.

    Args:
        input: index of the input.
        dim: the dimension.
        factor: at least 1.
        offset: any integer.
    """

    input: int
    dim: int
    factor: int = 1
    offset: int = 0

    def size(self, root: int) -> int:
        """Return the size of the dimension."""
        return self.factor * root + self.offset

    def root(self, size: int) -> int:
        """Return the root of a size, rounded down."""
        return (size - self.offset) // self.factor

    def text(self, name: str) -> str:
        """Return the size as the user declared it: "32*h", "2*h+1"."""
        product = name if self.factor == 1 else f"{self.factor}*{name}"
        return f"{product}{self.offset:+d}" if self.offset else product


@dataclass(frozen=True)
class Dimension:
    """A number that is the size of dynamic dimensions, or that these are derived from.

    Args:
        name: a unique name: that of the user's Dim, or such as "x.shape[0]".
        low: the least value.
        high: the greatest value.
        step: every step-th value from ``low`` on is allowed.
        places: the dimensions.
        named: whether the name is the user's.
    """

    name: str
    low: int
    high: int
    step: int = 1
    places: tuple[Place, ...] = ()
    named: bool = True

    def __post_init__(self) -> None:
        if not self.low <= self.high or self.step < 1:
            raise ShapeError(f"{self.name}: min {self.low}, max {self.high}, step {self.step}")

    def rule(self, place: Place) -> str:
        """Return which sizes a dimension may have: "a multiple of 32 from 160 to 640"."""
        low, high, step = place.size(self.low), place.size(self.high), place.factor * self.step
        if step == 1:
            return f"{low}..{high}"
        if low % step == 0:
            return f"a multiple of {step} from {low} to {high}"
        if self.step == 1:
            return f"{place.text(self.name)} for {self.name} in {self.low}..{self.high}"
        return f"{low}, {low + step}, ..., {high}"

    def check(self, names: Sequence[str], shapes: Sequence[Shape]) -> None:
        """Raise ShapeError unless all dimensions have sizes that are allowed and fit together."""
        values = range(self.low, self.high + 1, self.step)
        first = self.places[0]
        value = first.root(shapes[first.input][first.dim])
        for place in self.places:
            size = shapes[place.input][place.dim]
            where = f"dimension {place.dim} of input {names[place.input]!r} is {size}"
            root = place.root(size)
            if root not in values or place.size(root) != size:
                raise ShapeError(
                    f"{where}, but must be {self.rule(place)}; convert the module again with "
                    "another range for other sizes"
                )
            if root != value:
                other = f"dimension {first.dim} of {names[first.input]!r}"
                known = first.size(value)
                if place.text("") == first.text(""):
                    raise ShapeError(f"{where}, but must equal {other}, which is {known}")
                raise ShapeError(
                    f"{where}, but must be {place.text(self.name)} = {place.size(value)}, as "
                    f"{other} is {first.text(self.name)} = {known}"
                )


def whole_range(shapes: Sequence[tuple[Shape, Shape, Shape]]) -> tuple[Shape, Shape, Shape]:
    """Return the smallest shape of an input in all profiles, the first's usual, and the largest."""
    low = tuple(map(min, zip(*(three[0] for three in shapes), strict=True)))
    high = tuple(map(max, zip(*(three[2] for three in shapes), strict=True)))
    return low, shapes[0][1], high


def names_of_sizes(dimensions: Sequence[Dimension], index: int, rank: int) -> tuple[str, ...]:
    """Return what the user has called the sizes of an input, such as "32*h"; "" for others."""
    names = [""] * rank
    for dimension in dimensions:
        for place in dimension.places:
            if place.input == index and dimension.named:
                names[place.dim] = place.text(dimension.name)
    return tuple(names)


def range_problem(
    shape: Shape, low: Shape, best: Shape, high: Shape, *, values: bool = False
) -> str:
    """Return what is wrong with the minimum, optimum and maximum of a shape; "" where nothing is.

    Args:
        shape: sizes, -1 for each dynamic dimension.
        low: the minimum.
        best: the optimum.
        high: the maximum.
        values: these are no sizes but the values of a shape tensor, which may be negative.
    """
    rank = len(shape)
    if not len(low) == len(best) == len(high) == rank:
        return f"min {low}, opt {best} and max {high} need {rank} numbers each"
    if not values and min(low, default=0) < 0:
        return f"min {low} has a negative size"
    for dim, (size, least, usual, most) in enumerate(zip(shape, low, best, high, strict=True)):
        if not least <= usual <= most:
            return f"dimension {dim} needs min <= opt <= max, but they are {least}, {usual}, {most}"
        if size != -1 and not least == most == size:
            return f"dimension {dim} is {size} in the network, so it cannot be {least} to {most}"
    return ""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of the network.

    Args:
        name: the network tensor's name.
        dtype: torch's dtype.
        shape: sizes, -1 for each dynamic dimension.
        min_shape: the smallest sizes; with max_shape, or not at all.
        opt_shape: the sizes to optimize for.
        max_shape: the largest sizes.
        sizes: what the sizes are, such as ("batch", "", "21*h*x.shape[1]"), in the names of
            dimensions; "" for one without a name.

    Raises:
        ShapeError: the shapes do not fit together.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    min_shape: Shape | None = None
    opt_shape: Shape | None = None
    max_shape: Shape | None = None
    sizes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.min_shape is None) != (self.max_shape is None):
            raise ShapeError(f"{self.name!r}: min_shape and max_shape are given together or not")
        if self.min_shape is None or self.max_shape is None:
            return
        opt = self.max_shape if self.opt_shape is None else self.opt_shape
        problem = range_problem(self.shape, self.min_shape, opt, self.max_shape)
        if problem:
            raise ShapeError(f"{self.name!r}: {problem}")

    def __str__(self) -> str:
        return f"{self.name}: {dtype_name(self.dtype)} {self.shape_text()}"

    def shape_text(self) -> str:
        """Return the shape with its ranges: "(batch=1..16, 3, 224, 224)"; "?" is any size."""
        sizes = [self._size_text(dim) for dim in range(len(self.shape))]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def _size_text(self, dim: int) -> str:
        if self.shape[dim] != -1:
            return str(self.shape[dim])
        name = self.sizes[dim] if self.sizes else ""
        if "[" in name:  # no name of the user's
            name = ""
        if self.min_shape is None or self.max_shape is None:
            return name or "?"
        low, high = self.min_shape[dim], self.max_shape[dim]
        values = str(low) if low == high else f"{low}..{high}"
        return f"{name}={values}" if name else values

    def check(self, tensor: torch.Tensor) -> None:
        """Raise ShapeError unless the tensor has this dtype and a shape within the range."""
        shape = tensor.shape
        if tensor.dtype != self.dtype:
            advice = f"give it as .to({self.dtype})"
        elif len(shape) != len(self.shape):
            advice = f"it must have {len(self.shape)} dimensions"
        else:
            if shape == self.shape:
                return
            wrong = [dim for dim, size in enumerate(shape) if not self._allows(dim, size)]
            if not wrong:
                return
            size = self._size_text(wrong[0]).rpartition("=")[2]
            advice = f"dimension {wrong[0]} must be {size}"
            advice += "; convert the module again with a wider range for another size"
        raise ShapeError(
            f"input {self.name!r} is {dtype_name(tensor.dtype)} {tuple(shape)}, but "
            f"{dtype_name(self.dtype)} {self.shape_text()} was declared: {advice}"
        )

    def _allows(self, dim: int, size: int) -> bool:
        if self.shape[dim] != -1:
            return size == self.shape[dim]
        if self.min_shape is None or self.max_shape is None:
            return True
        return self.min_shape[dim] <= size <= self.max_shape[dim]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a converted module.

    Args:
        inputs: the network's inputs, in the order of the input structure's leaves.
        outputs: the network's outputs, in the order of the output structure's leaves.
        input_structure: structure of `(args, kwargs)`, as `flatten((args, kwargs))` gives it.
        output_structure: structure of what the module returns.
        dimensions: what the dynamic dimensions are, and which belong together.
        parameters: names of the module's positional parameters, so that an argument can be given
            by position or by name, whichever way the example came.
        defaults: plain default values of the module's parameters, so that an argument that has
            its default value can be given or left out, whichever way the example was.
        classes: the containers' classes by their names in the output structure, for those that
            cannot be looked up by name; a checkpoint does not hold them.
        profiles: several sets of shapes, where there are; the inputs' must lie within one of them.
        notes: what was decided about sizes, for the user to know.
        state: what the module keeps between calls, by its path in the original: the last inputs,
            which a call does not give, and the last outputs, which it does not return.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_structure: Structure
    output_structure: Structure
    dimensions: tuple[Dimension, ...] = ()
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    classes: Mapping[str, type] = field(default_factory=dict, compare=False, repr=False)
    profiles: tuple[Profile, ...] = ()
    notes: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    _known: ClassVar[Facts | None] = None

    def __post_init__(self) -> None:
        for specs in (self.inputs, self.outputs):
            names = [spec.name for spec in specs]
            if len(set(names)) != len(names):
                raise ShapeError(f"tensor names must differ, but are {names}")
        for place in (place for dimension in self.dimensions for place in dimension.places):
            if not 0 <= place.dim < len(self.inputs[place.input].shape) or place.factor < 1:
                raise ShapeError(f"dimensions: input {place.input} has no dimension {place.dim}")
        if any(len(profile) != len(self.inputs) for profile in self.profiles):
            raise ShapeError("profiles: each needs the shapes of all inputs")
        for before, after in self.kept():
            if (before.dtype, before.shape) != (after.dtype, after.shape) or -1 in before.shape:
                raise ShapeError(f"state: {before} cannot become {after}")

    @classmethod
    def flat(cls, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Signature:
        """Make the signature of a bare network: tensors in order, one or a tuple of them out."""
        args = {"kind": "tuple", "items": _leaves(len(inputs))}
        kwargs: Structure = {"kind": "dict", "keys": [], "items": []}
        several: Structure = {"kind": "tuple", "items": _leaves(len(outputs))}
        return cls(
            tuple(inputs),
            tuple(outputs),
            {"kind": "tuple", "items": [args, kwargs]},
            several["items"][0] if len(outputs) == 1 else several,
            parameters=tuple(spec.name for spec in inputs),
        )

    @cached_property
    def _only_tensors(self) -> int:
        """Number of inputs where the call is nothing but positional tensors in order, else -1."""
        positional, keyword = self.input_structure["items"]
        places = [item.get("index") for item in positional["items"]]
        plain = len(self.inputs) - len(self.state)
        return -1 if keyword["keys"] or places != [*range(plain)] else len(places)

    @cached_property
    def _is_one_tensor(self) -> bool:
        return bool(self.output_structure["kind"] == "tensor")

    @cached_property
    def names(self) -> tuple[list[str], list[str]]:
        """Names of the inputs and of the outputs, in order."""
        return [spec.name for spec in self.inputs], [spec.name for spec in self.outputs]

    def ranges(self) -> list[dict[str, Any]]:
        """Return min, opt and max shape of every dynamic input by its name, in each profile."""
        dynamic = [i for i, spec in enumerate(self.inputs) if spec.min_shape is not None]
        own = [(spec.min_shape, spec.opt_shape, spec.max_shape) for spec in self.inputs]
        profiles = self.profiles or [own]
        return [{self.inputs[i].name: p[i] for i in dynamic} for p in profiles if dynamic]

    def kept(self) -> list[tuple[TensorSpec, TensorSpec]]:
        """Return for all that is kept between calls the input and the output which it is."""
        count = len(self.state)
        if count > min(len(self.inputs), len(self.outputs)):
            raise ShapeError(f"state: {count} tensors, which are not all inputs and outputs")
        pairs = zip(self.inputs[-count:], self.outputs[-count:], strict=True) if count else ()
        return list(pairs)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of the inputs, their shapes unchecked.

        Raises:
            ShapeError: arguments are missing, unknown, of another structure, or another constant.
        """
        if not kwargs and len(args) == self._only_tensors:
            for tensor in args:
                if not isinstance(tensor, torch.Tensor):
                    break
            else:
                return list(args)
        return self._bind(args, kwargs)

    @cached_property
    def _arguments(self) -> dict[str, Structure]:
        """The structure of each argument, by the parameter's name."""
        positional, keyword = self.input_structure["items"]
        wanted = {self._name(place): item for place, item in enumerate(positional["items"])}
        return {**wanted, **dict(zip(keyword["keys"], keyword["items"], strict=True))}

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        wanted = self._arguments
        given = {self._name(place): value for place, value in enumerate(args)}
        for name, value in kwargs.items():
            if name in given:
                raise ShapeError(f"argument {name!r} is given by position and by name")
            given[name] = value
        leaves: dict[int, torch.Tensor] = {}
        for name, item in wanted.items():
            if name in given:
                collect(item, given[name], name, leaves)
            elif not (item["kind"] == "value" and self._is_default(name, item["value"])):
                was = f" (it was {item['value']!r} at conversion)" if "value" in item else ""
                raise ShapeError(f"argument {name!r} is missing{was}; {self._call_text}")
        for name, value in given.items():
            if name not in wanted and not self._is_default(name, value):
                raise ShapeError(self._unwanted(name))
        return [leaves[index] for index in range(len(leaves))]

    def _name(self, place: int) -> str:
        return self.parameters[place] if place < len(self.parameters) else f"inputs[{place}]"

    def _is_default(self, name: str, value: Any) -> bool:
        return name in self.defaults and same_value(self.defaults[name], value)

    def _unwanted(self, name: str) -> str:
        if name in self.parameters or name in self.defaults:
            default = f" (default {self.defaults[name]!r})" if name in self.defaults else ""
            return (
                f"argument {name!r}{default} was left out when the module was converted: convert "
                f"again with it, or leave it out; {self._call_text}"
            )
        near = difflib.get_close_matches(
            name, [*self._arguments, *self.parameters, *self.defaults], 1
        )
        hint = f", did you mean {near[0]!r}?" if near else ";"
        return f"unknown argument {name!r}{hint} {self._call_text}"

    @property
    def _call_text(self) -> str:
        return f"the converted module takes ({', '.join(self._arguments)})"

    def check(self, tensors: Sequence[torch.Tensor]) -> Facts:
        """Check the dtypes, shapes, ranges, relations and devices of the inputs, in order.

        Returns:
            What the inputs were checked for.

        Raises:
            ShapeError: names the input, what it is, what was declared and what to do.
        """
        facts = facts_of(tensors)
        if facts == self._known:
            # The very list, which an execution knows again at a glance.
            return self._known
        if len(tensors) != len(self.inputs):
            raise ShapeError(f"expected {len(self.inputs)} tensors, got {len(tensors)}")
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            spec.check(tensor)
        names = [spec.name for spec in self.inputs]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        for dimension in self.dimensions:
            dimension.check(names, shapes)
        if self.profiles and not any(_fits(profile, shapes) for profile in self.profiles):
            text = ", ".join(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))
            sets = "; ".join(
                ", ".join(f"{name} {a} to {b}" for name, (a, _, b) in zip(names, p, strict=True))
                for p in self.profiles
            )
            raise ShapeError(f"the shapes {text} lie in none of the profiles: {sets}")
        devices = sorted({str(device) for _, _, device in facts})
        if len(devices) > 1:
            raise ShapeError(f"the inputs are on several devices: {devices}")
        self.__dict__["_known"] = facts  # most calls are like the one before
        return facts

    def result(self, outputs: Sequence[torch.Tensor]) -> Any:
        """Return what the module returns, made of the network's outputs in order."""
        if self._is_one_tensor:
            return outputs[0]
        leaves = outputs[: len(outputs) - len(self.state)]
        return unflatten(self.output_structure, leaves, self.classes)

    def to_data(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        return {
            "format": FORMAT,
            "inputs": [_spec_data(spec) for spec in self.inputs],
            "outputs": [_spec_data(spec) for spec in self.outputs],
            "input_structure": self.input_structure,
            "output_structure": self.output_structure,
            "dimensions": [_dimension_data(dimension) for dimension in self.dimensions],
            "parameters": self.parameters,
            "defaults": dict(self.defaults),
            "profiles": self.profiles,
            "notes": self.notes,
            "state": self.state,
        }

    @classmethod
    def from_data(cls, data: Any) -> Signature:
        """Read what `to_data` gave, checking everything.

        Raises:
            CheckpointError: it is damaged, or a newer t2t wrote it.
        """
        try:
            if data["format"] > FORMAT:
                raise CheckpointError(
                    f"the signature has format {data['format']}, this t2t reads up to {FORMAT}: "
                    "update t2t"
                )
            inputs = tuple(_spec(item) for item in data["inputs"])
            outputs = tuple(_spec(item) for item in data["outputs"])
            state = tuple(str(path) for path in data.get("state", ()))
            structure = check_structure(data["input_structure"], len(inputs) - len(state))
            if [item["kind"] for item in structure["items"]] != ["tuple", "dict"]:
                raise CheckpointError("the input structure is not one of args and kwargs")
            return cls(
                inputs,
                outputs,
                structure,
                check_structure(data["output_structure"], len(outputs) - len(state)),
                _dimensions(data) if "dimensions" in data else _tied(data["tied"], inputs),
                tuple(str(parameter) for parameter in data["parameters"]),
                _plain_values(data.get("defaults", {})),
                profiles=tuple(_profile(item) for item in data.get("profiles", ())),
                notes=tuple(str(note) for note in data.get("notes", ())),
                state=state,
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CheckpointError(f"the signature is damaged: {error!r}") from error

    def to_json(self) -> str:
        """Return the signature as JSON."""
        return json.dumps(self.to_data())

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Read what `to_json` gave; CheckpointError as for `from_data`."""
        try:
            return cls.from_data(json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise CheckpointError(f"the signature is no JSON: {error}") from error


def _plain_values(data: Any) -> dict[str, Any]:
    if not all(type(key) is str and type(value) in VALUES for key, value in data.items()):
        raise TypeError("defaults that are no plain values")
    return dict(data)


def _leaves(count: int) -> list[Structure]:
    return [{"kind": "tensor", "index": index} for index in range(count)]


def _fits(profile: Profile, shapes: Sequence[Shape]) -> bool:
    return all(
        a <= size <= b
        for (low, _, high), shape in zip(profile, shapes, strict=True)
        for a, size, b in zip(low, shape, high, strict=True)
    )


def _dimension_data(dimension: Dimension) -> dict[str, Any]:
    return {**vars(dimension), "places": [vars(place) for place in dimension.places]}


def _dimensions(data: Mapping[str, Any]) -> tuple[Dimension, ...]:
    parts = ("input", "dim", "factor", "offset")
    return tuple(
        Dimension(
            str(item["name"]),
            int(item["low"]),
            int(item["high"]),
            int(item["step"]),
            tuple(Place(*(int(place[key]) for key in parts)) for place in item["places"]),
            bool(item["named"]),
        )
        for item in data["dimensions"]
    )


def _tied(groups: Any, inputs: Sequence[TensorSpec]) -> tuple[Dimension, ...]:
    """Read the groups of equal dimensions of format 1."""
    found = []
    for group in groups:
        places = tuple(Place(int(index), int(dim)) for index, dim in group)
        spec, dim = inputs[places[0].input], places[0].dim
        if spec.min_shape is None or spec.max_shape is None:
            raise CheckpointError(f"the input {spec.name!r} has no range")
        low, high = spec.min_shape[dim], spec.max_shape[dim]
        name = f"{spec.name}.shape[{dim}]"
        found.append(Dimension(name, low, high, places=places, named=False))
    return tuple(found)


def _profile(data: Any) -> Profile:
    return tuple((_shape(low), _shape(best), _shape(high)) for low, best, high in data)


def _shape(data: Any) -> Shape:
    return tuple(int(size) for size in data)


def _spec_data(spec: TensorSpec) -> dict[str, Any]:
    return {**vars(spec), "dtype": dtype_name(spec.dtype)}


def _spec(data: dict[str, Any]) -> TensorSpec:
    dtype = named_dtype(data["dtype"])
    shapes = [data["shape"], data["min_shape"], data["opt_shape"], data["max_shape"]]
    read = [None if shape is None else _shape(shape) for shape in shapes]
    if read[0] is None:
        raise TypeError("a tensor without a shape")
    sizes = tuple(str(size) for size in data.get("sizes", ()))
    shape, low, best, high = read[0], *read[1:]
    return TensorSpec(str(data["name"]), dtype, shape, low, best, high, sizes)
