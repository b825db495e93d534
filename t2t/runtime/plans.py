"""Plans: their bytes, who built them, and deserializing them with a reason where that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from t2t import backend
from t2t.backend import trt
from t2t.errors import BackendError, EngineError
from t2t.plugins.classes import register_creator

PlanData = bytes | bytearray | memoryview | np.ndarray[Any, Any] | torch.Tensor
"""Forms in which a plan is accepted."""

Budget = int | Literal["automatic"] | None
"""Bytes of GPU memory for streamable weights; None keeps all of them there."""

# The first four bytes, and bytes 24 to 27 hold the version: trtexec reads TensorRT's in this way,
# and TensorRT-RTX 1.4 to 1.7 write theirs there too.
_MAGIC = {b"ftrt": "tensorrt", b"vtrt": "tensorrt_rtx"}
_VERSION = slice(24, 28)

# TensorRT-RTX's EngineInvalidityDiagnostics, a bit each.
_DIAGNOSTICS = {
    "VERSION_MISMATCH": "it was built by another version, and runs only with that one",
    "UNSUPPORTED_CC": "it was not built for this GPU's compute capability",
    "OLD_CUDA_DRIVER": "the NVIDIA driver is too old",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little free memory",
    "MALFORMED_ENGINE": "its bytes are damaged",
    "CUDA_ERROR": "CUDA failed",
}


@dataclass(frozen=True)
class Origin:
    """Who built a plan: "tensorrt" or "tensorrt_rtx", and the version."""

    backend: str
    version: str

    def __str__(self) -> str:
        return f"{self.backend} {self.version}"


def as_plan(data: PlanData) -> torch.Tensor:
    """Return a plan's bytes as a uint8 tensor on the CPU.

    Nothing is copied but read-only buffers (`bytes`), which torch cannot share.

    Raises:
        EngineError: it is empty, or a tensor of another dtype or shape.
    """
    if isinstance(data, torch.Tensor):
        if data.dtype != torch.uint8 or data.dim() != 1:
            raise EngineError(
                f"a plan is a uint8 tensor of one dimension, not {data.dtype} {tuple(data.shape)}"
            )
        plan = data.detach().cpu().contiguous()
    else:
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        shareable = bytearray(view) if view.readonly else view
        plan = torch.frombuffer(shareable, dtype=torch.uint8) if view.nbytes else torch.empty(0)
    if plan.numel() == 0:
        raise EngineError("the plan is empty")
    return plan


def origin_of(plan: torch.Tensor) -> Origin | None:
    """Read from its first bytes who built a plan; None if they are not a plan's."""
    start = bytes(plan[: _VERSION.stop].tolist())
    name = _MAGIC.get(start[:4])
    if name is None or len(start) < _VERSION.stop:
        return None
    return Origin(name, ".".join(map(str, start[_VERSION])))


def deserialize(
    plan: torch.Tensor,
    device: torch.device,
    weight_streaming_budget: Budget = None,
    dla_core: int | None = None,
) -> Any:
    """Make an ICudaEngine of a plan, on the current CUDA device, which is ``device``.

    The TensorRT that built the plan is used, whichever the backend in use is.

    Args:
        plan: the plan.
        device: the device.
        weight_streaming_budget: how much GPU memory its weights may take.
        dla_core: the deep learning accelerator that it was built for.

    Raises:
        EngineError: says why not, what the plan needs and what is here.
    """
    origin = origin_of(plan)
    if origin is None:
        raise EngineError("this is no TensorRT plan: its first bytes are not a plan's")
    if not torch.cuda.is_available():
        raise EngineError(
            f"the plan (built by {origin}) needs an NVIDIA GPU, and torch {torch.__version__} "
            "finds none here (torch.cuda.is_available() is False)"
        )
    try:
        with backend.use(origin.backend):
            engine = _deserialize(plan, origin, device, dla_core)
            if weight_streaming_budget is not None:
                _stream_weights(engine, weight_streaming_budget)
            return engine
    except BackendError as error:
        raise EngineError(f"the plan was built by {origin}: {error}") from error


def _deserialize(
    plan: torch.Tensor, origin: Origin, device: torch.device, dla_core: int | None
) -> Any:
    backend.forget_errors()
    runtime = trt.Runtime(backend.logger())
    if runtime is None:
        raise EngineError(f"TensorRT does not start: {backend.error_text()}")
    if dla_core is not None:
        runtime.DLA_core = dla_core
    if backend.has_layer("add_plugin_v3"):
        register_creator()
    data = plan.numpy()
    if hasattr(runtime, "get_engine_validity"):
        validity, bits = runtime.get_engine_validity(data)
        if validity == trt.EngineValidity.INVALID:
            raise EngineError(_refusal(origin, device, _diagnose(bits)))
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise EngineError(_refusal(origin, device, [backend.error_text()]))
    return engine


def _stream_weights(engine: Any, budget: int | str) -> None:
    """Set how much GPU memory weights may take; TensorRT takes it only before a context is made."""
    size = int(engine.streamable_weights_size)
    if not size:
        raise EngineError(
            "a weight_streaming_budget is set, and the engine cannot stream its weights: "
            "convert(..., weight_streaming=True) makes one that can"
        )
    if budget == "automatic":
        wanted = int(engine.get_weight_streaming_automatic_budget())
    else:
        wanted = min(int(budget), size)
    try:
        engine.weight_streaming_budget_v2 = wanted
    except RuntimeError as error:
        raise EngineError(
            f"TensorRT refuses a weight_streaming_budget of {wanted}: {error}"
        ) from error
    if engine.weight_streaming_budget_v2 != wanted:
        raise EngineError(
            f"TensorRT refuses a weight_streaming_budget of {wanted} bytes of {size}: "
            f"{backend.error_text()}"
        )


def _diagnose(bits: int) -> list[str]:
    known = trt.EngineInvalidityDiagnostics
    found = [
        f"{name}: {meaning}"
        for name, meaning in _DIAGNOSTICS.items()
        if hasattr(known, name) and bits & int(getattr(known, name))
    ]
    return found or [f"diagnostics {bits}: {backend.error_text()}"]


def _refusal(origin: Origin, device: torch.device, reasons: list[str]) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    here = (
        f"{backend.name()} {backend.version()}, {torch.cuda.get_device_name(device)} "
        f"(compute capability {major}.{minor})"
    )
    return f"the plan cannot run here: {'; '.join(reasons)}. Built by {origin}; here: {here}"
