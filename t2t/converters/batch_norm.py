"""Batch normalization, by running statistics or by those of the batch."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._channels import normalized, normalized_by
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["batch_norm", "batch_norm_by_batch", "batch_norm_no_training"]

_Results = tuple[NetworkTensor, None, None]


def _output(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Compute the fake results by running statistics; a formula takes other calls apart."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    return _no_training_output(input, weight, bias, running_mean, running_var, momentum, eps)


def _no_training_output(input: torch.Tensor, *_args: Any) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(input), input.new_empty(0), input.new_empty(0)


@converter("aten::native_batch_norm", meta=_output)
def batch_norm(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> _Results:
    """Convert batch norm by running statistics to one scale layer; other results are empty."""
    del training, momentum
    return normalized_by(net, input, running_mean, running_var, weight, bias, eps), None, None


@converter("aten::_native_batch_norm_legit_no_training", meta=_no_training_output)
def batch_norm_no_training(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> _Results:
    """Convert as `batch_norm`."""
    return batch_norm(net, input, weight, bias, running_mean, running_var, False, momentum, eps)


@converter("aten::_native_batch_norm_legit.no_stats", precision="sensitive")
def batch_norm_by_batch(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> _Results:
    """Convert batch norm by the statistics of the batch itself."""
    del training, momentum
    axes = [axis for axis in range(input.ndim) if axis != 1]
    return normalized(net, input, axes, weight, bias, eps), None, None
