"""Sums, differences, products and quotients of two tensors, in torch's result type."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._compute import binary
from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__ = ["add", "addcdiv", "addcmul", "div", "mul", "rsub", "sub"]


@converter("aten::add")
def add(net: Network, self: TensorLike, other: TensorLike, alpha: Any = 1) -> NetworkTensor:
    """Convert ``self + alpha * other``; the sum of two bools is their logical or."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, _scaled(net, other, alpha), "OR", dtype=torch.bool)
    return binary(net, "SUM", self, _scaled(net, other, alpha))


@converter("aten::sub")
def sub(net: Network, self: TensorLike, other: TensorLike, alpha: Any = 1) -> NetworkTensor:
    """Convert ``self - alpha * other``."""
    return binary(net, "SUB", self, _scaled(net, other, alpha))


@converter("aten::rsub")
def rsub(net: Network, self: TensorLike, other: TensorLike, alpha: Any = 1) -> NetworkTensor:
    """Convert ``other - alpha * self``."""
    return binary(net, "SUB", other, _scaled(net, self, alpha))


@converter("aten::mul")
def mul(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self * other``; the product of two bools is their logical and."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, other, "AND", dtype=torch.bool)
    return binary(net, "PROD", self, other)


@converter("aten::div")
def div(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self / other``; integers give floats."""
    return binary(net, "DIV", self, other)


@converter("aten::addcmul")
def addcmul(
    net: Network, self: TensorLike, tensor1: TensorLike, tensor2: TensorLike, value: Any = 1
) -> NetworkTensor:
    """Convert ``self + value * tensor1 * tensor2``, in this order: a product may overflow."""
    return binary(net, "SUM", self, binary(net, "PROD", _product(net, value, tensor1), tensor2))


@converter("aten::addcdiv")
def addcdiv(
    net: Network, self: TensorLike, tensor1: TensorLike, tensor2: TensorLike, value: Any = 1
) -> NetworkTensor:
    """Convert ``self + value * tensor1 / tensor2``, in this order."""
    return binary(net, "SUM", self, binary(net, "DIV", _product(net, value, tensor1), tensor2))


def _product(net: Network, factor: Any, x: TensorLike) -> TensorLike:
    if isinstance(factor, bool | int | float) and factor == 1:
        return x
    return binary(net, "PROD", factor, x)


def _scaled(net: Network, x: TensorLike, factor: Any) -> TensorLike:
    """Multiply by ``alpha`` in the result's dtype: at conversion where both are known."""
    if isinstance(factor, bool | int | float) and factor == 1:
        return x
    if net.output.dtype == torch.bool:
        return net.add_elementwise(x, bool(factor), "AND", dtype=torch.bool)
    if not net.is_traced(x) and not net.is_traced(factor):
        product: torch.Tensor = torch.as_tensor(x).to(net.output.dtype) * factor
        return product
    return binary(net, "PROD", x, factor)
