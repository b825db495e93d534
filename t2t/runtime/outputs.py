"""Memory for an engine's outputs, of a shape that is known before or only after the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from t2t.backend import trt
from t2t.errors import EngineError


def sized(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Return what makes a new contiguous tensor with an address, the quickest way there is."""
    like = torch.empty(0, dtype=dtype, device=device)
    if 0 in shape:  # TensorRT wants an address for an empty output too
        return lambda: like.new_empty(1)[:0].view(shape)
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return partial(like.new_empty_strided, shape, strides)


class Unsized:
    """Memory of an output whose shape only the run tells; used by one run at a time.

    Args:
        dtype: the output's dtype.
        device: where the memory must be.

    Attributes:
        allocator: the IOutputAllocator, of the backend in use.
    """

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
        """Return the tensor after the run."""
        if self._memory is None:
            raise EngineError("TensorRT allocated no memory for an output") from self._failure
        elements = math.prod(self._shape)
        size = elements * self._dtype.itemsize
        memory, self._memory = self._memory, None
        return memory[:size].view(self._dtype).view(self._shape)


def _allocator(output: Unsized) -> Any:
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
