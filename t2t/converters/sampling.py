"""Sampling of images at given places."""

from __future__ import annotations

import torch

from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["grid_sample"]

# By torch's numbers.
_MODES = ("LINEAR", "NEAREST", "CUBIC")
_PADDINGS = ("FILL", "CLAMP", "REFLECT")


@converter(
    "torch.grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d", precision="sensitive"
)
def grid_sample(
    net: Network,
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> NetworkTensor:
    """Convert (N, C, *spatial) and places (N, *out, 2 or 3) in [-1, 1] to (N, C, *out).

    Places are computed in float32: in half precision they would miss by whole pixels.
    """
    return net.add_grid_sample(
        input,
        net.tensor(grid, input.dtype),
        _MODES[interpolation_mode],
        bool(align_corners),
        _PADDINGS[padding_mode],
    )
