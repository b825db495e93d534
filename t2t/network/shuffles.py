"""Shuffle layers: transpose, reshape and transpose again, all in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.network.core import NetworkTensor, TensorLike
from t2t.network.core import shape as shape_of
from t2t.network.sizes import Sizes
from t2t.sizes import expression, static_size

__all__ = ["Shuffles", "same_sizes"]

Size = Any
"""A size: an int, or a torch.SymInt of dynamic dimensions."""


class Shuffles(Sizes):
    """Reshapes and permutations; sizes may be symbolic."""

    def reshape(
        self,
        x: TensorLike,
        sizes: Sequence[Size],
        order: Sequence[int] | None = None,
        before: Sequence[Size] | None = None,
    ) -> NetworkTensor:
        """Give ``x`` with other sizes, in row-major order; itself where it has them already.

        At most one size is left for TensorRT to infer, others are copied from the same dimension
        of ``x`` or computed as a shape tensor.

        Args:
            x: the tensor.
            sizes: the new sizes.
            order: permutes the dimensions afterwards, in the same layer.
            before: the sizes of ``x``; by default its own, which are -1 where a network tensor is
                dynamic.
        """
        tensor = self.tensor(x)
        if before is None:
            before = x.shape if isinstance(x, torch.Tensor) else shape_of(tensor)
        if _unchanged(tensor, before, sizes):
            return tensor if order is None else self.transpose(tensor, order)
        layer = self._reshape_layer(tensor, before, sizes)
        if order is not None:
            layer.second_transpose = trt.Permutation(list(order))
        return self.result(layer)

    def _reshape_layer(
        self, tensor: NetworkTensor, before: Sequence[Size], sizes: Sequence[Size]
    ) -> Any:
        if any(static_size(size) == 0 for size in sizes):
            target = self.shape_tensor(sizes)
            layer = self.add("add_shuffle", tensor, zero_is_placeholder=False)
            layer.set_input(1, target)
            return layer
        dims = [_placeholder(size, index, before) for index, size in enumerate(sizes)]
        if dims.count(None) <= 1 and not (None in dims and -1 in dims):
            dims = [-1 if dim is None else dim for dim in dims]
        if None not in dims and dims.count(-1) <= 1:
            return self.add("add_shuffle", tensor, reshape_dims=tuple(dims))
        layer = self.add("add_shuffle", tensor)
        layer.set_input(1, self.shape_tensor(sizes))
        return layer

    def transpose(
        self,
        x: TensorLike,
        order: Sequence[int],
        sizes: Sequence[int] | None = None,
        then: Sequence[int] | None = None,
    ) -> NetworkTensor:
        """Permute the dimensions; ``order`` names the source dimension of each.

        Args:
            x: the tensor.
            order: the permutation.
            sizes: static sizes that the result gets afterwards, in the same layer.
            then: permutes the dimensions once more, likewise.
        """
        tensor = self.tensor(x)
        if sizes is None and list(order) == list(range(len(order))):
            return tensor
        layer = self.add("add_shuffle", tensor)
        layer.first_transpose = trt.Permutation(list(order))
        if sizes is not None:
            layer.reshape_dims = tuple(sizes)
        if then is not None:
            layer.second_transpose = trt.Permutation(list(then))
        return self.result(layer)


def _unchanged(tensor: NetworkTensor, before: Sequence[Size], sizes: Sequence[Size]) -> bool:
    plain = tuple(static_size(size) for size in sizes)
    if -1 not in shape_of(tensor):
        return plain == shape_of(tensor)
    # A network tensor's -1 says nothing.
    return -1 not in before and same_sizes(before, sizes)


def same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Say whether two shapes are equal for all values of the dynamic dimensions."""
    return len(a) == len(b) and all(
        expression(x) == expression(y) for x, y in zip(a, b, strict=True)
    )


def _placeholder(size: Size, index: int, before: Sequence[Size]) -> int | None:
    """Give a reshape dimension: the size, 0 for "as in the input", None for a computed one."""
    number = static_size(size)
    if number is not None:
        return number
    if index < len(before) and static_size(before[index]) is None:
        return 0 if expression(size) == expression(before[index]) else None
    return None
