"""Programs printed and drawn."""

import html.parser
import re

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


def test_the_dot_drawing_joins_boxes_and_frames_modules(net):
    program = capture(network_of(net))
    dot = program.to_dot()
    boxes = re.findall(r'^ *(n\d+) \[label="([^"]*)"', dot, re.M)
    drawn = [layer for layer in program.layers if layer.kind != "CONSTANT"]
    assert len(boxes) == len(drawn) + 2
    number = {label: key for key, label in boxes}
    conv = next(key for label, key in number.items() if label.startswith("conv"))
    relu = next(key for label, key in number.items() if label.startswith("act\\nrelu\\n"))
    assert f'{conv} -> {relu} [label="[-1, 4, 6, 6]"]' in dot
    assert 'label="last"; color' in dot
    assert dot.count("{") == dot.count("}")
    assert "constant [1, 1, 1, 1]" in dot


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.count = [], {}

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_holds_a_box_for_each_layer_and_nothing_from_elsewhere(net):
    program = capture(network_of(net))
    page = program.to_html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.count["rect"] == len([x for x in program.layers if x.kind != "CONSTANT"]) + 2
    assert "script" not in tags.count
    assert not re.findall(r"(?:src|href)=", page)
    assert "net.py:12" in page


def test_names_are_escaped():
    n = new_network()
    x = n.add_input('<x "1">', trt.float32, (2,))
    n.mark_output(out(n.add_identity(x)))
    program = capture(n)
    assert r"<x \"1\">" in program.to_dot()
    assert "&lt;x &quot;1&quot;&gt;" in program.to_html()
