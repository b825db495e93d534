"""Convolution and transposed convolution, 1-d to 3-d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._arguments import agree, ntuple, static_number
from t2t.converters._compute import is_less
from t2t.converters._spatial import autocast, batched, planar, restored, window_count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import Precision, converter

__all__ = ["aten_convolution", "conv", "conv_transpose"]

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_OWNERS = ("torch.nn.functional", "torch")


def _fits(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, channels: Any, maps: Any
) -> bool:
    """Return whether the arguments go together; where they do not, torch is to say so.

    Args:
        input: ([N], C, *spatial).
        weight: the kernel.
        bias: one number for each of the result's channels.
        channels: how many of them the kernel takes.
        maps: how many it gives.
    """
    n = weight.dim() - 2
    return (
        input.dim() in (n + 1, n + 2)
        and input.dtype == weight.dtype
        and agree((input.shape[-n - 1], channels))
        and (bias is None or (bias.dtype == input.dtype and same_sizes(bias.shape, (maps,))))
    )


def _positive(sizes: Sequence[Any]) -> bool:
    """Say whether there is room for a window, which dynamic sizes must have all over."""
    return all(size > 0 for size in sizes)


def _conv_meta(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    n = weight.dim() - 2
    if n not in _CONV:
        return NotImplemented
    known = autocast(input, _CONV[n], weight, bias, stride, padding, dilation, groups)
    if known is not None:
        return known
    if not _fits(input, weight, bias, weight.shape[1] * groups, weight.shape[0]):
        return NotImplemented
    window, steps, rates = weight.shape[2:], ntuple("stride", stride, n), _rates(dilation, n)
    pre, post = _paddings(padding, window, rates)
    sizes = [
        window_count(input.shape[i - n], _extent(window[i], rates[i]), steps[i], pre[i] + post[i])
        for i in range(n)
    ]
    if weight.shape[0] % groups or min(pre) < 0 or not _positive(sizes):
        return NotImplemented
    return input.new_empty((*input.shape[: -n - 1], weight.shape[0], *sizes))


def _rates(dilation: Any, n: int) -> tuple[int, ...]:
    return ntuple("dilation", dilation, n)


def _extent(window: Any, rate: int) -> Any:
    return rate * (window - 1) + 1


def _paddings(padding: Any, window: Sequence[Any], rates: Sequence[int]) -> tuple[Any, Any]:
    """Give the padding before and after, in elements, from numbers, "same" or "valid"."""
    n = len(window)
    if padding == "valid":
        return (0,) * n, (0,) * n
    if padding == "same":
        total = [rate * (k - 1) for k, rate in zip(window, rates, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    both = ntuple("padding", padding, n)
    return both, both


def _precision(
    output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *_args: Any, **_kwargs: Any
) -> Precision:
    del input
    # Tensor cores are of no use there: a detector's box distances are such means of a softmax.
    return "follow" if is_less(output.shape[1 - weight.dim()], 8) else "compute"


@converter(
    *(f"{owner}.conv{n}d" for owner in _OWNERS for n in _CONV),
    precision=_precision,
    meta=_conv_meta,
)
def conv(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> NetworkTensor:
    """Convert ([N], C, *spatial) to ([N], K, *windows); ``weight`` is (K, C / groups, *window).

    ``padding`` is in elements per side, or "same" or "valid". Computes in torch's result type.
    """
    _check_dtype(net)
    n = weight.dim() - 2
    window, rates = _window(weight), _rates(dilation, n)
    pre, post = _paddings(padding, window, rates)
    x = net.tensor(input, net.output.dtype)
    y = net.add_convolution_nd(
        batched(net, x, n),
        _kernel(net, weight),
        bias,
        stride=planar(ntuple("stride", stride, n), 1),
        pre_padding=planar(pre, 0),
        post_padding=planar(post, 0),
        dilation=planar(rates, 1),
        groups=groups,
    )
    return restored(net, y, input.dim(), n)


def _check_dtype(net: Network) -> None:
    if not net.output.dtype.is_floating_point:
        raise UnsupportedArgumentError(
            f"dtype={net.output.dtype}: TensorRT's convolutions are of floating types only"
        )


def _window(weight: torch.Tensor) -> tuple[int, ...]:
    return tuple(static_number("kernel_size", size) for size in weight.shape[2:])


def _kernel(net: Network, weight: torch.Tensor) -> Any:
    """Give a kernel at least two spatial dimensions."""
    if weight.dim() > 3:
        return weight
    if net.is_traced(weight):
        return net.unsqueeze(net.tensor(weight), [3])
    return weight.unsqueeze(3)


def _transposed_meta(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    n = weight.dim() - 2
    if n not in _TRANSPOSED:
        return NotImplemented
    arguments = (stride, padding, output_padding, groups, dilation)
    known = autocast(input, _TRANSPOSED[n], weight, bias, *arguments)
    if known is not None:
        return known
    if not _fits(input, weight, bias, weight.shape[0], weight.shape[1] * groups):
        return NotImplemented
    steps, pads = ntuple("stride", stride, n), ntuple("padding", padding, n)
    extra, rates = ntuple("output_padding", output_padding, n), _rates(dilation, n)
    sizes = [
        (input.shape[i - n] - 1) * steps[i]
        + _extent(weight.shape[2 + i], rates[i])
        - 2 * pads[i]
        + extra[i]
        for i in range(n)
    ]
    room = all(e < max(s, d) for e, s, d in zip(extra, steps, rates, strict=True))
    if weight.shape[0] % groups or min(pads) < 0 or not room or not _positive(sizes):
        return NotImplemented
    channels = weight.shape[1] * groups
    return input.new_empty((*input.shape[: -n - 1], channels, *sizes))


@converter(
    *(f"{owner}.conv_transpose{n}d" for owner in _OWNERS for n in _CONV),
    precision=_precision,
    meta=_transposed_meta,
)
def conv_transpose(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> NetworkTensor:
    """Convert ([N], C, *spatial) to ([N], K, *larger); ``weight`` is (C, K / groups, *window).

    ``padding`` elements are cut from each side of the result, ``output_padding`` fewer from its
    end. Computes in torch's result type.
    """
    _check_dtype(net)
    n = weight.dim() - 2
    steps, pads = ntuple("stride", stride, n), ntuple("padding", padding, n)
    extra, rates = ntuple("output_padding", output_padding, n), _rates(dilation, n)
    _window(weight)
    # TensorRT-RTX has no bf16 deconvolution.
    bf16 = net.compute_dtype(net.output.dtype) == torch.bfloat16
    if bf16 and bias is not None and net.is_traced(bias):
        raise UnsupportedArgumentError(
            "bias depends on the input: TensorRT-RTX does not build this in bfloat16; supported: "
            "a constant bias"
        )
    x = net.tensor(input, torch.float32 if bf16 else net.output.dtype)
    if any(rate > 1 for rate in rates) and any(step > 1 for step in steps):
        # TensorRT-RTX has no deconvolution with stride and dilation.
        weight, rates = _dilated(net, weight, rates), (1,) * n
    crops = [pad - more for pad, more in zip(pads, extra, strict=True)]
    # A crop below zero shows what lies behind the last window: there is room for it once the input
    # has a zero more at its end.
    zeros = [max(0, -(crop // step)) for crop, step in zip(crops, steps, strict=True)]
    crops = [crop + zero * step for crop, zero, step in zip(crops, zeros, steps, strict=True)]
    y = net.add_deconvolution_nd(
        batched(net, _extended(net, x, input, zeros), n),
        _kernel(net, weight),
        bias,
        stride=planar(steps, 1),
        pre_padding=planar(pads, 0),
        post_padding=planar(crops, 0),
        dilation=planar(rates, 1),
        groups=groups,
    )
    y = restored(net, y, input.dim(), n)
    return net.cast(y, torch.bfloat16) if bf16 else y


def _dilated(net: Network, weight: torch.Tensor, rates: Sequence[int]) -> torch.Tensor:
    """Give a kernel with zeros between its elements."""
    if net.is_traced(weight):
        raise UnsupportedArgumentError(
            f"dilation={tuple(rates)}: with a stride and a kernel that depends on the input, "
            "TensorRT has no transposed convolution; supported: 1"
        )
    window = [_extent(k, rate) for k, rate in zip(weight.shape[2:], rates, strict=True)]
    wide = weight.new_zeros((*weight.shape[:2], *window))
    places: tuple[Any, ...] = (..., *(slice(None, None, rate) for rate in rates))
    wide[places] = weight.detach()
    return wide


def _extended(
    net: Network, x: NetworkTensor, input: torch.Tensor, zeros: Sequence[int]
) -> NetworkTensor:
    """Add zeros at the end of the spatial dimensions."""
    if not any(zeros):
        return x
    fixed = input.dim() - len(zeros)
    sizes = [size + more for size, more in zip(input.shape[fixed:], zeros, strict=True)]
    return net.add_slice(
        x, [0] * input.dim(), [*input.shape[:fixed], *sizes], mode="FILL", fill=0.0
    )


@converter("aten::convolution", precision=_precision)
def aten_convolution(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> NetworkTensor:
    """Convert a convolution that was captured before torch's functions were patched."""
    if transposed:
        return conv_transpose(
            net, input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return conv(net, input, weight, bias, stride, padding, dilation, groups)
