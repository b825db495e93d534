"""What a converted module says of itself and of the original, and where it ran."""

import copy
import dataclasses
import pickle
import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import EngineError, ShapeError
from t2t.runtime import Execution
from tests.engines import Info, StandInEngine

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
quiet = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


@dataclasses.dataclass
class Settings:
    heads: int = 4
    names: tuple = ("a", "b")


class FrozenDict(OrderedDict):
    """As diffusers' config: items are attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class PretrainedConfig:
    """As transformers': neither plain data nor a dataclass."""

    hidden_size = 12


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 5)
        self.out_channels = 5
        self.name = "backbone"
        self.scales = [1, 2.5, None]
        self.settings = Settings()
        self.config = FrozenDict(in_channels=3, act="relu")
        self.hf = PretrainedConfig()
        self.table = {"weights": torch.zeros(2)}
        self.hook = print
        self.words = list(range(5000))
        self._private = 1

    def forward(self, x):
        return self.linear(x)


@pytest.fixture(scope="module")
def backbone():
    return Backbone().eval()


@pytest.fixture(scope="module")
def converted(backbone):
    return t2t.convert(backbone, [X])


def again(module):
    loaded = t2t.TRTModule()
    loaded.load_state_dict(module.state_dict())
    return loaded


@pytest.mark.parametrize("use", [lambda m: m, again, copy.deepcopy, copy.copy])
def test_settings_of_the_original(converted, use):
    module = use(converted)
    assert module.out_channels == 5
    assert module.name == "backbone"
    assert module.scales == [1, 2.5, None]
    assert module.settings == Settings(4, ("a", "b"))
    assert module.config.in_channels == 3
    assert isinstance(module.config, FrozenDict)
    assert {"out_channels", "config"} <= set(dir(module))
    for name in ("table", "hook", "words", "_private", "linear", "no_such"):
        assert not hasattr(module, name), name


def test_configs_that_are_no_plain_data_are_the_originals(converted, backbone):
    assert converted.hf is backbone.hf
    assert not hasattr(again(converted), "hf")
    assert not hasattr(pickle.loads(pickle.dumps(converted)), "hf")


def test_settings_are_copies(backbone, converted):
    backbone.scales.append(3)
    try:
        assert converted.scales == [1, 2.5, None]
    finally:
        backbone.scales.pop()


def test_own_names_come_before_the_originals():
    model = Backbone().eval()
    model.engine, model.signature, model.precision = "steam", "x", "low"
    converted = t2t.convert(model, [X])
    assert converted.precision == "fp32"
    assert not isinstance(converted.engine, str)


@quiet
def test_parameters_tell_dtype_and_device_and_are_not_saved(converted):
    [parameter] = converted.parameters()
    assert parameter.numel() == 0
    assert not parameter.requires_grad
    assert (parameter.dtype, parameter.device) == (torch.float32, torch.device("cpu"))
    assert (converted.dtype, converted.device) == (torch.float32, torch.device("cpu"))
    assert not any("parameter" in name for name in converted.state_dict())
    assert not any("parameter" in name for name in nn.Sequential(converted).state_dict())
    nn.Sequential(again(converted)).load_state_dict(nn.Sequential(converted).state_dict())


@quiet
def test_the_dtype_is_the_originals():
    half = t2t.convert(Backbone().eval().half(), [X.half()])
    assert next(half.parameters()).dtype == torch.half
    assert again(half).dtype == torch.half
    assert half.float().dtype == torch.half
    assert t2t.convert(torch.relu, [X.half()]).dtype == torch.half
    assert t2t.convert(torch.neg, [torch.ones(2, dtype=torch.int32)]).dtype == torch.float32


@quiet
@pytest.mark.parametrize("move", ["half", "double", "bfloat16", "float", "cpu", "eval", "train"])
def test_moves_change_no_types(converted, move):
    module = getattr(copy.deepcopy(converted), move)()
    assert module.dtype == torch.float32
    torch.testing.assert_close(module(X), converted(X))


def test_the_device_follows_to(converted):
    module = nn.Sequential(copy.deepcopy(converted)).to("meta", torch.half)[0]
    assert module.device.type == "meta"
    assert module.dtype == torch.float32
    module.load_state_dict(converted.state_dict())
    assert module.device.type == "meta"
    assert converted.device.type == "cpu"


def test_the_device_is_the_originals():
    module = t2t.TRTModule(
        program=t2t.convert(nn.ReLU(), [X]).program, original=nn.Linear(2, 2, device="meta")
    )
    assert module.device.type == next(module.parameters()).device.type == "meta"


def test_training_code_finds_nothing_to_train(converted):
    module = copy.deepcopy(converted).requires_grad_()
    assert sum(p.numel() for p in module.parameters()) == 0
    torch.optim.SGD(module.parameters(), 0.1).step()
    module.zero_grad()


@pytest.fixture
def on_engine(monkeypatch, converted):
    """Let the engine run as if the CPU were a GPU that can."""

    def load(engine, device):
        if device.type != "cpu":
            raise EngineError("another device")
        stand_in = StandInEngine(
            [Info("x", torch.float32, (2, 3))],
            [Info("output", torch.float32, (2, 5))],
            converted.program.run,
        )
        return Execution(stand_in, device)

    monkeypatch.setattr("t2t.runtime.Engine.load", load)


def test_where_it_ran_is_said(converted):
    module = copy.deepcopy(converted)
    module.last_run = None
    assert module.ran_on is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module(X)
    ran = module.ran_on
    assert ran.executor == "reference executor"
    assert not ran.is_engine
    assert ran.device == "cpu"
    assert ran.backend == "tensorrt_rtx"
    assert "CUDA tensors" in ran.reason
    assert str(ran).startswith("reference executor (PyTorch) on cpu, network of tensorrt_rtx 1")
    assert "no engine ran: an engine runs on CUDA tensors" in str(ran)
    assert "last run: reference executor" in repr(module)
    assert ran.to_dict()["executor"] == "reference executor"


@pytest.mark.usefixtures("on_engine")
def test_an_engine_that_ran_is_said(converted):
    module = copy.deepcopy(converted)
    module.require_engine = True
    torch.testing.assert_close(module(X), converted(X))
    assert module.ran_on.is_engine
    assert str(module.ran_on).startswith("engine of tensorrt_rtx 1.")
    assert str(module.ran_on).endswith(" on cpu")
    assert module.ran_on.reason == ""


def test_running_in_pytorch_can_be_forbidden(converted, monkeypatch):
    module = copy.deepcopy(converted)
    module.require_engine = True
    with pytest.raises(EngineError, match=r"engine does not run: .* forbidden by require_engine"):
        module(X)
    module.require_engine = False
    for value in ("1", "true", "yes"):
        monkeypatch.setenv("T2T_REQUIRE_ENGINE", value)
        with pytest.raises(EngineError, match="forbidden by T2T_REQUIRE_ENGINE"):
            module(X)
    for value in ("0", "false", ""):
        monkeypatch.setenv("T2T_REQUIRE_ENGINE", value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module(X)


PROFILES = [
    {"x": ((1, 3), (2, 3), (4, 3)), "z": ((1,), (1,), (8,))},
    {"x": ((2, 3), (8, 3), (16, 3)), "z": ((4,), (4,), (4,))},
]


def plain_engine(profiles=PROFILES, outputs=1):
    """A stand-in for what trtexec wrote: x (N, 3) and z (M) to x * 2 + sum of z."""

    def run(tensors):
        y = tensors["x"] * 2 + tensors["z"].sum()
        return {"y": y, "count": y.sum(0).int()} if outputs == 2 else {"y": y}

    made = [Info("y", torch.float32, (-1, 3)), Info("count", torch.int32, (3,))][:outputs]
    inputs = [Info("x", torch.float32, (-1, 3)), Info("z", torch.float32, (-1,))]
    return StandInEngine(inputs, made, run, profiles)


@pytest.fixture
def plan(monkeypatch):
    """Bytes that load as the plain engine, on the CPU."""
    found = {"engine": plain_engine()}

    def load(self, device):
        assert device == torch.device("cuda")
        return Execution(found["engine"], torch.device("cpu"))

    monkeypatch.setattr("t2t.runtime.Engine.load", load)
    head = bytearray(64)
    head[:4], head[24:28] = b"ftrt", bytes([10, 13, 3, 9])
    return found, bytes(head)


@pytest.fixture
def anywhere(monkeypatch, plan):
    """After it was loaded, let the engine run on CPU tensors."""

    def allow(module):
        execution = Execution(plan[0]["engine"], torch.device("cpu"))
        monkeypatch.setattr("t2t.runtime.Engine.load", lambda _self, _device: execution)
        return module

    return allow


@pytest.mark.parametrize("form", ["path", "string", "bytes", "tensor"])
def test_a_plain_engine_runs(plan, anywhere, tmp_path, form):
    path = tmp_path / "model.engine"
    path.write_bytes(plan[1])
    given = {
        "path": path,
        "string": str(path),
        "bytes": plan[1],
        "tensor": torch.frombuffer(bytearray(plan[1]), dtype=torch.uint8),
    }[form]
    module = anywhere(t2t.TRTModule.from_engine(given))
    assert module.input_names == ["x", "z"]
    assert [str(spec) for spec in module.signature.inputs] == [
        "x: float32 (1..16, 3)",
        "z: float32 (1..8,)",
    ]
    assert str(module.signature.outputs[0]) == "y: float32 (?, 3)"
    for rows, count in ((1, 8), (16, 4), (2, 1)):
        x, z = torch.randn(rows, 3), torch.randn(count)
        torch.testing.assert_close(module(x, z), x * 2 + z.sum())
        torch.testing.assert_close(module(z=z, x=x), x * 2 + z.sum())
    with pytest.raises(ShapeError, match="no profile"):
        module(torch.zeros(16, 3), torch.zeros(1))
    with pytest.raises(ShapeError, match=r"1\.\.16"):
        module(torch.zeros(17, 3), torch.zeros(4))
    assert module.precision is None
    assert module.details["backend"] == "tensorrt"
    assert module.details["backend_version"] == "10.13.3.9"
    assert "tensorrt 10.13.3.9" in repr(module)
    assert "program" not in repr(module)
    assert "fp32" not in repr(module)


def test_a_plain_engine_with_two_outputs(plan, anywhere):
    plan[0]["engine"] = plain_engine(outputs=2)
    module = anywhere(t2t.TRTModule.from_engine(plan[1], precision="fp16"))
    x, z = torch.randn(2, 3), torch.randn(2)
    y, count = module(x, z)
    torch.testing.assert_close(y, x * 2 + z.sum())
    assert count.dtype == torch.int32
    assert module.precision == "fp16"


def test_a_plain_engine_can_be_saved_as_a_checkpoint(plan, anywhere, tmp_path):
    module = anywhere(t2t.TRTModule.from_engine(plan[1]))
    module.save(tmp_path / "module.pth")
    loaded = t2t.load(tmp_path / "module.pth")
    x, z = torch.randn(2, 3), torch.randn(2)
    torch.testing.assert_close(loaded(x, z), module(x, z))
    assert loaded.signature == module.signature


def test_fixed_shapes_and_inputs_in_cpu_memory(plan, anywhere):
    plan[0]["engine"] = StandInEngine(
        [Info("x", torch.float32, (6,)), Info("size", torch.int64, (2,), on_host=True)],
        [Info("y", torch.float32, (-1, -1))],
        lambda t: {"y": t["x"].reshape(t["size"].tolist())},
        [{"size": ((1, 1), (2, 2), (6, 6))}],
    )
    module = anywhere(t2t.TRTModule.from_engine(plan[1]))
    assert [str(spec) for spec in module.signature.inputs] == [
        "x: float32 (6,)",
        "size: int64 (2,)",
    ]
    assert module(torch.arange(6.0), torch.tensor([2, 3])).shape == (2, 3)


def test_what_is_no_plain_engine(tmp_path):
    path = tmp_path / "x.engine"
    with pytest.raises(FileNotFoundError):
        t2t.TRTModule.from_engine(path)
    path.write_bytes(b"PK" * 100)
    with pytest.raises(EngineError, match=r"no TensorRT plan|needs an NVIDIA GPU"):
        t2t.TRTModule.from_engine(path)
    path.write_bytes(b"")
    with pytest.raises(EngineError, match="empty"):
        t2t.TRTModule.from_engine(path)


@pytest.mark.parametrize("name", ["x.engine", "model.pth"])
def test_a_path_is_no_plan(name):
    with pytest.raises(EngineError, match=r"from_engine\(path\).*t2t\.load\(path\)"):
        t2t.TRTModule(name)


class Around(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x) + 1


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda m: torch.jit.script(m), "torch.jit.script"),
        (lambda m: torch.jit.trace(m, X), "torch.jit.trace"),
        (lambda m: t2t.convert(Around(m), [X]), "t2t.convert"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.torch.jit:FutureWarning", "ignore:.torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("wrap", [lambda m: m, Around])
def test_what_cannot_look_into_an_engine_says_so(converted, use, what, wrap):
    with pytest.raises(EngineError) as caught:
        use(wrap(converted))
    text = str(caught.value)
    assert what in text
    for advice in ("original module", "model_trt.save(path)", "t2t.load(path)", "save_engine"):
        assert advice in text


@quiet
def test_printed(converted):
    lines = repr(converted).splitlines()
    assert lines[0] == "TRTModule("
    assert "converted from: Backbone" in lines[1]
    assert lines[2].strip() == "takes x: float32 (2, 3)"
    assert lines[3].strip() == "returns output: float32 (2, 5)"
    assert "MB, fp32, tensorrt_rtx" in lines[4]
    assert "program: " in lines[5]
    assert max(map(len, lines[:6])) <= 110
    assert "converted from" not in repr(t2t.TRTModule(program=converted.program))


@pytest.mark.parametrize(
    ("model", "dtype", "options", "precision"),
    [
        (nn.Linear(3, 3), torch.float32, {}, "fp32"),
        (nn.Linear(3, 3 * 8), torch.float32, {"fp16": True}, "fp16"),
        (nn.Linear(3, 3 * 8), torch.float32, {"bf16": True}, "bf16"),
        (nn.Linear(3, 3), torch.half, {}, "fp16"),
        (nn.Linear(3, 3), torch.bfloat16, {}, "bf16"),
        (lambda x: (x.float() + 1).half(), torch.half, {}, "fp32"),
        (lambda x: (x.half() * 3).float(), torch.float32, {}, "fp16"),
        (torch.abs, torch.int32, {}, "fp32"),
    ],
)
def test_the_precision_is_what_is_computed_in(model, dtype, options, precision):
    model = copy.deepcopy(model).to(dtype) if isinstance(model, nn.Module) else model
    converted = t2t.convert(model, [X.to(dtype)], **options)
    assert converted.precision == precision
    assert f"MB, {precision}, " in repr(converted)


class Loud(dict):
    """A class whose making would be noticed."""

    made = 0

    def __init__(self, *args):
        super().__init__(*args)
        type(self).made += 1


def test_loading_makes_no_objects_of_other_classes():
    model = Backbone().eval()
    model.loud = Loud({"a": 1})
    state = t2t.convert(model, [X]).state_dict()
    Loud.made = 0
    module = t2t.TRTModule()
    module.load_state_dict(state)
    assert Loud.made == 0
    assert module.loud == {"a": 1}
    assert type(module.loud) is Loud
