"""Layers as plain data, the types of their tensors, and the kinds that the executor knows.

Three types of TensorRT have no torch dtype that computes: INT4 is held as int8 (one value an
element, not packed), FP4 as float32 values on its grid, and E8M0 as torch.float8_e8m0fnu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from t2t.errors import RegistrationError, UnsupportedLayerError


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


# -- types -----------------------------------------------------------------------------------------


TORCH: dict[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "FP8": torch.float8_e4m3fn,
    "INT4": torch.int8,
    "FP4": torch.float32,
    "E8M0": torch.float8_e8m0fnu,
}
"""Name of a TensorRT data type to the torch dtype that holds it."""

FP4_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes that FP4 (two bits of exponent, one of mantissa) can hold."""

_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that holds a TensorRT type, by its name ("HALF")."""
    return TORCH[name]


def is_half(dtype: torch.dtype) -> bool:
    """Return whether a dtype is computed in float32 and rounded once at the end."""
    return dtype in _NARROW


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return x in the type that TensorRT accumulates in: float32 for the narrow floats."""
    return x.float() if x.dtype in _NARROW else x


# -- axes as TensorRT writes them ------------------------------------------------------------------


def axes_of_mask(mask: int) -> tuple[int, ...]:
    """Return the axes of a bit mask, lowest first."""
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def ints(values: Tensor | None, default: Sequence[int] | None = None) -> list[int]:
    """Return the values of a shape tensor, or those read from the layer where there is none."""
    if values is None:
        return list(default or ())
    return [int(value) for value in values.reshape(-1).tolist()]


# -- kinds of layers -------------------------------------------------------------------------------


Kernel = Callable[..., Any]
"""A layer made ready: input tensors (None where one is unset) to a tensor or a tuple of them."""

Prepare = Callable[[Ready], Kernel]
Read = Callable[[Any], dict[str, Any]]


class Spec(NamedTuple):
    """How one kind of layer is read from TensorRT and made ready to run."""

    prepare: Prepare
    attributes: tuple[str, ...]
    weights: tuple[str, ...]
    host: frozenset[int]
    read: Read | None


_SPECS: dict[str, Spec] = {}


def layer(
    kind: str,
    *attributes: str,
    weights: tuple[str, ...] = (),
    host: tuple[int, ...] = (),
    read: Read | None = None,
) -> Callable[[Prepare], Prepare]:
    """Register the function that makes a kind of layer ready to run.

    Args:
        kind: the name in TensorRT's LayerType, "CONVOLUTION".
        attributes: names of the TensorRT layer's attributes to be read; those that this
            TensorRT does not have are left out, so newer ones are looked up with ``get``.
        weights: names of its attributes that are weights.
        host: positions of inputs whose values are needed on the host (shapes, axes).
        read: reads what cannot be read by an attribute's name.
    """
    if kind in _SPECS:
        raise RegistrationError(f"{kind} is registered already, by {_SPECS[kind].prepare}")

    def register(prepare: Prepare) -> Prepare:
        _SPECS[kind] = Spec(prepare, attributes, weights, frozenset(host), read)
        return prepare

    return register


def kinds() -> tuple[str, ...]:
    """Return the kinds that the reference executor knows, sorted."""
    return tuple(sorted(_SPECS))


def spec_of(kind: str, name: str, version: str) -> Spec:
    """Return the registered functions of a kind; UnsupportedLayerError names what is unknown."""
    if kind not in _SPECS:
        raise UnsupportedLayerError(
            f"layer {name!r} is of kind {kind}, which the reference executor does not know "
            f"(network made by {version}); known: {', '.join(kinds())}"
        )
    return _SPECS[kind]
