"""Programs printed."""

import numpy as np
import pytest
import torch

from t2t.backend import trt
from t2t.reference import capture
from tests.networks import Net, network_of
from tests.reference.rows import new_network, out


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


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
