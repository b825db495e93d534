"""Models quantized by torchao and by NVIDIA's ModelOpt: converted right, or refused by name."""

from __future__ import annotations

import copy
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


@pytest.mark.parametrize(
    "config",
    ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig",
     "IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig"],
)  # fmt: skip
def test_torchao_is_refused_by_name(config):
    ao = pytest.importorskip("torchao.quantization")
    net = model()
    ao.quantize_(net, getattr(ao, config)())
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(UnsupportedOperatorError, match=r"linear: a torchao\..*dequantize\(\)"):
        t2t.convert(net, [X])
    assert list(net.state_dict()) == list(before)
    # What the text says to do works.
    for part in net:
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(part.weight.dequantize())
    assert t2t.verify(net, t2t.convert(net, [X]), [X]).ok


MODELOPT = {
    "INT8_DEFAULT_CFG": "",
    "INT8_SMOOTHQUANT_CFG": "",
    "INT4_BLOCKWISE_WEIGHT_ONLY_CFG": "",
    "FP8_DEFAULT_CFG": r"tensorrt::quantize_op: this operator has no converter",
    "W4A8_AWQ_BETA_CFG": r"tensorrt::quantize_op: this operator has no converter",
}


@pytest.mark.parametrize("config", MODELOPT)
@pytest.mark.filterwarnings("ignore")
def test_modelopt(config):
    mtq: Any = pytest.importorskip("modelopt.torch.quantization")
    net = mtq.quantize(model(), getattr(mtq, config), lambda net: net(X)).eval()
    if MODELOPT[config]:
        with pytest.raises(UnsupportedOperatorError, match=MODELOPT[config]):
            t2t.convert(net, [X])
        return
    converted = t2t.convert(net, [X])
    for x in (X, X.flip(0) * 2):
        with torch.no_grad():
            wanted, got = net(x), converted(x)
        assert float((got - wanted).norm() / wanted.norm()) < 1e-5
    # The quantizers have changed something: float weights give other numbers.
    with torch.no_grad():
        assert not math.isclose(float((model()(X) - net(X)).norm()), 0.0, abs_tol=1e-3)
