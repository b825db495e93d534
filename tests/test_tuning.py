"""What low precision costs, module by module, and what has to stay in float32 for a tolerance."""

import json
from typing import Any

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import ConversionError, OptionError, VerificationError
from t2t.precision import Tuning, operator_name

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(((got - wanted).norm() / wanted.norm()).detach())


class Net(nn.Module):
    """Four linear layers; what ``wide`` and the next one see is too large for float16."""

    def __init__(self, factor: float = 1e5) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.wide = nn.Linear(16, 16)
        self.last = nn.Linear(16, 8)
        with torch.no_grad():
            self.body[2].weight.mul_(30)
            self.wide.weight.mul_(factor)
            self.last.weight.div_(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.wide(self.body(self.first(x)))).softmax(-1)


class Attention(nn.Module):
    """Attention by hand, with a function of its own that loses much in half precision."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).mT * self.scale
        return (scores / self.scale).tanh() @ self.value(x)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def low_layers(module: Any) -> set[str]:
    """Return the modules with a layer in float16 that computes."""
    layers = module.program.layers
    computing = [one for one in layers if one.kind not in ("CAST", "CONSTANT", "SHUFFLE")]
    return {one.name.split("/")[0] for one in computing if "HALF" in one.types}


# -- sensitivity -----------------------------------------------------------------------------------


def test_the_module_that_overflows_is_told_from_those_that_round(net, x):
    report = t2t.sensitivity(net, [x])
    rows = {row.name: row for row in report.rows}
    assert list(rows) == ["first", "body.0", "body.1", "body.2", "wide", "last", "aten::_softmax"]
    assert {name for name, row in rows.items() if row.cause == "overflow"} == {"wide", "last"}
    assert rows["wide"].overflow > 0
    assert rows["wide"].layer.startswith("wide/")
    assert rows["wide"].error == report.error == float("inf")
    assert rows["first"].overflow == 0
    assert 1e-6 < rows["first"].error < 1e-3
    assert rows["aten::_softmax"].error < 1e-6  # computes in float32 anyway
    assert rows["wide"].share == rows["last"].share == 0.5
    assert "wide" in str(report)
    assert "█" in str(report)
    assert "overflow" in report._repr_html_()


def test_shares_add_up_and_rounding_accumulates(x):
    torch.manual_seed(0)
    report = t2t.sensitivity(Net(1.0).eval(), [x])
    assert sum(row.share for row in report.rows) == pytest.approx(1)
    rows = {row.name: row for row in report.rows}
    assert rows["first"].rounding == rows["first"].accumulated  # nothing is before it
    for name in ("body.0", "body.2", "wide", "last"):
        assert 1e-5 < rows[name].rounding < rows[name].accumulated < 1e-2
    # Errors are independent: their squares add up to that of all together, nearly.
    together = sum(row.error**2 for row in report.rows) ** 0.5
    assert together == pytest.approx(report.error, rel=0.7)
    assert report.worst(1)[0].error == max(row.error for row in report.rows)


@pytest.mark.parametrize("precision", ["bf16", "int8", "fp8"])
def test_other_precisions(precision, x):
    torch.manual_seed(0)
    calibration = [x] if precision in ("int8", "fp8") else None
    report = t2t.sensitivity(
        Net(1.0).eval(), [x], precision=precision, calibration=calibration, depth=1
    )
    found = [row.name for row in report.rows]
    wanted = ["first", "body", "wide", "last", "aten::_softmax"]
    assert found == (wanted if precision == "bf16" else wanted[:-1])  # products alone are rounded
    assert all(1e-4 < row.error < 0.1 for row in report.rows[:4])
    assert report.error > max(row.error for row in report.rows) / 2


def test_left_in_float32(x):
    torch.manual_seed(0)
    net = Net(1.0).eval()
    alone = t2t.sensitivity(net, [x])
    left = t2t.sensitivity(net, [x], left_in_float32=True)
    assert left.error == alone.error
    assert left.rows != alone.rows
    assert max(left.rows, key=lambda row: row.share).error < left.error
    torch.manual_seed(0)
    broken = t2t.sensitivity(Net().eval(), [x], left_in_float32=True)
    assert all(row.error == float("inf") for row in broken.rows)  # two modules overflow


def test_sensitivity_as_data_and_as_a_picture(net, x):
    report = t2t.sensitivity(net, {"x": x}, depth=1)
    data = json.loads(report.to_json())
    assert data["error"] is None
    assert [row["name"] for row in data["rows"]] == [row.name for row in report.rows]
    assert data["rows"][0]["cause"] == "rounding"
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = pyplot.figure().subplots()
    report.plot(axes, count=3)
    assert [bar.get_width() for bar in axes.patches][-1] == 50
    assert axes.get_yticklabels()[-1].get_text() == "wide"


def test_sensitivity_needs_what_it_says(net, x):
    with pytest.raises(OptionError, match="it takes fp16, bf16, int8 or fp8"):
        t2t.sensitivity(net, [x], precision="fp4")
    with pytest.raises(OptionError, match="needs the ranges"):
        t2t.sensitivity(net, [x], precision="int8")
    with pytest.raises(OptionError, match='for precision="int8"'):
        t2t.sensitivity(net, [x], calibration=[x])


# -- what stays in float32 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("aten::_softmax", "softmax"),
        ("aten::softmax.int", "softmax"),
        ("torch.nn.functional.softmax", "softmax"),
        ("aten::add_.Tensor", "add"),
        ("torch.Tensor.__matmul__", "matmul"),
        ("tanh", "tanh"),
    ],
)
def test_spellings_of_an_operator(name, wanted):
    assert operator_name(name) == wanted


@pytest.mark.parametrize("name", ["aten::tanh", "torch.tanh", "tanh_"])
def test_operators_in_float32(name):
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(2, 5, 32)
    half = t2t.convert(model, [x], fp16=True)
    kept = t2t.convert(model, [x], fp16=True, fp32_ops=[name])
    for converted, wanted in ((half, "HALF"), (kept, "FLOAT")):
        [tanh] = [one for one in converted.program.layers if one.name == "tanh"]
        assert tanh.types == (wanted,)
    assert kept.tuning.fp32_ops == (name,)
    assert t2t.verify(model, kept, [x]).ok


def test_operators_that_are_not_called(net, x):
    with pytest.raises(OptionError, match=r"does not call 'aten::pow'; it calls aten::_softmax"):
        t2t.convert(net, [x], fp16=True, fp32_ops=["aten::pow"])


def test_operators_in_float32_are_not_quantized(x):
    net = Net(1.0).eval()
    int8 = t2t.convert(net, [x], int8=True, calibration=[x], fp32_modules=["first"])
    assert {one.call: one.bits for one in int8.quantization.calls}["first/matmul"] == "float"
    with pytest.raises(ConversionError, match="excluded by name"):
        t2t.convert(net, [x], int8=True, calibration=[x], fp32_ops=["torch.nn.functional.linear"])


# -- the tuner -------------------------------------------------------------------------------------


def test_what_overflows_stays_in_float32(net, x):
    converted = t2t.convert(net, [x], fp16=True, tolerance=1e-3)
    assert converted.fp32_modules == ("wide", "last")
    assert low_layers(converted) == {"first", "body.0", "body.1", "body.2"}
    for given in (x, torch.randn(8, 16)):
        assert relative(converted(given), net(given)) < 1e-3
    assert converted.tuning.error <= 1e-3
    assert converted.tuning.error == pytest.approx(
        t2t.verify(net, converted, [x], random_inputs=0).max_rel_error
    )
    # None of them can be missing.
    for name in converted.fp32_modules:
        fewer = [other for other in converted.fp32_modules if other != name]
        assert not t2t.verify(net, t2t.convert(net, [x], fp16=True, fp32_modules=fewer), [x]).ok


def test_a_tighter_tolerance_keeps_more(x):
    torch.manual_seed(0)
    net = Net(1.0).eval()
    whole = t2t.convert(net, [x], fp16=True, tolerance=1e-2)
    assert whole.fp32_modules == ()
    assert len(whole.tuning.trials) == 1  # at once
    error = whole.tuning.error
    some, more = (t2t.convert(net, [x], fp16=True, tolerance=error * part) for part in (0.9, 0.5))
    for part, converted in ((0.9, some), (0.5, more)):
        assert 0 < converted.tuning.error <= error * part
        assert relative(converted(x), net(x)) <= error * part
        assert low_layers(converted)
    assert 0 < len(some.fp32_modules) <= len(more.fp32_modules)


def test_it_is_found_again_and_recorded(net, x, tmp_path):
    one, other = (t2t.convert(net, [x], fp16=True, tolerance=1e-3) for _ in range(2))
    assert one.tuning == other.tuning
    one.save(tmp_path / "net.pt")
    loaded = t2t.load(tmp_path / "net.pt")
    assert loaded.tuning == one.tuning
    assert loaded.fp32_modules == one.fp32_modules
    assert "nothing in float32" in str(loaded.tuning)
    assert "in float32: wide, last" in str(loaded.tuning)
    plain = t2t.convert(net, [x])
    assert plain.tuning == Tuning()


def test_what_the_user_keeps_is_kept(net, x):
    converted = t2t.convert(
        net, [x], fp16=True, tolerance=1e-3, fp32_modules=["body.*"], fp32_ops=["aten::relu"]
    )
    assert converted.fp32_modules == ("body.*", "wide", "last")
    assert converted.tuning.fp32_ops == ("aten::relu",)
    assert low_layers(converted) == {"first"}


def test_one_trace_and_one_engine(net, x, monkeypatch):
    calls: list[str] = []
    for name in ("trace_module", "build"):
        function = getattr(t2t.conversion, name)
        monkeypatch.setattr(
            t2t.conversion,
            name,
            lambda *args, _f=function, _n=name, **kwargs: (calls.append(_n), _f(*args, **kwargs))[
                1
            ],
        )
    converted = t2t.convert(net, [x], fp16=True, tolerance=1e-3)
    assert calls == ["trace_module", "build"]
    assert len(converted.tuning.trials) > 5


def test_operators_of_a_function():
    torch.manual_seed(0)
    weight = torch.randn(16, 16)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(x, weight)
        return torch.relu(y * 300 * 300) / 9e4

    x = torch.randn(4, 16)
    converted = t2t.convert(function, [x], fp16=True, tolerance=1e-3)
    assert converted.fp32_modules == ()
    assert converted.tuning.fp32_ops == ("aten::mul.Tensor",)
    assert relative(converted(x), function(x)) < 1e-3


def test_calls_of_a_module_itself():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.inner(x) * 250 * 250 * 16).abs() / 1e6

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Block(), nn.Linear(16, 16)).eval()
    x = torch.randn(4, 16)
    converted = t2t.convert(model, [x], fp16=True, tolerance=1e-3)
    assert converted.fp32_modules == ("1",)
    assert low_layers(converted) == {"0", "2"}
    assert relative(converted(x), model(x)) < 1e-3


@pytest.mark.parametrize(
    "options",
    [{"int8": True}, {"fp8": True, "compute_capabilities": ["8.9"]}, {"int8": True, "fp16": True}],
)
def test_quantized_modules_are_tuned(options, x):
    torch.manual_seed(0)
    net = Net(1.0).eval()
    with torch.no_grad():
        net.wide.weight[0, 0] = 40  # one input in which much precision of the row is lost
    scales = t2t.calibrate(net, [x])
    plain = t2t.convert(net, [x], calibration=scales, **options)
    error = relative(plain(x), net(x))
    tuned = t2t.convert(net, [x], calibration=scales, tolerance=error * 0.8, **options)
    assert relative(tuned(x), net(x)) <= error * 0.8
    kept = [one.call for one in tuned.quantization.calls if one.reason == "excluded by name"]
    assert 0 < len(kept) < 5
    left = 5 - len(kept)
    assert sum(one.bits != "float" for one in tuned.quantization.calls) == left


def test_tuning_inputs(net, x):
    small = x / 1e6
    converted = t2t.convert(net, [small], fp16=True, tolerance=0.5)
    given = t2t.convert(net, [small], fp16=True, tolerance=1e-3, tuning_inputs=[(x,), [-x]])
    assert len(converted.fp32_modules) <= len(given.fp32_modules)
    assert relative(given(-x), net(-x)) < 1e-3
    with pytest.raises(ConversionError, match="tuning_inputs: they hold no input"):
        t2t.convert(net, [x], fp16=True, tolerance=1e-3, tuning_inputs=[])
    with pytest.raises(ConversionError, match="tuning_inputs: the inputs do not fit forward"):
        t2t.convert(net, [x], fp16=True, tolerance=1e-3, tuning_inputs=[(x, x)])


def test_a_tolerance_that_float32_does_not_meet(x):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    net(torch.randn(9, 16) * 3 + 1)
    net.eval()
    with pytest.raises(VerificationError, match=r"1e-12 cannot be met: with every module in float"):
        t2t.convert(net, [x], fp16=True, tolerance=1e-12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tolerance": 1e-3}, "give fp16=True"),
        ({"tolerance": 0.0, "fp16": True}, "the largest relative error"),
        ({"tolerance": "1e-3", "fp16": True}, "the largest relative error"),
        ({"tuning_inputs": [1], "fp16": True}, "give tolerance"),
        ({"tuning_inputs": torch.zeros(1), "fp16": True, "tolerance": 1.0}, "an iterable"),
        ({"low_precision_io": True}, "low_precision_io is for"),
        ({"fp32_ops": "aten::add", "fp16": True}, "operators' names"),
    ],
)
def test_options_that_do_not_fit(net, x, options, text):
    with pytest.raises(OptionError, match=text):
        t2t.convert(net, [x], **options)


# -- half inputs and outputs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "dtype", "most"),
    [({"fp16": True}, torch.float16, 2e-3), ({"bf16": True}, torch.bfloat16, 2e-2)],
)
def test_half_inputs_and_outputs(options, dtype, most, x, tmp_path):
    torch.manual_seed(0)
    net = Net(1.0).eval()
    converted = t2t.convert(net, [x], low_precision_io=True, max_batch_size=16, **options)
    assert [spec.dtype for spec in converted.signature.inputs] == [dtype]
    assert [spec.dtype for spec in converted.signature.outputs] == [dtype]
    got = converted(x.to(dtype))
    assert got.dtype == dtype
    for given in (x, torch.randn(3, 16)):
        assert relative(converted(given.to(dtype)).float(), net(given)) < most
    # What is inside is as without: only the edges round.
    plain = t2t.convert(net, [x], **options)
    assert torch.equal(plain(x.to(dtype).float()).to(dtype), got)
    with pytest.raises(t2t.errors.ShapeError, match="float"):
        converted(x)
    for given in ([x], [x.to(dtype)]):
        assert t2t.verify(net, converted, given).ok
    assert t2t.compare_layers(converted, net, [x]).ok
    converted.save(tmp_path / "net.pt")
    assert t2t.verify(net, t2t.load(tmp_path / "net.pt"), [x]).ok


def test_half_edges_of_other_types():
    def function(x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + ids, "ids": ids + 1, "same": x, "mask": x > 0}

    x, ids = torch.randn(3, 4), torch.arange(4)
    converted = t2t.convert(function, [x, ids], fp16=True, low_precision_io=True)
    found = converted(x.half(), ids)
    dtypes = {name: value.dtype for name, value in found.items()}
    assert dtypes == {
        "sum": torch.float16, "ids": torch.int64, "same": torch.float16, "mask": torch.bool,
    }  # fmt: skip
    assert torch.equal(found["same"], x.half())
    assert torch.equal(found["sum"], (x.half().float() + ids).half())
    assert t2t.verify(function, converted, [x, ids]).ok
    wrong = t2t.verify(lambda x, ids: {**function(x, ids), "sum": x - ids}, converted, [x, ids])
    assert not wrong.ok
    with pytest.raises(OptionError, match="float16 itself: leave it out"):
        t2t.convert(lambda x: x + 1, [x.half()], fp16=True, low_precision_io=True)


# -- the task's own measure ------------------------------------------------------------------------


def top1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    wanted = targets if targets.dim() == 1 else targets.argmax(-1)
    return (outputs.argmax(-1) == wanted).float().mean()


def test_the_metric_of_a_task(x):
    torch.manual_seed(0)
    net = Net(1.0).eval()
    int8 = t2t.convert(net, [x], int8=True, calibration=[x])
    report = t2t.verify(net, int8, [x], metric=top1)
    assert report.metric == (1.0, pytest.approx(float(top1(int8(x), net(x)))))
    labels = net(x).argmax(-1)
    labels[0] = (labels[0] + 1) % 8
    data = [(x, labels), ((x.flip(0),), labels.flip(0))]
    report = t2t.verify(net, int8, [x], metric=top1, data=data)
    assert report.metric[0] == pytest.approx(7 / 8)
    assert "metric" in str(report)
    assert json.loads(report.to_json())["metric"][0] == pytest.approx(7 / 8)
    torch.manual_seed(5)
    other = t2t.convert(Net(1.0).eval(), [x])
    lost = t2t.verify(net, other, [x], rtol=1e9, metric=top1, data=data, metric_drop=0.05)
    assert not lost.ok
    assert t2t.verify(net, other, [x], rtol=1e9, metric=top1, data=data).ok
    with pytest.raises(VerificationError, match="no pair"):
        t2t.verify(net, int8, [x], metric=top1, data=[])


def test_signal_to_noise_of_layers(x):
    torch.manual_seed(0)
    net = Net(1.0).eval()
    report = t2t.compare_layers(t2t.convert(net, [x], fp16=True), net, [x])
    ratios = [layer.snr for layer in report.layers]
    assert 50 < min(ratios) < 80  # float16 has 11 bits, of 6 dB each
    assert " dB " in str(report)
    worst = max(report.layers, key=lambda layer: layer.max_rel_error)
    assert worst.snr == min(ratios)
    assert 10 ** (-worst.snr / 20) == pytest.approx(worst.max_rel_error)
    assert json.loads(report.to_json())["layers"][0]["snr"] == report.layers[0].snr
    plain = t2t.convert(net, [x])
    exact = t2t.compare_layers(plain, plain, [x])
    assert all(layer.snr == float("inf") for layer in exact.layers)
    assert json.loads(exact.to_json())["layers"][0]["snr"] is None
