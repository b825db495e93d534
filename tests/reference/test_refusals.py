"""What the reference executor refuses, and what its errors say."""

import numpy as np
import pytest
import torch

from t2t.backend import trt
from t2t.errors import ShapeError, UnsupportedLayerError
from t2t.reference import Program, capture
from tests.reference.rows import const, new_network, out
from tests.reference.test_program import conv_net


def test_unknown_kinds_are_refused_by_name_and_version():
    program = capture(conv_net())
    layers = list(program.layers)
    layers[1] = type(layers[1])(
        kind="TELEPORT",
        name="net/new",
        attributes={},
        inputs=layers[1].inputs,
        outputs=layers[1].outputs,
        types=layers[1].types,
        shapes=layers[1].shapes,
    )
    later = Program(program.inputs, program.outputs, layers, program.version)
    with pytest.raises(UnsupportedLayerError, match=r"'net/new' is of kind TELEPORT.*tensorrt"):
        later.run([torch.ones(1, 3, 8, 8)])


def test_a_mixture_of_experts_is_refused_by_name():
    network = new_network()
    x = network.add_input("x", trt.float16, (2, 3, 16))
    chosen = network.add_input("chosen", trt.int32, (2, 3, 2))
    scores = network.add_input("scores", trt.float16, (2, 3, 2))
    shapes = ((4, 16, 32), (4, 16, 32), (4, 32, 16))
    weights = [network.add_input(f"w{i}", trt.float16, shape) for i, shape in enumerate(shapes)]
    experts = network.add_moe(x, chosen, scores)
    experts.set_gated_weights(*weights, trt.MoEActType.SILU)
    experts.name = "experts"
    network.mark_output(out(experts))
    with pytest.raises(UnsupportedLayerError, match="'experts' is of kind MOE"):
        capture(network)


def test_packed_attention_is_refused_by_name():
    network = new_network()
    q, k, v = (network.add_input(name, trt.float32, (5, 4, 8)) for name in "qkv")
    lengths = network.add_input("lengths", trt.int32, (3,))
    layer = network.add_attention_v2(
        q, k, v, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE
    )
    for side in ("query", "key_value"):
        setattr(layer, f"{side}_form", trt.AttentionIOForm.PACKED_NHD)
        setattr(layer, f"{side}_lengths", lengths)
    network.mark_output(layer.get_output(0))
    program = capture(network)
    given = [torch.ones(5, 4, 8)] * 3 + [torch.tensor([0, 2, 5], dtype=torch.int32)]
    with pytest.raises(UnsupportedLayerError, match="packed sequences"):
        program.run(given)


def test_an_assertion_says_its_message():
    network = new_network()
    x = network.add_input("x", trt.float32, (-1,))
    size = out(network.add_shape(x))
    holds = network.add_elementwise(
        size, const(network, [3], np.int64), trt.ElementWiseOperation.EQUAL
    )
    network.add_assertion(out(holds), "x must have three elements")
    network.mark_output(out(network.add_identity(x)))
    program = capture(network)
    assert (
        program.run([torch.ones(3)])["(Unnamed Layer* 4) [Identity]_output"].tolist() == [1.0] * 3
    )
    with pytest.raises(ShapeError, match="x must have three elements"):
        program.run([torch.ones(4)])


def test_errors_of_torch_name_the_layer():
    network = new_network()
    a = network.add_input("a", trt.float32, (-1, 4))
    b = network.add_input("b", trt.float32, (-1, 4))
    layer = network.add_elementwise(a, b, trt.ElementWiseOperation.SUM)
    layer.name = "net/sum"
    network.mark_output(out(layer))
    with pytest.raises(RuntimeError) as caught:
        capture(network).run([torch.ones(2, 4), torch.ones(3, 4)])
    assert caught.value.__notes__ == ["in layer 'net/sum' (ELEMENTWISE)"]
