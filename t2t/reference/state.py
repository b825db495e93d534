"""Programs to and from a checkpoint: one JSON string and the weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from t2t.dtypes import dtype_name, named_dtype
from t2t.errors import CheckpointError, UnsupportedLayerError
from t2t.reference.layer import TORCH, Layer, TensorInfo, spec_of
from t2t.reference.shared import Place, find, logical_shape
from t2t.reference.text import Sizes

_FORMAT = 2
Parts = tuple[list[TensorInfo], list[TensorInfo], list[Layer], str, dict[str, list[str]]]


def to_state(
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    layers: Sequence[Layer],
    made: str,
    sizes: Sizes,
    memory: Tensor | None = None,
) -> dict[str, Tensor | str]:
    """Return "program" (JSON) and "weights.<i>"; memory used by several layers is kept once.

    Args:
        inputs: the parts of a program, as the following ones.
        outputs: what leaves it.
        layers: its layers.
        made: the TensorRT that made it.
        sizes: the sizes of tensors by their names, as texts.
        memory: bytes that are saved anyway, such as a plan; weights that stand there are not saved
            again.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    weights: list[tuple[Tensor, tuple[int, ...]]] = []

    def number(layer: Layer, name: str, tensor: Tensor) -> int:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in numbers:
            numbers[key] = len(numbers)
            weights.append((tensor, logical_shape(layer, name, tensor)))
        return numbers[key]

    rows = [
        {
            "kind": layer.kind,
            "name": layer.name,
            "attributes": layer.attributes,
            "inputs": layer.inputs,
            "outputs": layer.outputs,
            "types": layer.types,
            "shapes": layer.shapes,
            "weights": {name: number(layer, name, w) for name, w in layer.weights.items()},
            "metadata": layer.metadata,
        }
        for layer in layers
    ]
    places = [None] * len(weights) if memory is None else find(weights, memory)
    program = {
        "format": _FORMAT,
        "made_by": made,
        "inputs": [_info_row(info) for info in inputs],
        "outputs": [_info_row(info) for info in outputs],
        "layers": rows,
        "places": {i: _place_row(place) for i, place in enumerate(places) if place is not None},
        "sizes": sizes,
    }
    entries: dict[str, Tensor | str] = {
        f"weights.{i}": tensor.reshape(-1)
        for i, ((tensor, _), place) in enumerate(zip(weights, places, strict=True))
        if place is None
    }
    entries["program"] = json.dumps(program)
    return entries


def _info_row(info: TensorInfo) -> list[Any]:
    return [info.name, dtype_name(info.dtype), info.shape]


def _place_row(place: Place) -> list[Any]:
    return [place.offset, dtype_name(place.dtype), place.shape, place.order]


def from_state(entries: Mapping[str, Any], memory: Tensor | None = None) -> Parts:
    """Read what `to_state` returned, checking everything.

    Args:
        entries: the entries.
        memory: the bytes that some of the weights stand in.

    Raises:
        CheckpointError: says what is wrong.
    """
    text = entries.get("program") if isinstance(entries, Mapping) else None
    if not isinstance(text, str):
        raise CheckpointError('no program here: there is no string under "program"')
    try:
        program = json.loads(text)
        found = program["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"the program is damaged: {error!r}") from error
    if found not in (1, _FORMAT):
        raise CheckpointError(f"the program has format {found}; this t2t reads up to {_FORMAT}")
    try:
        weights = _Weights(entries, memory, program.get("places", {}))
        layers = [_layer(row, weights) for row in program["layers"]]
        inputs = [_info(row) for row in program["inputs"]]
        outputs = [_info(row) for row in program["outputs"]]
        for problem in _problems(inputs, outputs, layers, str(program["made_by"])):
            raise CheckpointError(f"the program is damaged: {problem}")
        # Programs of t2t 0.1 have no names of sizes.
        sizes = {name: list(map(str, s)) for name, s in program.get("sizes", {}).items()}
        return inputs, outputs, layers, str(program["made_by"]), sizes
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"the program is damaged: {error!r}") from error


class _Weights:
    """The weights by number, from entries of their own or from shared memory."""

    def __init__(
        self, entries: Mapping[str, Any], memory: Tensor | None, places: Mapping[str, Any]
    ) -> None:
        self._entries, self._memory = entries, memory
        self._places = {int(number): _place(row) for number, row in places.items()}
        self._read: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> Tensor:
        if number not in self._read:
            self._read[number] = self._find(number)
        return self._read[number]

    def _find(self, number: int) -> Tensor:
        if number in self._places:
            if self._memory is None:
                raise ValueError(f"weights {number} stand in a plan, which is not there")
            return self._places[number].read(self._memory)
        tensor = self._entries[f"weights.{number}"]
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.dim() != 1:
            raise TypeError(f"weights.{number} is no tensor of one dimension")
        # Where torch.load put them (map_location) does not matter: runs move them themselves.
        return tensor.detach().cpu()


def _place(row: Sequence[Any]) -> Place:
    offset, dtype, shape, order = row
    place = Place(int(offset), named_dtype(dtype), tuple(map(int, shape)), tuple(map(int, order)))
    if sorted(place.order) != [*range(len(place.shape))]:
        raise ValueError(f"no permutation: {order}")
    return place


def _info(row: Sequence[Any]) -> TensorInfo:
    name, dtype, shape = row
    return TensorInfo(str(name), named_dtype(dtype), tuple(map(int, shape)))


def _layer(row: Mapping[str, Any], weights: _Weights) -> Layer:
    return Layer(
        kind=row["kind"],
        name=row["name"],
        attributes=dict(row["attributes"]),
        inputs=tuple(row["inputs"]),
        outputs=tuple(row["outputs"]),
        types=tuple(row["types"]),
        shapes=tuple(None if shape is None else tuple(shape) for shape in row["shapes"]),
        weights={name: weights[int(number)] for name, number in row["weights"].items()},
        metadata=row["metadata"],
    )


def _problems(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], layers: Sequence[Layer], made: str
) -> Iterator[str]:
    """Return what keeps a program from running: unknown names and weights that do not fit."""
    shapes: dict[str, Any] = {info.name: info.shape for info in inputs}
    for layer in layers:
        if not len(layer.outputs) == len(layer.types) == len(layer.shapes):
            yield f"layer {layer.name!r} has outputs without type or shape"
        unknown = [kind for kind in layer.types if kind not in TORCH]
        if unknown:
            yield f"layer {layer.name!r} is of type {unknown[0]!r}"
        shapes.update(zip(layer.outputs, layer.shapes, strict=False))
    needed = [(layer.name, name) for layer in layers for name in layer.inputs]
    for reader, tensor in [*needed, *(("the output", info.name) for info in outputs)]:
        if tensor is not None and tensor not in shapes:
            yield f"{reader!r} reads {tensor!r}, which no layer makes"
    for layer in layers:
        try:
            known = spec_of(layer.kind, layer.name, made).weights
        except UnsupportedLayerError as error:
            yield str(error)
            continue
        for name, weight in layer.weights.items():
            if name not in known:
                yield f"{layer.kind} {layer.name!r} has weights {name!r}"
            elif not _fits(layer, name, weight.numel(), shapes):
                yield f"{layer.kind} {layer.name!r}: {weight.numel()} elements are no {name} for it"
        if layer.kind == "CONSTANT" and not layer.weights and 0 not in _sizes(layer, "shape"):
            yield f"constant {layer.name!r} has no weights"
        if layer.kind == "CONSTANT" and any(w.dtype != layer.dtype for w in layer.weights.values()):
            yield f"constant {layer.name!r} has weights of another type than {layer.types[0]}"


def _fits(layer: Layer, name: str, count: int, shapes: Mapping[str, Any]) -> bool:
    """Return whether a weight has as many elements as its layer needs, where sizes are known."""
    shape: Sequence[int] | None = shapes.get(str(layer.inputs[0])) if layer.inputs else None
    if layer.kind == "CONSTANT":
        return count == math.prod(_sizes(layer, "shape"))
    if layer.kind == "SCALE":
        axis, mode = int(layer.attributes["channel_axis"]), layer.attributes["mode"]
        if mode == "UNIFORM" or shape is None:
            return mode != "UNIFORM" or count == 1
        needed = list(shape[axis : axis + 1] if mode == "CHANNEL" else shape[axis:])
        return -1 in needed or count == math.prod(needed)
    maps, groups = int(layer.attributes["num_output_maps"]), int(layer.attributes["num_groups"])
    if name == "bias":
        return count == maps
    row = maps * math.prod(_sizes(layer, "kernel_size_nd"))
    channels = -1 if shape is None else shape[1]
    return count * groups % row == 0 if channels == -1 else count * groups == row * channels


def _sizes(layer: Layer, name: str) -> list[int]:
    return [int(size) for size in layer.attributes[name]]
