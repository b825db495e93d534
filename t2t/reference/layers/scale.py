"""Scale and local response normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


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
