"""Where a converted module ran: in its engine, or in PyTorch instead."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import torch


def engine_required() -> bool:
    """Return whether the environment variable T2T_REQUIRE_ENGINE forbids running in PyTorch."""
    return os.environ.get("T2T_REQUIRE_ENGINE", "0").lower() not in ("", "0", "false", "no")


@dataclass(frozen=True)
class RanOn:
    """Where a converted module ran.

    Attributes:
        executor: "engine", or "reference executor": the network run in PyTorch.
        device: where the tensors were: "cuda:0".
        device_name: the GPU's name, "" on a CPU.
        backend: who made the network: "tensorrt" or "tensorrt_rtx".
        backend_version: its version.
        reason: why it was not the engine, "" where it was.
    """

    executor: str
    device: str
    device_name: str = ""
    backend: str = ""
    backend_version: str = ""
    reason: str = ""

    @classmethod
    def of(cls, device: torch.device, reason: str, details: dict[str, Any]) -> RanOn:
        """Describe a run on a device; a reason means that the engine did not run."""
        on_gpu = device.type == "cuda" and torch.cuda.is_available()
        return cls(
            "reference executor" if reason else "engine",
            str(device),
            torch.cuda.get_device_name(device) if on_gpu else "",
            details.get("backend") or "",
            details.get("backend_version") or "",
            reason,
        )

    @property
    def is_engine(self) -> bool:
        """Return whether TensorRT ran."""
        return self.executor == "engine"

    def to_dict(self) -> dict[str, str]:
        """Return plain data."""
        return asdict(self)

    @property
    def place(self) -> str:
        """Executor, backend and device in a few words."""
        device = f"{self.device} ({self.device_name})" if self.device_name else self.device
        made = f"{self.backend} {self.backend_version}".strip()
        if self.is_engine:
            return f"engine of {made or 'TensorRT'} on {device}"
        return f"reference executor (PyTorch) on {device}" + (
            f", network of {made}" if made else ""
        )

    def __str__(self) -> str:
        """The place, and why it was not the engine."""
        return f"{self.place}; no engine ran: {self.reason}" if self.reason else self.place
