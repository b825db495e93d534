"""New weights for a built engine. Where none can be loaded, its refitter is a stand-in.

The stand-in has the network that the engine was built from, takes weights from the addresses that
it is given, and checks names, roles, types and sizes as TensorRT does. What it has afterwards runs
in the executor and is compared with the original module, so that a stale weight shows.
"""

import copy
import dataclasses
import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import t2t
from t2t.backend import trt
from t2t.dtypes import to_trt
from t2t.errors import BuildError, ConversionError, EngineError, OptionError
from t2t.module import TRTModule
from t2t.reference import Program
from tests.engines import memory

ROLES = {
    "kernel": "KERNEL",
    "bias": "BIAS",
    "shift": "SHIFT",
    "scale": "SCALE",
    "weights": "CONSTANT",
}


class Config:
    def __init__(self):
        self.flags = set()

    def set_flag(self, flag):
        self.flags.add(flag.name)

    def clear_flag(self, flag):
        self.flags.discard(flag.name)


class StandIn:
    """ICudaEngine and IRefitter of one network."""

    def __init__(self, module, plan=b"a refitted plan", together=(), without=()):
        self.program = module.program
        self.plan = plan
        self.together = set(together)  # layers whose weights TensorRT has combined
        self.without = set(without)  # layers whose weights it has folded away
        self.refittable = True
        self.given = {}
        self.refitted = False
        self.fails = False

    # IRefitter

    def keys(self):
        return [
            (layer.name, ROLES[name])
            for layer in self.program.layers
            if layer.name not in self.without
            for name in layer.weights
        ]

    def get_all(self):
        return self.lists(self.keys())

    def get_missing(self):
        combined = [key for key in self.keys() if key[0] in self.together]
        needed = combined if any(key in self.given for key in combined) else []
        return self.lists([key for key in needed if key not in self.given])

    @staticmethod
    def lists(keys):
        return [name for name, _ in keys], [getattr(trt.WeightsRole, role) for _, role in keys]

    def set_weights(self, layer_name, role, weights):
        dtype, address, count = weights
        name = next(n for n, r in ROLES.items() if r == role.name)
        layer = next(layer for layer in self.program.layers if layer.name == layer_name)
        old = layer.weights[name]
        if (layer_name, role.name) not in self.keys():
            return False
        if (to_trt(old.dtype), old.numel()) != (dtype, count):
            return False
        self.given[layer_name, role.name] = (address, old.dtype, count)
        return True

    def refit_cuda_engine(self):
        assert not self.refitted
        if self.fails or self.get_missing()[0]:
            return False
        read = {
            key: memory(a, dtype, (n,), "cpu").clone() for key, (a, dtype, n) in self.given.items()
        }
        layers = [
            dataclasses.replace(
                layer,
                weights={
                    name: read.get((layer.name, ROLES[name]), old.clone())
                    for name, old in layer.weights.items()
                },
            )
            for layer in self.program.layers
        ]
        old = self.program
        self.program = Program(old.inputs, old.outputs, layers, old.version)
        return True

    # ICudaEngine

    def create_serialization_config(self):
        return Config()

    def serialize_with_config(self, config):
        assert "EXCLUDE_WEIGHTS" not in config.flags
        assert "INCLUDE_REFIT" in config.flags or not hasattr(
            trt.SerializationFlag, "INCLUDE_REFIT"
        )
        return self.plan


@pytest.fixture
def load(monkeypatch):
    """Let plans be loaded as the stand-in of a module."""

    def load(module, **options):
        stand_in = StandIn(module, **options)
        bindings = SimpleNamespace(
            Refitter=lambda engine, logger: engine,
            WeightsRole=trt.WeightsRole,
            SerializationFlag=trt.SerializationFlag,
            Weights=lambda dtype, address, count: (dtype, address, count),
        )
        monkeypatch.setattr("t2t.runtime.refitting.trt", bindings)
        monkeypatch.setattr("t2t.runtime.refitting.deserialize", lambda *_: stand_in)
        return stand_in

    return load


class Parts(nn.Module):
    """Weights used as they are, folded, transposed, shared, sliced, and computed with."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.up = nn.ConvTranspose2d(4, 4, 2, groups=2, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 6)
        self.tied = nn.Linear(6, 4, bias=False)
        self.tied.weight = nn.Parameter(self.linear.weight.detach().t())
        self.norm = nn.LayerNorm(4)
        self.table = nn.Embedding(10, 4)
        self.gain = nn.Parameter(torch.rand(4))
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        x = self.bn(self.up(self.conv(x))).mean((2, 3))
        x = self.norm(self.tied(self.linear(x).relu()))
        x = x * (self.gain.exp() + 1) @ self.table.weight[2:6].softmax(-1)
        return self.lstm(x[None])[0]


def other_weights(model, seed, names=None):
    torch.manual_seed(seed)
    state = {
        name: torch.rand_like(x) + 0.5 if x.is_floating_point() else x
        for name, x in model.state_dict().items()
        if names is None or name in names
    }
    model.load_state_dict(state, strict=names is None)


def check(stand_in, newer, model, x, rtol=1e-4):
    """Compare both the program and what the engine has with the original."""
    with torch.no_grad():
        wanted = model(x)
    # Also where a value hardly matters for the output.
    for here, there in zip(newer.program.layers, stand_in.program.layers, strict=True):
        for key, weight in here.weights.items():
            assert torch.equal(weight.reshape(-1), there.weights[key].reshape(-1)), here.name
    name = newer.output_names[0]
    for y in (newer.program.run([x])[name], stand_in.program.run([x])[name]):
        assert torch.linalg.norm(y - wanted) <= rtol * torch.linalg.norm(wanted)


X = torch.rand(2, 3, 6, 6)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Parts().eval()


@pytest.fixture
def converted(model):
    return t2t.convert(model, [X])


def test_all_weights_change(model, converted, load):
    before = converted.program.run([X])["output"]
    for seed in (1, 2):
        other_weights(model, seed)
        stand_in = load(converted)
        newer = t2t.refit(converted, model, [X])
        check(stand_in, newer, model, X)
        check(stand_in, newer, model, X.flip(0) * 2)
        assert bytes(newer.engine.plan.numpy()) == b"a refitted plan"
    assert torch.equal(converted.program.run([X])["output"], before)
    assert bytes(converted.engine.plan.numpy()) != b"a refitted plan"


@pytest.mark.parametrize("name", [name for name, _ in Parts().named_parameters()])
def test_one_weight_changes(model, converted, load, name):
    other_weights(model, 3, {name})
    stand_in = load(converted)
    newer = t2t.refit(converted, model, [X])
    check(stand_in, newer, model, X)
    assert 1 <= len(stand_in.given) <= 3


def test_weights_that_tensorrt_has_combined_are_given_together(model, converted, load):
    names = [layer.name for layer in converted.program.layers if layer.weights]
    other_weights(model, 4, {"conv.bias"})
    stand_in = load(converted, together=names)
    newer = t2t.refit(converted, model, [X])
    check(stand_in, newer, model, X)
    assert len(stand_in.given) == len(stand_in.keys())


def test_nothing_has_changed(model, converted):
    newer = t2t.refit(converted, model, [X])  # no GPU is needed for that
    assert newer.engine.plan.data_ptr() == converted.engine.plan.data_ptr()
    assert torch.equal(newer.program.run([X])["output"], converted.program.run([X])["output"])


@pytest.mark.parametrize(
    ("options", "rtol"), [({"fp16": True}, 2e-2), ({"bf16": True}, 5e-2), ({"tf32": True}, 1e-4)]
)
def test_options_are_those_of_the_conversion(model, load, options, rtol):
    converted = t2t.convert(model, [X], **options)
    other_weights(model, 5)
    stand_in = load(converted)
    newer = t2t.refit(converted, model, [X], **options)
    check(stand_in, newer, model, X, rtol)
    assert newer.precision == converted.precision


def test_a_checkpoint_has_what_is_needed(model, converted, load):
    file = io.BytesIO()
    torch.save(converted.state_dict(), file)
    file.seek(0)
    loaded = TRTModule()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    loaded.require_engine = loaded.cuda_graph = True
    other_weights(model, 6)
    stand_in = load(loaded)
    newer = t2t.refit(loaded, model, [X])
    check(stand_in, newer, model, X)
    assert newer.require_engine
    assert newer.cuda_graph
    newer.load_state_dict(copy.deepcopy(newer.state_dict()))
    check(stand_in, newer, model, X)


def test_dynamic_sizes(load):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    dims = [{0: torch.export.Dim("batch", min=1, max=8)}]
    converted = t2t.convert(model, [torch.rand(2, 4)], dynamic_shapes=dims)
    other_weights(model, 7)
    stand_in = load(converted)
    newer = t2t.refit(converted, model, [torch.rand(2, 4)], dynamic_shapes=dims)
    for rows in (1, 5):
        check(stand_in, newer, model, torch.rand(rows, 4))
    with pytest.raises(ConversionError, match="takes or returns something else"):
        t2t.refit(converted, model, [torch.rand(2, 4)])


def test_weight_only_scales_follow(load):
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
    x = torch.rand(2, 256)
    converted = t2t.convert(model, [x], weight_only="int8")
    other_weights(model, 8)
    stand_in = load(converted)
    newer = t2t.refit(converted, model, [x], weight_only="int8")
    assert torch.equal(newer.program.run([x])["output"], stand_in.program.run([x])["output"])
    check(stand_in, newer, model, x, rtol=2e-2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: setattr(m, "bn", nn.Identity()), "more than weights has changed"),
        (lambda m: setattr(m.bn, "eps", 0.5), None),
        (lambda m: setattr(m.norm, "eps", 0.5), "more than weights has changed: .*NORMALIZATION"),
        (lambda m: setattr(m, "conv", nn.Conv2d(3, 4, 3, padding=1)), "CONVOLUTION"),
        (lambda m: setattr(m, "lstm", nn.LSTM(4, 5, batch_first=True)), "something else"),
        (lambda m: m.register_parameter("gain", nn.Parameter(torch.rand(1))), "more than weights"),
    ],
)
def test_another_network_is_refused_before_anything_is_loaded(
    model, converted, load, change, words
):
    other_weights(model, 9)
    change(model)
    stand_in = load(converted)
    if words is None:  # folded into weights, which follow
        check(stand_in, t2t.refit(converted, model, [X]), model, X)
        return
    with pytest.raises(t2t.errors.T2TError, match=words):
        t2t.refit(converted, model.eval(), [X])
    assert not stand_in.given


def test_other_options_are_refused(model, converted, load):
    stand_in = load(converted)
    with pytest.raises(ConversionError, match=r"more than weights .*options"):
        t2t.refit(converted, model, [X], fp16=True)
    with pytest.raises(OptionError, match="partial"):
        t2t.refit(converted, model, [X], partial=True)
    with pytest.raises(OptionError, match="fp16"):
        t2t.refit(converted, model, [X], fp_16=True)
    assert not stand_in.given


def test_weights_for_which_the_engine_has_no_place(model, converted, load):
    folded = next(layer.name for layer in converted.program.layers if layer.kind == "CONVOLUTION")
    stand_in = load(converted, without=[folded])
    other_weights(model, 10, {"linear.weight", "conv.weight"})
    with pytest.raises(EngineError, match=rf"'kernel' of CONVOLUTION '{folded}'.*again"):
        t2t.refit(converted, model, [X])
    assert not stand_in.refitted


def test_engines_that_cannot_be_refitted(model, converted, load):
    other_weights(model, 11)
    stand_in = load(converted)
    stand_in.fails = True
    with pytest.raises(EngineError, match="does not refit the engine"):
        t2t.refit(converted, model, [X])
    stand_in.refittable = False
    with pytest.raises(EngineError, match="refittable=True"):
        t2t.refit(converted, model, [X])
    without = t2t.convert(model, [X], keep_program=False)
    with pytest.raises(EngineError, match="keep_program=False"):
        t2t.refit(without, model, [X])
    with pytest.raises(ConversionError, match="original module"):
        t2t.refit(converted, converted, [X])


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of machines without a GPU")
def test_without_a_gpu(model, converted):
    other_weights(model, 12)
    with pytest.raises(EngineError, match="needs an NVIDIA GPU"):
        t2t.refit(converted, model, [X])
    with pytest.raises(BuildError, match="needs a GPU to be built"):
        t2t.convert(model, [X], refittable=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_engine(model):
    x = X.cuda()
    # Not the refittable one: where no engine runs, TensorRT-RTX does not even build it.
    reason = t2t.convert(model, [X]).engine.why_not(x.device)
    if reason is not None:
        pytest.skip(reason)
    converted = t2t.convert(model, [X], refittable=True)
    for seed, names in ((13, None), (14, {"conv.weight"}), (15, {"gain", "lstm.weight_ih_l0"})):
        other_weights(model, seed, names)
        converted = t2t.refit(converted, model, [X])
        with torch.no_grad():
            wanted = model(X)
        y = converted(x).cpu()
        assert converted.ran_on.is_engine
        assert torch.linalg.norm(y - wanted) <= 1e-4 * torch.linalg.norm(wanted)
