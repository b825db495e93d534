"""A converted module: an nn.Module around an engine, and its checkpoint."""

from t2t.module.bundle import read_entries
from t2t.module.checkpoint import FORMAT, Converted
from t2t.module.engine_operator import run_engine as run_engine
from t2t.module.inspection import LayerTimes
from t2t.module.partial_module import PartialModule, load, with_parts
from t2t.module.parts import Part, Parts
from t2t.module.ran_on import RanOn, engine_required
from t2t.module.steps import CheckStep, EngineStep, OperatorStep, Partition, Step, reads_of
from t2t.module.trt_module import ReferenceExecutionWarning, TRTModule

__all__ = [
    "FORMAT",
    "CheckStep",
    "Converted",
    "EngineStep",
    "LayerTimes",
    "OperatorStep",
    "Part",
    "PartialModule",
    "Partition",
    "Parts",
    "RanOn",
    "ReferenceExecutionWarning",
    "Step",
    "TRTModule",
    "engine_required",
    "load",
    "read_entries",
    "reads_of",
    "with_parts",
]
