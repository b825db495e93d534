"""Weights of a TensorRT layer as torch tensors over the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t.errors import UnsupportedLayerError
from t2t.reference.datatypes import FP4_GRID, torch_dtype

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
    return _alias(raw.values, size, torch_dtype(kind))


def _unpack(packed: Tensor, count: int, kind: str) -> Tensor:
    """Return two 4-bit values of each byte, the low half first; see `t2t.reference.datatypes`."""
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
