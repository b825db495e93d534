"""Inputs on the command line: examples from shapes or files, and inputs of other sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from t2t.cli.running import Refusal
from t2t.cli.shapes import InputShape, Size, resolve
from t2t.cli.sources import Source, read_state
from t2t.errors import ConversionError
from t2t.io import Parameters, Shape, Signature, TensorSpec, arguments, map_tree, unflatten

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs of one forward pass."""

Values = Mapping[str, tuple[float, float]]
"""The least and the greatest value of inputs, by their names."""


@dataclass(frozen=True)
class Example:
    """What a module is converted with.

    Attributes:
        call: the example inputs.
        options: arguments of `t2t.convert` that declare the sizes.
    """

    call: Call
    options: dict[str, Any] = field(default_factory=dict)


class Drawer:
    """Draws random inputs.

    Floats are standard normal, integers 0 or 1, booleans true or false, unless a range is given.

    Args:
        values: ranges by the input's name.
        seed: of the numbers.
    """

    def __init__(self, values: Values, seed: int) -> None:
        self.unused = set(values)
        self._guessed: set[str] = set()
        self._values = values
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Return a tensor on the CPU."""
        self.unused.discard(name)
        low, high = self._values.get(name, (0, 1))
        if not dtype.is_floating_point:
            if name not in self._values and dtype != torch.bool and name not in self._guessed:
                self._guessed.add(name)
                click.echo(
                    f"Note: the values of {name} are drawn from 0 and 1; --values {name}=LOW..HIGH "
                    "says others",
                    err=True,
                )
            first, last = _whole(name, dtype, low, high)
            numbers = torch.randint(first, last + 1, tuple(shape), generator=self._generator)
            return numbers.to(dtype)
        if name in self._values:
            uniform = torch.rand(tuple(shape), generator=self._generator)
            return (low + (high - low) * uniform).to(dtype)
        return torch.randn(tuple(shape), generator=self._generator).to(dtype)

    def check(self, names: Sequence[str]) -> None:
        """Raise Refusal if a range was given for an input that there is not."""
        if self.unused:
            raise Refusal(f"--values: no input {min(self.unused)!r}; inputs are {', '.join(names)}")


def _whole(name: str, dtype: torch.dtype, low: float, high: float) -> tuple[int, int]:
    """Return the whole numbers of a range, all of which the type has."""
    first, last = math.ceil(low), math.floor(high)
    least, most = 0, 1
    if dtype != torch.bool:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if not least <= first <= last <= most:
        raise Refusal(
            f"--values {name}={low:g}..{high:g}: {name} is {str(dtype).removeprefix('torch.')}, so "
            f"its values are whole numbers from {least} to {most}"
        )
    return first, last


def example_of(
    source: Source,
    shapes: Sequence[InputShape],
    files: Sequence[Path],
    constants: Mapping[str, Any],
    drawer: Drawer,
) -> Example:
    """Make the example inputs of a module, and declare their sizes.

    Args:
        source: the module, and the inputs that its file holds.
        shapes: what was given as --shape.
        files: what was given as --example: the first is the example, the sizes of all make ranges.
        constants: keyword arguments that are no tensors.
        drawer: draws the example's values.

    Raises:
        Refusal: inputs are missing, or do not fit the module.
    """
    shapes = resolve(shapes)
    parameters = Parameters.of(source.module)
    names = _names(shapes, parameters.positional)
    options: dict[str, Any] = {}
    if files:
        first, *others = (arguments(read_state(path, "--example")) for path in files)
        if others and any(not size.is_fixed for shape in shapes for size in shape.ranges):
            raise Refusal(
                "the ranges are those of --shape, or the sizes of several --example files, not both"
            )
        if others:
            options["shape_examples"] = [kwargs if kwargs else args for args, kwargs in others]
        args, kwargs = first
        _check_shapes(
            {**dict(zip(parameters.positional, args, strict=False)), **kwargs}, names, shapes
        )
    elif shapes:
        drawn = [
            drawer.draw(
                name,
                getattr(torch, shape.dtype or "float32"),
                [size.example for size in shape.ranges],
            )
            for name, shape in zip(names, shapes, strict=True)
        ]
        drawer.check(names)
        args = tuple(x for x, shape in zip(drawn, shapes, strict=True) if not shape.name)
        kwargs = {s.name: x for x, s in zip(drawn, shapes, strict=True) if s.name}
    elif source.example is not None:
        args, kwargs = source.example
    else:
        raise Refusal(f"give the inputs, as --shape or --example: {_wanted(parameters)}")
    twice = [name for name in constants if name in kwargs]
    if twice:
        raise Refusal(f"{twice[0]!r} is given as an input and as --constant")
    call = args, {**kwargs, **constants}
    _check_call(source, call, parameters)
    sizes = _dynamic(names, shapes)
    if any(sizes.values()):
        options["dynamic_shapes"] = sizes
    return Example(call, options)


def _names(shapes: Sequence[InputShape], positional: Sequence[str]) -> list[str]:
    """Name the inputs; those without a name are positional arguments, in order."""
    nameless = iter([*positional, *(f"input_{i}" for i in range(len(positional), len(shapes)))])
    return [shape.name or next(nameless) for shape in shapes]


def _check_shapes(
    inputs: Mapping[str, Any], names: Sequence[str], shapes: Sequence[InputShape]
) -> None:
    """Refuse shapes that do not fit the tensors of an example."""
    for name, shape in zip(names, shapes, strict=True):
        given = inputs.get(name)
        if not isinstance(given, torch.Tensor):
            raise Refusal(
                f"--shape {shape}: the example has no tensor {name!r} among {sorted(inputs)}; the "
                "sizes of several --example files declare those of nested inputs"
            )
        if any(size.usual is not None for size in shape.ranges):
            raise Refusal(
                f"--shape {shape}: the example has the usual sizes; leave the middle number out"
            )
        dtype = str(given.dtype).removeprefix("torch.")
        fits = len(shape.sizes) == given.ndim and all(
            size.low <= n <= size.high and (n - size.low) % size.step == 0
            for size, n in zip(shape.ranges, given.shape, strict=False)
        )
        if not fits or shape.dtype not in ("", dtype):
            own = f"{name}:{dtype}={'x'.join(map(str, given.shape)) or 'scalar'}"
            raise Refusal(f"--shape {shape} does not fit the example, which is {own}")


def _check_call(source: Source, call: Call, parameters: Parameters) -> None:
    try:
        Parameters.check(source.module, *call)
    except ConversionError as error:
        raise Refusal(f"{error}. Give each input: {_wanted(parameters)}") from error


def _wanted(parameters: Parameters) -> str:
    wanted = [
        f"--shape {name}=..."
        for name in (*parameters.positional, *parameters.keyword)
        if name not in parameters.defaults
    ]
    return " ".join(wanted) or "--shape 1x3x224x224"


def _dynamic(names: Sequence[str], shapes: Sequence[InputShape]) -> dict[str, dict[int, Any]]:
    """Declare sizes as `t2t.convert` takes them."""
    taken = {size.name for shape in shapes for size in shape.ranges}
    dims: dict[str, Any] = {}
    declared: dict[str, dict[int, Any]] = {}
    for name, shape in zip(names, shapes, strict=True):
        declared[name] = {}
        for place, size in enumerate(shape.ranges):
            if size.is_fixed:
                continue
            if size.name:
                declared[name][place] = dims.setdefault(size.name, _dim(size, size.name))
            elif size.step == 1:
                declared[name][place] = (size.low, size.high)
            else:
                own = re.sub(r"\W", "_", name) + f"_{place}"
                while own in taken:
                    own += "_"
                declared[name][place] = _dim(size, own)
    return declared


def _dim(size: Size, name: str) -> Any:
    """Make the torch.export.Dim of a range; sizes in steps are multiples of one, and an offset."""
    first, offset = divmod(size.low, size.step)
    if first == 0:  # A Dim with min=0 is one of which no min was said.
        first, offset = 1, offset - size.step
    root = torch.export.Dim(name, min=first, max=first + (size.high - size.low) // size.step)
    sizes = size.step * root if size.step != 1 else root
    return sizes + offset if offset > 0 else sizes - -offset if offset else sizes


def shapes_of(signature: Signature, part: str) -> list[list[Shape]]:
    """Return the shapes of all inputs, for each profile.

    Args:
        signature: of a converted module.
        part: "usual", "min" or "max".

    Raises:
        Refusal: the sizes are not known.
    """
    profiles = signature.profiles or (tuple(map(_range, signature.inputs)),)
    index = ("min", "usual", "max").index(part)
    return [[three[index] for three in profile] for profile in profiles]


def drawn(signature: Signature, shapes: Sequence[Shape], drawer: Drawer) -> Call:
    """Draw the inputs of a converted module, of these shapes."""
    leaves = [
        drawer.draw(spec.name, spec.dtype, shape)
        for spec, shape in zip(signature.inputs, shapes, strict=True)
    ]
    drawer.check([spec.name for spec in signature.inputs])
    args, kwargs = unflatten(signature.input_structure, leaves, signature.classes)
    return tuple(args), dict(kwargs)


def calls(signature: Signature, drawer: Drawer) -> Iterator[tuple[list[Shape], Call]]:
    """Draw inputs of a converted module: of its usual sizes, its smallest and its largest.

    Yields:
        The inputs' shapes, and the arguments of a call; each set of shapes once.
    """
    seen: list[list[Shape]] = []
    for part in ("usual", "min", "max"):
        for shapes in shapes_of(signature, part):
            if shapes not in seen:
                seen.append(shapes)
                yield shapes, drawn(signature, shapes, drawer)


def _range(spec: TensorSpec) -> tuple[Shape, Shape, Shape]:
    if spec.min_shape is None or spec.max_shape is None:
        if -1 in spec.shape:
            raise Refusal(f"the sizes of {spec} are not known")
        return spec.shape, spec.shape, spec.shape
    return spec.min_shape, spec.opt_shape or spec.max_shape, spec.max_shape


def to_device(call: Call, device: torch.device) -> Call:
    """Move the tensors of a call."""

    def moved(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = map_tree(moved, call)
    return args, kwargs
