"""Resizing by interpolation, in every mode of torch.nn.functional.interpolate, and grid sampling.

``area`` is adaptive average pooling. The functions that ``interpolate`` chooses from are converted,
so that a copy of it that was imported by name before the trace is converted too; and not their
operators, for which PyTorch's own code has made a float of a dynamic size times a whole scale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from t2t.converters._arguments import static_number
from t2t.converters._spatial import autocast, laid_out
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter
from t2t.sizes import has_symbol, is_symbolic, static_size, times
from t2t.torch_internals import nn_functions

LARGEST_TABLE = 1 << 23
"""Most numbers in the weights for all dynamic sizes: 32 MB."""

_SAFE_FACTOR = 8
"""Up to here all ways to compute i / factor in floats give the same integer part."""


def _output(
    names: Sequence[str],
    declines: Callable[..., bool] | None,
    input: torch.Tensor,
    output_size: Any,
    *args: Any,
) -> Any:
    """Compute the fake result of a resize; whole scales keep its size an exact expression.

    Args:
        names: torch's function in torch._C._nn, one name or one for each number of dimensions.
        declines: tells from the further arguments whether the call is not converted as a whole.
        input: the images, (N, C, *spatial).
        output_size: the result's spatial sizes, or nothing where ``args`` end with scales.
        args: the function's further arguments.
    """
    if declines is not None and declines(input, output_size, *args):
        return NotImplemented
    spatial = input.shape[2:]
    original = getattr(nn_functions, names[len(spatial) - 1 if names[1:] else 0])
    known = autocast(input, original, output_size, *args)
    if known is not None:
        return known
    sizes = output_size or [_scaled(n, s) for n, s in zip(spatial, args[-1], strict=True)]
    for size in (*spatial, *sizes):
        torch._check(size > 0, lambda: "interpolate: input and output need one element at least")
    return laid_out(input, (*input.shape[:2], *sizes))


def _scaled(size: Any, scale: float) -> Any:
    """Return floor(size * scale); whole scales keep the size an exact expression."""
    return size * int(scale) if float(scale).is_integer() else torch.sym_int(size * scale)


def _factor(size: Any, count: Any, scale: float | None) -> int | None:
    """Return the whole number by which a dimension grows, if it is one."""
    if scale is not None:
        return int(scale) if float(scale).is_integer() and scale >= 1 else None
    return times(count, size) or None


def _scales(input: torch.Tensor, output_size: Any, scale_factors: Any) -> list[float | None]:
    """Return each dimension's scale, or None where it follows from the sizes."""
    if output_size or scale_factors is None:
        return [None] * (input.dim() - 2)
    return [float(scale) for scale in scale_factors]


_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
_NEAREST_EXACT = (
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)
_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")


@converter(
    *(f"torch._C._nn.{name}" for name in _NEAREST),
    meta=functools.partial(_output, _NEAREST, None),
)
def upsample_nearest(
    net: Network, input: torch.Tensor, output_size: Any, scale_factors: Any = None
) -> NetworkTensor:
    """Convert (N, C, *spatial) to (N, C, *larger or smaller)."""
    return _nearest(net, input, _scales(input, output_size, scale_factors), exact=False)


@converter(
    *(f"torch._C._nn.{name}" for name in _NEAREST_EXACT),
    meta=functools.partial(_output, _NEAREST_EXACT, None),
)
def upsample_nearest_exact(
    net: Network, input: torch.Tensor, output_size: Any, scale_factors: Any = None
) -> NetworkTensor:
    """Convert (N, C, *spatial) to (N, C, *larger or smaller)."""
    return _nearest(net, input, _scales(input, output_size, scale_factors), exact=True)


def _nearest(
    net: Network, input: torch.Tensor, scales: Sequence[float | None], exact: bool
) -> NetworkTensor:
    """Convert (N, C, *spatial) to (N, C, *sizes) by torch's rounding of the source's index.

    It is floor(i / scale), or with ``exact`` floor((i + 0.5) / scale), in float32.
    """
    x = net.tensor(input, net.output.dtype)
    before, after = input.shape, net.output.shape
    factors = [_factor(a, b, s) for a, b, s in zip(before[2:], after[2:], scales, strict=True)]
    if net.dtype_of(x).is_floating_point and all(
        factor is not None and factor <= _SAFE_FACTOR for factor in factors
    ):
        if all(factor == 1 for factor in factors):
            return x
        return net.add_resize(x, scales=[1.0, 1.0, *(float(factor or 1) for factor in factors)])
    indices: dict[int, Any] = {}
    for axis, scale in enumerate(scales, start=2):
        length, count = static_size(before[axis]), static_size(after[axis])
        if factors[axis - 2] == 1:
            continue
        if length is None or count is None:
            indices[axis] = _dynamic_indices(net, before[axis], after[axis], scale, exact)
        else:
            indices[axis] = _indices(length, count, scale, exact)
    return _strided(net, x, before, indices) or _gathered(net, x, indices)


def _indices(length: int, count: int, scale: float | None, exact: bool) -> torch.Tensor:
    """Let torch say which elements it takes of one dimension."""
    operator = (
        torch.ops.aten._upsample_nearest_exact1d if exact else torch.ops.aten.upsample_nearest1d
    )
    indices = torch.arange(length, dtype=torch.float32).reshape(1, 1, -1)
    result: torch.Tensor = operator.default(indices, [count], scale)
    return result.reshape(-1).to(torch.int32)


def _dynamic_indices(
    net: Network, length: Any, count: Any, scale: float | None, exact: bool
) -> NetworkTensor:
    """Compute in the network, and in float32 as torch does, which elements are taken."""
    with net.precision("sensitive"):
        size = net.tensor(length, torch.float32, 1)
        if scale is None:
            step = net.add_elementwise(size, net.tensor(count, torch.float32, 1), "DIV")
        else:
            step = net.tensor(1.0 / scale, torch.float32, 1)
        index = net.add_linspace([count], 0.5 if exact else 0.0, 1.0, torch.float32)
        index = net.add_unary(net.add_elementwise(index, step, "PROD"), "FLOOR")
        last = net.add_elementwise(size, net.tensor(1.0, torch.float32, 1), "SUB")
        return net.add_cast(net.add_elementwise(index, last, "MIN"), torch.int32)


def _strided(
    net: Network, x: NetworkTensor, sizes: Sequence[Any], indices: dict[int, Any]
) -> NetworkTensor | None:
    """Take evenly spaced elements as one slice, where all are."""
    start, shape, stride = [0] * len(sizes), list(sizes), [1] * len(sizes)
    for axis, index in indices.items():
        if not isinstance(index, torch.Tensor):
            return None
        steps = set(index.diff().tolist())
        if len(steps) > 1:
            return None
        start[axis], shape[axis] = int(index[0]), len(index)
        stride[axis] = steps.pop() if steps else 1
    return net.add_slice(x, start, shape, stride)


def _gathered(net: Network, x: NetworkTensor, indices: dict[int, Any]) -> NetworkTensor:
    for axis, index in indices.items():
        x = net.add_gather(x, index, axis)
    return x


def _smooth(
    net: Network,
    input: torch.Tensor,
    mode: str,
    output_size: Any,
    align_corners: bool,
    scale_factors: Any = None,
    *,
    antialias: bool = False,
) -> NetworkTensor:
    """Convert (N, C, *spatial) to (N, C, *sizes), linearly or by polynomials.

    A scale sets the distance of the samples even where the size was rounded down, as in torch.
    """
    scales = _scales(input, output_size, scale_factors)
    if not input.dtype.is_floating_point:
        raise UnsupportedArgumentError(
            f"dtype={input.dtype}: TensorRT interpolates floating types only"
        )
    if antialias:
        return _by_weights(net, input, scales, mode, align_corners, antialias)
    x = net.tensor(input, net.output.dtype)
    before, after = input.shape, net.output.shape
    if same_sizes(before, after) and all(s in (None, 1.0) for s in scales):
        return x
    modes: dict[str, Any] = {
        "mode": "CUBIC" if mode == "bicubic" else "LINEAR",
        "coordinates": "ALIGN_CORNERS" if align_corners else "HALF_PIXEL",
        "cubic_coefficient": -0.75 if mode == "bicubic" else None,
    }
    rows = zip(before[2:], after[2:], scales, strict=True)
    if align_corners or all(s is None or _is_exact(a, b, s) for a, b, s in rows):
        return net.add_resize(x, after, **modes)
    if any(is_symbolic(size) for size in (*before[2:], *after[2:])):
        return net.add_resize(x, scales=[1.0, 1.0, *(float(s or 1) for s in scales)], **modes)
    return _by_weights(net, input, scales, mode, align_corners, antialias)


def _needs_formula(input: torch.Tensor, output_size: Any, *args: Any) -> bool:
    """Return whether TensorRT would round the size of the result otherwise than torch.

    With plain sizes torch's weights are constants; with dynamic ones its own formula is left.
    """
    align_corners, scales = args[0], _scales(input, output_size, args[1] if args[1:] else None)
    spatial = input.shape[2:]
    after = output_size or [_scaled(n, s or 1.0) for n, s in zip(spatial, scales, strict=True)]
    rows = list(zip(spatial, after, scales, strict=True))
    if align_corners or all(s is None or _is_exact(a, b, s) for a, b, s in rows):
        return False
    return any(is_symbolic(size) for size in (*spatial, *after)) and any(
        s is None or s != float(np.float32(s)) for s in scales
    )


@converter(
    *(f"torch._C._nn.{name}" for name in _LINEAR),
    meta=functools.partial(_output, _LINEAR, _needs_formula),
)
def upsample_linear(net: Network, input: torch.Tensor, *args: Any) -> NetworkTensor:
    """Convert (N, C, *spatial) to (N, C, *larger or smaller)."""
    return _smooth(net, input, "bilinear", *args)


@converter(
    "torch._C._nn.upsample_bicubic2d",
    meta=functools.partial(_output, ["upsample_bicubic2d"], _needs_formula),
)
def upsample_bicubic(net: Network, input: torch.Tensor, *args: Any) -> NetworkTensor:
    """Convert (N, C, H, W) to (N, C, *larger or smaller)."""
    return _smooth(net, input, "bicubic", *args)


@converter(
    "torch._C._nn._upsample_bilinear2d_aa",
    meta=functools.partial(_output, ["_upsample_bilinear2d_aa"], None),
)
def upsample_bilinear_aa(net: Network, input: torch.Tensor, *args: Any) -> NetworkTensor:
    """Convert (N, C, H, W) to (N, C, *larger or smaller), antialiased."""
    return _smooth(net, input, "bilinear", *args, antialias=True)


@converter(
    "torch._C._nn._upsample_bicubic2d_aa",
    meta=functools.partial(_output, ["_upsample_bicubic2d_aa"], None),
)
def upsample_bicubic_aa(net: Network, input: torch.Tensor, *args: Any) -> NetworkTensor:
    """Convert (N, C, H, W) to (N, C, *larger or smaller), antialiased."""
    return _smooth(net, input, "bicubic", *args, antialias=True)


def upsample_lanczos_aa(net: Network, input: torch.Tensor, *args: Any) -> NetworkTensor:
    """Convert (N, C, H, W) to (N, C, *larger or smaller), antialiased."""
    return _smooth(net, input, "lanczos", *args, antialias=True)


if hasattr(nn_functions, "_upsample_lanczos2d_aa"):  # newer versions of PyTorch
    converter(
        "torch._C._nn._upsample_lanczos2d_aa",
        meta=functools.partial(_output, ["_upsample_lanczos2d_aa"], None),
    )(upsample_lanczos_aa)


def _is_exact(size: Any, count: Any, scale: float) -> bool:
    """Return whether a scale is the quotient of the sizes."""
    if is_symbolic(size) or is_symbolic(count):
        return float(scale).is_integer()
    return bool(size * scale == count)


def _by_weights(
    net: Network,
    input: torch.Tensor,
    scales: Sequence[float | None],
    mode: str,
    align_corners: bool,
    antialias: bool,
) -> NetworkTensor:
    """Convert (N, C, *spatial) to (N, C, *sizes) by products with the matrices of torch's weights.

    Infinity spreads as NaN, for even a weight of zero has its part in a product.
    """
    x = net.tensor(input, net.output.dtype)
    now = list(input.shape)
    for axis, scale in enumerate(scales, start=2):
        count, length = net.output.shape[axis], now[axis]
        if same_sizes([count], [length]) and scale in (None, 1.0):
            continue
        make = functools.partial(
            _weights, scale=scale, mode=mode, align_corners=align_corners, antialias=antialias
        )
        weights = _of_sizes(net, make, length, count)
        now[axis] = count
        if axis == len(now) - 1:
            x = net.add_matrix_multiply(x, weights, op1="TRANSPOSE", dtype=net.output.dtype)
            continue
        flat = [*now[:axis], length, math.prod(now[axis + 1 :])]
        x = net.add_matrix_multiply(weights, net.reshape(x, flat), dtype=net.output.dtype)
        x = net.reshape(x, now)
    return x


def _of_sizes(
    net: Network, make: Callable[[int, int], torch.Tensor], length: Any, count: Any
) -> torch.Tensor | NetworkTensor:
    """Return the weights (count, length) for sizes that may be dynamic: one of all matrices."""
    if not has_symbol((length, count)):
        return make(int(length), int(count))
    sizes, present = net.size_cases([length, count])
    longest, most = (max(column) for column in zip(*sizes, strict=True))
    if len(sizes) * longest * most > LARGEST_TABLE:
        raise UnsupportedArgumentError(
            f"output_size={count}: the weights for all sizes would be {len(sizes)} matrices of "
            f"{most} by {longest} numbers; declare fewer sizes"
        )
    table = torch.zeros(len(sizes), most, longest)
    for case, (n, m) in enumerate(sizes):
        table[case, :m, :n] = make(n, m)
    whole = net.add_gather(table, present)
    return net.reshape(net.add_slice(whole, [0, 0, 0], [1, count, length]), [count, length])


def _weights(
    length: int, count: int, scale: float | None, mode: str, align_corners: bool, antialias: bool
) -> torch.Tensor:
    """Let torch resize the unit vectors: (count, length)."""
    # Along the width, where torch cannot take them for images with the channels last.
    rows = torch.eye(length).reshape(1, length, 1, length)
    given: dict[str, Any] = (
        {"size": (1, count)} if scale is None else {"scale_factor": (1.0, scale)}
    )
    result = F.interpolate(
        rows, **given, mode=mode, align_corners=align_corners, antialias=antialias
    )
    return result.reshape(length, count).T.contiguous()


# -- sampling at given points ----------------------------------------------------------------------


# By torch's numbers.
_MODES = ("LINEAR", "NEAREST", "CUBIC")
_PADDINGS = ("FILL", "CLAMP", "REFLECT")


# The function too, as on a GPU PyTorch makes cuDNN's operator of it.
@converter(
    "torch.grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d", precision="sensitive"
)
def grid_sample(
    net: Network,
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> NetworkTensor:
    """Convert (N, C, *spatial) and points (N, *out, 2 or 3) in [-1, 1] to (N, C, *out).

    Points are computed in float32: in half precision they would miss by whole pixels.
    """
    return net.add_grid_sample(
        input,
        net.tensor(grid, input.dtype),
        _MODES[interpolation_mode],
        bool(align_corners),
        _PADDINGS[padding_mode],
    )


def _affine_meta(
    theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None
) -> torch.Tensor:
    # The original compares all sizes with each other, only to say that none is zero.
    del align_corners
    # Under autocast the product inside is in its type.
    device = theta.device.type
    cast = torch.is_autocast_enabled(device) and theta.dtype != torch.float64
    dtype = torch.get_autocast_dtype(device) if cast else theta.dtype
    return theta.new_empty((size[0], *size[2:], theta.shape[1]), dtype=dtype)


# The function, as PyTorch's own code decides on the size of the batch.
@converter("torch.nn.functional.affine_grid", precision="sensitive", meta=_affine_meta)
def affine_grid(
    net: Network, theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None
) -> NetworkTensor:
    """Convert (N, n, n + 1) to points (N, *spatial, n) for an image of ``size`` (N, C, *spatial).

    ``n`` is 2 or 3; the sizes of the image must be plain numbers.
    """
    spatial = [static_number("size", number) for number in size[2:]]
    n = len(spatial)
    same = torch.eye(n, n + 1).unsqueeze(0)
    points = torch.affine_grid_generator(same, [1, 1, *spatial], bool(align_corners)).reshape(-1, n)
    points = torch.cat([points, torch.ones(len(points), 1)], 1)
    moved = net.add_matrix_multiply(points, theta, "NONE", "TRANSPOSE", dtype=theta.dtype)
    return net.reshape(net.tensor(moved, net.output.dtype), net.output.shape)
