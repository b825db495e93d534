"""An engine that does nothing: what a call costs on the host, where no engine can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.dtypes import to_trt
from t2t.io import TensorSpec
from t2t.runtime.engine import Engine
from t2t.runtime.execution import Execution


def idle_engine(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    shapes: Sequence[Sequence[int]],
    device: torch.device,
) -> Engine:
    """Return an engine whose outputs are memory of these shapes with nothing in it.

    Args:
        inputs: what it takes.
        outputs: what it returns.
        shapes: of the outputs, for the inputs that it will get.
        device: where it seems to be loaded.

    Raises:
        BackendError: no TensorRT is installed, whose names an execution uses.
    """
    engine = Engine(torch.zeros(1, dtype=torch.uint8))
    engine.set_execution(device, Execution(_Idle(inputs, outputs, shapes), device))
    return engine


class _Idle:
    """The part of ICudaEngine and IExecutionContext that an Execution uses."""

    num_optimization_profiles = 1
    device_memory_size_v2 = 0
    active_optimization_profile = 0

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shapes: Sequence[Sequence[int]],
    ) -> None:
        self._specs = {spec.name: spec for spec in (*inputs, *outputs)}
        self._inputs = {spec.name for spec in inputs}
        self._shapes = {s.name: tuple(shape) for s, shape in zip(outputs, shapes, strict=True)}
        self.num_io_tensors = len(self._specs)

    def get_tensor_name(self, index: int) -> str:
        return list(self._specs)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return trt.TensorIOMode.INPUT if name in self._inputs else trt.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return to_trt(self._specs[name].dtype)

    def get_tensor_location(self, _name: str) -> Any:
        return trt.TensorLocation.DEVICE

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes.get(name, self._specs[name].shape)

    def get_tensor_profile_shape(self, name: str, _profile: int) -> list[tuple[int, ...]]:
        spec = self._specs[name]
        if spec.min_shape is None or spec.max_shape is None:
            return []
        return [spec.min_shape, spec.opt_shape or spec.max_shape, spec.max_shape]

    def create_execution_context(self) -> _Idle:
        return self

    def set_input_shape(self, _name: str, _shape: tuple[int, ...]) -> bool:
        return True

    def set_tensor_address(self, _name: str, _address: int) -> bool:
        return True

    def infer_shapes(self) -> list[str]:
        return []

    def execute_async_v3(self, _stream: int) -> bool:
        return True
