"""t2t: PyTorch modules to TensorRT engines.

    import t2t

    model_trt = t2t.convert(model, [x], fp16=True)
    y = model_trt(x)
    model_trt.save("model_trt.pth")

Importing t2t needs no TensorRT; converting does.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from typing import TYPE_CHECKING, Any

from t2t.version import __version__ as __version__

if TYPE_CHECKING:
    from t2t import backend, errors
    from t2t.benchmarking import benchmark
    from t2t.conversion import convert, convert_submodules, refit
    from t2t.converters import supported_operators
    from t2t.lowering import missing_operators, to_network
    from t2t.module import PartialModule, ReferenceExecutionWarning, TRTModule, load
    from t2t.onnx import from_onnx
    from t2t.plugins.registration import plugin
    from t2t.quantization.calibration import calibrate
    from t2t.quantization.scales import Scales
    from t2t.quantization.simulation import fake_quantized
    from t2t.recording import record
    from t2t.registry import converter, formula, unregister
    from t2t.tuning import Sensitivity, sensitivity
    from t2t.verification import compare_layers, verify

__all__ = [
    "PartialModule",
    "ReferenceExecutionWarning",
    "Scales",
    "Sensitivity",
    "TRTModule",
    "backend",
    "benchmark",
    "calibrate",
    "compare_layers",
    "convert",
    "convert_submodules",
    "converter",
    "errors",
    "fake_quantized",
    "formula",
    "from_onnx",
    "load",
    "missing_operators",
    "plugin",
    "record",
    "refit",
    "sensitivity",
    "supported_operators",
    "to_network",
    "unregister",
    "verify",
]

# What converting needs takes a second to import, most of it sympy, and a service that loads a
# checkpoint needs none of it: so each name is imported at its first use.
_HOMES = {
    "PartialModule": "t2t.module",
    "ReferenceExecutionWarning": "t2t.module",
    "Scales": "t2t.quantization.scales",
    "Sensitivity": "t2t.tuning",
    "TRTModule": "t2t.module",
    "benchmark": "t2t.benchmarking",
    "calibrate": "t2t.quantization.calibration",
    "compare_layers": "t2t.verification",
    "convert": "t2t.conversion",
    "convert_submodules": "t2t.conversion",
    "converter": "t2t.registry",
    "fake_quantized": "t2t.quantization.simulation",
    "formula": "t2t.registry",
    "from_onnx": "t2t.onnx",
    "load": "t2t.module",
    "missing_operators": "t2t.lowering",
    "plugin": "t2t.plugins.registration",
    "record": "t2t.recording",
    "refit": "t2t.conversion",
    "sensitivity": "t2t.tuning",
    "supported_operators": "t2t.converters",
    "to_network": "t2t.lowering",
    "unregister": "t2t.registry",
    "verify": "t2t.verification",
}

# Messages go where the application sends them, and nowhere by default.
logging.getLogger("t2t").addHandler(logging.NullHandler())


# In programs of torch.export a converted module is an operator, which PyTorch looks up by its name.
if "torch" in sys.modules:
    importlib.import_module("t2t.module.engine_operator")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"t2t.{name}") is not None:
        value = importlib.import_module(f"t2t.{name}")
    else:
        raise AttributeError(f"module 't2t' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
