"""Programs printed, and compared layer by layer."""

import numpy as np
import pytest
import torch
from torch import nn

from t2t.backend import trt
from t2t.errors import VerificationError
from t2t.reference import capture, compare_layers
from tests.reference.rows import new_network, out


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


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_it_prints_one_line_for_each_layer(net):
    program = capture(network_of(net))
    lines = str(program).splitlines()
    assert lines[0] == "input x: float32[-1, 3, 8, 8]"
    assert lines[-1] == "output add_1: float32[-1, 2, 6, 6]"
    assert len(lines) == len(program.layers) + 2
    conv = next(line for line in lines if line.startswith("conv/conv2d"))
    assert conv.split(None, 1)[1] == (
        "CONVOLUTION(num_output_maps=4, kernel_size_nd=(3, 3)) -> fp32[-1, 4, 6, 6] <- x"
    )
    assert repr(program) == f"Program({len(program.layers)} layers, x -> add_1)"


def test_attributes_that_are_not_the_default_are_printed():
    n = new_network()
    x = n.add_input("x", trt.float16, (2, 3, 8, 8))
    conv = n.add_convolution_nd(x, 4, (3, 3), np.ones((4, 3, 3, 3), np.float16))
    conv.padding_nd, conv.stride_nd = (1, 1), (2, 1)
    turned = n.add_shuffle(out(conv))
    turned.first_transpose = (0, 2, 1, 3)
    total = n.add_reduce(out(turned), trt.ReduceOperation.SUM, 10, False)
    n.mark_output(out(total))
    text = str(capture(n))
    assert "stride_nd=(2, 1), pre_padding=(1, 1), post_padding=(1, 1)) -> fp16[2, 4, 4, 8]" in text
    assert "SHUFFLE(first_transpose=(0, 2, 1, 3)) ->" in text
    assert "REDUCE(op=SUM, axes=(1, 3), keep_dims=False) -> fp16[2, 4]" in text
    assert "dilation_nd" not in text


def test_equal_programs_are_equal(net):
    report = compare_layers(capture(network_of(net)), capture(network_of(net)), [X])
    assert report.ok
    assert report.first is None
    assert all(entry.max_rel_error == 0 for entry in report.layers)
    assert "all 8 layers are within 0.001" in str(report)


def test_the_first_spoiled_layer_is_found(net):
    spoiled = capture(network_of(net, spoiled=("last.0/conv2d",)))
    report = compare_layers(spoiled, capture(network_of(net)), {"x": X})
    assert not report.ok
    assert report.first.name == "last.0/conv2d"
    assert report.first.kind == "CONVOLUTION"
    assert report.first.line == "net.py:13"
    assert 1e-3 < report.first.max_rel_error < 0.011
    assert report.worst(1)[0].max_rel_error == max(e.max_rel_error for e in report.layers)
    text = str(report)
    assert text.startswith("first out of tolerance (0.001): last.0/conv2d (CONVOLUTION)")
    assert "net.py:13" in text


def test_half_against_float_by_layer_name(net):
    half = capture(network_of(net, np.float16))
    report = compare_layers(half, capture(network_of(net)), [X], tolerance=1e-2)
    assert report.ok
    names = {entry.name for entry in report.layers}
    assert {"conv/conv2d", "act/relu", "add", "last.1/tanh", "add_1"} <= names
    assert report.unmatched == 2
    errors = {entry.name: entry.max_rel_error for entry in report.layers}
    assert 0 < errors["conv/conv2d"] < 1e-2


def test_a_program_against_its_module_by_module_path(net):
    program = capture(network_of(net))
    report = compare_layers(program, net, [X], tolerance=1e-5)
    assert report.ok, str(report)
    assert [entry.name for entry in report.layers] == [
        "conv/conv2d",
        "act/relu",
        "last.0/conv2d",
        "last.1/tanh",
        "act/relu_1",
        "add_1",
    ]
    spoiled = capture(network_of(net, spoiled=("conv/conv2d",)))
    assert compare_layers(spoiled, net, [X]).first.name == "conv/conv2d"
    assert not net.conv._forward_hooks


def test_a_nan_is_out_of_tolerance(net):
    network = network_of(net)
    bad = X.clone()
    bad[0, 0, 0, 0] = torch.nan
    program = capture(network)
    other = capture(network_of(net, spoiled=("conv/conv2d",)))
    assert compare_layers(program, program, [bad]).ok
    first = compare_layers(other, program, [bad]).first
    assert first.name == "conv/conv2d"


def test_programs_without_a_common_layer_are_refused(net):
    n = new_network()
    x = n.add_input("x", trt.float32, (-1, 3, 8, 8))
    n.mark_output(out(n.add_identity(x)))
    with pytest.raises(VerificationError, match="no layer in common"):
        compare_layers(capture(n), capture(network_of(net)), [X])
