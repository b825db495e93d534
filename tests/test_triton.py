"""Model repositories of Triton, read back by Triton's own protobuf."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from t2t import TRTModule
from t2t.cli import main
from t2t.io import Dimension, Place, Signature, TensorSpec

text_format = pytest.importorskip("google.protobuf.text_format")
HEAD = bytearray(64)
HEAD[:4], HEAD[24:28] = b"ftrt", bytes([10, 13, 3, 9])


@pytest.fixture(scope="module")
def read():
    """Read a config.pbtxt. The package's own __init__ would import gRPC, which is not needed."""
    found = importlib.util.find_spec("tritonclient")
    if found is None:
        pytest.skip("tritonclient is not installed")
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda text: text_format.Parse(text, module.ModelConfig())


def signature(*, step=1, low=1, named=True, outputs=None, profiles=()):
    x = TensorSpec("x", torch.float32, (-1, 3, -1), (low, 3, 32), (2, 3, 64), (4, 3, 96))
    ids = TensorSpec('an "id"', torch.int64, (-1, 5), (low, 5), (2, 5), (4, 5))
    if outputs is None:
        outputs = [TensorSpec("y", torch.float16, (-1, 7), (1, 7), None, (4, 7), ("batch", ""))]
    batch = Dimension("batch", low, 4, places=(Place(0, 0), Place(1, 0)), named=named)
    height = Dimension("h", 32 // step, 96 // step, places=(Place(0, 2, step),))
    flat = Signature.flat([x, ids], outputs)
    return Signature(
        flat.inputs,
        flat.outputs,
        flat.input_structure,
        flat.output_structure,
        (batch, height),
        profiles=profiles,
    )


def run(folder, made, *options, head=HEAD):
    path = folder / "net.pt"
    TRTModule(bytes(head), made).save(path)
    args = ["triton", str(path), "-o", str(folder / "repository"), *options]
    return CliRunner().invoke(main, args)


def test_a_repository(tmp_path, read):
    result = run(tmp_path, signature(), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["tensorrt"] == "10.13.3.9"
    model = tmp_path / "repository" / "net"
    assert (model / "1" / "model.plan").read_bytes() == bytes(HEAD)
    config = read((model / "config.pbtxt").read_text(encoding="utf-8"))
    assert (config.name, config.platform, config.max_batch_size) == ("net", "tensorrt_plan", 0)
    kinds = config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    tensors = [
        (tensor.name, kinds[tensor.data_type].name, list(tensor.dims))
        for tensor in (*config.input, *config.output)
    ]
    assert tensors == [
        ("x", "TYPE_FP32", [-1, 3, -1]),
        ('an "id"', "TYPE_INT64", [-1, 5]),
        ("y", "TYPE_FP16", [-1, 7]),
    ]
    assert not config.HasField("dynamic_batching")


def test_batching(tmp_path, read):
    result = run(tmp_path, signature(), "--batching", "--name", "ranker")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "repository" / "ranker" / "config.pbtxt").read_text(encoding="utf-8")
    config = read(text)
    assert config.max_batch_size == 4
    assert [list(tensor.dims) for tensor in config.input] == [[3, -1], [5]]
    assert [list(tensor.dims) for tensor in config.output] == [[7]]
    assert config.HasField("dynamic_batching")


def test_a_number_for_each_row(tmp_path, read):
    outputs = [TensorSpec("y", torch.bool, (-1,), (1,), None, (4,), ("batch",))]
    result = run(tmp_path, signature(outputs=outputs), "--batching")
    assert result.exit_code == 0, result.stderr
    config = read((tmp_path / "repository/net/config.pbtxt").read_text(encoding="utf-8"))
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape")
    assert list(config.output[0].reshape.shape) == []


def test_profiles(tmp_path, read):
    one = (((1, 3, 32), (1, 3, 32), (1, 3, 32)), ((1, 5), (1, 5), (1, 5)))
    two = (((1, 3, 32), (2, 3, 64), (4, 3, 96)), ((1, 5), (2, 5), (4, 5)))
    result = run(tmp_path, signature(profiles=(one, two)))
    assert result.exit_code == 0, result.stderr
    config = read((tmp_path / "repository/net/config.pbtxt").read_text(encoding="utf-8"))
    assert list(config.instance_group[0].profile) == ["0", "1"]


def test_what_triton_does_not_check_is_said(tmp_path, read):
    result = run(tmp_path, signature(step=32))
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "repository/net/config.pbtxt").read_text(encoding="utf-8")
    for said in (result.stderr, text):
        assert "dimension 2 of x is a multiple of 32 from 32 to 96" in said
        assert "dimensions 0 of x and 0 of an" in said
    assert read(text).name == "net"
    result = run(tmp_path, signature(step=32), "--batching", "--name", "batched")
    assert "dimension 2 of x is a multiple" in result.stderr
    assert "fit together" not in result.stderr


@pytest.mark.parametrize(
    ("options", "made", "words"),
    [
        (["--batching"], {"low": 2}, "one size from 1 on"),
        (["--batching"], {"outputs": [TensorSpec("y", torch.bool, (4,))]}, "one size from 1 on"),
        ([], {"outputs": [TensorSpec("y", torch.bool, ())]}, "no dimensions"),
        ([], {"outputs": [TensorSpec("y", torch.float8_e4m3fn, (2,))]}, "float8_e4m3fn"),
        (["--name", "a/b"], {}, "becomes a folder"),
    ],
)
def test_refusals(tmp_path, options, made, words):
    result = run(tmp_path, signature(**made), *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "repository").exists()


def test_engines_of_tensorrt_rtx_are_refused(tmp_path):
    head = bytearray(HEAD)
    head[:4] = b"vtrt"
    result = run(tmp_path, signature(), head=head)
    assert result.exit_code == 2
    assert "tensorrt_rtx" in result.stderr
    assert "--backend tensorrt" in result.stderr
    assert not (tmp_path / "repository").exists()


def test_a_model_that_is_there_stays(tmp_path):
    assert run(tmp_path, signature()).exit_code == 0
    model = tmp_path / "repository" / "net"
    (model / "config.pbtxt").write_text("edited")
    result = run(tmp_path, signature())
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert (model / "config.pbtxt").read_text() == "edited"
    assert [path.name for path in (tmp_path / "repository").iterdir()] == ["net"]


def test_versions_and_instances(tmp_path, read):
    options = ("--instances", "3", "--batching")
    assert run(tmp_path, signature(), *options).exit_code == 0
    model = tmp_path / "repository" / "net"
    before = (model / "config.pbtxt").read_text()
    [group] = read(before).instance_group
    assert (group.count, group.kind) == (3, type(group).KIND_GPU)
    for version in ("2", "12"):
        result = run(tmp_path, signature(), *options, "--version", version)
        assert result.exit_code == 0, result.stderr
        assert (model / version / "model.plan").read_bytes() == bytes(HEAD)
    assert (model / "config.pbtxt").read_text() == before
    for words, made, *more in (
        ("exists already", signature(), *options, "--version", "2"),
        ("all versions share it", signature(), "--version", "3"),
        ("all versions share it", signature(low=2), "--version", "3"),
    ):
        result = run(tmp_path, made, *more)
        assert result.exit_code == 2
        assert words in result.stderr
    assert sorted(path.name for path in model.iterdir()) == ["1", "12", "2", "config.pbtxt"]
    assert run(tmp_path, signature(), "--name", "new", "--version", "7").exit_code == 0
    assert (tmp_path / "repository" / "new" / "7" / "model.plan").exists()


def test_a_bundle_has_the_description(tmp_path, read):
    TRTModule(bytes(HEAD), signature()).export(tmp_path / "net")
    config = read((tmp_path / "net" / "config.pbtxt").read_text())
    assert (config.name, config.platform) == ("model", "tensorrt_plan")
    assert [x.name for x in config.input] == ["x", 'an "id"']
    assert "repository/model/1/model.plan" in (tmp_path / "net" / "README.md").read_text()
    result = CliRunner().invoke(
        main, ["triton", str(tmp_path / "net"), "-o", str(tmp_path / "repository")]
    )
    assert result.exit_code == 0, result.stderr
    scalar = signature(outputs=[TensorSpec("y", torch.bool, ())])
    rtx = bytearray(HEAD)
    rtx[:4] = b"vtrt"
    for name, made, head, words in (
        ("scalar", scalar, HEAD, "Triton cannot serve it: output 'y' has no dimensions"),
        ("rtx", signature(), rtx, "loads plans of TensorRT only"),
    ):
        TRTModule(bytes(head), made).export(tmp_path / name)
        assert not (tmp_path / name / "config.pbtxt").exists()
        assert words in (tmp_path / name / "README.md").read_text()
