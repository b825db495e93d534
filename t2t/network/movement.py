"""Layers that move data, and the few steps that converters build from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.network.arithmetic import member
from t2t.network.core import NetworkTensor, TensorLike
from t2t.network.core import shape as shape_of
from t2t.network.shuffles import Shuffles, same_sizes
from t2t.sizes import is_symbolic, static_size

__all__ = ["Movement", "same_sizes"]

Size = Any
"""A size: an int, or a torch.SymInt of dynamic dimensions."""


class Movement(Shuffles):
    """Layers that move data; sizes may be symbolic."""

    def add_slice(
        self,
        input: TensorLike,
        start: Sequence[Size],
        shape: Sequence[Size],
        stride: Sequence[Size] | None = None,
        mode: Any = "STRICT_BOUNDS",
        fill: TensorLike | None = None,
        axes: tuple[int, ...] | None = None,
    ) -> NetworkTensor:
        """Add an ISliceLayer.

        Args:
            input: the tensor.
            start: for each axis the first element.
            shape: for each axis how many.
            stride: for each axis the step; 1 by default.
            mode: a SampleMode: what stands outside the input.
            fill: that value, for FILL.
            axes: the axes that are meant; by default all.
        """
        tensor = self.tensor(input)
        arguments = [start, shape, stride or (1,) * len(start)]
        plain = [[static_size(n) for n in argument] for argument in arguments]
        # An argument that is a tensor is set as an input; its place holder must have the rank.
        given = [
            tuple(numbers) if None not in numbers else (1,) * len(numbers) for numbers in plain
        ]
        layer = self.add("add_slice", tensor, *given, mode=member("SampleMode", mode), axes=axes)
        for index, (argument, numbers) in enumerate(zip(arguments, plain, strict=True), start=1):
            if None in numbers:
                layer.set_input(index, self.shape_tensor(argument))
        if fill is not None:
            value = self.tensor(fill, self.dtype_of(tensor))
            layer.set_input(4, self.reshape(value, ()) if len(value.shape) else value)
        return self.result(layer)

    def narrow(
        self, x: TensorLike, axis: int, start: Size, size: Size, step: int = 1
    ) -> NetworkTensor:
        """Take ``size`` elements along one axis from ``start`` on; all of them: ``x`` itself."""
        tensor = self.tensor(x)
        before = x.shape if isinstance(x, torch.Tensor) else shape_of(tensor)
        if step == 1 and same_sizes([before[axis]], [size]) and static_size(size) != -1:
            return tensor
        if -1 not in shape_of(tensor):
            starts, sizes, steps = [0] * len(before), list(before), [1] * len(before)
            starts[axis], sizes[axis], steps[axis] = start, size, step
            return self.add_slice(tensor, starts, sizes, steps)
        # Other axes may be dynamic: they need not be computed when they are not named.
        return self.add_slice(tensor, [start], [size], [step], axes=(axis,))

    def expand(self, x: TensorLike, sizes: Sequence[Size]) -> NetworkTensor:
        """Broadcast to sizes of the same or a higher rank; -1 keeps a size."""
        tensor = self.tensor(x, rank=len(sizes))
        before = shape_of(tensor)
        old = list(x.shape) if isinstance(x, torch.Tensor) else list(before)
        old = [1] * (len(sizes) - len(old)) + old
        wanted = [o if static_size(s) == -1 else s for o, s in zip(old, sizes, strict=True)]
        repeated = [_differs(o, w) for o, w in zip(old, wanted, strict=True)]
        if isinstance(x, torch.Tensor):
            for size, again, new in zip(old, repeated, wanted, strict=True):
                # What is not repeated must be as large already.
                if not again and is_symbolic(size == new):
                    torch._check(size == new)
        if not any(repeated):
            return tensor
        # A stride of 0 reads the only element of a dimension again and again.
        stride = [0 if again else 1 for again in repeated]
        return self.add_slice(tensor, [0] * len(wanted), wanted, stride)

    def add_concatenation(
        self, inputs: Sequence[TensorLike], axis: int, dtype: torch.dtype | None = None
    ) -> NetworkTensor:
        """Add an IConcatenationLayer along a non-negative axis; a single input is given back."""
        tensors = [self.tensor(x, dtype) for x in inputs]
        if len(tensors) == 1:
            return tensors[0]
        return self.result(self.add("add_concatenation", tensors, axis=axis))

    def add_gather(
        self,
        input: TensorLike,
        indices: TensorLike,
        axis: int = 0,
        mode: Any = "DEFAULT",
        num_elementwise_dims: int | None = None,
    ) -> NetworkTensor:
        """Add an IGatherLayer; ``mode`` is a GatherMode. Indices must not be negative."""
        kind = member("GatherMode", mode)
        layer = self.add(
            "add_gather_v2",
            self.tensor(input),
            self.tensor(indices),
            kind,
            axis=None if getattr(kind, "name", "") == "ND" else axis,
            num_elementwise_dims=num_elementwise_dims,
        )
        return self.result(layer)

    def add_scatter(
        self,
        data: TensorLike,
        indices: TensorLike,
        updates: TensorLike,
        mode: Any,
        axis: int = 0,
    ) -> NetworkTensor:
        """Add an IScatterLayer; ``mode`` is a ScatterMode. Indices must not be negative."""
        kind = member("ScatterMode", mode)
        target = self.tensor(data)
        layer = self.add(
            "add_scatter",
            target,
            self.tensor(indices),
            self.tensor(updates, self.dtype_of(target)),
            kind,
            axis=None if kind.name == "ND" else axis,
        )
        return self.result(layer)

    def add_one_hot(
        self, indices: TensorLike, values: TensorLike, depth: TensorLike, axis: int
    ) -> NetworkTensor:
        """Add an IOneHotLayer; ``depth`` must be a constant."""
        return self.result(
            self.add(
                "add_one_hot", self.tensor(indices), self.tensor(values), self.tensor(depth), axis
            )
        )

    def add_resize(
        self,
        input: TensorLike,
        sizes: Sequence[Size] | None = None,
        *,
        scales: Sequence[float] | None = None,
        mode: Any = "NEAREST",
        coordinates: Any = "ASYMMETRIC",
        rounding: Any = None,
        cubic_coefficient: float | None = None,
    ) -> NetworkTensor:
        """Add an IResizeLayer to ``sizes``, or by ``scales``, of all dimensions.

        ``mode`` is an InterpolationMode, ``coordinates`` a ResizeCoordinateTransformation,
        ``rounding`` a ResizeRoundMode.
        """
        layer = self.add(
            "add_resize",
            self.tensor(input),
            resize_mode=member("InterpolationMode", mode),
            coordinate_transformation=member("ResizeCoordinateTransformation", coordinates),
            nearest_rounding=member("ResizeRoundMode", rounding),
            cubic_coeff=cubic_coefficient,
            scales=scales,
        )
        if sizes is not None:
            plain = [static_size(size) for size in sizes]
            if None in plain:
                layer.set_input(1, self.shape_tensor(sizes))
            else:
                layer.shape = tuple(plain)
        return self.result(layer)

    def add_grid_sample(
        self, input: TensorLike, grid: TensorLike, mode: Any, align_corners: bool, sample_mode: Any
    ) -> NetworkTensor:
        """Add an IGridSampleLayer; the modes are an InterpolationMode and a SampleMode."""
        layer = self.add(
            "add_grid_sample",
            self.tensor(input),
            self.tensor(grid),
            interpolation_mode=member("InterpolationMode", mode),
            align_corners=align_corners,
            sample_mode=member("SampleMode", sample_mode),
        )
        return self.result(layer)

    def add_linspace(
        self, sizes: Sequence[Size], start: Any, delta: Any, dtype: torch.dtype
    ) -> Any:
        """Add an IFillLayer that counts ``start, start + delta, ...`` along one dimension.

        ``dtype`` is float32, int32 or int64; ``start`` and ``delta`` are numbers, perhaps symbolic.
        """
        from_tensor = self.shape_tensor(sizes)
        layer = self.add("add_fill", (1,), trt.FillOperation.LINSPACE, self.trt_dtype(dtype))
        layer.set_input(0, from_tensor)
        layer.set_input(1, self.tensor(start, dtype))
        layer.set_input(2, self.tensor(delta, dtype, rank=1))
        return self.result(layer)


def _differs(old: Size, new: Size) -> bool:
    """Say whether a dimension of size 1 becomes larger."""
    return static_size(old) == 1 and static_size(new) != 1
