"""TensorRT's layer kinds, a file for each family; importing this package registers them all."""

from __future__ import annotations

from t2t.reference.layer import kinds
from t2t.reference.layers import (  # noqa: F401  each registers its layers
    constant,
    convolution,
    elementwise,
    matrix,
    normalization,
    quantization,
    reduction,
    resize,
    selection,
    shuffle,
)

__all__ = ["KINDS"]

KINDS = kinds()
"""Every kind of layer that the reference executor reads and runs."""
