"""Operators of complex numbers, in terms of pairs of real ones: (*) complex is (*, 2) real.

A complex tensor of a trace is `torch.view_as_complex` of a real one, so that views and writes of it
are views and writes of that. Which operators take or give complex numbers stands here and in
`t2t.formulas.fourier`; all others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from t2t.dtypes import real_dtype
from t2t.registry import Precision, formula
from t2t.sizes import static_size

aten = torch.ops.aten

_F = TypeVar("_F", bound=Callable[..., Any])


def _complex(*names: str, precision: Precision = "follow") -> Callable[[_F], _F]:
    return formula(*(f"aten::{name}" for name in names), precision=precision, of_complex=True)


def as_pairs(x: torch.Tensor) -> torch.Tensor:
    """Return complex numbers (*) as pairs (*, 2), a view of them."""
    return torch.view_as_real(x.resolve_conj())


def as_complex(pair: torch.Tensor) -> torch.Tensor:
    """Return pairs (*, 2) as complex numbers (*), a view of them."""
    return torch.view_as_complex(pair)


def turned(pair: torch.Tensor) -> torch.Tensor:
    """Return pairs multiplied by the imaginary unit."""
    return torch.stack([-pair[..., 1], pair[..., 0]], -1)


def _pairs(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a real or complex tensor or number as pairs with the parts of a complex dtype."""
    given = torch.as_tensor(x)
    if given.is_complex():
        return as_pairs(given).to(real_dtype(dtype))
    real = given.to(real_dtype(dtype))
    return torch.stack([real, torch.zeros_like(real)], -1)


def _scale(x: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a real tensor or number as what pairs are multiplied by; None of a complex one."""
    given = torch.as_tensor(x)
    return None if given.is_complex() else given.to(real_dtype(dtype)).unsqueeze(-1)


def _axis(x: torch.Tensor, dim: int, more: int = 0) -> int:
    """Return a dimension of complex numbers as one of pairs; ``more`` dimensions are to come."""
    return dim % max(x.ndim + more, 1)


# -- made of real numbers --------------------------------------------------------------------------


@_complex("complex.default")
def make_complex(real: torch.Tensor, imag: torch.Tensor) -> torch.Tensor:
    """Join two parts."""
    parts = torch.broadcast_tensors(real, imag)  # type: ignore[no-untyped-call]
    return as_complex(torch.stack(parts, -1))


@_complex("polar.default", precision="sensitive")
def polar(abs: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Return numbers of a size and a direction."""
    return as_complex(torch.stack([abs * angle.cos(), abs * angle.sin()], -1))


@_complex("_to_copy.default")
def to_copy(self: torch.Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    """Convert to a complex dtype, or to a real one without the imaginary part."""
    del kwargs  # where and how torch would keep it
    if dtype == torch.bool:
        return NotImplemented
    if dtype is None or dtype.is_complex:
        return as_complex(_pairs(self, dtype or self.dtype).clone())
    return as_pairs(self)[..., 0].clone().to(dtype)


@_complex("zeros.default")
def zeros(size: Sequence[Any], *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    """Return zeros of a dynamic size."""
    del kwargs  # where and how torch would keep it
    if dtype is None:
        return NotImplemented
    return as_complex(torch.zeros([*size, 2], dtype=real_dtype(dtype)))


@_complex("new_zeros.default")
def new_zeros(
    self: torch.Tensor, size: Sequence[Any], *, dtype: torch.dtype | None = None, **kwargs: Any
) -> torch.Tensor:
    """Return zeros of a size."""
    dtype = dtype or self.dtype
    if dtype.is_complex:
        return as_complex(torch.zeros([*size, 2], dtype=real_dtype(dtype)))
    del kwargs  # where and how torch would keep it
    return torch.zeros(list(size), dtype=dtype)


@_complex("zeros_like.default")
def zeros_like(
    self: torch.Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any
) -> torch.Tensor:
    """Return as many zeros."""
    return new_zeros(self, self.shape, dtype=dtype, **kwargs)


@_complex("fill.Tensor", "fill.Scalar")
def fill(self: torch.Tensor, value: Any) -> Any:
    """Return a number everywhere."""
    if not self.dtype.is_complex:
        return NotImplemented
    return as_complex(_pairs(value, self.dtype).expand(*self.shape, 2).clone())


@_complex("zero.default")
def zero(self: torch.Tensor) -> torch.Tensor:
    """Return zeros everywhere."""
    return zeros_like(self)


# -- arithmetic ------------------------------------------------------------------------------------


@_complex("add.Tensor")
def add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Add, or add a multiple."""
    if isinstance(alpha, complex):
        return NotImplemented
    dtype = torch.result_type(self, other)
    return as_complex(torch.add(_pairs(self, dtype), _pairs(other, dtype), alpha=alpha))


@_complex("sub.Tensor")
def sub(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Subtract, or subtract a multiple."""
    return add(self, other, alpha=-alpha)


@_complex("rsub.Tensor", "rsub.Scalar")
def rsub(self: Any, other: Any, alpha: Any = 1) -> Any:
    """Subtract the first from the second."""
    return add(other, self, alpha=-alpha)


@_complex("mul.Tensor", "mul.Scalar")
def mul(self: Any, other: Any) -> torch.Tensor:
    """Multiply; a real factor scales both parts."""
    dtype = torch.result_type(self, other)
    for factor, rest in ((self, other), (other, self)):
        scale = _scale(factor, dtype)
        if scale is not None:
            return as_complex(_pairs(rest, dtype) * scale)
    a, b = _pairs(self, dtype), _pairs(other, dtype)
    return as_complex(a * b[..., :1] + turned(a) * b[..., 1:])


@_complex("div.Tensor", precision="sensitive")
def div(self: Any, other: Any) -> torch.Tensor:
    """Divide; a complex divisor is scaled first, so that its square does not overflow."""
    dtype = torch.result_type(self, other)
    scale = _scale(other, dtype)
    a = _pairs(self, dtype)
    if scale is not None:
        return as_complex(a / scale)
    b = _pairs(other, dtype)
    largest = b.abs().amax(-1, keepdim=True)
    b = b / largest
    product = a * b[..., :1] - turned(a) * b[..., 1:]
    return as_complex(product / (b * b).sum(-1, keepdim=True) / largest)


@_complex("reciprocal.default", precision="sensitive")
def reciprocal(self: torch.Tensor) -> torch.Tensor:
    """Return 1 / z."""
    return div(1, self)


@_complex("neg.default")
def neg(self: torch.Tensor) -> torch.Tensor:
    """Return -z."""
    return as_complex(-as_pairs(self))


# What PyTorch takes as a view is a copy here; the tracer refuses to read either after the other
# was written.
@_complex("_conj.default", "_conj_physical.default")
def conj(self: torch.Tensor) -> torch.Tensor:
    """Change the sign of the imaginary part."""
    pair = as_pairs(self)
    return as_complex(pair * torch.tensor([1.0, -1.0], dtype=pair.dtype))


@_complex("abs.default")
def absolute(self: torch.Tensor) -> torch.Tensor:
    """Return the size, also where its square overflows."""
    pair = as_pairs(self)
    return torch.hypot(pair[..., 0], pair[..., 1])


@_complex("angle.default")
def angle(self: torch.Tensor) -> torch.Tensor:
    """Return the direction, from -pi to pi."""
    pair = as_pairs(self)
    return torch.atan2(pair[..., 1], pair[..., 0])


@_complex("sgn.default", precision="sensitive")
def sgn(self: torch.Tensor) -> torch.Tensor:
    """Return z / abs(z), and 0 for 0."""
    size = absolute(self).unsqueeze(-1)
    return as_complex(torch.where(size == 0, 0.0, as_pairs(self) / size))


@_complex("exp.default", precision="sensitive")
def exp(self: torch.Tensor) -> torch.Tensor:
    """Return the exponential: its size follows from the real part, its direction is the other."""
    pair = as_pairs(self)
    return polar(pair[..., 0].exp(), pair[..., 1])


@_complex("log.default", precision="sensitive")
def log(self: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the size, and the direction."""
    return make_complex(absolute(self).log(), angle(self))


@_complex("pow.Tensor_Scalar")
def power(self: torch.Tensor, exponent: Any) -> Any:
    """Return the square or the cube."""
    if exponent not in (1, 2, 3) or self.dtype != torch.result_type(self, exponent):
        return NotImplemented
    result = self.clone()
    for _ in range(int(exponent) - 1):
        result = mul(result, self)
    return result


@_complex("sum.dim_IntList", "sum.default")
def total(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Add up both parts."""
    return _reduced(torch.sum, self, dim, keepdim, dtype)


@_complex("mean.dim", "mean.default")
def mean(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Average both parts."""
    return _reduced(torch.mean, self, dim, keepdim, dtype)


def _reduced(
    function: Callable[..., torch.Tensor],
    x: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    pair = _pairs(x, dtype or x.dtype)
    axes = [_axis(x, axis) for axis in dim or range(x.ndim)] if x.ndim else []
    return as_complex(function(pair, axes, keepdim) if axes else pair.clone())


@_complex("cumsum.default")
def cumsum(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Add up both parts as far as each element."""
    if not self.ndim:
        return to_copy(self, dtype=dtype)  # type: ignore[no-any-return]
    return as_complex(_pairs(self, dtype or self.dtype).cumsum(_axis(self, dim)))


# -- products --------------------------------------------------------------------------------------


@_complex("mm.default", "bmm.default", "mv.default", "dot.default")
def matmul(self: torch.Tensor, *other: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
    """Multiply matrices, or batches of them, or a matrix and a vector, or two vectors."""
    b, *_ = *other, *named.values()
    dtype = torch.result_type(self, b)
    left = self.unsqueeze(0) if self.ndim == 1 else self
    right = b.unsqueeze(-1) if b.ndim == 1 else b
    result = product(_pairs(left, dtype), _pairs(right, dtype))
    result = result.squeeze(-2) if b.ndim == 1 else result
    return as_complex(result.squeeze(0) if self.ndim == 1 else result)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply matrices of pairs, (*, n, m, 2) by (*, m, p, 2), as one product of real ones."""
    rows = torch.stack([b, turned(b)], -3).flatten(-4, -3).flatten(-2)
    result = torch.matmul(a.flatten(-2), rows)
    return result.reshape(*result.shape[:-1], b.shape[-2], 2)


@_complex("addmm.default", "addmv.default", "baddbmm.default")
def addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """Add ``self`` to a product of matrices, or of batches of them, or of a matrix and a vector."""
    result = matmul(mat1, mat2)
    result = result if alpha == 1 else result * alpha
    # As torch has it, nothing of ``self`` matters then, not even NaN.
    if beta == 0:
        return result
    return result + (self if beta == 1 else self * beta)


# -- views -----------------------------------------------------------------------------------------


@_complex("alias.default")
def alias(self: torch.Tensor) -> torch.Tensor:
    """Return the same elements."""
    return as_complex(aten.alias.default(as_pairs(self)))


@_complex("detach.default")
def detach(self: torch.Tensor) -> torch.Tensor:
    """Return the same elements."""
    return alias(self)


@_complex("view.default", "_unsafe_view.default", "reshape.default")
def view(self: torch.Tensor, size: Sequence[Any]) -> torch.Tensor:
    """Group the elements into other dimensions."""
    return as_complex(as_pairs(self).reshape([*size, 2]))


@_complex("permute.default")
def permute(self: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Change the order of dimensions."""
    return as_complex(as_pairs(self).permute([*(_axis(self, dim) for dim in dims), self.ndim]))


@_complex("transpose.int")
def transpose(self: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    """Exchange two dimensions."""
    return as_complex(as_pairs(self).transpose(_axis(self, dim0), _axis(self, dim1)))


@_complex("t.default")
def t(self: torch.Tensor) -> torch.Tensor:
    """Exchange the two dimensions of a matrix."""
    return transpose(self, 0, 1) if self.ndim == 2 else alias(self)


@_complex("expand.default")
def expand(self: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> torch.Tensor:
    """Repeat dimensions of size 1."""
    del implicit
    return as_complex(as_pairs(self).expand([*size, 2]))


@_complex("slice.Tensor")
def cut(
    self: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> torch.Tensor:
    """Take every ``step``-th element of a stretch."""
    return as_complex(aten.slice.Tensor(as_pairs(self), _axis(self, dim), start, end, step))


@_complex("select.int")
def select(self: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """Take one element of a dimension."""
    return as_complex(aten.select.int(as_pairs(self), _axis(self, dim), index))


@_complex("unbind.int")
def unbind(self: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Select every index of a dimension."""
    return [select(self, dim, index) for index in range(int(self.shape[dim]))]


@_complex("split.Tensor")
def split(self: torch.Tensor, split_size: Any, dim: int = 0) -> list[torch.Tensor]:
    """Cut into slices of one size."""
    return [as_complex(x) for x in aten.split.Tensor(as_pairs(self), split_size, _axis(self, dim))]


@_complex("split_with_sizes.default")
def split_with_sizes(
    self: torch.Tensor, split_sizes: Sequence[Any], dim: int = 0
) -> list[torch.Tensor]:
    """Cut into slices of given sizes."""
    pieces = aten.split_with_sizes.default(as_pairs(self), split_sizes, _axis(self, dim))
    return [as_complex(x) for x in pieces]


@_complex("unsqueeze.default")
def unsqueeze(self: torch.Tensor, dim: int) -> torch.Tensor:
    """Insert a dimension of size 1."""
    return as_complex(as_pairs(self).unsqueeze(_axis(self, dim, 1)))


@_complex("squeeze.default", "squeeze.dim", "squeeze.dims")
def squeeze(self: torch.Tensor, dim: Any = None) -> torch.Tensor:
    """Leave out dimensions of size 1."""
    given = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [_axis(self, axis) for axis in given] if self.ndim else []
    return as_complex(as_pairs(self).squeeze(axes))


@_complex("diagonal.default")
def diagonal(self: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """Take a diagonal of two dimensions, which becomes the last one."""
    found = as_pairs(self).diagonal(offset, _axis(self, dim1), _axis(self, dim2))
    return as_complex(found.transpose(-1, -2))


@_complex("unfold.default")
def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """Take windows along a dimension; their elements become the last dimension."""
    found = as_pairs(self).unfold(_axis(self, dimension), size, step)
    return as_complex(found.transpose(-1, -2))


# -- copies ----------------------------------------------------------------------------------------


@_complex("clone.default")
def clone(self: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """Copy."""
    del memory_format
    return as_complex(as_pairs(self).clone(memory_format=torch.contiguous_format))


@_complex("copy.default")
def copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> Any:
    """Return the source in the target's shape and dtype."""
    del non_blocking
    if not self.dtype.is_complex:
        return NotImplemented
    return as_complex(_pairs(src, self.dtype).expand(*self.shape, 2).clone())


@_complex("cat.default")
def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Join along a dimension."""
    dtype = tensors[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    # As torch has it, (0,) goes with tensors of all ranks.
    filled = [x for x in tensors if x.ndim != 1 or static_size(x.shape[0]) != 0] or tensors[:1]
    return as_complex(torch.cat([_pairs(x, dtype) for x in filled], dim % filled[0].ndim))


@_complex("stack.default")
def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Join along a new dimension."""
    return cat([x.unsqueeze(_axis(tensors[0], dim, 1)) for x in tensors], _axis(tensors[0], dim, 1))


@_complex("flip.default")
def flip(self: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Turn dimensions round."""
    return as_complex(as_pairs(self).flip([_axis(self, dim) for dim in dims]))


@_complex("roll.default")
def roll(self: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> torch.Tensor:
    """Move elements round; without dimensions, those of the flattened tensor."""
    if not dims:
        return roll(self.reshape(-1), shifts, [0]).reshape(self.shape)
    return as_complex(as_pairs(self).roll(list(shifts), [_axis(self, dim) for dim in dims]))


@_complex("repeat.default")
def repeat(self: torch.Tensor, repeats: Sequence[Any]) -> torch.Tensor:
    """Repeat the whole."""
    return as_complex(as_pairs(self).repeat([*repeats, 1]))


@_complex("constant_pad_nd.default")
def constant_pad(self: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """Pad with zeros."""
    if value != 0:
        return NotImplemented
    return as_complex(aten.constant_pad_nd.default(as_pairs(self), [0, 0, *pad]))


@_complex("index.Tensor")
def index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Take elements at indices."""
    return as_complex(aten.index.Tensor(as_pairs(self), list(indices)))


@_complex("index_select.default")
def index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Take slices at indices."""
    if not self.ndim:
        return self.clone()
    return as_complex(as_pairs(self).index_select(_axis(self, dim), index))


@_complex("gather.default")
def gather(self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    """Take elements at indices along a dimension."""
    del sparse_grad
    if not self.ndim:
        return NotImplemented
    return as_complex(as_pairs(self).gather(_axis(self, dim), _of_pairs(index)))


def _of_pairs(index: torch.Tensor) -> torch.Tensor:
    return index.unsqueeze(-1).expand(*index.shape, 2)


@_complex("take.default")
def take(self: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Take elements of the flattened tensor."""
    taken = as_pairs(self).reshape(-1, 2).index_select(0, index.reshape(-1))
    return as_complex(taken.reshape(*index.shape, 2))


@_complex("slice_scatter.default")
def slice_scatter(
    self: torch.Tensor, src: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None,
    step: Any = 1,
) -> Any:  # fmt: skip
    """Write into a slice of a copy."""
    pair, source = as_pairs(self), _pairs(src, self.dtype)
    return as_complex(pair.slice_scatter(source, _axis(self, dim), start, end, step))


@_complex("select_scatter.default")
def select_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """Write at one index of a copy."""
    return as_complex(
        as_pairs(self).select_scatter(_pairs(src, self.dtype), _axis(self, dim), index)
    )


@_complex("index_put.default", "_unsafe_index_put.default")
def index_put(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """Write at indices of a copy."""
    source = _pairs(values, self.dtype)
    return as_complex(aten.index_put.default(as_pairs(self), list(indices), source, accumulate))


@_complex("scatter.src")
def scatter(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    """Write at indices along a dimension of a copy."""
    if not self.ndim:
        return NotImplemented
    source = _pairs(src, self.dtype)
    return as_complex(as_pairs(self).scatter(_axis(self, dim), _of_pairs(index), source))


@_complex("where.self")
def where(condition: torch.Tensor, self: Any, other: Any) -> torch.Tensor:
    """Choose elements of two tensors."""
    dtype = torch.result_type(self, other)
    return as_complex(
        torch.where(condition.unsqueeze(-1), _pairs(self, dtype), _pairs(other, dtype))
    )


@_complex("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """Write a number where a mask holds."""
    filled = torch.where(mask.unsqueeze(-1), _pairs(value, self.dtype), as_pairs(self))
    return as_complex(filled)
