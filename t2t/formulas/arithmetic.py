"""Arithmetic: functions of one or two numbers for which TensorRT has no layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from t2t.registry import formula

HALVES = (torch.float16, torch.bfloat16)


def in_float32(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Let a formula compute half types in float32 and round its result, as torch's kernels do."""

    @functools.wraps(function)
    def wide(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        dtype = torch.result_type(tensors[0], tensors[-1])
        if dtype not in HALVES:
            return function(*args, **kwargs)
        widened = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
        return function(*widened, **kwargs).to(dtype)

    return wide


def _floats(self: Any, other: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two numbers as tensors of the floating type that torch computes them in."""
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    return torch.as_tensor(self).to(dtype), torch.as_tensor(other).to(dtype)


def _float(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


@formula("aten::atan2", precision="sensitive")
@in_float32
def atan2(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the angle of the point (x = ``other``, y = ``self``), from -pi to pi."""
    y, x = _floats(self, other)
    height, width = y.abs(), x.abs()
    # 0 / 0 and inf / inf have a meaning here.
    diagonal = (height > 0).to(y.dtype)
    angle = torch.atan(torch.where(height == width, diagonal, height / width))
    angle = torch.where(torch.signbit(x), math.pi - angle, angle)
    return torch.where(torch.signbit(y), -angle, angle)


@formula("aten::hypot", precision="sensitive")
@in_float32
def hypot(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``sqrt(self ** 2 + other ** 2)``, whose squares may overflow."""
    a, b = (x.abs() for x in _floats(self, other))
    long, short = torch.where(a > b, a, b), torch.where(a > b, b, a)
    ratio = short / long
    length = torch.where(a + b == 0, 0.0, long * torch.sqrt(1 + ratio * ratio))
    return torch.where(a.isinf() | b.isinf(), math.inf, length)


@formula("aten::xlogy", precision="sensitive")
@in_float32
def xlogy(self: Any, other: Any) -> torch.Tensor:
    """Return ``self * log(other)``, which is 0 where ``self`` is 0 and ``other`` is a number."""
    x, y = _floats(self, other)
    product = torch.where(x == 0, 0.0, x * torch.log(y))
    return torch.where(y.isnan(), y, product)


@formula("aten::fmax")
def fmax(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the greater of two numbers; the other one where one of them is NaN."""
    if not torch.result_type(self, other).is_floating_point:
        return torch.maximum(self, other)
    x, y = _floats(self, other)
    return torch.where((x > y) | y.isnan(), x, y)


@formula("aten::fmin")
def fmin(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the smaller of two numbers; the other one where one of them is NaN."""
    if not torch.result_type(self, other).is_floating_point:
        return torch.minimum(self, other)
    x, y = _floats(self, other)
    return torch.where((x < y) | y.isnan(), x, y)


@formula("aten::lerp", precision="sensitive")
def lerp(self: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """Go from one number towards another, counted from the nearer of them, which is met exactly."""
    half = self.dtype in (torch.float16, torch.bfloat16)
    start, stop = (x.float() if half else x for x in (self, end))
    part = weight.to(start.dtype) if isinstance(weight, torch.Tensor) else weight
    span = stop - start
    if isinstance(part, torch.Tensor):
        near = part.abs() < 0.5
        result = torch.where(near, start + part * span, stop - span * (1 - part))
    else:
        result = start + part * span if abs(part) < 0.5 else stop - span * (1 - part)
    return result.to(self.dtype)


@formula("aten::trunc")
def trunc(self: torch.Tensor) -> torch.Tensor:
    """Round towards zero."""
    if not self.is_floating_point():
        return self.clone()
    return torch.where(self < 0, self.ceil(), self.floor())


@formula("aten::round.decimals")
def round_decimals(self: torch.Tensor, *, decimals: int = 0) -> torch.Tensor:
    """Round to a number of decimals, halves to even."""
    if not self.is_floating_point():
        return self.clone()
    # As torch: a power of ten below one would be rounded itself.
    power = float(10 ** abs(decimals))
    return (self * power).round() / power if decimals > 0 else (self / power).round() * power


@formula("aten::exp2", precision="sensitive")
@in_float32
def exp2(self: torch.Tensor) -> torch.Tensor:
    """Return ``2 ** self``."""
    return torch.pow(2.0, self)


@formula("aten::expm1", precision="sensitive")
@in_float32
def expm1(self: torch.Tensor) -> torch.Tensor:
    """Return ``exp(self) - 1``, exact near 0 too: it is ``tanh(x / 2) * (exp(x) + 1)``."""
    return torch.tanh(self * 0.5) * (torch.exp(self) + 1)


@formula("aten::log1p", precision="sensitive")
@in_float32
def log1p(self: torch.Tensor) -> torch.Tensor:
    """Return ``log(1 + self)``, exact near 0 too: there it is ``2 * atanh(x / (2 + x))``."""
    x = _float(self)
    return torch.where(x.abs() < 0.5, torch.atanh(x / (x + 2)) * 2, torch.log(x + 1))


@formula("aten::log2", precision="sensitive")
@in_float32
def log2(self: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of base 2."""
    return torch.log(self) / math.log(2)


@formula("aten::log10", precision="sensitive")
@in_float32
def log10(self: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of base 10."""
    return torch.log(self) / math.log(10)


@formula("aten::logit", precision="sensitive")
@in_float32
def logit(self: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """Return ``log(x / (1 - x))``, with x kept between ``eps`` and ``1 - eps``."""
    x = _float(self)
    if eps is not None:
        # The lower bound wins, as in torch.
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x))
    return torch.log(x / (1 - x))


# Numerical Recipes' erfcc: erfc(x) = t * exp(-x * x + polynomial(t)), t = 1 / (1 + x / 2), for
# x >= 0, with a relative error below 1.2e-7 everywhere. (1 - erf(x) has no digits left at 4.)
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


@formula("aten::erfc", precision="sensitive")
@in_float32
def erfc(self: torch.Tensor) -> torch.Tensor:
    """Return ``1 - erf(self)``, with all digits also where it is small."""
    x = _float(self)
    t = (x.abs() * 0.5 + 1).reciprocal()
    polynomial: Any = _ERFC[-1]
    for factor in reversed(_ERFC[:-1]):
        polynomial = t * polynomial + factor
    positive = t * torch.exp(polynomial - x * x)
    return torch.where(x < 0, 2 - positive, positive)
