"""Layers that compute: one method per layer kind, under TensorRT's own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.network.core import NetworkCore, NetworkTensor, TensorLike
from t2t.sizes import static_size

__all__ = ["Arithmetic", "axes_mask", "member"]


def member(kind: str, value: Any) -> Any:
    """Give a member of one of TensorRT's enums, from its name or from itself."""
    return getattr(getattr(trt, kind), value) if isinstance(value, str) else value


def axes_mask(axes: int | Iterable[int]) -> int:
    """Give TensorRT's bit mask of non-negative axes."""
    return sum(1 << axis for axis in ([axes] if isinstance(axes, int) else axes))


class Arithmetic(NetworkCore):
    """Layers that compute; enums are given as members or by name ("RELU")."""

    def once(self, key: tuple[Any, ...], make: Callable[[], NetworkTensor]) -> NetworkTensor:
        """Give what ``make`` gave for this key, which must say all that the result depends on.

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
        """Give several operands at one rank (dimensions of size 1 prepended) and in one dtype."""
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
        weights = [
            trt.Weights(x.dtype) if w is None else self._weight_like(w, x)
            for w in (shift, scale, power)
        ]
        kind = member("ScaleMode", mode)
        return self.result(self.add("add_scale_nd", x, kind, *weights, channel_axis))

    def _weight_like(self, weight: torch.Tensor, x: NetworkTensor) -> Any:
        from_trt = self.dtype_of(x)
        return self.weight(weight, from_trt)

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


def _rank(x: Any) -> int:
    return len(x.shape) if hasattr(x, "shape") else 0
