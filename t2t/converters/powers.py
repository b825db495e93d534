"""Powers, exact where torch's are: products for small whole exponents."""

from __future__ import annotations

import functools
from typing import Any

import torch

from t2t.converters._compute import binary
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["pow"]

MAX_PRODUCTS = 64
"""Largest exponent of a float that becomes products; a negative base needs them."""


@converter("aten::pow", precision="sensitive")
def pow(net: Network, self: TensorLike, exponent: TensorLike) -> NetworkTensor:
    """Convert ``self ** exponent``."""
    plain = exponent.item() if _is_plain(exponent) else exponent  # type: ignore[union-attr]
    if isinstance(plain, bool | int | float) and net.is_traced(self):
        return _fixed(net, self, plain)
    return binary(net, "POW", self, exponent)


def _is_plain(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.numel() == 1
        and x.ndim == 0
        and not hasattr(x, "fake_mode")
    )


def _fixed(net: Network, x: TensorLike, exponent: float) -> NetworkTensor:
    dtype = net.output.dtype
    base = net.tensor(x, dtype)
    if exponent == 0.5:
        return net.add_unary(base, "SQRT")
    if exponent == -0.5:
        return net.add_unary(net.add_unary(base, "SQRT"), "RECIP")
    if exponent == int(exponent) and 0 < abs(exponent) <= MAX_PRODUCTS:
        power = whole_power(net, base, abs(int(exponent)))
        return power if exponent > 0 else net.add_unary(power, "RECIP")
    return binary(net, "POW", base, exponent)


def whole_power(net: Network, base: NetworkTensor, exponent: int) -> NetworkTensor:
    """Raise to a positive whole power by squaring: exact for integers, and for negative bases."""
    square, factors = base, []
    while exponent:
        if exponent & 1:
            factors.append(square)
        exponent >>= 1
        if exponent:
            square = binary(net, "PROD", square, square)
    return functools.reduce(lambda a, b: binary(net, "PROD", a, b), factors)
