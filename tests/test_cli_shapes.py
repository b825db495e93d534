"""The notation of shapes on the command line, and what it declares."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from t2t.cli.inputs import Drawer, example_of
from t2t.cli.shapes import DTYPES, InputShape, ShapeNotationError, Size, parse, resolve
from t2t.cli.sources import Source
from t2t.sizes.declared import declare

NAMES = st.from_regex(r"[a-wyz_][a-wyz_0-9]{0,5}", fullmatch=True).filter(lambda n: n != "scalar")


@st.composite
def sizes(draw):
    low = draw(st.integers(0, 300))
    if draw(st.booleans()):
        return Size(low, low)
    step = draw(st.sampled_from([1, 1, 2, 32]))
    count = draw(st.integers(1, 20))
    usual = low + step * draw(st.integers(0, count)) if draw(st.booleans()) else None
    name = draw(NAMES) if draw(st.booleans()) else ""
    return Size(low, low + step * count, usual, step, name)


inputs = st.builds(
    InputShape,
    st.lists(sizes() | NAMES, max_size=5).map(tuple),
    st.sampled_from(["", "x", "image", "input_ids", "x.0"]),
    st.sampled_from(["", *DTYPES]),
)


@given(inputs)
def test_shapes_are_read_as_they_are_written(shape):
    assert parse(str(shape)) == shape


@given(st.text(alphabet="0123456789x.:=abc_-[, ", max_size=20))
def test_any_text_is_a_shape_or_refused(text):
    try:
        shape = parse(text)
    except ShapeNotationError:
        return
    assert parse(str(shape)) == shape


def test_the_notation():
    assert parse("224") == InputShape((Size(224, 224),))
    assert parse("scalar") == InputShape(())
    assert parse("ids:int64=batch:1..4..8x16..512:16xbatch") == InputShape(
        (Size(1, 8, 4, name="batch"), Size(16, 512, step=16), "batch"), "ids", "int64"
    )
    assert parse("bool=3").name == "bool"
    assert parse(":bool=3").dtype == "bool"
    first, second = resolve([parse("a=n:1..8x3"), parse("b=n")])
    assert second.ranges == first.ranges[:1]


class Sum(torch.nn.Module):
    def forward(self, x):
        return x + 1


@given(sizes())
def test_the_declared_sizes_are_those_that_were_written(size):
    shape = InputShape((size, Size(3, 3)))
    example = example_of(Source(Sum()), [shape], [], {}, Drawer({}, 0))
    assert example.call[0][0].shape == (size.example, 3)
    declared = example.options.get("dynamic_shapes", {"x": {}})["x"]
    if size.is_fixed:
        assert declared == {}
        return
    names = declare(
        {"kind": "tuple", "items": [{"kind": "tuple", "items": [{"kind": "tensor", "index": 0}]},
                                    {"kind": "dict", "keys": [], "items": []}]},
        ["x"], ["x"], list(example.call[0]), dynamic_shapes={"x": declared},
    )  # fmt: skip
    [dimension] = names.dimensions
    [place] = dimension.places
    values = range(dimension.low, dimension.high + 1, dimension.step)
    assert [place.size(n) for n in values] == [*range(size.low, size.high + 1, size.step)]
    assert names.profiles[0][0].opt == (size.example, 3)
