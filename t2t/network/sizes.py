"""Sizes as shape tensors of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.io import Dimension
from t2t.network.core import NetworkCore, NetworkTensor
from t2t.sizes import expression, static_size
from t2t.sizes.layers import SizeLayers
from t2t.sizes.terms import Symbol

__all__ = ["Sizes"]


class Sizes(NetworkCore):
    """Makes symbolic sizes network tensors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sizes = SizeLayers(self)

    def bind_symbol(
        self, symbol: Symbol, dimension: Dimension, inputs: Sequence[NetworkTensor]
    ) -> None:
        """Say which dimensions of the network inputs a symbol stands in."""
        self._sizes.bind(symbol, dimension, inputs)

    def shape_tensor(self, sizes: Sequence[int | torch.SymInt]) -> NetworkTensor:
        """Give sizes as a 1-D int64 network tensor; neighbouring plain numbers are one constant."""
        parts: list[NetworkTensor] = []
        plain: list[int] = []

        def flush() -> None:
            if plain:
                parts.append(self.vector(plain))
                plain.clear()

        for size in sizes:
            number = static_size(size)
            if number is None:
                flush()
                parts.append(self.size(size))
            else:
                plain.append(number)
        flush()
        if not parts:
            raise ConversionError("a shape tensor needs at least one size")
        if len(parts) == 1:
            return parts[0]
        layer = self.add("add_concatenation", parts, axis=0)
        return self.result(layer)

    def size(self, size: Any) -> NetworkTensor:
        """Give a symbolic number as a network tensor of shape (1,): int64 or, if real, float32."""
        tensor: NetworkTensor = self._sizes.emit(expression(size))
        return tensor

    def size_cases(self, sizes: Sequence[Any]) -> tuple[list[tuple[int, ...]], NetworkTensor]:
        """Return all values that symbolic sizes have together, and an index (1,) of the present.

        Raises:
            UnsupportedArgumentError: there are too many.
        """
        values, index = self._sizes.cases([expression(size) for size in sizes])
        return values, index

    def scalar(self, x: Any) -> NetworkTensor:
        """Give a symbolic number as a 0-D network tensor."""
        return self.reshape(self.size(x), ())

    def vector(self, numbers: Sequence[int]) -> NetworkTensor:
        """Give integers as a 1-D int64 constant."""
        key = ("vector", tuple(numbers))
        if key not in self._shared:
            value = torch.tensor(numbers, dtype=torch.int64)
            self._alive.append(value)
            self._shared[key] = self._add_constant(value, torch.int64, (len(numbers),))
        return self._shared[key]
