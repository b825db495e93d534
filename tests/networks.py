"""Small networks made with the raw TensorRT API, for tests of what comes after the network."""

from typing import Any

import numpy as np
from torch import nn

from t2t import backend
from t2t.backend import trt
from tests.reference.rows import new_network, out

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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU()
        self.last = nn.Sequential(nn.Conv2d(4, 2, 1), nn.Tanh())

    def forward(self, x):
        return self.last(self.act(self.conv(x)) + 1.0) + self.act(x[:, :2, 1:-1, 1:-1])


def network_of(net, dtype=np.float32, spoiled=()):
    """Build Net's network by hand; layers named in ``spoiled`` get other weights."""

    def weights(name, value):
        scale = 1.01 if name in spoiled else 1.0
        return (value.detach().numpy() * scale).astype(dtype)

    def named(layer, name, line):
        layer.name, layer.metadata = name, line
        out(layer).name = name
        return out(layer)

    n = new_network()
    x = n.add_input("x", trt.float32, (-1, 3, 8, 8))
    low = out(n.add_cast(x, trt.float16)) if dtype == np.float16 else x
    w, b = weights("conv/conv2d", net.conv.weight), weights("", net.conv.bias)
    conv = named(n.add_convolution_nd(low, 4, (3, 3), w, b), "conv/conv2d", "net.py:12")
    relu = named(n.add_activation(conv, trt.ActivationType.RELU), "act/relu", "net.py:12")
    one = out(n.add_constant((1, 1, 1, 1), np.ones((1, 1, 1, 1), dtype)))
    plus = named(n.add_elementwise(relu, one, trt.ElementWiseOperation.SUM), "add", "net.py:12")
    w, b = (weights("last.0/conv2d", net.last[0].weight), weights("", net.last[0].bias))
    last = named(n.add_convolution_nd(plus, 2, (1, 1), w, b), "last.0/conv2d", "net.py:13")
    tanh = named(n.add_activation(last, trt.ActivationType.TANH), "last.1/tanh", "net.py:13")
    part = n.add_slice(low, (0, 0, 1, 1), (1, 2, 6, 6), (1, 1, 1, 1))
    part.name = "getitem"
    again = named(n.add_activation(out(part), trt.ActivationType.RELU), "act/relu_1", "net.py:14")
    total = named(
        n.add_elementwise(tanh, again, trt.ElementWiseOperation.SUM), "add_1", "net.py:14"
    )
    result = out(n.add_cast(total, trt.float32)) if dtype == np.float16 else total
    n.mark_output(result)
    return n
