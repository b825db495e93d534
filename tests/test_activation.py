"""Every activation of torch.nn.functional."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

HALF = Policy(torch.float16)
HALF_REASON = "computed in half precision, compared with float32"

INF = float("inf")
# Large magnitudes, where exponentials overflow; both zeros; the bends of the functions.
MAGNITUDES = (0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 50.0, 90.0, 200.0, 1e4, 3e12, 1e30)
EXTREME = torch.tensor([sign * x for x in MAGNITUDES for sign in (1, -1)])


def extreme(generator: torch.Generator) -> torch.Tensor:
    return EXTREME[torch.randperm(len(EXTREME), generator=generator)]


class PReLUOf(nn.Module):
    """Slopes that depend on the input."""

    def forward(self, x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return F.prelu(x, slopes.abs())


def slopes(count: int) -> nn.PReLU:
    module = nn.PReLU(count)
    with torch.no_grad():
        module.weight.copy_(torch.linspace(-0.5, 1.5, count))
    return module


class Behind(nn.Module):
    """A function of a linear layer's result, which is half under the policy."""

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = functools.partial(function, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


# Taken before a trace patches torch.
CAPTURED = functools.partial(F.threshold, threshold=0.3, value=-1.0)

# Name, function, arguments, number of layers (constants included): each at extreme values too.
FUNCTIONS: list[tuple[str, Callable[..., Any], dict[str, Any], int]] = [
    ("relu", F.relu, {}, 1),
    ("relu6", F.relu6, {}, 1),
    ("hardtanh", F.hardtanh, {}, 1),
    ("hardtanh-bounds", F.hardtanh, {"min_val": -0.25, "max_val": 1.5}, 1),
    ("hardtanh-one-sided", F.hardtanh, {"min_val": 0.5, "max_val": INF}, 4),
    ("leaky_relu", F.leaky_relu, {}, 1),
    ("leaky_relu-slope", F.leaky_relu, {"negative_slope": 0.3}, 1),
    ("leaky_relu-negative-slope", F.leaky_relu, {"negative_slope": -0.3}, 1),
    ("elu", F.elu, {}, 1),
    ("elu-alpha", F.elu, {"alpha": 0.3}, 1),
    ("elu-negative-alpha", F.elu, {"alpha": -0.3}, 1),
    ("selu", F.selu, {}, 1),
    ("celu", F.celu, {}, 1),
    ("celu-alpha", F.celu, {"alpha": 0.3}, 6),
    ("celu-negative-alpha", F.celu, {"alpha": -2.0}, 10),
    ("gelu", F.gelu, {}, 1),
    ("gelu-tanh", F.gelu, {"approximate": "tanh"}, 1),
    ("silu", F.silu, {}, 2),
    ("mish", F.mish, {}, 5),
    ("softplus", F.softplus, {}, 4),
    ("softplus-beta", F.softplus, {"beta": 2}, 6),
    ("softplus-small-beta", F.softplus, {"beta": 0.01}, 6),
    ("softplus-threshold", F.softplus, {"beta": 2, "threshold": 1}, 6),
    ("softplus-identity", F.softplus, {"beta": 2, "threshold": -100}, 6),
    ("softshrink", F.softshrink, {}, 2),
    ("softshrink-lambd", F.softshrink, {"lambd": 1.25}, 2),
    ("softshrink-zero", F.softshrink, {"lambd": 0}, 2),
    ("hardshrink", F.hardshrink, {}, 7),
    ("hardshrink-lambd", F.hardshrink, {"lambd": 1.25}, 7),
    ("hardshrink-negative", F.hardshrink, {"lambd": -1}, 7),
    ("threshold", F.threshold, {"threshold": 0.1, "value": 20.0}, 6),
    ("threshold-relu", F.threshold, {"threshold": 0, "value": 0}, 1),
    ("hardsigmoid", F.hardsigmoid, {}, 1),
    ("hardswish", F.hardswish, {}, 2),
    ("logsigmoid", F.logsigmoid, {}, 4),
    ("sigmoid", torch.sigmoid, {}, 1),
    ("tanh", torch.tanh, {}, 1),
    ("rrelu", F.rrelu, {}, 1),
    ("rrelu-bounds", F.rrelu, {"lower": 0.4, "upper": 0.6}, 1),
    ("softsign", F.softsign, {}, 4),
    ("tanhshrink", F.tanhshrink, {}, 2),
]

CASES = [
    *[
        OpCase(name, function, [uniform(3, 8, low=-4, high=4)], kwargs=kwargs, layers=layers)
        for name, function, kwargs, layers in FUNCTIONS
    ],
    *[
        OpCase(f"{name}-extreme", function, [extreme], kwargs=kwargs)
        for name, function, kwargs, _ in FUNCTIONS
    ],
    *[
        OpCase(
            f"{name}-half", function, [uniform(3, 8, low=-4, high=4, dtype=torch.float16)],
            kwargs=kwargs,
        )
        for name, function, kwargs, _ in FUNCTIONS
    ],
]  # fmt: skip


MORE = [
    OpCase("relu-method", lambda x: x.relu(), [(2, 3)], layers=1),
    OpCase("relu-module", nn.ReLU(), [(2, 3)], layers=1),
    OpCase("relu-in-place", lambda x: F.relu(x * 2, inplace=True), [(2, 3)]),
    OpCase("relu-scalar", torch.relu, [()], layers=1),
    OpCase("relu-empty", torch.relu, [(0, 3)]),
    OpCase("relu-int64", torch.relu, [integers(4, 5, low=-5, high=5)], layers=1),
    OpCase("relu-int32", torch.relu, [integers(4, 5, low=-5, high=5, dtype=torch.int32)], layers=1),
    OpCase("relu-int8", torch.relu, [integers(4, 5, low=-5, high=5, dtype=torch.int8)]),
    OpCase("relu-uint8", torch.relu, [integers(4, 5, high=250, dtype=torch.uint8)]),
    OpCase(
        "relu-dynamic", torch.relu, [(2, 3)], dynamic=[{0: (1, 8)}], shapes=[(5, 3)], layers=1
    ),
    OpCase("relu6-module", nn.ReLU6(), [(2, 3)], layers=1),
    OpCase("hardtanh-int64", F.hardtanh, [integers(4, 5, low=-5, high=5)]),
    OpCase(
        "hardtanh-int32", F.hardtanh, [integers(4, 5, low=-5, high=5, dtype=torch.int32)],
        kwargs={"min_val": -2, "max_val": 3},
    ),
    OpCase(
        "threshold-int64", F.threshold, [integers(4, 5, low=-5, high=5)],
        kwargs={"threshold": 2, "value": -7},
    ),
    OpCase("hardtanh-uint8", F.hardtanh, [integers(4, 5, high=9, dtype=torch.uint8)],
           kwargs={"min_val": 2, "max_val": 5}),
    OpCase("threshold-int8", F.threshold, [integers(4, 5, low=-5, high=5, dtype=torch.int8)],
           kwargs={"threshold": 2, "value": -7}),
    OpCase("sigmoid-uint8", torch.sigmoid, [integers(4, 5, high=9, dtype=torch.uint8)]),
    OpCase("sigmoid-int64", torch.sigmoid, [integers(4, 5, low=-5, high=5)]),
    OpCase("tanh-int32", torch.tanh, [integers(4, 5, low=-5, high=5, dtype=torch.int32)]),
    OpCase("tanh-bool", torch.tanh, [integers(4, 5, high=2, dtype=torch.bool)]),
    OpCase("elu-in-place", nn.ELU(inplace=True), [(1, 3, 10, 10)], layers=1),
    OpCase("leaky_relu-in-place", nn.LeakyReLU(inplace=True), [(3, 2, 5)], layers=1),
    OpCase("silu-in-place", F.silu, [(6, 8)], kwargs={"inplace": True}, layers=2),
    OpCase("selu-in-place", F.selu, [(9, 2, 13)], kwargs={"inplace": True}, layers=1),
    OpCase("celu-in-place", F.celu, [(2, 5)], kwargs={"alpha": 2.0, "inplace": True}),
    OpCase("hardswish-in-place", nn.Hardswish(inplace=True), [(2, 5)], layers=2),
    OpCase("hardsigmoid-in-place", nn.Hardsigmoid(inplace=True), [(2, 5)], layers=1),
    OpCase("mish-in-place", nn.Mish(inplace=True), [(2, 5)]),
    OpCase("threshold-in-place", nn.Threshold(0.2, -3.0, inplace=True), [(2, 5)]),
    OpCase("rrelu-in-place", nn.RReLU(inplace=True), [(2, 5)]),
    OpCase("softplus-module", nn.Softplus(beta=2, threshold=-100), [(10, 20)]),
    OpCase("gelu-method", lambda x: torch.ops.aten.gelu_(x * 1.0), [(2, 5)]),
    OpCase("threshold-captured", CAPTURED, [(2, 5)]),
    OpCase(
        "rrelu-training", F.rrelu, [(2, 5)], kwargs={"training": True}, raises="random slopes"
    ),
    OpCase(
        "rrelu-training-in-place", F.rrelu, [(2, 5)],
        kwargs={"training": True, "inplace": True}, raises="random slopes",
    ),
    OpCase("gumbel", F.gumbel_softmax, [(2, 5)], raises="random numbers"),
    # -- glu
    OpCase("glu", F.glu, [(3, 8)], layers=4),
    OpCase("glu-dim", F.glu, [(3, 4, 5)], kwargs={"dim": 1}, layers=4),
    OpCase("glu-negative-dim", nn.GLU(dim=-2), [(3, 4, 5)], layers=4),
    OpCase("glu-1d", F.glu, [(6,)]),
    OpCase(
        "glu-dynamic", F.glu, [(3, 8)], dynamic=[{0: (1, 6)}], shapes=[(5, 8)], kwargs={"dim": 1}
    ),
    OpCase("glu-extreme", lambda x: F.glu(x.view(12, 2), 1), [extreme]),
    # -- prelu
    OpCase("prelu-module", nn.PReLU(), [(2, 3, 4)], layers=2),
    OpCase("prelu-channels", slopes(3), [(2, 3, 4, 5)], layers=2),
    OpCase("prelu-2d", slopes(3), [(4, 3)], layers=2),
    OpCase("prelu-5d", slopes(3), [(2, 3, 2, 2, 2)], layers=2),
    OpCase("prelu-1d", slopes(1), [(4,)], layers=2),
    OpCase("prelu-scalar", slopes(1), [()]),
    OpCase("prelu-function", lambda x: F.prelu(x, torch.tensor([-0.5])), [(2, 3)]),
    OpCase("prelu-method", lambda x: x.prelu(torch.tensor([0.1, 0.2, 0.3])), [(2, 3)]),
    OpCase("prelu-traced", PReLUOf(), [(2, 3, 4), (3,)]),
    OpCase("prelu-traced-one", PReLUOf(), [(2, 3, 4), (1,)]),
    OpCase(
        "prelu-dynamic", slopes(3), [(2, 3, 4, 5)], dynamic=[{0: (1, 4), 2: (1, 9), 3: (1, 9)}],
        shapes=[(3, 3, 7, 2)], layers=2,
    ),
    OpCase("prelu-extreme", lambda x: F.prelu(x, torch.tensor([0.25])), [extreme]),
    OpCase("prelu-half", slopes(3).half(), [uniform(2, 3, 4, dtype=torch.float16)], layers=2),
    # -- under a precision policy: a linear layer before makes the input half
    *[
        OpCase(
            f"{name}-policy", Behind(function, kwargs), [(3, 8)], policy=HALF, rtol=2e-2,
            atol=2e-2, reason=HALF_REASON,
        )
        for name, function, kwargs, _ in FUNCTIONS
        # They jump: a rounding decides between 0.1 and 20, or 0.5 and 0.
        if "threshold" not in name and "hardshrink" not in name
    ],
    OpCase(
        "prelu-policy", nn.Sequential(nn.Linear(8, 3), slopes(3)), [(4, 8)], policy=HALF,
        rtol=2e-2, atol=2e-2, reason=HALF_REASON,
    ),
    OpCase(
        "glu-policy", nn.Sequential(nn.Linear(8, 6), nn.GLU()), [(4, 8)], policy=HALF,
        rtol=2e-2, atol=2e-2, reason=HALF_REASON,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES + MORE))
def test_activation(case: OpCase) -> None:
    run_case(case)


def test_a_not_a_number_stays_one_where_select_decides() -> None:
    # What TensorRT's own activations make of NaN is theirs; what t2t composes must keep it.
    bad = torch.tensor([float("nan"), 1.0, -1.0])
    for name, function, kwargs, _ in FUNCTIONS:
        run_case(OpCase(name, function, [bad], kwargs=kwargs, build=False, reason="values only"))
