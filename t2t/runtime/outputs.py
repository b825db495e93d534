"""Memory for an engine's outputs, of a shape that is known before or only after the run."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from t2t import backend
from t2t.backend import trt
from t2t.errors import EngineError

__all__ = ["Output", "make_output"]


class Output(Protocol):
    """Memory of one output for one run."""

    allocator: Any
    """An IOutputAllocator, or None where `address` is known before the run."""

    address: int

    def take(self) -> torch.Tensor:
        """Return the tensor after the run."""


def make_output(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    previous: Output | None,
    engine_backend: str,
) -> Output:
    """Prepare memory for an output.

    Args:
        shape: as the context tells it; -1 where it depends on the data.
        dtype: the output's dtype.
        device: where the memory must be.
        previous: what served the output in the context's last run.
        engine_backend: the backend that runs the engine.
    """
    if -1 not in shape:
        return _Sized(shape, dtype, device)
    if isinstance(previous, _Growing):
        previous.forget()
        return previous
    with backend.use(engine_backend):
        return _Growing(dtype, device)


class _Sized:
    allocator = None

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._tensor = torch.empty(shape, dtype=dtype, device=device)
        self.address = self._tensor.data_ptr()
        if not self.address:  # TensorRT wants an address for an empty output too
            self._tensor = torch.empty(1, dtype=dtype, device=device)[:0].view(shape)
            self.address = self._tensor.untyped_storage().data_ptr()

    def take(self) -> torch.Tensor:
        return self._tensor


class _Growing:
    address = 0

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._memory: torch.Tensor | None = None
        self._shape: tuple[int, ...] = ()
        self._failure: RuntimeError | None = None
        self.allocator = _allocator(self)

    def forget(self) -> None:
        """Let go of the last run's memory, which belongs to the caller by now."""
        self._memory = self._failure = None

    def allocate(self, size: int) -> int:
        """Get new memory; 0 tells TensorRT that there is none, as exceptions cannot pass it."""
        try:
            self._memory = torch.empty(max(size, 1), dtype=torch.uint8, device=self._device)
        except RuntimeError as error:
            self._failure = error
            return 0
        return self._memory.data_ptr()

    def set_shape(self, shape: tuple[int, ...]) -> None:
        """Remember the shape that the run found."""
        self._shape = shape

    def take(self) -> torch.Tensor:
        if self._memory is None:
            raise EngineError("TensorRT allocated no memory for an output") from self._failure
        elements = math.prod(self._shape)
        size = elements * self._dtype.itemsize
        memory, self._memory = self._memory, None
        return memory[:size].view(self._dtype).view(self._shape)


def _allocator(output: _Growing) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output_async(
            self, _name: str, _memory: int, size: int, _alignment: int, _stream: int
        ) -> int:
            return output.allocate(size)

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            return output.allocate(size)

        def notify_shape(self, _name: str, shape: Any) -> None:
            output.set_shape(tuple(shape))

    return Allocator()
