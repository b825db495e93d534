"""Layers that move data: shuffles, slices, gathers; and sizes as shape tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from t2t.backend import trt
from t2t.errors import ConversionError
from t2t.io import Dimension, Place
from t2t.network.core import NetworkCore
from t2t.network.tensors import NetworkTensor, TensorLike, member
from t2t.network.tensors import shape as shape_of
from t2t.sizes import example_size, expression, smallest, static_size
from t2t.sizes.layers import SizeLayers
from t2t.sizes.terms import Symbol

Size = Any
"""A size: an int, or a torch.SymInt of dynamic dimensions."""


class Movement(NetworkCore):
    """Layers that move data; sizes may be symbolic."""

    # -- sizes as shape tensors ----------------------------------------------------------------

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sizes = SizeLayers(self)

    def bind_symbol(
        self, symbol: Symbol, dimension: Dimension, inputs: Sequence[NetworkTensor]
    ) -> None:
        """Return which dimensions of the network inputs a symbol stands in."""
        self._sizes.bind(symbol, dimension, inputs)

    def bind_number(self, symbol: Symbol, tensor: NetworkTensor) -> None:
        """Let a tensor of one element hold the real number of a symbol."""
        self._sizes.bind_number(symbol, self.reshape(tensor, (1,)))

    def place_of(self, symbol: Symbol) -> tuple[NetworkTensor, Place]:
        """Return a network input in which a symbol stands, and where.

        Raises:
            ConversionError: there is none.
        """
        return self._sizes.place_of(symbol)

    def shape_tensor(self, sizes: Sequence[int | torch.SymInt]) -> NetworkTensor:
        """Return sizes as a 1-D int64 network tensor; plain neighbours are one constant."""
        parts: list[NetworkTensor] = []
        plain: list[int] = []

        def flush() -> None:
            if plain:
                parts.append(self.vector(plain))
                plain.clear()

        for size in sizes:
            number = static_size(size)
            if number is None:
                flush()
                parts.append(self.size(size))
            else:
                plain.append(number)
        flush()
        if not parts:
            raise ConversionError("a shape tensor needs at least one size")
        if len(parts) == 1:
            return parts[0]
        layer = self.add("add_concatenation", parts, axis=0)
        return self.result(layer)

    def size(self, size: Any) -> NetworkTensor:
        """Return a symbolic number as a network tensor of shape (1,): int64, or float32 if real."""
        tensor: NetworkTensor = self._sizes.emit(expression(size))
        return tensor

    def size_cases(self, sizes: Sequence[Any]) -> tuple[list[tuple[int, ...]], NetworkTensor]:
        """Return all values that symbolic sizes have together, and an index (1,) of the present.

        Raises:
            UnsupportedArgumentError: there are too many.
        """
        values, index = self._sizes.cases([expression(size) for size in sizes])
        return values, index

    def scalar(self, x: Any) -> NetworkTensor:
        """Return a symbolic number as a 0-D network tensor."""
        return self.reshape(self.size(x), ())

    def vector(self, numbers: Sequence[int]) -> NetworkTensor:
        """Return integers as a 1-D int64 constant."""
        key = ("vector", tuple(numbers))
        if key not in self._shared:
            value = torch.tensor(numbers, dtype=torch.int64)
            self._alive.append(value)
            self._shared[key] = self._add_constant(value, torch.int64, (len(numbers),))
        return self._shared[key]

    # -- shuffles: transpose, reshape and transpose again, all in one ---------------------------

    def reshape(
        self,
        x: TensorLike,
        sizes: Sequence[Size],
        order: Sequence[int] | None = None,
        before: Sequence[Size] | None = None,
    ) -> NetworkTensor:
        """Return ``x`` with other sizes, in row-major order; itself where it has them already.

        At most one size is left for TensorRT to infer, others are copied from the same dimension
        of ``x`` or computed as a shape tensor.

        Args:
            x: the tensor.
            sizes: the new sizes.
            order: permutes the dimensions afterwards, in the same layer.
            before: the sizes of ``x``; by default its own, which are -1 where a network tensor is
                dynamic.
        """
        tensor = self.tensor(x)
        if before is None:
            before = x.shape if isinstance(x, torch.Tensor) else shape_of(tensor)
        if _unchanged(tensor, before, sizes):
            return tensor if order is None else self.transpose(tensor, order)
        layer = self._reshape_layer(tensor, before, sizes)
        if order is not None:
            layer.second_transpose = trt.Permutation(list(order))
        return self.result(layer)

    def _reshape_layer(
        self, tensor: NetworkTensor, before: Sequence[Size], sizes: Sequence[Size]
    ) -> Any:
        dims = [_placeholder(size, index, before) for index, size in enumerate(sizes)]
        if dims.count(None) == 1 and -1 not in dims:
            place = dims.index(None)
            # Without elements, no size can be inferred.
            if all(smallest(size) > 0 for i, size in enumerate(sizes) if i != place):
                dims[place] = -1
        # A plain 0 would be taken for "as in the input".
        if 0 not in map(static_size, sizes) and None not in dims and dims.count(-1) <= 1:
            return self.add("add_shuffle", tensor, reshape_dims=tuple(dims))
        layer = self.add("add_shuffle", tensor, zero_is_placeholder=False)
        layer.set_input(1, self.shape_tensor(sizes))
        return layer

    def transpose(
        self,
        x: TensorLike,
        order: Sequence[int],
        sizes: Sequence[int] | None = None,
        then: Sequence[int] | None = None,
    ) -> NetworkTensor:
        """Permute the dimensions; ``order`` names the source dimension of each.

        Args:
            x: the tensor.
            order: the permutation.
            sizes: static sizes that the result gets afterwards, in the same layer.
            then: permutes the dimensions once more, likewise.
        """
        tensor = self.tensor(x)
        if sizes is None and list(order) == list(range(len(order))):
            return tensor
        layer = self.add("add_shuffle", tensor)
        layer.first_transpose = trt.Permutation(list(order))
        if sizes is not None:
            layer.reshape_dims = tuple(sizes)
        if then is not None:
            layer.second_transpose = trt.Permutation(list(then))
        return self.result(layer)

    # -- other layers -----------------------------------------------------------------------------

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
        repeated = [_is_repeated(o, w) for o, w in zip(old, wanted, strict=True)]
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
    ) -> NetworkTensor:
        """Add an IGatherLayer; ``mode`` is a GatherMode. Indices must not be negative."""
        kind = member("GatherMode", mode)
        layer = self.add(
            "add_gather_v2",
            self.tensor(input),
            self.tensor(indices),
            kind,
            axis=None if getattr(kind, "name", "") == "ND" else axis,
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


def _unchanged(tensor: NetworkTensor, before: Sequence[Size], sizes: Sequence[Size]) -> bool:
    plain = tuple(static_size(size) for size in sizes)
    if -1 not in shape_of(tensor):
        return plain == shape_of(tensor)
    # A network tensor's -1 says nothing.
    return -1 not in before and same_sizes(before, sizes)


def same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Return whether two shapes are equal for all values of the dynamic dimensions."""
    return len(a) == len(b) and all(
        expression(x) == expression(y) for x, y in zip(a, b, strict=True)
    )


def _placeholder(size: Size, index: int, before: Sequence[Size]) -> int | None:
    """Return a reshape dimension: the size, 0 for "as in the input", None for a computed one."""
    number = static_size(size)
    if number is not None:
        return number
    if index < len(before) and static_size(before[index]) is None:
        return 0 if expression(size) == expression(before[index]) else None
    return None


def _is_repeated(old: Size, new: Size) -> bool:
    """Return whether a dimension of size 1 becomes larger, for all sizes as for the example."""
    if static_size(old) in (1, -1) or expression(old) == expression(new):
        return static_size(old) == 1 and static_size(new) != 1
    repeated = bool(example_size(old) != example_size(new))
    # A size may always be 1 and not look like it: that of x[:1].
    torch._check(old == (1 if repeated else new))
    return repeated
