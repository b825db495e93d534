"""TensorRT's padding modes, by the formulas of its PaddingMode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Window(NamedTuple):
    """A sliding window as convolution and pooling have it; one number a spatial dimension.

    Attributes:
        mode: name of the PaddingMode.
        extent: the window's size, dilation included.
        stride: the window's steps.
        pre: explicit padding before.
        post: explicit padding after.
    """

    mode: str
    extent: tuple[int, ...]
    stride: tuple[int, ...]
    pre: tuple[int, ...]
    post: tuple[int, ...]

    def sides(self, sizes: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return (padding before, padding after, overhang) for the sizes of an input.

        The overhang is what the last window of EXPLICIT_ROUND_UP needs beyond the padding.
        """
        if self.mode.startswith("SAME"):
            return [
                (*_same(self.mode, size, extent, stride), 0)
                for size, extent, stride in zip(sizes, self.extent, self.stride, strict=True)
            ]
        rows = zip(sizes, self.extent, self.stride, self.pre, self.post, strict=True)
        return [
            (pre, post, self._overhang(size + pre + post, extent, stride))
            for size, extent, stride, pre, post in rows
        ]

    def _overhang(self, padded: int, extent: int, stride: int) -> int:
        if self.mode != "EXPLICIT_ROUND_UP":
            return 0
        steps = math.ceil((padded - extent) / stride)
        return max(steps * stride + extent - padded, 0)


def _same(mode: str, size: int, extent: int, stride: int) -> tuple[int, int]:
    total = max((size - 1) // stride * stride + extent - size, 0)
    small = total // 2
    return (small, total - small) if mode == "SAME_UPPER" else (total - small, small)


def flat_pads(sides: Sequence[tuple[int, int]]) -> list[int]:
    """Return paddings in the order of torch.nn.functional.pad: last dimension first."""
    return [amount for side in reversed(sides) for amount in side]
