"""One row for each behaviour of a layer: a network of the raw API and what it must compute."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t import backend
from t2t.backend import trt
from t2t.reference import Program, capture

TYPES = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int8: "INT8",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.float8_e4m3fn: "FP8",
}
_BUILDERS: dict[str, Any] = {}


@dataclass(frozen=True)
class Row:
    """A network and its truth.

    ``inputs`` are tensors, or shapes that are filled from a normal distribution; ``build`` adds
    layers and gives the last layer, a tensor or several of them; ``truth`` computes the same
    with torch or numpy.
    """

    name: str
    inputs: Sequence[tuple[int, ...] | Tensor]
    build: Callable[..., Any]
    truth: Callable[..., Any]
    rtol: float = 1e-5
    atol: float = 1e-6
    dynamic: bool = False

    def tensors(self, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()) + seed)
        return [
            given.clone() if isinstance(given, Tensor) else torch.randn(given, generator=generator)
            for given in self.inputs
        ]

    def program(self) -> Program:
        network = new_network()
        tensors = []
        for index, value in enumerate(self.tensors(0)):
            shape = [-1] * value.dim() if self.dynamic else list(value.shape)
            dtype = getattr(trt.DataType, TYPES[value.dtype])
            tensors.append(network.add_input(f"in{index}", dtype, shape))
        for tensor in outputs_of(self.build(network, *tensors)):
            network.mark_output(tensor)
        return capture(network)


def new_network() -> Any:
    name = backend.name()
    if name not in _BUILDERS:
        _BUILDERS[name] = trt.Builder(backend.logger())
    return backend.create_network(_BUILDERS[name])


def outputs_of(made: Any) -> list[Any]:
    if isinstance(made, tuple | list):
        return [tensor for part in made for tensor in outputs_of(part)]
    assert made is not None, backend.error_text()
    if hasattr(made, "get_output") and hasattr(made, "num_outputs"):
        return [made.get_output(index) for index in range(made.num_outputs)]
    return [made]


def out(layer: Any) -> Any:
    assert layer is not None, backend.error_text()
    return layer.get_output(0)


def const(network: Any, value: Any, dtype: Any = None) -> Any:
    """Add a constant; its array is kept alive by the network."""
    array = np.array(value, dtype=dtype, order="C")
    return out(network.add_constant(array.shape, trt.Weights(array)))


def setting(layer: Any, **attributes: Any) -> Any:
    """Set attributes of a layer and see that TensorRT took them."""
    for name, value in attributes.items():
        setattr(layer, name, value)
        taken = getattr(layer, name)
        same = list(taken) == list(value) if isinstance(value, tuple | list) else taken == value
        assert same or isinstance(value, float), f"{name}: {taken} is not {value}"
    return layer


def wired(layer: Any, **inputs: Any) -> Any:
    """Set inputs of a layer, given as ``i2=tensor``."""
    for name, tensor in inputs.items():
        layer.set_input(int(name[1:]), tensor)
    return layer


def same(got: Tensor, want: Tensor, row: Row) -> bool:
    """Say whether an output has the right type, shape and values."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    return torch.allclose(got.double(), want.double(), row.rtol, row.atol, equal_nan=True)


def wanted(row: Row, tensors: Sequence[Tensor]) -> list[Tensor]:
    truth = row.truth(*tensors)
    return list(truth) if isinstance(truth, tuple | list) else [truth]
