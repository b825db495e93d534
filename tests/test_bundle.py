"""Folders of TRTModule.export: whole, described, and read again by t2t.load."""

import hashlib
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import t2t
from t2t.errors import CheckpointError, EngineError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, ids, scale):
        y = self.head(self.words(ids)) * scale
        return {"y": y, "positive": y > 0}


def inputs(seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (batch, 5), generator=generator)
    return [ids, torch.rand(batch, 5, 3, generator=generator)]


@pytest.fixture(scope="module")
def module():
    return t2t.convert(Net().eval(), inputs(0), max_batch_size=4)


def read(folder, sample):
    raw = bytearray((folder / sample["file"]).read_bytes())
    return torch.frombuffer(raw, dtype=DTYPES[sample["dtype"]]).reshape(sample["shape"])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_folder_is_read_again(module, tmp_path, seed):
    folder = tmp_path / "net"
    module.export(folder, inputs(seed, batch=3))
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert names == [
        "CMakeLists.txt",
        "README.md",
        "bindings.json",
        "model.engine",
        "module.pt",
        "run.cpp",
        "samples/index.txt",
        "samples/input_0.bin",
        "samples/input_1.bin",
        "samples/output_0.bin",
        "samples/output_1.bin",
    ]
    plan = module.engine.plan.numpy().tobytes()
    assert (folder / "model.engine").read_bytes() == plan
    loaded = t2t.load(folder)
    assert loaded.signature == module.signature
    assert loaded.details == module.details
    wanted = Net().eval()(*inputs(seed))
    for got in (loaded(*inputs(seed)), module(*inputs(seed))):
        torch.testing.assert_close(got["y"], wanted["y"], rtol=1e-5, atol=1e-6)
        assert torch.equal(got["positive"], wanted["positive"])
    bindings = json.loads((folder / "bindings.json").read_text())
    assert bindings["engine"]["sha256"] == hashlib.sha256(plan).hexdigest()
    assert bindings["engine"]["backend_version"] == t2t.backend.version()
    assert [spec["name"] for spec in bindings["inputs"]] == ["ids", "scale"]
    assert bindings["inputs"][0]["max_shape"] == [4, 5]
    assert bindings["dimensions"][0]["name"] == "batch"
    samples = bindings["samples"]
    for sample, tensor in zip(samples["inputs"], inputs(seed, batch=3), strict=True):
        assert torch.equal(read(folder, sample), tensor)
    wanted = Net().eval()(*inputs(seed, batch=3))
    assert [sample["name"] for sample in samples["outputs"]] == ["y", "positive"]
    torch.testing.assert_close(read(folder, samples["outputs"][0]), wanted["y"])
    assert torch.equal(read(folder, samples["outputs"][1]), wanted["positive"])
    assert samples["ran_on"] == module.ran_on.to_dict() or module.ran_on.is_engine
    readme = (folder / "README.md").read_text()
    assert "`ids: int64 (batch=1..4, 5)`" in readme
    assert "dimension 0 of scale: 1..4 (batch)" in readme


def test_weights_are_not_written_twice(module, tmp_path):
    module.export(tmp_path / "net")
    size = sum(path.stat().st_size for path in (tmp_path / "net").iterdir())
    assert size < module.engine.plan.numel() + 30_000
    assert not (tmp_path / "net" / "samples").exists()
    assert json.loads((tmp_path / "net" / "bindings.json").read_text())["samples"] is None


def test_a_folder_is_whole_or_not_there(module, tmp_path):
    with pytest.raises(ShapeError):
        module.export(tmp_path / "net", inputs(0, batch=9))
    with pytest.raises(EngineError, match="no engine"):
        t2t.TRTModule(None, None, module.program).export(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", lambda *_: math.sqrt(-1))
        with pytest.raises(ValueError, match=r"domain|nonnegative"):
            module.export(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "mine").write_text("")
    with pytest.raises(FileExistsError, match="exists already"):
        module.export(tmp_path / "net")
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["mine"]
    module.export(tmp_path / "other")
    with pytest.raises(FileExistsError):
        module.export(tmp_path / "other")


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model.engine").unlink(), "no model.engine"),
        (lambda folder: (folder / "module.pt").unlink(), "no module.pt"),
        (lambda folder: _flip(folder / "model.engine"), "damaged"),
        (lambda folder: (folder / "model.engine").write_bytes(b""), "damaged"),
        (lambda folder: (folder / "module.pt").write_bytes(b"abc"), "no checkpoint"),
        (lambda folder: torch.save([1], folder / "module.pt"), "holds a list"),
        (lambda folder: torch.save({}, folder / "module.pt"), "no checkpoint"),
    ],
)
def test_damage_is_found(module, tmp_path, damage, words):
    module.export(tmp_path / "net")
    damage(tmp_path / "net")
    with pytest.raises(CheckpointError, match=words):
        t2t.load(tmp_path / "net")


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(CheckpointError, match=r"no folder of TRTModule\.export"):
        t2t.load(tmp_path)


class Doubled(nn.Module):
    """What the stand-in engine of tests/headers computes, so that its C++ can be judged."""

    def forward(self, x):
        return {"double": x * 2, "same": x.half()}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile the exported program against headers that stand in for TensorRT and CUDA."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("program")
    module = t2t.convert(Doubled(), [torch.rand(2, 3)], max_batch_size=8)
    module.export(folder / "net", [torch.rand(2, 3)])
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-DRTOL=1e-4"]
    headers = f"-I{Path(__file__).parent / 'headers'}"
    source, target = folder / "net" / "run.cpp", folder / "run"
    subprocess.run(["g++", *options, headers, str(source), "-o", str(target)], check=True)
    return module, target


def run(program, *arguments):
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("batch", [1, 4, 7])
def test_the_program_in_cpp_runs_the_samples(program, tmp_path, batch):
    module, target = program
    folder = tmp_path / "net"
    x = torch.randn(batch, 3)
    x[0, 0] = 0.1  # no half
    module.export(folder, [x])
    done = run(target, folder)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\w+): relative error (\S+)\n", done.stdout) == [
        ("double", "0"),
        ("same", "0"),
    ]
    # What is another number is seen, beyond the error that is allowed.
    for file, dtype, name in (("output_0.bin", "f4", "double"), ("output_1.bin", "f2", "same")):
        path = folder / "samples" / file
        good = path.read_bytes()
        numbers = np.frombuffer(good, dtype=dtype).copy()
        numbers *= 1.01
        path.write_bytes(numbers.tobytes())
        done = run(target, folder)
        assert done.returncode == 1
        assert f"{name}: relative error 0.009" in done.stdout
        assert "DIFFERENT" in done.stdout
        assert run(target, folder, "0.02").returncode == 0
        numbers[0] = np.nan
        path.write_bytes(numbers.tobytes())
        assert run(target, folder, "0.02").returncode == 1
        path.write_bytes(good)


def test_the_program_in_cpp_says_what_is_wrong(program, tmp_path):
    module, target = program
    module.export(tmp_path / "net", [torch.rand(5, 3)])
    done = run(target, tmp_path / "net")
    assert done.returncode == 2
    assert "no profile for the sizes" in done.stderr
    (tmp_path / "net" / "model.engine").write_bytes(b"x" * 100)
    done = run(target, tmp_path / "net")
    assert done.returncode == 2
    assert "does not load here" in done.stderr
    assert run(target, tmp_path / "absent").returncode == 2


def test_the_program_in_cpp_is_short_and_of_its_backend(program, tmp_path):
    module, _ = program
    module.export(tmp_path / "net", [torch.rand(2, 3)])
    assert len((tmp_path / "net" / "run.cpp").read_text().splitlines()) <= 100
    cmake = (tmp_path / "net" / "CMakeLists.txt").read_text()
    library = "tensorrt_rtx" if t2t.backend.is_rtx() else "nvinfer"
    assert f"NAMES {library} " in cmake
    assert "RTOL=0.0001" in cmake
    assert "@" not in cmake
    index = (tmp_path / "net" / "samples" / "index.txt").read_text()
    assert index.splitlines()[0] == "input samples/input_0.bin float32 2 2 3 x"
    module.export(tmp_path / "bare")
    assert not (tmp_path / "bare" / "run.cpp").exists()
