"""Filled tensors and one-hot encodings."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.reference.axes import ints
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("FILL", "operation", "shape", "alpha", "beta", "to_type", host=(0,))
def fill(ready: Ready) -> Kernel:
    """LINSPACE: alpha + sum of beta[d] * index[d]. RANDOM_UNIFORM: [alpha, beta).

    RANDOM_NORMAL has mean alpha and standard deviation beta. Alpha (0-D) and beta may come as
    inputs 1 and 2.
    """
    a, dtype = ready.attributes, ready.dtype

    def kernel(
        shape_in: Tensor | None = None,
        alpha_in: Tensor | None = None,
        beta_in: Tensor | None = None,
    ) -> Tensor:
        shape = ints(shape_in, a["shape"])
        device = next((t.device for t in (alpha_in, beta_in) if t is not None), None)
        alpha = torch.tensor(a["alpha"]) if alpha_in is None else alpha_in
        beta = torch.tensor(a["beta"]) if beta_in is None else beta_in
        if a["operation"] == "LINSPACE":
            return _linspace(shape, alpha, beta, dtype, device)
        draw = torch.rand if a["operation"] == "RANDOM_UNIFORM" else torch.randn
        unit = draw(shape, device=device)
        scale = beta - alpha if a["operation"] == "RANDOM_UNIFORM" else beta
        return (unit * scale + alpha).to(dtype)

    return kernel


def _linspace(
    shape: list[int],
    alpha: Tensor,
    beta: Tensor,
    dtype: torch.dtype,
    device: torch.device | None,
) -> Tensor:
    result = alpha.to(dtype).reshape(()).expand(shape)
    for axis, delta in enumerate(beta.to(dtype).reshape(-1)):
        index = torch.arange(shape[axis], dtype=dtype, device=device)
        result = result + (index * delta).reshape([-1] + [1] * (len(shape) - axis - 1))
    return result


@layer("ONE_HOT", "axis", host=(2,))
def one_hot(ready: Ready) -> Kernel:
    """Insert an axis of size depth: values[1] at the index, values[0] elsewhere.

    A negative index counts from the end, as in ONNX, whose parser relies on it.
    """
    axis = ready.attributes["axis"]

    def kernel(indices: Tensor, values: Tensor, depth_in: Tensor) -> Tensor:
        (depth,) = ints(depth_in)
        place = axis % (indices.dim() + 1)
        classes = torch.arange(depth, device=indices.device)
        classes = classes.reshape([-1] + [1] * (indices.dim() - place))
        index = torch.where(indices < 0, indices + depth, indices).unsqueeze(place)
        return torch.where(index == classes, values[1], values[0])

    return kernel
