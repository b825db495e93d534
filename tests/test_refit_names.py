"""Refit by names: `model_trt.refit(state_dict)`, beside a conversion of the module itself.

The refitter is the stand-in of test_refit.py. Where there is no GPU, the builder makes no
refittable engine, so the flag is taken back before it builds.
"""

import copy
import io
import json

import pytest
import torch
from torch import nn

import t2t
from t2t.backend import trt
from t2t.cli.converted import facts_shown
from t2t.errors import CheckpointError, ConversionError, EngineError
from tests.test_refit import X, check, load, other_weights

__all__ = ["load"]  # a fixture


def convert(model, inputs, **options):
    def configure(config):
        config.clear_flag(trt.BuilderFlag.REFIT)

    return t2t.convert(model, inputs, refittable=True, configure=configure, **options)


class Folded(nn.Module):
    """Weights used as they are, cast, transposed, sliced, shared, folded, and computed with."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.up = nn.ConvTranspose2d(4, 4, 2, groups=2, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
        self.back = nn.Linear(6, 4)
        self.again = self.back
        self.norm = nn.LayerNorm(4)
        self.table = nn.Embedding(10, 4)
        self.gain = nn.Parameter(torch.rand(4))
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.register_buffer("offset", torch.rand(4))
        nn.init.zeros_(self.back.bias)

    def forward(self, x):
        x = self.bn(self.up(self.conv(x))).mean((2, 3))
        x = self.norm(self.again(self.linear(x).relu())) + self.offset.flip(0)
        x = x * (self.gain.exp() + 1) @ self.table.weight[2:6].softmax(-1)
        return self.lstm(x[None])[0]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Folded().eval()


@pytest.fixture
def converted(model):
    return convert(model, [X])


@pytest.mark.parametrize(
    ("options", "rtol"), [({}, 1e-4), ({"fp16": True}, 2e-2), ({"bf16": True}, 5e-2)]
)
def test_all_weights(model, load, options, rtol):
    converted = convert(model, [X], **options)
    before = converted.program.run([X])["output"]
    newer = converted
    for seed in (1, 2):
        other_weights(model, seed)
        stand_in = load(newer)
        newer = newer.refit(model.state_dict())
        check(stand_in, newer, model, X, rtol)
        check(stand_in, newer, model, X.flip(0) * 2, rtol)
        assert bytes(newer.engine.plan.numpy()) == b"a refitted plan"
        again = convert(model, [X], **options)
        for mine, wanted in zip(newer.program.layers, again.program.layers, strict=True):
            for name, weight in wanted.weights.items():
                assert torch.equal(mine.weights[name].reshape(-1), weight.reshape(-1)), mine.name
    assert torch.equal(converted.program.run([X])["output"], before)


@pytest.mark.parametrize("name", list(Folded().state_dict()))
def test_one_entry(model, converted, load, name):
    old = model.state_dict()[name]
    new = {name: torch.rand_like(old) + 0.5 if old.is_floating_point() else old + 1}
    model.load_state_dict(new, strict=False)
    stand_in = load(converted)
    newer = converted.refit(new, strict=False)
    check(stand_in, newer, model, X)
    assert (len(stand_in.given) >= 1) == old.is_floating_point()


def test_parts_of_what_is_folded_follow_each_other(model, converted, load):
    newer = converted
    for seed, name in ((3, "bn.weight"), (4, "bn.running_var"), (5, "conv.weight")):
        other_weights(model, seed, {name})
        stand_in = load(newer)
        newer = newer.refit({name: model.state_dict()[name]}, strict=False)
        check(stand_in, newer, model, X)


def test_a_checkpoint_keeps_the_names(model, converted, load):
    file = io.BytesIO()
    torch.save(converted.state_dict(), file)
    file.seek(0)
    loaded = t2t.TRTModule()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    loaded.require_engine = loaded.cuda_graph = True
    other_weights(model, 6)
    stand_in = load(loaded)
    newer = copy.deepcopy(loaded).refit(model.state_dict())
    check(stand_in, newer, model, X)
    assert ("new weights", "by names") in facts_shown(loaded)
    newer = copy.deepcopy(loaded)
    newer.require_engine = True
    newer = newer.refit({k: x.half() for k, x in model.state_dict().items()})
    half = copy.deepcopy(model)
    half.load_state_dict({k: x.half() for k, x in model.state_dict().items()})
    check(load(newer), newer, half, X)
    assert newer.require_engine


def test_a_refit_by_the_module_keeps_the_names(model, converted, load):
    other_weights(model, 7)
    load(converted)
    newer = t2t.refit(converted, model, [X])
    other_weights(model, 8, {"bn.bias", "gain"})
    stand_in = load(newer)
    state = {name: model.state_dict()[name] for name in ("bn.bias", "gain")}
    check(stand_in, newer.refit(state, strict=False), model, X)


def test_dynamic_sizes_and_transformers(load):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.rand(2, 3, 8)
    converted = convert(model, [x], dynamic_shapes=[{1: (1, 9)}])
    other_weights(model, 9)
    model.load_state_dict({k: x - 0.9 for k, x in model.state_dict().items()})
    stand_in = load(converted)
    newer = converted.refit(model.state_dict())
    for length in (3, 7):
        check(stand_in, newer, model, torch.rand(2, length, 8))


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_state_is_that_of_the_entries(load):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.gain = nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.total += x * self.gain
            return self.total.clone()

    model = Counter().eval()
    x = torch.rand(3)
    converted = convert(model, [x])
    load(converted)
    new = {"total": torch.rand(3), "gain": torch.rand(3)}
    newer = converted.refit(new)
    assert torch.equal(newer.state["total"], new["total"])
    torch.testing.assert_close(newer(x), new["total"] + x * new["gain"])
    assert torch.equal(converted.state["total"], torch.zeros(3))


def test_wrong_entries(model, converted, load):
    stand_in = load(converted)
    state = model.state_dict()
    missing = {name: x for name, x in state.items() if name != "gain"}
    for given, strict, words in (
        (missing, True, r"nothing unknown, 'gain' missing"),
        ({"gian": state["gain"]}, False, "'gian' unknown"),
        ({f"module.{name}": x for name, x in state.items()}, True, "and 19 more unknown"),
        ({"gain": torch.rand(5)}, False, r"'gain' is torch.float32 \(5,\), and was"),
        ({"gain": torch.ones(4, dtype=torch.int64)}, False, "'gain' is torch.int64"),
        ({"gain": [1.0] * 4}, False, "'gain' is a list"),
        ({"back.bias": torch.ones(4), "again.bias": torch.zeros(4)}, False, "are one tensor"),
    ):
        with pytest.raises(ConversionError, match=words):
            converted.refit(given, strict=strict)
    for wrong in (model, "weights.pth", list(state.items()), None):
        with pytest.raises(ConversionError, match=r"a mapping of names .* t2t\.refit\("):
            converted.refit(wrong)
    assert not stand_in.given


def test_large_numbers_are_refused_where_types_would_change(load):
    model = nn.Linear(4, 16).eval()
    x = torch.rand(2, 4)
    large = {"weight": torch.full((16, 4), 7e4)}
    half, wide = convert(model, [x], fp16=True), convert(model, [x])
    load(half)
    with pytest.raises(ConversionError, match="would be as large as"):
        half.refit(large, strict=False)
    stand_in = load(wide)
    model.load_state_dict(large, strict=False)
    check(stand_in, wide.refit(large, strict=False), model, x)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_only": "int8"},
        {"weight_only": "int4"},
        {"int8": True},
    ],
)
def test_scales_of_quantized_weights_follow(load, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)).eval()
    x = torch.rand(2, 128)
    if "int8" in options:
        options = {**options, "calibration": t2t.calibrate(model, [[x], [x * 2]])}
    converted = convert(model, [x], **options)
    other_weights(model, 10)
    stand_in = load(converted)
    if options.get("weight_only") == "int4":
        with pytest.raises(EngineError, match="takes no new ones for them"):
            converted.refit(model.state_dict())
        return
    if "int8" in options:
        assert converted.refit({}, strict=False).engine.plan.equal(converted.engine.plan)
        with pytest.raises(ConversionError, match=r"were measured with .* keep_scales=True keeps"):
            converted.refit(model.state_dict())
        with pytest.raises(ConversionError, match="keep_scales=True"):
            converted.refit({"2.bias": torch.ones(4)}, strict=False)
    newer = converted.refit(model.state_dict(), keep_scales="int8" in options)
    again = convert(model, [x], **options)
    changed = 0
    for mine, wanted, old in zip(
        newer.program.layers, again.program.layers, converted.program.layers, strict=True
    ):
        for name, weight in wanted.weights.items():
            assert torch.equal(mine.weights[name].reshape(-1), weight.reshape(-1)), mine.name
            changed += not torch.equal(old.weights[name].reshape(-1), weight.reshape(-1))
    assert changed >= 4
    assert len(stand_in.given) >= changed
    for bad in (torch.nan, torch.inf):
        wrong = {"0.weight": model[0].weight.detach().clone()}
        wrong["0.weight"][3, 5] = bad
        with pytest.raises(ConversionError, match=r"'0\.weight' has NaN or infinite"):
            converted.refit(wrong, strict=False)


class Decides(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.gain = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.other = nn.Parameter(torch.tensor([0.5, 0.7]))
        self.register_buffer("order", torch.tensor([1, 0]))

    def forward(self, x):
        return self.how(self, x)


def scaled_in_place(m, x):
    gain = m.gain.clone()
    gain.mul_(2)
    return x * gain + m.other


def filled(m, x):
    gain = torch.zeros(3)
    gain[:2] = m.gain
    return x * gain[:2] + m.other


@pytest.mark.parametrize(
    ("how", "name", "words"),
    [
        (lambda m, x: x * m.other if m.gain.sum() > 1 else x, "gain", "conversion reads it"),
        (lambda m, x: x * m.gain[0].item() + m.other, "gain", "conversion reads it"),
        (lambda m, x: x * m.gain[m.order] + m.other, "order", "it holds integers"),
        (scaled_in_place, "gain", "conversion reads it by aten.mul_"),
        (filled, "gain", "conversion reads it by aten.copy_"),
    ],
)
def test_what_is_not_followed_must_stay(load, how, name, words):
    model = Decides(how).eval()
    x = torch.rand(5, 2)
    converted = convert(model, [x])
    stand_in = load(converted)
    with pytest.raises(ConversionError, match=rf"'{name}' has changed.*{words}"):
        converted.refit({name: model.state_dict()[name].flip(0)}, strict=False)
    assert not stand_in.given
    # All others may change, beside the same values.
    state = {**model.state_dict(), "other": torch.tensor([4.0, 5.0])}
    model.load_state_dict(state)
    check(stand_in, converted.refit(state), model, x)


@pytest.mark.parametrize(
    "how",
    [
        lambda m, x: x * torch.tensor(m.gain.tolist()) + m.other,
        lambda m, x: x * torch.from_numpy(m.gain.detach().numpy() * 2) + m.other,
    ],
)
def test_what_is_not_seen_leaves_no_names(load, how):
    model = Decides(how).eval()
    converted = convert(model, [torch.rand(5, 2)])
    load(converted)
    assert any("t2t.refit only: not all" in text for _, text in facts_shown(converted))
    with pytest.raises(EngineError, match=r"not all that computes .* was seen.* t2t\.refit"):
        converted.refit(model.state_dict())


def test_modules_without_names(model, load):
    for options in (
        {"keep_program": False},
        {"partial": True, "torch_executed_ops": ["aten::relu"]},
    ):
        converted = convert(model, [X], **options)
        with pytest.raises(EngineError, match="refittable=True"):
            converted.refit(model.state_dict())
    with pytest.raises(EngineError, match="refittable=True"):
        t2t.convert(model, [X]).refit(model.state_dict())
    with pytest.raises(EngineError, match="a function has no state_dict"):
        convert(lambda x: x + 1, [X]).refit({})


def test_the_module_is_left_alone(model):
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    convert(model, [X])
    assert torch.equal(torch.rand(3), wanted)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_damaged_maps(converted):
    state = converted.state_dict()
    data = json.loads(state["refit"])
    for change in (
        {"places": data["places"][1:]},
        {"places": [["nothing", "weights"], *data["places"][1:]]},
        {"entries": [["gain"], *data["entries"][1:]]},
        {"values": [99]},
        {"fixed": {"gain": 3}},
    ):
        entries = {".": None, "": json.dumps({**data, **change})}
        own = {k.removeprefix("refit"): x for k, x in state.items() if k.startswith("refit.")}
        with pytest.raises(CheckpointError):
            type(converted._converted.weights).from_state(
                {**own, "": entries[""]}, converted.program
            )
    damaged = {**state, "refit": state["refit"][:-1]}
    with pytest.raises(CheckpointError, match="'refit'"):
        t2t.TRTModule().load_state_dict(damaged)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_real_engine(model, place):
    x = X.cuda()
    reason = t2t.convert(model, [X]).engine.why_not(x.device)
    if reason is not None:
        pytest.skip(reason)
    model.to(place)
    converted = t2t.convert(model, [X.to(place)], refittable=True)
    for seed, names in ((13, None), (14, {"bn.weight"}), (15, {"gain", "lstm.weight_ih_l0"})):
        other_weights(model, seed, names)
        state = model.state_dict()
        given = {name: state[name] for name in names or state}
        converted = converted.refit(given, strict=names is None)
        with torch.no_grad():
            wanted = model(X.to(place)).cuda()
        y = converted(x)
        assert converted.ran_on.is_engine
        assert torch.linalg.norm(y - wanted) <= 1e-4 * torch.linalg.norm(wanted)


def test_merged_lora(load):
    """The usual partial update: some projections of a transformer get a product of low rank."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    converted = convert(model, [x])
    stand_in = load(converted)
    targets = ("self_attn.in_proj_weight", "linear1.weight")
    before, newer = copy.deepcopy(model.state_dict()), converted
    for scale in (0.5, 0.25):  # one adapter, then another in its place
        merged = {
            name: w + scale * torch.randn(len(w), 2) @ torch.randn(2, w.shape[1])
            for name, w in before.items()
            if name.endswith(targets)
        }
        assert len(merged) == 4
        model.load_state_dict(before | merged)
        newer = newer.refit(merged, strict=False)
        check(stand_in, newer, model, x)
        stand_in = load(newer)
    assert len(stand_in.keys()) > 4
    # Taken out again, it is as it was.
    back = {name: before[name] for name in merged}
    again = newer.refit(back, strict=False).program
    assert torch.equal(again.run([x])["output"], converted.program.run([x])["output"])
