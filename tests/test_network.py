"""The network under construction: names, sharing, casts, checks."""

from __future__ import annotations

import pytest
import torch

from t2t import backend
from t2t.backend import trt
from t2t.building import build, create_builder
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.network import Network, Operation
from t2t.precision import Policy
from t2t.reference import capture

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


class Made:
    """A network with one input ``x``, and what is needed to finish and run it."""

    def __init__(self, policy: Policy | None = None, x: torch.Tensor = X) -> None:
        self.builder = create_builder()
        self.net = Network(backend.create_network(self.builder), policy)
        self.x = x
        self.net.add_input("x", x)

    def names(self) -> list[str]:
        raw = self.net.raw
        return [raw.get_layer(index).name for index in range(raw.num_layers)]

    def run(self, result: object) -> torch.Tensor:
        value = torch.empty(0)
        self.net.bind(value, result)  # type: ignore[arg-type]
        self.net.raw.mark_output(result)
        (got,) = capture(self.net.raw, self.net.weights).run([self.x]).values()
        return got


@pytest.fixture
def made() -> Made:
    return Made()


def test_layers_are_named_after_module_and_operator(made: Made) -> None:
    operation = Operation("relu", scope="layer1.0.act", line="model.py:3 in forward")
    with made.net.operation(operation):
        first = made.net.add_activation(made.x, "RELU")
        made.net.add_activation(first, "RELU")
    assert made.names() == ["layer1.0.act/relu", "layer1.0.act/relu_1"]
    assert first.name == "layer1.0.act/relu"
    assert made.net.raw.get_layer(0).metadata == "model.py:3 in forward"


def test_a_name_that_an_input_has_is_not_given_again(made: Made) -> None:
    with made.net.operation(Operation("x")):
        assert made.net.add_activation(made.x, "RELU").name == "x_1"


def test_constants_and_casts_are_shared(made: Made) -> None:
    net, weight = made.net, torch.ones(4)
    assert net.tensor(weight) is net.tensor(weight)
    assert net.tensor(weight, rank=3) is net.tensor(weight, rank=3)
    assert net.tensor(weight) is not net.tensor(weight, torch.int32)
    assert net.tensor(made.x, torch.int32) is net.tensor(made.x, torch.int32)
    assert net.tensor(made.x, torch.float32) is net.tensor(made.x)
    assert net.raw.num_layers == 4


def test_negative_zero_and_zero_are_two_constants(made: Made) -> None:
    with made.net.operation(Operation("f", output=X)):
        assert made.net.tensor(0.0) is not made.net.tensor(-0.0)
        assert made.net.tensor(1) is not made.net.tensor(True)


def test_constants_are_not_copied(made: Made) -> None:
    weight = torch.randn(1000)
    made.net.constant(weight)
    data = made.net.raw.get_layer(0)
    data.__class__ = trt.IConstantLayer
    assert data.weights.ctypes.data == weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_constants_of_every_type(dtype: torch.dtype) -> None:
    made, weight = Made(), (X > 0).to(dtype)
    result = made.net.add_select(made.net.tensor(X > 0, torch.bool), weight, weight)
    assert torch.equal(made.run(result), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_constants_without_elements(dtype: torch.dtype) -> None:
    made, empty = Made(), torch.empty(3, 0, 4, dtype=dtype)
    result = made.run(made.net.add_concatenation([made.net.constant(empty)] * 2, 1))
    assert result.shape == (3, 0, 4)
    assert result.dtype == dtype


def test_ranks_are_aligned_from_the_right(made: Made) -> None:
    result = made.net.add_elementwise(torch.arange(4.0), made.x, "SUM")
    assert torch.equal(made.run(result), torch.arange(4.0) + X)
    assert made.names() == ["network/constant", "network"]


def test_what_tensorrt_refuses_raises_with_its_words(made: Made) -> None:
    with pytest.raises(ConversionError, match=r"(?i)dimension|broadcast"):
        made.net.add_elementwise(made.x, torch.ones(5), "SUM")
    with pytest.raises(ConversionError, match="TensorRT"):
        made.net.add_topk(made.x, "MAX", 5000, 2)


def test_an_attribute_that_tensorrt_ignores_raises(made: Made) -> None:
    with pytest.raises(ConversionError, match=r"ignores axes=3"):
        made.net.add("add_softmax", made.net.tensor(made.x), axes=3)


def test_a_layer_of_another_version_is_named(made: Made) -> None:
    with pytest.raises(ConversionError, match=r"has no INetworkDefinition\.add_flux"):
        made.net.add("add_flux")


def test_types_that_tensorrt_has_not(made: Made) -> None:
    with pytest.raises(UnsupportedArgumentError, match=r"complex64.*supported"):
        made.net.tensor(made.x, torch.complex64)


def test_outputs_are_marked_once_each_and_inputs_pass_through_an_identity() -> None:
    made = Made()
    relu = made.net.add_activation(made.x, "RELU")
    value = torch.empty(2, 3, 4)
    made.net.bind(value, relu)
    made.net.mark_output(value, "a")
    made.net.mark_output(value, "b")
    made.net.mark_output(made.x, "c")
    got = capture(made.net.raw).run([X])
    assert {name: torch.equal(t, X if name == "c" else X.relu()) for name, t in got.items()} == {
        "a": True, "b": True, "c": True,
    }  # fmt: skip
    assert build(made.net.raw, builder=made.builder, progress=False)


# -- precision ----------------------------------------------------------------------------------


def test_outputs_keep_their_dtype_under_fp16() -> None:
    made = Made(Policy(torch.float16))
    operation = Operation("mm", output=torch.empty(2, 3, 3))
    with made.net.operation(operation, "compute"):
        product = made.net.add_matrix_multiply(made.x, made.x, op1="TRANSPOSE")
        assert product.dtype == trt.DataType.HALF
        made.net.finish(product, operation.output)
    out = made.net.mark_output(operation.output, "y")
    assert out.dtype == trt.DataType.FLOAT


def test_a_loop_runs_its_body_and_collects_what_it_makes(made: Made) -> None:
    net = made.net
    with net.operation(Operation("f", output=X)):
        loop = net.add_loop(3)
        rows = loop.add_iterator(made.x, axis=1, reverse=True)
        total = loop.add_recurrence(torch.ones(2, 4))
        after = net.add_elementwise(total, rows, "SUM")
        loop.set_next(total, after)
        stacked = loop.concatenate(after, axis=2, reverse=True)
        last = net.unsqueeze(loop.last_value(total), [2])
        result = net.add_concatenation([stacked, last], 2)
    sums = 1 + X.flip(1).cumsum(1)
    expected = torch.cat([sums.flip(1), sums[:, -1:]], 1).transpose(1, 2)
    torch.testing.assert_close(made.run(result), expected)
    assert build(net.raw, builder=made.builder, progress=False)
    assert {"f/trip_limit", "f/iterator", "f/recurrence", "f/loop_output"} <= {*made.names()}


def test_a_loop_in_a_loop(made: Made) -> None:
    net = made.net
    with net.operation(Operation("f", output=X)):
        outer = net.add_loop(2)
        matrix = outer.add_iterator(made.x)
        product = outer.add_recurrence(torch.ones(4))
        inner = net.add_loop(3)
        row = inner.add_iterator(matrix)
        part = inner.add_recurrence(product)
        inner.set_next(part, net.add_elementwise(part, row, "PROD"))
        outer.set_next(product, inner.last_value(part))
        result = outer.last_value(product)
    torch.testing.assert_close(made.run(result), X.flatten(0, 1).prod(0))
    assert build(net.raw, builder=made.builder, progress=False)


@pytest.mark.parametrize("next_value", [torch.ones(2, 4, dtype=torch.int32), torch.ones(2, 3)])
def test_a_recurrence_keeps_its_type_and_shape(made: Made, next_value: torch.Tensor) -> None:
    loop = made.net.add_loop(3)
    total = loop.add_recurrence(torch.ones(2, 4))
    with pytest.raises(ConversionError, match=r"begins as .*FLOAT \(2, 4\), but its next value is"):
        loop.set_next(total, made.net.tensor(next_value))
