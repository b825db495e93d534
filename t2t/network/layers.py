"""Layers that compute: one method for each kind of layer, under TensorRT's own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.dtypes import to_trt
from t2t.network.core import NetworkCore
from t2t.network.tensors import NetworkTensor, TensorLike, axes_mask, member
from t2t.sizes import static_size


class Layers(NetworkCore):
    """Layers that compute; enums are given as members or by name ("RELU")."""

    def once(self, key: tuple[Any, ...], make: Callable[[], NetworkTensor]) -> NetworkTensor:
        """Return what ``make`` gave for this key, which must say all that the result depends on.

        For what many calls need alike, such as a mask. Network tensors stand in keys by their name.
        """
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def add_activation(
        self,
        input: TensorLike,
        type: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> NetworkTensor:
        """Add an IActivationLayer; ``type`` is an ActivationType."""
        kind = member("ActivationType", type)
        return self.result(
            self.add("add_activation", self.tensor(input), kind, alpha=alpha, beta=beta)
        )

    def add_unary(self, input: TensorLike, op: Any) -> NetworkTensor:
        """Add an IUnaryLayer; ``op`` is a UnaryOperation."""
        return self.result(self.add("add_unary", self.tensor(input), member("UnaryOperation", op)))

    def add_elementwise(
        self,
        input1: TensorLike,
        input2: TensorLike,
        op: Any,
        dtype: torch.dtype | None = None,
    ) -> NetworkTensor:
        """Add an IElementWiseLayer; ``op`` is an ElementWiseOperation.

        Ranks are aligned from the right, as torch broadcasts.

        Args:
            input1: first operand.
            input2: second operand.
            op: the operation.
            dtype: torch dtype in which both are taken; by default each in its own, and numbers in
                that of the other operand.
        """
        a, b = self.aligned([input1, input2], dtype)
        return self.result(self.add("add_elementwise", a, b, member("ElementWiseOperation", op)))

    def aligned(
        self, inputs: Sequence[TensorLike], dtype: torch.dtype | None = None
    ) -> list[NetworkTensor]:
        """Return several operands at one rank (dimensions of size 1 prepended) and in one dtype."""
        rank = max(_rank(x) for x in inputs)
        if dtype is None:
            tensors = (x for x in inputs if isinstance(x, torch.Tensor))
            dtype = next((x.dtype for x in tensors), None)
        return [
            self.tensor(
                x, dtype if not hasattr(x, "dtype") or isinstance(x, torch.Tensor) else None, rank
            )
            for x in inputs
        ]

    def add_select(
        self,
        condition: TensorLike,
        then_input: TensorLike,
        else_input: TensorLike,
        dtype: torch.dtype | None = None,
    ) -> NetworkTensor:
        """Add an ISelectLayer: ``then_input`` where ``condition`` holds; ranks are aligned."""
        rank = max(_rank(x) for x in (condition, then_input, else_input))
        chosen = self.aligned([then_input, else_input], dtype)
        then_tensor, else_tensor = (self.tensor(x, rank=rank) for x in chosen)
        mask = self.tensor(condition, torch.bool, rank)
        return self.result(self.add("add_select", mask, then_tensor, else_tensor))

    def add_reduce(
        self, input: TensorLike, op: Any, axes: int | Iterable[int], keep_dims: bool
    ) -> NetworkTensor:
        """Add an IReduceLayer; ``op`` is a ReduceOperation, ``axes`` non-negative dimensions."""
        kind = member("ReduceOperation", op)
        return self.result(
            self.add("add_reduce", self.tensor(input), kind, axes_mask(axes), keep_dims)
        )

    def add_softmax(self, input: TensorLike, axis: int) -> NetworkTensor:
        """Add an ISoftMaxLayer over one non-negative axis."""
        return self.result(self.add("add_softmax", self.tensor(input), axes=axes_mask(axis)))

    def add_topk(
        self, input: TensorLike, op: Any, k: Any, axis: int
    ) -> tuple[NetworkTensor, NetworkTensor]:
        """Add an ITopKLayer; gives values and int32 indices, both of size ``k`` along ``axis``.

        ``k`` may be symbolic.
        """
        kind, number = member("TopKOperation", op), static_size(k)
        given = 1 if number is None else number
        layer = self.add("add_topk", self.tensor(input), kind, given, axes_mask(axis))
        if number is None:
            layer.set_input(1, self.cast(self.scalar(k), torch.int32))
        return self.result(layer), self.result(layer, 1)

    def add_matrix_multiply(
        self,
        input0: TensorLike,
        input1: TensorLike,
        op0: Any = "NONE",
        op1: Any = "NONE",
        dtype: torch.dtype | None = None,
    ) -> NetworkTensor:
        """Add an IMatrixMultiplyLayer; ``op0``, ``op1`` are MatrixOperations ("TRANSPOSE").

        Ranks are aligned from the right unless an operand is a VECTOR.
        """
        vector = "VECTOR" in (getattr(op, "name", op) for op in (op0, op1))
        a, b = (
            [self.tensor(x, dtype) for x in (input0, input1)]
            if vector
            else self.aligned([input0, input1], dtype)
        )
        return self.result(
            self.add(
                "add_matrix_multiply",
                a,
                member("MatrixOperation", op0),
                b,
                member("MatrixOperation", op1),
            )
        )

    def add_einsum(self, inputs: Sequence[TensorLike], equation: str) -> NetworkTensor:
        """Add an IEinsumLayer."""
        return self.result(self.add("add_einsum", [self.tensor(x) for x in inputs], equation))

    def add_cumulative(
        self,
        input: TensorLike,
        axis: int,
        op: Any = "SUM",
        exclusive: bool = False,
        reverse: bool = False,
    ) -> NetworkTensor:
        """Add an ICumulativeLayer along a non-negative axis."""
        index = self.constant(self._kept(torch.tensor(axis, dtype=torch.int32)))
        kind = member("CumulativeOperation", op)
        return self.result(
            self.add("add_cumulative", self.tensor(input), index, kind, exclusive, reverse)
        )

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        self._alive.append(x)
        return x

    def add_scale_nd(
        self,
        input: TensorLike,
        mode: Any,
        shift: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
        power: torch.Tensor | None = None,
        channel_axis: int = 1,
    ) -> NetworkTensor:
        """Add an IScaleLayer, ``(input * scale + shift) ** power``; ``mode`` is a ScaleMode.

        Weights are cast to the input's dtype.
        """
        x = self.tensor(input)
        dtype = self.dtype_of(x)
        weights = [
            trt.Weights(x.dtype) if w is None else self.weight(w, dtype)
            for w in (shift, scale, power)
        ]
        layer = self.add("add_scale_nd", x, member("ScaleMode", mode), *weights, channel_axis)
        self._note_weights(layer, **dict(zip(("shift", "scale", "power"), weights, strict=True)))
        return self.result(layer)

    def add_normalization(
        self,
        input: TensorLike,
        scale: TensorLike,
        bias: TensorLike,
        axes: Iterable[int],
        epsilon: float,
        num_groups: int = 1,
    ) -> NetworkTensor:
        """Add an INormalizationLayer (v1): scale and bias have size 1 in all but the scaled axes.

        ``epsilon`` is added to the variance. With ``num_groups`` > 1, ``scale`` and ``bias`` have
        shape (1, groups, 1, ...).
        """
        x = self.tensor(input)
        dtype = self.dtype_of(x)
        operands = [
            self.tensor(w, dtype if isinstance(w, torch.Tensor) else None) for w in (scale, bias)
        ]
        layer = self.add(
            "add_normalization",
            x,
            *operands,
            axes_mask(axes),
            epsilon=float(epsilon),
            num_groups=num_groups if num_groups != 1 else None,
        )
        return self.result(layer)

    def add_parametric_relu(self, input: TensorLike, slopes: TensorLike) -> NetworkTensor:
        """Add an IParametricReLULayer; the slopes broadcast to the input."""
        x = self.tensor(input)
        return self.result(
            self.add("add_parametric_relu", x, self.tensor(slopes, rank=len(x.shape)))
        )

    def add_lrn(
        self, input: TensorLike, window: int, alpha: float, beta: float, k: float
    ) -> NetworkTensor:
        """Add an ILRNLayer over channels: ``x / (k + alpha/window * sum(x**2)) ** beta``."""
        return self.result(self.add("add_lrn", self.tensor(input), window, alpha, beta, k))

    def add_cast(self, input: TensorLike, dtype: torch.dtype) -> NetworkTensor:
        """Add an ICastLayer to a torch dtype, unless the input has it."""
        return self.cast(self.tensor(input), dtype)

    # -- windows that slide over the trailing dimensions -----------------------------------------
    #
    # ``windows`` are stride, pre_padding, post_padding and dilation, each a tuple of 2 or 3 numbers
    # of elements, and the number of groups.

    def add_convolution_nd(
        self, input: TensorLike, kernel: TensorLike, bias: TensorLike | None = None, **windows: Any
    ) -> NetworkTensor:
        """Add an IConvolutionLayer.

        ``kernel`` is (out_channels, in_channels / groups, *window); a traced kernel or bias becomes
        an input of the layer.
        """
        return self._windowed("add_convolution_nd", 0, input, kernel, bias, **windows)

    def add_deconvolution_nd(
        self, input: TensorLike, kernel: TensorLike, bias: TensorLike | None = None, **windows: Any
    ) -> NetworkTensor:
        """Add an IDeconvolutionLayer; ``kernel`` is (in_channels, out_channels / groups, *window).

        Paddings are cut from the result.
        """
        return self._windowed("add_deconvolution_nd", 1, input, kernel, bias, **windows)

    def _windowed(
        self,
        method: str,
        maps: int,
        input: TensorLike,
        kernel: Any,
        bias: Any,
        *,
        stride: Sequence[int],
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
    ) -> NetworkTensor:
        x = self.tensor(input)
        dtype = self.dtype_of(x)
        out_channels = int(kernel.shape[maps]) * (groups if maps else 1)
        window = tuple(int(n) for n in kernel.shape[2:])
        # Without a type, empty weights are float32, which a half layer refuses.
        empty = trt.Weights(x.dtype)
        weights = [
            empty if w is None or self.is_traced(w) else self.weight(w, dtype)
            for w in (kernel, bias)
        ]
        layer = self.add(
            method,
            x,
            out_channels,
            window,
            *weights,
            stride_nd=tuple(stride),
            pre_padding=tuple(pre_padding),
            post_padding=tuple(post_padding),
            dilation_nd=tuple(dilation),
            num_groups=groups,
        )
        self._note_weights(layer, kernel=weights[0], bias=weights[1])
        for index, weight in enumerate((kernel, bias), start=1):
            if weight is not None and self.is_traced(weight):
                layer.set_input(index, self.tensor(weight, dtype))
        return self.result(layer)

    def _note_weights(self, layer: Any, **weights: Any) -> None:
        """Note what numpy cannot show of a finished network, and so `capture` has to be given."""
        for name, given in weights.items():
            if id(given) in self._by_address:
                self.weights[f"{layer.name}.{name}"] = self._by_address[id(given)]

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

    # -- quantization: in float32, with constant scales and zero points of 0 ---------------------

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

    def add_plugin_v3(self, inputs: Sequence[TensorLike], plugin: Any) -> list[NetworkTensor]:
        """Add an IPluginV3Layer of an IPluginV3 (`t2t.plugins`); TensorRT-RTX has none."""
        self.keep(plugin)
        layer = self.add("add_plugin_v3", [self.tensor(x) for x in inputs], [], plugin)
        return [self.result(layer, index) for index in range(layer.num_outputs)]

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


def _rank(x: Any) -> int:
    return len(x.shape) if hasattr(x, "shape") else 0


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Return numbers of four bits two in a byte, the first one in the lower half."""
    flat = x.flatten()
    padded = torch.nn.functional.pad(flat, (0, flat.numel() % 2)).to(torch.int16) & 0xF
    return (padded[0::2] | (padded[1::2] << 4)).to(torch.uint8)
