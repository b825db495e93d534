"""t2t: PyTorch modules to TensorRT engines.

    import t2t

    model_trt = t2t.convert(model, [x], fp16=True)
    y = model_trt(x)
    model_trt.save("model_trt.pth")

Importing t2t needs no TensorRT; converting does.
"""

from __future__ import annotations

from t2t import backend, errors
from t2t.conversion import convert
from t2t.lowering import missing_operators, to_network
from t2t.module import ReferenceExecutionWarning, TRTModule, load
from t2t.registry import converter, supported_operators, unregister
from t2t.verification import compare_layers, verify

__all__ = [
    "ReferenceExecutionWarning",
    "TRTModule",
    "backend",
    "compare_layers",
    "convert",
    "converter",
    "errors",
    "load",
    "missing_operators",
    "supported_operators",
    "to_network",
    "unregister",
    "verify",
]

__version__ = "0.1.0"
