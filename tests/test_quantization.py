"""Quantized models: rounding as they bring it along, calibration, and weights of few bits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization as ao
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import t2t
from t2t.errors import UnsupportedArgumentError, UnsupportedOperatorError
from t2t.lowering import to_network
from t2t.reference import capture
from tests.cases import OpCase, ids, run_case

q = torch.ops.quantized_decomposed

TINY = 0.0137
ZEROS = torch.zeros(3, dtype=torch.int32)
MIXED = torch.tensor([0, 1, 0], dtype=torch.int32)
SCALES = torch.tensor([0.1, 0.0137, 0.25])


def ties(scale: float, *shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    """Draw halves of a scale, where rounding decides, and others; also beyond int8's range."""

    def draw(generator: torch.Generator) -> torch.Tensor:
        halves = torch.randint(-320, 320, shape, generator=generator) * 0.5 * scale
        between = torch.randn(shape, generator=generator) * 60 * scale
        return torch.where(torch.rand(shape, generator=generator) < 0.5, halves, between)

    return draw


def per_tensor(scale: Any, zero: Any = 0, low: int = -128, high: int = 127) -> Callable[..., Any]:
    return lambda x: torch.fake_quantize_per_tensor_affine(x, scale, zero, low, high)


def per_channel(
    axis: int, low: int = -128, high: int = 127, zero: Any = ZEROS, s: Any = SCALES
) -> Any:
    return lambda x: torch.fake_quantize_per_channel_affine(x, s, zero, axis, low, high)


def mask(x: torch.Tensor) -> Any:
    return torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, -128, 127)[1]


def zero(x: Any) -> Any:
    return torch.tensor([x], dtype=torch.int32)


def row(name: str, function: Callable[..., Any], *inputs: Any, **more: Any) -> OpCase:
    """Return a row whose results are PyTorch's to the bit."""
    return OpCase(name, function, inputs, **{"rtol": 0.0, "atol": 0.0, "reason": "exact", **more})


FAKE = [
    row("power-of-two", per_tensor(0.25), ties(0.25, 40, 50), layers=3),
    row("decimal", per_tensor(0.1), ties(0.1, 40, 50)),
    row("small", per_tensor(TINY), ties(TINY, 4, 5, 6, 7)),
    row("narrow", per_tensor(0.1, 0, -127, 127), ties(0.1, 40, 50)),
    row("narrow-power-of-two", per_tensor(0.5, 0, -127, 127), ties(0.5, 40, 50)),
    row("positive", per_tensor(0.1, 0, 0, 127), ties(0.1, 40, 50)),
    row("four-bits", per_tensor(0.3, 0, -8, 7), ties(0.3, 40, 50)),
    row("uint8-symmetric", per_tensor(0.1, 128, 0, 255), ties(0.1, 40, 50)),
    row("reduced-symmetric", per_tensor(0.1, 64, 0, 127), ties(0.1, 40, 50)),
    row("0d", per_tensor(0.1), torch.tensor(0.35)),
    row("empty", per_tensor(0.1), torch.zeros(0, 3)),
    row("half", per_tensor(0.1), lambda g: ties(0.1, 40, 50)(g).half()),
    row("bfloat16", per_tensor(0.1), lambda g: ties(0.1, 40, 50)(g).bfloat16()),
    row("tensors", per_tensor(torch.tensor([0.1]), zero(0)), ties(0.1, 40, 50)),
    row("tensors-0d", per_tensor(torch.tensor(0.1), zero(0)[0]), ties(0.1, 40, 50)),
    row("tensors-uint8", per_tensor(torch.tensor([0.1]), zero(128), 0, 255), ties(0.1, 40, 50)),
    row("channels-0", per_channel(0), ties(0.05, 3, 40)),
    row("channels-1", per_channel(1), ties(0.05, 20, 3, 5)),
    row("channels-last", per_channel(2, -127), ties(0.1, 2, 20, 3)),
    row("channels-negative", per_channel(-1), (20, 3), raises="must be between 0 and"),
    row("channels-power-of-two", per_channel(1, s=torch.tensor([0.5, 2.0, 1.0])), ties(1.0, 20, 3)),
    row("channels-uint8", per_channel(0, 0, 255, ZEROS + 128), ties(0.1, 3, 40)),
    row("channels-half", per_channel(0), lambda g: ties(0.1, 3, 40)(g).half()),
    row(
        "dynamic", per_tensor(0.1), ties(0.1, 4, 6), dynamic=[{0: (1, 8)}],
    ),
    row("zero-point", per_tensor(0.1, 3), (2, 3), raises="zero_point=3 with the range -128 to 127"),
    row("uint8", per_tensor(0.1, 0, 0, 255), (2, 3), raises="zero_point=0 with the range 0 to 255"),
    row("below", per_tensor(0.1, -128), (2, 3), raises="symmetric qscheme"),
    row("channels-zero", per_channel(0, zero=MIXED), (3, 2), raises="zero_point=0/1"),
    row("float-zero", per_channel(0, zero=ZEROS + 0.5), (3, 2), raises="float zero points"),
    row("mask", mask, (2, 3), raises="must not be used"),
    row(
        "traced-scale",
        lambda x, s: per_tensor(s, zero(0))(x),
        (2, 3),
        torch.tensor([0.1]),
        raises="scale depends on the input",
    ),
    *(
        row(f"scale-{s}", per_tensor(s), (2, 3), raises="scales must be positive and finite")
        for s in (0.0, -0.1, math.inf, math.nan, 1e-40, 1e39, 3e38)
    ),
    row("scale-0", per_channel(0, s=torch.tensor([0.1, 0.0, 0.1])), (3, 2), raises="scale=0:"),
]  # fmt: skip


def integer(x: torch.Tensor, scale: float) -> torch.Tensor:
    return q.quantize_per_tensor(x, scale, 0, -128, 127, torch.int8)


def number(x: torch.Tensor, scale: float, **more: Any) -> torch.Tensor:
    return q.dequantize_per_tensor(x, scale, 0, -128, 127, torch.int8, **more)


def pair(scale: Any, z: Any = 0, low: Any = -128, high: Any = 127, dtype: Any = torch.int8) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = q.quantize_per_tensor(x, scale, z, low, high, dtype)
        return q.dequantize_per_tensor(y, scale, z, low, high, dtype)

    return function


def channel_pair(axis: int, zeros: Any = ZEROS, low: int = -128, dtype: Any = torch.int8) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = q.quantize_per_channel(
            x, SCALES, ZEROS if zeros is None else zeros, axis, low, 127, dtype
        )
        return q.dequantize_per_channel(y, SCALES, zeros, axis, low, 127, dtype)

    return function


def double(x: torch.Tensor) -> torch.Tensor:
    return q.quantize_per_channel(x, SCALES.double(), ZEROS, 0, -128, 127, torch.int8)


INT8 = torch.arange(-128, 128, dtype=torch.int8)

DECOMPOSED = [
    row("pair", pair(0.1), ties(0.1, 40, 50)),
    row("pair-power-of-two", pair(0.5), ties(0.5, 40, 50), layers=3),
    row("pair-narrow", pair(TINY, 0, -127), ties(TINY, 40, 50)),
    row("pair-tensors", pair(torch.tensor(0.1), torch.tensor(0)), ties(0.1, 40, 50)),
    row(
        "pair-tensors-2",
        pair(torch.tensor(0.1), torch.tensor(0), torch.tensor(-128), torch.tensor(127)),
        ties(0.1, 40, 50),
    ),
    row("pair-half", pair(0.1), lambda g: ties(0.1, 40, 50)(g).half()),
    row("integers", lambda x: integer(x, 0.1), ties(0.1, 40, 50)),
    row("floats", lambda x: number(x, 0.1), INT8),
    row("floats-double", lambda x: number(x, 0.123456789012345), INT8),
    row("pair-channels", channel_pair(1), ties(0.05, 20, 3, 5)),
    row("pair-channels-last", channel_pair(-1, None, -127), ties(0.05, 20, 3)),
    row("two-scales", lambda x: number(integer(x, 0.1), 0.3), ties(0.1, 40, 50)),
    row("pair-zero-point", pair(0.1, 5), (2, 3), raises="zero_point=5 with the range"),
    row("pair-uint8", pair(0.1, 128, 0, 255, torch.uint8), (2, 3), raises="dtype=torch.uint8: "),
    row("pair-int16", pair(0.1, 0, -32768, 32767, torch.int16), (2, 3), raises="dtype=torch.int16"),
    row("pair-scale-0", pair(0.0), (2, 3), raises="positive and finite|division by zero"),
    row("channels-zero-points", channel_pair(0, ZEROS + 1), (3, 2), raises="zero_point=1"),
    row("uint8", channel_pair(0, ZEROS, 0, torch.uint8), (3, 2), raises="dtype=torch.uint8"),
    row("double", lambda x: double(x), (3, 2), raises="scales of torch.float64"),
    row("out", lambda x: number(x, 0.1, out_dtype=torch.half), INT8, raises="torch.float16"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*ids(FAKE)])
def test_fake_quantize(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(DECOMPOSED))
def test_decomposed(case: OpCase) -> None:
    run_case(case)


def ran(function: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Run the network of a function in the reference executor, without a build."""
    conversion = to_network(function, list(inputs))
    program = capture(conversion.network.raw, conversion.network.weights)
    [spec] = conversion.signature.outputs
    return program.run(list(inputs))[spec.name]


any_scale = st.one_of(
    st.sampled_from([0.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, 2.0**-126, 2.0**126, 3e38]),
    st.floats(1e-30, 1e30),
    st.floats(0.001, 1.0),
)
any_data = st.one_of(
    st.just(torch.zeros(7)),
    st.just(torch.ones(7)),
    st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=9).map(torch.tensor),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    scale=any_scale,
    zero_point=st.one_of(st.just(0), st.sampled_from([-128, -1, 1, 64, 127, 128, 255])),
    bounds=st.sampled_from(
        [(-128, 127), (-127, 127), (0, 127), (0, 255), (-8, 7), (-32768, 32767)]
    ),
    data=any_data,
)
def test_any_rounding_is_refused_or_exact(
    scale: float, zero_point: int, bounds: tuple[int, int], data: torch.Tensor
) -> None:
    low, high = bounds
    if not low <= zero_point <= high:
        return  # PyTorch refuses it
    x = data if math.isfinite(scale) and data.abs().max() <= 1 else data * min(abs(scale), 1e30)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)

    try:
        got = ran(function, x)
    except UnsupportedArgumentError:
        representable = 2.0**-126 <= scale <= 2.0**126
        fits = low - zero_point >= -128 and high - zero_point <= 127
        assert not (representable and fits)
        return
    if bool((x / scale).abs().max() < 2**62):  # PyTorch's own integers overflow beyond that
        assert torch.equal(got, function(x))


# -- models of torch.ao.quantization ---------------------------------------------------------------


class Small(nn.Module):
    """Every kind of product, with batch norm and a residual addition."""

    def __init__(self) -> None:
        super().__init__()
        self.start = ao.QuantStub()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.line = nn.Conv1d(8, 6, 3)
        self.head = nn.Linear(6, 10)
        self.end = ao.DeQuantStub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.first(self.start(x))))
        x = self.up(x + self.grouped(x))
        x = self.line(x.mean(2)).mean(2)
        return self.end(self.head(x))


def aware(fused: bool = False) -> nn.Module:
    """Return a model that torch.ao.quantization has prepared, after a few steps of training."""
    torch.manual_seed(0)
    fake = ao.FusedMovingAvgObsFakeQuantize if fused else ao.FakeQuantize
    activation = ao.FakeQuantize.with_args(
        observer=ao.MovingAverageMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
    )
    weight = fake.with_args(
        observer=ao.MovingAveragePerChannelMinMaxObserver,
        quant_min=-127,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )
    model = Small()
    model.qconfig = ao.QConfig(activation=activation, weight=weight)  # type: ignore[assignment]
    model = ao.prepare_qat(ao.fuse_modules_qat(model.train(), [["first", "norm", "relu"]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 12, 12)).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.filterwarnings("ignore")  # torch.ao.quantization calls itself deprecated
@pytest.mark.parametrize("fused", [False, True])
def test_trained_with_quantization(fused: bool) -> None:
    model = aware(fused)
    x = torch.randn(2, 3, 12, 12)
    with pytest.raises(UnsupportedOperatorError, match=r"disable_observer.*in module"):
        t2t.convert(model, [x])
    model.apply(ao.disable_observer)
    before = copy.deepcopy(model.state_dict())
    converted = t2t.convert(model, [x])
    for seed in (1, 2):
        x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
        # One step of the last rounding, where float sums in another order tip it over.
        step = float(model.head.activation_post_process.scale)
        difference = (converted(x) - model(x)).abs()
        assert difference.max() <= step * 1.001
        assert (difference > step / 2).float().mean() < 0.1
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    kinds = [layer.kind for layer in converted.program.layers]
    assert kinds.count("QUANTIZE") >= 5
    assert kinds.count("DEQUANTIZE") >= 5 + 4  # the weights of four products are integers


@pytest.mark.filterwarnings("ignore")
def test_defaults_of_torch() -> None:
    """Seven bits (fbgemm) fit into int8 whatever their zero point is; eight (qnnpack) do not."""
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for name in ("fbgemm", "qnnpack"):
        torch.manual_seed(0)
        model = Small()
        model.qconfig = ao.get_default_qat_qconfig(name)  # type: ignore[assignment]
        model = ao.prepare_qat(model.train())
        model(torch.randn(2, 3, 8, 8))
        model.eval().apply(ao.disable_observer)
        if name == "qnnpack":
            with pytest.raises(UnsupportedArgumentError, match=r"zero_point=.*qscheme.*at "):
                t2t.convert(model, [x])
            continue
        step = float(model.head.activation_post_process.scale)
        assert (ran(model, x) - model(x)).abs().max() <= step * 1.001


def test_weights_of_decomposed_models_are_integers() -> None:
    torch.manual_seed(0)
    integers = torch.randint(-127, 128, (8, 4), dtype=torch.int8)
    scales = torch.rand(8) + 0.01

    def model(x: torch.Tensor) -> torch.Tensor:
        x = q.dequantize_per_tensor(
            q.quantize_per_tensor(x, 0.05, 0, -128, 127, torch.int8), 0.05, 0, -128, 127, torch.int8
        )
        w = q.dequantize_per_channel(integers, scales, None, 0, -127, 127, torch.int8)
        return torch.ops.aten.linear(x, w)  # type: ignore[no-any-return]

    conversion = to_network(model, [torch.randn(3, 4)])
    program = capture(conversion.network.raw, conversion.network.weights)
    constants = [x for layer in program.layers for x in layer.weights.values()]
    assert any(x.dtype == torch.int8 and x.numel() == 32 for x in constants)
    x = torch.randn(3, 4)
    assert torch.allclose(ran(model, x), model(x), rtol=1e-6)
