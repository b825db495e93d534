"""Layers that round numbers to few bits and back; scales are constants."""

from __future__ import annotations

from typing import Any

import torch

from t2t.backend import trt
from t2t.dtypes import to_trt
from t2t.network.core import NetworkCore, NetworkTensor, TensorLike

__all__ = ["Quantization"]


class Quantization(NetworkCore):
    """IQuantizeLayer and IDequantizeLayer, in float32, with zero points of 0."""

    def add_quantize(
        self,
        input: TensorLike,
        scale: torch.Tensor,
        dtype: torch.dtype = torch.int8,
        axis: int | None = None,
    ) -> NetworkTensor:
        """Add an IQuantizeLayer: ``round(input / scale)``, halves to even, saturated to ``dtype``.

        Args:
            input: what is rounded, taken in float32.
            scale: one positive number (0-D), or one for each index of ``axis`` (1-D).
            dtype: torch.int8 (-128 to 127) or torch.float8_e4m3fn.
            axis: the dimension of the scales.
        """
        x = self.cast(self.tensor(input), torch.float32)
        key = ("quantize", x.name, dtype, axis, scale.numpy().tobytes())
        if key not in self._shared:
            layer = self.add(
                "add_quantize", self._ranked(x), self._scale(scale), to_trt(dtype), axis=axis
            )
            self._shared[key] = self._unranked(self.result(layer), x)
        return self._shared[key]

    def add_dequantize(
        self, input: TensorLike, scale: torch.Tensor, axis: int | None = None
    ) -> NetworkTensor:
        """Add an IDequantizeLayer: ``input * scale``, in float32.

        Args:
            input: what `add_quantize` or `quantized_constant` returned.
            scale: as there; with as many dimensions as the input, one number for each block of
                equal size.
            axis: the dimension of the scales, where they are 1-D.
        """
        x = self.tensor(input)
        key = ("dequantize", x.name, axis, scale.numpy().tobytes())
        if key not in self._shared:
            float32 = to_trt(torch.float32)
            layer = self.add(
                "add_dequantize", self._ranked(x), self._scale(scale), float32, axis=axis
            )
            self._shared[key] = self._unranked(self.result(layer), x)
        return self._shared[key]

    def quantized_constant(self, x: torch.Tensor, four_bits: bool = False) -> NetworkTensor:
        """Add a constant of int8 or float8 numbers, which only `add_dequantize` may read.

        Args:
            x: the numbers.
            four_bits: store int8 numbers from -8 to 7 in four bits each.
        """
        data = x.detach().cpu().contiguous()
        self._alive.append(data)
        given: Any
        if four_bits:
            packed = _packed(data)
            self._alive.append(packed)
            given = trt.Weights(trt.DataType.INT4, packed.data_ptr(), data.numel())
        elif data.dtype == torch.int8:
            given = data.numpy()
        else:
            given = trt.Weights(to_trt(data.dtype), data.data_ptr(), data.numel())
        layer = self.add("add_constant", tuple(data.shape), given)
        if isinstance(given, trt.Weights):
            self.weights[layer.name] = data
        return self.result(layer)

    def _ranked(self, x: NetworkTensor) -> NetworkTensor:
        """Return a tensor with one dimension at least, which these layers ask for."""
        return x if len(x.shape) else self.reshape(x, (1,))

    def _unranked(self, result: NetworkTensor, x: NetworkTensor) -> NetworkTensor:
        return result if len(x.shape) else self.reshape(result, ())

    def _scale(self, scale: torch.Tensor) -> NetworkTensor:
        key = ("scale", scale.shape, scale.numpy().tobytes())
        if key not in self._shared:
            # A copy that lives as long as the network.
            self._shared[key] = self.constant(scale.to(torch.float32, copy=True), torch.float32)
        return self._shared[key]


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Return numbers of four bits two in a byte, the first one in the lower half."""
    flat = x.flatten()
    padded = torch.nn.functional.pad(flat, (0, flat.numel() % 2)).to(torch.int16) & 0xF
    return (padded[0::2] | (padded[1::2] << 4)).to(torch.uint8)
