"""Constants, identity, assertions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from t2t.errors import ShapeError
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("CONSTANT", "shape", weights=("weights",))
def constant(ready: Ready) -> Kernel:
    """The layer's weights in its shape."""
    shape = ready.attributes["shape"]
    value = ready.weights.get("weights", torch.empty(0, dtype=ready.dtype))
    if value.numel() != math.prod(shape):
        raise ShapeError(f"constant {ready.name!r}: {value.numel()} values for shape {shape}")
    shaped = value.reshape(shape).contiguous()
    return lambda: shaped


@layer("IDENTITY")
def identity(ready: Ready) -> Kernel:
    """The input, in the output's type."""
    dtype = ready.dtype
    return lambda x: x.to(dtype)


@layer("ASSERTION", "message")
def assertion(ready: Ready) -> Kernel:
    """Raise ShapeError with the layer's message unless every element is true."""
    message = ready.attributes["message"]

    def kernel(condition: Tensor) -> tuple[()]:
        if not bool(condition.all()):
            raise ShapeError(f"assertion {ready.name!r} does not hold: {message}")
        return ()

    return kernel
