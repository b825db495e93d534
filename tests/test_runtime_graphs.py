"""CUDA graphs: what is recorded, when, for how long; on the CPU, with stand-ins that are strict."""

import copy
import gc
import io
import threading

import pytest
import torch

import t2t
from t2t import backend
from t2t.backend import trt
from t2t.errors import EngineError, ShapeError
from t2t.module import TRTModule
from t2t.runtime import Execution
from t2t.runtime.execution import MOST_GRAPHS
from tests.engines import Info, StandInCapture, StandInEngine

CPU = torch.device("cpu")
F32 = torch.float32


def affine(**options):
    return StandInEngine(
        [Info("x", F32, (-1, 3)), Info("w", F32, (3,))],
        [Info("y", F32, (-1, 3)), Info("sum", F32, ())],
        lambda t: {"y": t["x"] * t["w"] + 1, "sum": t["x"].sum()},
        [{"x": ((0, 3), (1, 3), (4, 3))}, {"x": ((5, 3), (9, 3), (99, 3))}],
        **options,
    )


@pytest.fixture
def engine():
    return affine()


@pytest.fixture
def capture():
    gc.freeze()  # of what other tests have left, nothing is searched for memory
    yield StandInCapture()
    gc.unfreeze()


@pytest.fixture
def execution(engine, capture):
    return Execution(engine, CPU, capture)


def check(execution, rows, seed, cuda_graph=True):
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "x": torch.randn(rows, 3, generator=generator),
        "w": torch.randn(3, generator=generator),
    }
    kept = {name: x.clone() for name, x in inputs.items()}
    outputs = execution.run(inputs, cuda_graph)
    torch.testing.assert_close(outputs["y"], inputs["x"] * inputs["w"] + 1, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(outputs["sum"], inputs["x"].sum(), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(inputs[name], kept[name]) for name in kept)
    return outputs


def test_one_graph_is_recorded_for_each_set_of_shapes(engine, execution, capture):
    for seed, rows in enumerate((2, 2, 3, 2, 3, 7, 2)):
        check(execution, rows, seed)
    assert [graph.replays for graph in capture.graphs] == [4, 2, 1]
    # Each executed once, before it was recorded, and had a profile of its own.
    assert [context.streams for context in engine.contexts] == [[7]] * 3
    assert [context.active_optimization_profile for context in engine.contexts] == [0, 0, 1]


def test_there_are_none_on_a_cpu(engine):
    execution = Execution(engine, CPU)
    for seed in (0, 1):
        check(execution, 2, seed)
    assert engine.contexts[0].streams == [0, 0]


def test_outputs_are_the_callers_own(execution):
    first = check(execution, 2, seed=0)
    kept = {name: x.clone() for name, x in first.items()}
    first["y"].add_(0)
    second = check(execution, 2, seed=1)
    assert all(torch.equal(first[name], kept[name]) for name in kept)
    second["y"].zero_()
    check(execution, 2, seed=2)


def test_calls_with_and_without_graphs_do_not_disturb_each_other(engine, execution, capture):
    for seed, cuda_graph in enumerate((False, True, False, True, True)):
        check(execution, 1 + seed % 2, seed, cuda_graph)
    assert [graph.replays for graph in capture.graphs] == [2, 1]
    assert len(engine.contexts) == 3


@pytest.mark.parametrize("rows", [0, 1])
def test_strided_expanded_and_empty_inputs(execution, rows):
    for value in (1.0, 2.0):
        x = torch.full((3, 1), value).expand(3, rows).t()
        y = execution.run({"x": x, "w": torch.arange(6.0)[::2]}, cuda_graph=True)["y"]
        assert y.tolist() == [[1, 1 + 2 * value, 1 + 4 * value]] * rows


def test_inference_mode_inside_and_outside(execution, capture):
    for seed, inside in enumerate((True, False, True)):
        with torch.inference_mode(inside):
            check(execution, 2, seed)
    x = torch.ones(2, 3, requires_grad=True)
    with torch.inference_mode():
        w = torch.ones(3)
    outputs = execution.run({"x": x, "w": w}, cuda_graph=True)
    assert outputs["y"].tolist() == [[2.0] * 3] * 2
    assert not outputs["y"].requires_grad
    assert [graph.replays for graph in capture.graphs] == [4]


def test_graphs_beyond_the_limit_are_freed_oldest_first(execution, capture):
    for rows in range(MOST_GRAPHS + 2):
        check(execution, rows, seed=rows)
    assert len(capture.graphs) == MOST_GRAPHS + 2
    check(execution, 2, seed=0)
    assert len(capture.graphs) == MOST_GRAPHS + 2
    check(execution, 0, seed=0)
    assert len(capture.graphs) == MOST_GRAPHS + 3


def in_threads(count, work):
    failures = []

    def guarded(index):
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001  raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_ten_threads_of_a_hundred_calls(engine, execution, capture, cuda_graph):
    capture.check_memory = False  # which reads all objects of the process

    def work(index):
        for call in range(100):
            check(execution, 1 + (index + call) % 3, 1000 * index + call, cuda_graph)

    in_threads(10, work)
    assert sum(graph.replays for graph in capture.graphs) == (1000 if cuda_graph else 0)
    if cuda_graph:  # one that was freed for the limit is recorded again, so contexts can be many
        assert sum(map(len, execution._graphs.values())) <= MOST_GRAPHS
    else:  # each thread is in one call at a time
        assert len(engine.contexts) <= 10


def test_values_of_shape_inputs_are_a_part_of_the_key(capture):
    engine = StandInEngine(
        [Info("x", F32, (-1,)), Info("size", torch.int64, (2,), on_host=True)],
        [Info("y", F32, (-1, -1))],
        lambda t: {"y": t["x"].reshape(t["size"].tolist())},
        [{"x": ((1,), (4,), (9,)), "size": ((1, 1), (2, 2), (9, 9))}],
    )
    execution = Execution(engine, CPU, capture)
    for size in ((2, 3), (3, 2), (2, 3)):
        inputs = {"x": torch.arange(6.0), "size": torch.tensor(size)}
        y = execution.run(inputs, cuda_graph=True)["y"]
        assert torch.equal(y, inputs["x"].reshape(size))
    assert [graph.replays for graph in capture.graphs] == [2, 1]


def test_outputs_of_unknown_size_are_refused(capture):
    engine = StandInEngine(
        [Info("x", F32, (-1,))],
        [Info("found", F32, (-1,), unknown=True)],
        lambda t: {"found": t["x"][t["x"] > 0]},
        [{"x": ((1,), (4,), (9,))}],
    )
    execution = Execution(engine, CPU, capture)
    with pytest.raises(EngineError, match=r"size of the output 'found'.*cuda_graph = False"):
        execution.run({"x": torch.ones(2)}, cuda_graph=True)
    assert execution.run({"x": torch.ones(2)})["found"].tolist() == [1, 1]


def test_outputs_in_cpu_memory_are_refused(capture):
    engine = StandInEngine(
        [Info("x", F32, (-1,))],
        [Info("count", torch.int64, (1,), on_host=True)],
        lambda t: {"count": torch.tensor([t["x"].numel()])},
        [{"x": ((1,), (4,), (9,))}],
    )
    execution = Execution(engine, CPU, capture)
    with pytest.raises(EngineError, match="output 'count' in CPU memory"):
        execution.run({"x": torch.ones(2)}, cuda_graph=True)
    assert execution.run({"x": torch.ones(2)})["count"].tolist() == [2]


def test_what_cannot_be_recorded_is_refused_from_then_on(engine, execution, capture):
    check(execution, 2, seed=0)
    capture.fails = "operation not permitted when stream is capturing"
    with pytest.raises(EngineError, match=r"CUDA graph: operation not permitted .*= False"):
        check(execution, 3, seed=0)
    capture.fails = ""
    with pytest.raises(EngineError, match=r"CUDA graph: operation not permitted .*= False"):
        check(execution, 3, seed=0)
    check(execution, 3, seed=1, cuda_graph=False)
    check(execution, 2, seed=2)  # has a graph
    assert [graph.replays for graph in capture.graphs] == [2]


def test_what_tensorrt_says_cannot_be_recorded_is_refused(engine, execution, capture):
    engine.capturable = False
    with pytest.raises(EngineError, match="TensorRT says so"):
        check(execution, 3, seed=1)
    check(execution, 3, seed=1, cuda_graph=False)
    assert not capture.graphs


def test_inputs_are_checked_before_anything_is_recorded(engine, execution, capture):
    with pytest.raises(ShapeError, match="'w' is missing"):
        execution.run({"x": torch.ones(1, 3)}, cuda_graph=True)
    with pytest.raises(ShapeError, match="no profile"):
        execution.run({"x": torch.ones(100, 3), "w": torch.ones(3)}, cuda_graph=True)
    assert not capture.graphs
    assert not any(context.streams for context in engine.contexts)


def test_kernels_of_dynamic_sizes_are_made_before_they_are_recorded(engine, execution):
    check(execution, 2, seed=0)
    config = engine.contexts[0].runtime_config
    if not backend.is_rtx():
        assert config is None
        return
    eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    assert config.dynamic_shapes_kernel_specialization_strategy == eager
    check(execution, 2, seed=0, cuda_graph=False)
    assert engine.contexts[1].runtime_config is None


class Total(torch.nn.Module):
    """Adds up its inputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total += x
        return self.total * 2


def on_stand_in(module, device="cpu", capture=None, function=None):
    """Let the module's engine be a stand-in, which runs the network by the executor."""
    program = module.program
    stand_in = StandInEngine(
        [Info(info.name, info.dtype, tuple(info.shape)) for info in program.inputs],
        [Info(info.name, info.dtype, tuple(info.shape)) for info in program.outputs],
        function or program.run,
        device=torch.device(device).type,
    )
    device = torch.device(device)
    module.engine.set_execution(device, Execution(stand_in, device, capture))
    return stand_in


@pytest.fixture(scope="module")
def total():
    return t2t.convert(Total(), [torch.ones(3)])


def test_a_module_uses_graphs_where_it_is_told_to(total, capture):
    module = copy.deepcopy(total)
    on_stand_in(module, capture=capture)
    assert not module.cuda_graph
    assert module(torch.ones(3)).tolist() == [2.0] * 3
    module.cuda_graph = True
    assert module(torch.ones(3)).tolist() == [4.0] * 3
    assert module(torch.full((3,), 5.0)).tolist() == [14.0] * 3
    assert module.state["total"].tolist() == [7.0] * 3
    module.cuda_graph = False
    assert module(torch.ones(3)).tolist() == [16.0] * 3
    assert [graph.replays for graph in capture.graphs] == [2]
    assert module.ran_on.is_engine


def test_the_setting_goes_with_copies_and_not_with_checkpoints(total):
    module = copy.deepcopy(total)
    module.cuda_graph = True
    assert copy.deepcopy(module).cuda_graph
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = TRTModule()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert not loaded.cuda_graph
    on_stand_in(loaded, capture=StandInCapture())
    loaded.cuda_graph = True
    assert loaded(torch.ones(3)).tolist() == [2.0] * 3


def test_released_graphs_are_recorded_again(total, capture):
    module = copy.deepcopy(total)
    module.cuda_graph = True
    for _ in range(2):
        on_stand_in(module, capture=capture)
        module(torch.ones(3))
        module(torch.ones(3))
        module.release()
        module.reset_state()
    assert [graph.replays for graph in capture.graphs] == [2, 2]


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_calls_of_a_module_with_state_come_one_after_the_other(total, capture, cuda_graph):
    module = copy.deepcopy(total)
    module.cuda_graph = cuda_graph
    capture.check_memory = False
    on_stand_in(module, capture=capture)
    seen = [[] for _ in range(10)]

    def work(index):
        for _ in range(20):
            seen[index].append(module(torch.ones(3))[0].item())

    in_threads(10, work)
    assert sorted(y for calls in seen for y in calls) == [2.0 * call for call in range(1, 201)]
    assert all(calls == sorted(calls) for calls in seen)
    assert module.state["total"].tolist() == [200.0] * 3


def test_copies_and_pickles_have_a_state_of_their_own(total):
    module = copy.deepcopy(total)
    on_stand_in(module)
    module(torch.ones(3))
    copied = copy.deepcopy(module)
    file = io.BytesIO()
    torch.save(module, file)
    module(torch.ones(3))
    file.seek(0)
    restored = torch.load(file, weights_only=False)
    states = [m.state["total"].tolist() for m in (module, copied, restored)]
    assert states == [[2.0] * 3, [1.0] * 3, [1.0] * 3]
