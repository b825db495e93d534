"""Layers with a window that slides over the trailing dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.network.arithmetic import member
from t2t.network.core import NetworkCore, NetworkTensor, TensorLike

__all__ = ["Windows"]


class Windows(NetworkCore):
    """Convolution, deconvolution and pooling; spatial arguments are tuples of 2 or 3."""

    def add_convolution_nd(
        self,
        input: TensorLike,
        kernel: TensorLike,
        bias: TensorLike | None = None,
        *,
        stride: Sequence[int],
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
    ) -> NetworkTensor:
        """Add an IConvolutionLayer.

        ``kernel`` is (out_channels, in_channels / groups, *window); a traced kernel or bias becomes
        an input of the layer. Paddings are in elements.
        """
        return self._windowed(
            "add_convolution_nd",
            input,
            kernel,
            bias,
            maps=0,
            stride_nd=tuple(stride),
            pre_padding=tuple(pre_padding),
            post_padding=tuple(post_padding),
            dilation_nd=tuple(dilation),
            num_groups=groups,
        )

    def add_deconvolution_nd(
        self,
        input: TensorLike,
        kernel: TensorLike,
        bias: TensorLike | None = None,
        *,
        stride: Sequence[int],
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
    ) -> NetworkTensor:
        """Add an IDeconvolutionLayer; ``kernel`` is (in_channels, out_channels / groups, *window).

        Paddings are cut from the result, in elements.
        """
        return self._windowed(
            "add_deconvolution_nd",
            input,
            kernel,
            bias,
            maps=1,
            stride_nd=tuple(stride),
            pre_padding=tuple(pre_padding),
            post_padding=tuple(post_padding),
            dilation_nd=tuple(dilation),
            num_groups=groups,
        )

    def _windowed(
        self,
        method: str,
        input: TensorLike,
        kernel: Any,
        bias: Any,
        *,
        maps: int,
        num_groups: int,
        **attributes: Any,
    ) -> NetworkTensor:
        x = self.tensor(input)
        dtype = self.dtype_of(x)
        out_channels = int(kernel.shape[maps]) * (num_groups if maps else 1)
        window = tuple(int(n) for n in kernel.shape[2:])
        # Without a type, empty weights are float32, which a half layer refuses.
        empty = trt.Weights(x.dtype)
        weights = [
            empty if w is None or self.is_traced(w) else self.weight(w, dtype)
            for w in (kernel, bias)
        ]
        layer = self.add(
            method, x, out_channels, window, *weights, num_groups=num_groups, **attributes
        )
        self._note_weights(layer, weights, kernel, bias, dtype)
        for index, weight in enumerate((kernel, bias), start=1):
            if weight is not None and self.is_traced(weight):
                layer.set_input(index, self.tensor(weight, dtype))
        return self.result(layer)

    def _note_weights(
        self, layer: Any, weights: Sequence[Any], kernel: Any, bias: Any, dtype: torch.dtype
    ) -> None:
        # numpy has no bf16: what it cannot show of the finished network is kept beside it.
        if dtype != torch.bfloat16:
            return
        for name, given, weight in zip(("kernel", "bias"), weights, (kernel, bias), strict=True):
            if weight is not None and given.size:
                self.weights[f"{layer.name}.{name}"] = weight.detach().to("cpu", dtype)

    def add_pooling_nd(
        self,
        input: TensorLike,
        type: Any,
        window_size: Sequence[int],
        *,
        stride: Sequence[int],
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        padding_mode: Any = "EXPLICIT_ROUND_DOWN",
        average_count_excludes_padding: bool | None = None,
    ) -> NetworkTensor:
        """Add an IPoolingLayer; ``type`` is a PoolingType, ``padding_mode`` a PaddingMode.

        Paddings are in elements. EXPLICIT_ROUND_UP is torch's ``ceil_mode``, but for windows that
        start beyond the padded input, which torch drops.
        """
        layer = self.add(
            "add_pooling_nd",
            self.tensor(input),
            member("PoolingType", type),
            tuple(window_size),
            stride_nd=tuple(stride),
            pre_padding=pre_padding and tuple(pre_padding),
            post_padding=post_padding and tuple(post_padding),
            padding_mode=member("PaddingMode", padding_mode),
            average_count_excludes_padding=average_count_excludes_padding,
        )
        return self.result(layer)
