"""Pictures of programs: what they show, how they are grouped, and that they are safe to open."""

import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import t2t
from t2t.reference import Layer, Program, TensorInfo, capture
from t2t.reference.drawing import ROOT, Graph, graph_of
from t2t.reference.named_sizes import name_sizes
from t2t.reference.text import short_line
from t2t.verification import compare_layers
from tests.pictured import Attention, Blocks, Detector, program_of
from tests.reference.all_rows import ROWS
from tests.reference.rows import new_network, out

ASSETS = Path(t2t.__file__).parent / "reference" / "assets"


@pytest.fixture(scope="module")
def blocks() -> Program:
    return program_of(Blocks(), [torch.rand(1, 3, 8, 8)])


@pytest.fixture(scope="module")
def attention() -> Program:
    batch = torch.export.Dim("batch", min=1, max=4)
    sequence = torch.export.Dim("sequence", min=2, max=16)
    return program_of(
        Attention(),
        [torch.zeros(2, 6, dtype=torch.int64)],
        dynamic_shapes=[{0: batch, 1: sequence}],
    )


def graph(program: Program) -> Graph:
    return graph_of(program.inputs, program.outputs, program.layers, program.sizes)


def data_of(page: str) -> dict:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def box(page: str, key: str) -> dict:
    [found] = [row for row in data_of(page)["boxes"] if row["key"] == key]
    return found


# ---- groups ------------------------------------------------------------------------------------


def paths(drawn: Graph) -> list[str]:
    """Write each group as the titles on the way to it."""
    found = [""]
    for group in drawn.groups[1:]:
        found.append("/".join(filter(None, (found[group.parent], group.title))))
    return found[1:]


def test_modules_are_groups_and_a_module_of_one_layer_is_none(blocks):
    drawn = graph(blocks)
    assert paths(drawn) == [
        "stages",
        "stages/stages.0",
        "stages/stages.0/stages.0.0",
        "stages/stages.0/stages.0.1",
        "stages/stages.1",
        "stages/stages.1/stages.1.0",
        "stages/stages.1/stages.1.1",
        "fc",
    ]
    inside = {b.key: drawn.groups[b.group].module for b in drawn.boxes}
    assert inside["stages.0.1.conv/convolution"] == "stages.0.1"
    assert inside["stem/convolution"] == inside["input x"] == inside["output output"] == ""
    called = {b.key: drawn.relative_module(b) for b in drawn.boxes}
    assert called["stages.0.1.conv/convolution"] == "conv"
    assert called["stages.0.1/add"] == ""


def test_each_call_of_a_shared_module_is_a_group():
    drawn = graph(program_of(Detector(), [torch.rand(1, 3, 16, 16)]))
    assert paths(drawn) == [
        "heads", "heads/score", "heads/box", "heads (2)", "heads (2)/score", "heads (2)/box",
    ]  # fmt: skip


def test_modules_that_hold_only_one_module_share_its_group():
    net = nn.Sequential(nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())), nn.Tanh())
    assert paths(graph(program_of(net.eval(), [torch.rand(1, 3, 4, 4)]))) == ["0.0"]


def cycles(drawn: Graph) -> list[str]:
    """Find the groups whose members depend on each other in a circle."""

    def way(at: int) -> list[tuple[str, int]]:
        steps, group = [("box", at)], drawn.boxes[at].group
        while group != ROOT:
            steps.append(("group", group))
            group = drawn.groups[group].parent
        return [("group", ROOT), *reversed(steps)]

    after: dict = {}
    for edge in drawn.edges:
        source, target = way(edge.source), way(edge.target)
        at = next(i for i, (a, b) in enumerate(zip(source, target, strict=False)) if a != b)
        after.setdefault(source[at], set()).add(target[at])
    found, done, open_ = [], set(), set()

    def visit(item) -> None:
        open_.add(item)
        for other in after.get(item, ()):
            if other in open_:
                found.append(f"{item} {other}")
            elif other not in done:
                visit(other)
        open_.discard(item)
        done.add(item)

    for item in list(after):
        if item not in done:
            visit(item)
    return found


@pytest.mark.parametrize("net", [Blocks, Detector])
def test_whatever_is_collapsed_there_is_no_cycle(net):
    drawn = graph(program_of(net(), [torch.rand(1, 3, 16, 16)]))
    assert len(drawn.groups) > 4
    assert not cycles(drawn)


def test_a_module_of_very_many_layers_is_cut_into_parts():
    class Flat(nn.Module):
        def forward(self, x):
            for _ in range(150):
                x = torch.tanh(x) + 1
            return x

    drawn = graph(program_of(Flat(), [torch.rand(3)]))
    assert drawn.groups[1].title == "part 1 of 17"
    counts = [sum(b.group == g for b in drawn.boxes) for g in range(len(drawn.groups))]
    assert counts[ROOT] == 2
    assert sum(counts) == 302
    assert max(counts) == 18
    assert not cycles(drawn)


# ---- sizes -------------------------------------------------------------------------------------


def test_dynamic_sizes_have_the_users_names(attention):
    made = {b.key: [text for _, text, _ in b.outputs] for b in graph(attention).boxes}
    assert made["input ids"] == ["int64[batch, sequence]"]
    assert made["embed/embedding"] == ["fp32[batch, sequence, 8]"]
    # Inside an operator: the product before the bias, and scores of dynamic rows and columns.
    assert made["blocks.0.query/linear"] == ["fp32[batch, sequence, 8]"]
    softmax = next(key for key in made if made[key] == ["fp32[batch, 2, sequence, sequence]"])
    assert softmax.startswith("blocks.0/scaled_dot_product_attention")


def test_named_sizes_are_those_of_a_run(attention):
    wanted = {"batch": 3, "sequence": 5}
    named = {name: text for b in graph(attention).boxes for name, text, _ in b.outputs}
    seen = set()

    def watch(layer, made):
        for name, tensor in zip(layer.outputs, made, strict=True):
            sizes = re.findall(r"[?\w]+", named.get(name, "[").split("[", 1)[1])
            for size, text in zip(tensor.shape, sizes, strict=bool(sizes)):
                seen.add(text)
                assert text == "?" or size == wanted.get(text, size if text == str(size) else -1)

    attention.run([torch.zeros(3, 5, dtype=torch.int64)], watch=watch)
    assert {"batch", "sequence", "8"} <= seen


def test_sizes_that_depend_on_dynamic_ones_are_expressions_and_short_on_edges():
    height = torch.export.Dim("height", min=16, max=64)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 3, stride=2)).eval()
    program = program_of(net, [torch.rand(1, 3, 32, 32)], dynamic_shapes=[{2: height}])
    [first, second] = [b.outputs[0] for b in graph(program).boxes if b.kind == "CONVOLUTION"]
    assert first[1] == "fp32[1, 4, (height+1)//2-1, 15]"
    assert second[2] == "fp32[1, 4, ..., 7]"


def test_names_of_sizes_survive_a_checkpoint_and_older_ones_have_none(attention):
    state = attention.to_state()
    again = Program.from_state(state)
    assert again.sizes == attention.sizes
    assert again.to_html() == attention.to_html()
    older = json.loads(state["program"])
    del older["sizes"]
    unnamed = Program.from_state({**state, "program": json.dumps(older)})
    assert box(unnamed.to_html(), "input ids")["outputs"][0][1] == "int64[?, ?]"


def test_a_size_that_may_be_broadcast_gets_no_name():
    add = Layer("ELEMENTWISE", "add", {}, ("p", "q"), ("sum",), ("FLOAT",), ((-1,),))

    def names(size, **known):
        inputs = [TensorInfo("p", torch.float32, (-1,)), TensorInfo("q", torch.float32, (size,))]
        return name_sizes(inputs, [add], known)

    # Both are dynamic, so either may be 1: the sum's size is neither's.
    assert names(-1, p=("a",), q=("b",))["sum"] == ["?"]
    assert names(-1, p=("a",), q=("a",))["sum"] == ["a"]
    assert names(-1, sum=("a",))["p"] == ["?"]
    assert names(1, sum=("a",))["p"] == ["a"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.dynamic], ids=lambda row: row.name)
def test_a_name_is_the_size_in_every_kind_of_layer(row):
    """Each input's dimensions have names of their own; whatever has a name has that size."""
    program, inputs = row.program(), row.tensors(0)
    sizes = {
        f"{info.name}.{axis}": size
        for info, value in zip(program.inputs, inputs, strict=True)
        for axis, size in enumerate(value.shape)
    }
    known = {
        info.name: [f"{info.name}.{axis}" for axis in range(len(info.shape))]
        for info in program.inputs
    }
    named = name_sizes(program.inputs, program.layers, known)

    def watch(layer, made):
        for name, tensor in zip(layer.outputs, made, strict=True):
            for size, text in zip(tensor.shape, named.get(name, ()), strict=False):
                assert text == "?" or size == sizes.get(text, text) or str(size) == text

    program.run(inputs, watch=watch)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_kind_of_layer_is_drawn(row):
    program = row.program()
    data = data_of(program.to_html())
    drawn = [layer for layer in program.layers if layer.kind != "CONSTANT"]
    assert {layer.name for layer in drawn} <= {row["key"] for row in data["boxes"]}
    for source, output, target, _ in data["edges"]:
        assert data["boxes"][source]["outputs"][output]
        assert target < len(data["boxes"])
    assert "in all" in program.summary()
    assert len(explorer(program)["nodes"]) == len(data["boxes"])


def test_the_arithmetic_of_sizes_is_folded_and_nothing_else(attention):
    rows = data_of(attention.to_html())["boxes"]
    folded = {row["key"] for row in rows if row["folded"]}
    assert {row["kind"] for row in rows if row["key"] in folded} >= {"SHAPE", "FILL"}
    types = {row["outputs"][0][1].split("[")[0] for row in rows if row["folded"]}
    assert types <= {"int32", "int64", "bool"}
    # A position embedding depends on sizes only, too, but is a part of the model.
    assert "position/embedding" in {row["key"] for row in rows} - folded


def test_an_output_of_sizes_alone_is_shown():
    batch = torch.export.Dim("batch", min=1, max=4)
    program = program_of(
        lambda x: torch.arange(x.shape[0]) * 2, [torch.rand(2)], dynamic_shapes=[{0: batch}]
    )
    rows = data_of(program.to_html())["boxes"]
    output = next(i for i, row in enumerate(rows) if row["kind"] == "OUTPUT")
    [maker] = [e[0] for e in data_of(program.to_html())["edges"] if e[2] == output]
    assert not rows[maker]["folded"]


# ---- details -----------------------------------------------------------------------------------


def test_a_box_tells_attributes_weights_and_line(blocks):
    conv = box(blocks.to_html(), "stem/convolution")
    assert conv["brief"] == "3x3, stride 2x2, pad 1x1"
    assert "kernel_size_nd=(3, 3)" in conv["attributes"]
    assert conv["weights"] == [["kernel", "fp32[4, 3, 3, 3]"], ["bias", "fp32[4]"]]
    assert conv["parameters"] == 4 * 3 * 9 + 4
    assert re.fullmatch(r"tests/pictured\.py:\d+ in Blocks\.forward", conv["line"])
    linear = box(blocks.to_html(), "fc/linear")
    assert linear["weights"] == [["input 1", "fp32[5, 4]"]]


def test_weights_are_counted_once_whoever_reads_them():
    drawn = graph(program_of(Detector(), [torch.rand(1, 3, 16, 16)]))
    own = sum(p.numel() for p in Detector().parameters())
    assert sum(b.parameters for b in drawn.boxes) == own


def test_the_summary_counts_layers_and_weights(blocks):
    lines = blocks.summary(depth=1).splitlines()
    assert lines[0].split() == ["module", "layers", "weights", "output"]
    assert lines[1].split() == ["x", "fp32[1,", "3,", "8,", "8]"]
    assert lines[2].split()[:3] == ["stem", "1", "112"]
    total = sum(p.numel() for p in Blocks().parameters())
    assert lines[-1].split() == ["in", "all", "16", f"{total:,}"]
    assert len(blocks.summary(depth=2).splitlines()) == len(lines) + 4
    assert "  stages.1" in blocks.summary()


# ---- the page ----------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Collects what a page holds; scripts and styles are text here, as in a browser."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "input", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag != "path":
            assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(blocks):
    page = blocks.to_html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("script") == 3
    assert tags.links == []
    assert "default-src 'none'" in page
    assert "sourceMappingURL" not in page
    assert "Permission is hereby granted" in page
    rows = data_of(page)["boxes"]
    drawn = [layer for layer in blocks.layers if layer.kind != "CONSTANT"]
    assert [row["key"] for row in rows] == [
        "input x", *(layer.name for layer in drawn), "output output",
    ]  # fmt: skip
    assert 70_000 < len(page) < 120_000


NASTY = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


def test_no_name_gets_out_of_the_data():
    net = nn.ModuleDict({NASTY.replace(".", ""): nn.Linear(2, 2), "b/c": nn.Linear(2, 2)}).eval()
    net.forward = lambda x: [layer(x) for layer in net.values()]
    program = program_of(net, [torch.rand(1, 2)], input_names=["<!--<script>"])
    page = program.to_html(heat={program.layers[-1].name: 1.0}, heat_label=NASTY)
    tags = Tags()
    tags.feed(page)
    assert tags.seen.count("script") == 3
    assert "img" not in tags.seen
    assert any(NASTY in row["module"] for row in data_of(page)["boxes"])
    assert data_of(page)["heat"]["label"] == NASTY
    assert r"<!--<script>" in program.to_dot()
    frame = Tags()
    frame.feed(program._repr_html_())
    assert frame.seen == ["iframe"]


def test_a_notebook_shows_the_page_in_a_frame(blocks):
    frame = blocks._repr_html_()
    assert 'sandbox="allow-scripts"' in frame
    [page] = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(page) == blocks.to_html()


def test_paths_of_this_machine_stay_here(blocks, monkeypatch, tmp_path):
    root = str(Path(t2t.__file__).parents[1])
    for text in (blocks.to_html(), blocks.to_dot(), blocks.to_model_explorer()):
        assert root not in text
        assert "tests/pictured.py" in text
    monkeypatch.chdir(tmp_path)
    home = tmp_path.parts[1]
    assert short_line(f"{tmp_path}/net.py:3 in f") == "net.py:3 in f"
    assert short_line(f"/{home}/a/site-packages/b/c.py:3 in f") == "b/c.py:3 in f"
    assert short_line("/srv/me/project/net.py:3 in f") == ".../project/net.py:3 in f"
    assert short_line(r"C:\Users\me\project\net.py:3 in f") == ".../project/net.py:3 in f"
    assert short_line("net.py:3 in f") == "net.py:3 in f"
    assert short_line("see https://a.b/c") == "see https://a.b/c"
    assert short_line("") == ""


def test_dagre_is_the_published_file():
    source = (ASSETS / "dagre.min.js").read_bytes()
    wanted = "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578"
    assert hashlib.sha256(source).hexdigest() == wanted


# ---- heat --------------------------------------------------------------------------------------


def test_heat_is_a_number_for_each_layer(blocks):
    page = blocks.to_html(
        heat={"stem/convolution": 0.5, "fc/linear": math.nan, "fc/linear_1": math.inf},
        heat_label="ms",
    )
    assert data_of(page)["heat"] == {"label": "ms"}
    assert box(page, "stem/convolution")["heat"] == 0.5
    assert box(page, "fc/linear")["heat"] == "NaN"
    assert box(page, "fc/linear_1")["heat"] == "Infinity"
    assert "heat" not in box(page, "stages.0.0/add")
    assert data_of(blocks.to_html())["heat"] is None


def test_heat_takes_a_report(blocks):
    net = Blocks().eval()
    with torch.no_grad():
        net.stages[1][0].conv.weight += 0.01
    report = compare_layers(blocks, net, [torch.rand(1, 3, 8, 8)])
    page = blocks.to_html(heat=report)
    assert data_of(page)["heat"]["label"] == "relative error"
    errors = {row["key"]: row["heat"] for row in data_of(page)["boxes"] if "heat" in row}
    assert errors == {entry.name: entry.max_rel_error for entry in report.layers}


@pytest.mark.parametrize("method", ["to_html", "to_model_explorer"])
def test_heat_for_no_layer_is_refused(blocks, method):
    with pytest.raises(ValueError, match=r"no layer 'stem'.*print\(program\)"):
        getattr(blocks, method)(heat={"stem": 1.0})


# ---- files and other forms ---------------------------------------------------------------------


def test_the_suffix_says_what_is_saved(blocks, tmp_path):
    heat = {"stem/convolution": 0.5}
    blocks.save(tmp_path / "net.html", heat=heat, heat_label="ms")
    page = (tmp_path / "net.html").read_text(encoding="utf-8")
    assert page == blocks.to_html(heat=heat, heat_label="ms")
    blocks.save(tmp_path / "net.json")
    assert (tmp_path / "net.json").read_text(encoding="utf-8") == blocks.to_model_explorer()
    blocks.save(tmp_path / "net.dot")
    assert (tmp_path / "net.dot").read_text(encoding="utf-8") == blocks.to_dot()
    blocks.save(tmp_path / "net.pth")
    assert str(Program.load(tmp_path / "net.pth")) == str(blocks)
    with pytest.raises(ValueError, match=r"net\.pth"):
        blocks.save(tmp_path / "net.pth", heat=heat)


def explorer(program: Program, **options) -> dict:
    [drawn] = json.loads(program.to_model_explorer(**options))["graphs"]
    return drawn


def test_model_explorer_gets_groups_attributes_and_edges(blocks):
    nodes = {node["id"]: node for node in explorer(blocks, heat={"stem/convolution": 0.5})["nodes"]}
    conv = nodes["stages.0.1.conv/convolution"]
    assert conv["label"] == "convolution"
    assert conv["namespace"] == "stages/stages.0/stages.0.1"
    assert conv["incomingEdges"] == [
        {
            "sourceNodeId": "stages.0.0/add",
            "sourceNodeOutputId": "0",
            "targetNodeInputId": "0",
        }
    ]
    attributes = {pair["key"]: pair["value"] for pair in nodes["stem/convolution"]["attrs"]}
    assert attributes["layer"] == "CONVOLUTION"
    assert attributes["weight kernel"] == "fp32[4, 3, 3, 3]"
    assert attributes["error"] == "0.5"
    shapes = {pair["key"]: pair["value"] for pair in conv["outputsMetadata"][0]["attrs"]}
    assert shapes["shape"] == "fp32[1, 4, 4, 4]"


@pytest.mark.parametrize("name", ["blocks", "attention"])
def test_model_explorers_references_hold(name, request):
    drawn = explorer(request.getfixturevalue(name))
    nodes = {node["id"]: node for node in drawn["nodes"]}
    assert len(nodes) == len(drawn["nodes"])
    spaces = set()
    for node in drawn["nodes"]:
        parts = node["namespace"].split("/")
        spaces |= {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
        for edge in node["incomingEdges"]:
            source = nodes[edge["sourceNodeId"]]
            outputs = {item["id"] for item in source["outputsMetadata"]}
            assert edge["sourceNodeOutputId"] in outputs
    assert set(drawn["groupNodeAttributes"]) <= spaces


@pytest.mark.parametrize("name", ["blocks", "attention"])
def test_model_explorers_own_classes_take_it(name, request):
    """Runs where `pip install ai-edge-model-explorer` is; t2t's own tests do not need it."""
    builder = pytest.importorskip("model_explorer.graph_builder")
    dacite = pytest.importorskip("dacite")
    data = json.loads(request.getfixturevalue(name).to_model_explorer())
    collection = dacite.from_dict(builder.GraphCollection, data, dacite.Config(strict=True))
    assert len(collection.graphs[0].nodes) == len(data["graphs"][0]["nodes"])


def test_the_dot_drawing_joins_boxes_and_frames_modules(blocks):
    dot = blocks.to_dot()
    boxes = dict(re.findall(r'^ *(n\d+) \[label="([^"]*)"', dot, re.M))
    drawn = [layer for layer in blocks.layers if layer.kind != "CONSTANT"]
    assert len(boxes) == len(drawn) + 2
    number = {label: key for key, label in boxes.items()}
    stem = number[r"stem\nconvolution\nconvolution 3x3, stride 2x2, pad 1x1"]
    x = number[r"x\ninput"]
    assert f'{x} -> {stem} [label="fp32[1, 3, 8, 8]"]' in dot
    assert dot.count("subgraph") == 8
    assert 'label="stages.1"; color' in dot
    assert dot.count("{") == dot.count("}")


def test_programs_of_other_makers_are_drawn():
    n = new_network()
    x = n.add_input("x", t2t.backend.trt.float32, (2,))
    n.mark_output(out(n.add_identity(x)))
    program = capture(n)
    rows = data_of(program.to_html())["boxes"]
    assert [row["kind"] for row in rows] == ["INPUT", "IDENTITY", "OUTPUT"]
