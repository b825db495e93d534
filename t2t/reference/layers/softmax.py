"""Softmax over an axis and over the rows of ragged sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.reference.axes import axes_of_mask
from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("SOFTMAX", "axes")
def softmax(ready: Ready) -> Kernel:
    """Any shape to the same shape; halves are computed in float32."""
    (axis,) = axes_of_mask(ready.attributes["axes"])
    dtype = ready.dtype
    return lambda x: torch.softmax(wide(x), axis).to(dtype)


@layer("RAGGED_SOFTMAX")
def ragged_softmax(ready: Ready) -> Kernel:
    """(Z, S) with bounds (Z, 1): softmax of each row's first elements, zero after them."""
    dtype = ready.dtype

    def kernel(x: Tensor, bounds: Tensor) -> Tensor:
        inside = torch.arange(x.shape[-1], device=x.device) < bounds
        scores = wide(x).masked_fill(~inside, -torch.inf)
        return torch.softmax(scores, -1).nan_to_num(0.0).to(dtype)

    return kernel
