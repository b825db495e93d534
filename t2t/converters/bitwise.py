"""Operations on bits. TensorRT has them for bool; of integers, what arithmetic can express."""

from __future__ import annotations

import torch

from t2t.converters._compute import binary, narrowed, operand, working_dtype
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter


@converter("aten::bitwise_not")
def bitwise_not(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the complement: "not" of bool, ``-1 - self`` of integers."""
    if self.dtype == torch.bool:
        return net.add_unary(self, "NOT")
    dtype = working_dtype(self.dtype)
    return narrowed(net, binary(net, "SUB", -1, self, dtype), self.dtype)


@converter("aten::bitwise_and")
def bitwise_and(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "and" of bool; of integers with a mask of low bits, as ``x & 7``, to a remainder."""
    if net.output.dtype == torch.bool:
        return net.add_elementwise(self, other, "AND", dtype=torch.bool)
    x, mask = (self, other) if net.is_traced(self) else (other, self)
    bits = mask.item() if isinstance(mask, torch.Tensor) and _is_one(net, mask) else mask
    working = working_dtype(net.output.dtype)
    most = torch.iinfo(working).max
    if not isinstance(bits, int) or not 0 <= bits < most or bits & (bits + 1):
        return _bit_by_bit(net, "AND", self, other)
    modulus = bits + 1
    rounds = binary(net, "FLOOR_DIV", x, modulus, working)
    whole = binary(net, "PROD", rounds, modulus, working)
    return narrowed(net, binary(net, "SUB", x, whole, working), net.output.dtype)


def _is_one(net: Network, x: torch.Tensor) -> bool:
    return x.ndim == 0 and not net.is_traced(x)


@converter("aten::bitwise_or")
def bitwise_or(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "or" of bool, and of integers bit by bit."""
    return _bit_by_bit(net, "OR", self, other)


@converter("aten::bitwise_xor")
def bitwise_xor(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert "exclusive or" of bool, and of integers bit by bit."""
    return _bit_by_bit(net, "XOR", self, other)


def _bit_by_bit(net: Network, op: str, a: TensorLike, b: TensorLike) -> NetworkTensor:
    """Combine integers as bools along one dimension more, of the bits below the sign."""
    dtype = net.output.dtype
    if dtype == torch.bool:
        return net.add_elementwise(a, b, op, dtype=torch.bool)
    working, limits = working_dtype(dtype), torch.iinfo(dtype)
    operands = net.aligned([operand(net, x, dtype) for x in (a, b)], working)
    rank = len(operands[0].shape)
    powers = torch.tensor([1 << k for k in range(int(limits.max).bit_length())])
    powers = powers.to(working).reshape([1] * rank + [-1])
    first, second = operands
    bits = net.add_elementwise(_bits(net, first, powers), _bits(net, second, powers), op)
    terms = net.add_select(bits, powers, 0, dtype=working)
    result = net.add_reduce(terms, "SUM", rank, keep_dims=False)
    if limits.min < 0:
        below, other = (net.add_elementwise(x, 0, "LESS", dtype=working) for x in operands)
        signs = net.add_elementwise(below, other, op)
        sign = net.add_select(signs, limits.min, 0, dtype=working)
        result = net.add_elementwise(result, sign, "SUM")
    return net.cast(result, net.compute_dtype(dtype))


def _bits(net: Network, x: NetworkTensor, powers: torch.Tensor) -> NetworkTensor:
    """Return the bits of integers along a new last dimension, as bools; division rounds down."""
    dtype = powers.dtype
    wide = net.unsqueeze(x, [powers.ndim - 1])
    shifted = net.add_elementwise(wide, powers, "FLOOR_DIV", dtype=dtype)
    half = net.add_elementwise(shifted, 2, "FLOOR_DIV", dtype=dtype)
    even = net.add_elementwise(half, 2, "PROD", dtype=dtype)
    return net.add_elementwise(shifted, even, "GREATER")


@converter("aten::bitwise_left_shift", "aten::__lshift__")
def shift_left(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self << other`` to a product; more bits than there are leave none."""
    bits = _bit_count(net)
    factors = [1 << k for k in range(bits - 1)] + [-1 << (bits - 1), 0]
    return binary(net, "PROD", self, _looked_up(net, factors, other))


@converter("aten::bitwise_right_shift", "aten::__rshift__")
def shift_right(net: Network, self: TensorLike, other: TensorLike) -> NetworkTensor:
    """Convert ``self >> other`` to a division that rounds down; more bits leave the sign."""
    dtype = net.output.dtype
    bits = _bit_count(net)
    most = bits - (1 if torch.iinfo(dtype).min < 0 else 0)
    # The largest power of two is no number of a signed type: it is divided by in two steps.
    steps = [1 << min(k, bits - 2) for k in range(most + 1)]
    rest = [(1 << k) // step for k, step in enumerate(steps)]
    working = working_dtype(dtype)
    result = binary(net, "FLOOR_DIV", self, _looked_up(net, steps, other), working)
    if net.is_traced(other) or bool((torch.as_tensor(other) > bits - 2).any()):
        result = binary(net, "FLOOR_DIV", result, _looked_up(net, rest, other), working)
    return net.cast(result, net.compute_dtype(dtype))


def _bit_count(net: Network) -> int:
    dtype = net.output.dtype
    if dtype.is_floating_point:
        raise UnsupportedArgumentError(f"dtype={dtype}: supported: shifts of integers")
    return int(torch.iinfo(dtype).bits)


def _looked_up(net: Network, table: list[int], indices: TensorLike) -> TensorLike:
    """Read a table at indices; those that it does not have read its last element."""
    last = len(table) - 1
    working = working_dtype(net.output.dtype)
    numbers = torch.tensor(table, dtype=torch.int64).to(working)
    if not net.is_traced(indices):
        known = torch.as_tensor(indices)
        return numbers[torch.where((known < 0) | (known > last), last, known).long()]
    dtype = working_dtype(indices.dtype) if isinstance(indices, torch.Tensor) else torch.int64
    index = net.tensor(indices, dtype)
    low = net.add_elementwise(index, 0, "LESS", dtype=dtype)
    index = net.add_select(low, net.tensor(last, dtype), index)
    index = net.add_elementwise(index, last, "MIN", dtype=dtype)
    return net.add_gather(numbers, index, 0)
