"""Running on a real GPU's memory and streams; the engine is a stand-in where none can run there."""

import copy
import gc
import threading
import warnings

import pytest
import torch

import t2t
from t2t.building import build, create_builder
from t2t.errors import EngineError, ShapeError
from t2t.io import Signature, TensorSpec
from t2t.module import ReferenceExecutionWarning, TRTModule
from t2t.reference import capture
from t2t.runtime import Engine, Execution
from t2t.runtime.execution import ALIGNMENT, ready
from t2t.verification import verify
from tests.engines import Info, StandInEngine
from tests.networks import RANGE, conv_relu, weights
from tests.test_runtime_graphs import Total, in_threads, on_stand_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LONG = 1_000_000_000  # cycles, half a second: far longer than Python needs to go on
SIZE = 1 << 20


@pytest.fixture
def engine():
    return StandInEngine(
        [Info("x", torch.float32, (-1,))],
        [Info("y", torch.float32, (-1,))],
        lambda tensors: {"y": tensors["x"] * 2},
        [{"x": ((0,), (1,), (1 << 24,))}],
        device="cuda",
    )


@pytest.fixture
def execution(engine):
    # The current device by its index, as tensors have it.
    return Execution(engine, torch.device("cuda", torch.cuda.current_device()))


def test_work_is_queued_on_the_current_stream(engine, execution):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(SIZE, device="cuda")
        execution.run({"x": x + 1})  # the first call loads kernels, which waits
        torch.cuda._sleep(LONG)
        x += 1
        y = execution.run({"x": x})["y"]
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert bool((y == 2).all())
    assert engine.contexts[0].streams == [stream.cuda_stream] * 2


def test_inputs_live_until_the_stream_has_read_them(execution):
    stream = torch.cuda.Stream()
    execution.run({"x": torch.zeros(SIZE, device="cuda")})
    torch.cuda.synchronize()
    x = torch.ones(SIZE, device="cuda")
    address = x.data_ptr()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        y = execution.run({"x": x})["y"]
    del x
    other = torch.full((SIZE,), 9.0, device="cuda")
    torch.cuda.synchronize()
    assert other.data_ptr() != address
    assert bool((y == 2).all())


def test_threads_with_their_own_streams(engine, execution):
    answers = {}

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((SIZE,), float(i), device="cuda")
            ys = [execution.run({"x": x})["y"] for _ in range(5)]
            answers[i] = all(bool((y == 2 * i).all()) for y in ys)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(10), True)
    assert all(len(set(context.streams)) == 1 for context in engine.contexts)


def test_addresses_are_aligned(execution):
    base = torch.arange(9.0, device="cuda")
    assert base[1:].data_ptr() % ALIGNMENT
    assert ready(base[1:])[1] % ALIGNMENT == 0
    assert execution.run({"x": base[1:]})["y"].tolist() == [2.0 * i for i in range(1, 9)]
    assert execution.run({"x": base[:0]})["y"].shape == (0,)


def test_memory_stays_flat(execution):
    x = torch.ones(SIZE, device="cuda")
    execution.run({"x": x})
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        execution.run({"x": x})
    assert torch.cuda.memory_allocated() == before


def test_an_execution_is_not_freed_under_the_gpu(engine):
    execution = Execution(engine, torch.device("cuda", 0))
    x = torch.ones(SIZE, device="cuda:0")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        execution.run({"x": x})
        torch.cuda._sleep(LONG)
    assert not stream.query()
    del execution
    assert stream.query()


def test_tensors_on_the_wrong_device(execution):
    with pytest.raises(ShapeError, match="is on cpu, not on cuda"):
        execution.run({"x": torch.zeros(3)})


def expected(x):
    return torch.nn.functional.conv2d(x, torch.from_numpy(weights()).to(x.device)).relu()


@pytest.fixture(scope="module")
def parts():
    builder = create_builder()
    network = conv_relu(builder)
    return build(network, builder=builder, profiles=[RANGE]), capture(network)


def test_the_engine_runs_or_says_why_not(parts):
    engine = Engine(parts[0])
    reason = engine.why_not(torch.device("cuda"))
    x = torch.randn(2, 3, 8, 8, device="cuda")
    if reason is None:
        torch.testing.assert_close(engine.run({"x": x})["y"], expected(x), rtol=1e-4, atol=1e-4)
        return
    major, minor = torch.cuda.get_device_capability()
    assert "UNSUPPORTED_CC" in reason
    assert f"compute capability {major}.{minor}" in reason
    with pytest.raises(EngineError, match="cannot run here"):
        engine.run({"x": x})


def test_a_module_answers_on_the_gpu_either_way(parts):
    spec = TensorSpec("x", torch.float32, (-1, 3, 8, 8), *RANGE["x"])
    signature = Signature.flat([spec], [TensorSpec("y", torch.float32, (-1, 4, 6, 6))])
    module = TRTModule(parts[0], signature, parts[1])
    state = copy.deepcopy(module.state_dict())
    original = torch.nn.Conv2d(3, 4, 3, bias=False)
    original.weight.data = torch.from_numpy(weights())
    original = torch.nn.Sequential(original, torch.nn.ReLU()).cuda()
    x = torch.randn(4, 3, 8, 8, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceExecutionWarning)
        y = module.cuda()(x)
        report = verify(original, module, [x])
    assert y.device == x.device
    assert report, report
    loaded = TRTModule()
    loaded.load_state_dict({name: _to_gpu(value) for name, value in state.items()})
    assert loaded.engine.plan.device.type == "cpu"
    assert bytes(loaded.engine.plan.numpy()) == parts[0]


def _to_gpu(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.fixture
def scaled():
    """An engine of several kernels, whose scratch memory is its context's own."""
    return StandInEngine(
        [Info("x", torch.float32, (-1,)), Info("w", torch.float32, (-1,))],
        [Info("y", torch.float32, (-1,)), Info("sum", torch.float32, ())],
        lambda t: {"y": (t["x"] * 2 + t["w"]).relu(), "sum": (t["x"] * t["w"]).sum()},
        [{"x": ((0,), (1,), (1 << 24,)), "w": ((0,), (1,), (1 << 24,))}],
        device="cuda",
    )


@pytest.fixture
def graphs(scaled):
    return Execution(scaled, torch.device("cuda", torch.cuda.current_device()))


def check_scaled(execution, size, seed, cuda_graph=True):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(size, device="cuda", generator=generator)
    w = torch.randn(size, device="cuda", generator=generator)
    outputs = execution.run({"x": x, "w": w}, cuda_graph)
    torch.testing.assert_close(outputs["y"], (x * 2 + w).relu(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(outputs["sum"], (x * w).sum(), rtol=1e-5, atol=1e-3)
    return outputs


def test_a_graph_is_recorded_once_and_replayed(scaled, graphs):
    kept = check_scaled(graphs, 1000, seed=0)
    values = {name: x.clone() for name, x in kept.items()}
    for seed, size in enumerate((1000, 1000, 500, 1000, 500, 0, 0)):
        check_scaled(graphs, size, seed)
    assert all(torch.equal(kept[name], values[name]) for name in kept)
    # Executed and recorded once each; all else are replays.
    assert [len(context.streams) for context in scaled.contexts] == [2, 2, 2]


def test_replays_are_queued_on_the_current_stream(scaled, graphs):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(SIZE, device="cuda")
        graphs.run({"x": x, "w": x + 1}, cuda_graph=True)
        torch.cuda._sleep(LONG)
        x += 3
        y = graphs.run({"x": x, "w": x + 1}, cuda_graph=True)["y"]
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert bool((y == 10).all())
    assert len(scaled.contexts) == 1


def test_the_first_call_comes_after_earlier_work_and_before_later(scaled, graphs):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(SIZE, device="cuda")
        torch.cuda._sleep(LONG)
        x += 3
        y = graphs.run({"x": x, "w": x}, cuda_graph=True)["y"] * 1
        x.zero_()
    stream.synchronize()
    assert bool((y == 9).all())


def test_inputs_of_a_replay_live_until_they_are_read(graphs):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graphs.run(dict.fromkeys("xw", torch.zeros(SIZE, device="cuda")), cuda_graph=True)
    torch.cuda.synchronize()
    x = torch.ones(SIZE, device="cuda")
    address = x.data_ptr()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        y = graphs.run({"x": x, "w": x}, cuda_graph=True)["y"]
    del x
    other = torch.full((SIZE,), 9.0, device="cuda")
    torch.cuda.synchronize()
    assert other.data_ptr() != address
    assert bool((y == 3).all())


def test_streams_have_graphs_of_their_own(scaled, graphs):
    streams = [torch.cuda.Stream() for _ in range(3)]
    for call in range(6):
        with torch.cuda.stream(streams[call % 3]):
            check_scaled(graphs, 1000, seed=call)
    assert len(scaled.contexts) == 3


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_ten_threads_of_a_hundred_calls(scaled, graphs, cuda_graph):
    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            for call in range(100):
                size = 1000 * (1 + (index + call) % 3)
                check_scaled(graphs, size, seed=1000 * index + call, cuda_graph=cuda_graph)

    in_threads(10, work)
    assert len(scaled.contexts) <= (30 if cuda_graph else 10)


def test_threads_on_one_stream(scaled, graphs):
    in_threads(10, lambda i: [check_scaled(graphs, 1000, seed=10 * i + c) for c in range(10)])
    assert len(scaled.contexts) <= 10


def test_memory_stays_flat_with_graphs(graphs):
    inputs = dict.fromkeys("xw", torch.ones(SIZE, device="cuda"))
    graphs.run(inputs, cuda_graph=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        graphs.run(inputs, cuda_graph=True)
    assert torch.cuda.memory_allocated() == before


def test_graphs_are_freed_with_the_execution(scaled):
    device = torch.device("cuda", torch.cuda.current_device())
    gc.collect()
    before = torch.cuda.memory_allocated()
    execution = Execution(scaled, device)
    for size in range(SIZE, SIZE + 20):
        execution.run(dict.fromkeys("xw", torch.ones(size, device=device)), cuda_graph=True)
    torch.cuda._sleep(LONG)
    stream = torch.cuda.current_stream()
    del execution
    gc.collect()
    assert stream.query()
    assert torch.cuda.memory_allocated() <= before


def test_other_addresses_and_layouts_of_inputs(graphs):
    base = torch.arange(2001.0, device="cuda")
    w = torch.ones(1000, device="cuda")
    for x in (base[1:1001], base[::2][:1000], base[:1].expand(1000), base[1001:]):
        y = graphs.run({"x": x, "w": w}, cuda_graph=True)["y"]
        assert torch.equal(y, x * 2 + 1)


def test_inference_mode_around_a_replay(graphs):
    for inside in (True, False, True):
        with torch.inference_mode(inside):
            check_scaled(graphs, 100, seed=int(inside))


def test_what_waits_for_the_gpu_cannot_be_recorded():
    engine = StandInEngine(
        [Info("x", torch.float32, (4,))],
        [Info("y", torch.float32, (4,))],
        lambda t: {"y": t["x"] * t["x"].sum().item()},
        device="cuda",
    )
    execution = Execution(engine, torch.device("cuda", torch.cuda.current_device()))
    x = torch.ones(4, device="cuda")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"does not run in a CUDA graph: .*captur"):
            execution.run({"x": x}, cuda_graph=True)
    assert execution.run({"x": x})["y"].tolist() == [4.0] * 4


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_graph_of_the_users_own(scaled, graphs, cuda_graph):
    stream = torch.cuda.Stream()
    x = torch.zeros(1000, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graphs.run({"x": x, "w": x})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        y = graphs.run({"x": x, "w": x}, cuda_graph)["y"]
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert bool((y == 3 * value).all())
    # Its context is not used by others, who might be on another stream.
    with torch.cuda.stream(stream):
        check_scaled(graphs, 1000, seed=0, cuda_graph=False)
    torch.cuda.synchronize()
    assert len(scaled.contexts) == 2


@pytest.fixture(scope="module")
def total():
    return t2t.convert(Total(), [torch.ones(3)])


def late(module):
    """Let the network take long, so that what does not wait for it sees other values."""

    def function(tensors):
        torch.cuda._sleep(LONG // 10)
        return module.program.run(tensors)

    return function


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_state_goes_from_stream_to_stream(total, cuda_graph):
    module = copy.deepcopy(total).cuda()
    module.cuda_graph = cuda_graph
    on_stand_in(module, module.device, function=late(module))
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = torch.ones(3, device="cuda")
    torch.cuda.synchronize()
    ys = []
    for call in range(7):
        with torch.cuda.stream(streams[call % 3]):
            ys.append(module(x))
        if call == 3:
            read = module.state["total"] * 1  # on the default stream
            saved = module.state_dict()["state.total"].cpu()
            copied = copy.deepcopy(module).state["total"].cpu()
    torch.cuda.synchronize()
    assert [y[0].item() for y in ys] == [2.0 * call for call in range(1, 8)]
    assert [read[0].item(), saved[0].item(), copied[0].item()] == [4.0] * 3
    assert module.state["total"].tolist() == [7.0] * 3


def test_state_that_is_set_on_another_stream(total):
    module = copy.deepcopy(total).cuda()
    on_stand_in(module, module.device, function=late(module))
    x = torch.ones(3, device="cuda")
    stream = torch.cuda.Stream()
    module(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        module.set_state({"total": torch.full((3,), 10.0, device="cuda")})
    assert module(x).tolist() == [22.0] * 3
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        module.reset_state()
    assert module(x).tolist() == [2.0] * 3


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_threads_share_a_state(total, cuda_graph):
    module = copy.deepcopy(total).cuda()
    module.cuda_graph = cuda_graph
    on_stand_in(module, module.device)
    seen = [[] for _ in range(10)]

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.ones(3, device="cuda")
            seen[index] = [module(x) for _ in range(20)]
            torch.cuda.current_stream().synchronize()

    in_threads(10, work)
    totals = sorted(y[0].item() for ys in seen for y in ys)
    assert totals == [2.0 * call for call in range(1, 201)]


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_real_engine_in_ten_threads(cuda_graph):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    ).eval()
    dims = [{0: torch.export.Dim("batch", min=1, max=4)}]
    module = t2t.convert(model, [torch.rand(2, 3, 8, 8)], dynamic_shapes=dims)
    device = torch.device("cuda", torch.cuda.current_device())
    reason = module.engine.why_not(device)
    if reason is not None:
        pytest.skip(reason)
    module.cuda_graph = cuda_graph

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            generator = torch.Generator().manual_seed(index)
            for call in range(100):
                x = torch.rand(1 + (index + call) % 3, 3, 8, 8, generator=generator)
                y = module(x.to(device)).cpu()
                torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-3)

    in_threads(10, work)
    assert module.ran_on.is_engine
