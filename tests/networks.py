"""Small networks made with the raw TensorRT API, for tests of what comes after the network."""

from typing import Any

import numpy as np

from t2t import backend
from t2t.backend import trt

RANGE = {"x": ((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}
"""The profile of `conv_relu`."""


def weights(seed: int = 0) -> np.ndarray:
    """Give the kernel (4, 3, 3, 3) of `conv_relu`."""
    return np.random.default_rng(seed).standard_normal((4, 3, 3, 3)).astype(np.float32)


def conv_relu(builder: Any, seed: int = 0, kernel: np.ndarray | None = None) -> Any:
    """x (N, 3, 8, 8) -> y (N, 4, 6, 6) = relu(conv(x)), N is 1 to 4; kernel given or of a seed."""
    network = backend.create_network(builder)
    x = network.add_input("x", trt.float32, (-1, 3, 8, 8))
    conv = network.add_convolution_nd(x, 4, (3, 3), weights(seed) if kernel is None else kernel)
    relu = network.add_activation(conv.get_output(0), trt.ActivationType.RELU)
    relu.get_output(0).name = "y"
    network.mark_output(relu.get_output(0))
    return network
