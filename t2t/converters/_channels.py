"""What the normalizations share: statistics, factors and shifts of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import agree
from t2t.network import Network, NetworkTensor
from t2t.sizes import static_size
from t2t.torch_internals import DisabledDispatch

HALF_MAX = torch.finfo(torch.float16).max


def like(input: torch.Tensor, contiguous: bool = False) -> Any:
    """Return the fake output of a normalization, in the layout of its input or contiguous.

    Under autocast the function's own operators are converted, with the casts that torch inserts.
    """
    if torch.is_autocast_enabled(input.device.type):
        return NotImplemented
    return input.new_empty(input.shape) if contiguous else torch.empty_like(input)


def agrees(input: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Return whether each parameter has one number for each channel; else torch is to say so."""
    return input.ndim > 1 and all(
        x is None or (x.ndim == 1 and agree((x.shape[0], input.shape[1]))) for x in parameters
    )


def normalized_by(
    net: Network,
    input: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> NetworkTensor:
    """Normalize each channel by a given mean and variance: a scale and a shift."""
    given = [x for x in (mean, variance, weight, bias) if x is not None]
    if any(net.is_traced(x) for x in given):
        return _normalized_by_traced(net, input, mean, variance, weight, bias, eps)
    mean, variance = mean.detach().double(), variance.detach().double()
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight.detach().double()
    shift = -mean * scale if bias is None else bias.detach().double() - mean * scale
    return _scale_channels(net, net.tensor(input), scale, shift)


def _scale_channels(
    net: Network, x: NetworkTensor, scale: torch.Tensor, shift: torch.Tensor | None
) -> NetworkTensor:
    dtype = net.dtype_of(x)
    shift = torch.zeros_like(scale) if shift is None else shift
    if dtype == torch.float16 and not all(_fits_half(factor) for factor in (scale, shift)):
        x = net.add_cast(x, torch.float32)
    factors = {"scale": scale.float(), "shift": shift.float()}
    return net.add_cast(net.add_scale_nd(x, "CHANNEL", channel_axis=1, **factors), dtype)


def _fits_half(x: torch.Tensor) -> bool:
    with DisabledDispatch():  # a test, which new weights pass when they come
        return bool((x.abs() <= HALF_MAX).all())


def _normalized_by_traced(
    net: Network,
    input: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> NetworkTensor:
    def wide(x: torch.Tensor | NetworkTensor) -> NetworkTensor:
        # A variance and its epsilon need float32, whatever the operator computes in.
        return net.add_cast(x, torch.float32)

    def operand(x: torch.Tensor) -> NetworkTensor:
        return wide(_channel_operand(net, x, input.ndim))

    epsilon = net.constant(torch.full((1,) * input.ndim, eps))
    widened = net.add_elementwise(operand(variance), epsilon, "SUM")
    x = net.add_elementwise(wide(input), operand(mean), "SUB")
    x = net.add_elementwise(x, net.add_unary(widened, "SQRT"), "DIV")
    x = x if weight is None else net.add_elementwise(x, operand(weight), "PROD")
    x = x if bias is None else net.add_elementwise(x, operand(bias), "SUM")
    return net.add_cast(x, net.dtype_of(net.tensor(input)))


def _channel_operand(net: Network, x: torch.Tensor, rank: int) -> NetworkTensor:
    """Return a value for each channel so that it broadcasts to an input of ``rank``."""
    sizes = (1, x.shape[0], *[1] * (rank - 2))
    return net.reshape(x, sizes) if net.is_traced(x) else net.tensor(x.detach().reshape(sizes))


def normalized(
    net: Network,
    input: torch.Tensor,
    axes: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> NetworkTensor:
    """Normalize by mean and variance over some axes, then scale and shift each channel."""
    channels = static_size(input.shape[1])
    if channels is None:
        return affine(net, _standardized(net, input, axes, eps), weight, bias)
    scale = torch.ones(channels) if weight is None else weight
    shift = torch.zeros(channels) if bias is None else bias
    factor, offset = (_channel_operand(net, x, input.ndim) for x in (scale, shift))
    if all(static_size(input.shape[axis]) == 1 for axis in axes):
        # Nothing differs from its mean; TensorRT-RTX does not build a normalization of one element.
        x = net.tensor(input)
        return net.add_elementwise(net.add_elementwise(x, x, "SUB"), offset, "SUM")
    return net.add_normalization(input, factor, offset, axes, eps)


def _standardized(
    net: Network, input: torch.Tensor, axes: Sequence[int], eps: float
) -> NetworkTensor:
    """Normalize by mean and variance over some axes, where the number of channels is dynamic.

    As of torch.instance_norm, which lets the channels of all samples be those of one.
    """
    x = net.tensor(input)
    centred = net.add_elementwise(x, net.add_reduce(x, "AVG", axes, keep_dims=True), "SUB")
    square = net.add_elementwise(centred, centred, "PROD")
    variance = net.add_reduce(square, "AVG", axes, keep_dims=True)
    widened = net.add_elementwise(variance, net.tensor(eps, input.dtype, input.ndim), "SUM")
    return net.add_elementwise(centred, net.add_unary(widened, "SQRT"), "DIV")


def affine(
    net: Network, x: NetworkTensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> NetworkTensor:
    """Scale and shift each channel, by constants or by traced tensors."""
    given = [p for p in (weight, bias) if p is not None]
    rank = len(x.shape)
    if any(net.is_traced(p) for p in given):
        if weight is not None:
            x = net.add_elementwise(x, _channel_operand(net, weight, rank), "PROD")
        if bias is not None:
            x = net.add_elementwise(x, _channel_operand(net, bias, rank), "SUM")
        return x
    if not given:
        return x
    scale = torch.ones_like(given[0]) if weight is None else weight.detach()
    return _scale_channels(net, x, scale, None if bias is None else bias.detach())
