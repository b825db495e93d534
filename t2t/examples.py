"""Inputs like the examples, with other values."""

from __future__ import annotations

import torch


def random_like(generator: torch.Generator, leaf: torch.Tensor) -> torch.Tensor:
    """Return a random tensor of the same shape, dtype, device and kind of values.

    Args:
        generator: a generator on the CPU.
        leaf: floats are drawn with its mean, deviation and range, integers from its range, booleans
            as often true.
    """
    values, shape = leaf.detach().cpu(), leaf.shape
    if values.numel() == 0:
        return leaf
    if values.dtype == torch.bool:
        odds = values.double().mean().expand(shape)
        return torch.bernoulli(odds, generator=generator).bool().to(leaf.device)
    if not values.dtype.is_floating_point and not values.dtype.is_complex:
        low, high = int(values.min()), int(values.max())
        drawn = torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int64)
        return drawn.to(leaf.device, leaf.dtype)
    if values.dtype.is_complex:
        parts = [random_like(generator, part) for part in (values.real, values.imag)]
        return torch.complex(*parts).to(leaf.device, leaf.dtype)
    values = values.double()
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    deviation = values.std(correction=0)
    finite = bool(torch.isfinite(deviation))
    if finite and deviation > 0:
        drawn = (values.mean() + deviation * noise).clamp(values.min(), values.max())
    elif finite and values.flatten()[0] != 0:  # all are one number: others, of its sign and size
        drawn = values * (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64))
    else:
        drawn = noise
    return drawn.to(leaf.device, leaf.dtype)
