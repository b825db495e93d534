"""Weights that a plan holds too: found in its bytes, so that a checkpoint need not hold them twice.

TensorRT stores most weights as they were given, or with the dimensions of a kernel in another
order: channels last, or a matrix transposed. A weight is taken for found only where every byte is
the same, so nothing is lost; what is not found is stored beside the plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t.reference.layer import Layer

# Smaller ones are not worth an entry in the table of places.
_SMALLEST = 1024  # bytes
# TensorRT aligns weights to more than this; the start of the plan is a header of any length.
_WORD, _STEP = 8, 4  # bytes
_CHUNK = 1 << 20  # words that are looked at together, so that they stay in the cache
_TABLE = 20  # bits
_HASH = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Place:
    """Where the bytes of a weight stand.

    Attributes:
        offset: of the first byte.
        dtype: of the weight.
        shape: in which it is stored.
        order: the permutation that makes it the layer's own shape again.
    """

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def read(self, memory: Tensor) -> Tensor:
        """Return the weight, flat or in the layer's shape; it shares the memory where it can.

        Raises:
            ValueError: the memory is too short.
        """
        end = self.offset + math.prod(self.shape) * self.dtype.itemsize
        if self.offset < 0 or min(self.shape, default=1) < 0 or end > memory.numel():
            raise ValueError(f"a weight at {self.offset}..{end} of {memory.numel()} bytes")
        part = memory[self.offset : end]
        # torch views memory as another type only from a multiple of its size on.
        aligned = (part.storage_offset() % self.dtype.itemsize) == 0
        flat = (part if aligned else part.clone()).view(self.dtype)
        if list(self.order) == sorted(self.order):
            return flat
        return flat.view(self.shape).permute(self.order)


def logical_shape(layer: Layer, name: str, weight: Tensor) -> tuple[int, ...]:
    """Return the shape that a flat weight has in its layer."""
    shape: tuple[int, ...] = (weight.numel(),)
    if name == "kernel":
        maps, window = layer.attributes["num_output_maps"], layer.attributes["kernel_size_nd"]
        if layer.kind == "DECONVOLUTION":
            shape = (-1, maps // layer.attributes["num_groups"], *window)
        else:
            shape = (maps, -1, *window)
    elif layer.kind == "CONSTANT":
        shape = tuple(layer.attributes["shape"])
    return tuple(weight.reshape(shape).shape) if weight.numel() else shape


def find(weights: Sequence[tuple[Tensor, tuple[int, ...]]], memory: Tensor) -> list[Place | None]:
    """Find weights in a plan's bytes.

    Args:
        weights: flat tensors on the CPU and the shapes that they have in their layers.
        memory: uint8.

    Returns:
        Where each is, or None.
    """
    wanted: dict[int, list[tuple[int, _Layout]]] = defaultdict(list)
    for index, (weight, shape) in enumerate(weights):
        if weight.numel() * weight.element_size() >= _SMALLEST:
            for layout in _layouts(weight, shape):
                wanted[layout.probe].append((index, layout))
    found: list[Place | None] = [None] * len(weights)
    data = memory.numpy()
    for start, word in _hits(data, wanted.keys()):
        for index, layout in wanted[word]:
            offset = start - layout.distance
            if found[index] is None and layout.stands_at(data, offset):
                weight = weights[index][0]
                found[index] = Place(offset, weight.dtype, layout.shape, layout.order)
    return found


class _Layout:
    """One way in which a weight may be stored, and a word of it that tells it from others."""

    def __init__(self, weight: Tensor, shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
        self._stored = weight.reshape(shape).permute(stored)
        self.shape = tuple(self._stored.shape)
        self.order = tuple(int(place) for place in np.argsort(stored))
        words = _as_bytes(_beginning(self._stored, _SMALLEST)).view(np.uint64)
        # Where weights begin with equal numbers, often zeros, the first other one tells more.
        place = int(np.argmax(words != words[0]))
        self.distance = place * _WORD
        self.probe = int(words[place])
        self.tells = place > 0
        self._start = words.view(np.uint8)

    def stands_at(self, data: Any, offset: int) -> bool:
        """Return whether the weight's bytes stand there, all of them."""
        size = self._stored.numel() * self._stored.element_size()
        if offset < 0 or offset + size > len(data):
            return False
        if not np.array_equal(data[offset : offset + _SMALLEST], self._start):
            return False
        return np.array_equal(data[offset : offset + size], _as_bytes(self._stored))


def _layouts(weight: Tensor, shape: tuple[int, ...]) -> Iterator[_Layout]:
    rank = len(shape)
    orders = {tuple(range(rank))}
    if rank >= 2:
        orders.add((0, *range(2, rank), 1))
        orders.add((1, 0, *range(2, rank)))
        orders.add((*range(rank - 2), rank - 1, rank - 2))
    seen = set()
    for order in sorted(orders):
        # Where dimensions of size 1 move, nothing does.
        moved = tuple(place for place in order if shape[place] != 1)
        if moved not in seen:
            seen.add(moved)
            layout = _Layout(weight, shape, order)
            if layout.tells:
                yield layout


def _beginning(tensor: Tensor, size: int) -> Tensor:
    """Return the first elements in memory order, without laying out the rest."""
    count = size // tensor.element_size()
    while tensor.dim() > 1 and tensor[0].numel() >= count:
        tensor = tensor[0]
    if tensor.dim() > 1:
        tensor = tensor[: -(-count // tensor[0].numel())]
    return tensor.reshape(-1)[:count]


def _as_bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


def _hits(data: Any, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Iterate over the places of words that are wanted, and the words."""
    words = np.array(list(wanted), np.uint64)
    if not len(words):
        return
    shift = np.uint64(64 - _TABLE)
    table = np.zeros(1 << _TABLE, np.bool_)
    table[(words * _HASH) >> shift] = True
    known = set(words.tolist())
    for base in range(0, _WORD, _STEP):
        count = (len(data) - base) // _WORD
        plan = data[base : base + count * _WORD].view(np.uint64)
        for begin in range(0, count, _CHUNK):
            part = plan[begin : begin + _CHUNK]
            for place in np.flatnonzero(table[(part * _HASH) >> shift]).tolist():
                word = int(part[place])
                if word in known:
                    yield base + (begin + place) * _WORD, word
