"""Batch, instance, group, layer, root mean square and local response norms, and unit vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._arguments import agree, dims, static_number
from t2t.converters._channels import affine, agrees, like, normalized, normalized_by
from t2t.converters._spatial import laid_out
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter


def _instance_norm_output(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if use_input_stats:
        torch._check(
            math.prod(input.shape[2:]) != 1,
            lambda: "instance_norm: of one element per channel there is no variance",
        )
    return _instance_norm_operator_output(
        input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps
    )


# The function, for PyTorch makes a batch norm of it, of as many channels as samples have together.
@converter("torch.nn.functional.instance_norm", precision="sensitive", meta=_instance_norm_output)
def instance_norm(
    net: Network,
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> NetworkTensor:
    """Convert normalization of each channel of each sample, or by running statistics."""
    del momentum
    if not use_input_stats and running_mean is not None and running_var is not None:
        return normalized_by(net, input, running_mean, running_var, weight, bias, eps)
    return normalized(net, input, range(2, input.ndim), weight, bias, eps)


def _instance_norm_operator_output(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    *_others: Any,
) -> Any:
    given = running_mean is not None and running_var is not None
    # With both, it writes the running statistics, which only operators do in a way that is seen.
    if given == use_input_stats or not agrees(input, running_mean, running_var, weight, bias):
        return NotImplemented
    return like(input, contiguous=True)


# What the function above calls, and models that have it from elsewhere. PyTorch 2.8 writes running
# statistics even where it only reads them: what they are already.
@converter("torch.instance_norm", precision="sensitive", meta=_instance_norm_operator_output)
def instance_norm_operator(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> NetworkTensor:
    """Convert `torch.nn.functional.instance_norm` by the name of its operator."""
    del momentum, cudnn_enabled
    return instance_norm(
        net, input, running_mean, running_var, weight, bias, use_input_stats, eps=eps
    )


@converter("aten::native_group_norm", precision="sensitive")
def group_norm(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: Any,  # noqa: N803  torch's name
    C: Any,  # noqa: N803  torch's name
    HxW: Any,  # noqa: N803  torch's name
    group: int,
    eps: float,
) -> tuple[NetworkTensor, None, None]:
    """Convert normalization of groups of channels, without the means and deviations."""
    del N, C, HxW
    return _group_norm(net, input, group, weight, bias, eps), None, None


def _group_norm(
    net: Network,
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> NetworkTensor:
    channels = static_number("channels", input.shape[1])
    if num_groups == channels:
        return normalized(net, input, range(2, input.ndim), weight, bias, eps)
    if input.ndim == 2:
        grouped = net.reshape(input, (input.shape[0], num_groups, channels // num_groups))
        ones, zeros = torch.ones(1, num_groups, 1), torch.zeros(1, num_groups, 1)
        flat = net.reshape(net.add_normalization(grouped, ones, zeros, [2], eps), input.shape)
        return affine(net, flat, weight, bias)
    sizes = (1, num_groups, *[1] * (input.ndim - 2))
    # With one group the axes say that channels belong together; with more, the groups do.
    axes = range(1 if num_groups == 1 else 2, input.ndim)
    result = net.add_normalization(
        input, torch.ones(sizes), torch.zeros(sizes), axes, eps, num_groups
    )
    return affine(net, result, weight, bias)


def _last_output(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    del eps
    sizes = tuple(normalized_shape)
    fits = 0 < len(sizes) <= input.ndim and all(
        agree((a, b)) for a, b in zip(input.shape[-len(sizes) :], sizes, strict=True)
    )
    given = (x for x in (weight, bias) if x is not None)
    fits = fits and all(same_sizes(x.shape, sizes) for x in given)
    return like(input, contiguous=True) if fits else NotImplemented


def _layer_norm_output(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    result = _last_output(input, normalized_shape, weight, bias)
    if result is NotImplemented:
        # What does not go together, torch is to say.
        return torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    kept = input.ndim - len(normalized_shape)
    statistics = input.new_empty((*input.shape[:kept], *[1] * len(normalized_shape)))
    return result, statistics, torch.empty_like(statistics)


@converter("aten::native_layer_norm", precision="sensitive", meta=_layer_norm_output)
def layer_norm(
    net: Network,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[NetworkTensor, None, None]:
    """Convert normalization over the last dimensions, without the means and deviations."""
    sizes = tuple(static_number("normalized_shape", size) for size in normalized_shape)
    scale = torch.ones(sizes) if weight is None else weight
    shift = torch.zeros(sizes) if bias is None else bias
    factor, offset = (net.tensor(x, rank=input.ndim) for x in (scale, shift))
    axes = range(input.ndim - len(sizes), input.ndim)
    return net.add_normalization(input, factor, offset, axes, eps), None, None


def _rms_output(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    return _last_output(input, normalized_shape, weight, None, eps)


# The function, as fewer layers than its operators, and in float32 as a whole.
@converter("torch.nn.functional.rms_norm", precision="sensitive", meta=_rms_output)
def rms_norm(
    net: Network,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> NetworkTensor:
    """Convert ``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimensions."""
    rank = input.ndim
    axes = range(rank - len(normalized_shape), rank)
    # torch computes half types in float32, also their default epsilon.
    smallest = torch.finfo(torch.float32).eps if eps is None else float(eps)
    x = net.tensor(input)
    mean = net.add_reduce(net.add_elementwise(x, x, "PROD"), "AVG", axes, keep_dims=True)
    mean = net.add_elementwise(mean, net.tensor(smallest, input.dtype, rank), "SUM")
    result = net.add_elementwise(x, net.add_unary(mean, "SQRT"), "DIV")
    return result if weight is None else net.add_elementwise(result, weight, "PROD")


# -- local response and unit vectors ---------------------------------------------------------------


def _response_output(
    input: torch.Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    # The limits of TensorRT's layer; beyond them the function's own operators are converted.
    fits = size in range(1, 16, 2) and 0.01 <= beta <= 1e5 and 1e-5 <= k <= 1e10
    return like(input) if fits and abs(alpha) <= 1e20 and input.ndim >= 3 else NotImplemented


# The function, which is one layer.
@converter("torch.nn.functional.local_response_norm", precision="sensitive", meta=_response_output)
def local_response_norm(
    net: Network,
    input: torch.Tensor,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> NetworkTensor:
    """Convert ``x / (k + alpha * mean(x ** 2 of neighbouring channels)) ** beta``."""
    if not input.is_floating_point():
        raise UnsupportedArgumentError(
            f"dtype={input.dtype}: TensorRT's local response norm is of floating types only"
        )
    parameters = (size, float(alpha), float(beta), float(k))
    if input.ndim == 4:
        return net.add_lrn(input, *parameters)
    # The layer has four dimensions at least, and takes the third from the end for channels.
    batch, channels, *space = input.shape
    planes = net.reshape(input, (batch, channels, space[0], math.prod(space[1:])))
    return net.reshape(net.add_lrn(planes, *parameters), input.shape)


def _normalize_output(
    input: torch.Tensor,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: torch.Tensor | None = None,
) -> Any:
    del dim, eps
    plain = out is None and isinstance(p, int | float) and input.ndim > 0
    return like(input) if plain else NotImplemented


# The function, as fewer layers than its operators, and in float32 as a whole.
@converter("torch.nn.functional.normalize", precision="sensitive", meta=_normalize_output)
def normalize(
    net: Network,
    input: torch.Tensor,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: torch.Tensor | None = None,
) -> NetworkTensor:
    """Convert ``x / max(norm(x), eps)``, with the p-norm over one or more dimensions."""
    del out
    length = _norm(net, net.tensor(input), float(p), dims(dim, input.ndim))
    length = net.add_elementwise(length, net.tensor(eps, input.dtype, input.ndim), "MAX")
    return net.add_elementwise(input, length, "DIV")


def _norm(net: Network, x: NetworkTensor, p: float, axes: Sequence[int]) -> NetworkTensor:
    """Return the p-norm over some axes, which are kept with size 1."""
    if p == 2:
        square = net.add_elementwise(x, x, "PROD")
        return net.add_unary(net.add_reduce(square, "SUM", axes, keep_dims=True), "SQRT")
    size = net.add_unary(x, "ABS")
    if p in (1, math.inf, -math.inf):
        kind = {1: "SUM", math.inf: "MAX", -math.inf: "MIN"}[p]
        return net.add_reduce(size, kind, axes, keep_dims=True)
    number = functools.partial(net.tensor, dtype=net.dtype_of(x), rank=len(x.shape))
    if p == 0:
        zero = net.add_elementwise(x, number(0.0), "EQUAL")
        return net.add_reduce(
            net.add_select(zero, number(0.0), number(1.0)), "SUM", axes, keep_dims=True
        )
    total = net.add_elementwise(size, number(p), "POW")
    total = net.add_reduce(total, "SUM", axes, keep_dims=True)
    return net.add_elementwise(total, number(1 / p), "POW")


# -- batch normalization ---------------------------------------------------------------------------


def _batch_norm_output(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    *_numbers: float,
    **_named: float,
) -> Any:
    if training or running_mean is None or running_var is None:
        # It may write the running statistics, which only operators do in a way that is seen.
        return NotImplemented
    if not agrees(input, running_mean, running_var, weight, bias):
        return NotImplemented
    return laid_out(input, input.shape)


# The function, for a trace takes half as long as with its operator, and models are full of it.
@converter("torch.nn.functional.batch_norm", meta=_batch_norm_output)
def batch_norm(
    net: Network,
    input: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> NetworkTensor:
    """Convert batch norm by running statistics to one scale layer.

    With ``training=True`` its operator arrives instead, see `batch_norm_train`.
    """
    del training, momentum
    return normalized_by(net, input, running_mean, running_var, weight, bias, eps)


@converter("aten::_native_batch_norm_legit_no_training")
def batch_norm_eval(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[NetworkTensor, None, None]:
    """Convert batch norm by running statistics; torch's other results are empty."""
    del momentum
    return normalized_by(net, input, running_mean, running_var, weight, bias, eps), None, None


@converter("aten::_native_batch_norm_legit.no_stats", precision="sensitive")
def batch_norm_train(
    net: Network,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[NetworkTensor, None, None]:
    """Convert batch norm by the statistics of the batch itself."""
    del training, momentum
    axes = [axis for axis in range(input.ndim) if axis != 1]
    return normalized(net, input, axes, weight, bias, eps), None, None
