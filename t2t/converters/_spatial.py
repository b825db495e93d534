"""Tensors as TensorRT's window layers take them: batched, with at least two spatial dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.sizes import static_size


def batched(net: Network, x: NetworkTensor, spatial: int) -> NetworkTensor:
    """Return (C, *spatial) or (N, C, *spatial) as (N, C, *spatial), at least 4-D."""
    axes = _added_axes(len(x.shape), spatial)
    return net.unsqueeze(x, axes) if axes else x


def restored(net: Network, x: NetworkTensor, rank: int, spatial: int) -> NetworkTensor:
    """Take away the dimensions that `batched` added to a tensor of this rank."""
    return squeeze(net, x, _added_axes(rank, spatial))


def _added_axes(rank: int, spatial: int) -> list[int]:
    front = [0] if rank == spatial + 1 else []
    return front + [rank + len(front)] * (spatial == 1)


def squeeze(net: Network, x: NetworkTensor, axes: Sequence[int]) -> NetworkTensor:
    """Remove dimensions of size 1, given as indices from the front."""
    if not axes:
        return x
    kept = [(index, size) for index, size in enumerate(x.shape) if index not in axes]
    sizes = [size for _, size in kept]
    if sizes.count(-1) > 1:
        # A shuffle infers one size only; others it can copy from the dimension of the same index.
        if any(size == -1 and axis != new for new, (axis, size) in enumerate(kept)):
            indices = net.tensor(torch.tensor(list(axes), dtype=torch.int64))
            return net.result(net.add("add_squeeze", x, indices))
        sizes = [0 if size == -1 else size for size in sizes]
    return net.result(net.add("add_shuffle", x, reshape_dims=tuple(sizes)))


def planar(numbers: Sequence[int], missing: int) -> tuple[int, ...]:
    """Return the numbers of one spatial dimension as those of two, the second being ``missing``."""
    return (*numbers, missing) if len(numbers) == 1 else tuple(numbers)


def window_count(size: Any, window: int, stride: int, pads: int, up: bool = False) -> Any:
    """Return how many windows fit into a size, perhaps symbolic, that is padded by ``pads`` in all.

    ``window`` is in elements, dilation included; ``up`` lets the last one stand over the end.
    """
    return (size + pads - window + (stride - 1 if up else 0)) // stride + 1


def autocast(x: torch.Tensor, original: Callable[..., Any], *args: Any) -> Any:
    """Call the original where torch.autocast may change its dtype; None elsewhere."""
    return original(x, *args) if torch.is_autocast_enabled(x.device.type) else None


def laid_out(
    input: torch.Tensor,
    sizes: Sequence[Any],
    dtype: torch.dtype | None = None,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a fake result in torch's layout: channels last as an argument, else contiguous.

    The layout decides which views there are of it.

    Args:
        input: what is convolved, pooled, resized or normalized.
        sizes: of the result.
        dtype: of the result; by default the input's.
        weight: that of a convolution.
    """
    if not any(x is not None and _is_channels_last(x) for x in (input, weight)):
        return input.new_empty(tuple(sizes), dtype=dtype)
    batch, channels, *spatial = sizes
    result = input.new_empty((batch, *spatial, channels), dtype=dtype)
    return result.permute(0, -1, *range(1, len(spatial) + 1))


def _is_channels_last(x: torch.Tensor) -> bool:
    if x.dim() not in (4, 5) or static_size(x.stride(1)) != 1:
        return False
    dims = range(x.dim())
    last = same_sizes(x.stride(), _strides(x.shape, [0, *dims[2:], 1]))
    return last and not same_sizes(x.stride(), _strides(x.shape, dims))


def _strides(sizes: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Return the strides of dimensions that lie in memory in this order, the last one innermost."""
    strides, step = [1] * len(sizes), 1
    for dim in reversed(order):
        strides[dim], step = step, step * sizes[dim]
    return strides


def pooled_type(original: Callable[..., Any], input: torch.Tensor, n: int) -> torch.dtype:
    """Return the type of a pooling's result, which torch.autocast decides on where it is on.

    Torch says it of one window of one element, as it would ask for the sizes of dynamic ones.
    """
    if not torch.is_autocast_enabled(input.device.type):
        return input.dtype
    result = original(input.new_zeros([1] * input.dim()), [1] * n)
    return (result if isinstance(result, torch.Tensor) else result[0]).dtype
