"""Sampling of images at given points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import static_number
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["affine_grid", "grid_sample"]

# By torch's numbers.
_MODES = ("LINEAR", "NEAREST", "CUBIC")
_PADDINGS = ("FILL", "CLAMP", "REFLECT")


# The function too, as on a GPU PyTorch makes cuDNN's operator of it.
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
    """Convert (N, C, *spatial) and points (N, *out, 2 or 3) in [-1, 1] to (N, C, *out).

    Points are computed in float32: in half precision they would miss by whole pixels.
    """
    return net.add_grid_sample(
        input,
        net.tensor(grid, input.dtype),
        _MODES[interpolation_mode],
        bool(align_corners),
        _PADDINGS[padding_mode],
    )


def _affine_meta(
    theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None
) -> torch.Tensor:
    # The original compares all sizes with each other, only to say that none is zero.
    del align_corners
    return theta.new_empty((size[0], *size[2:], theta.shape[1]))


# The function, as PyTorch's own code decides on the size of the batch.
@converter("torch.nn.functional.affine_grid", precision="sensitive", meta=_affine_meta)
def affine_grid(
    net: Network, theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None
) -> NetworkTensor:
    """Convert (N, n, n + 1) to points (N, *spatial, n) for an image of ``size`` (N, C, *spatial).

    ``n`` is 2 or 3; the sizes of the image must be plain numbers.
    """
    spatial = [static_number("size", number) for number in size[2:]]
    n = len(spatial)
    same = torch.eye(n, n + 1).unsqueeze(0)
    points = torch.affine_grid_generator(same, [1, 1, *spatial], bool(align_corners)).reshape(-1, n)
    points = torch.cat([points, torch.ones(len(points), 1)], 1)
    moved = net.add_matrix_multiply(points, theta, "NONE", "TRANSPOSE", dtype=theta.dtype)
    return net.reshape(moved, net.output.shape)
