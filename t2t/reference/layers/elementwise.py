"""Operations on each number: of one input, of two, a choice between two, activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.reference.layer import Kernel, Ready, layer, wide


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


# -- activations -----------------------------------------------------------------------------------


_Function = Callable[[Tensor], Tensor]


def _function(kind: str, a: float, b: float) -> _Function:
    """Return an activation with its alpha and beta; those without parameters ignore them."""
    functions: dict[str, _Function] = {
        "RELU": torch.relu,
        "SIGMOID": torch.sigmoid,
        "TANH": torch.tanh,
        "LEAKY_RELU": lambda x: F.leaky_relu(x, a),
        "ELU": lambda x: F.elu(x, a),
        "SELU": lambda x: torch.where(x > 0, b * x, b * (a * torch.exp(x) - a)),
        "SOFTSIGN": F.softsign,
        "SOFTPLUS": lambda x: a * F.softplus(b * x),
        "CLIP": lambda x: torch.clamp(x, min=a, max=b),
        "HARD_SIGMOID": lambda x: torch.clamp(a * x + b, 0.0, 1.0),
        "SCALED_TANH": lambda x: a * torch.tanh(b * x),
        "THRESHOLDED_RELU": lambda x: torch.where(x > a, x, torch.zeros_like(x)),
        "GELU_ERF": F.gelu,
        "GELU_TANH": lambda x: F.gelu(x, approximate="tanh"),
    }
    return functions[kind]


@layer("ACTIVATION", "type", "alpha", "beta")
def activation(ready: Ready) -> Kernel:
    """Any shape to the same shape; alpha and beta as in TensorRT's ActivationType."""
    kind, dtype = ready.attributes["type"], ready.dtype
    function = _function(kind, ready.attributes["alpha"], ready.attributes["beta"])
    if kind == "RELU" and ready.may_overwrite:
        return torch.relu_
    if kind == "RELU":
        return torch.relu
    return lambda x: function(wide(x)).to(dtype)


@layer("PARAMETRIC_RELU")
def parametric_relu(ready: Ready) -> Kernel:
    """Negative values of x are multiplied by slopes, which broadcast to x."""

    def kernel(x: Tensor, slopes: Tensor) -> Tensor:
        if x.dim() > 1 and slopes.numel() == slopes.shape[1] and slopes.shape[1] == x.shape[1]:
            return F.prelu(x, slopes.reshape(-1))
        return torch.where(x < 0, slopes * x, x)

    return kernel if ready.dtype == torch.float32 else _rounded_once(ready.dtype)


def _rounded_once(dtype: torch.dtype) -> Kernel:
    return lambda x, slopes: torch.where(x < 0, slopes.float() * x.float(), x.float()).to(dtype)
