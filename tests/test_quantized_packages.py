"""Models quantized by torchao and by NVIDIA's ModelOpt: converted right, or refused by name."""

from __future__ import annotations

import copy
import importlib
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import t2t
from t2t.errors import UnsupportedOperatorError

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.Linear(64, 32)
    ).eval()


class Own(nn.Module):
    """Computes with a tensor that wraps others, also before it meets the input."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(TwoTensor(torch.ones(8), torch.ones(8)))
        self.early = early

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.weight * 2 if self.early else self.weight)


@pytest.mark.parametrize("early", [False, True])
def test_tensors_that_wrap_others_are_refused(early):
    with pytest.raises(UnsupportedOperatorError, match="TwoTensor, a tensor that is made of"):
        t2t.convert(Own(early).eval(), [X])


def test_weights_that_wrap_others_are_refused():
    linear = nn.Linear(8, 8).eval()
    weight = linear.weight.detach()
    linear.weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    with pytest.raises(UnsupportedOperatorError, match=r"linear: a torch.*TwoTensor"):
        t2t.convert(linear, [X])
    linear.weight = nn.Parameter(weight)
    assert t2t.verify(linear, t2t.convert(linear, [X]), [X]).ok


CAPABILITIES = ["8.9", "12.0"]


def modelopt() -> Any:
    """Return ModelOpt; where it is there and cannot be imported, that is an error."""
    pytest.importorskip("modelopt")
    return importlib.import_module("modelopt.torch.quantization")


def assert_equals(net: nn.Module, converted: nn.Module, tolerance: float = 1e-5) -> None:
    for x in (X, X.flip(0) * 2):
        with torch.no_grad():
            wanted, got = net(x), converted(x)
        assert float((got - wanted).norm() / wanted.norm()) < tolerance


def data_types(converted: Any) -> set[str]:
    """Return the types of the constants that the network's dequantize layers read."""
    layers = converted.program.layers
    constants = {layer.outputs[0]: layer.types[0] for layer in layers if layer.kind == "CONSTANT"}
    read = {layer.inputs[0] for layer in layers if layer.kind == "DEQUANTIZE"}
    return {constants[name] for name in read if name in constants}


@pytest.mark.parametrize(
    ("config", "options", "stored"),
    [
        ("Int8WeightOnlyConfig", {}, {"INT8"}),
        ("Float8WeightOnlyConfig", {}, {"FP8"}),
        ("IntxWeightOnlyConfig", {}, {"INT8"}),
        ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4}, {"INT8"}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torchao_weights(config: str, options: Any, stored: set[str]) -> None:
    ao = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    net = model()
    ao.quantize_(net, getattr(ao, config)(**options))
    weights = [type(x) for x in net.parameters()]
    converted = t2t.convert(net, [X], compute_capabilities=CAPABILITIES)
    assert_equals(net, converted)
    assert data_types(converted) == stored
    assert [type(x) for x in net.parameters()] == weights
    # Float weights give other numbers.
    assert not torch.allclose(model()(X), net(X), rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_torchao_weights_in_half() -> None:
    ao = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    net = model().bfloat16()
    ao.quantize_(net, ao.Int8WeightOnlyConfig())
    x = X.bfloat16()
    converted = t2t.convert(net, [x])
    with torch.no_grad():
        wanted, got = net(x).float(), converted(x).float()
    assert float((got - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize(
    "config", ["Int8DynamicActivationInt8WeightConfig", "Int8DynamicActivationIntxWeightConfig"]
)
@pytest.mark.filterwarnings("ignore")
def test_torchao_that_rounds_activations_is_refused_by_name(config: str) -> None:
    ao = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    net = model()
    ao.quantize_(net, getattr(ao, config)())
    with pytest.raises(UnsupportedOperatorError, match=r"linear: a torchao\..*dequantize\(\)"):
        t2t.convert(net, [X])
    # What the text says to do works.
    for part in net:
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(part.weight.dequantize())
    assert t2t.verify(net, t2t.convert(net, [X]), [X]).ok


MODELOPT = {
    "INT8_DEFAULT_CFG": {"INT8"},
    "INT8_SMOOTHQUANT_CFG": {"INT8"},
    "FP8_DEFAULT_CFG": {"FP8"},
    "W4A8_AWQ_BETA_CFG": {"FP8"},
    "INT4_BLOCKWISE_WEIGHT_ONLY_CFG": set(),  # no layer has blocks of 128 inputs here
}


@pytest.mark.parametrize("config", MODELOPT)
@pytest.mark.filterwarnings("ignore")
def test_modelopt(config: str) -> None:
    """Activations and weights are rounded by layers, which have ModelOpt's own scales."""
    mtq = modelopt()
    net = mtq.quantize(model(), getattr(mtq, config), lambda net: net(X)).eval()
    converted = t2t.convert(net, [X], compute_capabilities=CAPABILITIES)
    assert_equals(net, converted)
    assert data_types(converted) == MODELOPT[config]
    kinds = [layer.kind for layer in converted.program.layers]
    rounded = 0 if "WEIGHT_ONLY" in config else 3  # the inputs of a convolution and two products
    assert kinds.count("QUANTIZE") == rounded
    # The quantizers have changed something: float weights give other numbers.
    with torch.no_grad():
        assert not math.isclose(float((model()(X) - net(X)).norm()), 0.0, abs_tol=1e-3)


class Blocks(nn.Module):
    """Linear layers with inputs of one block, of several, of none, and a product with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.several, self.one = nn.Linear(192, 256), nn.Linear(256, 128, bias=False)
        self.two, self.short = nn.Linear(128, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(torch.relu(self.several(x.flatten(1))))
        return self.short(torch.relu(self.two(x)))


@pytest.mark.parametrize("config", ["INT4_BLOCKWISE_WEIGHT_ONLY_CFG", "INT4_AWQ_CFG"])
@pytest.mark.parametrize("options", [{}, {"fp16": True}])
@pytest.mark.filterwarnings("ignore")
def test_modelopt_blocks_of_four_bits(config: str, options: dict[str, Any]) -> None:
    """Blocks of 128 inputs are int4 weights with ModelOpt's scales; others are float constants."""
    mtq = modelopt()
    torch.manual_seed(0)
    plain = Blocks().eval()
    net: Any = mtq.quantize(copy.deepcopy(plain), getattr(mtq, config), lambda net: net(X)).eval()
    net.two.weight_quantizer._amax *= 0.8  # scales that the weights do not tell
    converted = t2t.convert(net, [X], **options)
    assert_equals(net, converted, 2e-3 if options else 1e-5)
    layers = converted.program.layers
    constants = {layer.outputs[0]: layer for layer in layers if layer.kind == "CONSTANT"}
    read = [layer.inputs[:2] for layer in layers if layer.kind == "DEQUANTIZE"]
    blocks = [constants[scale].weights for weight, scale in read]
    assert [constants[weight].types[0] for weight, _ in read] == ["INT4"] * 2
    counts = [next(iter(one.values())).numel() for one in blocks]
    assert counts == [2 * 128, 64], "a scale for each 128 inputs"
    with torch.no_grad():
        assert float((plain(X) - net(X)).norm() / plain(X).norm()) > 1e-2


@pytest.mark.parametrize("change", ["nothing", "narrow", "dynamic"])
@pytest.mark.filterwarnings("ignore")
def test_modelopt_ranges_that_no_layer_has(change: str) -> None:
    """A range of nothing and one without -128 are plain arithmetic; one of the input is refused."""
    mtq = modelopt()
    net: Any = mtq.quantize(model(), mtq.INT8_DEFAULT_CFG, lambda net: net(X)).eval()
    quantizer = net[0].input_quantizer
    if change == "dynamic":
        del quantizer._amax
        with pytest.raises(UnsupportedOperatorError, match="needs the value of a tensor"):
            t2t.convert(net, [X])
        return
    if change == "nothing":
        quantizer._amax.zero_()
    else:
        quantizer._narrow_range = True
    converted = t2t.convert(net, [X])
    assert_equals(net, converted)
    assert [layer.kind for layer in converted.program.layers].count("QUANTIZE") == 2
