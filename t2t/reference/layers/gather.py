"""Gather and scatter, in every mode."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


def _wrapped(indices: Tensor, size: int) -> Tensor:
    """Return int64 indices; negative ones count from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def _gather_default(data: Tensor, indices: Tensor, axis: int, shared: int) -> Tensor:
    index = _wrapped(indices, data.shape[axis])
    if shared == 0:
        taken = data.index_select(axis, index.reshape(-1))
        return taken.reshape((*data.shape[:axis], *index.shape, *data.shape[axis + 1 :]))
    rows = [
        _gather_default(part, wanted, axis - 1, shared - 1)
        for part, wanted in zip(data, index, strict=True)
    ]
    return torch.stack(rows)


def _gather_nd(data: Tensor, indices: Tensor, axis: int, shared: int) -> Tensor:  # noqa: ARG001  one signature for the three modes
    batch = data.shape[:shared]
    # Sizes are written out: -1 is ambiguous where there are no elements.
    count, depth = math.prod(batch), indices.shape[-1]
    flat = data.reshape(count, *data.shape[shared:])
    index = indices.long().reshape(count, math.prod(indices.shape[shared:-1]), depth)
    rows = torch.arange(flat.shape[0], device=data.device).unsqueeze(1)
    places = (rows, *(_wrapped(index[..., d], flat.shape[d + 1]) for d in range(depth)))
    taken = flat[places]
    return taken.reshape((*batch, *indices.shape[shared:-1], *flat.shape[1 + depth :]))


def _gather_element(data: Tensor, indices: Tensor, axis: int, shared: int) -> Tensor:  # noqa: ARG001  one signature for the three modes
    return data.gather(axis, _wrapped(indices, data.shape[axis]))


_GATHERS: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {
    "DEFAULT": _gather_default,
    "ND": _gather_nd,
    "ELEMENT": _gather_element,
}


@layer("GATHER", "mode", "axis", "num_elementwise_dims")
def gather(ready: Ready) -> Kernel:
    """DEFAULT, ELEMENT and ND are ONNX's Gather, GatherElements and GatherND."""
    a = ready.attributes
    function, axis, shared = _GATHERS[a["mode"]], a["axis"], a["num_elementwise_dims"]
    return lambda data, indices: function(data, indices, axis, shared)


@layer("SCATTER", "mode", "axis")
def scatter(ready: Ready) -> Kernel:
    """Copy data with updates written at indices; ELEMENT and ND as ONNX's."""
    mode, axis = ready.attributes["mode"], ready.attributes["axis"]

    def element(data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        return data.scatter(axis, _wrapped(indices, data.shape[axis]), updates)

    def nd(data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        result = data.clone(memory_format=torch.contiguous_format)
        place = tuple(_wrapped(indices[..., d], data.shape[d]) for d in range(indices.shape[-1]))
        result[place] = updates
        return result

    return element if mode == "ELEMENT" else nd
