"""torch dtypes and TensorRT data types, by name: their numbers differ between versions."""

from __future__ import annotations

from typing import Any

import torch

from t2t.backend import trt
from t2t.errors import UnsupportedArgumentError

_NAMES: dict[torch.dtype, str] = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int8: "INT8",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.float8_e4m3fn: "FP8",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""The floating types that TensorRT computes with."""

RTOL = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 5e-2}
"""What a converted module may differ by, by its precision: norm of the difference over the norm."""

FLOAT64 = (
    "; use .float(), or let convert(..., float64_as_float32=True) compute it in float32, with the "
    "digits and the range of that"
)


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def named_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name that was read; TypeError or AttributeError where there is none."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name!r} is no dtype")
    return dtype


def is_supported(dtype: torch.dtype) -> bool:
    """Return whether TensorRT has this dtype."""
    return dtype in _NAMES


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the two parts of complex numbers; other dtypes as they are."""
    return dtype.to_real() if dtype.is_complex else dtype


def to_trt(dtype: torch.dtype) -> Any:
    """Return TensorRT's data type; UnsupportedArgumentError where it has none, as for float64."""
    if dtype not in _NAMES:
        hint = FLOAT64 if dtype == torch.float64 else ""
        raise UnsupportedArgumentError(
            f"dtype={dtype}: TensorRT has no such type; supported: "
            + ", ".join(map(dtype_name, _NAMES))
            + hint
        )
    return getattr(trt.DataType, _NAMES[dtype])


def from_trt(dtype: Any) -> torch.dtype:
    """Return torch's dtype of a TensorRT data type; KeyError for INT4, FP4 and E8M0."""
    return _DTYPES[dtype.name]
