"""Structures of nested inputs and outputs, and the checks of what a call is given."""

import dataclasses
import json
import sys
from collections import OrderedDict, namedtuple
from typing import NamedTuple

import pytest
import torch

from t2t.errors import CheckpointError, ConversionError, ShapeError
from t2t.io import (
    Dimension,
    Place,
    Signature,
    TensorSpec,
    flatten,
    leaf_paths,
    match,
    unflatten,
)

A, B, C = torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)


class Point(NamedTuple):
    x: torch.Tensor
    y: object


@dataclasses.dataclass
class Boxes:
    boxes: torch.Tensor
    count: int = 0
    cache: list = dataclasses.field(default_factory=list, init=False)


@dataclasses.dataclass
class ModelOutput(OrderedDict):
    """As transformers' class: a dataclass and a dict that holds only what is not None."""

    logits: object = None
    hidden: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Bag(dict):
    pass


TREES = {
    "tensor": A,
    "tuple": (A, B),
    "one": (A,),
    "list": [A, [B, C], []],
    "dict": {"b": A, "a": (B, None), 3: C},
    "ordered": OrderedDict(z=A, y=B),
    "namedtuple": Point(A, [B]),
    "structseq": torch.max(torch.eye(3), 1),
    "dataclass": Boxes(A, 4),
    "model output": ModelOutput(logits=A, hidden=(B, C)),
    "model output, part": ModelOutput(hidden=B),
    "dict subclass": Bag(k=A),
    "constants": (None, True, 3, 2.5, "name", A),
    "size": (A, torch.Size([2, 3])),
}


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left is right
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=True)
        return list(left) == list(right) and all(same(a[1], b[1]) for a, b in pairs)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Boxes):
        return same(vars(left), vars(right))
    return left == right


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_tree_survives_json(tree):
    leaves, structure = flatten(tree)
    structure = json.loads(json.dumps(structure))
    back = unflatten(structure, leaves)
    assert type(back) is (tuple if type(tree) is torch.Size else type(tree))
    assert same(tree, back)
    assert [id(leaf) for leaf in match(structure, tree)] == [id(leaf) for leaf in leaves]


def test_shared_tensors_are_one_leaf_only_where_asked():
    leaves, structure = flatten((A, B, A), share=True)
    assert len(leaves) == 2
    first, _, third = unflatten(structure, leaves)
    assert first is third is A
    assert len(flatten((A, B, A))[0]) == 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no.such.module:Point", "namedtuple"),
        ("os:system", "namedtuple"),
        ("torch.nn:Linear", "mapping"),
        (f"{__name__}:Bag", "dataclass"),
        (f"{__name__}:Boxes", "namedtuple"),
    ],
)
def test_unknown_or_unfit_classes_become_plain(name, kind):
    structure = {
        "kind": kind,
        "type": name,
        "keys": ["x"],
        "items": [{"kind": "value", "value": 1}],
    }
    assert unflatten(structure, []) == ((1,) if kind == "namedtuple" else {"x": 1})


def test_classes_are_never_imported():
    sys.modules.pop("this", None)
    structure = {"kind": "mapping", "type": "this:d", "keys": [], "items": []}
    assert unflatten(structure, []) == {}
    assert "this" not in sys.modules


def test_local_classes_become_plain():
    local = namedtuple("local", "p q")
    leaves, structure = flatten(local(A, B))
    assert type(unflatten(structure, leaves)) is tuple


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": [A, object()]}, r"output\['a'\]\[1\]: a builtins.object"),
        ((A, 1j), "complex"),
        ({(1, 2): A}, r"key \(1, 2\)"),
    ],
)
def test_other_objects_are_refused_with_their_place(tree, words):
    with pytest.raises(ConversionError, match=words):
        flatten(tree, name="output")


def test_symbolic_sizes_are_refused_by_name():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    size = ShapeEnv().create_unbacked_symint()
    with pytest.raises(ConversionError, match="depends on the inputs"):
        flatten((A, size))


def test_match_accepts_lists_for_tuples_and_another_key_order():
    structure = flatten(((A, B), {"k": C, "l": A}))[1]
    assert match(structure, [[A, B], {"l": A, "k": C}])[2] is C


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ((A, None, 2), r"in\[1\]: expected a tensor, got None"),
        ((A, B, 3), r"in\[2\]: was 2 when .* is 3 now"),
        ((A, B, 2.0), r"is 2.0 now"),
        ((A, B), r"expected a tuple of 3, got a tuple of 2"),
        ({"a": A}, r"got a dict with keys \['a'\]"),
    ],
)
def test_match_names_what_differs(tree, words):
    structure = flatten((A, B, 2))[1]
    with pytest.raises(ShapeError, match=words):
        match(structure, tree, "in")


def test_match_names_wrong_keys():
    with pytest.raises(ShapeError, match=r"keys \['a'\], got a dict with keys \['b'\]"):
        match(flatten({"a": A})[1], {"b": A})


def test_leaf_paths():
    structure = flatten({"a": (A, [B]), "b": Point(C, 3)})[1]
    paths = leaf_paths(structure, "out")
    assert list(paths) == ["out['a'][0]", "out['a'][1][0]", "out['b'][0]", "out['b'][1]"]


X = TensorSpec("x", torch.float32, (-1, 3, -1), (1, 3, 4), (2, 3, 8), (4, 3, 8))
MASK = TensorSpec("mask", torch.bool, (-1, 1), (1, 1), (2, 1), (4, 1))
OUT = TensorSpec("y", torch.float16, (-1, 5))


def signature(**changes):
    structure = flatten(((A,), {"mask": B}))[1]
    batch = Dimension("batch", 1, 4, places=(Place(0, 0), Place(1, 0)))
    fields = {"dimensions": (batch,), "parameters": ("x", "mask"), **changes}
    return Signature((X, MASK), (OUT,), structure, flatten({"y": A})[1], **fields)


def test_signature_survives_json():
    assert Signature.from_json(signature().to_json()) == signature()


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        (
            (5, 3, 8),
            torch.float32,
            r"'x' is float32 \(5, 3, 8\).*\(1..4, 3, 4..8\).*0 must be 1..4",
        ),
        ((2, 3, 9), torch.float32, "dimension 2 must be 4..8"),
        ((2, 2, 8), torch.float32, "dimension 1 must be 3"),
        ((2, 3), torch.float32, "must have 3 dimensions"),
        ((2, 3, 8), torch.float64, r"is float64 .*\.to\(torch.float32\)"),
    ],
)
def test_check_names_input_shape_and_range(shape, dtype, words):
    mask = torch.ones(2, 1, dtype=torch.bool)
    signature().check([torch.zeros(2, 3, 8), mask])
    with pytest.raises(ShapeError, match=words):
        signature().check([torch.zeros(shape, dtype=dtype), mask])


def test_check_of_tied_sizes():
    mask = torch.ones(3, 1, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"0 of input 'mask' is 3, .* 0 of 'x', which is 2"):
        signature().check([torch.zeros(2, 3, 8), mask])


def test_arguments_bind_by_position_and_by_name():
    for call in (((A,), {"mask": B}), ((A, B), {}), ((), {"x": A, "mask": B})):
        assert [id(leaf) for leaf in signature().bind(*call)] == [id(A), id(B)]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"mask": B}, r"'x' is missing; the converted module takes \(x, mask\)"),
        ((A, B, C), {}, r"unknown argument 'inputs\[2\]'.* takes \(x, mask\)"),
        ((A,), {}, "'mask' is missing"),
        ((A,), {"mask": B, "z": C}, r"unknown argument 'z'; .* \(x, mask\)"),
        ((A,), {"mask": B, "masc": C}, "unknown argument 'masc', did you mean 'mask'"),
        ((A, B), {"mask": B}, "'mask' is given by position and by name"),
    ],
)
def test_wrong_arguments_are_named(args, kwargs, words):
    with pytest.raises(ShapeError, match=words):
        signature().bind(args, kwargs)


def test_flat_signature():
    flat = Signature.flat([X], [OUT])
    assert flat.bind((A,), {})[0] is flat.bind((), {"x": A})[0] is A
    assert unflatten(flat.output_structure, [C]) is C
    assert unflatten(Signature.flat([X], [OUT, X]).output_structure, [B, C]) == (B, C)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"min_shape": (1,)}, "together"),
        ({"min_shape": (1, 2), "max_shape": (2, 2)}, "need 1 numbers"),
        ({"min_shape": (3,), "max_shape": (2,)}, "they are 3, 2, 2"),
        ({"min_shape": (1,), "opt_shape": (5,), "max_shape": (2,)}, "they are 1, 5, 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, words):
    with pytest.raises(ShapeError, match=words):
        TensorSpec("s", torch.float32, (-1,), **shapes)


def test_equal_names_are_refused():
    with pytest.raises(ShapeError, match="names must differ"):
        Signature.flat([X, X], [OUT])


def damage(change):
    data = json.loads(signature().to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "3",
        "{}",
        damage(lambda data: data.update(format=99)),
        damage(lambda data: data.pop("inputs")),
        damage(lambda data: data["inputs"].pop()),
        damage(lambda data: data["inputs"][0].update(dtype="nn")),
        damage(lambda data: data["inputs"][0].update(shape=None)),
        damage(lambda data: data["inputs"][0].update(min_shape=[9, 9, 9])),
        damage(lambda data: data.update(output_structure={"kind": "tensor", "index": 7})),
        damage(lambda data: data.update(output_structure={"kind": "lambda"})),
        damage(lambda data: data.update(output_structure={"kind": "dict", "items": []})),
        damage(lambda data: data.update(input_structure={"kind": "tensor", "index": 0})),
        damage(lambda data: data["dimensions"][0]["places"][0].update(dim=9)),
        damage(lambda data: data["dimensions"][0].update(low=9)),
        damage(lambda data: data.update(profiles=[[]])),
    ],
)
def test_damaged_signatures_are_refused(text):
    with pytest.raises(CheckpointError):
        Signature.from_json(text)
