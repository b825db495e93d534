"""Elementwise operations of two inputs, of one input, and choice between two."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


def _div(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.dtype.is_floating_point else torch.div(x, y, rounding_mode="trunc")


_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
    "SUB": torch.sub,
    "DIV": _div,
    "POW": torch.pow,
    "FLOOR_DIV": torch.floor_divide,
    "AND": torch.logical_and,
    "OR": torch.logical_or,
    "XOR": torch.logical_xor,
    "EQUAL": torch.eq,
    "GREATER": torch.gt,
    "LESS": torch.lt,
}
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "EXP": torch.exp,
    "LOG": torch.log,
    "SQRT": torch.sqrt,
    "RECIP": torch.reciprocal,
    "ABS": torch.abs,
    "NEG": torch.neg,
    "SIN": torch.sin,
    "COS": torch.cos,
    "TAN": torch.tan,
    "SINH": torch.sinh,
    "COSH": torch.cosh,
    "ASIN": torch.asin,
    "ACOS": torch.acos,
    "ATAN": torch.atan,
    "ASINH": torch.asinh,
    "ACOSH": torch.acosh,
    "ATANH": torch.atanh,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "ERF": torch.erf,
    "NOT": torch.logical_not,
    "SIGN": torch.sign,
    # torch rounds halves to even, as TensorRT does.
    "ROUND": torch.round,
    "ISINF": torch.isinf,
    "ISNAN": torch.isnan,
}


@layer("ELEMENTWISE", "op")
def elementwise(ready: Ready) -> Kernel:
    """Two inputs of one rank, broadcast where a size is 1; integer DIV cuts towards zero."""
    function, dtype = _BINARY[ready.attributes["op"]], ready.dtype
    if dtype == torch.float32 or not dtype.is_floating_point:
        return function
    return lambda x, y: function(wide(x), wide(y)).to(dtype)


@layer("UNARY", "op")
def unary(ready: Ready) -> Kernel:
    """Any shape to the same shape."""
    function, dtype = _UNARY[ready.attributes["op"]], ready.dtype
    if dtype == torch.float32 or not dtype.is_floating_point:
        return function
    return lambda x: function(wide(x)).to(dtype)


@layer("SELECT")
def select(ready: Ready) -> Kernel:  # noqa: ARG001  every kind is prepared from its layer
    """(condition, then, else): three inputs of one rank, broadcast where a size is 1."""
    return torch.where
