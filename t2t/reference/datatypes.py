"""TensorRT's data types as the reference executor holds them in torch.

Three types of TensorRT have no torch dtype that computes: INT4 is held as int8 (one value an
element, not packed), FP4 as float32 values on its grid, and E8M0 as torch.float8_e8m0fnu.
"""

from __future__ import annotations

import torch

TORCH: dict[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "FP8": torch.float8_e4m3fn,
    "INT4": torch.int8,
    "FP4": torch.float32,
    "E8M0": torch.float8_e8m0fnu,
}
"""Name of a TensorRT data type to the torch dtype that holds it."""

FP4_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes that FP4 (two bits of exponent, one of mantissa) can hold."""

_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that holds a TensorRT type, by its name ("HALF")."""
    return TORCH[name]


def is_half(dtype: torch.dtype) -> bool:
    """Return whether a dtype is computed in float32 and rounded once at the end."""
    return dtype in _NARROW


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return x in the type that TensorRT accumulates in: float32 for the narrow floats."""
    return x.float() if x.dtype in _NARROW else x
