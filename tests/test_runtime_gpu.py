"""Running on a real GPU's memory and streams; the engine is a stand-in where none can run there."""

import copy
import threading
import warnings

import pytest
import torch

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
    assert ready(base[1:]).data_ptr() % ALIGNMENT == 0
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
