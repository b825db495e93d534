"""Models that come quantized: what they round by, and what still observes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.rounding import Bits, Steps, modelopt_steps
from t2t.torch_internals import (
    OpOverload,
    is_traceable_wrapper_subclass,
    schema_of,
)

aten = torch.ops.aten

FUSED = aten._fused_moving_avg_obs_fq_helper.default
"""Observes and rounds in one call, as FusedMovingAvgObsFakeQuantize does."""

_OBSERVES = (
    "an observer of torch.ao.quantization looks at what the model computes and keeps it, which an "
    "engine cannot: call model.eval() and model.apply(torch.ao.quantization.disable_observer) "
    "before the conversion; a model that has observers and no fake quantization is converted as it "
    "was before prepare(), with int8=True"
)


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


# What torchao's weights that also round activations say of it.
_ROUNDS_ACTIVATIONS = ("act_quant_kwargs", "activation_quantization", "act_pre_scale")


def plain_weight(
    weight: torch.Tensor, linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, Steps | None] | None:
    """Return the numbers that a weight of torchao's stands for, and by what they were rounded.

    None where a linear layer does not compute with these alone, which is tried: some round the
    activations, too.

    Args:
        weight: a tensor that is made of others.
        linear: computes the layer for activations and a weight.
    """
    if not hasattr(weight, "dequantize"):
        return None
    if any(getattr(weight, name, None) is not None for name in _ROUNDS_ACTIVATIONS):
        return None
    with torch.no_grad():
        plain = weight.dequantize()
        if is_traceable_wrapper_subclass(plain) or plain.shape != weight.shape:
            return None
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(8, plain.shape[-1], generator=generator).to(plain.device, plain.dtype)
        found, wanted = linear(x, weight).double(), linear(x, plain).double()
        if not float((found - wanted).norm()) <= 4 * torch.finfo(plain.dtype).eps * float(
            wanted.norm()
        ):
            return None
        return plain, _weight_steps(weight, plain)


def _weight_steps(weight: Any, plain: torch.Tensor) -> Steps | None:
    """Return the scales of a weight of torchao's, where each output channel has one."""
    data, scale = getattr(weight, "qdata", None), getattr(weight, "scale", None)
    if data is None or scale is None or scale.dim() != plain.dim():
        return None
    if data.dtype not in (torch.int8, torch.float8_e4m3fn) or scale.shape[1:].numel() != 1:
        return None
    scales = scale.detach().cpu().float().reshape(-1).clone()
    bits: Bits = "int8" if data.dtype == torch.int8 else "fp8"
    return Steps(scales, 0, bits) if len(scales) == len(plain) else None


_MODELOPT_OPERATOR = "tensorrt::quantize_op"
_MODELOPT_FUNCTION = "modelopt.torch.quantization.tensor_quant._tensor_quant"


def steps_of(
    operator: OpOverload | str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Steps | None,
    result: torch.Tensor,
) -> Steps | None:
    """Return by what a call has rounded a constant, if it is one that rounds.

    Args:
        operator: an operator that ran on constants, or the name of a patched function.
        args: its arguments.
        kwargs: its keyword arguments.
        known: by what its first argument was rounded.
        result: what it has returned.
    """
    if isinstance(operator, str):
        return modelopt_steps(*args, **kwargs) if operator == _MODELOPT_FUNCTION else None
    if schema_of(operator).name == _MODELOPT_OPERATOR:
        x, amax, bits, exponent_bits, unsigned, narrow_range = args
        return modelopt_steps(x, amax, bits, unsigned, narrow_range, exponent_bits)
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
    if operator is aten.view.default:
        return known.reshaped(args[0].shape, result.shape)
    if not known.has_blocks and operator in (aten.t.default, aten.transpose.int):
        rank = args[0].dim()
        swapped = [dim % rank for dim in (args[1:3] or (0, 1))]
        if known.axis is not None and known.axis % rank in swapped:
            return known._replace(axis=sum(swapped) - known.axis % rank)
        return known
    return None
