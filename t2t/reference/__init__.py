"""The reference executor: a finished TensorRT network, read back and run in PyTorch.

It knows TensorRT's layers and nothing of torch's operators or t2t's converters, so it cannot
repeat a converter's mistake.
"""

from __future__ import annotations

from t2t.reference import layers as _layers
from t2t.reference.capture import capture
from t2t.reference.layer import Layer, TensorInfo
from t2t.reference.program import Program

# Importing the families has registered every kind of layer.
KINDS = _layers.KINDS

__all__ = [
    "KINDS",
    "Layer",
    "Program",
    "TensorInfo",
    "capture",
]
