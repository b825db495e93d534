"""What a converted module takes and returns: names, dtypes, shapes, ranges and structure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from t2t.errors import CheckpointError, ShapeError
from t2t.structure import Structure, check_structure, flatten, leaf_paths, match, unflatten

__all__ = [
    "FORMAT",
    "Shape",
    "Signature",
    "Structure",
    "TensorSpec",
    "flatten",
    "leaf_paths",
    "match",
    "unflatten",
]

FORMAT = 1
"""Version of the JSON form; a reader refuses newer ones."""

Shape = tuple[int, ...]


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

    Raises:
        ShapeError: the shapes do not fit together.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    min_shape: Shape | None = None
    opt_shape: Shape | None = None
    max_shape: Shape | None = None

    def __post_init__(self) -> None:
        if (self.min_shape is None) != (self.max_shape is None):
            raise ShapeError(f"{self.name!r}: min_shape and max_shape are given together or not")
        if self.min_shape is None or self.max_shape is None:
            return
        opt = self.max_shape if self.opt_shape is None else self.opt_shape
        rank = len(self.shape)
        if not len(self.min_shape) == len(opt) == len(self.max_shape) == rank:
            raise ShapeError(f"{self.name!r}: min, opt and max shapes need {rank} dimensions")
        for dim, (size, low, best, high) in enumerate(
            zip(self.shape, self.min_shape, opt, self.max_shape, strict=True)
        ):
            if not low <= best <= high or (size != -1 and not low == high == size):
                raise ShapeError(
                    f"{self.name!r}: dimension {dim} is {size} with the range {low} <= {best} "
                    f"<= {high}; sizes need min <= opt <= max, static ones are equal"
                )

    def __str__(self) -> str:
        return f"{self.name}: {_dtype_name(self.dtype)} {self.shape_text()}"

    def shape_text(self) -> str:
        """Give the shape with its ranges: "(1..16, 3, 224, 224)"; "?" is any size."""
        sizes = [self._size_text(dim) for dim in range(len(self.shape))]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def _size_text(self, dim: int) -> str:
        if self.shape[dim] != -1:
            return str(self.shape[dim])
        if self.min_shape is None or self.max_shape is None:
            return "?"
        return f"{self.min_shape[dim]}..{self.max_shape[dim]}"

    def check(self, tensor: torch.Tensor) -> None:
        """Raise ShapeError unless the tensor has this dtype and a shape within the range."""
        shape = tensor.shape
        if tensor.dtype == self.dtype and len(shape) == len(self.shape):
            wrong = [dim for dim, size in enumerate(shape) if not self._allows(dim, size)]
            if not wrong:
                return
            advice = f"dimension {wrong[0]} must be {self._size_text(wrong[0])}"
            advice += "; convert the module again with a wider range for another size"
        elif tensor.dtype != self.dtype:
            advice = f"give it as .to({self.dtype})"
        else:
            advice = f"it must have {len(self.shape)} dimensions"
        raise ShapeError(
            f"input {self.name!r} is {_dtype_name(tensor.dtype)} {tuple(shape)}, but "
            f"{_dtype_name(self.dtype)} {self.shape_text()} was declared: {advice}"
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
        tied: groups of (input index, dimension) whose sizes must be equal at run time.
        parameters: names of the module's positional parameters, so that an argument can be given
            by position or by name, whichever way the example came.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_structure: Structure
    output_structure: Structure
    tied: tuple[tuple[tuple[int, int], ...], ...] = ()
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for specs in (self.inputs, self.outputs):
            names = [spec.name for spec in specs]
            if len(set(names)) != len(names):
                raise ShapeError(f"tensor names must differ, but are {names}")
        for input_index, dim in (place for group in self.tied for place in group):
            if not 0 <= dim < len(self.inputs[input_index].shape):
                raise ShapeError(f"tied: input {input_index} has no dimension {dim}")

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

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Give the tensors of a call in the order of the inputs, unchecked but for the structure.

        Raises:
            ShapeError: arguments are missing, extra, of another structure, or another constant.
        """
        positional, keyword = self.input_structure["items"]
        args, kwargs = list(args), dict(kwargs)
        known = self.parameters
        wanted = len(positional["items"])
        while len(args) < min(wanted, len(known)) and known[len(args)] in kwargs:
            args.append(kwargs.pop(known[len(args)]))
        while wanted < len(args) <= len(known):
            name = known[len(args) - 1]
            if name not in keyword["keys"] or name in kwargs:
                break
            kwargs[name] = args.pop()
        if len(args) != wanted:
            raise ShapeError(f"expected {wanted} positional arguments, got {len(args)}")
        if set(kwargs) != set(keyword["keys"]):
            raise ShapeError(f"expected keyword arguments {keyword['keys']}, got {list(kwargs)}")
        return match(self.input_structure, (args, kwargs), "inputs")

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Check the dtypes, shapes, ranges and tied sizes of the inputs, in order.

        Raises:
            ShapeError: names the input, what it is, what was declared and what to do.
        """
        if len(tensors) != len(self.inputs):
            raise ShapeError(f"expected {len(self.inputs)} tensors, got {len(tensors)}")
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            spec.check(tensor)
        for group in self.tied:
            first, *others = group
            size = tensors[first[0]].shape[first[1]]
            for index, dim in others:
                if tensors[index].shape[dim] != size:
                    raise ShapeError(
                        f"dimension {dim} of input {self.inputs[index].name!r} is "
                        f"{tensors[index].shape[dim]}, but must equal dimension {first[1]} of "
                        f"{self.inputs[first[0]].name!r}, which is {size}"
                    )

    def to_data(self) -> dict[str, Any]:
        """Give plain data that JSON can hold."""
        return {
            "format": FORMAT,
            "inputs": [_spec_data(spec) for spec in self.inputs],
            "outputs": [_spec_data(spec) for spec in self.outputs],
            "input_structure": self.input_structure,
            "output_structure": self.output_structure,
            "tied": self.tied,
            "parameters": self.parameters,
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
            structure = check_structure(data["input_structure"], len(inputs))
            if [item["kind"] for item in structure["items"]] != ["tuple", "dict"]:
                raise CheckpointError("the input structure is not one of args and kwargs")
            return cls(
                inputs,
                outputs,
                structure,
                check_structure(data["output_structure"], len(outputs)),
                tuple(tuple((int(i), int(d)) for i, d in group) for group in data["tied"]),
                tuple(str(parameter) for parameter in data["parameters"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CheckpointError(f"the signature is damaged: {error!r}") from error

    def to_json(self) -> str:
        """Give the signature as JSON."""
        return json.dumps(self.to_data())

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Read what `to_json` gave; CheckpointError as for `from_data`."""
        try:
            return cls.from_data(json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise CheckpointError(f"the signature is no JSON: {error}") from error


def _leaves(count: int) -> list[Structure]:
    return [{"kind": "tensor", "index": index} for index in range(count)]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _spec_data(spec: TensorSpec) -> dict[str, Any]:
    return {**vars(spec), "dtype": _dtype_name(spec.dtype)}


def _spec(data: dict[str, Any]) -> TensorSpec:
    dtype = getattr(torch, data["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{data['dtype']!r} is no dtype")
    shapes = [data["shape"], data["min_shape"], data["opt_shape"], data["max_shape"]]
    read = [None if shape is None else tuple(int(size) for size in shape) for shape in shapes]
    if read[0] is None:
        raise TypeError("a tensor without a shape")
    return TensorSpec(str(data["name"]), dtype, read[0], *read[1:])
