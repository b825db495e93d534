"""Activations that are not made of arithmetic alone, softmax, and dropout, which is left out."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters._arguments import positive_dim
from t2t.converters._compute import operand, working_dtype
from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.registry import converter

FLOAT_MAX = torch.finfo(torch.float32).max

LINEAR = 20.0
"""From here on softplus(x) and x are the same number in float32. torch's default threshold."""


@converter("aten::relu")
def relu(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert max(x, 0) of floats or integers."""
    working = working_dtype(self.dtype)
    result = net.add_activation(net.tensor(self, working), "RELU")
    return net.add_cast(result, net.compute_dtype(self.dtype))


@converter("aten::hardtanh")
def hardtanh(
    net: Network, self: torch.Tensor, min_val: float = -1, max_val: float = 1
) -> NetworkTensor:
    """Convert clipping to two bounds; relu6 arrives here too."""
    if self.dtype.is_floating_point and all(abs(v) <= FLOAT_MAX for v in (min_val, max_val)):
        return net.add_activation(self, "CLIP", alpha=float(min_val), beta=float(max_val))
    dtype, number = working_dtype(self.dtype), float if self.dtype.is_floating_point else int
    x = net.tensor(self, dtype)
    for bound, kind in ((min_val, "MAX"), (max_val, "MIN")):
        limit = operand(net, number(bound), self.dtype)
        x = net.add_elementwise(x, net.tensor(limit, dtype, self.ndim), kind)
    return net.add_cast(x, net.compute_dtype(self.dtype))


@converter("aten::leaky_relu")
def leaky_relu(net: Network, self: torch.Tensor, negative_slope: float = 0.01) -> NetworkTensor:
    """Convert x where positive, ``negative_slope * x`` elsewhere."""
    return net.add_activation(self, "LEAKY_RELU", alpha=float(negative_slope))


@converter("aten::elu")
def elu(
    net: Network,
    self: torch.Tensor,
    alpha: float = 1,
    scale: float = 1,
    input_scale: float = 1,
) -> NetworkTensor:
    """Convert ``scale`` times x where positive, ``alpha * (exp(input_scale * x) - 1)`` elsewhere.

    selu arrives here too; it and elu are one layer.
    """
    if input_scale == 1 and scale == 1:
        return net.add_activation(self, "ELU", alpha=float(alpha))
    if input_scale == 1:
        return net.add_activation(self, "SELU", alpha=float(alpha), beta=float(scale))
    return _scaled_elu(net, self, float(alpha), float(scale), float(input_scale))


def _scaled_elu(
    net: Network, x: torch.Tensor, alpha: float, scale: float, input_scale: float
) -> NetworkTensor:
    scaled = net.add_elementwise(x, input_scale, "PROD")
    if input_scale > 0:
        negative = net.add_activation(scaled, "ELU", alpha=alpha * scale)
    else:
        # The signs of x and of the scaled x differ: an ELU would take its other branch.
        rank = len(x.shape)
        grown = net.add_elementwise(net.add_unary(scaled, "EXP"), net.tensor(1.0, rank=rank), "SUB")
        negative = net.add_elementwise(grown, net.tensor(alpha * scale, rank=rank), "PROD")
    positive = x if scale == 1 else net.add_elementwise(x, scale, "PROD")
    # NaN is not greater than 0, and stays NaN through the exponential.
    return net.add_select(net.add_elementwise(x, 0, "GREATER"), positive, negative)


@converter("aten::gelu")
def gelu(net: Network, self: torch.Tensor, *, approximate: str = "none") -> NetworkTensor:
    """Convert x times the normal distribution function of x, exact or by tanh."""
    kinds = {"none": "GELU_ERF", "tanh": "GELU_TANH"}
    if approximate not in kinds:
        raise UnsupportedArgumentError(f"approximate={approximate!r}: supported: 'none', 'tanh'")
    return net.add_activation(self, kinds[approximate])


@converter("aten::sigmoid")
def sigmoid(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``1 / (1 + exp(-x))``; integers become floats."""
    return net.add_activation(net.tensor(self, net.output.dtype), "SIGMOID")


@converter("aten::tanh")
def tanh(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert the hyperbolic tangent; integers become floats."""
    return net.add_activation(net.tensor(self, net.output.dtype), "TANH")


@converter("aten::silu")
def silu(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``x * sigmoid(x)``."""
    return net.add_elementwise(self, net.add_activation(self, "SIGMOID"), "PROD")


@converter("aten::hardsigmoid")
def hardsigmoid(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``relu6(x + 3) / 6``."""
    return net.add_activation(self, "HARD_SIGMOID", alpha=1 / 6, beta=0.5)


@converter("aten::hardswish")
def hardswish(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``x * relu6(x + 3) / 6``."""
    return net.add_elementwise(self, hardsigmoid(net, self), "PROD")


@converter("aten::softplus", precision="sensitive")
def softplus(
    net: Network, self: torch.Tensor, beta: float = 1, threshold: float = 20
) -> NetworkTensor:
    """Convert ``log(1 + exp(beta * x)) / beta``, and x where ``beta * x`` exceeds the threshold."""
    curve = net.add_activation(self, "SOFTPLUS", alpha=1 / float(beta), beta=float(beta))
    scaled = self if beta == 1 else net.add_elementwise(self, float(beta), "PROD")
    # TensorRT does not say that its exponential cannot overflow, so its curve ends, at the latest,
    # where it has become a straight line; torch's own answer is infinite above thresholds of 88.
    linear = net.add_elementwise(
        scaled, net.tensor(min(float(threshold), LINEAR), self.dtype, self.ndim), "GREATER"
    )
    return net.add_select(linear, self, curve)


@converter("aten::log_sigmoid_forward", precision="sensitive")
def log_sigmoid(net: Network, self: torch.Tensor) -> tuple[NetworkTensor, None]:
    """Convert ``log(sigmoid(x))``; torch's second result is for the backward pass."""
    curve = net.add_activation(self, "SOFTPLUS", alpha=-1.0, beta=-1.0)
    linear = net.add_elementwise(self, -LINEAR, "LESS")
    return net.add_select(linear, self, curve), None


@converter("aten::mish", precision="sensitive")
def mish(net: Network, self: torch.Tensor) -> NetworkTensor:
    """Convert ``x * tanh(softplus(x))``."""
    # tanh(20) is 1: a larger exponential can only overflow.
    bounded = net.add_elementwise(self, LINEAR, "MIN")
    gate = net.add_activation(net.add_activation(bounded, "SOFTPLUS", alpha=1.0, beta=1.0), "TANH")
    return net.add_elementwise(self, gate, "PROD")


@converter("aten::softshrink")
def softshrink(net: Network, self: torch.Tensor, lambd: float = 0.5) -> NetworkTensor:
    """Convert a step of ``lambd`` towards zero, and zero for what is nearer."""
    clipped = net.add_activation(self, "CLIP", alpha=-float(lambd), beta=float(lambd))
    return net.add_elementwise(self, clipped, "SUB")


@converter("aten::threshold")
def threshold(net: Network, self: torch.Tensor, threshold: float, value: float) -> NetworkTensor:
    """Convert x, and ``value`` where x is at most ``threshold``."""
    if threshold == 0 and value == 0:
        return relu(net, self)
    dtype, number = working_dtype(self.dtype), float if self.dtype.is_floating_point else int
    x = net.tensor(self, dtype)
    low = _at_most(net, x, operand(net, number(threshold), self.dtype))
    new = net.tensor(operand(net, number(value), self.dtype), dtype, self.ndim)
    chosen = net.add_select(low, new, x)
    return net.add_cast(chosen, net.compute_dtype(self.dtype))


def _at_most(net: Network, x: NetworkTensor, bound: TensorLike) -> NetworkTensor:
    """Return x <= bound, which no NaN is; TensorRT has only "less" and "equal"."""
    limit = net.tensor(bound, net.dtype_of(x), len(x.shape))
    return net.add_elementwise(
        net.add_elementwise(x, limit, "LESS"), net.add_elementwise(x, limit, "EQUAL"), "OR"
    )


@converter("aten::_prelu_kernel")
def prelu(net: Network, self: torch.Tensor, weight: torch.Tensor) -> NetworkTensor:
    """Convert x where positive, ``weight * x`` elsewhere; the weight broadcasts, or is traced."""
    return net.add_parametric_relu(self, weight)


# The function, for its operator draws random numbers, and gets a tensor for them.
@converter("torch.rrelu")
def rrelu(
    net: Network,
    input: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> NetworkTensor:
    """Convert a leaky relu of the mean slope; random slopes (``training=True``) are refused."""
    del generator
    if training:
        raise UnsupportedArgumentError(
            "training=True: an engine cannot draw random slopes; call .eval() on the module"
        )
    return net.add_activation(input, "LEAKY_RELU", alpha=(float(lower) + float(upper)) / 2)


@converter("aten::rrelu_with_noise_functional")
def rrelu_with_noise(
    net: Network,
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[NetworkTensor, None]:
    """Convert as `rrelu`; the noise, torch's second result, has no meaning without training."""
    del noise
    return rrelu(net, self, lower, upper, training, generator), None


# -- softmax and dropout ---------------------------------------------------------------------------


@converter("aten::_softmax", precision="sensitive")
def softmax(net: Network, self: torch.Tensor, dim: int, half_to_float: bool) -> NetworkTensor:
    """Convert softmax over one dimension, computed in the result's type."""
    del half_to_float  # The result's type says it.
    axis = positive_dim(dim, self.ndim)
    x = net.tensor(self, net.output.dtype)
    if self.ndim > 1:
        return net.add_softmax(x, axis)
    # TensorRT's softmax has no vectors.
    row = net.reshape(x, (1, *(self.shape or (1,))))
    return net.reshape(net.add_softmax(row, 1), net.output.shape)


@converter("aten::native_dropout")
def native_dropout(
    net: Network, input: torch.Tensor, p: float, train: bool | None
) -> tuple[NetworkTensor, None]:
    """Convert dropout that keeps everything to nothing; the mask is for the backward pass.

    In eval mode torch calls no operator at all; where it makes the mask by others, those are
    refused as they draw random numbers.
    """
    if train and p != 0:
        raise UnsupportedArgumentError(
            f"p={p}, train=True: an engine cannot draw random numbers; call .eval() on the module"
        )
    return net.tensor(input), None
