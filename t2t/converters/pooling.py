"""Max, average and adaptive pooling, 1-d to 3-d.

The functions are converted as they are called, and not as the operators that they consist of, for
PyTorch's own code takes the sizes of windows as plain numbers: a window that is the whole dynamic
image would be frozen. (torch.nn.functional's max pooling calls torch's.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._spatial import laid_out, pooled_type
from t2t.converters._windows import (
    Windows,
    adaptive,
    adaptive_elements,
    average_pool,
    indices_of_maxima,
    max_pool,
    window_elements,
)
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import smallest, static_size

aten = torch.ops.aten

_ADAPTIVE_AVERAGE = F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d

_Pair = tuple[NetworkTensor | None, NetworkTensor | None]


def _output(
    n: int,
    original: Callable[..., Any],
    windows_of: Callable[..., Windows],
    input: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute the fake result of a pooling, without PyTorch's questions about sizes.

    Args:
        n: number of spatial dimensions.
        original: torch's function, which says what does not go together.
        windows_of: makes the windows of ``n`` and the further arguments.
        input: what is pooled.
        args: the function's further arguments.
        kwargs: likewise.
    """
    windows = windows_of(n, *args, **kwargs)
    rows = [*zip(windows.padding, windows.size, windows.dilation, strict=True)]
    too_wide = any(2 * pad > (size - 1) * rate + 1 for pad, size, rate in rows)
    if too_wide or input.dim() not in (n + 1, n + 2):
        return original(input, *args, **kwargs)
    counts = windows.counts(input.shape[-n:])
    if any(count < 1 for count in counts):
        return original(input, *args, **kwargs)
    dtype = pooled_type(original, input, n)
    sizes = (*input.shape[:-n], *counts)
    if n == 3 and windows_of is _average_windows:
        # The one kernel of torch's that does not keep channels last.
        return input.new_empty(sizes, dtype=dtype)
    return laid_out(input, sizes, dtype)


def _outputs(*args: Any, **kwargs: Any) -> Any:
    """Compute the fake maxima and their indices, as `_output` does."""
    result = _output(*args, **kwargs)
    if isinstance(result, torch.Tensor):
        return result, torch.empty_like(result, dtype=torch.int64)
    return result


# -- maxima ----------------------------------------------------------------------------------------


@converter("torch.max_pool1d", meta=functools.partial(_output, 1, torch.max_pool1d, Windows.of))
def max_pool1d(net: Network, input: torch.Tensor, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert ([N], C, L) to ([N], C, windows)."""
    return max_pool(net, input, 1, Windows.of(1, *args, **kwargs))


@converter("torch.max_pool2d", meta=functools.partial(_output, 2, torch.max_pool2d, Windows.of))
def max_pool2d(net: Network, input: torch.Tensor, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert ([N], C, H, W) to ([N], C, *windows)."""
    return max_pool(net, input, 2, Windows.of(2, *args, **kwargs))


@converter("torch.max_pool3d", meta=functools.partial(_output, 3, torch.max_pool3d, Windows.of))
def max_pool3d(net: Network, input: torch.Tensor, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert ([N], C, D, H, W) to ([N], C, *windows)."""
    return max_pool(net, input, 3, Windows.of(3, *args, **kwargs))


@converter(
    "aten::max_pool2d_with_indices",
    meta=functools.partial(_outputs, 2, aten.max_pool2d_with_indices.default, Windows.of),
)
def max_pool2d_with_indices(net: Network, self: torch.Tensor, *args: Any) -> _Pair:
    """Convert ([N], C, H, W) to ([N], C, *windows), and the indices of the maxima."""
    return _maxima_and_indices(net, self, 2, Windows.of(2, *args))


@converter(
    "aten::max_pool3d_with_indices",
    meta=functools.partial(_outputs, 3, aten.max_pool3d_with_indices.default, Windows.of),
)
def max_pool3d_with_indices(net: Network, self: torch.Tensor, *args: Any) -> _Pair:
    """Convert ([N], C, D, H, W) to ([N], C, *windows), and the indices of the maxima."""
    return _maxima_and_indices(net, self, 3, Windows.of(3, *args))


def _maxima_and_indices(net: Network, input: torch.Tensor, n: int, windows: Windows) -> _Pair:
    maxima = max_pool(net, input, n, windows) if net.is_used(0) else None
    if not net.is_used(1):
        return maxima, None
    table = window_elements(input.shape[-n:], windows)
    return maxima, indices_of_maxima(net, input, n, table, net.output[1])


# -- means -----------------------------------------------------------------------------------------


def _average_windows(
    n: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Windows:
    del count_include_pad, divisor_override  # they change the values only
    return Windows.of(n, kernel_size, stride, padding, 1, ceil_mode)


@converter(
    "torch.nn.functional.avg_pool1d",
    meta=functools.partial(_output, 1, F.avg_pool1d, _average_windows),
)
def avg_pool1d(net: Network, input: torch.Tensor, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert ([N], C, L) to ([N], C, windows)."""
    return _average(net, input, 1, *args, **kwargs)


@converter(
    "torch.nn.functional.avg_pool2d",
    "aten::avg_pool2d",
    meta=functools.partial(_output, 2, F.avg_pool2d, _average_windows),
)
def avg_pool2d(net: Network, input: torch.Tensor, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert ([N], C, H, W) to ([N], C, *windows)."""
    return _average(net, input, 2, *args, **kwargs)


@converter(
    "torch.nn.functional.avg_pool3d",
    "aten::avg_pool3d",
    meta=functools.partial(_output, 3, F.avg_pool3d, _average_windows),
)
def avg_pool3d(net: Network, input: torch.Tensor, *args: Any, **kwargs: Any) -> NetworkTensor:
    """Convert ([N], C, D, H, W) to ([N], C, *windows)."""
    return _average(net, input, 3, *args, **kwargs)


def _average(
    net: Network,
    input: torch.Tensor,
    n: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> NetworkTensor:
    windows = Windows.of(n, kernel_size, stride, padding, 1, ceil_mode)
    return average_pool(net, input, n, windows, count_include_pad, divisor_override)


# -- as many windows as asked for ------------------------------------------------------------------


def _one_window(n: int, input: torch.Tensor, output_size: int | Sequence[int | None] | None) -> Any:
    """Compute the fake mean of all elements; other pooling is left to its operator."""
    sizes = [output_size] * n if isinstance(output_size, int | None) else [*output_size]
    if (
        [size is not None and static_size(size) == 1 for size in sizes] != [True] * n
        or input.dim() not in (n + 1, n + 2)
        or not input.is_floating_point()
        or any(smallest(size) < 1 for size in input.shape)
    ):
        return NotImplemented
    dtype = pooled_type(_ADAPTIVE_AVERAGE[n - 1], input, n)
    return laid_out(input, (*input.shape[:-n], *[1] * n), dtype)


# At size 1, PyTorch makes a mean of it, which is computed in float32, and changes its strides.
@converter(
    "torch.nn.functional.adaptive_avg_pool1d",
    "torch.adaptive_avg_pool1d",
    meta=functools.partial(_one_window, 1),
)
@converter("torch.nn.functional.adaptive_avg_pool2d", meta=functools.partial(_one_window, 2))
@converter("torch.nn.functional.adaptive_avg_pool3d", meta=functools.partial(_one_window, 3))
def global_avg_pool(net: Network, input: torch.Tensor, output_size: Any) -> NetworkTensor:
    """Convert ([N], C, *spatial) to the mean of each channel, ([N], C, 1, ...)."""
    del output_size
    return adaptive_avg_pool(net, input, net.output.shape)


@converter("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_avg_pool(
    net: Network, self: torch.Tensor, output_size: Sequence[Any]
) -> NetworkTensor:
    """Convert (..., *spatial) to (..., *output_size) by the means of as many windows."""
    x = net.tensor(self, net.output.dtype)
    return adaptive(net, x, self.shape, output_size, average=True)


@converter("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(net: Network, self: torch.Tensor, output_size: Sequence[Any]) -> _Pair:
    """Convert (..., *spatial) to (..., *output_size), and the indices of the maxima."""
    maxima = None
    if net.is_used(0):
        maxima = adaptive(net, net.tensor(self), self.shape, output_size, average=False)
    if not net.is_used(1):
        return maxima, None
    table = adaptive_elements(self.shape[-len(output_size) :], output_size)
    return maxima, indices_of_maxima(net, self, len(output_size), table, net.output[1])
