"""Inputs and outputs of all structures arrive at the model, and come out, as what they are."""

import dataclasses
import queue
import warnings
from collections import OrderedDict, UserDict, defaultdict, deque
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import t2t
from t2t.errors import ConversionError, ShapeError
from t2t.io import tree_leaves

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


def images(seed: int) -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))


@dataclasses.dataclass
class Boxes:
    """With a field that __init__ does not take, and an attribute that is no field."""

    xy: torch.Tensor
    kind: str = "box"
    area: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self):
        self.area = self.xy * 3
        self.shifted = self.xy + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    xy: torch.Tensor
    more: object = None


@dataclasses.dataclass
class ModelOutput(OrderedDict):
    """As transformers': a dataclass and a dict that holds only what is not None."""

    xy: torch.Tensor = None
    hidden: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Point(NamedTuple):
    xy: torch.Tensor
    more: object = None


class Batch(UserDict):
    """As transformers' BatchEncoding: items are attributes too."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class AttributeDict(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Registered:
    def __init__(self, xy, scale):
        self.xy, self.scale = xy, scale


pytree.register_pytree_node(
    Registered, lambda r: ([r.xy], (r.scale,)), lambda parts, context: Registered(*parts, *context)
)


def local_class():
    @dataclasses.dataclass
    class Local:
        xy: torch.Tensor

    return Local


Local = local_class()

# What takes the place of the input, how to read it, and what the module returns.
STRUCTURES = {
    "tensor": (lambda x: x, lambda v: v, lambda y: y),
    "nested list": (lambda x: [[x], None], lambda v: v[0][0], lambda y: [[y, 3], [y * 2]]),
    "dict": (lambda x: {"xy": x, 3: None}, lambda v: v["xy"], lambda y: {"a": (y, "n")}),
    "ordered": (lambda x: OrderedDict(b=x, a=1), lambda v: v["b"], lambda y: OrderedDict(z=y)),
    "dataclass": (Boxes, lambda v: v.xy + v.area + v.shifted, Boxes),
    "frozen": (Frozen, lambda v: v.xy, lambda y: Frozen(y, [y, None])),
    "namedtuple": (Point, lambda v: v.xy, lambda y: Point(y, Frozen(y))),
    "userdict": (lambda x: Batch(xy=x), lambda v: v.xy + v["xy"], lambda y: Batch(logits=y)),
    "attributes": (
        lambda x: AttributeDict(xy=x),
        lambda v: v.xy + v["xy"],
        lambda y: AttributeDict(logits=y),
    ),
    "model output": (ModelOutput, lambda v: v.xy + v["xy"], lambda y: ModelOutput(hidden=(y,))),
    "defaultdict": (
        lambda x: defaultdict(list, xy=x),
        lambda v: v["xy"],
        lambda y: defaultdict(list, a=y),
    ),
    "deque": (lambda x: deque([x], 3), lambda v: v[0], lambda y: deque([y, y * 2], 2)),
    "structseq": (lambda x: torch.max(x, 1), lambda v: v.values, lambda y: torch.max(y, 0)),
    "registered": (
        lambda x: Registered(x, 2.0),
        lambda v: v.xy * v.scale,
        lambda y: Registered(y, "s"),
    ),
    "local": (Local, lambda v: v.xy, Local),
}


class Model(nn.Module):
    def __init__(self, read, give):
        super().__init__()
        # A queue: a list would be put back to what it held before the conversion.
        self.read, self.give, self.seen = read, give, queue.SimpleQueue()

    def forward(self, batch):
        self.seen.put(type(batch))
        return self.give(self.read(batch).relu() + 1)


def assert_same(wanted, got):
    assert type(wanted) is type(got)
    pairs = list(zip(tree_leaves(wanted), tree_leaves(got), strict=True))
    assert any(isinstance(left, torch.Tensor) for left, _ in pairs)
    for left, right in pairs:
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right)
        else:
            assert left == right


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_arrive_and_come_out_as_what_they_are(name):
    make, read, give = STRUCTURES[name]
    model = Model(read, give).eval()
    converted = t2t.convert(model, [make(images(0))])
    assert issubclass(model.seen.get(), type(make(images(0))))
    loaded = t2t.TRTModule()
    loaded.load_state_dict(converted.state_dict())
    for seed in (1, 2):
        batch = make(images(seed))
        assert_same(model(batch), converted(batch))
        if name != "local":  # a checkpoint has only names, and a local class cannot be looked up
            assert_same(model(batch), loaded(batch))
    assert t2t.verify(model, converted, [make(images(1))]).ok


def test_a_local_class_comes_out_of_a_checkpoint_as_a_dict():
    loaded = t2t.TRTModule()
    model = Model(lambda v: v, Local)
    loaded.load_state_dict(t2t.convert(model, images(0)).state_dict())
    assert loaded(images(1)).keys() == {"xy"}


def test_registered_classes_must_keep_their_context():
    model = Model(*STRUCTURES["registered"][1:])
    converted = t2t.convert(model, [Registered(images(0), 2.0)])
    with pytest.raises(ShapeError, match=r"batch: expected a registered .*Registered"):
        converted(Registered(images(0), 3.0))


class Holder:
    """A class that nobody can take apart."""


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Holder(), r"inputs\['batch'\]: a .*Holder is neither"),
        ([images(0), {"k": Holder()}], r"inputs\['batch'\]\[1\]\['k'\]: a"),
        (Frozen(images(0), Holder()), r"inputs\['batch'\]\['more'\]: a"),
        (images(0).double(), r"inputs\['batch'\] is float64.*\.float\(\)"),
        ([images(0), (images(0).double(),)], r"inputs\['batch'\]\[1\]\[0\] is float64"),
        (images(0) * 1j, r"inputs\['batch'\] is complex"),
        (images(0).to_sparse(), r"inputs\['batch'\] is a sparse \(sparse_coo"),
    ],
)
def test_what_cannot_go_in_is_named(value, place):
    with pytest.raises(ConversionError, match=place):
        t2t.convert(Model(lambda v: v, lambda y: y), [value])


class Lost(UserDict):
    """Cannot be made from its items."""

    def __init__(self, first, second):
        super().__init__(first | second)


def test_a_mapping_that_cannot_be_made_again_is_refused():
    with pytest.raises(ConversionError, match=r"Lost cannot be made from a dict of its items"):
        t2t.convert(Model(lambda v: v["a"], lambda y: y), [Lost({"a": images(0)}, {})])


class Options(nn.Module):
    def forward(self, x, mask=None, scale=2.0, *, flag=True):
        y = x * scale if flag else x
        return y if mask is None else y + mask


@pytest.mark.parametrize(
    "inputs",
    [
        images(0),
        [images(0)],
        (images(0),),
        {"x": images(0)},
        Batch(x=images(0)),
        OrderedDict(x=images(0), scale=2.0),
    ],
    ids=["tensor", "list", "tuple", "dict", "userdict", "more"],
)
def test_forms_of_example_inputs(inputs):
    converted = t2t.convert(Options(), inputs)
    assert t2t.verify(Options(), converted, inputs).ok
    for seed in (1, 2):
        x = images(seed)
        torch.testing.assert_close(converted(x=x), x * 2)
        torch.testing.assert_close(converted(x), x * 2)


def test_a_mapping_and_kwargs_go_together():
    converted = t2t.convert(Options(), {"x": images(0)}, {"mask": images(1)})
    torch.testing.assert_close(converted(images(2), images(3)), images(2) * 2 + images(3))


@pytest.mark.parametrize(
    ("inputs", "kwargs", "words"),
    [
        (images(0), images(1), r"kwargs .* is a mapping, not a torch.Tensor; .*\[x, y\]"),
        ([images(0)], [images(1)], "kwargs .* not a list"),
        ({"x": images(0)}, {"x": images(1)}, "'x' stands in inputs and in kwargs"),
        ({0: images(0)}, None, r"names, not 0; .*\[inputs\]"),
        ({"image": images(0)}, None, r"do not fit forward\(x, .*'x'.*one dict .* \[inputs\]"),
        ([images(0)] * 5, None, "do not fit forward.*too many positional"),
        ([images(0)], {"masc": None}, "do not fit forward.*'masc'"),
        (3, None, "inputs are example inputs: .* not a int"),
        (iter([images(0)]), None, "not a list_iterator"),
        ({}, None, "do not fit forward"),
        ({"x": 3}, None, "hold no tensor"),
    ],
)
@pytest.mark.parametrize("use", [t2t.convert, t2t.missing_operators, t2t.to_network])
def test_inputs_that_fit_nothing_are_explained(use, inputs, kwargs, words):
    with pytest.raises(ConversionError, match=words):
        use(Options(), inputs, kwargs)


@pytest.fixture(scope="module")
def plain():
    return t2t.convert(Options(), [images(0)])


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((None,), {}),
        ((), {"mask": None}),
        ((None, 2.0), {"flag": True}),
        ((), {"scale": 2.0, "flag": True}),
    ],
)
def test_what_equals_the_default_may_be_given(plain, args, kwargs):
    for seed in (1, 2):
        torch.testing.assert_close(plain(images(seed), *args, **kwargs), images(seed) * 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"mask": images(1)}, r"'mask' \(default None\) was left out"),
        ((), {"scale": 3.0}, r"'scale' \(default 2.0\) was left out"),
        ((), {"scale": 2}, "'scale'"),
        ((), {"flag": False}, "'flag'"),
        ((), {"masc": None}, r"unknown argument 'masc', did you mean 'mask'\? .*takes \(x\)"),
        ((None, 2.0, True), {}, r"unknown argument 'inputs\[3\]'"),
        ((), {"x": images(1)}, "'x' is given by position and by name"),
    ],
)
def test_another_value_than_the_default_is_refused(plain, args, kwargs, words):
    with pytest.raises(ShapeError, match=words):
        plain(images(0), *args, **kwargs)


def test_what_was_given_at_its_default_may_be_left_out():
    converted = t2t.convert(Options(), [images(0), None, 2.0])
    torch.testing.assert_close(converted(images(1)), images(1) * 2)
    other = t2t.convert(Options(), [images(0)], {"scale": 3.0})
    torch.testing.assert_close(other(images(1), scale=3.0), images(1) * 3)
    torch.testing.assert_close(other(images(1), None, 3.0), images(1) * 3)
    with pytest.raises(ShapeError, match=r"'scale' is missing \(it was 3.0 at conversion\)"):
        other(images(1))


def test_defaults_come_along_in_a_checkpoint(plain):
    loaded = t2t.TRTModule()
    loaded.load_state_dict(plain.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(loaded(images(1), None, scale=2.0), images(1) * 2)
    with pytest.raises(ShapeError, match="'scale'"):
        loaded(images(1), scale=1.0)
