"""Rounding to int8 and back, as quantized models bring it along."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from t2t.converters._arguments import positive_dim
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

# Registers torch.ops.quantized_decomposed, which models of torch.export's quantization call.
importlib.import_module("torch.ao.quantization.fx._decomposed")

_LOW, _HIGH = -128, 127

_RANGE = (
    "zero_point={zero_point} with the range {low} to {high}: TensorRT's int8 has a zero point of 0 "
    "and goes from -128 to 127, so that {low} - zero_point and {high} - zero_point must lie in "
    "there; use a symmetric qscheme (torch.per_tensor_symmetric) with the dtype torch.qint8, and "
    "FakeQuantize with MovingAverageMinMaxObserver: FusedMovingAvgObsFakeQuantize moves the zero "
    "point where all values have one sign, as behind a ReLU"
)

_F = TypeVar("_F", bound=Callable[..., Any])


def _like_input(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    return torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)


def _quantized(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.empty_like(input, dtype=kwargs.get("dtype", args[-1] if args else None))


def _dequantized(
    input: torch.Tensor, *args: Any, out_dtype: torch.dtype | None = None, **kwargs: Any
) -> torch.Tensor:
    del args, kwargs
    return torch.empty_like(input, dtype=out_dtype or torch.float32)


@converter(
    "aten::fake_quantize_per_tensor_affine_cachemask", meta=_like_input, precision="sensitive"
)
def fake_quantize_per_tensor(
    net: Network,
    self: torch.Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
) -> tuple[NetworkTensor | None, None]:
    """Convert any shape to the same shape: rounded to multiples of ``scale``, and clamped.

    Equals PyTorch's result on the CPU to the bit for all finite numbers.
    """
    rounding = _Rounding(net, scale, zero_point, quant_min, quant_max)
    return rounding.fake(self), None


@converter(
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    meta=_like_input,
    precision="sensitive",
)
def fake_quantize_by_tensors(
    net: Network,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    fake_quant_enabled: torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[NetworkTensor | None, None]:
    """Convert likewise; ``scale`` and ``zero_point`` have one element."""
    if not _constant(net, "fake_quant_enabled", fake_quant_enabled).any():
        return net.tensor(self), None
    return fake_quantize_per_tensor(net, self, scale, zero_point, quant_min, quant_max)


@converter(
    "aten::fake_quantize_per_channel_affine_cachemask", meta=_like_input, precision="sensitive"
)
def fake_quantize_per_channel(
    net: Network,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> tuple[NetworkTensor | None, None]:
    """Convert likewise, with one scale for each index of ``axis``."""
    if not 0 <= axis < self.dim():
        raise UnsupportedArgumentError(f"axis={axis}: it must be between 0 and {self.dim() - 1}")
    rounding = _Rounding(net, scale, zero_point, quant_min, quant_max, axis)
    return rounding.fake(self), None


@converter("quantized_decomposed::quantize_per_tensor", meta=_quantized, precision="sensitive")
def quantize_per_tensor(
    net: Network,
    input: torch.Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
) -> NetworkTensor:
    """Convert any shape to int8 of the same shape."""
    return _Rounding(net, scale, zero_point, quant_min, quant_max, dtype=dtype).quantize(input)


@converter("quantized_decomposed::dequantize_per_tensor", meta=_dequantized, precision="sensitive")
def dequantize_per_tensor(
    net: Network,
    input: torch.Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert int8 of any shape to float32 of the same shape."""
    _check_float32(out_dtype)
    return _Rounding(net, scale, zero_point, quant_min, quant_max, dtype=dtype).dequantize(input)


@converter("quantized_decomposed::quantize_per_channel", meta=_quantized, precision="sensitive")
def quantize_per_channel(
    net: Network,
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> NetworkTensor:
    """Convert any shape to int8 of the same shape, by one scale for each index of ``axis``."""
    axis = positive_dim(axis, input.dim())
    rounding = _Rounding(net, scales, zero_points, quant_min, quant_max, axis, dtype)
    return rounding.quantize(input)


@converter("quantized_decomposed::dequantize_per_channel", meta=_dequantized, precision="sensitive")
def dequantize_per_channel(
    net: Network,
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert int8 of any shape to float32, by one scale for each index of ``axis``."""
    _check_float32(out_dtype)
    axis = positive_dim(axis, input.dim())
    zeros = 0 if zero_points is None else zero_points
    rounding = _Rounding(net, scales, zeros, quant_min, quant_max, axis, dtype)
    return rounding.dequantize(input)


class _Rounding:
    """The numbers by which a call rounds.

    Args:
        net: the network.
        scale: one number, or one for each index of ``axis``.
        zero_point: likewise.
        quant_min: the least integer.
        quant_max: the largest integer.
        axis: the dimension of the scales; None for one scale.
        dtype: of the integers, where these are results themselves, so that the zero point is seen.
    """

    def __init__(
        self,
        net: Network,
        scale: Any,
        zero_point: Any,
        quant_min: Any,
        quant_max: Any,
        axis: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        own = dtype is not None
        if dtype not in (None, torch.int8):
            raise UnsupportedArgumentError(
                f"dtype={dtype}: TensorRT quantizes to int8 with a zero point of 0; quantize with "
                "the dtype torch.int8 and a symmetric qscheme"
            )
        self.net = net
        self.axis = axis
        given = _constant(net, "scale", scale)
        zeros = _constant(net, "zero_point", zero_point)
        if not torch.equal(zeros, zeros.round()) or (zeros.is_floating_point() and zeros.any()):
            raise UnsupportedArgumentError(
                "zero_point: float zero points other than 0 are not int8's"
            )
        zeros = zeros.to(torch.int64)
        low = int(_constant(net, "quant_min", quant_min))
        high = int(_constant(net, "quant_max", quant_max))
        self.scale = _checked_scale(given if axis is not None else given.reshape(()))
        if axis is not None and given.dtype != torch.float32:
            raise UnsupportedArgumentError(
                f"scales of {given.dtype}, with which PyTorch computes in that type; pass .float()"
            )
        # As PyTorch has it: `quantize_per_tensor` takes the reciprocal as a Python number.
        plain = given.double() if own and axis is None else self.scale
        self.reciprocal = (1.0 / plain).to(torch.float32).reshape(self.scale.shape)
        shift = torch.unique(zeros)
        # (clamp(round(x / s) + z, low, high) - z) * s needs z for the bounds alone.
        if shift.numel() == 1:
            self.low, self.high = low - int(shift), high - int(shift)
        fits = (
            shift.numel() == 1
            and _LOW <= self.low <= self.high <= _HIGH
            and not (own and int(shift))
        )
        if not fits:
            text = "/".join(map(str, shift.tolist()[:3]))
            raise UnsupportedArgumentError(_RANGE.format(zero_point=text, low=low, high=high))

    def quantize(self, x: torch.Tensor) -> NetworkTensor:
        """Return int8; rounds what PyTorch rounds, which multiplies where TensorRT divides."""
        net = self.net
        y = net.cast(net.tensor(x), torch.float32)
        scale, axis = self.scale, self.axis
        if not _is_exact(scale, self.reciprocal) or (self.low, self.high) != (_LOW, _HIGH):
            factor = self.reciprocal
            if axis is not None:
                factor = factor.reshape([-1 if d == axis else 1 for d in range(x.dim())])
            y = net.add_elementwise(y, factor, "PROD", dtype=torch.float32)
            if (self.low, self.high) != (_LOW, _HIGH):
                y = net.add_activation(y, "CLIP", float(self.low), float(self.high))
            scale, axis = torch.ones(()), None
        return net.add_quantize(y, scale, axis=axis)

    def dequantize(self, q: Any) -> NetworkTensor:
        """Return float32 of int8."""
        return self.net.add_dequantize(q, self.scale, self.axis)

    def fake(self, x: torch.Tensor) -> NetworkTensor | None:
        """Return ``x`` rounded, in its own dtype."""
        y = self.dequantize(self.quantize(x))
        return self.net.cast(y, self.net.compute_dtype(x.dtype))


def _constant(net: Network, name: str, x: Any) -> torch.Tensor:
    """Return a number, or a constant tensor of numbers, as a tensor on the host."""
    if isinstance(x, torch.Tensor):
        if net.is_traced(x):
            raise UnsupportedArgumentError(
                f"{name} depends on the input: TensorRT quantizes by constants; compute it outside "
                "of the model, with an observer"
            )
        return x.detach().cpu()
    if not isinstance(x, int | float):
        raise UnsupportedArgumentError(f"{name}={x}: it must be a plain number")
    return torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)


def _checked_scale(scale: torch.Tensor) -> torch.Tensor:
    """Return scales in float32, where these and their reciprocals are normal numbers.

    Raises:
        UnsupportedArgumentError: one of them is no positive finite number.
    """
    exact = scale.to(torch.float32)
    least = torch.finfo(torch.float32).smallest_normal
    fits = (exact >= least) & (1.0 / exact >= least)
    if not bool(fits.all()):
        wrong = exact[~fits].flatten()[0]
        raise UnsupportedArgumentError(
            f"scale={float(wrong):g}: scales must be positive and finite (2**-126 to 2**126); "
            "calibrate the model on data that its layers do not answer with zeros only"
        )
    return exact


def _is_exact(scale: torch.Tensor, reciprocal: torch.Tensor) -> bool:
    """Return whether dividing by each scale is multiplying by its reciprocal: by powers of two."""
    return bool((torch.frexp(scale).mantissa == 0.5).all() and (scale * reciprocal == 1).all())


def _check_float32(out_dtype: torch.dtype | None) -> None:
    if out_dtype not in (None, torch.float32):
        raise UnsupportedArgumentError(
            f"out_dtype={out_dtype}: supported: torch.float32; cast the result"
        )
