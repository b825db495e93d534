"""ONNX files through TensorRT's parser; what the parser gets wrong is refused or mended."""

import inspect
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import t2t
from t2t.backend import trt
from t2t.cli import main
from t2t.errors import (
    ConversionError,
    EngineError,
    OptionError,
    ShapeError,
    UnsupportedOperatorError,
    VerificationError,
)
from t2t.onnx import REASONS
from tests.test_refit import load

__all__ = ["load"]  # a fixture

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402  only where onnx is installed
from onnx.reference import ReferenceEvaluator  # noqa: E402

FLOAT, FP8 = TensorProto.FLOAT, TensorProto.FLOAT8E4M3FN
pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


def model(nodes, inputs, outputs, constants=(), opset=20):
    """Make a model; inputs and outputs are (name, shape) or (name, shape, type)."""

    def values(entries):
        return [
            helper.make_tensor_value_info(name, *(kind or [FLOAT]), shape)
            for name, shape, *kind in entries
        ]

    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return made.SerializeToString()


def agrees(data, converted, *tensors):
    """Compare with ONNX's evaluator."""
    names = converted.input_names
    feed = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
    wanted = ReferenceEvaluator(onnx.load_from_string(data)).run(converted.output_names, feed)
    got = converted(*tensors)
    for one, other in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        torch.testing.assert_close(one, torch.from_numpy(np.array(other)), rtol=1e-5, atol=1e-6)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, image):
        return self.last(self.conv(image).mean((2, 3)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An exported model whose weights lie beside the file, with a dynamic batch."""
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    torch.manual_seed(0)
    net = Net().eval()
    dims = [{0: torch.export.Dim("batch", min=1, max=8)}]
    torch.onnx.export(
        net, (torch.rand(1, 3, 8, 8),), path, dynamo=True, dynamic_shapes=dims, external_data=True,
        verbose=False,
    )  # fmt: skip
    return net, path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_batch_size": 6}, "(batch=1..6, 3, 8, 8)"),
        ({"dynamic_shapes": {"image": {0: (2, 6)}}}, "(2..6, 3, 8, 8)"),
        ({"dynamic_shapes": [{0: torch.export.Dim("n", min=2, max=6)}]}, "(n=2..6, 3, 8, 8)"),
        (
            {"min_shapes": [(1, 3, 8, 8)], "max_shapes": [(6, 3, 8, 8)]},
            "(batch=1..6, 3, 8, 8)",
        ),
        (
            {
                "min_shapes": {"image": (1, 3, 8, 8)},
                "opt_shapes": {"image": (4, 3, 8, 8)},
                "max_shapes": {"image": (6, 3, 8, 8)},
            },
            "(batch=1..6, 3, 8, 8)",
        ),
    ],
)
def test_an_exported_model(exported, options, text, tmp_path):
    net, path = exported
    assert path.with_suffix(".onnx.data").exists()
    converted = t2t.from_onnx(path, **options)
    assert converted.signature.inputs[0].shape_text() == text
    assert converted.engine.origin.backend == t2t.backend.name()
    for batch in (2, 6):
        x = torch.rand(batch, 3, 8, 8)
        torch.testing.assert_close(converted(x), net(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(converted(image=x), net(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError):
        converted(torch.rand(7, 3, 8, 8))
    converted.save(tmp_path / "net.pt")
    loaded = t2t.load(tmp_path / "net.pt")
    assert torch.equal(loaded(x), converted(x))
    assert loaded.signature == converted.signature


def test_sizes_of_one_name_are_one_size():
    inputs = [("a", ["n", 3]), ("b", ["n", 3])]
    data = model([helper.make_node("Add", ["a", "b"], ["y"])], inputs, [("y", ["n", 3])])
    converted = t2t.from_onnx(
        data, min_shapes=[(1, 3), (1, 3)], max_shapes=[(4, 3), (4, 3)], opt_shapes=[(2, 3), (2, 3)]
    )
    [dimension] = converted.signature.dimensions
    assert dimension.name == "n"
    assert len(dimension.places) == 2
    assert converted.signature.inputs[0].opt_shape == (2, 3)
    agrees(data, converted, torch.rand(3, 3), torch.rand(3, 3))
    agrees(data, converted, torch.rand(1, 3), torch.rand(1, 3))
    with pytest.raises(ShapeError):
        converted(torch.rand(3, 3), torch.rand(2, 3))
    with pytest.raises(ShapeError, match="'n' is one size in the model, but 1 to 4 and 1 to 5"):
        t2t.from_onnx(data, min_shapes=[(1, 3), (1, 3)], max_shapes=[(4, 3), (5, 3)])
    fixed = t2t.from_onnx(data, min_shapes=[(4, 3), (4, 3)], max_shapes=[(4, 3), (4, 3)])
    agrees(data, fixed, torch.rand(4, 3), torch.rand(4, 3))
    with pytest.raises(ShapeError):
        fixed(torch.rand(3, 3), torch.rand(3, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"dimension 0 of 'a' \(n\) is dynamic in the model and needs a range"),
        ({"min_shapes": [(1, 3)]}, "given together"),
        ({"min_shapes": [(1, 2)], "max_shapes": [(4, 3)]}, "is 3 in the model, not 2 to 3"),
        ({"min_shapes": [(1, 3, 1)], "max_shapes": [(4, 3, 1)]}, "has 2 dimensions"),
        ({"min_shapes": [(3, 3)], "max_shapes": [(2, 3)]}, "min 3, max 2"),
        ({"min_shapes": {"c": (1, 3)}, "max_shapes": {"c": (2, 3)}}, "no input 'c'"),
        (
            {"min_shapes": [(1, 3)], "max_shapes": [(4, 3)], "dynamic_shapes": [{0: (1, 2)}]},
            "not both",
        ),
    ],
)
def test_wrong_ranges(options, words):
    data = model([helper.make_node("Relu", ["a"], ["y"])], [("a", ["n", 3])], [("y", ["n", 3])])
    with pytest.raises(ShapeError, match=words):
        t2t.from_onnx(data, **options)


def test_several_outputs_and_types():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Greater", ["rows", "limit"], ["large"]),
        helper.make_node("Mul", ["rows", "x"], ["scaled"]),
    ]
    table = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    data = model(
        nodes,
        [("ids", [3], TensorProto.INT64), ("x", [4])],
        [("scaled", [3, 4]), ("large", [3, 4], TensorProto.BOOL)],
        [("table", table), ("limit", np.float32(0.1))],
    )
    converted = t2t.from_onnx(data)
    assert converted.output_names == ["scaled", "large"]
    agrees(data, converted, torch.tensor([0, 4, 2]), torch.rand(4))
    agrees(data, converted, torch.tensor([1, 1, 3]), -torch.rand(4))


def test_the_default_of_trilu_is_written_out():
    """The parser takes upper=0 where ONNX says 1."""
    data = model([helper.make_node("Trilu", ["x"], ["y"])], [("x", [4, 4])], [("y", [4, 4])])
    x = torch.rand(4, 4)
    assert torch.equal(t2t.from_onnx(data)(x), x.triu())
    lower = model(
        [helper.make_node("Trilu", ["x"], ["y"], upper=0)], [("x", [4, 4])], [("y", [4, 4])]
    )
    assert torch.equal(t2t.from_onnx(lower)(x), x.tril())


def branch(op, **attributes):
    node = helper.make_node(op, ["x"], ["z"], name="inner", **attributes)
    return helper.make_graph([node], "b", [], [helper.make_tensor_value_info("z", FLOAT, [4, 4])])


def gru(layout):
    w = np.zeros((1, 6, 3), np.float32)
    r = np.zeros((1, 6, 2), np.float32)
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=2, layout=layout)
    shape = [4, 5, 1, 2] if layout else [5, 1, 4, 2]
    return model(
        [node], [("x", [4, 5, 3] if layout else [5, 4, 3])], [("y", shape)], [("w", w), ("r", r)]
    )


def node(op, shape=(4, 4), inputs=("x",), outputs=None, kind=FLOAT, constants=(), **attributes):
    made = helper.make_node(op, list(inputs), ["y"], name="a_node", **attributes)
    return model([made], [("x", shape)], [("y", outputs or shape, kind)], constants, opset=21)


REFUSED = [
    (lambda: gru(1), "GRU: .*ignores layout=1"),
    (lambda: node("RandomNormalLike"), r"RandomNormalLike \(a_node\): random numbers"),
    (lambda: node("Bernoulli"), "random numbers"),
    (
        lambda: node("Cast", to=FP8, saturate=0, kind=FP8),
        "ignores saturate=0",
    ),
    (
        lambda: node(
            "QuantizeLinear", inputs=("x", "s"), kind=TensorProto.UINT8,
            constants=[("s", np.float32(0.1))],
        ),
        "rounds to uint8",
    ),
    (
        lambda: node(
            "QuantizeLinear", inputs=("x", "s", "z"), kind=TensorProto.UINT8,
            constants=[("s", np.float32(0.1)), ("z", np.uint8(3))],
        ),
        "rounds to uint8",
    ),
    (
        lambda: node(
            "Dropout", inputs=("x", "p", "t"), constants=[("p", np.float32(0.5)), ("t", np.True_)]
        ),
        "training mode",
    ),
    (
        lambda: model(
            [helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"),
                              else_branch=branch("Bernoulli"))],
            [("x", [4, 4]), ("c", [], TensorProto.BOOL)], [("y", [4, 4])],
        ),
        r"Bernoulli \(inner\): random",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_the_parser_drops_is_refused(make, words):
    with pytest.raises(UnsupportedOperatorError, match=words):
        t2t.from_onnx(make())


def test_what_looks_like_it_is_taken():
    data = gru(0)
    agrees(data, t2t.from_onnx(data), torch.rand(5, 4, 3))
    data = node(
        "QuantizeLinear",
        inputs=("x", "s", "z"),
        kind=TensorProto.INT8,
        constants=[("s", np.float32(0.1)), ("z", np.int8(0))],
    )
    agrees(data, t2t.from_onnx(data), torch.rand(4, 4))


def test_another_type_is_refused():
    data = model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", [3], TensorProto.DOUBLE)],
        [("y", [3], TensorProto.DOUBLE)],
    )
    with pytest.raises(ConversionError, match="float64 in the model, and TensorRT's parser makes"):
        t2t.from_onnx(data)


def test_what_no_list_names_is_found_by_the_comparison():
    """TensorRT rounds the size of a pooling's output in its own way."""
    data = node(
        "MaxPool", (1, 1, 2, 2), outputs=(1, 1, 1, 1), kernel_shape=[1, 1], strides=[2, 2],
        ceil_mode=1,
    )  # fmt: skip
    with pytest.raises(VerificationError):
        t2t.from_onnx(data)
    unseen = t2t.from_onnx(data, verify=False)
    assert unseen(torch.rand(1, 1, 2, 2)).shape == (1, 1, 2, 2)


def test_what_is_right_for_some_sizes_only():
    pool = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    data = node("MaxPool", (1, 1, 4, "w"), outputs=(1, 1, 2, "v"), **pool)
    ranges = {"min_shapes": [(1, 1, 4, 2)], "max_shapes": [(1, 1, 4, 8)]}
    with pytest.raises(UnsupportedOperatorError, match=r"MaxPool \(a_node\): ceil_mode=1 means"):
        t2t.from_onnx(data, **ranges)
    fixed = node("MaxPool", ("n", 1, 4, 5), outputs=("n", 1, 2, 3), **pool)
    agrees(fixed, t2t.from_onnx(fixed, max_batch_size=3), torch.rand(2, 1, 4, 5))
    scales = [("r", np.zeros(0, np.float32)), ("s", np.float32([1, 1, 1.5, 1.5]))]
    data = node(
        "Resize", (1, 1, 4, "w"), ("x", "r", "s"), (1, 1, 6, "v"), constants=scales, mode="linear",
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match="align_corners means"):
        t2t.from_onnx(data, **ranges)


def test_files_that_are_none():
    with pytest.raises(ConversionError, match="no ONNX"):
        t2t.from_onnx(b"garbage")
    with pytest.raises(ConversionError, match="no ONNX"):
        t2t.from_onnx(b"")
    with pytest.raises(FileNotFoundError):
        t2t.from_onnx("absent.onnx")
    with pytest.raises(ConversionError, match=r"parser refuses the model:\nDet a_node"):
        t2t.from_onnx(node("Det", outputs=()))


def test_the_command_line(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, path = exported

    def run(*args):
        return CliRunner().invoke(main, ["convert", str(path), *args])

    result = run("--shape", "1..2..4x3x8x8", "-o", "net.pt", "--cache-dir", "engines", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["inputs"][0]["max_shape"] == [4, 3, 8, 8]
    assert data["inputs"][0]["opt_shape"] == [2, 3, 8, 8]
    assert list((tmp_path / "engines").iterdir())
    x = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(t2t.load("net.pt")(x), net(x), rtol=1e-4, atol=1e-5)
    shape = ("--shape", "image=1..4x3x8x8", "-o", "net.pt")
    assert run(*shape, "--weight-streaming", "--no-program", "--workspace", "1G").exit_code == 0
    assert t2t.load("net.pt").details["weight_streaming"] is True
    assert t2t.load("net.pt").program is None
    for words, *args in (
        ("needs a range", "-o", "no.pt"),
        ("--fp16 is for PyTorch modules: the file says what it", "-o", "no.pt", "--fp16"),
        (
            "has no DLA" if t2t.backend.is_rtx() else "DLA cores",
            *["-o", "no.pt", "--dla-core", "0"],
        ),
        ("--dla-module is for", "-o", "no.pt", "--dla-module", "a"),
        ("--int8 is for PyTorch modules: the file says what is", "-o", "no.pt", "--int8"),
        ("--partial is for", "-o", "no.pt", "--partial"),
        ("--require-engine is for", "-o", "no.pt", "--require-engine"),
        ("--device is for", "-o", "no.pt", "--device", "cpu"),
        ("--fp32-module is for", "-o", "no.pt", "--fp32-module", "a"),
        ("sizes have no steps", "-o", "no.pt", "--shape", "2..8:2x3x8x8"),
        ("name all inputs", "-o", "no.pt", "--shape", "a=1", "--shape", "2"),
    ):
        result = run(*args)
        assert result.exit_code == 2
        assert words in result.output
        assert not (tmp_path / "no.pt").exists()


def test_several_profiles(tmp_path):
    data = weighted(0)
    profiles = [
        {"min": {"x": (1, 3)}, "opt": {"x": (1, 3)}, "max": {"x": (1, 3)}},
        {"min": {"x": (4, 3)}, "opt": {"x": (8, 3)}, "max": {"x": (16, 3)}},
    ]
    converted = t2t.from_onnx(data, profiles=profiles)
    assert len(converted.signature.profiles) == 2
    assert converted.signature.inputs[0].min_shape == (1, 3)
    assert converted.signature.inputs[0].max_shape == (16, 3)
    converted.save(tmp_path / "net.pt")
    for module in (converted, t2t.load(tmp_path / "net.pt")):
        for batch in (1, 4, 16):
            agrees(data, module, torch.rand(batch, 3))
        for batch in (2, 17):
            with pytest.raises(ShapeError):
                module(torch.rand(batch, 3))
    converted.export(tmp_path / "bundle", [torch.rand(4, 3)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profiles": []}, "profiles is empty"),
        ({"profiles": [{"min": [(1, 3)]}]}, "a profile is"),
        ({"profiles": [{"min": [(1, 2)], "max": [(4, 3)]}]}, "is 3 in the model, not 2 to 3"),
        (
            {"profiles": [{"min": [(1, 3)], "max": [(4, 3)]}], "min_shapes": [(1, 3)],
             "max_shapes": [(4, 3)]},
            "not both",
        ),
        ({"profiles": [{"min": [(4, 3)], "max": [(1, 3)]}]}, "min 4, max 1"),
    ],
)  # fmt: skip
def test_wrong_profiles(options, words):
    with pytest.raises((ShapeError, OptionError), match=words):
        t2t.from_onnx(weighted(0), **options)


def weighted(seed):
    """Return a model of a product with a weight, then an addition."""
    numbers = np.random.default_rng(seed)
    w, b = (numbers.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    constants = [("w", w), ("b", b)]
    return model(nodes, [("x", ["n", 3])], [("y", ["n", 4])], constants)


def test_the_options_of_the_builder(tmp_path):
    seen = []
    data = weighted(0)
    options = {"max_batch_size": 4, "cache_dir": tmp_path / "engines", "configure": seen.append}
    first = t2t.from_onnx(data, **options, weight_streaming=True, keep_program=False)
    again = t2t.from_onnx(data, **options, weight_streaming=True)
    assert first.engine.plan.equal(again.engine.plan)
    assert len(list((tmp_path / "engines").iterdir())) == 1
    assert seen[0].get_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    assert first.program is None
    first.weight_streaming_budget = 1 << 20
    plain = t2t.from_onnx(data, **options)
    assert len(list((tmp_path / "engines").iterdir())) == 2
    with pytest.raises(EngineError, match="cannot stream"):
        plain.weight_streaming_budget = 1 << 20
    # Equal networks are one module for several GPUs.
    other = t2t.from_onnx(data, max_batch_size=4, optimization_level=1, workspace=1 << 30)
    if not torch.equal(other.engine.plan, again.engine.plan):
        again.add_plan(other)
    agrees(data, again, torch.rand(3, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fp16": True}, "fp16=True: the file says what it computes in"),
        ({"fp32_ops": ["aten::softmax"]}, "the file says what it computes in"),
        ({"int8": True}, "by QuantizeLinear"),
        ({"partial": True}, "no PyTorch behind"),
        ({"dla_modules": ["a"]}, "has no modules"),
        ({"input_names": ["a"]}, "those of the file"),
        ({"shape_examples": []}, "says which of its sizes are dynamic"),
        ({"workspace": 1.5}, "it takes a number of bytes"),
        ({"cuda_graph": True}, "model_trt.cuda_graph = True"),
        ({"cachedir": "x"}, "did you mean cache_dir"),
    ],
)
def test_options_without_a_meaning_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        t2t.from_onnx(weighted(0), max_batch_size=4, **options)


def test_every_option_of_convert_is_taken_or_refused():
    known = set(inspect.signature(t2t.convert).parameters)
    assert known >= set(REASONS)
    taken = known - set(REASONS) - {"module", "inputs", "kwargs", "unknown"}
    assert taken >= {"cache_dir", "refittable", "weight_streaming", "dla_core", "configure"}


def test_weights_of_another_file(load):
    def off(config):
        # Only where there is a GPU, the builder makes such engines.
        config.clear_flag(trt.BuilderFlag.REFIT)

    options = {"max_batch_size": 4, "configure": off}
    made = t2t.from_onnx(weighted(0), refittable=True, **options)
    stand_in = load(made)
    newer = t2t.from_onnx(weighted(1), refit=made, max_batch_size=4)
    assert bytes(newer.engine.plan.numpy()) == b"a refitted plan"
    assert len(stand_in.given) == 2
    for n in (2, 4):
        x = torch.randn(n, 3)
        agrees(weighted(1), newer, x)
        agrees(weighted(0), made, x)
        assert torch.equal(stand_in.program.run([x])["y"], newer.program.run([x])["y"])
    with pytest.raises(EngineError, match=r"a file of ONNX has none; t2t.from_onnx\(file, refit="):
        made.refit({})
    with pytest.raises(ConversionError, match="takes or returns something else"):
        t2t.from_onnx(weighted(1), refit=made, max_batch_size=5)
    other = weighted(1).replace(b"product", b"another")
    with pytest.raises(ConversionError, match="more than weights has changed"):
        t2t.from_onnx(other, refit=made, max_batch_size=4)
    without = t2t.from_onnx(weighted(0), keep_program=False, **options)
    with pytest.raises(EngineError, match="only one engine with its program"):
        t2t.from_onnx(weighted(1), refit=without, max_batch_size=4)
