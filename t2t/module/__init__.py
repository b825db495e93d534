"""A converted module: an nn.Module around an engine, and its checkpoint."""

from t2t.module.checkpoint import FORMAT, Converted
from t2t.module.trt_module import ReferenceExecutionWarning, TRTModule

__all__ = ["FORMAT", "Converted", "ReferenceExecutionWarning", "TRTModule"]
