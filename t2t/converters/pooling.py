"""Max, average and adaptive pooling, 1-d to 3-d."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._adaptive import adaptive
from t2t.converters._window_places import adaptive_places, places_of_maxima, pooled_places
from t2t.converters._windows import Windows, average_pool, max_pool
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["adaptive_avg_pool", "adaptive_max_pool"]


def _pool_meta(
    n: int, original: Callable[..., Any], arguments: Sequence[str]
) -> Callable[..., Any]:
    """Make a function that computes the fake result of a pooling.

    Args:
        n: number of spatial dimensions.
        original: torch's function.
        arguments: names of its parameters behind the window's size.
    """

    def meta(input: torch.Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(arguments, args, strict=False)), **kwargs}
        windows = Windows.of(
            n,
            kernel_size,
            given.get("stride"),
            given.get("padding", 0),
            given.get("dilation", 1),
            given.get("ceil_mode", False),
        )
        rows = zip(windows.padding, windows.size, windows.dilation, strict=True)
        if input.dim() not in (n + 1, n + 2) or any(2 * p > (k - 1) * d + 1 for p, k, d in rows):
            # What does not go together, torch is to say.
            return NotImplemented
        counts = windows.counts(input.shape[-n:])
        if torch.is_autocast_enabled(input.device.type) or any(count < 1 for count in counts):
            return original(input, kernel_size, *args, **kwargs)
        shape = (*input.shape[:-n], *counts)
        result = input.new_empty(shape)
        if given.get("return_indices"):
            return result, input.new_empty(shape, dtype=torch.int64)
        return result

    return meta


def _register_max(n: int) -> None:
    name = f"max_pool{n}d"
    arguments = ("stride", "padding", "dilation", "ceil_mode", "return_indices")

    @converter(
        f"torch.nn.functional.{name}",
        f"torch.{name}",
        meta=_pool_meta(n, getattr(F, name), arguments),
    )
    def max_pool_nd(
        net: Network,
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """Convert ([N], C, *spatial) to ([N], C, *windows), and the places of the maxima."""
        windows = Windows.of(n, kernel_size, stride, padding, dilation, ceil_mode)
        if return_indices:
            return _maxima_and_places(net, input, n, windows)
        return max_pool(net, input, n, windows)

    if n == 1:
        return

    @converter(f"aten::{name}_with_indices")
    def max_pool_with_indices(
        net: Network,
        self: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        """Convert ([N], C, *spatial) to ([N], C, *windows), and the places of the maxima."""
        windows = Windows.of(n, kernel_size, stride, padding, dilation, ceil_mode)
        return _maxima_and_places(net, self, n, windows)


def _maxima_and_places(
    net: Network, input: torch.Tensor, n: int, windows: Windows
) -> tuple[NetworkTensor | None, NetworkTensor | None]:
    maxima = max_pool(net, input, n, windows) if net.is_used(0) else None
    if not net.is_used(1):
        return maxima, None
    table = pooled_places(input.shape[-n:], windows)
    return maxima, places_of_maxima(net, input, n, table, net.output[1])


def _register_average(n: int) -> None:
    name = f"avg_pool{n}d"
    arguments = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")

    @converter(
        *([f"torch.{name}"] if n == 1 else []),
        f"torch.nn.functional.{name}",
        meta=_pool_meta(n, getattr(F, name), arguments),
    )
    def avg_pool_nd(
        net: Network,
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> NetworkTensor:
        """Convert ([N], C, *spatial) to ([N], C, *windows)."""
        windows = Windows.of(n, kernel_size, stride, padding, 1, ceil_mode)
        return average_pool(net, input, n, windows, count_include_pad, divisor_override)

    if n == 1:
        return

    @converter(f"aten::{name}")
    def aten_avg_pool_nd(
        net: Network,
        self: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> NetworkTensor:
        """Convert ([N], C, *spatial) to ([N], C, *windows)."""
        windows = Windows.of(n, kernel_size, stride, padding, 1, ceil_mode)
        return average_pool(net, self, n, windows, count_include_pad, divisor_override)


def _sizes(input: torch.Tensor, output_size: Any, n: int) -> list[Any]:
    """Give the sizes of an adaptive pooling; None keeps the input's."""
    given = output_size if isinstance(output_size, Sequence) else (output_size,)
    wanted = list(given) * (n if len(given) == 1 else 1)
    return [input.shape[i - n] if size is None else size for i, size in enumerate(wanted)]


def _adaptive_meta(n: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def meta(input: torch.Tensor, output_size: Any, return_indices: bool = False) -> Any:
        sizes = _sizes(input, output_size, n)
        if input.dim() not in (n + 1, n + 2):
            return NotImplemented
        if return_indices or torch.is_autocast_enabled(input.device.type) or len(sizes) != n:
            more = (True,) if return_indices else ()
            return original(input, output_size, *more)
        return input.new_empty((*input.shape[:-n], *sizes))

    return meta


def adaptive_avg_pool(net: Network, input: torch.Tensor, output_size: Any) -> NetworkTensor:
    """Convert (..., *spatial) to (..., *output_size) by the means of as many windows."""
    x = net.tensor(input, net.output.dtype)
    return adaptive(net, x, input.shape, output_size, average=True)


def adaptive_max_pool(net: Network, input: torch.Tensor, output_size: Any) -> NetworkTensor:
    """Convert (..., *spatial) to (..., *output_size) by the maxima of as many windows."""
    return adaptive(net, net.tensor(input), input.shape, output_size, average=False)


def _adaptive_maxima_and_places(
    net: Network, input: torch.Tensor, n: int, output_size: Any
) -> tuple[NetworkTensor | None, NetworkTensor | None]:
    counts = _sizes(input, output_size, n)
    maxima = adaptive_max_pool(net, input, counts) if net.is_used(0) else None
    if not net.is_used(1):
        return maxima, None
    table = adaptive_places(input.shape[-n:], counts)
    return maxima, places_of_maxima(net, input, n, table, net.output[1])


def _register_adaptive(n: int) -> None:
    average, maximum = f"adaptive_avg_pool{n}d", f"adaptive_max_pool{n}d"
    owners = ("torch.nn.functional", "torch") if n == 1 else ("torch.nn.functional",)

    @converter(
        *(f"{owner}.{average}" for owner in owners), meta=_adaptive_meta(n, getattr(F, average))
    )
    def adaptive_avg_pool_nd(net: Network, input: torch.Tensor, output_size: Any) -> NetworkTensor:
        """Convert ([N], C, *spatial) to ([N], C, *output_size)."""
        return adaptive_avg_pool(net, input, _sizes(input, output_size, n))

    @converter(f"torch.nn.functional.{maximum}", meta=_adaptive_meta(n, getattr(F, maximum)))
    def adaptive_max_pool_nd(
        net: Network, input: torch.Tensor, output_size: Any, return_indices: bool = False
    ) -> Any:
        """Convert ([N], C, *spatial) to ([N], C, *output_size), and the places of the maxima."""
        if return_indices:
            return _adaptive_maxima_and_places(net, input, n, output_size)
        return adaptive_max_pool(net, input, _sizes(input, output_size, n))

    if n == 1:
        return

    @converter(f"aten::_{average}")
    def aten_adaptive_avg_pool_nd(
        net: Network, self: torch.Tensor, output_size: Any
    ) -> NetworkTensor:
        """Convert ([N], C, *spatial) to ([N], C, *output_size)."""
        return adaptive_avg_pool(net, self, _sizes(self, output_size, n))

    @converter(f"aten::{maximum}")
    def aten_adaptive_max_pool_nd(net: Network, self: torch.Tensor, output_size: Any) -> Any:
        """Convert ([N], C, *spatial) to ([N], C, *output_size), and the places of the maxima."""
        return _adaptive_maxima_and_places(net, self, n, output_size)


for _n in (1, 2, 3):
    _register_max(_n)
    _register_average(_n)
    _register_adaptive(_n)
