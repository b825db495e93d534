"""Checkpoints: of one plan's size, whole or refused, and readable for ever."""

import functools
import io
import json
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import t2t
from t2t.errors import CheckpointError, EngineError
from t2t.files import read_tensors
from t2t.io import Signature, TensorSpec
from t2t.module import FORMAT
from t2t.reference import Program
from t2t.reference.shared import _SMALLEST, Place, find

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
DATA = Path(__file__).parent / "data"
X = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Kernels of several ranks, a matrix, a table, a mask of equal numbers, shared weights."""

    out_channels = 7

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(8, 32, 3, padding=1)
        self.grouped = nn.Conv2d(32, 32, 5, padding=2, groups=4)
        self.turned = nn.ConvTranspose2d(32, 16, 3)
        self.linear = nn.Linear(14, 40)
        self.table = nn.Parameter(torch.randn(16, 14, 40))
        self.zeros = nn.Parameter(torch.zeros(40, 40))

    def forward(self, x):
        x = self.turned(self.grouped(self.conv(x).relu()).relu())
        x = self.linear(x) * self.table
        return x @ self.zeros + x + self.linear(x[..., :14])


@functools.cache
def converted(**options):
    return t2t.convert(Net().eval(), [X], **options)


def saved(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


def loaded(state):
    module = t2t.TRTModule()
    module.load_state_dict(state)
    return module


def size(state):
    return sum(v.nbytes if isinstance(v, torch.Tensor) else len(v) for v in state.values())


@pytest.mark.parametrize("options", [{}, {"fp16": True}])
def test_what_the_plan_holds_is_not_saved_again(options):
    module = converted(**options)
    weights = sum(w.nbytes for layer in module.program.layers for w in layer.weights.values())
    state = module.state_dict()
    apart = sum(v.nbytes for name, v in state.items() if name.startswith("program.weights."))
    # The zeros, and what is too small to be looked for.
    assert weights > 40_000
    assert apart < 7_000
    assert size(state) < module.engine.plan.numel() + 20_000
    again = loaded(torch.load(io.BytesIO(saved(module)), weights_only=True))
    for seed in (1, 2):
        x = torch.randn(X.shape, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(again(x), module(x))
    for one, other in zip(module.program.layers, again.program.layers, strict=True):
        for name, weight in one.weights.items():
            assert torch.equal(weight, other.weights[name].reshape(-1))
            assert weight.dtype == other.weights[name].dtype


def test_a_loaded_checkpoint_is_saved_as_it_was():
    state = converted().state_dict()
    again = loaded(state).state_dict()
    assert state.keys() == again.keys()
    for name, value in state.items():
        assert torch.equal(value, again[name]) if torch.is_tensor(value) else value == again[name]


def test_weights_of_a_loaded_module_lie_in_the_plan():
    again = loaded(converted().state_dict())
    start = again.engine.plan.data_ptr()
    inside = [
        w.nbytes
        for layer in again.program.layers
        for w in layer.weights.values()
        if start <= w.data_ptr() < start + again.engine.plan.numel()
    ]
    assert sum(inside) > 35_000


def test_without_a_plan_all_weights_are_saved():
    alone = t2t.TRTModule(program=converted().program)
    again = loaded(alone.state_dict())
    assert torch.equal(again(X), converted()(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("offset", [0, 4, 12, 1024])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3), (0, 1, 3, 2)])
def test_weights_are_found_in_any_layout(dtype, offset, order):
    generator = torch.Generator().manual_seed(offset)
    weight = torch.randint(0, 2, (16, 12, 5, 7), generator=generator).to(dtype)
    if dtype != torch.bool:
        weight = weight * torch.randint(1, 100, weight.shape, generator=generator).to(dtype)
    raw = weight.permute(order).contiguous().view(-1).view(torch.uint8)
    rest = torch.randint(0, 256, (5001,), generator=generator, dtype=torch.uint8)
    memory = torch.cat([rest[:offset], raw, rest])
    [place] = find([(weight.view(-1), tuple(weight.shape))], memory)
    assert place is not None
    assert torch.equal(place.read(memory).reshape(-1), weight.view(-1))
    memory[offset + raw.numel() - 1] ^= 1
    assert find([(weight.view(-1), tuple(weight.shape))], memory) == [None]


def test_weights_that_begin_alike_are_told_apart():
    first = torch.zeros(4096)
    second = first.clone()
    first[200], second[200] = 1, 2
    memory = torch.cat([torch.zeros(40), second, torch.zeros(8), first]).view(torch.uint8)
    weights = [(w, (4096,)) for w in (first, second)]
    places = find(weights, memory)
    for (weight, _), place in zip(weights, places, strict=True):
        assert place is None or torch.equal(place.read(memory), weight)
    third = first.clone()
    third[:4] = 3
    [place] = find([(third, (4096,))], torch.cat([first, third]).view(torch.uint8))
    assert place.offset == first.nbytes


def test_small_and_empty_weights_are_not_looked_for():
    small = torch.arange(_SMALLEST // 4 - 1.0)
    assert find([(small, (len(small),)), (small[:0], (0,))], small.view(torch.uint8)) == [None] * 2


@pytest.mark.parametrize(
    "place",
    [
        Place(-4, torch.float32, (2,), (0,)),
        Place(0, torch.float32, (100,), (0,)),
        Place(90, torch.float32, (3,), (0,)),
        Place(0, torch.float32, (-1, -2), (0, 1)),
    ],
)
def test_places_outside_the_plan_are_refused(place):
    with pytest.raises(ValueError, match="bytes"):
        place.read(torch.zeros(100, dtype=torch.uint8))


def test_checkpoints_of_format_1_are_read():
    state = torch.load(DATA / "checkpoint_format_1.pth", weights_only=True)
    module = loaded(state)
    kernel = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 3, 3, 3))).float()
    for seed in (1, 2):
        x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        result = module(x, scale=1)
        assert result["name"] == "conv"
        expected = torch.nn.functional.conv2d(x, kernel).relu()
        torch.testing.assert_close(result["out"][0], expected, rtol=1e-5, atol=1e-5)
    assert module.precision == "fp16"
    assert module.engine.plan.numel() == 64
    assert json.loads(module.state_dict()["metadata"])["format"] == FORMAT
    assert torch.equal(loaded(module.state_dict())(x, scale=1)["out"][0], result["out"][0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("engine", lambda plan: plan.flip(0)),
        ("engine", lambda plan: plan[:-1]),
        ("program.weights.0", lambda weights: weights[: weights.numel() // 2].clone()),
        ("program.weights.0", lambda weights: weights.view(4, -1)),
        ("program.weights.0", lambda weights: None),
    ],
)
def test_damage_of_format_1_is_refused_before_anything_changes(name, change):
    state = torch.load(DATA / "checkpoint_format_1.pth", weights_only=True)
    module = loaded(state)
    before = module(X[:1, :3, :8, :8], scale=1)["out"][0]
    state[name] = change(state[name])
    with pytest.raises(CheckpointError):
        module.load_state_dict(state)
    assert torch.equal(module(X[:1, :3, :8, :8], scale=1)["out"][0], before)


FEW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def damaged(entry, kind, place, bit):
    """Cut an entry, or turn one bit of it."""
    if isinstance(entry, str):
        raw = bytearray(entry, "utf-8")
    else:
        raw = bytearray(entry.view(torch.uint8).numpy().tobytes())
    place %= len(raw)
    if kind == "cut":
        raw = raw[:place]
    else:
        raw[place] ^= 1 << bit
    if isinstance(entry, str):
        return raw.decode("utf-8", "replace")
    whole = raw[: len(raw) // entry.element_size() * entry.element_size()]
    return torch.frombuffer(whole, dtype=entry.dtype) if whole else entry[:0]


@FEW
@given(
    data=st.data(),
    kind=st.sampled_from(["cut", "bit", "bit"]),
    place=st.integers(0, 1 << 30),
    bit=st.integers(0, 7),
)
def test_damage_of_any_entry_is_an_error_or_nothing(data, kind, place, bit):
    state = dict(converted().state_dict())
    name = data.draw(st.sampled_from(sorted(state)))
    state[name] = damaged(state[name], kind, place, bit)
    module = loaded(converted().state_dict())
    kept = module._converted
    try:
        module.load_state_dict(state)
    except CheckpointError:
        assert module._converted is kept
    else:
        assert torch.equal(module(X), converted()(X))


@FEW
@given(kind=st.sampled_from(["cut", "bit", "bit"]), place=st.integers(0), bit=st.integers(0, 7))
def test_damage_of_the_file_is_an_error_or_nothing(tmp_path_factory, kind, place, bit):
    whole = bytearray(saved(converted()))
    place %= len(whole)
    path = tmp_path_factory.mktemp("damaged") / "module.pth"
    if kind == "cut":
        whole = whole[:place]
    else:
        # Half of the turned bits lie where the file is more than weights.
        place = place if place % 2 else -1 - place % 4000
        whole[place] ^= 1 << bit
    path.write_bytes(whole)
    try:
        module = t2t.load(path)
    except CheckpointError:
        return
    assert torch.equal(module(X), converted()(X))


def test_save_and_load(tmp_path):
    path = tmp_path / "module.pth"
    converted().save(path)
    for again in (t2t.load(path), t2t.load(str(path))):
        assert torch.equal(again(X), converted()(X))
    assert os.listdir(tmp_path) == ["module.pth"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_large_plan_is_read_whole_and_checked(tmp_path):
    plan = torch.arange(20_000_003).to(torch.uint8)  # no whole number of pages
    path = tmp_path / "large.pt"
    spec = TensorSpec("x", torch.float32, (2,))
    t2t.TRTModule(plan, Signature.flat([spec], [spec])).save(path)
    loaded = t2t.load(path)
    assert torch.equal(loaded.engine.plan, plan)
    whole = path.read_bytes()
    for place in (len(whole) // 5, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        for content in (damaged, whole[:place]):
            path.write_bytes(content)
            with pytest.raises(CheckpointError):
                t2t.load(path)
    assert torch.equal(loaded.engine.plan, plan), "it has memory of its own"


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "module.pth"
    path.write_text("old")

    def fail(entries, file):
        file.write(b"half of")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        converted().save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["module.pth"]


def test_an_empty_module_is_not_saved(tmp_path):
    with pytest.raises(EngineError, match="empty"):
        t2t.TRTModule().save(tmp_path / "module.pth")


class Larger(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part


def test_files_of_other_kinds_are_told_apart(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        t2t.load(path)
    with pytest.raises(CheckpointError, match=r"no folder of TRTModule\.export"):
        t2t.load(tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="file is no checkpoint"):
        t2t.load(path)
    torch.save([1], path)
    with pytest.raises(CheckpointError, match="holds a list"):
        t2t.load(path)
    torch.save(Larger(converted()).state_dict(), path)
    with pytest.raises(CheckpointError, match=r"converted part 'part'.*load_state_dict"):
        t2t.load(path)
    converted().save_engine(path)
    with pytest.raises(CheckpointError, match=r"TRTModule\.from_engine"):
        t2t.load(path)
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(CheckpointError, match="no checkpoint of a converted module"):
        t2t.load(path)


def test_a_program_alone_can_be_kept_beside_the_memory_that_it_shares():
    program, plan = converted().program, converted().engine.plan
    entries = program.to_state(plan)
    again = Program.from_state(entries, plan)
    assert torch.equal(again.run([X])["output"], program.run([X])["output"])
    with pytest.raises(CheckpointError, match="stand in a plan, which is not there"):
        Program.from_state(entries)


def test_loading_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(converted().state_dict())


class Code:
    """What must not run when a file is read."""

    def __reduce__(self):
        return os.mkdir, ("made by a file",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"hello", "torch.save did not write it"),
        (b"\x80\x02.", "torch.save did not write it"),
        (b"PK\x03\x04 no archive", "torch.save did not write it"),
        (pickle.dumps({"metadata": Code()}, protocol=2), "it holds posix.mkdir, and only tensors"),
        ({"metadata": Code()}, "it holds posix.mkdir, and only tensors"),
        ({"metadata": torch.nn.Linear(2, 2)}, "it holds torch.nn.modules.linear.Linear, and only"),
    ],
)
def test_files_that_are_not_read(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path("file").write_bytes(content)
    else:
        torch.save(content, "file")
    readers = {
        "checkpoint": t2t.load,
        "saved program": Program.load,
        "file of inputs": lambda path: read_tensors(path, "file of inputs"),
    }
    for what, read in readers.items():
        with pytest.raises(CheckpointError, match=rf"^file is no {what}: {words}") as caught:
            read("file")
        assert "weights_only" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileNotFoundError):
        read_tensors("nothing", "checkpoint")
