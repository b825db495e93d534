"""Normalization, as in layer, instance, group and batch norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.axes import axes_of_mask
from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("NORMALIZATION", "axes", "epsilon", "num_groups", "is_v2")
def normalization(ready: Ready) -> Kernel:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes of a bit mask.

    With groups, the channels (axis 1) are split into groups, each with its own statistics;
    scale and bias are (1, groups, 1, ...) in version 1 and (1, channels, 1, ...) in version 2.
    """
    axes = axes_of_mask(ready.attributes["axes"])
    epsilon, groups = ready.attributes["epsilon"], ready.attributes["num_groups"]
    dtype = ready.dtype

    def kernel(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        if groups == 1 and _is_trailing(axes, x, scale):
            shape = x.shape[axes[0] :]
            return F.layer_norm(
                wide(x), shape, wide(scale).reshape(shape), wide(bias).reshape(shape), epsilon
            ).to(dtype)
        if not x.numel():
            # Without elements there is no mean, of which torch warns.
            return x.to(dtype)
        data = wide(x)
        if groups > 1:
            data = data.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
        dims = tuple(axis + (groups > 1) for axis in axes)
        if groups > 1 and 2 not in dims:
            dims = (2, *dims)
        variance, mean = torch.var_mean(data, dims, correction=0, keepdim=True)
        data = (data - mean) * torch.rsqrt(variance + epsilon)
        scale, bias = wide(scale), wide(bias)
        if groups > 1 and scale.shape[1] == groups != x.shape[1]:
            data = data * scale.unsqueeze(2) + bias.unsqueeze(2)
            return data.reshape(x.shape).to(dtype)
        return (data.reshape(x.shape) * scale + bias).to(dtype)

    return kernel


def _is_trailing(axes: tuple[int, ...], x: Tensor, scale: Tensor) -> bool:
    """Return whether the last axes are normalized, each element with a scale of its own."""
    first = axes[0]
    whole = (*[1] * first, *x.shape[first:])
    return axes == tuple(range(first, x.dim())) and tuple(scale.shape) == whole
