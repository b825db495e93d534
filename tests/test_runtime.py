"""Loading plans with a reason where they cannot run, and running engines on torch tensors."""

import copy
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from t2t import backend
from t2t.backend import trt
from t2t.building import build, create_builder
from t2t.errors import EngineError, ShapeError
from t2t.module import TRTModule
from t2t.reference import capture
from t2t.runtime import Engine, Execution, as_plan, deserialize, origin_of
from t2t.runtime.execution import ALIGNMENT, ready
from t2t.runtime.inspection import describe
from tests.engines import Info, StandInCapture, StandInEngine
from tests.networks import RANGE, conv_relu, weights

CPU = torch.device("cpu")
HEAD = b"ftrt" + bytes(20) + bytes([10, 13, 3, 9]) + bytes(36)  # a plan of TensorRT
F32 = torch.float32


@pytest.fixture(scope="module")
def plan():
    builder = create_builder()
    return build(conv_relu(builder), builder=builder, profiles=[RANGE])


@pytest.fixture(scope="module")
def program():
    return capture(conv_relu(create_builder()))


def conv_engine(program, **options):
    inputs = [Info(info.name, info.dtype, tuple(info.shape)) for info in program.inputs]
    outputs = [Info(info.name, info.dtype, tuple(info.shape)) for info in program.outputs]
    return StandInEngine(inputs, outputs, program.run, [RANGE], **options)


def unary(function, shape=(-1,), dtype=F32, **options):
    unknown = options.pop("unknown", False)
    profiles = [{"x": ((0,) * len(shape), (1,) * len(shape), (1000,) * len(shape))}]
    return StandInEngine(
        [Info("x", dtype, shape)],
        [Info("y", options.pop("returns", dtype), shape, unknown=unknown)],
        lambda tensors: {"y": function(tensors["x"])},
        options.pop("profiles", profiles),
        **options,
    )


def expected(x):
    return torch.nn.functional.conv2d(x, torch.from_numpy(weights())).relu()


def test_a_network_runs_on_given_memory(program):
    execution = Execution(conv_engine(program), CPU)
    for seed, batch in enumerate((1, 4, 2)):
        x = torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        kept = x.clone()
        outputs = execution.run({"x": x})
        torch.testing.assert_close(outputs["y"], expected(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(x, kept)


def test_strided_and_grad_inputs(program):
    execution = Execution(conv_engine(program), CPU)
    x = torch.randn(2, 8, 8, 3).permute(0, 3, 1, 2).requires_grad_()
    y = execution.run({"x": x})["y"]
    torch.testing.assert_close(y, expected(x), rtol=1e-5, atol=1e-5)
    assert not y.requires_grad


def test_outputs_are_new_memory_each_time():
    execution = Execution(unary(lambda x: x + 1), CPU)
    first = execution.run({"x": torch.zeros(3)})["y"]
    second = execution.run({"x": torch.ones(3)})["y"]
    assert first.tolist() == [1, 1, 1]
    assert second.tolist() == [2, 2, 2]


def test_ten_threads_get_their_own_answers(program):
    engine = conv_engine(program)
    execution = Execution(engine, CPU)
    inputs = [torch.full((1 + i % 4, 3, 8, 8), float(i)) for i in range(10)]
    answers = [[] for _ in inputs]

    def work(i):
        for _ in range(5):
            answers[i].append(execution.run({"x": inputs[i]})["y"])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, answer in zip(inputs, answers, strict=True):
        assert len(answer) == 5
        for y in answer:
            torch.testing.assert_close(y, expected(x), rtol=1e-5, atol=1e-4)
    assert 1 < len(engine.contexts) <= 10


def test_one_caller_uses_one_context(program):
    engine = conv_engine(program)
    execution = Execution(engine, CPU)
    for _ in range(5):
        execution.run({"x": torch.zeros(1, 3, 8, 8)})
    assert len(engine.contexts) == 1
    assert engine.contexts[0].streams == [0] * 5


def test_a_failed_context_is_not_used_again():
    engine = unary(lambda x: x)
    execution = Execution(engine, CPU)
    execution.run({"x": torch.zeros(1)})
    engine.contexts[0].fails = True
    with pytest.raises(EngineError, match="the engine failed: TensorRT gave no reason"):
        execution.run({"x": torch.zeros(1)})
    assert execution.run({"x": torch.ones(1)})["y"].item() == 1
    assert len(engine.contexts) == 2


def test_no_memory_for_a_context():
    execution = Execution(unary(lambda x: x, most_contexts=0), CPU)
    with pytest.raises(EngineError, match="no execution context"):
        execution.run({"x": torch.zeros(1)})


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "input 'x' is missing"),
        ({"x": torch.zeros(1, 3, 8, 8, dtype=torch.half)}, r"torch.float16, .* torch.float32"),
        ({"x": torch.zeros(1, 3, 8)}, r"\(1, 3, 8\), the engine takes \(-1, 3, 8, 8\)"),
        ({"x": torch.zeros(1, 3, 8, 9)}, r"\(1, 3, 8, 9\)"),
        ({"x": torch.zeros(5, 3, 8, 8)}, r"no profile .*\(5, 3, 8, 8\).*\(4, 3, 8, 8\)"),
        ({"x": torch.zeros(1, 3, 8, 8, device="meta")}, "on meta, not on cpu"),
    ],
)
def test_inputs_are_checked(program, inputs, words):
    with pytest.raises(ShapeError, match=words):
        Execution(conv_engine(program), CPU).run(inputs)


def test_the_profile_that_fits_is_taken():
    profiles = [{"x": ((1,), (2,), (3,))}, {"x": ((4,), (8,), (16,))}]
    engine = unary(lambda x: x * 2, profiles=profiles)
    execution = Execution(engine, CPU)
    for size, profile in ((2, 0), (9, 1), (3, 0)):
        assert execution.run({"x": torch.ones(size)})["y"].tolist() == [2] * size
        assert engine.contexts[0].active_optimization_profile == profile
    with pytest.raises(ShapeError, match="no profile"):
        execution.run({"x": torch.ones(17)})


def test_empty_tensors_have_addresses():
    execution = Execution(unary(lambda x: x + 1), CPU)
    assert execution.run({"x": torch.zeros(0)})["y"].shape == (0,)


def test_data_dependent_shapes():
    engine = unary(lambda x: x[x > 0], unknown=True)
    execution = Execution(engine, CPU)
    first = execution.run({"x": torch.tensor([1.0, -1.0, 2.0])})["y"]
    second = execution.run({"x": torch.tensor([3.0, 4.0, 5.0])})["y"]
    third = execution.run({"x": torch.tensor([-3.0])})["y"]
    assert first.tolist() == [1, 2]
    assert second.tolist() == [3, 4, 5]
    assert third.shape == (0,)
    assert len(engine.contexts) == 1


def test_data_dependent_shapes_of_small_types():
    execution = Execution(unary(lambda x: x[x > 0] > 1, unknown=True, returns=torch.bool), CPU)
    assert execution.run({"x": torch.tensor([1.0, 2.0])})["y"].tolist() == [False, True]


def test_no_memory_for_a_data_dependent_output(monkeypatch):
    engine = unary(lambda x: x[x > 0], unknown=True)
    execution = Execution(engine, CPU)
    execution.run({"x": torch.ones(2)})
    monkeypatch.setattr("t2t.runtime.outputs.Unsized.allocate", lambda _self, _size: 0)
    with pytest.raises(EngineError, match="the engine failed"):
        execution.run({"x": torch.ones(2)})


def test_shape_inputs_and_outputs_lie_in_cpu_memory():
    engine = StandInEngine(
        [Info("x", F32, (-1,)), Info("size", torch.int64, (2,), on_host=True)],
        [Info("y", F32, (-1, -1)), Info("count", torch.int64, (1,), on_host=True)],
        lambda t: {"y": t["x"].reshape(t["size"].tolist()), "count": t["size"].prod().view(1)},
        [{"x": ((1,), (4,), (9,)), "size": ((1, 1), (2, 2), (3, 3))}],
    )
    execution = Execution(engine, CPU)
    outputs = execution.run({"x": torch.arange(6.0), "size": torch.tensor([2, 3])})
    assert outputs["y"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert outputs["count"].tolist() == [6]
    size = torch.tensor([3, 2])
    assert execution.run({"x": torch.arange(6.0), "size": size})["y"].shape == (3, 2)
    size.copy_(torch.tensor([2, 3]))  # the same memory
    assert execution.run({"x": torch.arange(6.0), "size": size})["y"].shape == (2, 3)
    with pytest.raises(ShapeError, match=r"no profile.*\[1, 6\]"):
        execution.run({"x": torch.arange(6.0), "size": torch.tensor([1, 6])})


class Marked(torch.Tensor):
    """A subclass that changes no result."""


def views(x):
    """Return tensors of the same facts as x, each with other values or another place in memory."""
    conjugate = torch.complex(x, x + 1).conj().clone().conj()
    return {
        "another": x + 1,
        "the same": x,
        "strided": torch.stack([x, x], -1)[..., 0] * 2,
        "transposed": (x.t() * 3).contiguous().t(),
        "offset": torch.cat([x[:1], x * 4])[1:],
        "expanded": x[:1].expand(x.shape),
        "with another sign": torch._neg_view(x),
        "imaginary parts": torch.view_as_real(conjugate.resolve_conj())[..., 1],
        "with a gradient": (x * 5).requires_grad_(),
        "a parameter": torch.nn.Parameter(x * 6),
        "a subclass": (x * 7).as_subclass(Marked),
    }


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_what_was_checked_before_is_read_anew(cuda_graph):
    engine = unary(lambda x: x * 2 + 1, (-1, 3))
    capture = StandInCapture()
    capture.check_memory = False
    execution = Execution(engine, CPU, capture)
    x = torch.arange(6.0).reshape(2, 3)
    given = views(x)
    for name in (*given, *reversed(given)):
        value = given[name]
        y = execution.run({"x": value}, cuda_graph)["y"]
        assert type(y) is torch.Tensor, name
        assert not y.requires_grad, name
        wanted = (value.detach().as_subclass(torch.Tensor) * 2 + 1).tolist()
        assert y.tolist() == wanted, name
    assert len(engine.contexts) == 1


@pytest.mark.parametrize("shape", [(1,), (3,)])
def test_the_sign_of_a_view_is_in_no_memory(shape):
    x = torch.complex(torch.ones(shape), torch.arange(1.0, 1 + shape[0])).conj().imag
    assert x.is_neg()
    execution = Execution(unary(lambda x: x + 0), CPU)
    assert execution.run({"x": x})["y"].tolist() == x.tolist()


def test_a_context_is_told_what_has_changed():
    engine = unary(lambda x: x + 1)
    execution = Execution(engine, CPU)
    x, other, longer = torch.zeros(3), torch.ones(3), torch.ones(4)
    told = []
    for value in (x, x, other, longer, x):
        y = execution.run({"x": value})["y"]
        assert torch.equal(y, value + 1)
        told.append(engine.contexts[0].set[:-1])  # the last is the output's address
        engine.contexts[0].set.clear()
    both = ["shape of x", "address of x"]
    assert told == [both, [], ["address of x"], both, both]


def test_what_fitted_once_does_not_let_others_pass(program):
    engine = conv_engine(program)
    execution = Execution(engine, CPU)
    good = torch.ones(2, 3, 8, 8)
    wrong = [good.half(), good[..., :7], good[0], torch.ones(5, 3, 8, 8), good.to("meta")]
    for _ in range(2):
        for bad in wrong:
            y = execution.run({"x": good})["y"]
            torch.testing.assert_close(y, expected(good), rtol=1e-5, atol=1e-5)
            with pytest.raises(ShapeError):
                execution.run({"x": bad})
    assert len(engine.contexts) == 1


def test_a_context_that_refused_a_shape_is_not_used_again():
    engine = unary(lambda x: x + 1)
    execution = Execution(engine, CPU)
    assert execution.run({"x": torch.zeros(2)})["y"].tolist() == [1, 1]
    context = engine.contexts[0]
    context.set_input_shape = lambda _name, _shape: False
    with pytest.raises(EngineError, match=r"refuses x \(3,\)"):
        execution.run({"x": torch.zeros(3)})
    for size in (2, 3):
        assert execution.run({"x": torch.ones(size)})["y"].tolist() == [2] * size
    assert len(engine.contexts) == 2


def test_outputs_of_known_and_unknown_sizes_keep_their_order():
    def function(t):
        x = t["x"]
        return {"a": x + 1, "found": x[x > 0], "b": x * 2, "place": (x > 0).nonzero()}

    infos = [("a", F32, (-1,)), ("found", F32, (-1,)), ("b", F32, (-1,))]
    outputs = [Info(*info, unknown=info[0] == "found") for info in infos]
    outputs.append(Info("place", torch.int64, (-1, 1), unknown=True))
    ranges = [{"x": ((1,), (2,), (9,))}]
    execution = Execution(StandInEngine([Info("x", F32, (-1,))], outputs, function, ranges), CPU)
    for x in (torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0, 3.0]), torch.tensor([0.0])):
        results = execution.run({"x": x})
        assert list(results) == ["a", "found", "b", "place"]
        assert all(torch.equal(results[name], y) for name, y in function({"x": x}).items())


@pytest.mark.parametrize("first", [False, True])
def test_outputs_are_inference_tensors_where_they_are_made_in_that_mode(first):
    execution = Execution(unary(lambda x: x + 1), CPU)
    for inside in (first, not first, first):
        with torch.inference_mode(inside):
            y = execution.run({"x": torch.ones(2)})["y"]
        assert y.is_inference() == inside
    w = torch.ones(2, requires_grad=True)
    (execution.run({"x": torch.ones(2)})["y"] * w).sum().backward()
    assert w.grad.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.bfloat16])
def test_types(dtype):
    execution = Execution(unary(lambda x: x.flip(0), dtype=dtype), CPU)
    x = torch.tensor([1, 0, 1, 1]).to(dtype)
    assert torch.equal(execution.run({"x": x})["y"], x.flip(0))


def test_ready_tensors_are_contiguous_and_have_memory():
    x = torch.zeros(4, 6)
    same, address = ready(x)
    assert same is x
    assert address == x.data_ptr()
    turned, address = ready(x.t())
    assert turned.is_contiguous()
    assert turned.data_ptr() == address
    empty, address = ready(torch.zeros(0, 3))
    assert address
    assert empty.shape == (0, 3)
    assert empty.untyped_storage().nbytes() >= ALIGNMENT


def test_as_plan_shares_what_it_can():
    data = bytearray(b"abc")
    plan = as_plan(data)
    data[0] = 0
    assert plan.tolist() == [0, 98, 99]
    assert as_plan(plan).data_ptr() == plan.data_ptr()
    array = np.array([1, 2], np.uint8)
    assert as_plan(array).tolist() == [1, 2]
    assert as_plan(b"abc").tolist() == [97, 98, 99]


@pytest.mark.parametrize("data", [b"", torch.zeros(3), torch.zeros(2, 2, dtype=torch.uint8)])
def test_what_is_no_plan(data):
    with pytest.raises(EngineError, match="plan"):
        as_plan(data)


def test_origin_is_read_from_the_plan(plan):
    assert str(origin_of(as_plan(plan))) == f"tensorrt_rtx {backend.version()}"
    head = bytearray(28)
    head[:4], head[24:] = b"ftrt", bytes([10, 13, 3, 9])
    assert str(origin_of(as_plan(head))) == "tensorrt 10.13.3.9"
    assert origin_of(as_plan(b"ftrt")) is None
    assert origin_of(as_plan(b"PK" * 20)) is None


no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of machines without a GPU")


@no_gpu
def test_without_a_gpu_the_reason_is_given(plan):
    engine = Engine(plan)
    words = "built by tensorrt_rtx .* needs an NVIDIA GPU"
    for _ in range(2):
        with pytest.raises(EngineError, match=words):
            engine.load(torch.device("cuda", 0))
    assert "needs an NVIDIA GPU" in engine.why_not(torch.device("cuda"))
    with pytest.raises(EngineError, match="these are on 'cpu'"):
        engine.run({"x": torch.zeros(1, 3, 8, 8)})
    with pytest.raises(EngineError, match="without inputs"):
        engine.run({})


@no_gpu
def test_bytes_that_are_no_plan():
    with pytest.raises(EngineError, match="no TensorRT plan"):
        Engine(b"x" * 100).load(torch.device("cuda", 0))


class Runtime:
    """trt.Runtime of a machine with a GPU."""

    validity = ("VALID", 0)
    engine = None

    def __init__(self, logger):
        assert logger is not None

    def get_engine_validity(self, data):
        assert bytes(data[:4]) == b"vtrt"
        return self.validity

    def deserialize_cuda_engine(self, data):
        assert len(data) > 28
        return self.engine


class Gpu:
    """A pretended H100, and a TensorRT-RTX that answers as told."""

    def __init__(self, monkeypatch, **answers):
        diagnostics = {"VERSION_MISMATCH": 1, "UNSUPPORTED_CC": 2, "MALFORMED_ENGINE": 32}
        module = SimpleNamespace(
            Runtime=type("Told", (Runtime,), answers),
            EngineValidity=SimpleNamespace(INVALID="INVALID"),
            EngineInvalidityDiagnostics=SimpleNamespace(**diagnostics),
        )
        monkeypatch.setattr("t2t.runtime.plans.trt", module)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H100")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (1, ["VERSION_MISMATCH: it was built by another version"]),
        (2, ["UNSUPPORTED_CC: it was not built for this GPU"]),
        (34, ["UNSUPPORTED_CC", "MALFORMED_ENGINE"]),
        (0, ["diagnostics 0"]),
        (4096, ["diagnostics 4096"]),
    ],
)
def test_diagnostics_are_told_by_name(plan, monkeypatch, bits, words):
    Gpu(monkeypatch, validity=("INVALID", bits))
    older = bytearray(plan)
    older[25] = 6
    with pytest.raises(EngineError) as caught:
        deserialize(as_plan(older), torch.device("cuda", 0))
    text = str(caught.value)
    for word in [*words, "Built by tensorrt_rtx 1.6.", f"here: tensorrt_rtx {backend.version()}"]:
        assert word in text
    assert "NVIDIA H100 (compute capability 9.0)" in text


def test_an_engine_that_does_not_load_names_both_sides(plan, monkeypatch):
    Gpu(monkeypatch)
    with pytest.raises(EngineError, match=r"cannot run here: TensorRT gave no reason. Built by"):
        deserialize(as_plan(plan), torch.device("cuda", 0))


def test_a_plan_of_a_backend_that_is_not_installed(monkeypatch):
    Gpu(monkeypatch)
    monkeypatch.setattr(backend, "is_installed", lambda name: name != "tensorrt")
    head = bytearray(64)
    head[:4], head[24:28] = b"ftrt", bytes([10, 13, 3, 9])
    with pytest.raises(EngineError, match=r"built by tensorrt 10.13.3.9: .*not installed"):
        deserialize(as_plan(head), torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("budget", "set_to"), [(None, None), (0, 0), (300, 300), (5000, 999), ("automatic", 333)]
)
def test_a_weight_streaming_budget_is_set_before_a_context(
    plan, program, monkeypatch, budget, set_to
):
    stand_in = conv_engine(program, streamable_weights_size=999)
    Gpu(monkeypatch, engine=stand_in)
    deserialize(as_plan(plan), torch.device("cuda", 0), budget)
    assert stand_in.budget == set_to
    assert describe(stand_in)["streamable_bytes"] == 999


def test_a_budget_that_cannot_be_had(plan, program, monkeypatch):
    Gpu(monkeypatch, engine=conv_engine(program))
    with pytest.raises(EngineError, match="weight_streaming=True"):
        deserialize(as_plan(plan), torch.device("cuda", 0), 300)

    class Refuses(StandInEngine):
        weight_streaming_budget_v2 = property(lambda _: 7, lambda *_: None)

    class Raises(StandInEngine):
        @property
        def weight_streaming_budget_v2(self):
            raise RuntimeError("Failed to set weight streaming budget!")

        @weight_streaming_budget_v2.setter
        def weight_streaming_budget_v2(self, budget):
            raise RuntimeError("Failed to set weight streaming budget!")

    for kind in (Refuses, Raises):
        Gpu(monkeypatch, engine=kind([], [], None, streamable_weights_size=999))
        with pytest.raises(EngineError, match="refuses a weight_streaming_budget of 300"):
            deserialize(as_plan(plan), torch.device("cuda", 0), 300)


def test_an_engine_is_loaded_for_its_dla_core(plan, program, monkeypatch):
    cores = []

    class Jetson(Runtime):
        engine = conv_engine(program)
        DLA_core = property(None, lambda _, core: cores.append(core))

    Gpu(monkeypatch)
    monkeypatch.setattr("t2t.runtime.plans.trt.Runtime", Jetson)
    deserialize(as_plan(plan), torch.device("cuda", 0))
    engine = pickle.loads(pickle.dumps(copy.deepcopy(Engine(plan, 1))))
    deserialize(engine.plan, torch.device("cuda", 0), dla_core=engine.dla_core)
    assert cores == [1]


def test_a_loaded_engine_is_kept_for_its_device(plan, program, monkeypatch):
    stand_in = conv_engine(program)
    monkeypatch.setattr("t2t.runtime.engine.deserialize", lambda *_: stand_in)
    engine = Engine(plan)
    first = engine.load(torch.device("cuda", 0)) if torch.cuda.is_available() else None
    loaded = []
    monkeypatch.setattr(Engine, "_try", lambda _self, device: loaded.append(device) or device)
    engine.release()
    for index in (0, 1, 0):
        engine.load(torch.device("cuda", index))
    assert [device.index for device in loaded] == [0, 1]
    engine.release()
    engine.load(torch.device("cuda", 0))
    assert len(loaded) == 3
    assert first is None or first.inputs[0].name == "x"


def test_copies_and_pickles_take_the_plan_along(plan):
    engine = Engine(plan)
    engine.why_not(torch.device("cuda"))
    assert copy.deepcopy(engine).plan.data_ptr() == engine.plan.data_ptr()
    assert copy.copy(engine).plan.data_ptr() == engine.plan.data_ptr()
    restored = pickle.loads(pickle.dumps(engine))
    assert bytes(restored.plan.numpy()) == plan
    assert "built by tensorrt_rtx" in repr(restored)


@pytest.mark.skipif(not backend.is_rtx(), reason="only TensorRT-RTX compiles at run time")
@pytest.mark.filterwarnings("error")
def test_what_was_compiled_is_kept_in_a_file(plan, program, tmp_path):
    path, stand_ins = tmp_path / "net.pt.cache", []

    def start(runtime_cache=path):
        """Begin a process: the module is loaded, and its engine where it is first called."""
        module = TRTModule(plan, None, program)
        module.runtime_cache = runtime_cache
        stand_ins.append(conv_engine(program))
        file = module.engine.runtime_cache
        module.engine.set_execution(CPU, Execution(stand_ins[-1], CPU, runtime_cache=file))
        return module

    def check(module, rows):
        x = torch.rand(rows, 3, 8, 8)
        torch.testing.assert_close(module(x), expected(x), rtol=1e-5, atol=1e-5)
        kernels = module.engine.load(CPU).kernels
        return None if kernels is None else kernels.cache.compiled

    first = start()
    assert [check(first, rows) for rows in (1, 2, 1, 2)] == [1, 2, 2, 2]
    assert not path.exists()
    first.save_runtime_cache()
    second = start(str(path))
    assert second.runtime_cache == path
    assert [check(second, rows) for rows in (2, 3)] == [0, 1]
    for damage in (b"", b"kernel", b"of another version"):
        path.write_bytes(damage)
        third = start()
        assert check(third, 2) == 1
    third.save_runtime_cache()
    assert check(start(), 2) == 0
    plain = start(None)
    assert check(plain, 1) is None
    assert stand_ins[-1].contexts[0].runtime_config is None
    with pytest.raises(EngineError, match="nothing was compiled"):
        plain.save_runtime_cache()
    with pytest.raises(EngineError, match="a runtime cache is TensorRT-RTX's"):
        TRTModule(HEAD, first.signature).runtime_cache = path
    with pytest.raises(EngineError, match="only a program"):
        TRTModule(program=program).runtime_cache = path


@pytest.mark.skipif(not backend.is_rtx(), reason="only TensorRT-RTX compiles at run time")
def test_kernels_of_cuda_graphs_are_kept_too(program, tmp_path):
    engine = conv_engine(program)
    execution = Execution(engine, CPU, StandInCapture(), tmp_path / "cache")
    execution.run({"x": torch.rand(2, 3, 8, 8)}, cuda_graph=True)
    config = engine.contexts[0].runtime_config
    assert config.cache is execution.kernels.cache
    eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    assert config.dynamic_shapes_kernel_specialization_strategy == eager
