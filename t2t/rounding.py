"""Rounding numbers to few bits: how a factor of a product is quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from t2t.torch_internals import DisabledDispatch, FakeTensor

Bits = Literal["int8", "fp8", "int4"]

LARGEST: dict[str, float] = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
"""The number that the largest value of a range becomes."""

BLOCK = 128
"""How many inputs of a linear layer share a scale in int4."""

BOUNDS = {"int8": (-128, 127), "int4": (-8, 7)}
"""The least and the largest integer of a type; weights use the symmetric part of it."""


@dataclass(frozen=True)
class Rounding:
    """How one factor of a product is rounded: to whole multiples of a scale.

    Attributes:
        bits: the type.
        scale: of an activation; None for weights, whose scales are made of their values.
        axis: of weights, the dimension that has one scale for each index (the output channels);
            None for one scale.
        block: of int4 weights, how many numbers along the last dimension share a scale.
        shifts: powers of two that each input channel is multiplied by before; () for none. Those of
            the activations are the negative ones of the weights', so that they cancel out.
        along: the dimension of these channels.
    """

    bits: Bits
    scale: float | None = None
    axis: int | None = None
    block: int | None = None
    shifts: tuple[int, ...] = ()
    along: int = 0

    def __post_init__(self) -> None:
        if self.bits not in get_args(Bits):
            raise ValueError(f"bits={self.bits!r}: supported: {', '.join(get_args(Bits))}")

    def scales(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scales of a tensor in float32: 0-D, 1-D along the axis, or one per block."""
        if self.scale is not None:
            return torch.tensor(self.scale, dtype=torch.float32, device=x.device)
        sizes = x.detach().float().abs()
        if self.block is not None:
            sizes = torch.unflatten(sizes, -1, (-1, self.block)).amax(-1)
        elif self.axis is not None:
            axis = self.axis % x.dim()
            sizes = sizes.transpose(0, axis).flatten(1).amax(1) if x.dim() > 1 else sizes
        else:
            sizes = sizes.amax()
        scale = sizes / LARGEST[self.bits]
        # Where all weights are zero, or nearly, any scale gives zeros.
        return torch.where(scale >= torch.finfo(torch.float32).smallest_normal, scale, 1.0)

    def rounded(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Return ``x`` in multiples of its scales: int8 (also for int4), or float8."""
        steps = x.detach().float() / self.spread(scales, x)
        if self.bits == "fp8":
            largest = LARGEST["fp8"]
            return steps.clamp(-largest, largest).to(torch.float8_e4m3fn)
        low, high = BOUNDS[self.bits]
        return steps.round().clamp(low if self.scale is not None else -high, high).to(torch.int8)

    def spread(self, scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return scales in a shape that broadcasts to ``x``."""
        if self.block is not None:
            return scales.repeat_interleave(self.block, -1)
        return spread(scales, self.axis, x.dim())

    def factors(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the channels are multiplied by, in a shape that broadcasts to ``x``."""
        factors = 2.0 ** torch.tensor(self.shifts, dtype=torch.float32, device=x.device)
        if self.scale is None and len(factors) != x.shape[self.along]:
            # Weights of a convolution of groups, each of which has some of the channels.
            factors = factors.view(-1, x.shape[1])
            factors = factors.repeat_interleave(x.shape[0] // len(factors), 0)
            return factors.reshape(*factors.shape, *[1] * (x.dim() - 2))
        return spread(factors, self.along, x.dim())

    def fake(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` as the network has it: rounded, times the scale, in its own dtype.

        Shifted channels stay so: the other factor of the product makes up for it.
        """
        if self.shifts:
            x = (x.detach().float() * self.factors(x)).to(x.dtype)
        scales = self.scales(x)
        return (self.rounded(x, scales).float() * self.spread(scales, x)).to(x.dtype)

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "shifts": list(self.shifts)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Rounding:
        """Read what `to_data` returned; ValueError, KeyError or TypeError where it is damaged."""
        return cls(**{**data, "shifts": tuple(int(shift) for shift in data.get("shifts", ()))})


def spread(scale: torch.Tensor, axis: int | None, rank: int) -> torch.Tensor:
    """Return scales in a shape that broadcasts to a tensor of so many dimensions."""
    if axis is None:
        return scale.reshape(())
    return scale.reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])


class Steps(NamedTuple):
    """By what a tensor was rounded: it holds whole multiples of the scale.

    Attributes:
        scale: one number, one for each index of ``axis``, or one for each block of a matrix.
        axis: the dimension of the scales; None for one scale, or one for each block.
        bits: what the multiples fit into.
    """

    scale: torch.Tensor
    axis: int | None
    bits: Bits = "int8"

    @property
    def dtype(self) -> torch.dtype:
        """What holds the multiples: int8 (also of int4) or float8_e4m3fn."""
        return torch.float8_e4m3fn if self.bits == "fp8" else torch.int8

    @property
    def has_blocks(self) -> bool:
        """Return whether the scales are those of blocks."""
        return self.scale.dim() == 2

    def rounding(self) -> Rounding:
        """Return how weights are kept that were rounded by this: four bits without blocks, too."""
        if self.has_blocks:
            return Rounding("int4", block=BLOCK)
        return Rounding("fp8" if self.bits == "fp8" else "int8", axis=self.axis)

    def reshaped(self, shape: torch.Size, result: torch.Size) -> Steps | None:
        """Return what is known of a tensor after a view; None where it has no such scales.

        Quantizers of blocks see a matrix as one row for each block of its own rows.
        """
        rows = self.axis == 0 and self.bits == "int4" and len(shape) == 2 and shape[1] == BLOCK
        if rows and len(result) == 2 and result[1] % BLOCK == 0:
            return Steps(self.scale.view(result[0], -1), None, "int4")
        return self if shape == result else None


# The least range that ModelOpt does not take for nothing.
_LEAST_AMAX = 2.0**-24


def modelopt_steps(
    x: torch.Tensor,
    amax: Any,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    exponent_bits: int = 0,
) -> Steps | None:
    """Return by what a quantizer of NVIDIA's ModelOpt rounds; None where no layer of TensorRT does.

    Args:
        x: what is rounded.
        amax: the largest value, one for all of ``x`` or for each index of one dimension.
        num_bits: of the type: 8, or 4 of constants.
        unsigned: whether it has no negative numbers.
        narrow_range: whether -128 is left out.
        exponent_bits: 4 of float8, 0 of integers.
    """
    whole = exponent_bits == 0 and not unsigned and not narrow_range
    constant = isinstance(amax, torch.Tensor) and not isinstance(amax, FakeTensor)
    four = num_bits == 4 and whole and not isinstance(x, FakeTensor)
    if not constant or not (four or (num_bits == 8 and (whole or exponent_bits == 4))):
        return None
    many = [dim for dim, size in enumerate(amax.shape) if size != 1]
    if len(many) > 1 or (many and amax.dim() != x.dim()):
        return None
    with DisabledDispatch():  # in a trace, too, these are numbers
        largest = amax.detach().cpu().float()
        if not bool((largest > _LEAST_AMAX).all() and largest.isfinite().all()):
            return None
        bits: Bits = "int4" if four else "int8" if whole else "fp8"
        scale = (largest / LARGEST[bits]).reshape(-1 if many else ())
    return Steps(scale, many[0] if many else None, bits)
