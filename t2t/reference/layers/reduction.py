"""Reductions, top-k and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from t2t.reference.layer import Kernel, Ready, axes_of_mask, ints, layer, wide

_Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _average(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.is_floating_point:
        return x.mean(axes, keepdim=keep)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return torch.div(_sum(x, axes, keep), count, rounding_mode="trunc")


def _maximum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if any(x.shape[axis] == 0 for axis in axes):
        # Over no elements, every reduction gives what changes nothing.
        return _filled(x, axes, keep, -torch.inf)
    return x.amax(axes, keepdim=keep)


def _minimum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if any(x.shape[axis] == 0 for axis in axes):
        return _filled(x, axes, keep, torch.inf)
    return x.amin(axes, keepdim=keep)


def _filled(x: Tensor, axes: tuple[int, ...], keep: bool, value: float) -> Tensor:
    if not x.dtype.is_floating_point:
        limits = torch.iinfo(x.dtype)
        value = limits.min if value < 0 else limits.max
    shape = _sum(x, axes, keep).shape
    return torch.full(shape, value, dtype=x.dtype, device=x.device)


_REDUCTIONS: dict[str, _Reduction] = {
    "SUM": _sum,
    "PROD": _product,
    "MAX": _maximum,
    "MIN": _minimum,
    "AVG": _average,
}


@layer("REDUCE", "op", "axes", "keep_dims")
def reduce(ready: Ready) -> Kernel:
    """Reduce over the axes of a bit mask; halves in float32, integers in their own type."""
    function, dtype = _REDUCTIONS[ready.attributes["op"]], ready.dtype
    axes, keep = axes_of_mask(ready.attributes["axes"]), ready.attributes["keep_dims"]
    return lambda x: function(wide(x), axes, keep).to(dtype)


@layer("TOPK", "op", "k", "axes", host=(1,))
def topk(ready: Ready) -> Kernel:
    """Return the k largest or smallest values along an axis, sorted, and where they are.

    Among equal values the one of lower index comes first.
    """
    a = ready.attributes
    (axis,) = axes_of_mask(a["axes"])
    largest = a["op"] == "MAX"
    values_type, indices_type = ready.dtypes

    def kernel(x: Tensor, k_in: Tensor | None = None) -> tuple[Tensor, Tensor]:
        k = a["k"] if k_in is None else ints(k_in)[0]
        if k == 1:
            best = x.argmax(axis, keepdim=True) if largest else x.argmin(axis, keepdim=True)
            return x.gather(axis, best), best.to(indices_type)
        values, indices = x.sort(dim=axis, descending=largest, stable=True)
        first = (values.narrow(axis, 0, k), indices.narrow(axis, 0, k))
        return first[0].to(values_type), first[1].to(indices_type)

    return kernel


@layer("CUMULATIVE", "op", "exclusive", "reverse", host=(1,))
def cumulative(ready: Ready) -> Kernel:
    """Running sums along an axis, without the element itself where exclusive."""
    exclusive, reverse = ready.attributes["exclusive"], ready.attributes["reverse"]
    if ready.attributes["op"] != "SUM":
        raise NotImplementedError(f"cumulative {ready.attributes['op']}")
    dtype = ready.dtype

    def kernel(x: Tensor, axis_in: Tensor) -> Tensor:
        (axis,) = ints(axis_in)
        data = wide(x).flip(axis) if reverse else wide(x)
        if exclusive:
            first = torch.zeros_like(data.narrow(axis, 0, min(1, data.shape[axis])))
            data = torch.cat(
                [first, data.narrow(axis, 0, data.shape[axis] - first.shape[axis])], axis
            )
        total = data.cumsum(axis, dtype=data.dtype)
        return (total.flip(axis) if reverse else total).to(dtype)

    return kernel
