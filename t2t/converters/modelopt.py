"""Rounding as NVIDIA's ModelOpt has it; registered where that package is loaded.

Its quantizers keep ``amax``, the largest value of a range, which becomes 127 in int8 and 448 in
float8. As in its own ONNX export the network divides by ``amax / 127``, where PyTorch multiplies by
``127 / amax``: a value that lies between two steps to the last bit may become the other one.
"""

from __future__ import annotations

from typing import Any

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter
from t2t.rounding import modelopt_steps


def _output(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the fake result; what has no layer is left to its own arithmetic."""
    steps = modelopt_steps(inputs, *args, **kwargs)
    return NotImplemented if steps is None else torch.empty_like(inputs)


# The function, for on a CPU it is arithmetic in which no layer would be recognised.
@converter(
    "modelopt.torch.quantization.tensor_quant._tensor_quant", precision="sensitive", meta=_output
)
def tensor_quant(
    net: Network,
    inputs: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> NetworkTensor:
    """Convert any shape to the same shape: rounded to int8, and back."""
    return _rounded(net, inputs, amax, num_bits, unsigned, narrow_range)


@converter("tensorrt::quantize_op", precision="sensitive")
def quantize_op(
    net: Network,
    input: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int,
    exponent_bits: int,
    unsigned: bool,
    narrow_range: bool,
) -> NetworkTensor:
    """Convert any shape to the same shape: rounded to int8 or float8 (E4M3), and back."""
    return _rounded(net, input, amax, num_bits, unsigned, narrow_range, exponent_bits)


def _rounded(net: Network, x: torch.Tensor, *numbers: Any) -> NetworkTensor:
    steps = modelopt_steps(x, *numbers)
    if steps is None:
        raise UnsupportedArgumentError(
            "a quantizer of ModelOpt's with a range that TensorRT's layers do not have: supported: "
            "8 bits (int8 from -128 to 127, or E4M3), and a constant amax, positive, of one number "
            "or one for each channel"
        )
    y = net.add_quantize(x, steps.scale, steps.dtype, steps.axis)
    y = net.add_dequantize(y, steps.scale, steps.axis)
    return net.cast(y, net.compute_dtype(x.dtype))
