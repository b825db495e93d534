"""TRTModule: running, saving and loading, copying, and what it says when something is wrong."""

import copy
import gc
import io
import json
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
import zlib
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch

import t2t
from t2t import backend
from t2t.building import build, create_builder
from t2t.errors import CheckpointError, EngineError, ShapeError
from t2t.io import Dimension, Place, Signature, TensorSpec, flatten
from t2t.module import FORMAT, ReferenceExecutionWarning, TRTModule
from t2t.reference import capture
from t2t.runtime import Engine, Execution
from tests.engines import Info, StandInEngine
from tests.networks import RANGE, conv_relu, weights

X = TensorSpec("x", torch.float32, (-1, 3, 8, 8), *RANGE["x"])
Y = TensorSpec("y", torch.float32, (-1, 4, 6, 6))
TENSOR = torch.zeros(1)
SIGNATURE = Signature(
    (X,),
    (Y,),
    flatten(((TENSOR,), {"scale": 1}))[1],
    flatten({"out": [TENSOR, None], "name": "conv"})[1],
    parameters=("x", "scale"),
)
DETAILS = {"precision": "fp16", "compute_capabilities": ("8.0", "8.9")}


@pytest.fixture(scope="module")
def parts():
    builder = create_builder()
    network = conv_relu(builder)
    return build(network, builder=builder, profiles=[RANGE]), capture(network)


@pytest.fixture
def module(parts):
    plan, program = parts
    return TRTModule(plan, SIGNATURE, program, **DETAILS)


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceExecutionWarning)
        yield


@pytest.fixture
def on_gpu(monkeypatch, parts):
    """Let every engine run as if the CPU were a GPU that can."""
    program = parts[1]
    engine = StandInEngine(
        [Info("x", X.dtype, X.shape)], [Info("y", Y.dtype, Y.shape)], program.run, [RANGE]
    )
    execution = Execution(engine, torch.device("cpu"))
    monkeypatch.setattr(Engine, "load", lambda _self, _device: execution)
    return engine


def expected(x):
    return torch.nn.functional.conv2d(x, torch.from_numpy(weights())).relu()


def check(module, batch=2):
    for seed in (0, 1):
        x = torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        result = module(x, scale=1)
        assert list(result) == ["out", "name"]
        assert result["name"] == "conv"
        assert result["out"][1] is None
        torch.testing.assert_close(result["out"][0], expected(x), rtol=1e-5, atol=1e-5)


def test_without_a_gpu_the_program_runs_and_says_so_once(module):
    x = torch.ones(1, 3, 8, 8)
    with pytest.warns(ReferenceExecutionWarning, match=r"PyTorch .*not in TensorRT.*'cpu'") as seen:
        module(x, scale=1)
    assert seen[0].filename == __file__
    check(module)  # warnings are errors here


@pytest.mark.usefixtures("on_gpu")
def test_the_engine_runs_where_it_can(module):
    check(module)
    assert module(scale=1, x=torch.zeros(1, 3, 8, 8))["out"][0].shape == (1, 4, 6, 6)
    assert module(torch.zeros(1, 3, 8, 8), 1)["out"][0].shape == (1, 4, 6, 6)


def test_ten_threads_on_one_module(module, on_gpu):
    inputs = [torch.full((1 + i % 4, 3, 8, 8), float(i)) for i in range(10)]
    answers = [None] * 10

    def work(i):
        for _ in range(3):
            answers[i] = module(inputs[i], scale=1)["out"][0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, y in zip(inputs, answers, strict=True):
        torch.testing.assert_close(y, expected(x), rtol=1e-5, atol=1e-4)
    assert on_gpu.contexts


def test_an_engine_that_fails_is_not_replaced_in_silence(module, on_gpu):
    module(torch.zeros(1, 3, 8, 8), scale=1)
    on_gpu.contexts[0].fails = True
    with pytest.raises(EngineError, match="the engine failed"):
        module(torch.zeros(1, 3, 8, 8), scale=1)


def test_with_neither_engine_nor_program(parts):
    with pytest.raises(EngineError, match=r"'cpu'; nor is there a program"):
        TRTModule(parts[0], SIGNATURE)(torch.zeros(1, 3, 8, 8), scale=1)
    with pytest.raises(EngineError, match="empty"):
        TRTModule()(TENSOR)
    with pytest.raises(EngineError, match="no engine to save"):
        TRTModule(program=parts[1]).save_engine("unused")
    with pytest.raises(ValueError, match="signature"):
        TRTModule(parts[0])


@pytest.mark.usefixtures("quiet")
def test_answers_do_not_change_with_the_originals_weights(parts):
    kernel = weights()
    builder = create_builder()
    network = conv_relu(builder, kernel=kernel)
    module = TRTModule(parts[0], SIGNATURE, capture(network))
    kernel *= 2
    check(module)


@pytest.mark.usefixtures("quiet")
def test_a_program_alone_takes_tensors_in_order(parts):
    module = TRTModule(program=parts[1])
    x = torch.ones(1, 3, 8, 8)
    torch.testing.assert_close(module(x), expected(x), rtol=1e-5, atol=1e-5)
    assert module.input_names == ["x"]
    assert "program: 2 layers" in repr(module)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.zeros(5, 3, 8, 8),), {"scale": 1}, r"\(5, 3, 8, 8\).*must be 1\.\.4"),
        ((torch.zeros(1, 3, 8, 8).double(),), {"scale": 1}, "float64"),
        ((torch.zeros(1, 3, 8, 8),), {"scale": 2}, "was 1 when the module was converted and is 2"),
        ((None,), {"scale": 1}, "expected a tensor, got None"),
        ((), {"scale": 1}, "'x' is missing"),
    ],
)
def test_wrong_inputs(module, args, kwargs, words):
    with pytest.raises(ShapeError, match=words):
        module(*args, **kwargs)


def test_inputs_on_several_devices(parts):
    two = Signature.flat([X, TensorSpec("z", torch.float32, (1,))], [Y])
    with pytest.raises(ShapeError, match=r"several devices: \['cpu', 'meta'\]"):
        TRTModule(parts[0], two)(torch.zeros(1, 3, 8, 8), torch.zeros(1, device="meta"))


def saved(module, **options):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


@pytest.mark.usefixtures("quiet")
def test_a_checkpoint_holds_everything(module):
    loaded = TRTModule()
    loaded.load_state_dict(saved(module))
    check(loaded)
    assert loaded.signature == module.signature
    assert loaded.details == module.details
    assert loaded.details["backend"] == "tensorrt_rtx"
    assert loaded.details["backend_version"] == backend.version()
    assert loaded.precision == "fp16"
    assert loaded.details["compute_capabilities"] == ["8.0", "8.9"]
    assert torch.equal(loaded.engine.plan, module.engine.plan)
    assert loaded.input_names == ["x"]
    assert loaded.output_names == ["y"]


def test_a_checkpoint_is_the_plan_a_text_and_the_program(module):
    state = module.state_dict()
    assert state["engine"].dtype == torch.uint8
    assert state["engine"].data_ptr() == module.engine.plan.data_ptr()
    assert json.loads(state["metadata"])["format"] == FORMAT
    others = set(state) - {"engine", "metadata", "checksum"}
    assert others == {"program.program", "program.weights.0"}


@pytest.mark.usefixtures("quiet")
def test_files_can_be_mapped_instead_of_read(module, tmp_path):
    torch.save(module.state_dict(), tmp_path / "module.pth")
    loaded = TRTModule()
    loaded.load_state_dict(torch.load(tmp_path / "module.pth", weights_only=True, mmap=True))
    check(loaded)


class Larger(torch.nn.Module):
    def __init__(self, converted):
        super().__init__()
        self.head = torch.nn.Linear(6, 2)
        self.converted = converted

    def forward(self, x):
        return self.head(self.converted(x, scale=1)["out"][0])


@pytest.mark.usefixtures("quiet")
def test_a_part_of_a_larger_module(module):
    larger, again = Larger(module), Larger(TRTModule())
    state = saved(larger)
    assert "converted.metadata" in state
    result = again.load_state_dict(state)
    assert not result.missing_keys
    assert not result.unexpected_keys
    x = torch.ones(2, 3, 8, 8)
    torch.testing.assert_close(again(x), larger(x))


def test_strict_and_not(module):
    state = saved(Larger(module))
    extra = {**state, "converted.extra": TENSOR}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*converted\.extra"):
        Larger(TRTModule()).load_state_dict(extra)
    assert Larger(TRTModule()).load_state_dict(extra, strict=False).unexpected_keys == [
        "converted.extra"
    ]
    without = {name: value for name, value in state.items() if name.startswith("head")}
    with pytest.raises(RuntimeError, match=r"Missing key.*converted\.metadata"):
        Larger(TRTModule()).load_state_dict(without)
    kept = Larger(module)
    result = kept.load_state_dict(without, strict=False)
    assert result.missing_keys == ["converted.metadata"]
    assert kept.converted.input_names == ["x"]


def change(name, function):
    def apply(state):
        state[name] = function(state[name])

    return apply


def flip(plan):
    plan = plan.clone()
    plan[1000] ^= 1
    return plan


def edit(**fields):
    """Change the metadata and their checksum, as no accident does."""

    def apply(state):
        text = json.dumps({**json.loads(state["metadata"]), **fields})
        state.update(metadata=text, checksum=f"{zlib.crc32(text.encode()):08x}")

    return apply


def other_program(change):
    """Change the program and what is said of it, as no accident does."""

    def apply(state):
        program = json.loads(state["program.program"])
        change(program, state)
        state["program.program"] = text = json.dumps(program)
        entries = json.loads(state["metadata"])["entries"]
        entries["program.program"] = ["str", len(text), zlib.crc32(text.encode())]
        weights = state["program.weights.0"]
        entries["program.weights.0"] = [
            str(weights.dtype).removeprefix("torch."),
            weights.numel(),
            zlib.crc32(weights.numpy().data),
        ]
        edit(entries=entries)(state)

    return apply


def half_of_the_weights(program, state):
    state["program.weights.0"] = state["program.weights.0"][:54].clone()


DAMAGE = {
    "bit": (change("engine", flip), r"'engine' is uint8 of \d+ \(checksum"),
    "cut": (change("engine", lambda plan: plan[:-1]), "'engine' is uint8 of"),
    "empty engine": (change("engine", lambda plan: plan[:0]), "'engine' is uint8"),
    "no engine": (lambda state: state.pop("engine"), "'engine' is missing"),
    "engine dtype": (change("engine", lambda plan: plan.float()), "'engine' is float32"),
    "engine type": (change("engine", bytes), "'engine' is bytes"),
    "no metadata": (lambda state: state.pop("metadata"), "no checkpoint of a converted module"),
    "metadata type": (change("metadata", len), "no checkpoint"),
    "metadata cut": (change("metadata", lambda text: text[:-9]), "damaged"),
    "metadata other": (change("metadata", lambda _: "[1]"), "damaged"),
    "newer": (edit(format=99, writer="t2t 9.0"), r"format 99, written by t2t 9.0.*update"),
    "format": (edit(format="a"), "damaged"),
    "checksum": (change("checksum", lambda text: text[::-1]), "checksum differs"),
    "no checksum": (lambda state: state.pop("checksum"), "checksum differs"),
    "metadata bit": (change("metadata", lambda text: text.replace("scale", "scald")), "checksum"),
    "signature": (edit(signature={}), "signature"),
    "details": (edit(details=3), "damaged"),
    "dtype": (edit(details={"parameter_dtype": "nn"}), "parameter_dtype"),
    "entries": (edit(entries={"engine": 3}), "damaged"),
    "program gone": (lambda state: state.pop("program.program"), "program"),
    "program cut": (change("program.program", lambda text: text[:-9]), "program"),
    "weights gone": (lambda state: state.pop("program.weights.0"), "weights.0' is missing"),
    "weights cut": (change("program.weights.0", lambda w: w[:54]), "float32 of 54"),
    "weights bit": (change("program.weights.0", lambda w: w + 1), "checksum"),
    "weights dtype": (change("program.weights.0", torch.Tensor.double), "float64"),
    "weights on meta": (change("program.weights.0", lambda w: w.to("meta")), "weights.0' is"),
    "sparse": (change("program.weights.0", torch.Tensor.to_sparse), "weights.0' is"),
    "half of the weights": (other_program(half_of_the_weights), "54 elements are no kernel"),
    "unknown kind": (
        other_program(lambda p, _: p["layers"][0].update(kind="MAGIC")),
        "MAGIC, which the reference executor does not know",
    ),
    "unknown type": (
        other_program(lambda p, _: p["layers"][0].update(types=["FLOAT128"])),
        "FLOAT128",
    ),
    "loose end": (
        other_program(lambda p, _: p["layers"][1].update(inputs=["nowhere"])),
        "reads 'nowhere', which no layer makes",
    ),
    "no output": (
        other_program(lambda p, _: p.update(outputs=[["z", "float32", [-1, 4, 6, 6]]])),
        "reads 'z'",
    ),
    "another shape": (
        other_program(lambda p, _: p["inputs"][0].__setitem__(2, [-1, 3, 9, 9])),
        "the program has",
    ),
    "a place outside": (
        other_program(lambda p, _: p.update(places={"0": [1 << 40, "float32", [108], [0]]})),
        "of .* bytes",
    ),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_an_error_and_changes_nothing(module, damage, words):
    state = dict(saved(module))
    damage(state)
    before = module._converted
    with pytest.raises(CheckpointError, match=words):
        module.load_state_dict(state)
    assert module._converted is before
    check(module)


@pytest.mark.parametrize("key", ["bit", "newer", "program cut"])
def test_damage_in_a_part_of_a_larger_module(module, key):
    damage, words = DAMAGE[key]
    state = dict(module.state_dict())
    damage(state)
    larger = Larger(TRTModule())
    state = {f"converted.{name}": value for name, value in state.items()}
    with pytest.raises(CheckpointError, match=words):
        larger.load_state_dict(state, strict=False)
    assert "empty" in repr(larger)


def test_a_program_of_another_module(module, parts):
    other = Signature.flat([TensorSpec("other", torch.float32, (1,))], [Y])
    state = dict(module.state_dict())
    edit(signature=other.to_data())(state)
    with pytest.raises(CheckpointError, match="the program has"):
        TRTModule().load_state_dict(state)


def test_foreign_checkpoints():
    old = {"engine": TENSOR, "input_names": ["x"], "output_names": ["y"]}
    with pytest.raises(CheckpointError, match="torch2trt"):
        TRTModule().load_state_dict(old)
    with pytest.raises(CheckpointError, match=r"entries \['weight', 'bias'\]"):
        TRTModule().load_state_dict(torch.nn.Linear(1, 1).state_dict())


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        copy.copy,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: module.half(),
        lambda module: module.double().to("meta").train(),
        lambda module: torch.nn.Sequential(OrderedDict(only=module)).half()[0],
    ],
)
def test_copies_and_moves(module, copied):
    plan = bytes(module.engine.plan.numpy())
    result = copied(module)
    assert bytes(result.engine.plan.numpy()) == plan
    assert result.engine.plan.device.type == "cpu"
    check(result)


def test_deep_copies_share_the_plan(module):
    assert copy.deepcopy(module).engine.plan.data_ptr() == module.engine.plan.data_ptr()


def test_save_engine(module, parts, tmp_path):
    module.save_engine(tmp_path / "net.engine")
    assert (tmp_path / "net.engine").read_bytes() == parts[0]


def test_repr(module):
    text = repr(module)
    for line in (
        "takes x: float32 (1..4, 3, 8, 8)",
        "returns y: float32 (?, 4, 6, 6)",
        f"MB, fp16, tensorrt_rtx {backend.version()}, for compute capability 8.0, 8.9",
        "program: 2 layers",
    ):
        assert line in text
    assert "empty" in repr(TRTModule())


NO_TENSORRT = """
import importlib.util, sys, warnings
import torch

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tensorrt"):
            return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        raise ImportError(spec.name)

    def exec_module(self, module):
        raise ImportError(module)

sys.meta_path.insert(0, Refuse())
try:
    import tensorrt_rtx
except ImportError:
    pass
else:
    raise AssertionError("TensorRT can be imported")
from t2t.module import ReferenceExecutionWarning, TRTModule
module = TRTModule()
module.load_state_dict(torch.load(sys.argv[1], weights_only=True))
warnings.simplefilter("ignore", ReferenceExecutionWarning)
assert module(torch.ones(1, 3, 8, 8), scale=1)["out"][0].shape == (1, 4, 6, 6)
assert not any(name.startswith("tensorrt") for name in sys.modules)
repr(module)
"""


def test_loading_and_running_need_no_tensorrt(module, tmp_path):
    path = tmp_path / "module.pth"
    torch.save(module.state_dict(), path)
    command = [sys.executable, "-W", "error", "-c", NO_TENSORRT, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_release_frees_engine_and_weights_until_the_next_call(parts, quiet):
    plan, program = parts
    cpu = torch.device("cpu")

    def engine():
        ports = Info("x", X.dtype, X.shape), Info("y", Y.dtype, Y.shape)
        return StandInEngine(ports[:1], ports[1:], program.run, [RANGE])

    module = TRTModule(plan, SIGNATURE, program, **DETAILS)
    module.engine.set_execution(cpu, Execution(engine(), cpu))
    check(module)
    execution = weakref.ref(module.engine.load(cpu))
    result = module(torch.ones(2, 3, 8, 8), scale=1)["out"][0]
    assert module.ran_on.is_engine
    module.release()
    gc.collect()
    assert execution() is None
    torch.testing.assert_close(result, expected(torch.ones(2, 3, 8, 8)), rtol=1e-5, atol=1e-5)
    check(module)
    assert not module.ran_on.is_engine, "it is looked for again, and there is none now"
    executor = weakref.ref(module.program._executor(cpu))
    module.release()
    gc.collect()
    assert executor() is None
    check(module)
    module.engine.set_execution(cpu, Execution(engine(), cpu))
    check(module)
    assert module.ran_on.is_engine
    with pytest.raises(EngineError, match="empty"):
        TRTModule().release()


def scaling(factor, names=("x", "y"), shape=(-1,)):
    """Return an execution that multiplies by a number."""
    ports = [Info(name, torch.float32, shape) for name in names]
    ranges = [{names[0]: ((1,) * len(shape), (2,) * len(shape), (9,) * len(shape))}]
    engine = StandInEngine(ports[:1], ports[1:], lambda t: {"y": t["x"] * factor}, ranges)
    return Execution(engine, torch.device("cpu"))


def test_a_known_call_runs_in_the_engine_that_there_is_now(parts):
    cpu, x = torch.device("cpu"), torch.tensor([1.0, 2.0])
    spec = TensorSpec("x", torch.float32, (-1,), (1,), (2,), (9,))
    signature = Signature.flat([spec], [TensorSpec("y", torch.float32, (-1,))])
    module = TRTModule(parts[0], signature)
    module.engine.set_execution(cpu, scaling(2))
    assert module(x).tolist() == module(x).tolist() == [2, 4]
    module.engine.set_execution(cpu, scaling(3))
    assert module(x).tolist() == [3, 6]
    module.release()
    with pytest.raises(EngineError, match="these are on 'cpu'"):
        module(x)
    module.engine.set_execution(cpu, scaling(4))
    assert module(x).tolist() == [4, 8]
    # Other weights, by a checkpoint or by refit, are another engine.
    other = TRTModule(parts[0], signature)
    module.load_state_dict(other.state_dict())
    with pytest.raises(EngineError, match="these are on 'cpu'"):
        module(x)
    module.engine.set_execution(cpu, scaling(5))
    assert module(x).tolist() == [5, 10]


def test_what_was_checked_does_not_let_others_pass(parts):
    cpu = torch.device("cpu")
    batch = Dimension("batch", 2, 8, 2, (Place(0, 0), Place(1, 0)))
    specs = [TensorSpec(name, torch.float32, (-1,), (2,), (2,), (8,)) for name in "ab"]
    signature = Signature.flat(specs, [TensorSpec("y", torch.float32, (-1,))])
    module = TRTModule(parts[0], replace(signature, dimensions=(batch,)))
    ports = [Info(name, torch.float32, (-1,)) for name in ("b", "a", "y")]
    ranges = [dict.fromkeys("ab", ((2,), (2,), (8,)))]
    # The engine has its inputs in another order.
    engine = StandInEngine(ports[:2], ports[2:], lambda t: {"y": t["a"] - t["b"]}, ranges)
    module.engine.set_execution(cpu, Execution(engine, cpu))
    for size in (2, 4, 2):
        good = torch.full((size,), 3.0), torch.full((size,), 1.0)
        wrong = {
            "must equal dimension 0": (good[0], torch.ones(6 - size)),
            "a multiple of 2": (torch.ones(3), torch.ones(3)),
            "must be 2..8": (torch.ones(10), torch.ones(10)),
            "give it as": (good[0].double(), good[1]),
            "several devices": (good[0], good[1].to("meta")),
            "expected a tensor": (good[0], 1.0),
            "missing": good[:1],
        }
        for words, args in wrong.items():
            assert module(*good).tolist() == [2] * size
            assert module(good[0], b=good[1]).tolist() == [2] * size
            with pytest.raises(ShapeError, match=words):
                module(*args)
    assert len(engine.contexts) == 1


def test_hooks_are_called_in_known_calls_too(parts):
    spec = TensorSpec("x", torch.float32, (2,))
    module = TRTModule(parts[0], Signature.flat([spec], [TensorSpec("y", torch.float32, (2,))]))
    module.engine.set_execution(torch.device("cpu"), scaling(2, shape=(2,)))
    x = torch.tensor([1.0, 2.0])
    assert module(x).tolist() == [2, 4]
    before = module.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    after = module.register_forward_hook(lambda _module, _args, output: output + 1)
    assert module(x).tolist() == [5, 7]
    before.remove()
    after.remove()
    assert module(x).tolist() == [2, 4]


def test_release_of_a_module_in_several_parts(quiet):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    x = torch.rand(1, 3, 8, 8)
    options = {"partial": True, "torch_executed_ops": ["aten::relu"], "min_block_size": 1}
    converted = t2t.convert(model.eval(), [x], **options)
    y = converted(x)
    programs = [part.program for part in converted._converted.partition.engines]
    assert len(programs) == 2
    assert all(program._executors for program in programs)
    converted.release()
    assert not any(program._executors for program in programs)
    assert torch.equal(converted(x), y)


def test_a_weight_streaming_budget_loads_the_engine_again(parts, monkeypatch):
    plan, program = parts
    budgets = []

    def deserialize(_plan, _device, budget, _core):
        budgets.append(budget)
        raise EngineError("no GPU")

    monkeypatch.setattr("t2t.runtime.engine.deserialize", deserialize)
    module = TRTModule(plan, SIGNATURE, program, built={"weight_streaming": True})
    assert module.weight_streaming_budget is None
    gpu = torch.device("cuda", 0)
    for budget in (None, 1 << 20, "automatic", 0, None):
        module.weight_streaming_budget = budget
        assert module.weight_streaming_budget == budget
        module.engine.why_not(gpu)
        module.engine.why_not(gpu)
    assert budgets == [None, 1 << 20, "automatic", 0, None]
    for wrong in (-1, "all", True, 0.5):
        with pytest.raises(ValueError, match="weight_streaming_budget"):
            module.weight_streaming_budget = wrong
    fixed = TRTModule(plan, SIGNATURE, program, built={"weight_streaming": False})
    with pytest.raises(EngineError, match="weight_streaming=True"):
        fixed.weight_streaming_budget = 5
    fixed.weight_streaming_budget = None
