"""The command line, end to end: results on stdout, messages on stderr, exit codes, files."""

import contextlib
import dataclasses
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

import t2t
from t2t.cli import main
from t2t.conversion import convert
from t2t.runtime import Execution
from t2t.verification import Report
from tests.engines import Info, StandInEngine

ROOT = Path(__file__).resolve().parents[1]
MODELS = """
import torch
from torch import nn

print("a module may print")


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.table = nn.Embedding(50, width)
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout()

    def forward(self, ids, scale, as_dict=True):
        y = self.dropout(self.linear(self.table(ids))) * scale
        return {"y": y.relu(), "sum": y.sum(-1)} if as_dict else y


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x).relu()


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = Image()

    def forward(self, x):
        y = self.image(x)
        return y if y.mean() > 0 else -y


class Determinant(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x).exp()


def make(width=4):
    return Net(width)


def needs(width):
    return Net(width)


def broken():
    raise ValueError("no such width")


def leaves():
    raise SystemExit(0)


def no_module():
    return 3


def no_tf32(config):
    config.builder_optimization_level = 2


image = Image()
number = 3


class Nested:
    make = staticmethod(Image)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with a module of the user's, as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users.py").write_text(MODELS, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("users", None)


def run(*args):
    return CliRunner().invoke(main, list(map(str, args)))


def good(*args):
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    return result


def data(*args, code=0):
    """The one JSON object that a command writes to stdout."""
    result = run(*args, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def refused(*args):
    """What a command says on stderr when it does nothing."""
    result = run(*args)
    assert result.exit_code == 2, (result.stdout, result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def whole(folder):
    """Files besides the user's module; what is half written would be among them."""
    return sorted(p.name for p in folder.iterdir() if p.name not in ("users.py", "__pycache__"))


NET = ("--shape", "ids:int64=b:1..2..4xn:2..6", "--shape", "scale=bxnx4")


def test_convert_writes_what_load_reads(folder):
    found = data("convert", "users:make", *NET, "-o", "net.pt", "--engine", "net.engine")
    assert whole(folder) == ["net.engine", "net.pt"]
    assert found["bytes"] == os.path.getsize("net.pt")
    assert found["verified"]["ok"]
    # The example, the smallest and the largest sizes.
    shapes = [report["outputs"][0]["shape"] for report in found["verified"]["reports"]]
    assert shapes == [[2, 6, 4], [1, 2, 4], [4, 6, 4]]
    module = t2t.load("net.pt")
    assert str(module.signature.inputs[0]) == "ids: int64 (b=1..4, n=2..6)"
    assert module.signature.inputs[0].opt_shape == (2, 6)
    assert Path("net.engine").read_bytes() == module.engine.plan.numpy().tobytes()
    torch.manual_seed(0)
    original = sys.modules["users"].make().eval()
    for seed, size in ((0, (3, 5)), (1, (1, 2))):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 50, size, generator=generator)
        scale = torch.randn(*size, 4, generator=generator)
        got = module.program.run([ids, scale])
        for name, wanted in original(ids, scale).items():
            torch.testing.assert_close(got[name], wanted, rtol=1e-5, atol=1e-6)


def test_messages_go_to_stderr(folder):
    result = good("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt")
    assert "a module may print" not in result.stdout
    assert "a module may print" in result.stderr
    assert "x: float32 (1, 3, 8, 8)" in result.stdout
    assert "same as the original on 2 inputs" in result.stdout
    assert "reference executor" in result.stdout


@pytest.mark.parametrize(
    ("options", "precision"), [((), "fp32"), (("--fp16",), "fp16"), (("--bf16",), "bf16")]
)
def test_precision(folder, options, precision):
    found = data("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt", *options)
    assert found["precision"] == precision
    assert found["verified"]["ok"]


def test_options_of_convert(folder):
    seen = {}

    def convert_module(module, args, kwargs, **options):
        seen.update(options)
        return convert(module, args, kwargs, **{**options, "backend": None})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t2t.conversion.convert", convert_module)
        good(
            *("convert", "users:make", *NET, "-o", "net.pt", "--no-verify", "--fp16"),
            *("--fp32-module", "linear", "--fp32-module", "tab*", "--float64-as-float32"),
            *("--tf32", "--ignore-dropout", "--narrow-shapes", "--workspace", "64M"),
            *("--optimization-level", "1", "--compute-capability", "8.9", "--no-program"),
            *("--timing-cache", "timings", "--backend", "tensorrt_rtx", "--no-progress"),
            *("--input-name", "a", "--input-name", "b", "--output-name", "c"),
            *("--output-name", "d", "--configure", "users:no_tf32", "--cache-dir", "engines"),
        )
    wanted = {
        "fp16": True,
        "bf16": False,
        "fp32_modules": ("linear", "tab*"),
        "float64_as_float32": True,
        "tf32": True,
        "ignore_dropout": True,
        "narrow_shapes": True,
        "workspace": 64 << 20,
        "optimization_level": 1,
        "compute_capabilities": ("8.9",),
        "keep_program": False,
        "timing_cache": Path("timings"),
        "cache_dir": Path("engines"),
        "backend": "tensorrt_rtx",
        "progress": False,
        "input_names": ("a", "b"),
        "output_names": ("c", "d"),
        "configure": sys.modules["users"].no_tf32,
        "max_batch_size": None,
    }
    assert {name: seen[name] for name in wanted} == wanted
    found = data("inspect", "net.pt")
    assert found["compute_capabilities"] == ["8.9"]
    assert found["program_layers"] is None
    assert [spec["name"] for spec in found["inputs"] + found["outputs"]] == ["a", "b", "c", "d"]


def test_calibration(folder):
    for number in range(3):
        (folder / "seen").mkdir(exist_ok=True)
        inputs = [torch.full((2, 3), number), torch.rand(2, 3, 4)]
        torch.save(inputs, f"seen/{number}.pt" if number else "seen/0.pth")
    (folder / "seen" / "notes.txt").write_text("no inputs")
    files = [word for n in (0, 1, 2) for word in ("--calibration", f"seen/{n}.pt")]
    files[1] = "seen/0.pth"
    line = ("convert", "users:make", *NET, "--int8", "--no-verify")
    good(*line, "--calibration", "seen", "-o", "folder.pt")
    good(*line, *files, "-o", "files.pt")
    ours, theirs = (t2t.load(f"{name}.pt") for name in ("folder", "files"))
    assert ours.quantization
    assert ours.details == theirs.details
    good(*line, *files[:2], "-o", "one.pt")
    assert t2t.load("one.pt").details["quantization"] != ours.details["quantization"]
    (folder / "empty").mkdir()
    for words, *more in (
        ("need --calibration",),
        ("holds no .pt or .pth files", "--calibration", "empty"),
    ):
        result = run(*line, *more, "-o", "no.pt")
        assert result.exit_code == 2
        assert words in result.stderr
    assert not (folder / "no.pt").exists()


def test_what_stays_in_float32(folder):
    torch.save(torch.rand(1, 3, 8, 8), "more.pt")
    small = ("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt", "--fp16")
    found = data(*small, "--tolerance", "1e-6", "--tuning-input", "more.pt")
    assert found["tuning"]["error"] <= found["tuning"]["tolerance"] == 1e-6
    assert found["tuning"]["fp32_modules"] or found["tuning"]["fp32_ops"]
    assert data("inspect", "net.pt")["tuning"] == found["tuning"]
    assert "in float32" in good("inspect", "net.pt").stdout
    found = data(*small, "--low-precision-io", "--bundle", "folder")
    assert [spec["dtype"] for spec in found["inputs"] + found["outputs"]] == ["float16"] * 2
    assert found["verified"]["ok"]
    assert data("verify", "net.pt", "users:image")["ok"]
    assert "does not call 'aten::pow'" in refused(*small, "--fp32-op", "aten::pow")


def test_every_option_of_convert_has_its_place():
    ours = {parameter.name for parameter in main.commands["convert"].params}
    # --shape and --example declare the sizes; the rest is the module and its inputs.
    apart = {"module", "inputs", "kwargs", "unknown", "profiles", "shape_examples"}
    apart |= {"min_shapes", "opt_shapes", "max_shapes", "dynamic_shapes"}
    assert set(inspect.signature(convert).parameters) - apart <= ours


def test_partial(folder):
    options = ("--shape", "1x3x8x8", "-o", "net.pt", "--partial", "--min-block-size", "1")
    found = data("convert", "users:image", *options, "--torch-executed-op", "aten::relu")
    assert found["verified"]["ok"]
    assert [part["name"] for part in found["parts"] if not part["in_engine"]] == ["aten::relu"]
    shown = good("inspect", "net.pt").stdout
    assert "engine 0" in shown
    assert "torch_executed_ops names it" in shown.replace("\n", " ")
    assert data("verify", "net.pt", "users:image")["ok"]
    named = ("--torch-executed-op", "aten::relu")
    assert "with partial=True" in refused("convert", "users:image", *options[:4], *named)
    assert "loaded into the model" in refused("convert", "users:Decides", *options)


def test_sources(folder):
    small = ("--shape", "1x3x8x8", "-o", "net.pt")
    for source in ("users:image", "users:Image", "users:Nested.make"):
        assert data("convert", source, *small)["original"] == "Image"
    found = data(
        *("convert", "users:needs", "--set", "width=6", "--shape", "ids:int64=2x3"),
        *("--shape", "scale=2x3x6", "--constant", "as_dict=false", "-o", "net.pt"),
    )
    assert [output["shape"] for output in found["outputs"]] == [[2, 3, 6]]


def test_positional_and_named_inputs_are_the_same(folder):
    named = data("convert", "users:make", *NET, "-o", "net.pt")
    placed = data(
        *("convert", "users:make", "--shape", ":int64=b:1..2..4xn:2..6", "--shape", "bxnx4"),
        *("-o", "net.pt"),
    )
    assert placed["inputs"] == named["inputs"]
    assert placed["dimensions"] == named["dimensions"]


def test_torchvision_has_the_same_random_weights_again(folder):
    result = good("convert", "torchvision:squeezenet1_1", "--shape", "1x3x32x32", "-o", "net.pt")
    assert "random weights" in result.stderr
    assert data("verify", "net.pt", "torchvision:squeezenet1_1")["ok"]
    found = data("verify", "net.pt", "torchvision:squeezenet1_1", "--seed", "1", code=1)
    assert not found["ok"]


def test_weights(folder):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(5)
    model = torchvision.models.squeezenet1_1(num_classes=7).eval()
    torch.save(model.state_dict(), "weights.pth")
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, "training.ckpt")
    source = ("torchvision:squeezenet1_1", "--set", "num_classes=7")
    shape = ("--shape", "1x3x32x32", "-o", "net.pt")
    for file in ("weights.pth", "training.ckpt"):
        result = good("convert", *source, "--weights", file, *shape)
        assert "random weights" not in result.stderr
        x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(_reference(t2t.load("net.pt"), x), model(x))
    assert not data("verify", "net.pt", *source, code=1)["ok"]
    assert "size mismatch" in refused("convert", source[0], "--weights", "weights.pth", *shape)
    Path("text.pth").write_text("no weights")
    assert "did not write it" in refused("convert", *source, "--weights", "text.pth", *shape)
    torch.save([1, 2], "list.pth")
    assert "no state_dict" in refused("convert", *source, "--weights", "list.pth", *shape)


def _reference(module, *args):
    """Run the program of a module with one output."""
    return module.program.run(args)[module.output_names[0]]


def test_timm(folder):
    pytest.importorskip("timm")
    found = data("convert", "timm:test_resnet", "--shape", "1..2x3x64x64", "-o", "net.pt")
    assert found["verified"]["ok"]
    assert "did you mean" in refused("convert", "timm:tset_resnet", "--shape", "1", "-o", "n.pt")


BERT = [
    f"--set={name}={value}"
    for name, value in {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 60,
    }.items()
]


@pytest.mark.parametrize("name", ["bert", "BertModel"])
def test_transformers(folder, name):
    pytest.importorskip("transformers")
    found = data(
        *("convert", f"transformers:{name}", *BERT, "--shape", "input_ids:int64=2xn:3..8"),
        *("--shape", "token_type_ids:int64=2xn") * (name == "BertModel"),
        *("--values", "input_ids=0..59", "-o", "net.pt"),
    )
    assert found["verified"]["ok"]
    assert [output["name"] for output in found["outputs"]] == ["last_hidden_state", "pooler_output"]


def test_an_unknown_transformers_model_is_named(folder):
    pytest.importorskip("transformers")
    message = refused("convert", "transformers:brt", "--shape", "1", "-o", "net.pt")
    assert "no model 'brt'" in message


def test_what_a_source_needs_is_named(folder, monkeypatch):
    # None in sys.modules makes the import fail as if the package were not there.
    for name in ("timm", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
        message = refused("convert", f"{name}:bert", "--shape", "1", "-o", "net.pt")
        assert f"pip install {name}" in message


def test_transformers_from_a_folder(folder):
    transformers = pytest.importorskip("transformers")
    settings = {option.split("=")[1]: int(option.split("=")[2]) for option in BERT}
    torch.manual_seed(3)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**settings)).eval()
    model.save_pretrained("saved")
    sizes = ("--shape", "input_ids:int64=2x5", "--values", "input_ids=0..59")
    good("convert", "transformers:saved", *sizes, "-o", "net.pt")
    x = torch.randint(0, 60, (2, 5), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(_reference(t2t.load("net.pt"), x), model(x).logits)


def test_exported_programs(folder):
    class Net(torch.nn.Module):
        def forward(self, x):
            return {"twice": x * 2}

    exported = torch.export.export(
        Net(), (torch.randn(2, 3),), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=4)},)
    )
    torch.export.save(exported, "net.pt2")
    # Its file has an example.
    found = data("convert", "net.pt2", "-o", "net.pt")
    assert found["inputs"][0]["shape"] == [2, 3]
    found = data("convert", "net.pt2", "--shape", "1..4x3", "-o", "net.pt")
    assert found["inputs"][0]["max_shape"] == [4, 3]
    before = Path("net.pt").read_bytes()
    # Sizes for which it was not exported.
    assert "<= 4" in refused("convert", "net.pt2", "--shape", "1..5x3", "-o", "net.pt")
    assert Path("net.pt").read_bytes() == before
    Path("bad.pt2").write_bytes(b"no archive")
    assert "damaged" in refused("convert", "bad.pt2", "-o", "net.pt")
    assert "no such file" in refused("convert", "absent.pt2", "-o", "net.pt")


def test_examples(folder):
    ids, scale = torch.randint(0, 50, (2, 3)), torch.randn(2, 3, 4)
    torch.save({"ids": ids, "scale": scale}, "one.pt")
    torch.save([ids.repeat(2, 1), scale.repeat(2, 1, 1)], "two.pt")
    found = data("convert", "users:make", "--example", "one.pt", "-o", "net.pt")
    assert [spec["shape"] for spec in found["inputs"]] == [[2, 3], [2, 3, 4]]
    torch.save([ids, scale], "one.pt")
    several = ("--example", "one.pt", "--example", "two.pt")
    found = data("convert", "users:make", *several, "-o", "net.pt")
    assert [spec["max_shape"] for spec in found["inputs"]] == [[4, 3], [4, 3, 4]]
    assert "not both" in refused(
        "convert", "users:make", *several, "--shape", "ids=1..4x3", "-o", "n.pt"
    )
    named = ("--example", "one.pt", "--shape", "ids=b:1..8x3", "--shape", "scale=bx3x4")
    found = data("convert", "users:make", *named, "-o", "net.pt")
    assert [spec["max_shape"] for spec in found["inputs"]] == [[8, 3], [8, 3, 4]]
    assert found["inputs"][0]["opt_shape"] == [2, 3]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("ids=4x3", "which is ids:int64=2x3"),
        ("ids=1..4", "which is ids:int64=2x3"),
        ("ids:int32=1..4x3", "which is ids:int64=2x3"),
        ("ids=3..9:3x3", "which is ids:int64=2x3"),
        ("ids=1..2..4x3", "leave the middle number out"),
        ("nothing=1..4x3", "no tensor 'nothing'"),
    ],
)
def test_shapes_that_do_not_fit_the_example(folder, shape, words):
    torch.save([torch.randint(0, 50, (2, 3)), torch.randn(2, 3, 4)], "one.pt")
    said = refused("convert", "users:make", "--example", "one.pt", "--shape", shape, "-o", "n.pt")
    assert words in said


def test_max_batch_size(folder):
    found = data(
        "convert", "users:image", "--shape", "2x3x8x8", "--max-batch-size", 4, "-o", "net.pt"
    )
    assert found["inputs"][0]["max_shape"] == [4, 3, 8, 8]


def test_verify_finds_another_model(folder):
    good("convert", "users:make", *NET, "-o", "net.pt")
    assert data("verify", "net.pt", "users:make", "--values", "ids=0..49")["ok"]
    assert data("verify", "net.pt", "users:make", *NET[:1], "ids:int64=3x5", *NET[2:3],
                "scale=3x5x4")["ok"]  # fmt: skip
    result = run("verify", "net.pt", "users:make", "--seed", 1)
    assert result.exit_code == 1
    assert "DIFFERENT" in result.stdout
    assert "NO" in result.stdout


def test_what_disagrees_is_not_written(folder, monkeypatch):
    def disagree(*_, **__):
        return Report(False, (), 1, 1e-4, "outputs differ")

    monkeypatch.setattr("t2t.cli.converted.verify", disagree)
    args = ("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt", "--engine", "e")
    found = data(*args, code=1)
    assert found["output"] is None
    result = run(*args)
    assert result.exit_code == 1
    assert "nothing was written" in result.stderr
    assert "outputs differ" in result.stdout
    assert whole(folder) == []
    good(*args, "--no-verify")
    assert whole(folder) == ["e", "net.pt"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="engines may run here")
def test_require_engine(folder):
    args = ("users:image", "--require-engine")
    shape = ("--shape", "1x3x8x8", "-o", "net.pt")
    assert "does not run" in refused("convert", *args, *shape)
    assert whole(folder) == []
    good("convert", "users:image", *shape)
    assert "does not run" in refused("verify", "net.pt", *args)
    assert "does not run" in refused("bench", "net.pt", "--require-engine")


def test_inspect(folder):
    shape = ("--shape", "batch:1..2x3x16..32:16x8")
    good("convert", "users:image", *shape, "-o", "net.pt", "--engine", "net.engine", "--fp16")
    shown = good("inspect", "net.pt").stdout
    for words in ("x: float32 (batch=1..2, 3, 16*x_2=16..32, 8)", "fp16", "8.9", t2t.__version__,
                  "a multiple of 16 from 16 to 32: dimension 2 of x", "tuned for"):  # fmt: skip
        assert words in shown, words
    found = data("inspect", "net.pt")
    assert found["kind"] == "checkpoint"
    assert found["bytes"] == os.path.getsize("net.pt")
    assert found["writer"] == f"t2t {t2t.__version__}"
    assert found["dimensions"][0] == {
        "name": "batch", "low": 1, "high": 2, "step": 1, "named": True,
        "places": [{"input": 0, "dim": 0, "factor": 1, "offset": 0}],
    }  # fmt: skip
    found = data("inspect", "net.engine")
    assert found["kind"] == "engine"
    assert found["backend"] == t2t.backend.name()
    # Only a GPU that runs it can read more of a plan.
    assert ("unreadable" in found) != ("inputs" in found)
    assert "is no checkpoint" in refused("inspect", "users.py")
    assert "does not exist" in refused("inspect", "absent.pt")


@pytest.fixture
def standing_in(monkeypatch):
    """A plain engine that runs on the CPU: x * 2."""
    engine = StandInEngine(
        [Info("x", torch.float32, (-1, 3))],
        [Info("y", torch.float32, (-1, 3))],
        lambda tensors: {"y": tensors["x"] * 2},
        [{"x": ((1, 3), (2, 3), (4, 3))}],
    )
    execution = Execution(engine, torch.device("cpu"))
    monkeypatch.setattr("t2t.runtime.Engine.load", lambda _self, _device: execution)
    head = bytearray(64)
    head[:4], head[24:28] = b"ftrt", bytes([10, 13, 3, 9])
    return bytes(head)


def test_what_is_different_in_two_builds(folder):
    line = ("convert", "users:make", *NET, "--no-verify")
    for name, *options in (("a",), ("b",), ("half", "--fp16")):
        good(*line, *options, "-o", f"{name}.pt")
    assert data("inspect", "a.pt", "--diff", "b.pt") == {"diff": []}
    assert "are the same build" in good("inspect", "a.pt", "--diff", "b.pt").stdout
    found = data("inspect", "a.pt", "--diff", "half.pt", code=1)["diff"]
    assert any(line.startswith("+") and "fp16" in line for line in found)
    assert "fp16" in run("inspect", "a.pt", "--diff", "half.pt").stdout
    assert run("inspect", "a.pt", "--diff", "none.pt").exit_code == 2


def test_engines_that_run_here(folder, standing_in):
    Path("net.engine").write_bytes(standing_in)
    (folder / "users.py").write_text(
        "import torch\nclass Twice(torch.nn.Module):\n"
        "    def forward(self, x): return x * 2\n"
        "class Thrice(torch.nn.Module):\n"
        "    def forward(self, x): return x * 3\n"
    )
    found = data("inspect", "net.engine")
    assert (found["backend"], found["backend_version"]) == ("tensorrt", "10.13.3.9")
    assert found["inputs"][0]["max_shape"] == [4, 3]
    assert "x: float32 (1..4, 3)" in good("inspect", "net.engine").stdout
    here = ("--device", "cpu")
    found = data("verify", "net.engine", "users:Twice", "--require-engine", *here)
    assert [report["outputs"][0]["shape"] for report in found["reports"]] == [
        [2, 3],
        [1, 3],
        [4, 3],
    ]
    assert found["reports"][0]["ran_on"][0]["executor"] == "engine"
    assert not data("verify", "net.engine", "users:Thrice", *here, code=1)["ok"]
    found = data("bench", "net.engine", "--sizes", "max", "--require-engine", *here)
    assert found["shapes"] == {"x": [4, 3]}
    assert found["ran_on"]["executor"] == "engine"
    assert [timing["name"] for timing in found["timings"]] == ["engine"]
    assert "overhead" not in good("bench", "net.engine", *here).stdout


def test_doctor_tries_each_gpu(monkeypatch):
    gpu = {"name": "H100", "compute_capability": "9.0", "memory_bytes": 80 << 30}
    asked = []

    class Engine:
        def why_not(self, device):
            asked.append(device)
            return "UNSUPPORTED_CC" if device.index else None

    made = dataclasses.make_dataclass("Made", ["engine"])(Engine())
    monkeypatch.setattr("t2t.cli.diagnosis._gpus", lambda: [gpu, gpu])
    monkeypatch.setattr("t2t.conversion.convert", lambda *_, **__: made)
    monkeypatch.setattr("torch.cuda.device", lambda _: contextlib.nullcontext())
    found = data("doctor")["engines"]
    assert asked == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert [(entry["gpu"], entry["runs"]) for entry in found] == [
        ("cuda:0 H100", True),
        ("cuda:1 H100", False),
    ]
    assert "do not run: UNSUPPORTED_CC" in good("doctor").stdout


def test_bundles(folder):
    args = (
        "convert",
        "users:image",
        "--shape",
        "n:1..2..4x3x8x8",
        "-o",
        "net.pt",
        "--bundle",
        "net",
    )
    assert data(*args)["bundle"] == "net"
    assert whole(folder) == ["net", "net.pt"]
    bindings = json.loads((folder / "net" / "bindings.json").read_text())
    assert bindings["samples"]["inputs"][0]["shape"] == [2, 3, 8, 8]
    assert data("inspect", "net")["kind"] == "bundle"
    assert data("verify", "net", "users:image")["ok"]
    assert data("bench", "net", "--runs", 1)["shapes"] == {"x": [2, 3, 8, 8]}
    good("draw", "net", "-o", "net.dot")
    assert "exists already" in refused(*args)
    assert "no folder of TRTModule.export" in refused("inspect", ".")


def test_missing(folder):
    found = data("missing", "users:Determinant", "--shape", "2x4x4", code=1)
    assert len(found["missing"]) == 1
    assert "linalg" in found["missing"][0]
    assert "users.py" in found["missing"][0]
    assert data("missing", "users:image", "--shape", "1x3x8x8") == {"missing": []}
    assert "can be converted" in good("missing", "users:image", "--shape", "1x3x8x8").stdout
    said = refused("convert", "users:Determinant", "--shape", "2x4x4", "-o", "net.pt")
    assert "users.py" in said
    assert whole(folder) == []


def test_bench_says_what_ran(folder):
    good("convert", "users:image", "--shape", "1..2..4x3x8x8", "-o", "net.pt")
    here = ("--runs", 3, "--device", "cpu")
    for sizes, batch in (("min", 1), ("usual", 2), ("max", 4)):
        found = data("bench", "net.pt", *here, "--sizes", sizes, "--baseline", "users:image")
        assert found["shapes"] == {"x": [batch, 3, 8, 8]}
        assert found["runs"] == 3
        assert found["speedup"] is None, "no engine ran"
        assert [timing["name"] for timing in found["timings"]] == ["host overhead", "eager"]
        for timing in found["timings"]:
            assert 0 < timing["min_seconds"] <= timing["p50_seconds"] <= timing["p99_seconds"]
    shown = good("bench", "net.pt", *here).stdout
    assert "No engine ran on cpu: an engine runs on CUDA tensors" in shown
    assert "it is no time of TensorRT's" in " ".join(shown.split())
    assert "--baseline SOURCE" in refused("bench", "net.pt", *here, "--torch-compile")


def test_draw(folder):
    good("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt")
    assert data("draw", "net.pt", "-o", "net.html")["output"] == "net.html"
    assert "<html" in Path("net.html").read_text(encoding="utf-8")
    good("draw", "net.pt", "-o", "net.dot")
    assert "digraph" in Path("net.dot").read_text(encoding="utf-8")
    assert "Graphviz" in refused("draw", "net.pt", "-o", "net.svg")
    bare = ("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt", "--no-program")
    assert "say --no-verify too" in refused(*bare, "--device", "cpu")
    good(*bare, "--no-verify")
    assert "no program" in refused("draw", "net.pt", "-o", "other.html")
    assert whole(folder) == ["net.dot", "net.html", "net.pt"]


def test_operators():
    everything = data("operators")["operators"]
    assert everything == t2t.supported_operators()
    some = data("operators", "conv")["operators"]
    assert some == {name: where for name, where in everything.items() if "conv" in name}
    assert set(data("operators", "aten::*pool?d")["operators"]) < set(everything)
    assert "aten::relu" in good("operators", "relu").stdout
    assert data("operators", "no_such_thing", code=1) == {"operators": {}}


def test_doctor(monkeypatch):
    found = data("doctor")
    assert found["torch"] == torch.__version__
    assert found["t2t"] == t2t.__version__
    assert found["backend"]["name"] == t2t.backend.name()
    assert found["backends"][t2t.backend.name()]["version"] == t2t.backend.version()
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert found["problems"] == []
    shown = good("doctor").stdout
    assert t2t.backend.version() in shown
    if not torch.cuda.is_available():
        assert "cannot run here" in shown
    monkeypatch.setenv("T2T_BACKEND", "tensorflow")
    found = data("doctor", code=1)
    assert "tensorflow" in found["problems"][0]
    assert found["backend"] is None


@pytest.fixture
def runs_engines(monkeypatch):
    """Pretend that a GPU runs engines: they do what the program does, changed by a function."""

    def pretend(change):
        def run(self, converted, tensors, _facts, device):
            self.last_run = (device, "")
            return [change(x) for x in converted.run_program(tensors)]

        engines = [{"backend": t2t.backend.name(), "gpu": "cpu a GPU", "runs": True, "problem": ""}]
        monkeypatch.setattr("t2t.cli.diagnosis._engines", lambda *_: engines)
        monkeypatch.setattr("t2t.TRTModule._run_network", run)

    return pretend


def test_doctor_runs_engines(runs_engines):
    runs_engines(lambda x: x)
    found = data("doctor", "--run", "--only", "convolutions*")["checks"]
    assert [check["name"].split()[1] for check in found] == ["fp32", "fp16", "int8"]
    assert all(check["ok"] and check["error"] < 0.1 and not check["problem"] for check in found)
    found = data("doctor", "--run", "--only", "recurrent fp32")["checks"]
    assert [check["name"] for check in found] == ["recurrent fp32"]
    # Rows of the tests of this checkout; some with dynamic sizes, none of those that are refused.
    found = data("doctor", "--run", "--only", "test_softmax/*")["checks"]
    assert len(found) > 5
    assert all(check["ok"] for check in found), found
    shown = good("doctor", "--run", "--rows", str(ROOT / "tests"), "--only", "test_padding/*")
    assert "networks are right" in shown.stdout


def test_doctor_says_which_engines_are_wrong(runs_engines):
    runs_engines(lambda x: x + 1 if x.is_floating_point() else x)
    [check] = data("doctor", "--run", "--only", "attention fp32", code=1)["checks"]
    assert not check["ok"]
    assert check["error"] > 0.1
    assert "differs from PyTorch" in check["problem"]

    def fails(x):
        raise t2t.errors.EngineError("the engine fails")

    runs_engines(fails)
    result = CliRunner().invoke(main, ["doctor", "--run", "--only", "attention fp32"])
    assert result.exit_code == 1
    assert "EngineError: the engine fails" in result.stdout


def test_doctor_without_an_engine_to_run(monkeypatch, tmp_path, runs_engines):
    monkeypatch.setattr("t2t.cli.diagnosis._engines", lambda *_: [])
    assert data("doctor", "--run", code=3)["checks"] is None
    assert "checks" not in data("doctor")
    assert "--run" in refused("doctor", "--only", "conv*")
    runs_engines(lambda x: x)
    assert "none of what" in refused("doctor", "--run", "--only", "nothing")
    assert "tests of t2t's" in refused("doctor", "--run", "--rows", str(tmp_path))


WRONG = [
    ("convert nothing --shape 1 -o net.pt", "package.module:factory"),
    ("convert absent:make --shape 1 -o net.pt", "no module 'absent'"),
    ("convert users:absent --shape 1 -o net.pt", "users has no 'absent'"),
    ("convert users:mkae --shape 1 -o net.pt", "did you mean make"),
    ("convert users.py:make --shape 1 -o net.pt", "users:make"),
    # As docs/models.md names it.
    ("convert torchvision/resnet18 --shape 1 -o net.pt", "write torchvision:resnet18"),
    ("convert users:number --shape 1 -o net.pt", "is a int"),
    ("convert users:no_module --shape 1 -o net.pt", "no torch.nn.Module"),
    ("convert users:needs --shape 1 -o net.pt", "--set NAME=VALUE"),
    ("convert users:leaves --shape 1 -o net.pt", "SystemExit: 0"),
    ("convert users:make --shape ids:uint8=3 --shape scale=3x4 --values ids=0..256 -o n", "to 255"),
    ("convert users:make --shape ids=3 --shape s=3 --values ids=.1..9 -o n", "LOW..HIGH"),
    ("convert users:make --shape ids:int8=3 --values ids=0.1..0.9 -o n", "whole numbers"),
    ("convert users:make --shape ids:bool=3 --shape s=3 --values ids=0..2 -o n", "from 0 to 1"),
    ("convert torch:sqrt --shape 1 -o net.pt", "--set NAME=VALUE"),
    ("convert users:make --set wide=3 --shape 1 -o net.pt", "wide"),
    ("convert users:image --set width=3 --shape 1 -o net.pt", "a module already"),
    ("convert users:broken --shape 1 -o net.pt", "ValueError: no such width at"),
    ("missing model.onnx --shape 1", "only `t2t convert` reads ONNX"),
    ("convert model.pth --shape 1 -o net.pt", "--weights model.pth"),
    ("convert torchvision:resnet19 --shape 1 -o net.pt", "did you mean resnet18"),
    ("convert users:make -o net.pt", "--shape ids=... --shape scale=..."),
    ("convert users:make --shape ids:int64=3 -o net.pt", "--shape scale=..."),
    ("convert users:image --shape a=3 -o net.pt", "--shape x=..."),
    ("convert users:image --shape 1,3,8,8 -o net.pt", "x stands between sizes"),
    ("convert users:image --shape 1x3x8x-1 -o net.pt", "'-1' is no size"),
    ("convert users:image --shape x:1x3x8x8 -o net.pt", "image:float32="),
    ("convert users:image --shape x:float=1x3x8x8 -o net.pt", "types are float32"),
    ("convert users:image --shape 4..1x3x8x8 -o net.pt", "rise"),
    ("convert users:image --shape nx3x8x8 -o net.pt", "say n:1..8 in one place"),
    ("convert users:image --shape 1x3x32..100:32x8 -o net.pt", "say 96 or 128"),
    ("convert users:image --shape 1x3x8x8 --values y=0..1 -o net.pt", "no input 'y'"),
    ("convert users:image --shape 1x3x8x8 --values x=1 -o net.pt", "NAME=LOW..HIGH"),
    ("convert users:image --shape 1x3x8x8 --constant y -o net.pt", "NAME=VALUE"),
    ("convert users:image --shape 1x3x8x8", "Missing option '-o'"),
    ("convert users:image --shape 1x3x8x8 -o net.engine", "--engine net.engine"),
    ("convert users:image --shape 1x3x8x8 -o n --engine n", "different names"),
    ("convert users:image --shape 1x3x8x8 -o absent/net.pt", "no folder 'absent'"),
    ("convert users:image --shape 1x3x8x8 --fp16 --bf16 -o net.pt", "give one of them"),
    ("convert users:image --shape 1x3x8x8 --workspace 1X -o net.pt", "1G, 512M"),
    ("convert users:image --shape 1x3x8x8 --device tpu -o net.pt", "say cuda, cuda:1 or cpu"),
    ("convert users:image --shape 1x3x8x8 --fp17 -o net.pt", "No such option"),
    ("convert users:image --shape 1x3x8x8 --configure users:abc -o net.pt", "--configure"),
    ("convert users:make --shape ids:int64=2x3 --shape ids:int64=2 -o net.pt", "given twice"),
    ("verify users.py users:image", "is no checkpoint"),
    ("frobnicate", "No such command"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_use_says_what_to_do(folder, line, words):
    assert words in refused(*line.split())
    assert whole(folder) == []


def test_values_of_integers_are_said_to_be_guessed(folder, monkeypatch):
    # On a GPU, reading beyond an embedding ends all work of the process there.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = good("convert", "users:make", *NET, "-o", "net.pt", "--no-verify")
    assert "--values ids=LOW..HIGH" in result.stderr
    result = good("convert", "users:make", *NET, "-o", "net.pt", "--values", "ids=3..9")
    assert "LOW..HIGH" not in result.stderr
    result = run("convert", "users:make", *NET, "-o", "net.pt", "--values", "ids=0..50000")
    assert result.exit_code == 2
    assert "out of range" in result.stderr


def test_errors_as_json_and_with_a_traceback(folder):
    args = ("convert", "users:broken", "--shape", "1", "-o", "net.pt")
    found = data(*args, code=2)["error"]
    assert found["type"] == "ValueError"
    assert "no such width" in found["message"]
    result = run(*args, "--traceback")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    found = data("convert", "users:Determinant", "--shape", "2x4x4", "-o", "n.pt", code=2)["error"]
    assert found["type"] == "UnsupportedOperatorError"


def test_the_log_is_shown_if_asked_for(folder):
    args = ("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt")
    assert "network of" not in run(*args).stderr
    assert "network of" in run(*args, "-v").stderr
    assert "network of" not in run(*args).stderr


def shell(*args, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "t2t", *args]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_python_dash_m(folder):
    process = shell("--help", folder=folder)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    for name in main.commands:
        assert f"  {name} " in out
    process = shell("convert", "users:image", "--shape", "3..1", "-o", "n.pt", folder=folder)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "rise" in err


@pytest.mark.parametrize("args", ["--help", "convert --help", "convert a:b --shape 3..1 -o n.pt"])
def test_help_and_wrong_usage_import_no_torch(args):
    code = (
        "import sys; from t2t.cli import main\n"
        f"try: main({args.split()!r})\n"
        "except SystemExit: sys.exit(10 + ('torch' in sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert result.returncode == 10


@pytest.mark.parametrize("name", main.commands)
def test_help_is_readable(name):
    text = good(name, "--help").stdout
    assert "\\b" not in text
    assert "\b" not in text


def test_the_console_script_is_the_group():
    assert 't2t = t2t.cli:main"' in (ROOT / "setup.py").read_text(encoding="utf-8")
    assert isinstance(main, click.Group)


SLOW = """
import time
from torch import nn

class Slow(nn.Module):
    def forward(self, x):
        open("{where}", "w").close()
        time.sleep(60)
        return x + 1

def make():
    return Slow()
"""


def test_ctrl_c_leaves_nothing_half_written(folder):
    (folder / "slow.py").write_text(SLOW.replace("{where}", "started"), encoding="utf-8")
    (folder / "net.pt").write_text("the old one")
    process = shell("convert", "slow:make", "--shape", "1", "-o", "net.pt", folder=folder)
    for _ in range(1200):
        if (folder / "started").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "Interrupted" in err
    assert "Traceback" not in err
    assert whole(folder) == ["net.pt", "slow.py", "started"]
    assert (folder / "net.pt").read_text() == "the old one"


def test_ctrl_c_while_the_file_is_written(folder, monkeypatch):
    def interrupted(state, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    result = run("convert", "users:image", "--shape", "1x3x8x8", "-o", "net.pt", "--no-verify")
    assert result.exit_code == 130
    assert whole(folder) == []
