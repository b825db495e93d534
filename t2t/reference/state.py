"""Programs to and from a checkpoint: one JSON string and the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from t2t.errors import CheckpointError
from t2t.reference.layer import Layer, TensorInfo

__all__ = ["from_state", "to_state"]

_FORMAT = 1
Sizes = Mapping[str, Sequence[str]]
Parts = tuple[list[TensorInfo], list[TensorInfo], list[Layer], str, Sizes]


def to_state(
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    layers: Sequence[Layer],
    made: str,
    sizes: Sizes,
) -> dict[str, Tensor | str]:
    """Give "program" (JSON) and "weights.<i>"; memory used by several layers is kept once."""
    weights: dict[tuple[Any, ...], int] = {}
    entries: dict[str, Tensor | str] = {}

    def number(tensor: Tensor) -> int:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in weights:
            weights[key] = len(weights)
            entries[f"weights.{weights[key]}"] = tensor
        return weights[key]

    rows = [
        {
            "kind": layer.kind,
            "name": layer.name,
            "attributes": layer.attributes,
            "inputs": layer.inputs,
            "outputs": layer.outputs,
            "types": layer.types,
            "shapes": layer.shapes,
            "weights": {name: number(tensor) for name, tensor in layer.weights.items()},
            "metadata": layer.metadata,
        }
        for layer in layers
    ]
    program = {
        "format": _FORMAT,
        "made_by": made,
        "inputs": [_info_row(info) for info in inputs],
        "outputs": [_info_row(info) for info in outputs],
        "layers": rows,
        "sizes": {name: list(texts) for name, texts in sizes.items()},
    }
    entries["program"] = json.dumps(program)
    return entries


def _info_row(info: TensorInfo) -> list[Any]:
    return [info.name, str(info.dtype).removeprefix("torch."), info.shape]


def from_state(entries: Mapping[str, Any]) -> Parts:
    """Read what `to_state` gave; CheckpointError says what is wrong with it."""
    text = entries.get("program") if isinstance(entries, Mapping) else None
    if not isinstance(text, str):
        raise CheckpointError('no program here: there is no string under "program"')
    try:
        program = json.loads(text)
        found = program["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"the program is damaged: {error!r}") from error
    if found != _FORMAT:
        raise CheckpointError(f"the program has format {found}; this t2t reads {_FORMAT}")
    try:
        layers = [_layer(row, entries) for row in program["layers"]]
        inputs = [_info(row) for row in program["inputs"]]
        outputs = [_info(row) for row in program["outputs"]]
        # Checkpoints of before have no names of sizes.
        sizes = {str(k): [str(n) for n in names] for k, names in program.get("sizes", {}).items()}
        return inputs, outputs, layers, str(program["made_by"]), sizes
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the program is damaged: {error!r}") from error


def _info(row: Sequence[Any]) -> TensorInfo:
    name, dtype, shape = row
    return TensorInfo(name, getattr(torch, dtype), tuple(shape))


def _layer(row: Mapping[str, Any], entries: Mapping[str, Any]) -> Layer:
    weights = {name: entries[f"weights.{index}"] for name, index in row["weights"].items()}
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{row['name']}.{name} is no tensor")
    return Layer(
        kind=row["kind"],
        name=row["name"],
        attributes=dict(row["attributes"]),
        inputs=tuple(row["inputs"]),
        outputs=tuple(row["outputs"]),
        types=tuple(row["types"]),
        shapes=tuple(None if shape is None else tuple(shape) for shape in row["shapes"]),
        weights=weights,
        metadata=row["metadata"],
    )
