"""A module as it computes with rounded operands, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from t2t.errors import ConversionError
from t2t.options import check_module
from t2t.quantization.forward import seen_products
from t2t.quantization.scales import Quantization


def fake_quantized(module: Callable[..., Any], quantization: Quantization) -> torch.nn.Module:
    """Return a module that runs another one in PyTorch, with the operands that int8 gives it.

    It knows nothing of networks: it rounds what the original's own products and additions read, and
    so tells what of an error comes from quantization, and what from the conversion.

    Args:
        module: the original. It is called, not copied.
        quantization: what a conversion has quantized: ``model_trt.quantization``.

    Raises:
        ConversionError: there is nothing to quantize.
    """
    check_module(module)
    if not isinstance(quantization, Quantization):
        raise ConversionError(
            "fake_quantized takes what a conversion has quantized (model_trt.quantization), not a "
            f"{type(quantization).__name__}"
        )
    return FakeQuantized(module, quantization)


class FakeQuantized(torch.nn.Module):
    """Runs a module with rounded operands; made by `fake_quantized`."""

    def __init__(self, module: Callable[..., Any], quantization: Quantization) -> None:
        super().__init__()
        self.module = module
        self._roundings = {one.call: one.roundings for one in quantization.calls}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the original returns, computed with rounded operands."""
        made: set[str] = set()
        with seen_products(self.module, lambda key, x, _: self._rounded(key, x, made)):
            output = self.module(*args, **kwargs)
        missing = [key for key, found in self._roundings.items() if any(found) and key not in made]
        if missing:
            raise ConversionError(f"the module does not call {missing[0]}, which is quantized")
        return output

    def _rounded(
        self, key: str, operands: list[torch.Tensor], made: set[str]
    ) -> list[torch.Tensor]:
        made.add(key)
        roundings = self._roundings.get(key, (None, None))
        return [
            x if rounding is None else rounding.fake(x)
            for x, rounding in zip(operands, roundings, strict=True)
        ]
