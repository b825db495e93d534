"""The plain data of a program: its layers and what enters and leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from t2t.reference.datatypes import torch_dtype


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a network; a dynamic dimension is -1."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layer:
    """One TensorRT layer as plain data.

    Attributes:
        kind: the name in TensorRT's LayerType, "CONVOLUTION".
        name: the layer's unique name.
        attributes: what TensorRT's layer says of itself, by TensorRT's names; enums by name.
        inputs: names of the input tensors, None where an optional input is unset.
        outputs: names of the output tensors.
        types: TensorRT's names of the outputs' types, "HALF".
        shapes: the outputs' shapes with -1 for dynamic, None where TensorRT does not say.
        weights: the layer's weights, by TensorRT's names: flat, or in the layer's own shape and
            any order in memory.
        metadata: the text that whoever made the layer left there.
    """

    kind: str
    name: str
    attributes: dict[str, Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    weights: dict[str, Tensor] = field(default_factory=dict, repr=False)
    metadata: str = ""

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The torch dtypes that hold the outputs."""
        return tuple(torch_dtype(name) for name in self.types)

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that holds the first output."""
        return torch_dtype(self.types[0])

    def has_input(self, position: int) -> bool:
        """Return whether an optional input is set."""
        return position < len(self.inputs) and self.inputs[position] is not None


@dataclass(frozen=True, eq=False)
class Ready(Layer):
    """A layer about to be made ready: weights on the device, constant inputs known.

    Attributes:
        constants: the inputs whose values are the same in every run, by position.
        may_overwrite: nobody else reads the first input, so its memory may be reused.
    """

    constants: Mapping[int, Tensor] = field(default_factory=dict, repr=False)
    may_overwrite: bool = False
