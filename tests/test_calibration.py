"""int8, fp8 and weights of few bits, by calibration: right to the integer, or refused."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

import t2t
from t2t import backend
from t2t.errors import BuildError, ConversionError, OptionError
from t2t.lowering import to_network
from t2t.quantization.calibration import METHODS, _Histogram, _sample
from t2t.quantization.plan import Wanted
from t2t.quantization.scales import Range, Scales
from t2t.reference import capture

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


def ran(module: Any, wanted: Wanted, *inputs: torch.Tensor) -> torch.Tensor:
    """Run the quantized network of a module in the reference executor, without a build."""
    conversion = to_network(module, list(inputs), quantize=wanted)
    program = capture(conversion.network.raw, conversion.network.weights)
    [spec] = conversion.signature.outputs
    return program.run(list(inputs))[spec.name]


# -- the same integers -----------------------------------------------------------------------------


def grid(shape: tuple[int, ...], step: float, seed: int) -> torch.Tensor:
    """Draw numbers between the steps, the largest of each first index being 127 steps.

    With steps that are powers of two, sums of products of floats are exact, and so can be compared
    with those of integers.
    """
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(shape, generator=generator) * 250 - 125) * step
    x.flatten(1)[:, 0] = 127 * step
    return x


def integers(x: torch.Tensor, step: float) -> torch.Tensor:
    return torch.clamp(torch.round(x.double() / step), -128, 127).long()


def test_convolution_is_that_of_integers() -> None:
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    conv.weight.data = grid((4, 3, 3, 3), 2.0**-9, 1)
    conv.weight.data[1] *= 4  # its own scale
    conv.bias.data = torch.tensor([0.5, -0.25, 0.0, 2.0])
    data = [grid((2, 3, 8, 8), 2.0**-6, seed) for seed in (2, 3)]
    scales = t2t.calibrate(conv, data, method="minmax")
    x = grid((2, 3, 8, 8), 2.0**-6, 4)
    x[1] *= 1.5  # beyond the range: saturates
    w_steps = torch.tensor([2.0**-9, 2.0**-7, 2.0**-9, 2.0**-9])
    whole = integers(conv.weight.detach(), 1.0) * 0
    for channel, step in enumerate(w_steps.tolist()):
        whole[channel] = integers(conv.weight.detach()[channel], step)
    padded = F.pad(integers(x, 2.0**-6), (1, 1, 1, 1))
    windows = padded.unfold(2, 3, 2).unfold(3, 3, 2)
    sums = torch.einsum("nchwij,kcij->nkhw", windows, whole)
    wanted = sums.double() * 2.0**-6 * w_steps.double()[:, None, None]
    wanted += conv.bias.detach().double()[:, None, None]
    assert torch.equal(ran(conv, Wanted("int8", scales), x).double(), wanted)


def test_linear_layer_is_that_of_integers() -> None:
    linear = nn.Linear(6, 5, bias=False)
    linear.weight.data = grid((5, 6), 2.0**-8, 1)
    linear.weight.data[3] = 0  # a channel of zeros has no scale of its own
    scales = t2t.calibrate(linear, [grid((7, 6), 2.0**-5, 2)], method="minmax")
    x = grid((7, 6), 2.0**-5, 3)
    sums = integers(x, 2.0**-5) @ integers(linear.weight.detach(), 2.0**-8).T
    got = ran(linear, Wanted("int8", scales), x)
    assert torch.equal(got.double(), sums.double() * 2.0**-13)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1, bias=False)
        self.conv.weight.data = grid((3, 3, 1, 1), 2.0**-8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        y += x
        return y


def test_residual_addition_is_that_of_integers() -> None:
    model = Residual()
    scales = t2t.calibrate(model, [grid((2, 3, 4, 4), 2.0**-6, 2)], method="minmax")
    x = grid((2, 3, 4, 4), 2.0**-6, 3)
    whole = integers(x, 2.0**-6)
    weight = integers(model.conv.weight.detach()[:, :, 0, 0], 2.0**-8)
    sums = torch.einsum("nchw,kc->nkhw", whole, weight)
    wanted = sums.double() * 2.0**-14 + whole.double() * 2.0**-6
    conversion = to_network(model, [x], quantize=Wanted("int8", scales))
    assert [one.bits for one in conversion.quantization.calls] == ["int8", "int8"]
    assert torch.equal(ran(model, Wanted("int8", scales), x).double(), wanted)
    kinds = [layer.kind for layer in capture(conversion.network.raw).layers]
    assert kinds.count("QUANTIZE") == 1, "one for both readers"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_convolution_is_what_pytorch_makes_of_rounded_operands(data: st.DataObject) -> None:
    n, groups = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2]))
    stride, dilation = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    transposed, bias = data.draw(st.booleans()), data.draw(st.booleans())
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    kinds = kinds if transposed else (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    layer = kinds[n - 1](
        4, 6, data.draw(st.integers(1, 3)), stride, 1, groups=groups, bias=bias, dilation=dilation
    )
    x = torch.randn(2, 4, *[7] * n)
    scales = t2t.calibrate(layer, [torch.randn_like(x)])
    conversion = to_network(layer, [x], quantize=Wanted("int8", scales))
    fake = t2t.fake_quantized(layer, conversion.quantization)
    with torch.no_grad():
        torch.testing.assert_close(ran(layer, Wanted("int8", scales), x), fake(x))
        assert not torch.allclose(fake(x), layer(x), atol=1e-4)


# -- accuracy --------------------------------------------------------------------------------------


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x + torch.relu(self.second(x)), 2)
        return self.head(x.flatten(1))


Task = tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def digits() -> Task:
    """Train a network on scikit-learn's digits; yields it, images that it knows, and tests."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    torch.manual_seed(0)
    order = torch.randperm(len(images))
    train, test = order[:1200], order[1200:]
    model = Digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(25):
        for batch in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval(), images[train[:256]], images[test], labels[test]


def accuracy(model: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("method", METHODS)
def test_digits_lose_at_most_one_point(digits: Task, method: str) -> None:
    model, known, images, labels = digits
    before = accuracy(model, images, labels)
    assert before > 0.97
    converted = t2t.convert(
        model, [images], int8=True, calibration=known.split(64), calibration_method=method
    )
    assert [one.bits for one in converted.quantization.calls][:3] == ["int8"] * 3
    assert accuracy(converted, images, labels) >= before - 0.01
    report = t2t.verify(model, converted, [images])
    assert report.ok, report
    assert report.quantization_error is not None
    assert 1e-4 < report.quantization_error < 0.1


def test_wrong_scales_are_seen(digits: Task) -> None:
    model, known, images, labels = digits
    scales = t2t.calibrate(model, known.split(64))
    for factor in (0.01, 500.0):
        wrong = Scales(
            {
                key: Range(tuple(x and x * factor for x in found.largest), found.ranks)
                for key, found in scales.ranges.items()
            },
            scales.method,
            scales.samples,
        )
        converted = t2t.convert(model, [images], int8=True, calibration=wrong)
        assert accuracy(converted, images, labels) < 0.9
        report = t2t.verify(model, converted, [images])
        assert report.quantization_error is not None
        assert report.quantization_error > 0.5
        assert not report.ok, "the float model tells"
        assert t2t.verify(model, converted, [images], quantization_rtol=10.0).ok, "as it was told"
    # A network that does not compute what it says is told by the fake-quantized model.
    good, other = (t2t.convert(model, [images], int8=True, calibration=s) for s in (scales, wrong))
    fake = t2t.fake_quantized(model, good.quantization)
    assert t2t.verify(fake, good, [images]).ok
    with torch.no_grad():
        assert not torch.allclose(fake(images), other(images), atol=0.1)


def test_fake_quantized_leaves_everything_as_it_is(digits: Task) -> None:
    model, known, images, _ = digits
    before, functions = copy.deepcopy(model.state_dict()), (F.conv2d, F.linear, nn.Module.__call__)
    scales = t2t.calibrate(model, [known[:8]])
    wanted = to_network(model, [images], quantize=Wanted("int8", scales)).quantization
    fake = t2t.fake_quantized(model, wanted)
    with torch.no_grad():
        assert not torch.equal(fake(images), model(images))
    with pytest.raises(RuntimeError):
        fake(images[:, :, 0])
    with pytest.raises(RuntimeError):
        t2t.calibrate(model, [images[:, :, :2, :2]])
    assert (F.conv2d, F.linear, nn.Module.__call__) == functions
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ConversionError, match="not a Scales"):
        t2t.fake_quantized(model, scales)  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match="does not call first/conv"):
        t2t.fake_quantized(nn.Identity(), wanted)(images)


# -- models ----------------------------------------------------------------------------------------


def bert() -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(num_hidden_layers=2, vocab_size=500)
    return transformers.BertModel(config), lambda: torch.randint(0, 500, (2, 16))


KNOWN: dict[str, tuple[Any, int]] = {
    # Convolutions, residual additions and the linear layer at the end.
    "resnet18": (
        lambda: (torchvision.models.resnet18(), lambda: torch.rand(2, 3, 64, 64)),
        20 + 8 + 1,
    ),
    "resnet50": (
        lambda: (torchvision.models.resnet50(), lambda: torch.rand(2, 3, 64, 64)),
        53 + 16 + 1,
    ),
    # The patches, four linear layers in each of twelve blocks, and the head; attention stays.
    "vit_b_16": (
        lambda: (torchvision.models.vit_b_16(), lambda: torch.rand(1, 3, 224, 224)),
        1 + 12 * 4 + 1,
    ),
    "bert": (bert, 2 * 6 + 1),
}


@pytest.mark.parametrize("bits", ["int8", "fp8"])
@pytest.mark.parametrize("name", KNOWN)
def test_known_models_build_for_ada_and_blackwell(name: str, bits: str) -> None:
    make, expected = KNOWN[name]
    torch.manual_seed(0)
    model, draw = make()
    model, x = model.eval(), draw()
    converted = t2t.convert(
        model,
        [x],
        **{bits: True},
        calibration=[draw(), draw()],
        compute_capabilities=["8.9", "12.0"],
    )
    calls = converted.quantization.calls
    assert sum(one.bits == bits for one in calls) == expected
    assert all(one.reason for one in calls if one.bits != bits)
    assert converted.details["compute_capabilities"] == ["8.9", "12.0"]
    size = sum(weight.numel() for weight in model.parameters())
    assert len(converted.engine.plan) < 4 * size / 2.5
    report = t2t.verify(model, converted, [x])
    assert report.ok, report
    assert report.quantization_error < 0.2
    if converted.engine.why_not(torch.device("cuda")) is None:
        layers = str(converted.inspect().layers).lower()
        assert ("int8" if bits == "int8" else "fp8") in layers


class Mixed(nn.Module):
    """Each kind of product, also those that stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 24))
        self.bias = nn.Parameter(torch.randn(24))
        self.line = nn.Conv1d(4, 8, 3)
        self.up = nn.ConvTranspose2d(8, 6, 3, 2, groups=2)
        self.wide = nn.ConvTranspose2d(8, 6, 3, 2, dilation=2)
        self.volume = nn.Conv3d(2, 4, 3)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        line = self.line(y).unsqueeze(2)
        return (
            torch.addmm(self.bias, x, self.weight),
            x @ x.T,
            torch.bmm(y, y.transpose(1, 2)),
            self.up(line),
            self.wide(line),
            self.volume(z),
            self.weight.T @ x.T,
            torch.einsum("ij,kj->ik", x, x),
            self.encoder(x[None]),
            x @ x[0],
        )


def mixed() -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    inputs = [torch.randn(5, 16), torch.randn(2, 4, 9), torch.randn(1, 2, 5, 5, 5)]
    return Mixed().eval(), inputs


@pytest.mark.parametrize("bits", ["int8", "fp8"])
def test_every_kind_of_product(bits: str) -> None:
    model, inputs = mixed()
    data = [[torch.randn_like(x) for x in inputs] for _ in range(3)]
    converted = t2t.convert(
        model, inputs, calibration=data, compute_capabilities=["8.9"], **{bits: True}
    )
    found = {one.call: one for one in converted.quantization.calls}
    done = {call for call, one in found.items() if one.bits == bits}
    assert done >= {"matmul", "matmul#1", "matmul#2", "matmul#3", "line/conv", "up/conv_transpose"}
    assert done >= {"volume/conv", "encoder.linear1/matmul", "encoder.linear2/matmul"}
    assert "stride and dilation" in found["wide/conv_transpose"].reason
    assert "vector" in found["matmul#4"].reason
    assert "einsum is not quantized" in found["einsum"].reason
    report = t2t.verify(model, converted, inputs)
    assert report.ok, report
    assert report.quantization_error < 0.15
    assert "stride and dilation" in str(converted.quantization)


def test_dynamic_sizes_and_half() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    x = torch.rand(2, 3, 8, 8)
    data = [torch.rand(n, 3, 8, 10) for n in (1, 4)]
    dynamic = t2t.convert(
        model, [x], int8=True, calibration=data, max_batch_size=4, dynamic_shapes=[{3: (8, 12)}]
    )
    for sizes in ((1, 3, 8, 8), (4, 3, 8, 12)):
        assert t2t.verify(model, dynamic, [torch.rand(sizes)]).ok
    for options in ({"fp16": True}, {"bf16": True}):
        half = t2t.convert(model, [x], int8=True, calibration=data, **options)
        assert t2t.verify(model, half, [x]).ok


def test_shared_weights_are_one_constant() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.ReLU(), layer).eval()
    scales = t2t.calibrate(model, [torch.randn(4, 8)])
    assert list(scales.ranges) == ["0/matmul", "0/matmul#1"]
    conversion = to_network(model, [torch.randn(4, 8)], quantize=Wanted("int8", scales))
    layers = capture(conversion.network.raw, conversion.network.weights).layers
    whole = [x for layer in layers for x in layer.weights.values() if x.dtype == torch.int8]
    assert len(whole) == 1


def test_products_under_vmap() -> None:
    """torch.func's wrappers hide values; the operators behind them are seen."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda row: self.linear(row @ row.T))(x)

    model, x = Model().eval(), torch.randn(3, 6, 6)
    converted = t2t.convert(model, [x], int8=True, calibration=[torch.randn(3, 6, 6)])
    assert [one.bits for one in converted.quantization.calls] == ["int8", "int8"]
    assert t2t.verify(model, converted, [x]).ok


def test_dropout_is_off_during_calibration() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4)).train()
    x = torch.randn(4, 8)
    with pytest.raises(ConversionError, match="Dropout is active"):
        t2t.convert(model, [x], int8=True, calibration=[x])
    converted = t2t.convert(
        model, [x], int8=True, calibration=[x], calibration_method="minmax", ignore_dropout=True
    )
    [call] = converted.quantization.calls
    assert call.roundings[0] is not None
    assert call.roundings[0].scale == pytest.approx(float(x.abs().max()) / 127)
    assert model[0].training


def test_products_of_constants() -> None:
    """Products of constants, as of relative positions, are made once and not quantized."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Linear(2, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.table(torch.ones(2)))

    model = Model().eval()
    x = torch.randn(2, 4)
    converted = t2t.convert(model, [x], int8=True, calibration=[torch.randn(2, 4)])
    assert [one.call for one in converted.quantization.calls] == ["head/matmul"]


# -- weights alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "error", "size"), [("int8", 1e-2, 0.35), ("int4", 0.15, 0.25)])
def test_weights_alone(bits: Any, error: float, size: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256)).eval()
    x = torch.randn(3, 512)
    plain = t2t.convert(model, [x])
    converted = t2t.convert(model, [x], weight_only=bits)
    assert [one.bits for one in converted.quantization.calls] == [f"{bits} weights"] * 2
    assert len(converted.engine.plan) < size * len(plain.engine.plan)
    report = t2t.verify(model, converted, [x])
    assert report.max_rel_error < 1e-5, report
    assert 1e-4 < report.quantization_error < error
    # Independently: each weight is within half a step of what the network holds.
    weight = model[0].weight.detach()
    blocks = weight.reshape(1024, -1, 128) if bits == "int4" else weight.reshape(1024, 1, 512)
    half = blocks.abs().amax(2, keepdim=True) / (7 if bits == "int4" else 127) / 2
    rounding = converted.quantization.calls[0].roundings[1]
    assert rounding is not None
    off = (rounding.fake(weight) - weight).reshape(blocks.shape).abs()
    assert bool((off <= half * 1.0001).all())
    assert float(off.max()) > float(half.min()) / 2


def test_int4_needs_whole_blocks() -> None:
    model = nn.Sequential(nn.Linear(128, 100), nn.Linear(100, 7))
    converted = t2t.convert(model.eval(), [torch.randn(2, 128)], weight_only="int4")
    assert [one.bits for one in converted.quantization.calls] == ["int4 weights", "float"]
    assert "100 inputs are no multiple of 128" in converted.quantization.calls[1].reason
    with pytest.raises(ConversionError, match=r"no product that can be quantized.*multiple of 128"):
        t2t.convert(nn.Linear(100, 7).eval(), [torch.randn(2, 100)], weight_only="int4")


# -- channels that stick out -----------------------------------------------------------------------


class Outliers(nn.Module):
    """Layers that read a channel 60 times as large as the others, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(32, 24), nn.Linear(32, 16)
        self.weight = nn.Parameter(torch.randn(32, 24))
        self.grouped = nn.Conv2d(32, 16, 3, groups=4)
        self.up = nn.ConvTranspose2d(32, 8, 2)
        self.line = nn.Conv1d(32, 8, 1)
        self.even = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> Any:
        image = x.mT.unflatten(2, (3, 4))
        query = self.query(x)
        parts = query, self.key(x), torch.addmm(query[0, 0], x[0], self.weight)
        convolved = self.grouped(image), self.up(image), self.line(x[0].T)
        return (*parts, *convolved, self.even(x[..., 8:]))


def with_outlier(seed: int) -> torch.Tensor:
    x = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(seed))
    x[..., 5] *= 60
    return x


@pytest.mark.parametrize("options", [{}, {"fp16": True}])
def test_channels_that_stick_out_are_shifted_exactly(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = Outliers().eval(), with_outlier(9)
    data = [with_outlier(seed) for seed in range(4)]
    scales = t2t.calibrate(model, data)
    plain = t2t.calibrate(model, data, smooth=False)
    shifted = {key for key, found in scales.ranges.items() if found.shifts}
    assert shifted == set(scales.ranges) - {"even/matmul"}
    assert not any(found.shifts for found in plain.ranges.values())
    assert scales.ranges["query/matmul"].shifts == scales.ranges["key/matmul"].shifts
    assert t2t.Scales.from_json(scales.to_json()) == scales
    errors = []
    for calibration in (scales, plain):
        converted = t2t.convert(model, [x], int8=True, calibration=calibration, **options)
        assert all(one.bits == "int8" for one in converted.quantization.calls)
        fake = t2t.fake_quantized(model, converted.quantization)
        with torch.no_grad():
            got, rounded, wanted = converted(x), fake(x), model(x)
        for a, b in zip(got, rounded, strict=True):
            assert float((a - b).norm() / b.norm()) < (2e-3 if options else 1e-6)
        errors.append([float((a - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)])
    for smoothed, other in list(zip(*errors, strict=True))[:-1]:
        assert smoothed < other / 1.5


def test_scales_for_other_channels_are_refused() -> None:
    layer, x = nn.Linear(4, 3).eval(), torch.ones(2, 4)
    wrong = Scales({"matmul": Range((1.0, None), (2, 2), (1, 0, 0), 1.0)}, "mse", 1)
    with pytest.raises(ConversionError, match=r"has 4 input channels, and calibration saw 3"):
        t2t.convert(layer, [x], int8=True, calibration=wrong)


# -- scales ----------------------------------------------------------------------------------------


def test_scales_can_be_saved_and_given_back(digits: Task, tmp_path: Any) -> None:
    model, known, images, _ = digits
    scales = t2t.calibrate(model, known.split(64))
    assert "head/matmul" in str(scales)
    again = t2t.Scales.from_json(scales.to_json())
    assert again == scales
    first = t2t.convert(model, [images], int8=True, calibration=scales)
    second = t2t.convert(model, [images], int8=True, calibration=again)
    assert torch.equal(first.engine.plan, second.engine.plan)
    first.save(tmp_path / "digits.pth")
    loaded = t2t.load(tmp_path / "digits.pth")
    assert loaded.quantization == first.quantization
    assert t2t.verify(model, loaded, [images]).quantization_error is not None


def test_calibration_sees_the_same_calls_in_a_fresh_process() -> None:
    """Where nothing was converted yet, and the registry is empty."""
    code = (
        "import torch, t2t; from torch import nn; torch.manual_seed(0);"
        "layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval();"
        "print(sorted(t2t.calibrate(layer, [torch.randn(2, 5, 16)]).ranges))"
    )
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    here = sorted(t2t.calibrate(layer, [torch.randn(2, 5, 16)]).ranges)
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.strip() == str(here)
    assert "linear1/matmul" in here


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 2, "ranges": {}, "method": "mse", "samples": 1}',
        *(
            '{"format": 1, "method": "mse", "samples": 1, "ranges": '
            f'{{"a": {{"largest": {largest}, "ranks": [2]}}}}}}'
            for largest in ("[-1]", "[NaN]", "[1, 2]", '["x"]', "3")
        ),
    ],
)
def test_damaged_scales_are_refused(text: str) -> None:
    with pytest.raises(ConversionError, match=r"no scales of t2t\.calibrate"):
        t2t.Scales.from_json(text)


def test_scales_of_another_model_are_refused(digits: Task) -> None:
    model, known, images, _ = digits
    scales = t2t.calibrate(model, [known[:8]])
    other = nn.Sequential(model.first, nn.Conv2d(16, 2, 1))
    with pytest.raises(ConversionError, match=r"not of this model: calibration saw 0 calls.*at "):
        t2t.convert(other.eval(), [images], int8=True, calibration=scales)


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    samples=st.lists(st.lists(finite, min_size=1, max_size=8), min_size=1, max_size=4),
    method=st.sampled_from(METHODS),
)
def test_any_range_is_right(samples: list[list[float]], method: str) -> None:
    histogram = _Histogram("call")
    for sample in samples:
        histogram.add(torch.tensor(sample))
    values = torch.tensor([x for sample in samples for x in sample]).abs()
    largest = histogram.largest(method, 99.99)
    assert 0 <= largest <= float(values.max())
    assert (largest == 0) == (float(values.max()) == 0)
    if method == "minmax":
        assert largest == float(values.max())


def test_methods_leave_out_what_is_rare() -> None:
    generator = torch.Generator().manual_seed(0)
    histogram = _Histogram("call")
    seen = [torch.randn(50_000, generator=generator) * (1 + i) / 4 for i in range(4)]
    seen[2][0] = 40.0
    for x in seen:
        histogram.add(x)
    every = torch.cat(seen).abs()
    assert histogram.largest("minmax", 0) == 40.0
    quantile = float(every.kthvalue(int(len(every) * 0.9999)).values)
    assert math.isclose(histogram.largest("percentile", 99.99), quantile, rel_tol=0.02)
    assert 2 < histogram.largest("entropy", 0) < 6

    def error(bound: float) -> float:
        scale = bound / 127
        return float(((every / scale).round().clamp_max(127) * scale - every).square().mean())

    best = min(error(k * 0.4) for k in range(1, 101))
    assert math.isclose(error(histogram.largest("mse", 0)), best, rel_tol=0.05)


def test_large_tensors_are_sampled_all_over() -> None:
    """The largest value counts wherever it is, and each channel's as often as the others'."""
    x = torch.arange(768.0).expand(2048, 768).clone()
    counts = torch.bincount(_sample(x).long(), minlength=768)
    assert 2**16 <= int(counts.sum()) <= x.numel() // 16 + 768
    assert int(counts.min()) > 0.9 * float(counts.float().mean())
    histogram = _Histogram("call")
    x[1234, 567] = -5000.0
    histogram.add(x)
    assert histogram.maximum == 5000
    wanted = float(x.abs().flatten().quantile(0.9))
    assert histogram.largest("percentile", 90) == pytest.approx(wanted, rel=0.02)


class Reread(nn.Module):
    """Reads one tensor by several calls, also after it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.last = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        y = self.side(x) + self.first(x)
        y = y + x
        x *= 8
        return y + self.last(x)


def test_a_tensor_is_looked_at_again_after_a_write() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    scales = t2t.calibrate(Reread(), [x, x / 2], method="minmax").ranges
    largest = float(x.abs().max())
    same = (scales["side/conv"], scales["first/conv"])
    assert [found.largest[0] for found in same] == [largest] * 2
    assert scales["add#1"].largest[1] == largest
    assert scales["last/conv"].largest[0] == 8 * largest


# -- what is refused -------------------------------------------------------------------------------

LINEAR = nn.Linear(4, 3).eval()
X = torch.randn(2, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"int8": True}, r"needs the ranges of activations: calibration=<"),
        ({"fp8": True}, r"fp8=True needs the ranges"),
        ({"calibration": [X]}, r"calibration is for int8=True and fp8=True"),
        ({"int8": True, "fp8": True, "calibration": [X]}, r"int8 and fp8: give one"),
        ({"int8": True, "weight_only": "int8", "calibration": [X]}, r"int8 and weight_only"),
        ({"weight_only": "int2"}, r"weight_only='int2': it takes"),
        ({"int8_exclude": ["head"]}, r"int8_exclude is for"),
        ({"int8": True, "calibration": True}, r"calibration=True: it takes an iterable"),
        ({"int8": True, "calibration": [X], "calibration_method": "max"}, r"it takes \"minmax\""),
        ({"int8_calib_dataset": [X]}, r"say int8=True, calibration=<"),
    ],
)
def test_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        t2t.convert(LINEAR, [X], **options)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], r"the data hold no input"),
        (X, r"takes an iterable of inputs.*not a Tensor"),
        ({"input": X}, r"not a dict"),
        ([(X, X)], r"the inputs do not fit forward"),
        ([torch.full((2, 4), math.nan)], r"matmul reads NaN or infinity"),
        ([torch.full((2, 4), math.inf)], r"matmul reads NaN or infinity"),
        ([X * 0], r"no product that can be quantized.*read zeros only"),
        ([X * 0 + 1e-40], r"its range is extreme"),
    ],
)
def test_data(data: Any, says: str) -> None:
    with pytest.raises(ConversionError, match=says):
        t2t.convert(LINEAR, [X], int8=True, calibration=data)


def test_other_calls_for_other_values() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x @ x.T if bool(x.sum() > 0) else torch.relu(x @ x.T) @ x

    with pytest.raises(ConversionError, match=r"input 1 makes other calls than the first"):
        t2t.calibrate(model, [torch.ones(3, 3), -torch.ones(3, 3)])


def test_nothing_to_quantize() -> None:
    with pytest.raises(ConversionError, match="no product that can be quantized"):
        t2t.convert(nn.ReLU(), [X], int8=True, calibration=[X])
    broken = nn.Linear(4, 3).eval()
    broken.weight.data[0, 0] = math.nan
    with pytest.raises(ConversionError, match="its weights hold NaN"):
        t2t.convert(broken, [X], int8=True, calibration=[X])


def test_excluded_modules(digits: Task) -> None:
    model, known, images, _ = digits
    data = [known[:16]]
    converted = t2t.convert(
        model, [images], int8=True, calibration=data, int8_exclude=["head"], fp32_modules=["first"]
    )
    bits = {one.call: one.bits for one in converted.quantization.calls}
    assert bits["head/matmul"] == bits["first/conv"] == "float"
    assert bits["second/conv"] == "int8"
    with pytest.raises(ConversionError, match=r"no module with a product fits 'heat'.*first"):
        t2t.convert(model, [images], int8=True, calibration=data, int8_exclude=["heat"])


def test_gpus_and_versions_without_these_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(**options: Any) -> Any:
        return t2t.convert(LINEAR, [X], calibration=[X], **options)

    with pytest.raises(BuildError, match=r"int8: a GPU of compute capability 7\.5 does not"):
        convert(int8=True, compute_capabilities=["7.5", "8.9"])
    with pytest.raises(BuildError, match=r'fp8: .* 8\.0 .*say compute_capabilities=\["8\.9", "12'):
        convert(fp8=True)
    with pytest.raises(BuildError, match=r"fp8: .* 8\.6 "):
        convert(fp8=True, compute_capabilities=["8.6"])
    with pytest.raises(BuildError, match=r"int4 weights: .* 7\.5 "):
        t2t.convert(
            nn.Linear(128, 4),
            [torch.ones(1, 128)],
            weight_only="int4",
            compute_capabilities=["7.5"],
        )
    # A model that brings its rounding along is refused too, before TensorRT is asked.
    with pytest.raises(BuildError, match=r"int8: .* 7\.5 "):
        t2t.convert(
            lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
            [X],
            compute_capabilities=["7.5"],
        )
    monkeypatch.setattr(backend, "version", lambda: "1.6.1.120")
    with pytest.raises(BuildError, match=r"int8: .* 1\.6\.1\.120 does not build it; it needs 1\.7"):
        convert(int8=True)
