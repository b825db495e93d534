"""Sizes as shape tensors: expressions of the inputs' dimensions become int64 arithmetic layers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import PowByNatural

from t2t.backend import trt
from t2t.errors import ConversionError
from t2t.network.core import NetworkCore, NetworkTensor
from t2t.shapes import apply, evaluate, expression, static_size

__all__ = ["Sizes"]


class Sizes(NetworkCore):
    """Emits symbolic sizes; each expression once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._symbols: dict[sympy.Symbol, tuple[NetworkTensor, int]] = {}
        self._sizes: dict[sympy.Basic, NetworkTensor] = {}

    def bind_symbol(self, symbol: sympy.Symbol, tensor: NetworkTensor, dim: int) -> None:
        """Say which dimension of which network input a symbol is (the first wins)."""
        self._symbols.setdefault(symbol, (tensor, dim))

    def shape_tensor(self, sizes: Sequence[int | torch.SymInt]) -> NetworkTensor:
        """Give sizes as a 1-D int64 network tensor; neighbouring plain numbers are one constant."""
        parts: list[NetworkTensor] = []
        plain: list[int] = []

        def flush() -> None:
            if plain:
                parts.append(self._vector(tuple(plain)))
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
        return self._emit(expression(size))

    def scalar(self, x: Any) -> NetworkTensor:
        """Give a symbolic number as a 0-D network tensor."""
        return self.reshape(self.size(x), ())

    def _vector(self, numbers: tuple[int, ...]) -> NetworkTensor:
        key = ("vector", numbers)
        if key not in self._shared:
            value = torch.tensor(numbers, dtype=torch.int64)
            self._alive.append(value)
            self._shared[key] = self._add_constant(value, torch.int64, (len(numbers),))
        return self._shared[key]

    def _emit(self, expr: sympy.Basic) -> NetworkTensor:
        if expr not in self._sizes:
            self._sizes[expr] = self._emit_new(expr)
        return self._sizes[expr]

    def _emit_new(self, expr: sympy.Basic) -> NetworkTensor:
        if isinstance(expr, sympy.Symbol):
            return self._emit_symbol(expr)
        if not expr.args:
            result: NetworkTensor = evaluate(expr, {}, _Emitter(self))
            return result
        if len(expr.args) == 2 and isinstance(expr, sympy.Pow | PowByNatural):
            base, exponent = expr.args
            if isinstance(exponent, sympy.Integer) and exponent > 0:
                # TensorRT's POW is floating; a product of integers is exact.
                factors = [self._emit(base)] * int(exponent)
                return functools.reduce(_Emitter(self).mul, factors)
        args = [self._emit(arg) for arg in expr.args]
        tensor: NetworkTensor = apply(expr, args, _Emitter(self))
        return tensor

    def _emit_symbol(self, symbol: sympy.Symbol) -> NetworkTensor:
        if symbol not in self._symbols:
            raise ConversionError(f"the size {symbol} is not a dimension of an input")
        tensor, dim = self._symbols[symbol]
        key = ("shape", tensor.name)
        if key not in self._shared:
            self._shared[key] = self.result(self.add("add_shape", tensor))
        return self.result(self.add("add_slice", self._shared[key], (dim,), (1,), (1,)))


class _Emitter:
    """The arithmetic of `t2t.shapes.evaluate` in layers; every value has shape (1,)."""

    def __init__(self, net: Sizes) -> None:
        self.net = net

    def constant(self, value: Any, dtype: torch.dtype) -> NetworkTensor:
        if dtype == torch.int64:
            return self.net._vector((int(value),))
        if dtype == torch.bool:
            return self.net._number(bool(value), torch.bool, 1)
        return self.net._number(float(value), torch.float32, 1)

    def _binary(self, operation: str, a: NetworkTensor, b: NetworkTensor) -> NetworkTensor:
        if a.dtype != b.dtype:
            a, b = self._float(a), self._float(b)
        kind = getattr(trt.ElementWiseOperation, operation)
        return self.net.result(self.net.add("add_elementwise", a, b, kind))

    def _unary(self, operation: str, a: NetworkTensor) -> NetworkTensor:
        kind = getattr(trt.UnaryOperation, operation)
        return self.net.result(self.net.add("add_unary", a, kind))

    def _float(self, a: NetworkTensor) -> NetworkTensor:
        return self.net.cast(a, torch.float32)

    def _int(self, a: NetworkTensor) -> NetworkTensor:
        return self.net.cast(a, torch.int64)

    def add(self, a: Any, b: Any) -> Any:
        return self._binary("SUM", a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._binary("PROD", a, b)

    def floordiv(self, a: Any, b: Any) -> Any:
        return self._binary("FLOOR_DIV", a, b)

    def mod(self, a: Any, b: Any) -> Any:
        # Sizes are never negative, so floor and truncation agree.
        return self._binary("SUB", a, self.mul(self.floordiv(a, b), b))

    python_mod = mod

    def modular_indexing(self, a: Any, divisor: Any, modulus: Any) -> Any:
        return self.mod(self.floordiv(a, divisor), modulus)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._binary("MIN", a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._binary("MAX", a, b)

    def truediv(self, a: Any, b: Any) -> Any:
        return self._binary("DIV", self._float(a), self._float(b))

    int_truediv = truediv

    def pow(self, a: Any, b: Any) -> Any:
        return self._binary("POW", self._float(a), self._float(b))

    def pow_by_natural(self, a: Any, b: Any) -> Any:
        return self._int(self._unary("ROUND", self.pow(a, b)))

    def sqrt(self, a: Any) -> Any:
        return self._unary("SQRT", self._float(a))

    def log(self, a: Any) -> Any:
        return self._unary("LOG", self._float(a))

    def exp(self, a: Any) -> Any:
        return self._unary("EXP", self._float(a))

    def abs(self, a: Any) -> Any:
        return self._unary("ABS", a)

    def identity(self, a: Any) -> Any:
        return a

    def to_dtype(self, a: Any, dtype: torch.dtype) -> Any:
        return self._int(a) if dtype == torch.int64 else self._float(a)

    def trunc_to_int(self, a: Any, _dtype: torch.dtype) -> Any:
        return self._int(a)

    def floor_to_int(self, a: Any, _dtype: torch.dtype) -> Any:
        return self._int(self._unary("FLOOR", self._float(a)))

    def ceil_to_int(self, a: Any, _dtype: torch.dtype) -> Any:
        return self._int(self._unary("CEIL", self._float(a)))

    def round_to_int(self, a: Any, _dtype: torch.dtype) -> Any:
        return self._int(self._unary("ROUND", self._float(a)))
