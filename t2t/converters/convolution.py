"""Convolution and transposed convolution, 1-d to 3-d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import agree, ntuple, static_number
from t2t.converters._compute import is_less
from t2t.converters._spatial import batched, planar, restored, window_count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import Precision, converter

__all__ = ["convolution"]


def _output(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> torch.Tensor:
    """Compute the fake result, without PyTorch's questions about sizes and memory."""
    n = weight.dim() - 2
    steps, rates = ntuple("stride", stride, n), ntuple("dilation", dilation, n)
    pads, extra = ntuple("padding", padding, n), ntuple("output_padding", output_padding, n)
    taken, given = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        taken, given = given, taken
    rows = list(zip(input.shape[2:], weight.shape[2:], steps, pads, rates, extra, strict=False))
    sizes: list[Any] = []
    if transposed:
        sizes = [(m - 1) * s + _extent(k, d) - 2 * p + e for m, k, s, p, d, e in rows]
    else:
        sizes = [window_count(m, _extent(k, d), s, 2 * p) for m, k, s, p, d, _ in rows]
    fits = (
        input.dim() == n + 2
        and input.dtype == weight.dtype
        and agree((input.shape[1], taken))
        and (bias is None or (bias.dtype == input.dtype and bias.dim() == 1))
        and (bias is None or agree((bias.shape[0], given)))
        and weight.shape[0] % groups == 0
        and min(pads) >= 0
        and (not transposed or all(e < max(s, d) for _, _, s, _, d, e in rows))
        # There must be room for a window, for all dynamic sizes.
        and all(size > 0 for size in sizes)
    )
    if not fits:
        # The tracer asks PyTorch, which says what is wrong.
        raise ValueError("the arguments of a convolution do not go together")
    return input.new_empty((input.shape[0], given, *sizes))


def _extent(window: Any, rate: int) -> Any:
    return rate * (window - 1) + 1


def _precision(
    output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *_args: Any, **_kwargs: Any
) -> Precision:
    del input
    # Tensor cores are of no use there: a detector's box distances are such means of a softmax.
    return "follow" if is_less(output.shape[1 - weight.dim()], 8) else "compute"


@converter("aten::convolution", precision=_precision, meta=_output)
def convolution(
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
    """Convert (N, C, *spatial) to (N, K, *windows), or transposed to (N, K, *larger).

    ``weight`` is (K, C / groups, *window), transposed (C, K / groups, *window); ``padding`` and
    ``output_padding`` are in elements.
    """
    if not net.output.dtype.is_floating_point:
        raise UnsupportedArgumentError(
            f"dtype={net.output.dtype}: TensorRT's convolutions are of floating types only"
        )
    for size in weight.shape[2:]:
        static_number("kernel_size", size)
    n = weight.dim() - 2
    steps, rates = ntuple("stride", stride, n), ntuple("dilation", dilation, n)
    pads = ntuple("padding", padding, n)
    if transposed:
        extra = ntuple("output_padding", output_padding, n)
        return _transposed(net, input, weight, bias, steps, pads, rates, extra, groups)
    y = net.add_convolution_nd(
        batched(net, net.tensor(input, net.output.dtype), n),
        _kernel(net, weight),
        bias,
        stride=planar(steps, 1),
        pre_padding=planar(pads, 0),
        post_padding=planar(pads, 0),
        dilation=planar(rates, 1),
        groups=groups,
    )
    return restored(net, y, input.dim(), n)


def _kernel(net: Network, weight: torch.Tensor) -> Any:
    """Return a kernel at least two spatial dimensions."""
    if weight.dim() > 3:
        return weight
    if net.is_traced(weight):
        return net.unsqueeze(net.tensor(weight), [3])
    return weight.unsqueeze(3)


def _transposed(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    steps: Sequence[int],
    pads: Sequence[int],
    rates: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> NetworkTensor:
    """Add a deconvolution; ``pads`` elements are cut from each side, ``extra`` fewer at the end."""
    n = len(steps)
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
    """Return a kernel with zeros between its elements."""
    if net.is_traced(weight):
        raise UnsupportedArgumentError(
            f"dilation={tuple(rates)}: with a stride and a kernel that depends on the input, "
            "TensorRT has no transposed convolution; supported: 1"
        )
    window = [_extent(k, rate) for k, rate in zip(weight.shape[2:], rates, strict=True)]
    wide = weight.new_zeros((*weight.shape[:2], *window))
    elements: tuple[Any, ...] = (..., *(slice(None, None, rate) for rate in rates))
    wide[elements] = weight.detach()
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
