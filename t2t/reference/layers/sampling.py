"""Grid sampling."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer

_MODES = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
_PADDINGS = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


@layer("GRID_SAMPLE", "interpolation_mode", "align_corners", "sample_mode")
def grid_sample(ready: Ready) -> Kernel:
    """(N, C, *spatial) sampled at (N, *out, 2 or 3): coordinates in [-1, 1], last axis first."""
    a, dtype = ready.attributes, ready.dtype
    mode = _MODES[a["interpolation_mode"]]
    padding, corners = _PADDINGS[a["sample_mode"]], a["align_corners"]

    def kernel(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(wide(x), wide(grid), mode, padding, corners).to(dtype)

    return kernel
