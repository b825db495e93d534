"""compare_layers: which layer leaves the tolerance, and what the report says."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import t2t
from t2t.backend import trt
from t2t.errors import ConversionError, VerificationError
from t2t.reference import capture
from t2t.verification import compare_layers
from t2t.verification.tables import html_table, text_table
from tests.networks import Net, network_of
from tests.reference.rows import new_network, out

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_equal_programs_are_equal(net):
    report = compare_layers(capture(network_of(net)), capture(network_of(net)), [X])
    assert report.ok
    assert report.first is None
    assert all(entry.max_rel_error == 0 for entry in report.layers)
    lines = str(report).splitlines()
    assert lines[0] == "all 8 layers are within the allowed relative error (fp32 0.0001)"
    assert lines[1].startswith(
        "run by the reference executor (PyTorch) on cpu, network of tensorrt"
    )
    assert "not compared" not in str(report)


def test_the_first_spoiled_layer_is_found(net):
    spoiled = capture(network_of(net, spoiled=("last.0/conv2d",)))
    report = compare_layers(spoiled, capture(network_of(net)), {"x": X})
    assert not report.ok
    assert report.first.name == "last.0/conv2d"
    assert report.first.kind == "CONVOLUTION"
    assert report.first.line == "net.py:13"
    assert 1e-3 < report.first.max_rel_error < 0.011
    assert report.worst(1)[0].max_rel_error == max(e.max_rel_error for e in report.layers)
    lines = str(report).splitlines()
    assert lines[0].startswith("first out of tolerance: last.0/conv2d (CONVOLUTION), rel ")
    assert lines[0].endswith("allowed for fp32 0.0001")
    assert lines[1] == "made at net.py:13"


def test_half_against_float_by_layer_name(net):
    half = capture(network_of(net, np.float16))
    report = compare_layers(half, capture(network_of(net)), [X])
    assert report.ok
    names = {entry.name for entry in report.layers}
    assert {"conv/conv2d", "act/relu", "add", "last.1/tanh", "add_1"} <= names
    assert report.unmatched == 2
    errors = {entry.name: entry.max_rel_error for entry in report.layers}
    assert 0 < errors["conv/conv2d"] < 5e-3
    assert "2 of 10 layers were not compared: the reference has no tensor" in str(report)


def test_the_tolerance_follows_the_types(net):
    half = capture(network_of(net, np.float16))
    spoiled = capture(network_of(net, np.float16, spoiled=("last.0/conv2d",)))
    reference = capture(network_of(net))
    report = compare_layers(half, reference, [X])
    assert {entry.precision for entry in report.layers} == {"fp16"}
    assert {entry.allowed for entry in report.layers} == {5e-3}
    assert compare_layers(spoiled, reference, [X]).first.name == "last.0/conv2d"
    assert compare_layers(spoiled, reference, [X], tolerance=0.02).ok
    assert not compare_layers(half, reference, [X], tolerance=1e-6).ok


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x, scale=None):
        x = self.norm(self.second(self.first(x).relu()))
        return x if scale is None else x * scale["by"]


def test_what_follows_half_inherits_its_rounding():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    model = Mixed().eval()
    half = t2t.convert(model, [x], fp16=True)
    report = compare_layers(half, model, [x])
    assert report.ok, report
    found = {entry.name: entry for entry in report.layers}
    norm = next(entry for name, entry in found.items() if name.startswith("norm/"))
    assert norm.precision == "fp16"
    assert norm.max_rel_error > 1e-4
    full = t2t.convert(model, [x])
    assert {entry.precision for entry in compare_layers(full, model, [x]).layers} == {"fp32"}
    for report in (compare_layers(half, full, x), compare_layers(half.program, full.program, [x])):
        assert report.ok
        assert len(report.layers) > 3


def test_inputs_of_all_forms():
    model = Mixed().eval()
    x, by = torch.randn(4, 8), torch.tensor(2.0)
    converted = t2t.convert(model, [x], {"scale": {"by": by}})
    for inputs, kwargs in (
        ([x, {"by": by}], None),
        ([x], {"scale": {"by": by}}),
        ({"x": x, "scale": {"by": by}}, None),
    ):
        assert compare_layers(converted, model, inputs, kwargs).ok
    with pytest.raises(ConversionError, match="inputs are example inputs"):
        compare_layers(converted, model, 3)


def test_a_program_against_its_module_by_module_path(net):
    program = capture(network_of(net))
    report = compare_layers(program, net, [X], tolerance=1e-5)
    assert report.ok, str(report)
    assert [entry.name for entry in report.layers] == [
        "conv/conv2d",
        "act/relu",
        "last.0/conv2d",
        "last.1/tanh",
        "act/relu_1",
        "add_1",
    ]
    spoiled = capture(network_of(net, spoiled=("conv/conv2d",)))
    assert compare_layers(spoiled, net, [X]).first.name == "conv/conv2d"
    assert not net.conv._forward_hooks


def test_a_nan_is_out_of_tolerance(net):
    bad = X.clone()
    bad[0, 0, 0, 0] = torch.nan
    program = capture(network_of(net))
    other = capture(network_of(net, spoiled=("conv/conv2d",)))
    assert compare_layers(program, program, [bad]).ok
    assert compare_layers(other, program, [bad]).first.name == "conv/conv2d"


def test_what_cannot_be_compared(net):
    n = new_network()
    x = n.add_input("x", trt.float32, (-1, 3, 8, 8))
    n.mark_output(out(n.add_identity(x)))
    with pytest.raises(VerificationError, match="no layer in common"):
        compare_layers(capture(n), capture(network_of(net)), [X])
    with pytest.raises(VerificationError, match=r"takes the tensors \['x'\]"):
        compare_layers(capture(n), capture(network_of(net)), [X, X])
    without = t2t.convert(nn.ReLU(), [X], keep_program=False)
    with pytest.raises(VerificationError, match="keep_program=False"):
        compare_layers(without, nn.ReLU(), [X])


def test_lines_fit_a_terminal(tmp_path, monkeypatch):
    """With long module names, and code that lies deep in the file system."""
    folder = tmp_path.joinpath(*["a_folder_with_a_long_name"] * 4)
    folder.mkdir(parents=True)
    (folder / "deep_model.py").write_text(
        "import torch\n"
        "class Block(torch.nn.Module):\n"
        "    def __init__(self, depth=6):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(4, 4)\n"
        "        self.a_block_of_a_long_name = Block(depth - 1) if depth else torch.nn.ReLU()\n"
        "    def forward(self, x):\n"
        "        return self.a_block_of_a_long_name(self.linear(x) * 2)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    import deep_model

    torch.manual_seed(0)
    model, x = deep_model.Block().eval(), torch.randn(2, 4)
    text = str(compare_layers(t2t.convert(model, [x], fp16=True), model, [x]))
    sys.modules.pop("deep_model")
    assert max(map(len, text.splitlines())) <= 100
    assert "deep_model.py:8" in text
    assert str(tmp_path) not in text


def test_tables_lose_the_beginnings_of_their_longest_cells():
    rows = [("name", "n"), ("x" * 90 + "end", "1"), ("short", "22")]
    lines = text_table(rows, 40)
    assert max(map(len, lines)) == 40
    assert re.match(r"…x+end  1$", lines[1])
    assert lines[2].startswith("short")


def test_html_is_escaped_and_marked():
    text = html_table(["<b>"], [("h", "n"), ("<i>", "1"), ("y", "2")], marked=[2])
    assert "&lt;b&gt;" in text
    assert "<td>&lt;i&gt;</td>" in text
    assert text.count("style=") == 1


def test_as_json_and_html(net):
    spoiled = capture(network_of(net, spoiled=("last.0/conv2d",)))
    report = compare_layers(spoiled, capture(network_of(net)), [X])
    data = json.loads(report.to_json())
    assert data["ok"] is False
    assert data["ran_on"]["executor"] == "reference executor"
    assert [entry["ok"] for entry in data["layers"]].count(False) >= 1
    page = report._repr_html_()
    assert "last.0/conv2d" in page
    assert "reference executor" in page
    assert "font-weight:bold" in page
