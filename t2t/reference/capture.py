"""Reads a finished TensorRT network back into plain data."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t import backend
from t2t.backend import trt
from t2t.errors import UnsupportedLayerError
from t2t.float32 import default_dtype
from t2t.reference.layer import FP4_GRID, Layer, TensorInfo, spec_of, torch_dtype
from t2t.reference.program import Program
from t2t.reference.text import Sizes

# LayerType's names that do not become a class by the rule "I" + CamelCase + "Layer".
_CLASSES = {
    "LRN": "ILRNLayer",
    "TOPK": "ITopKLayer",
    "NMS": "INMSLayer",
    "PARAMETRIC_RELU": "IParametricReLULayer",
    "RAGGED_SOFTMAX": "IRaggedSoftMaxLayer",
    "SOFTMAX": "ISoftMaxLayer",
    "ELEMENTWISE": "IElementWiseLayer",
    "CONDITIONAL_INPUT": "IIfConditionalInputLayer",
    "CONDITIONAL_OUTPUT": "IIfConditionalOutputLayer",
    "KV_CACHE_UPDATE": "IKVCacheUpdateLayer",
    "MOE": "IMoELayer",
}
# An assertion has no output, yet the network is only right where it holds.
_ALWAYS = ("ASSERTION",)
# Layers that come and go together: the trip limits of a loop, the condition of a conditional.
_GROUPS = ("loop", "conditional")


@default_dtype.held()
def capture(
    network: Any,
    constants: Mapping[str, Tensor] | None = None,
    sizes: Sizes | None = None,
) -> Program:
    """Read a network into a Program that runs without TensorRT.

    Weights that numpy can show are not copied: they share the memory given to TensorRT when the
    layers were added, and the program keeps the network, and so numpy arrays given to it, alive.
    What was given by its address (bfloat16, fp8, int4) is copied, unless it is in ``constants``.

    Args:
        network: an INetworkDefinition, of TensorRT or TensorRT-RTX.
        constants: tensors by layer name, used instead of the weights of constant layers; for
            the weights of other layers the key is "<layer name>.kernel" and so on.
        sizes: shapes of tensors with names for dynamic sizes, by the tensor's name, to be shown.

    Raises:
        UnsupportedLayerError: a layer is of an unknown kind, or its weights cannot be read.
    """
    version = f"{backend.name()} {backend.version()}"
    given = constants or {}
    raw = [_readable(network.get_layer(index), version) for index in range(network.num_layers)]
    inputs = [_info(network.get_input(index)) for index in range(network.num_inputs)]
    outputs = [_info(network.get_output(index)) for index in range(network.num_outputs)]
    found = [_Found(layer, kind, version) for layer, kind in raw]
    needed = _needed(found, [info.name for info in outputs])
    # TensorRT logs an error for each unset attribute that is asked for; none of them matters.
    with backend.muted():
        layers = [entry.layer(given) for entry in found if entry.name in needed]
    return Program(inputs, outputs, layers, version, owner=network, sizes=sizes)


def _info(tensor: Any) -> TensorInfo:
    shape = _shape(tensor)
    if shape is None:
        raise UnsupportedLayerError(
            f"tensor {tensor.name!r} has no shape, so the network is invalid: "
            f"{backend.error_text()}"
        )
    return TensorInfo(tensor.name, torch_dtype(tensor.dtype.name), shape)


def _readable(layer: Any, version: str) -> tuple[Any, str]:
    """Turn TensorRT's anonymous layer into one of its own class; a wrong class would crash."""
    kind = layer.type.name
    camel = "".join(part.capitalize() for part in kind.split("_"))
    name = _CLASSES.get(kind, f"I{camel}Layer")
    if not hasattr(trt, name):
        raise UnsupportedLayerError(
            f"layer {layer.name!r} is of kind {kind}, which cannot be read ({version})"
        )
    layer.__class__ = getattr(trt, name)
    return layer, kind


class _Found:
    """A layer of the network and what is known of it before its weights are read."""

    def __init__(self, layer: Any, kind: str, version: str) -> None:
        self.raw = layer
        self.kind = kind
        self.name = layer.name
        self._version = version
        tensors = [layer.get_input(index) for index in range(layer.num_inputs)]
        self.inputs = tuple(None if tensor is None else tensor.name for tensor in tensors)
        self._outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
        self.outputs = tuple(tensor.name for tensor in self._outputs)
        self.group = next(
            ((key, getattr(layer, key).name) for key in _GROUPS if hasattr(layer, key)), None
        )

    def layer(self, constants: Mapping[str, Tensor]) -> Layer:
        """Read the attributes and weights."""
        spec = spec_of(self.kind, self.name, self._version)
        attributes = {
            name: _attribute(self.raw, name)
            for name in spec.attributes
            if hasattr(type(self.raw), name)
        }
        if self.group is not None:
            attributes[self.group[0]] = self.group[1]
        if spec.read is not None:
            attributes.update(spec.read(self.raw))
        weights = {name: read_weights(self.raw, name, constants) for name in spec.weights}
        return Layer(
            kind=self.kind,
            name=self.name,
            attributes=attributes,
            inputs=self.inputs,
            outputs=self.outputs,
            types=tuple(tensor.dtype.name for tensor in self._outputs),
            shapes=tuple(_shape(tensor) for tensor in self._outputs),
            weights={name: value for name, value in weights.items() if value is not None},
            metadata=self.raw.metadata,
        )


def _shape(tensor: Any) -> tuple[int, ...] | None:
    with contextlib.suppress(RuntimeError, ValueError, TypeError):
        return tuple(tensor.shape)
    return None


def _attribute(raw: Any, name: str) -> Any:
    """Read an attribute; newer TensorRT raises where one is unset, older returns junk."""
    try:
        return plain(getattr(raw, name))
    except RuntimeError:
        return None


def plain(value: Any) -> Any:
    """Return an attribute as JSON has it: enums by name, dims as a list, None where invalid."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(type(value), "__members__"):
        return value.name
    try:
        return [int(value[index]) for index in range(len(value))]
    except (RuntimeError, ValueError, TypeError):
        return None


def _needed(found: Sequence[_Found], outputs: Sequence[str]) -> set[str]:
    """Find the layers that an output depends on."""
    makers = {name: entry for entry in found for name in entry.outputs}
    groups: dict[tuple[str, str], list[_Found]] = {}
    for entry in found:
        if entry.group is not None:
            groups.setdefault(entry.group, []).append(entry)
    pending = [makers[name] for name in outputs if name in makers]
    pending += [entry for entry in found if entry.kind in _ALWAYS]
    needed: set[str] = set()
    while pending:
        entry = pending.pop()
        if entry.name in needed:
            continue
        needed.add(entry.name)
        pending += [makers[name] for name in entry.inputs if name in makers]
        if entry.group is not None:
            pending += [
                member
                for member in groups[entry.group]
                if member.kind in ("TRIP_LIMIT", "CONDITION")
            ]
    return needed


# -- weights of layers, over the same memory -------------------------------------------------------


_BITS = {"INT4": 4, "FP4": 4, "FP8": 8, "E8M0": 8, "BF16": 16}


class _RawWeights(ctypes.Structure):
    """nvinfer1::Weights: what a Python ``trt.Weights`` points to."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


def read_weights(layer: Any, attribute: str, constants: Mapping[str, Tensor]) -> Tensor | None:
    """Return the weights of a layer flat, sharing TensorRT's memory; None where there are none.

    Args:
        layer: TensorRT's layer.
        attribute: "weights" of a constant, "kernel" or "bias" of a convolution and so on.
        constants: tensors to use instead, by layer name for constants and by
            "<layer name>.<attribute>" for the weights of other layers.
    """
    key = layer.name if attribute == "weights" else f"{layer.name}.{attribute}"
    if key in constants:
        return constants[key].detach()
    values = getattr(layer, attribute)
    if isinstance(values, np.ndarray):
        return _from_numpy(values) if values.size else None
    return _from_pointer(layer.name, values) if values.size else None


def _from_numpy(values: np.ndarray[Any, Any]) -> Tensor:
    if values.flags.writeable:
        return torch.from_numpy(values.reshape(-1))
    # torch warns when it is given memory that numpy calls read-only; we never write to it.
    dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
    return _alias(values.ctypes.data, values.nbytes, dtype)


def _alias(address: int, size: int, dtype: torch.dtype) -> Tensor:
    memory = (ctypes.c_uint8 * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


def _from_pointer(name: str, weights: Any) -> Tensor:
    """Read types that numpy has not; the Python object holds a pointer behind its header."""
    kind = weights.dtype.name
    raw = _RawWeights.from_address(ctypes.c_void_p.from_address(id(weights) + 16).value or 0)
    if kind not in _BITS or raw.count != weights.size or not raw.values:
        raise UnsupportedLayerError(
            f"the {kind} weights of layer {name!r} cannot be read from TensorRT; "
            "give them to capture() in `constants`"
        )
    size = (weights.size * _BITS[kind] + 7) // 8
    if _BITS[kind] == 4:
        return _unpack(_alias(raw.values, size, torch.uint8), weights.size, kind)
    # A copy: who owns the memory may be gone when the program runs.
    return _alias(raw.values, size, torch_dtype(kind)).clone()


def _unpack(packed: Tensor, count: int, kind: str) -> Tensor:
    """Return two 4-bit values of each byte, the low half first; see `t2t.reference.layer`."""
    halves = torch.stack([packed & 15, packed >> 4], -1).reshape(-1)[:count]
    if kind == "FP4":
        return fp4_values(halves)
    signed = halves.to(torch.int8)
    return torch.where(signed > 7, signed - 16, signed)


def fp4_values(codes: Tensor) -> Tensor:
    """Return the float32 values of FP4 codes 0 to 15 (the highest bit is the sign)."""
    grid = torch.tensor(FP4_GRID)
    magnitude = grid[(codes & 7).long()]
    return torch.where(codes > 7, -magnitude, magnitude)
