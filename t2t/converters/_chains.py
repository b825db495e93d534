"""Chains of operators that only move elements, as few shuffle layers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from t2t.converters import views
from t2t.converters._arguments import positive_dim
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.network.movement import same_sizes
from t2t.network.tensors import MAX_RANK
from t2t.registry import Converter
from t2t.sizes import has_symbol, static_size

Step = tuple[str, tuple[Any, ...]]
"""("reshape", sizes) or ("permute", order)."""


def step_of(converter: Converter | None, args: Sequence[Any], output: Any) -> Step | None:
    """Return the step that a call is, where it only moves elements; None for any other call.

    Args:
        converter: its converter; a user's own is never a step.
        args: its arguments; the first is the tensor.
        output: the fake tensor that it gives.
    """
    function = None if converter is None else converter.function
    if function in (views.reshape, views.squeeze):
        return "reshape", tuple(output.shape)
    if function is views.unsqueeze and not has_symbol(tuple(output.shape)):
        return "reshape", tuple(output.shape)
    rank = output.dim() if isinstance(output, torch.Tensor) else 0
    if function is views.same:
        return "permute", tuple(range(rank))
    if function is views.permute:
        return "permute", tuple(positive_dim(dim, rank) for dim in args[1])
    if function is views.transpose and rank:
        order = list(range(rank))
        a, b = (positive_dim(dim, rank) for dim in args[1:])
        order[a], order[b] = order[b], order[a]
        return "permute", tuple(order)
    if function is views.t:
        return "permute", tuple(reversed(range(rank)))
    return None


@dataclass
class _Layer:
    """One shuffle layer: a permutation, new sizes, and a permutation of these."""

    before: Sequence[Any]
    first: Sequence[int] | None = None
    sizes: Sequence[Any] | None = None
    second: Sequence[int] | None = None

    def add(self, step: Step) -> bool:
        """Take a step in, if there is room for it."""
        kind, value = step
        if kind == "reshape" and same_sizes(self.now, value):
            return True
        if kind == "permute" and self.sizes is None:
            self.first = _composed(self.first, value)
        elif kind == "permute":
            self.second = _composed(self.second, value)
        elif self.second is not None or (self.first is not None and has_symbol((value, self.now))):
            # The sizes that TensorRT is to copy are those of the tensor before its permutation.
            return False
        else:
            self.sizes = value
        return True

    @property
    def now(self) -> tuple[Any, ...]:
        """The sizes behind the layer."""
        sizes = _permuted(self.before, self.first) if self.sizes is None else tuple(self.sizes)
        return _permuted(sizes, self.second)

    def merged(self) -> _Layer:
        """Return the layer with the dimensions joined that stay together, where they are too many.

        For a layer with a reshape behind it, to which only the order of the elements matters.
        """
        sizes = self.now if self.sizes is None else self.sizes
        if len(sizes) <= MAX_RANK or self.sizes is None:
            return self
        order = self.second or range(len(sizes))
        groups: list[list[int]] = []
        for axis in order:
            if static_size(sizes[axis]) == 1:
                continue
            if groups and groups[-1][-1] == axis - 1:
                groups[-1].append(axis)
            else:
                groups.append([axis])
        joined = [math.prod(sizes[axis] for axis in group) for group in sorted(groups)]
        second = [sorted(groups).index(group) for group in groups]
        return _Layer(self.before, self.first, joined, second)

    def emit(self, net: Network, x: TensorLike) -> NetworkTensor:
        """Add the layer, unless it would do nothing."""
        permuted = _permuted(self.before, self.first)
        if self.sizes is None or same_sizes(permuted, self.sizes):
            order = _composed(self.first, self.second or range(len(permuted)))
            return net.tensor(x) if order is None else net.transpose(x, order)
        if self.first is None:
            return net.reshape(x, self.sizes, self.second, self.before)
        return net.transpose(x, self.first, self.sizes, self.second)


def _chain(net: Network, self: torch.Tensor, steps: Sequence[Step]) -> NetworkTensor:
    """Convert to a shuffle layer for every reshape between permutations."""
    x: TensorLike = self
    for layer in _layers(self.shape, steps):
        x = layer.emit(net, x)
    return net.tensor(x)


def _layers(sizes: Sequence[Any], steps: Sequence[Step]) -> Iterator[_Layer]:
    layer = _Layer(sizes)
    for step in steps:
        if not layer.add(step):
            layer = layer.merged()
            yield layer
            layer = _Layer(layer.now)
            layer.add(step)
    yield layer


def _composed(order: Sequence[int] | None, then: Sequence[int]) -> Sequence[int] | None:
    """Return one permutation for two, None for one that changes nothing."""
    both = list(then) if order is None else [order[axis] for axis in then]
    return None if both == sorted(both) else both


def _permuted(sizes: Sequence[Any], order: Sequence[int] | None) -> tuple[Any, ...]:
    return tuple(sizes) if order is None else tuple(sizes[axis] for axis in order)


CHAIN = Converter(_chain, (), "follow", None, inspect.signature(_chain))
"""Converts a chain: a tensor and its steps."""


def is_step(converter: Converter | None, args: Sequence[Any], output: Any) -> bool:
    """Return whether a call, or a chain of them, only moves elements."""
    return converter is CHAIN or step_of(converter, args, output) is not None
