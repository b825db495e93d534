"""CUDA graphs: the launches of an execution, recorded once and replayed in one launch."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch

from t2t.errors import EngineError

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it does not wait for the legacy default stream

# A device has one stream for captures.
_lock = threading.Lock()


class Graph(Protocol):
    """What was recorded, with the addresses and sizes that it was recorded with."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class CudaCapture:
    """Records on a CUDA device, in a stream that nothing else uses."""

    @contextmanager
    def stream(self, device: torch.device) -> Iterator[int]:
        """Make the stream for captures current, after the work of the current one; its handle.

        What is enqueued inside comes before what the caller enqueues afterwards.
        """
        before = torch.cuda.current_stream(device)
        with _lock:
            done = before.record_event()
            side = _side_stream(device)
            side.wait_event(done)
            try:
                with torch.cuda.stream(side):
                    yield side.cuda_stream
            except BaseException:
                with suppress(RuntimeError):
                    # TensorRT frees the context, in which the GPU may still be working.
                    side.synchronize()
                raise
            before.wait_stream(side)

    def record(self, enqueue: Callable[[], None]) -> Graph:
        """Record what is enqueued on the current stream, which does not run.

        Raises:
            RuntimeError: something was enqueued that a graph cannot have.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads go on allocating and synchronizing.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            enqueue()
        except BaseException:
            with suppress(RuntimeError):  # which repeats that the capture has failed
                graph.capture_end()
            raise
        graph.capture_end()
        return graph


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Make a stream on the current device.

    torch's streams come from a pool of 32 and are given out again: what another thread puts into
    the stream that it shares with a capture would become a part of the graph.
    """
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    handle = ctypes.c_void_p()
    status = driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if status or handle.value is None:
        raise EngineError(f"no CUDA stream for a graph: cuStreamCreate returns {status}")
    return torch.cuda.ExternalStream(handle.value, device=device)  # type: ignore[no-untyped-call]


def refused(reason: str) -> EngineError:
    """Make the error of an engine that cannot be in a CUDA graph."""
    return EngineError(
        f"this engine does not run in a CUDA graph: {reason}; set model_trt.cuda_graph = False"
    )
