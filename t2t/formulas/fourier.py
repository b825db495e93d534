"""Fourier transforms, as products with matrices; long ones in two steps, of shorter ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.formulas.complex_numbers import as_complex, as_pairs, turned
from t2t.registry import formula
from t2t.sizes import largest, static_size

LONGEST = 512
"""Length up to which a transform is one product."""

LARGEST_MATRIX = 1 << 24
"""Most numbers in one matrix: 64 MB."""


@formula("aten::_fft_c2c.default", precision="sensitive", of_complex=True)
def complex_to_complex(
    self: torch.Tensor, dim: Sequence[int], normalization: int, forward: bool
) -> torch.Tensor:
    """Transform along dimensions."""
    axes = [axis % self.ndim for axis in dim]
    factor = _factor(math.prod(self.shape[axis] for axis in axes), normalization)
    pair = as_pairs(self)
    if not axes:
        return as_complex(pair.clone())
    for axis in axes:
        pair = _along(pair, axis, forward, factor)
        factor = 1.0
    return as_complex(pair)


@formula("aten::_fft_r2c.default", precision="sensitive", of_complex=True)
def real_to_complex(
    self: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool
) -> torch.Tensor:
    """Transform real numbers along dimensions; with ``onesided``, half of the last."""
    axes = [axis % self.ndim for axis in dim]
    factor = _factor(math.prod(self.shape[axis] for axis in axes), normalization)
    length = self.shape[axes[-1]]
    columns = length // 2 + 1 if onesided else length
    rows = self.movedim(axes[-1], -1)
    pair = _transform(rows, length, columns, True, factor, is_real=True)
    pair = pair.movedim(-2, axes[-1])
    for axis in axes[:-1]:
        pair = _along(pair, axis, True, 1.0)
    return as_complex(pair)


@formula("aten::_fft_c2r.default", precision="sensitive", of_complex=True)
def complex_to_real(
    self: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: Any
) -> torch.Tensor:
    """Transform one half of a symmetric spectrum, the last of the dimensions, to real numbers."""
    axes = [axis % self.ndim for axis in dim]
    sizes = [*(self.shape[axis] for axis in axes[:-1]), last_dim_size]
    factor = _factor(math.prod(sizes), normalization)
    pair = as_pairs(self)
    for axis in axes[:-1]:
        pair = _along(pair, axis, False, 1.0)
    half = pair.movedim(axes[-1], -2).narrow(-2, 0, last_dim_size // 2 + 1)
    return _to_real(half, last_dim_size, factor).movedim(-1, axes[-1])


def _factor(count: Any, normalization: int) -> Any:
    """Return what a transform of ``count`` numbers is multiplied by."""
    return (1.0, 1 / count**0.5, 1 / count)[normalization] if normalization else 1.0


def _along(pair: torch.Tensor, axis: int, forward: bool, factor: Any) -> torch.Tensor:
    length = pair.shape[axis]
    moved = _transform(pair.movedim(axis, -2), length, length, forward, factor, is_real=False)
    return moved.movedim(-2, axis)


def _transform(
    x: torch.Tensor, length: Any, columns: Any, forward: bool, factor: Any, *, is_real: bool
) -> torch.Tensor:
    """Transform along the last dimension.

    Args:
        x: numbers (*, length), or pairs of them (*, length, 2).
        length: how many go into one transform.
        columns: how many come out of it.
        forward: whether the exponent is negative.
        factor: what they are multiplied by.
        is_real: whether they are no pairs.

    Returns:
        Pairs (*, columns, 2).
    """
    rows = _divisor(length)
    if rows == 1:
        waves = _waves(length, columns, length, forward, factor, x.dtype, 2 if is_real else 4)
        matrix = waves if is_real else torch.stack([waves, turned(waves)], 1).flatten(0, 1)
        numbers = x if is_real else x.flatten(-2)
        product = torch.matmul(numbers, matrix.flatten(-2))
        return product.reshape(*product.shape[:-1], columns, 2)
    # J. Cooley, J. Tukey (1965): element j * rest + i; result k + l * rows.
    rest = length // rows
    axis = x.ndim - (1 if is_real else 2)
    table = x.reshape(*x.shape[:axis], rows, rest, *x.shape[axis + 1 :]).transpose(axis, axis + 1)
    table = _transform(table, rows, rows, forward, factor, is_real=is_real)
    twiddles = _waves(rest, rows, length, forward, 1.0, x.dtype, 2)
    table = table * twiddles[..., :1] + turned(table) * twiddles[..., 1:]
    table = _transform(table.transpose(-2, -3), rest, rest, forward, 1.0, is_real=False)
    whole = table.transpose(-2, -3).flatten(-3, -2)
    return whole if static_size(columns) == length else whole.narrow(-2, 0, columns)


def _to_real(half: torch.Tensor, length: Any, factor: Any) -> torch.Tensor:
    """Transform one half of a spectrum (*, length // 2 + 1, 2) back to numbers (*, length)."""
    columns = length // 2 + 1
    if _divisor(length) == 1:
        waves = _waves(columns, length, length, True, factor, half.dtype, 2)
        index = torch.arange(columns)
        single = (index == 0) | (2 * index == length)
        weights = torch.where(single, 1.0, 2.0).to(half.dtype).reshape(-1, 1, 1)
        # The real part of a product with the conjugate waves.
        matrix = (waves * weights).transpose(1, 2).flatten(0, 1)
        return torch.matmul(half.flatten(-2), matrix)
    mirrored = half.narrow(-2, 1, length - columns).flip(-2)
    mirrored = mirrored * torch.tensor([1.0, -1.0], dtype=half.dtype)
    # What is imaginary in numbers that stand for themselves does not count.
    real = torch.stack([half[..., 0], torch.zeros_like(half[..., 0])], -1)
    index = torch.arange(columns)
    single = ((index == 0) | (2 * index == length)).unsqueeze(-1)
    whole = torch.cat([torch.where(single, real, half), mirrored], -2)
    return _transform(whole, length, length, False, factor, is_real=False)[..., 0]


def _divisor(length: Any) -> int:
    """Return how many rows a transform is divided into; 1 of one that is not."""
    known = static_size(length)
    if known is None or known <= LONGEST:
        return 1
    return next(rows for rows in range(math.isqrt(known), 0, -1) if known % rows == 0)


def _waves(
    rows: Any, columns: Any, length: Any, forward: bool, factor: Any, dtype: Any, parts: int
) -> torch.Tensor:
    """Return ``factor * exp(+-2 pi i * row * column / length)`` as pairs (rows, columns, 2)."""
    count = largest(rows) * largest(columns) * parts
    if count > LARGEST_MATRIX:
        raise UnsupportedArgumentError(
            f"a Fourier transform of length {length}: its matrix would be {count} numbers; pad to "
            "a length that is a product of smaller ones, and not dynamic"
        )
    # Whole numbers, so that the angle is exact however many turns it makes.
    turn = torch.arange(rows).unsqueeze(1) * torch.arange(columns) % length
    if static_size(rows) is None or static_size(columns) is None:
        angle = turn.to(dtype) * (2 * math.pi / length)
        waves = torch.stack([angle.cos(), angle.sin() * (-1.0 if forward else 1.0)], -1)
        return waves if isinstance(factor, float) and factor == 1 else waves * factor
    angle = turn.double() * (2 * math.pi / length)
    waves = torch.stack([angle.cos(), angle.sin() * (-1.0 if forward else 1.0)], -1)
    waves = torch.where(waves.abs() < 1e-14, 0.0, waves)
    scaled: torch.Tensor = (
        (waves * factor).to(dtype) if isinstance(factor, float) else waves.to(dtype) * factor
    )
    return scaled
