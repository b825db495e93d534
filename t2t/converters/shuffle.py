"""Exchanging channels with pixels or with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]


def _rearranged(
    net: Network, x: torch.Tensor, split: Sequence[Any], order: Sequence[int]
) -> NetworkTensor:
    """Split dimensions, permute them, and merge them to the sizes of the result."""
    moved = net.transpose(net.reshape(x, split), order)
    return net.reshape(moved, net.output.shape)


@converter("aten::pixel_shuffle")
def pixel_shuffle(net: Network, self: torch.Tensor, upscale_factor: int) -> NetworkTensor:
    """Convert (*, C r r, H, W) to (*, C, H r, W r) for the factor r."""
    r, front = upscale_factor, self.dim() - 3
    *batch, channels, height, width = self.shape
    split = [*batch, channels // (r * r), r, r, height, width]
    return _rearranged(net, self, split, [*range(front), *(front + i for i in (0, 3, 1, 4, 2))])


@converter("aten::pixel_unshuffle")
def pixel_unshuffle(net: Network, self: torch.Tensor, downscale_factor: int) -> NetworkTensor:
    """Convert (*, C, H r, W r) to (*, C r r, H, W) for the factor r."""
    r, front = downscale_factor, self.dim() - 3
    *batch, channels, height, width = self.shape
    split = [*batch, channels, height // r, r, width // r, r]
    return _rearranged(net, self, split, [*range(front), *(front + i for i in (0, 2, 4, 1, 3))])


@converter("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(net: Network, self: torch.Tensor, groups: int) -> NetworkTensor:
    """Convert (N, C, *) to the same with the groups' channels taken in turn."""
    batch, channels, *rest = self.shape
    split = [batch, groups, channels // groups, *rest]
    return _rearranged(net, self, split, [0, 2, 1, *range(3, len(split))])
