"""Models that torch.ao.quantization prepared: what they round by, and what still observes."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.torch_internals import OpOverload, schema_of

__all__ = ["FUSED", "Steps", "observer_problem", "steps_of", "without_observer"]

aten = torch.ops.aten

FUSED = aten._fused_moving_avg_obs_fq_helper.default
"""Observes and rounds in one call, as FusedMovingAvgObsFakeQuantize does."""

_OBSERVES = (
    "an observer of torch.ao.quantization looks at what the model computes and keeps it, which an "
    "engine cannot: call model.eval() and model.apply(torch.ao.quantization.disable_observer) "
    "before the conversion; a model that has observers and no fake quantization is converted as it "
    "was before prepare(), with int8=True"
)


class Steps(NamedTuple):
    """By what a tensor was rounded: it holds whole multiples of the scale.

    Attributes:
        scale: one number, or one for each index of ``axis``.
        axis: the dimension of the scales; None for one scale.
    """

    scale: torch.Tensor
    axis: int | None


def observer_problem(module: Any) -> str:
    """Return why a module that is about to be called cannot be converted, if it is an observer."""
    observer = sys.modules.get("torch.ao.quantization.observer")
    if observer is not None and isinstance(module, observer.ObserverBase):
        return f"{type(module).__name__}: {_OBSERVES}"
    return ""


def without_observer(
    x: Any,
    observer_on: torch.Tensor,
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[OpOverload, tuple[Any, ...]]:
    """Return the operator and the arguments to which `FUSED` comes down where nothing is observed.

    Takes the arguments of that operator.

    Raises:
        UnsupportedOperatorError: the observer is on.
    """
    del running_min, running_max, averaging_const, symmetric_quant
    if bool(observer_on.any()):
        raise UnsupportedOperatorError(f"FusedMovingAvgObsFakeQuantize: {_OBSERVES}")
    if per_row_fake_quant and bool(fake_quant_on.any()):
        operator = aten.fake_quantize_per_channel_affine_cachemask.default
        return operator, (x, scale, zero_point, ch_axis, quant_min, quant_max)
    operator = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    return operator, (x, scale, zero_point, fake_quant_on, quant_min, quant_max)


_ROUNDING = (
    FUSED,
    aten.fake_quantize_per_tensor_affine_cachemask.default,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
    aten.fake_quantize_per_channel_affine_cachemask.default,
)
_DEQUANTIZE = ("dequantize_per_tensor", "dequantize_per_channel")


def steps_of(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], known: Steps | None
) -> Steps | None:
    """Return by what an operator has rounded a constant, if it is one that rounds.

    Args:
        operator: an operator that ran on constants.
        args: its arguments.
        kwargs: its keyword arguments.
        known: by what its first argument was rounded.
    """
    decomposed = operator.namespace == "quantized_decomposed"
    name = schema_of(operator).name.rpartition("::")[2] if decomposed else ""
    if operator in _ROUNDING or name in _DEQUANTIZE:
        names = [argument.name for argument in schema_of(operator).arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        scale = given["scales"] if "scales" in given else given["scale"]
        axis = given.get("axis", given["ch_axis"] if given.get("per_row_fake_quant") else None)
        return Steps(torch.as_tensor(scale, dtype=torch.float32).detach().cpu().clone(), axis)
    if known is None:
        return None
    if operator in (aten.detach.default, aten.alias.default):
        return known
    if operator is aten.t.default or operator is aten.transpose.int:
        rank = args[0].dim()
        swapped = [dim % rank for dim in (args[1:3] or (0, 1))]
        if known.axis is not None and known.axis % rank in swapped:
            return Steps(known.scale, sum(swapped) - known.axis % rank)
        return known
    return None
