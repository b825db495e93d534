"""Normalizations, softmax, and a scale and shift of channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.layer import Kernel, Ready, axes_of_mask, layer, wide


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


# -- scale and shift -------------------------------------------------------------------------------


@layer("SCALE", "mode", "channel_axis", weights=("shift", "scale", "power"))
def scale(ready: Ready) -> Kernel:
    """(x * scale + shift) ** power, with one value in all, one a channel, or one an element."""
    mode, axis = ready.attributes["mode"], ready.attributes["channel_axis"]
    weights = {name: wide(value) for name, value in ready.weights.items()}
    dtype = ready.dtype
    # Batch norm of mean 0 and variance 1 is x * scale + shift in one pass.
    plain = mode == "CHANNEL" and axis == 1 and set(weights) == {"shift", "scale"}
    zeros, ones = (
        (torch.zeros_like(weights["shift"]), torch.ones_like(weights["shift"]))
        if plain
        else (None, None)
    )

    def shaped(x: Tensor, name: str) -> Tensor:
        value = weights[name]
        if mode == "UNIFORM":
            return value.reshape(())
        if mode == "ELEMENTWISE":
            return value.reshape(x.shape[axis:])
        return value.reshape(-1, *[1] * (x.dim() - axis - 1))

    def kernel(x: Tensor) -> Tensor:
        result = wide(x)
        if plain:
            scale, shift = weights["scale"], weights["shift"]
            # Not F.batch_norm, which refuses an epsilon of 0 before torch 2.12.
            norm = torch.batch_norm(result, scale, shift, zeros, ones, False, 0.0, 0.0, False)
            return norm.to(dtype)
        if not weights:
            # Never the input itself: what reads this may write into it.
            return x.clone()
        if "scale" in weights:
            result = result * shaped(x, "scale")
        if "shift" in weights:
            result = result + shaped(x, "shift")
        if "power" in weights:
            result = result ** shaped(x, "power")
        return result.to(dtype)

    return kernel


@layer("LRN", "window_size", "alpha", "beta", "k")
def lrn(ready: Ready) -> Kernel:
    """Any shape: x / (k + alpha / window * sum of squares over the window of channels) ** beta."""
    a, dtype = ready.attributes, ready.dtype
    size, alpha, beta, k = a["window_size"], a["alpha"], a["beta"], a["k"]
    return lambda x: F.local_response_norm(wide(x), size, alpha, beta, k).to(dtype)


# -- softmax ---------------------------------------------------------------------------------------


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
