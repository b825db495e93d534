"""Convolution and transposed convolution, 1-d to 3-d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from t2t.converters._arguments import agree, ntuple, static_number
from t2t.converters._compute import is_less
from t2t.converters._spatial import batched, laid_out, planar, restored, window_count
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import Precision, converter
from t2t.sizes import static_size


class _Windows(NamedTuple):
    """How the windows of a convolution lie; one number a spatial dimension, in elements."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]

    @classmethod
    def of(cls, n: int, *given: Any) -> _Windows:
        """Bring torch's arguments to tuples of ``n``."""
        return cls(*(ntuple(name, x, n) for name, x in zip(cls._fields, given, strict=True)))


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
    windows = _Windows.of(n, stride, padding, dilation, output_padding)
    taken, given = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        taken, given = given, taken
    rows = list(zip(input.shape[2:], weight.shape[2:], *windows, strict=False))
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
        and min(windows.padding) >= 0
        and (not transposed or all(e < max(s, d) for _, _, s, _, d, e in rows))
        # There must be room for a window, for all dynamic sizes.
        and all(size > 0 for size in sizes)
    )
    if not fits:
        # The tracer asks PyTorch, which says what is wrong.
        raise ValueError("the arguments of a convolution do not go together")
    return laid_out(input, (input.shape[0], given, *sizes), weight=weight)


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
    windows = _Windows.of(weight.dim() - 2, stride, padding, dilation, output_padding)
    dynamic = any(static_size(size) is None for size in (*weight.shape[:2], groups))
    # TensorRT-RTX has no deconvolution with stride and dilation.
    wide = transposed and max(windows.dilation) > 1 and max(windows.stride) > 1
    if dynamic or (wide and net.is_traced(weight)):
        return _of_many_kernels(net, input, weight, bias, windows, transposed, groups)
    x = net.tensor(input, net.output.dtype)
    if transposed:
        return _transposed(net, x, input.shape, weight, bias, windows, groups)
    return _convolution(net, x, weight, bias, windows, groups)


def _convolution(
    net: Network,
    x: NetworkTensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    windows: _Windows,
    groups: int,
) -> NetworkTensor:
    """Add a convolution of (N, C, *spatial)."""
    n = weight.dim() - 2
    y = net.add_convolution_nd(
        batched(net, x, n),
        _kernel(net, weight),
        bias,
        stride=planar(windows.stride, 1),
        pre_padding=planar(windows.padding, 0),
        post_padding=planar(windows.padding, 0),
        dilation=planar(windows.dilation, 1),
        groups=groups,
    )
    return restored(net, y, n + 2, n)


def _of_many_kernels(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    windows: _Windows,
    transposed: bool,
    groups: Any,
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
        y = _transposed(net, y, maps, unit, None, windows, 1)
    else:
        x = net.reshape(x, [batch * channels, 1, *spatial])
        x = _convolution(net, x, unit, None, windows, 1)
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
    windows: _Windows,
    groups: int,
) -> NetworkTensor:
    """Add a deconvolution; padding is cut from each side, less at the end by ``output_padding``.

    ``sizes`` are those of ``x``, (N, C, *spatial).
    """
    steps, pads, rates, extra = windows
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
