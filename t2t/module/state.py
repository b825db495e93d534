"""What a module keeps between calls, right for calls from several threads and CUDA streams."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch


class State:
    """Tensors by name, which are replaced and never written.

    Reading makes the current stream wait for the one that made them, and keeps their memory until
    it has read them.

    Args:
        tensors: what to start with.

    Attributes:
        lock: held by who reads and replaces in one step.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.lock = threading.RLock()
        self.replace(tensors)

    def read(self) -> dict[str, torch.Tensor]:
        """Return the tensors, for use on the current streams."""
        with self.lock:
            for device, (event, made_on) in self._made.items():
                stream = torch.cuda.current_stream(device)
                if stream != made_on:
                    stream.wait_event(event)
                    for tensor in self._tensors.values():
                        if tensor.device == device:
                            tensor.record_stream(stream)
            return dict(self._tensors)

    def replace(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep other tensors, made on the current streams."""
        with self.lock:
            self._tensors = dict(tensors)
            self._made: dict[torch.device, tuple[torch.cuda.Event, torch.cuda.Stream]] = {}
            for device in {x.device for x in tensors.values() if x.is_cuda}:
                stream = torch.cuda.current_stream(device)
                self._made[device] = (stream.record_event(), stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        with self.lock:
            copied = memo[id(self)] = State({name: x.clone() for name, x in self.read().items()})
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.read(),)
