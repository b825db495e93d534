"""Layers of an engine, traced back to modules and lines; their times."""

import json

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import EngineError, ShapeError
from t2t.module.inspection import EngineLayer, LayerTimes, engine_layers
from t2t.runtime import Execution
from tests.engines import Info, StandInEngine

CPU = torch.device("cpu")
X = torch.rand(1, 3, 8, 8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.conv(x)) + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.last = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.last(self.first(x)).exp()


@pytest.fixture(scope="module")
def converted():
    return t2t.convert(Model().eval(), [X])


def joined(*names):
    return " + ".join(names)


NAMES = [
    joined("first.conv/convolution", "first.act/relu"),
    "first/add",
    "{ForeignNode[last.0.conv/convolution...last.1/add]}",
    "Reformatting CopyNode for Output Tensor 0 to exp",
    "__myl_Move_1",
]


def with_engine(module, layers=NAMES):
    program = module.program
    ports = [Info(info.name, info.dtype, info.shape) for info in program.inputs + program.outputs]
    engine = StandInEngine(ports[:1], ports[1:], program.run, layers=layers)
    copy = t2t.TRTModule(module.engine.plan, module.signature, program)
    copy.engine.set_execution(CPU, Execution(engine, CPU))
    return copy, engine


def test_layers_have_their_modules_and_lines(converted):
    names = {layer.name for layer in converted.program.layers}
    assert {"first.conv/convolution", "first.act/relu", "first/add", "last.1/add", "exp"} <= names
    found = engine_layers([{"Name": name} for name in NAMES], converted.program)
    assert [layer.module for layer in found] == ["first", "first", "last", "", ""]
    assert found[0].sources == ("first.conv/convolution", "first.act/relu")
    assert found[2].sources == ("last.0.conv/convolution", "last.1/add")
    assert found[3].sources == ("exp",)
    assert found[4].sources == found[4].lines == ()
    assert all("test_inspection.py" in line for layer in found[:4] for line in layer.lines)
    assert [bool(layer.lines) for layer in found] == [True, True, True, True, False]
    assert "test_inspection.py" in found[1].lines[0]
    assert "first" in found[0].place
    assert found[4].place == ""


def test_names_that_begin_alike_are_told_apart():
    double = t2t.convert(lambda x: x.exp().exp().exp(), [X])
    names = [layer.name for layer in double.program.layers]
    assert names == ["exp", "exp_1", "exp_2"]
    [one, two] = engine_layers([{"Name": "exp_1"}, {"Name": "PWN(exp, exp_2)"}], double.program)
    assert one.sources == ("exp_1",)
    assert two.sources == ("exp", "exp_2")


def test_without_a_program_the_metadata_tell(converted):
    raw = {"Name": "a", "LayerType": "Convolution", "Metadata": "net.py:3 in forward"}
    [layer] = engine_layers([raw], None)
    assert layer == EngineLayer("a", "Convolution", lines=("net.py:3 in forward",), details=raw)


def test_inspect_where_the_engine_loads(converted):
    module, _ = with_engine(converted)
    found = module.inspect("cpu")
    assert found.reason == ""
    assert found.engine["scratch_bytes"] == 4096
    assert found.engine["bindings"][0] == {
        "name": "x", "mode": "input", "dtype": "FLOAT", "shape": [1, 3, 8, 8],
        "location": "device", "format": "LINEAR",
    }  # fmt: skip
    text = str(found)
    assert "engine of 5 layers" in text
    assert "ProfilingVerbosity.DETAILED" in text
    assert f"{NAMES[0]}    first" in text
    data = json.loads(found.to_json())
    assert [layer["module"] for layer in data["layers"]] == ["first", "first", "last", "", ""]
    assert data["backend"] == t2t.backend.name()
    assert data["inputs"][0]["name"] == "x"
    full, _ = with_engine(converted, [{"Name": "exp", "LayerType": "PointWise"}])
    assert full.inspect("cpu").layers[0].kind == "PointWise"
    assert "ProfilingVerbosity" not in str(full.inspect("cpu"))


def test_two_builds_are_compared(converted):
    def layer(name, kind, form):
        return {"Name": name, "LayerType": kind, "Outputs": [{"Format/Datatype": form}]}

    def build(*layers):
        return with_engine(converted, layers)[0].inspect("cpu")

    conv, last = layer("first.conv/convolution", "Convolution", "Half"), layer("exp", "PW", "Float")
    first = build(conv, layer("first/add", "PW", "Half"), last)
    assert first.layers[0].formats == "Half"
    assert first.diff(build(conv, layer("first/add", "PW", "Half"), last)) == ""
    wide = first.diff(build(conv, layer("first/add", "PW", "Float"), last)).splitlines()
    assert [line[:24] for line in wide] == ["-  first/add  PW Half  f", "+  first/add  PW Float  "]
    joined_up = first.diff(build(layer("first.conv/convolution + first/add", "C", "Half"), last))
    assert [line[0] for line in joined_up.splitlines()] == list("-+--+")
    assert "engine of 3 layers" in joined_up
    # Where none loads, the networks tell.
    again = t2t.convert(Model().eval(), [X]).inspect("cpu")
    assert converted.inspect("cpu").diff(again) == ""
    batched = t2t.convert(Model().eval(), [X], max_batch_size=4).inspect("cpu")
    lines = converted.inspect("cpu").diff(batched).splitlines()
    assert "-takes x: float32 (1, 3, 8, 8)" in lines
    assert any(line[0] == "+" and "first/add" in line and "batch" in line for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the engine may load here")
def test_inspect_where_it_does_not(converted):
    found = converted.inspect()
    assert "needs an NVIDIA GPU" in found.reason
    assert "takes x: float32 (1, 3, 8, 8)" in str(found)
    assert "cannot be loaded here" in str(found)
    assert found.layers == ()
    assert json.loads(found.to_json())["engine"] is None
    only = t2t.TRTModule(program=converted.program).inspect()
    assert only.reason == "there is none"


def test_an_answer_that_is_not_understood(converted, monkeypatch):
    module, _ = with_engine(converted)
    monkeypatch.setattr(
        "tests.engines.StandInInspector.get_engine_information", lambda *_: "{broken"
    )
    with pytest.raises(EngineError, match=r"inspector answers '\{broken'"):
        module.inspect("cpu")


def test_profile(converted):
    module, engine = with_engine(converted)
    module(X)
    [first] = engine.contexts
    times = module.profile([X], runs=3, warmup=1)
    assert times.runs == 3
    assert [layer.name for layer in times.layers] == NAMES
    expected = [0.25e-3 * (index + 1) for index in range(5)]
    assert [layer.seconds for layer in times.layers] == pytest.approx(expected)
    assert times.seconds == pytest.approx(sum(expected))
    modules = times.modules()
    assert modules == pytest.approx({"": 2.25e-3, "first": 0.75e-3, "last": 0.75e-3})
    assert sum(modules.values()) == pytest.approx(times.seconds)
    assert f"250.0 us  {NAMES[0]}  first" in str(times)
    assert json.loads(times.to_json())["modules"] == pytest.approx(modules)
    assert first.profiler is None
    module(X)
    assert len(engine.contexts) == 2, "the profiled context is not used again"
    assert len(first.streams) == 2
    assert len(engine.contexts[1].streams) == 4


def test_modules_by_depth():
    layers = tuple(EngineLayer(n, module=n, seconds=1.0) for n in ("a.b.c", "a.b.d", "a.e", "f"))
    times = LayerTimes(layers, 1)
    assert times.modules(1) == {"a": 3.0, "f": 1.0}
    assert times.modules(2) == {"a.b": 2.0, "a.e": 1.0, "f": 1.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the engine may run here")
def test_no_times_of_pytorch_are_passed_off(converted):
    with pytest.raises(EngineError, match="an engine runs on CUDA tensors"):
        converted.profile([X])
    with pytest.raises(ShapeError):
        converted.profile([X[0]])
    with pytest.raises(EngineError, match="only a program"):
        t2t.TRTModule(program=converted.program).profile([X])
