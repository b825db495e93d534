"""Times of converted modules: of the engine, or of the host alone where no engine runs."""

import json
import time
import warnings

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import EngineError, ShapeError
from t2t.runtime import Execution
from tests.engines import Info, StandInCapture, StandInEngine

CPU = torch.device("cpu")
X = torch.rand(2, 3)


class Slow(nn.Module):
    """Takes 5 ms, and counts its calls."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        time.sleep(0.005)
        return x.relu(), {"sum": x.sum(-1)}


@pytest.fixture(scope="module")
def converted():
    return t2t.convert(Slow(), [X], max_batch_size=4)


def with_engine(module):
    """Load a stand-in engine, which takes 2 ms at least."""
    names = module.input_names, module.output_names
    program = module.program
    ports = [Info(info.name, info.dtype, info.shape) for info in program.inputs + program.outputs]
    engine = StandInEngine(ports[:1], ports[1:], program.run, [{"x": ((1, 3), (2, 3), (4, 3))}])
    copy = t2t.TRTModule(module.engine.plan, module.signature, program)
    copy.engine.set_execution(CPU, Execution(engine, CPU))
    assert (copy.input_names, copy.output_names) == names
    return copy


@pytest.mark.filterwarnings("error")
def test_without_an_engine_there_is_the_host_overhead_only(converted, monkeypatch):
    def run(self, inputs, watch=None):
        ran.append(inputs)
        return real(self, inputs, watch)

    ran, real = [], t2t.reference.Program.run
    monkeypatch.setattr(t2t.reference.Program, "run", run)
    report = t2t.benchmark(converted, [X], baseline=Slow().eval(), runs=5, warmup=1)
    assert len(ran) == 1, "the reference executor tells the outputs' shapes, and is not timed"
    assert [timing.name for timing in report.timings] == ["host overhead", "eager"]
    assert report.speedup is None
    assert not report.ran_on.is_engine
    assert report.ran_on.reason
    host, eager = report.timings
    assert 0 < host.percentile(50) < 0.005 <= eager.percentile(50)
    assert len(host.seconds) == len(eager.seconds) == 5
    text = str(report)
    assert "No engine ran on cpu" in text
    assert "engine that does nothing" in text
    assert "times as fast" not in text
    assert converted.last_run is None, "the module itself did not run"


def test_an_engine_is_timed_beside_the_original(converted):
    module = with_engine(converted)
    Slow.calls = 0
    report = t2t.benchmark(module, [X], baseline=Slow().eval(), runs=4, warmup=2)
    assert Slow.calls == 6
    assert [timing.name for timing in report.timings] == ["engine", "eager"]
    assert report.ran_on.is_engine
    assert report.timings[0].percentile(50) >= 0.002
    assert report.speedup == pytest.approx(
        report.timings[1].percentile(50) / report.timings[0].percentile(50)
    )
    found = json.loads(report.to_json())
    assert found["runs"] == 4
    assert found["warmup"] == 2
    assert found["shapes"] == [[2, 3]]
    assert found["ran_on"]["executor"] == "engine"
    [engine, eager] = found["timings"]
    assert engine["p50_seconds"] <= engine["p90_seconds"] <= engine["p99_seconds"]
    assert eager["calls_per_second"] < 1 / 0.005
    assert engine["memory_bytes"] is None, "a CPU has no memory of its own to count"
    assert "times as fast as eager" in str(report)
    assert "<table>" in report._repr_html_()


@pytest.mark.parametrize("own", [False, True])
def test_with_and_without_cuda_graphs(converted, own):
    module, capture = with_engine(converted), StandInCapture()
    module.engine.load(CPU)._capture = capture
    module.cuda_graph = own
    report = t2t.benchmark(module, [X], baseline=Slow().eval(), cuda_graph=True, runs=4, warmup=0)
    assert [timing.name for timing in report.timings] == ["engine", "engine, CUDA graph", "eager"]
    assert [graph.replays for graph in capture.graphs] == [5]
    assert module.cuda_graph is own
    eager, engine = report.timings[2].percentile(50), report.timings[0].percentile(50)
    assert report.speedup == pytest.approx(eager / engine)
    report = t2t.benchmark(module, [X], runs=2, warmup=0)
    assert [timing.name for timing in report.timings] == ["engine"]
    assert sum(graph.replays for graph in capture.graphs) == (7 if own else 5)
    report = t2t.benchmark(converted, [X], cuda_graph=True, runs=2)
    assert [timing.name for timing in report.timings] == ["host overhead"]
    module.engine.load(CPU)._no_graph = "something waits"
    with pytest.raises(EngineError, match="does not run in a CUDA graph"):
        t2t.benchmark(module, [torch.rand(4, 3)], cuda_graph=True, runs=2)
    assert module.cuda_graph is own


def test_percentiles_are_of_the_runs():
    from t2t.benchmarking import Timing

    timing = Timing("engine", tuple(range(101)), 50.5)
    assert (timing.percentile(50), timing.percentile(90), timing.percentile(99)) == (50, 90, 99)
    assert timing.throughput == 2


def test_a_picture_of_the_times():
    from t2t.benchmarking import Benchmark, Timing
    from t2t.module import RanOn

    pyplot = pytest.importorskip("matplotlib.pyplot")
    fast = Timing("engine", tuple(i / 1e3 for i in range(101)), 1)
    slow = Timing("eager", tuple(i / 500 for i in range(101)), 1)
    axes = pyplot.figure().subplots()
    Benchmark((fast, slow), RanOn.of(CPU, "", {}), ((2, 3),), 0).plot(axes)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["eager", "engine"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100, 50])
    [lines] = axes.collections
    ends = [segment[:, 0].tolist() for segment in lines.get_segments()]
    assert ends == [pytest.approx([100, 198]), pytest.approx([50, 99])]
    assert "ms" in axes.get_xlabel()


def test_sizes_of_the_call(converted):
    report = t2t.benchmark(converted, torch.rand(4, 3), runs=1, warmup=0)
    assert report.shapes == ((4, 3),)
    with pytest.raises(ShapeError):
        t2t.benchmark(converted, torch.rand(5, 3), runs=1)


def test_a_module_without_a_program(converted):
    bare = t2t.TRTModule(converted.engine.plan, converted.signature)
    assert t2t.benchmark(bare, [X], runs=2).timings[0].name == "host overhead"
    only = t2t.TRTModule(program=converted.program)
    assert "without an engine" in t2t.benchmark(only, [X], runs=2).ran_on.reason


def test_refusals(converted, monkeypatch):
    with pytest.raises(EngineError, match="the engine does not run"):
        t2t.benchmark(converted, [X], require_engine=True)
    with pytest.raises(ValueError, match="give the baseline"):
        t2t.benchmark(converted, [X], torch_compile=True)
    with pytest.raises(ValueError, match="runs=0"):
        t2t.benchmark(converted, [X], runs=0)
    with pytest.raises(ValueError, match=r"\.eval\(\)"):
        t2t.benchmark(converted, [X], baseline=nn.Dropout())
    monkeypatch.setenv("T2T_REQUIRE_ENGINE", "1")
    with pytest.raises(EngineError, match="the engine does not run"):
        t2t.benchmark(converted, [X])


def test_torch_compile_is_measured_if_asked_for(converted, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module: lambda x: module(x))
    report = t2t.benchmark(
        converted, [X], baseline=Slow().eval(), torch_compile=True, runs=2, warmup=0
    )
    assert [timing.name for timing in report.timings] == ["host overhead", "eager", "torch.compile"]


def test_models_in_parts_need_all_their_engines():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            y = self.first(x)
            return self.last(y) if float(y.sum()) > 1e9 else self.last(-y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", t2t.ReferenceExecutionWarning)
        module = t2t.convert(Model().eval(), [X], partial=True)
    with pytest.raises(EngineError, match="the engine of 'first' does not run"):
        t2t.benchmark(module, [X])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_events(converted):
    model, x = nn.Linear(512, 512).eval().cuda(), torch.rand(64, 512, device="cuda")
    module = t2t.convert(model, [x])
    report = t2t.benchmark(module, [x], baseline=model, runs=20)
    for timing in report.timings:
        assert 0 < timing.percentile(50) < 0.1
        assert timing.memory >= 64 * 512 * 4
