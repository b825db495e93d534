"""Convolution and transposed convolution, 1-d to 3-d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import agree, ntuple, static_number
from t2t.converters._compute import is_less
from t2t.converters._spatial import batched, planar, restored, window_count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import Precision, converter
from t2t.sizes import static_size

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
    pads, extra = ntuple("padding", padding, n), ntuple("output_padding", output_padding, n)
    dynamic = any(static_size(size) is None for size in (*weight.shape[:2], groups))
    # TensorRT-RTX has no deconvolution with stride and dilation.
    wide = transposed and max(rates) > 1 and max(steps) > 1 and net.is_traced(weight)
    if dynamic or wide:
        given = (input, weight, steps, pads, rates, extra, transposed, groups)
        return _of_many_kernels(net, *given, bias)
    x = net.tensor(input, net.output.dtype)
    if transposed:
        return _transposed(net, x, input.shape, weight, bias, steps, pads, rates, extra, groups)
    return _windows(net, x, weight, bias, steps, pads, rates, groups)


def _windows(
    net: Network,
    x: NetworkTensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    steps: Sequence[int],
    pads: Sequence[int],
    rates: Sequence[int],
    groups: int,
) -> NetworkTensor:
    """Add a convolution of (N, C, *spatial)."""
    n = len(steps)
    y = net.add_convolution_nd(
        batched(net, x, n),
        _kernel(net, weight),
        bias,
        stride=planar(steps, 1),
        pre_padding=planar(pads, 0),
        post_padding=planar(pads, 0),
        dilation=planar(rates, 1),
        groups=groups,
    )
    return restored(net, y, n + 2, n)


def _of_many_kernels(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor,
    steps: Sequence[int],
    pads: Sequence[int],
    rates: Sequence[int],
    extra: Sequence[int],
    transposed: bool,
    groups: Any,
    bias: torch.Tensor | None,
) -> NetworkTensor:
    """Add a matrix product where no layer serves: for a dynamic number of groups or kernels.

    Each sample with kernels of its own is such a convolution, in which batch and channels are one
    dimension. Windows become columns by a convolution with the unit matrix, and columns windows by
    a transposed one.
    """
    window, dtype = weight.shape[2:], net.output.dtype
    count, (batch, channels, *spatial) = window.numel(), input.shape
    unit = torch.eye(count).reshape(count, 1, *window)
    # The dimensions of a group's matrix.
    rows, columns = weight.shape[0] // groups, weight.shape[1] * count
    kernels = net.reshape(net.tensor(weight, dtype), [1, groups, rows, columns])
    x = net.tensor(input, dtype)
    if transposed:
        x = net.reshape(x, [batch, groups, rows, math.prod(spatial)])
        y = net.add_matrix_multiply(kernels, x, "TRANSPOSE")
        maps = [batch * groups * weight.shape[1], count, *spatial]
        y = net.reshape(y, maps)
        y = _transposed(net, y, maps, unit, None, steps, pads, rates, extra, 1)
    else:
        x = net.reshape(x, [batch * channels, 1, *spatial])
        x = _windows(net, x, unit, None, steps, pads, rates, 1)
        x = net.reshape(x, [batch, groups, columns, math.prod(net.output.shape[2:])])
        y = net.add_matrix_multiply(kernels, x)
    y = net.reshape(y, net.output.shape)
    if bias is None:
        return y
    each = net.reshape(net.tensor(bias, dtype), [1, net.output.shape[1], *[1] * len(window)])
    return net.add_elementwise(y, each, "SUM")


def _kernel(net: Network, weight: torch.Tensor) -> Any:
    """Return a kernel at least two spatial dimensions."""
    if weight.dim() > 3:
        return weight
    if net.is_traced(weight):
        return net.unsqueeze(net.tensor(weight), [3])
    return weight.unsqueeze(3)


def _transposed(
    net: Network,
    x: NetworkTensor,
    sizes: Sequence[Any],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    steps: Sequence[int],
    pads: Sequence[int],
    rates: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> NetworkTensor:
    """Add a deconvolution; ``pads`` elements are cut from each side, ``extra`` fewer at the end.

    ``sizes`` are those of ``x``, (N, C, *spatial).
    """
    n = len(steps)
    # TensorRT-RTX has no bf16 deconvolution.
    bf16 = net.compute_dtype(net.output.dtype) == torch.bfloat16
    if bf16 and bias is not None and net.is_traced(bias):
        raise UnsupportedArgumentError(
            "bias depends on the input: TensorRT-RTX does not build this in bfloat16; supported: "
            "a constant bias"
        )
    x = net.cast(x, torch.float32) if bf16 else x
    if any(rate > 1 for rate in rates) and any(step > 1 for step in steps):
        # A traced kernel never comes here.
        weight, rates = _dilated(weight, rates), (1,) * n
    crops = [pad - more for pad, more in zip(pads, extra, strict=True)]
    # A crop below zero shows what lies behind the last window: there is room for it once the input
    # has a zero more at its end.
    zeros = [max(0, -(crop // step)) for crop, step in zip(crops, steps, strict=True)]
    crops = [crop + zero * step for crop, zero, step in zip(crops, zeros, steps, strict=True)]
    y = net.add_deconvolution_nd(
        batched(net, _extended(net, x, sizes, zeros), n),
        _kernel(net, weight),
        bias,
        stride=planar(steps, 1),
        pre_padding=planar(pads, 0),
        post_padding=planar(crops, 0),
        dilation=planar(rates, 1),
        groups=groups,
    )
    y = restored(net, y, n + 2, n)
    return net.cast(y, torch.bfloat16) if bf16 else y


def _dilated(weight: torch.Tensor, rates: Sequence[int]) -> torch.Tensor:
    """Return a kernel with zeros between its elements."""
    window = [_extent(k, rate) for k, rate in zip(weight.shape[2:], rates, strict=True)]
    wide = weight.new_zeros((*weight.shape[:2], *window))
    elements: tuple[Any, ...] = (..., *(slice(None, None, rate) for rate in rates))
    wide[elements] = weight.detach()
    return wide


def _extended(
    net: Network, x: NetworkTensor, sizes: Sequence[Any], zeros: Sequence[int]
) -> NetworkTensor:
    """Add zeros at the end of the spatial dimensions."""
    if not any(zeros):
        return x
    wanted = [size + more for size, more in zip(sizes, (0, 0, *zeros), strict=True)]
    return net.add_slice(x, [0] * len(sizes), wanted, mode="FILL", fill=0.0)
