"""Which floating type a layer computes in: torch's own, or half under ``fp16=True``."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from t2t.registry import Precision

__all__ = ["Policy"]

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Policy:
    """Chooses the floating type of every operator as its layers are emitted.

    Attributes:
        low: the half type asked for, or None to keep torch's types.
        fp32_modules: names of modules (shell patterns, as "decoder.*") kept in float32.
        float64_as_float32: compute in float32 what torch computes in float64, which TensorRT does
            not have; never in half precision.
    """

    low: torch.dtype | None = None
    fp32_modules: tuple[str, ...] = ()
    float64_as_float32: bool = False

    def compute_dtype(
        self, precision: Precision, scope: str, inputs: Iterable[torch.dtype]
    ) -> dict[torch.dtype, torch.dtype]:
        """Map torch's floating dtypes to those that the layers of one operator compute in.

        Args:
            precision: what the operator's converter says of itself.
            scope: path of the module that calls it.
            inputs: dtypes of the network tensors it reads.
        """
        if precision == "sensitive":
            # Also in half models: torch computes these in float32 inside and rounds once.
            return dict.fromkeys((*_HALF, torch.float32), torch.float32)
        if self.low is None:
            return {}
        if self._kept(scope):
            return {}
        if precision == "compute" or any(dtype in _HALF for dtype in inputs):
            return {torch.float32: self.low}
        return {}

    def _kept(self, scope: str) -> bool:
        return any(
            fnmatch.fnmatchcase(scope, pattern) or fnmatch.fnmatchcase(scope, f"{pattern}.*")
            for pattern in self.fp32_modules
        )
