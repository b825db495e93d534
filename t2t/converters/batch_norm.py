"""Batch normalization, by running statistics or by those of the batch."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._channels import agrees, normalized, normalized_by
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["batch_norm", "batch_norm_eval", "batch_norm_train"]


def _batch_norm_output(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    del momentum, eps
    if training or running_mean is None or running_var is None:
        # It may write the running statistics, which only operators do in a way that is seen.
        return NotImplemented
    if not agrees(input, running_mean, running_var, weight, bias):
        return NotImplemented
    return torch.empty_like(input)


# The function, for a trace takes half as long as with its operator, and models are full of it.
@converter("torch.nn.functional.batch_norm", meta=_batch_norm_output)
def batch_norm(
    net: Network,
    input: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> NetworkTensor:
    """Convert batch norm by running statistics to one scale layer.

    With ``training=True`` its operator arrives instead, see `batch_norm_train`.
    """
    del training, momentum
    return normalized_by(net, input, running_mean, running_var, weight, bias, eps)


@converter("aten::_native_batch_norm_legit_no_training")
def batch_norm_eval(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[NetworkTensor, None, None]:
    """Convert batch norm by running statistics; torch's other results are empty."""
    del momentum
    return normalized_by(net, input, running_mean, running_var, weight, bias, eps), None, None


@converter("aten::_native_batch_norm_legit.no_stats", precision="sensitive")
def batch_norm_train(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[NetworkTensor, None, None]:
    """Convert batch norm by the statistics of the batch itself."""
    del training, momentum
    axes = [axis for axis in range(input.ndim) if axis != 1]
    return normalized(net, input, axes, weight, bias, eps), None, None
