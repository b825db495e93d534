"""What a loaded engine says of itself, and the times of its layers."""

from __future__ import annotations

import json
from typing import Any

from t2t.backend import trt
from t2t.errors import EngineError


def describe(engine: Any) -> dict[str, Any]:
    """Return name, memory in bytes and bindings of an ICudaEngine, as plain data."""
    bindings = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        bindings.append(
            {
                "name": name,
                "mode": engine.get_tensor_mode(name).name.lower(),
                "dtype": engine.get_tensor_dtype(name).name,
                "shape": list(engine.get_tensor_shape(name)),
                "location": engine.get_tensor_location(name).name.lower(),
                "format": engine.get_tensor_format(name).name,
            }
        )
    return {
        "name": engine.name,
        "scratch_bytes": int(engine.device_memory_size_v2),
        "streamable_bytes": int(engine.streamable_weights_size),
        "profiles": engine.num_optimization_profiles,
        "profiling_verbosity": engine.profiling_verbosity.name,
        "refittable": bool(engine.refittable),
        "bindings": bindings,
    }


def layers_of(engine: Any) -> list[dict[str, Any]]:
    """Return what TensorRT's inspector says of each layer.

    How much that is was decided when the engine was built (`IBuilderConfig.profiling_verbosity`):
    by default names only ({"Name": ...}); DETAILED says types, formats and tactics, NONE nothing.

    Raises:
        EngineError: the inspector's answer is not understood.
    """
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    try:
        found = json.loads(text or "{}").get("Layers", [])
        # Only a name stands there by itself.
        return [{"Name": one} if isinstance(one, str) else dict(one) for one in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise EngineError(f"TensorRT's inspector answers {text[:200]!r}: {error}") from error


def profiler() -> Any:
    """Make an IProfiler; its ``times`` are the seconds of each layer, in the order of reports."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.append((layer_name, ms / 1e3))

    return Profiler()
