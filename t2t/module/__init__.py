"""A converted module: an nn.Module around an engine, and its checkpoint."""

from t2t.module.checkpoint import FORMAT, Converted
from t2t.module.ran_on import RanOn, engine_required
from t2t.module.trt_module import ReferenceExecutionWarning, TRTModule, load

__all__ = [
    "FORMAT",
    "Converted",
    "RanOn",
    "ReferenceExecutionWarning",
    "TRTModule",
    "engine_required",
    "load",
]
