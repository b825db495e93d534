"""A converted module: an nn.Module around an engine, and its checkpoint."""

from t2t.module.checkpoint import FORMAT, Converted
from t2t.module.partial_module import Part, PartialModule, Parts, load, with_parts
from t2t.module.ran_on import RanOn, engine_required
from t2t.module.trt_module import ReferenceExecutionWarning, TRTModule

__all__ = [
    "FORMAT",
    "Converted",
    "Part",
    "PartialModule",
    "Parts",
    "RanOn",
    "ReferenceExecutionWarning",
    "TRTModule",
    "engine_required",
    "load",
    "with_parts",
]
