"""Padding in every mode: each is one slice that reaches over the edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.sizes import static_size

_ORIGINAL = F.pad
_MODES = {"constant": "FILL", "reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}


def _padded(
    net: Network, input: torch.Tensor, pad: Sequence[Any], mode: str, value: Any = 0
) -> NetworkTensor:
    """Slice from before the start to behind the end of each dimension.

    ``pad`` is in elements, before and after, of the last dimension first; below zero it crops.
    """
    if mode not in _MODES:
        raise UnsupportedArgumentError(f"mode={mode!r}; supported: {', '.join(_MODES)}")
    x = net.tensor(input)
    sides = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    sides = [(0, 0)] * (input.dim() - len(sides)) + sides
    known = [[static_size(n) for n in side] for side in sides]
    if all(n == 0 for side in known for n in side):
        return x
    if all(n is not None and n <= 0 for side in known for n in side):
        return net.add_slice(x, [-before for before, _ in sides], net.output.shape)
    sizes = list(input.shape)
    if mode == "circular" and any(n is None or n < 0 for side in known for n in side):
        # What wraps around is what is left after the crop.
        crops = [[torch.sym_max(-n, 0) for n in side] for side in sides]
        sizes = [size - sum(crop) for size, crop in zip(sizes, crops, strict=True)]
        x = net.add_slice(x, [crop[0] for crop in crops], sizes)
        sides = [(torch.sym_max(a, 0), torch.sym_max(b, 0)) for a, b in sides]
    return net.add_slice(
        x,
        [-before for before, _ in sides],
        net.output.shape,
        mode=_MODES[mode],
        fill=value if mode == "constant" else None,
    )


def _pad_meta(
    input: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None
) -> torch.Tensor:
    last = input.shape[input.dim() - len(pad) // 2 :][::-1]
    if mode != "circular" or any(n > last[i // 2] for i, n in enumerate(pad)):
        return _ORIGINAL(input, pad, mode, value)
    # The original writes into slices, which asks for more than a padding needs.
    sizes = list(input.shape)
    for i, n in enumerate(pad):
        sizes[-1 - i // 2] += n
    return input.new_empty(sizes)


# The function, for PyTorch writes circular padding slice by slice.
@converter("torch.nn.functional.pad", meta=_pad_meta)
def pad(
    net: Network,
    input: torch.Tensor,
    pad: Sequence[Any],
    mode: str = "constant",
    value: float | None = None,
) -> NetworkTensor:
    """Convert any shape to one larger, or smaller, by ``pad`` elements on each side."""
    return _padded(net, input, pad, mode, 0 if value is None else value)


@converter("aten::constant_pad_nd")
def constant_pad(
    net: Network, self: torch.Tensor, pad: Sequence[Any], value: Any = 0
) -> NetworkTensor:
    """Convert any shape to one larger, or smaller, by ``pad`` elements on each side."""
    return _padded(net, self, pad, "constant", value)


@converter("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(net: Network, self: torch.Tensor, padding: Sequence[Any]) -> NetworkTensor:
    """Convert any shape to a larger one that repeats the input, mirrored at its last elements."""
    return _padded(net, self, padding, "reflect")


@converter("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(net: Network, self: torch.Tensor, padding: Sequence[Any]) -> NetworkTensor:
    """Convert any shape to a larger one that repeats the input's last elements."""
    return _padded(net, self, padding, "replicate")
