"""Dynamic sizes as users meet them: how they are declared, checked, narrowed and refused."""

from __future__ import annotations

import functools
import json
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import einsum, matmul, nn

import t2t
from t2t.errors import (
    ConversionError,
    GuardError,
    ShapeError,
    ShapeWarning,
    UnsupportedArgumentError,
)
from t2t.io import Signature, TensorSpec
from t2t.lowering import Conversion, to_network
from t2t.reference import capture
from tests.cases import TORCH

Dim = torch.export.Dim
X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
IMAGE = torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)


def compared(
    function: Callable[..., Any], runs: Sequence[Sequence[torch.Tensor]], **options: Any
) -> Conversion:
    """Convert with the first inputs, and compare for all."""
    conversion = to_network(function, runs[0], **options)
    program = capture(conversion.network.raw, conversion.network.weights)
    for inputs in runs:
        conversion.signature.check(inputs)
        wanted = function(*(x.clone() for x in inputs))
        (got,) = program.run(inputs).values()
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        assert conversion.signature.outputs[0].shape_text().count(",") >= wanted.ndim - 1
    return conversion


def images(*sizes: tuple[int, ...]) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(size, generator=generator)] for size in sizes]


def texts(conversion: Conversion) -> tuple[str, str]:
    signature = conversion.signature
    return signature.inputs[0].shape_text(), signature.outputs[0].shape_text()


# -- derived dimensions --------------------------------------------------------------------------


class Skip(nn.Module):
    """Down, up and added again: right for even sizes only."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 3, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.down(x), scale_factor=2) + x


def test_a_multiple_of_a_dim_is_exact() -> None:
    h, w = Dim("h", min=2, max=8), Dim("w", min=1, max=8)
    shapes = [{2: 2 * h, 3: 4 * w - 2}]
    runs = images((1, 3, 4, 10), (1, 3, 16, 2), (1, 3, 10, 30))
    conversion = compared(Skip().eval(), runs, dynamic_shapes=shapes)
    sizes = "(1, 3, 2*h=4..16, 4*w-2=2..30)"
    assert texts(conversion) == (sizes, sizes)
    [profile] = conversion.profiles()
    assert profile["x"] == ((1, 3, 4, 2), (1, 3, 4, 10), (1, 3, 16, 30))
    for size, words in (
        ((9, 10), "dimension 2 of input 'x' is 9, but must be a multiple of 2 from 4 to 16"),
        ((4, 12), "is 12, but must be 4*w-2 for w in 1..8"),
        ((18, 10), "dimension 2 must be 4..16"),
    ):
        with pytest.raises(ShapeError, match=re.escape(words)):
            conversion.signature.check([torch.zeros(1, 3, *size)])


def test_dims_of_several_inputs_are_checked_against_each_other() -> None:
    n = Dim("n", min=1, max=8)
    function = lambda x, y: torch.cat([x, x]) + y  # noqa: E731
    runs = [[torch.randn(k, 3), torch.randn(2 * k, 3)] for k in (2, 1, 5)]
    conversion = compared(function, runs, dynamic_shapes=[{0: n}, {0: 2 * n}])
    with pytest.raises(ShapeError, match=r"must be 2\*n = 6, as dimension 0 of 'x' is n = 3"):
        conversion.signature.check([torch.randn(3, 3), torch.randn(8, 3)])
    again = Signature.from_json(conversion.signature.to_json())
    assert again == conversion.signature
    with pytest.raises(GuardError, match=r"declare dimension 0 of input 'y' as 2\*n"):
        to_network(function, runs[0], dynamic_shapes=[{0: (1, 8)}, {0: (2, 16)}])


def test_sizes_are_expressions_of_the_dims_everywhere() -> None:
    h = Dim("h", min=1, max=6)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 5, 3, 2, 1), nn.Flatten(2))
    options = {"dynamic_shapes": [{2: 4 * h, 3: 4 * h}], "max_batch_size": 8}
    converted = t2t.convert(module, [IMAGE], **options, progress=False)  # type: ignore[arg-type]
    assert "returns output: float32 (batch=1..8, 5, h**2=1..36)" in repr(converted)
    assert converted.program is not None
    loaded = t2t.TRTModule()
    loaded.load_state_dict(converted.state_dict())
    assert loaded.program is not None
    for program in (converted.program, loaded.program):
        assert "-> fp32[batch, 4, 2*h, 2*h] <- input" in str(program)
        assert "output output: float32[batch, 5, h**2]" in str(program)
        assert "[batch, 4, 2*h, 2*h]" in program.to_dot()
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(run(loaded, x), module(x), rtol=1e-5, atol=1e-6)


def run(module: t2t.TRTModule, *inputs: Any, **keywords: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", t2t.ReferenceExecutionWarning)
        return module(*inputs, **keywords)


@pytest.mark.parametrize(
    ("example", "shapes", "words"),
    [
        ((1, 3, 9, 4), [{2: 2 * Dim("h", min=1, max=8)}], r"is 9 in the example, .* not 2\*h"),
        (
            (1, 3, 4, 6),
            [{2: 2 * Dim("h", min=1, max=8), 3: 2 * Dim("h", min=1, max=8)}],
            "h is 2 in dimension 2 of input 'x' of the example, and 3 in dimension 3",
        ),
        (
            (1, 3, 4, 4),
            [{2: Dim("h", min=1, max=8), 3: Dim("h", min=1, max=9)}],
            "different ranges have the name 'h'",
        ),
        ((1, 3, 4, 4), [{2: Dim("h", min=5, max=8)}], "the example's 4 must lie between min 5"),
        ((1, 3, 4, 4), [{4: Dim("h", min=1, max=8)}], "no dimension 4"),
        ((1, 3, 4, 4), [{2: "h"}], "give torch.export.Dim"),
        ((1, 3, 4, 4), [{2: 5}], "is 4 in the example, but 5 was declared"),
        ((1, 3, 4, 4), [{2: (8, 1)}], "min <= opt <= max"),
        ((1, 3, 4, 4), {"z": {2: (1, 8)}}, "no input 'z'"),
        ((1, 3, 4, 4), [{2: (1, 8)}, None], "2 entries"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(example: Any, shapes: Any, words: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(ShapeError, match=words):
        to_network(function, [torch.zeros(example)], dynamic_shapes=shapes)


def test_profile_shapes_must_fit_the_dims() -> None:
    h = 8 * Dim("h", min=1, max=8)
    with pytest.raises(ShapeError, match=r"opt 20 is not 8\*h"):
        to_network(torch.relu, [IMAGE], dynamic_shapes=[{2: h}], opt_shapes=[(1, 3, 20, 16)])
    with pytest.raises(ShapeError, match="one size h, but opt has"):
        to_network(torch.relu, [IMAGE], dynamic_shapes=[{2: h, 3: h}], opt_shapes=[(1, 3, 24, 16)])


# -- ways to declare -----------------------------------------------------------------------------


def test_dims_without_bounds_get_some_and_say_so() -> None:
    with pytest.warns(ShapeWarning, match=r"Dim\('b'\) has no max: .* sizes up to 16;") as caught:
        conversion = to_network(
            torch.relu, [X], dynamic_shapes=[{0: Dim("b"), -1: Dim("c", max=9)}]
        )
    assert texts(conversion)[0] == "(b=1..16, 3, c=1..9)"
    assert caught[0].filename == __file__
    assert len(conversion.signature.notes) == 1
    with pytest.warns(ShapeWarning, match="up to 64"):
        conversion = to_network(torch.relu, [IMAGE], dynamic_shapes=[{2: 2 * Dim("h")}])
    assert texts(conversion)[0] == "(1, 3, 2*h=2..64, 16)"


def test_hints_instead_of_dims() -> None:
    static = to_network(torch.relu, [X], dynamic_shapes=[{0: Dim.STATIC, 1: None, 2: 4}])
    assert texts(static)[0] == "(2, 3, 4)"
    with pytest.warns(ShapeWarning, match="dimension 1 of input .* has no max"):
        dynamic = to_network(torch.relu, [X], dynamic_shapes=[(None, Dim.DYNAMIC, None)])
    assert texts(dynamic)[0] == "(2, 1..16, 4)"
    bounded = to_network(torch.relu, [X], dynamic_shapes=[{1: Dim.DYNAMIC(min=2, max=5)}])
    assert texts(bounded)[0] == "(2, 2..5, 4)"
    # What torch.export would specialise silently is narrowed, and said.
    with pytest.warns(ShapeWarning) as caught:
        automatic = to_network(Skip(), [IMAGE], dynamic_shapes=[{2: Dim.AUTO, 3: Dim.AUTO(max=20)}])
    assert texts(automatic)[0] == "(1, 3, 2..64, 2..20)"
    assert any("is 2..20 step 2 for `x.shape[3] % 2 == 0`" in str(w.message) for w in caught)
    with pytest.raises(ShapeError, match="a multiple of 2 from 2 to 64"):
        automatic.signature.check([torch.zeros(1, 3, 5, 4)])
    with pytest.raises(GuardError, match=r"x\.shape\[2\] % 2 == 0"):
        to_network(Skip(), [IMAGE], dynamic_shapes=[{2: Dim.DYNAMIC}])


def nested(pair: Any, *, masks: Any, scale: float = 2.0) -> torch.Tensor:
    total: torch.Tensor = pair[0] * scale + pair[1] + masks["a"][0]
    return total


@pytest.mark.parametrize(
    "shapes",
    [
        [({0: "n"}, {0: "n"}), {"a": [{0: "n"}]}],
        {"pair": [{0: "n"}, {0: "n"}], "masks": {"a": [{0: "n"}]}},
        {"pair_0": {0: "n"}, "pair_1": {0: "n"}, "masks_a_0": {0: "n"}},
        [{0: "n"}, {0: "n"}, {0: "n"}],
    ],
    ids=["nested", "by-argument", "by-tensor", "flat"],
)
def test_shapes_of_nested_inputs(shapes: Any) -> None:
    n = Dim("n", min=1, max=8)

    def named(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: n if value == "n" else named(value) for key, value in tree.items()}
        return [named(item) for item in tree] if isinstance(tree, list | tuple) else tree

    one = torch.randn(2, 3)
    conversion = to_network(
        nested, [(one, one + 1)], {"masks": {"a": [one]}}, dynamic_shapes=named(shapes)
    )
    assert [spec.shape_text() for spec in conversion.signature.inputs] == ["(n=1..8, 3)"] * 3
    assert len(conversion.signature.dimensions) == 1


def test_smallest_and_largest_shapes_nested_as_the_inputs() -> None:
    one = torch.randn(2, 3)
    low, high = (1, 3), (8, 3)

    def function(pair: Any, other: torch.Tensor) -> torch.Tensor:
        return pair["a"] + 1, pair["b"], other  # type: ignore[return-value]

    conversion = to_network(
        function, [{"a": one, "b": one}, one],
        min_shapes=[{"a": low, "b": low}, None], max_shapes=[{"a": high, "b": high}, None],
    )  # fmt: skip
    texts = [spec.shape_text() for spec in conversion.signature.inputs]
    assert texts == ["(1..8, 3)", "(1..8, 3)", "(2, 3)"]
    with pytest.raises(ShapeError, match=r"min_shapes\[0\]: there is no input 'c'"):
        to_network(
            function, [{"a": one, "b": one}, one],
            min_shapes=[{"c": low}, None], max_shapes=[{"a": high}, None],
        )  # fmt: skip
    with pytest.raises(ShapeError, match=r"min_shapes\[0\]\[0\] is 1, but the input there is"):
        to_network(lambda x: x[0] + x[1], [(one, one)], min_shapes=[low], max_shapes=[(high, high)])


def test_max_batch_size_is_one_size_of_all_inputs() -> None:
    runs = [[torch.randn(k, 3), torch.randn(k, 3)] for k in (2, 1, 8)]
    conversion = compared(torch.add, runs, max_batch_size=8)
    assert texts(conversion)[0] == "(batch=1..8, 3)"
    with pytest.raises(ShapeError, match="is 3, but must equal dimension 0 of 'input_0', which is"):
        conversion.signature.check([torch.randn(2, 3), torch.randn(3, 3)])
    with pytest.raises(ShapeError, match="batch is 2 in dimension 0 of input 'input_0' of the ex"):
        to_network(torch.matmul, [torch.randn(2, 3), torch.randn(3, 4)], max_batch_size=8)
    with pytest.raises(ShapeError, match="leave one of them out"):
        to_network(torch.relu, [X], max_batch_size=8, dynamic_shapes=[{0: (1, 4)}])
    scalar = to_network(lambda x, y: x * y, [X, torch.tensor(2.0)], max_batch_size=4)
    assert texts(scalar)[0] == "(batch=1..4, 3, 4)"
    fixed = to_network(torch.relu, [X[:1]], max_batch_size=1)
    assert texts(fixed)[0] == "(1, 3, 4)"


class DataSet:
    """A data set of PyTorch: it has a length and items."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    __iter__ = None


def test_ranges_of_example_inputs() -> None:
    sizes = [(2, 7), (1, 5), (4, 7), (4, 9)]
    calls = [(torch.randn(b, n), torch.randn(b, n)) for b, n in sizes]
    for examples in (calls[1:], iter(calls[1:]), DataSet(calls[1:])):
        conversion = to_network(torch.add, calls[0], shape_examples=examples)
        # Both inputs had the same sizes in all examples.
        assert len(conversion.signature.dimensions) == 2
        [profile] = conversion.profiles()
        assert profile["input_1"] == ((1, 5), (4, 7), (4, 9))
    one = to_network(torch.relu, [X], shape_examples=[torch.randn(5, 3, 4)])
    assert texts(one)[0] == "(2..5, 3, 4)"
    keywords = to_network(
        lambda x, *, y: x + y, [X], {"y": X}, shape_examples=[((X[:1],), {"y": X[:1]})]
    )
    assert texts(keywords)[0] == "(1..2, 3, 4)"
    for examples, words in (
        ([(X, X)], "entry 0 has 2 tensors, the module has inputs .'input_0'.; give the inputs al"),
        ([torch.randn(2, 3)], "dimensions"),
        (["x"], "entry 0"),
    ):
        with pytest.raises(ShapeError, match=words):
            to_network(torch.relu, [X], shape_examples=examples)


def test_several_profiles() -> None:
    function = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    profiles = [
        {"min": [(1, 3, 4)], "max": [(1, 3, 4)]},
        {"min": [(4, 3, 4)], "opt": [(8, 3, 4)], "max": [(16, 3, 4)]},
    ]
    x = torch.randn(1, 3, 4)
    converted = t2t.convert(function, [x], profiles=profiles, progress=False)
    for batch in (1, 4, 16):
        x = torch.randn(batch, 3, 4)
        torch.testing.assert_close(run(converted, x), function(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\) lie in none of the profiles: input \(1, 3"):
        run(converted, torch.randn(2, 3, 4))
    with pytest.raises(ShapeError, match=r"must be 1\.\.16"):
        run(converted, torch.randn(17, 3, 4))
    assert converted.signature.outputs[0].shape_text() == "(1..16, 3, 5)"
    loaded = t2t.TRTModule()
    loaded.load_state_dict(converted.state_dict())
    assert loaded.signature == converted.signature


def test_a_condition_must_hold_in_every_profile_and_only_there() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x * 2 if (n - 1) * (n - 2) * (n - 8) == 0 else x

    def sets(*batches: tuple[int, int]) -> list[dict[str, Any]]:
        return [{"min": [(a, 3, 4)], "max": [(b, 3, 4)]} for a, b in batches]

    to_network(function, [X], profiles=sets((1, 2), (8, 8)))
    with pytest.raises(GuardError, match="dimension 0 of input 'x' = 7"):
        to_network(function, [X], profiles=sets((1, 2), (7, 8)))
    with pytest.raises(ConversionError, match="does not go with profiles"):
        to_network(function, [X], profiles=sets((1, 2), (7, 8)), narrow_shapes=True)
    with pytest.raises(ShapeError, match="a profile is"):
        to_network(function, [X], profiles=[{"min": [(1, 3, 4)]}])


def test_profiles_of_named_dims() -> None:
    h = Dim("h", min=1, max=64)
    profiles = [
        {"min": [(1, 3, k, 16)], "max": [(1, 3, 2 * k, 16)]} for k in (8, 64)
    ]  # fmt: skip
    conversion = to_network(Skip(), [IMAGE], dynamic_shapes=[{2: 4 * h}], profiles=profiles)
    assert texts(conversion)[0] == "(1, 3, 4*h=8..128, 16)"
    assert [p["x"][0][2] for p in conversion.profiles()] == [8, 64]
    with pytest.raises(ShapeError, match=r"min 10 is not 4\*h"):
        to_network(
            Skip(), [IMAGE], dynamic_shapes=[{2: 4 * h}],
            profiles=[{"min": [(1, 3, 10, 16)], "max": [(1, 3, 32, 16)]}],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_shapes": [(1, 3, 4)]}, "given together"),
        ({"opt_shapes": [(1, 3, 4)]}, "needs min_shapes"),
        (
            {"min_shapes": [(1, 3, 4)], "max_shapes": [(4, 3, 4)], "dynamic_shapes": [{0: (1, 4)}]},
            "min_shapes and max_shapes, or dynamic_shapes, not both",
        ),
        ({"shape_examples": [X], "profiles": []}, "shape_examples, or profiles"),
        ({"profiles": []}, "profiles is empty"),
        ({"max_batch_size": 0}, "from 1 on"),
        ({"max_batch_size": 1}, "is 2 in the example, but 1 was declared"),
        ({"min_shapes": [(1, 3)], "max_shapes": [(4, 3)]}, "need 3 numbers"),
    ],
)
def test_ways_that_exclude_each_other(options: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        to_network(torch.relu, [X], **options)


# -- conditions ----------------------------------------------------------------------------------


def refusal(function: Callable[..., Any], inputs: Sequence[torch.Tensor], **options: Any) -> str:
    with pytest.raises(GuardError) as caught:
        to_network(function, inputs, **options)
    return str(caught.value)


def test_what_most_people_meet_first_names_the_fix() -> None:
    both = {"min_shapes": [(1, 3, 4)] * 2, "max_shapes": [(8, 3, 4)] * 2}
    message = refusal(lambda x, y: x + y, [X, X + 1], **both)
    assert re.search(r"an operator at \S+test_dynamic\.py:\d+ in .*<lambda> needs", message)
    assert (
        "`x.shape[0] == y.shape[0]`, which does not hold for dimension 0 of input 'x' =" in message
    )
    fix = "batch = torch.export.Dim('batch', min=1, max=8); dynamic_shapes={'x': {0: batch}, "
    assert f"declare them as one: {fix}'y': {{0: batch}}}}" in message
    assert "plain number" not in message
    with pytest.warns(ShapeWarning, match="dimension 0 of input 'y' must equal dimension 0 of in"):
        tied = to_network(lambda x, y: x + y, [X, X + 1], narrow_shapes=True, **both)
    with pytest.raises(ShapeError, match="must equal dimension 0 of 'x', which is 2"):
        tied.signature.check([X, torch.cat([X, X])])


@pytest.mark.parametrize(
    ("decide", "condition", "advice"),
    [
        (
            lambda x: x.shape[2] % 8 == 0,
            "`x.shape[2] % 8 == 0` does not hold for dimension 2 of input 'x' = 4",
            "= 8..64 step 8: declare 8*torch.export.Dim('n', min=1, max=8)",
        ),
        (
            lambda x: x.shape[2] % 8 == 0 and x.shape[2] > 10,
            "x.shape[2] % 8 == 0",
            "= 16..64 step 8: declare 8*torch.export.Dim('n', min=2, max=8)",
        ),
        (
            lambda x: x.shape[2] % 4 == 0 and x.shape[2] % 6 != 0,
            "x.shape[2] % 4 == 0",
            "torch.export.Dim",
        ),
        (
            lambda x: 10 < x.shape[2] < 20,
            "x.shape[2] >= 11",
            "= 11..19: declare torch.export.Dim('n', min=11, max=19)",
        ),
        (lambda x: x.shape[2] == 16, "x.shape[2] == 16", "declare 16, as a static size"),
        (
            lambda x: (x.shape[2] - 1) % 3 == 0,
            "x.shape[2] % 3 == 1",
            "= 4..64 step 3: declare 3*torch.export.Dim('n', min=1, max=21)+1",
        ),
        (
            lambda x: x.shape[2] * x.shape[3] <= 300,
            "`x.shape[2]*x.shape[3] <= 300` does not hold for dimension 2 of input 'x'",
            "dimension 2 of input 'x' = 4..18, dimension 3 of input 'x' = 4..16: declare",
        ),
        (
            lambda x: x.shape[2] == x.shape[3],
            "x.shape[2] == x.shape[3]",
            "n = torch.export.Dim('n', min=4, max=64); dynamic_shapes={'x': {2: n, 3: n}}",
        ),
        (
            lambda x: int(x.shape[2] * 1.5) == 24,
            "a size became a plain number (int(), range(), len() and the like do that)",
            "keep it symbolic",
        ),
    ],
    ids=["multiple", "and", "two", "between", "one", "offset", "area", "square", "number"],
)
def test_refusals_say_where_a_condition_holds(
    decide: Callable[[torch.Tensor], bool], condition: str, advice: str
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if decide(x) else x

    message = refusal(function, [IMAGE], dynamic_shapes=[{2: (4, 64), 3: (4, 64)}])
    assert condition in message
    assert advice in message
    assert "or pass narrow_shapes=True" in message
    assert re.search(r"test_dynamic\.py:\d+ in", message)


def test_narrowing_says_what_it_did() -> None:
    with pytest.warns(ShapeWarning) as caught:
        conversion = to_network(
            Skip(), [IMAGE], dynamic_shapes=[{2: (4, 33), 3: (4, 33)}], narrow_shapes=True
        )
    notes = [str(w.message) for w in caught]
    assert notes == list(conversion.signature.notes)
    assert any(
        "dimension 2 of input 'x' was declared as 4..33 and is 4..32 step 2" in n for n in notes
    )
    assert any(
        re.search(r"for `x\.shape\[2\] % 2 == 0` at \S+test_dynamic\.py:\d+", n) for n in notes
    )
    assert conversion.profiles()[0]["x"] == ((1, 3, 4, 4), (1, 3, 16, 16), (1, 3, 32, 32))
    with pytest.raises(ShapeError, match="is 5, but must be a multiple of 2 from 4 to 32"):
        conversion.signature.check([torch.zeros(1, 3, 4, 5)])


def test_narrowing_splits_conditions_and_fits_several_dimensions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        h, w = x.shape[2:]
        return x * 2 if h % 8 == 0 and w >= 10 and h * w <= 400 else x

    with pytest.warns(ShapeWarning):
        conversion = to_network(
            function, [IMAGE], dynamic_shapes=[{2: (4, 64), 3: (4, 64)}], narrow_shapes=True
        )
    dimensions = {d.name: (d.low, d.high, d.step) for d in conversion.signature.dimensions}
    assert dimensions == {"x.shape[2]": (8, 24, 8), "x.shape[3]": (10, 16, 1)}


def test_what_narrowing_cannot_mend_does_not_advise_it() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) + y

    inputs = [torch.randn(2, 3), torch.randn(4, 3)]
    options = {"dynamic_shapes": [{0: (2, 8)}, {0: (2, 8)}]}
    assert "narrow_shapes" not in refusal(function, inputs, **options)


def test_sizes_are_written_in_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y, whole = x * 1, x[:, 0].long()
        y[:, 0] = x.shape[0]
        y[:, 1].fill_(x.shape[0] / 3)
        return y + whole.fill_(x.shape[0] * 2)[:, None]

    shapes = [{0: (1, 8)}]
    compared(function, images((4, 3, 5), (8, 3, 5), (1, 3, 5)), dynamic_shapes=shapes)


def test_real_numbers_that_no_layer_computes_are_refused() -> None:
    with pytest.raises(UnsupportedArgumentError, match=r"no layers compute `.*test_dynamic\.py"):
        to_network(lambda x: x * (x.shape[2] * 0.3 % 0.7), [X], dynamic_shapes=[{2: (1, 8)}])


@functools.lru_cache
def positions(count: int) -> torch.Tensor:
    return torch.arange(count)


REMEMBERED: dict[int, int] = {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + positions(x.shape[2]),
        lambda x: x * REMEMBERED.get(x.shape[2], 2),
        lambda x: x if x.shape[2] in {4, 5} else x * 2,
    ],
    ids=["lru_cache", "dict", "set"],
)
def test_a_size_as_a_key_is_refused_with_the_line(function: Callable[..., Any]) -> None:
    message = refusal(function, [X], dynamic_shapes=[{2: (1, 8)}])
    assert re.search(r"key of a dict, a set or functools\.lru_cache.*test_dynamic\.py:\d+", message)


def test_code_that_asks_takes_its_traceable_way() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = positions.__wrapped__ if torch.compiler.is_compiling() else positions
        return x + made(x.shape[2])

    compared(function, [[X], [torch.randn(2, 3, 7)]], dynamic_shapes=[{2: (1, 8)}])
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


INDEXED: dict[str, Callable[[torch.Tensor], Any]] = {
    "select": lambda x: x.select(1, 1),
    "select-negative": lambda x: x.select(1, -2),
    "getitem": lambda x: x[:, 1],
    "list": lambda x: x[:, [0, 1]],
    "tensor": lambda x: x[:, torch.tensor([0, -2])],
    "narrow": lambda x: x.narrow(1, 0, 2),
    "index_select": lambda x: x.index_select(1, torch.tensor([1])),
    "gather": lambda x: x.gather(1, torch.ones(2, 1, 4, dtype=torch.int64)),
    "take": lambda x: torch.take(x, torch.tensor([0, 9])),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([1]), 0.0),
    "beyond": lambda x: x[:, (x.shape[1] + 3) // 3],
    "unbind": lambda x: x.unbind(1)[0],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "topk": lambda x: x.topk(2, 1)[0],
    "split": lambda x: x.split(2, 1)[0],
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_must_lie_in_the_whole_range(name: str) -> None:
    message = refusal(INDEXED[name], [X], dynamic_shapes=[{1: (1, 4)}])
    assert "dimension 1 of input 'x' = 1" in message


def test_assigning_by_an_index_must_lie_in_the_whole_range() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 1] = 0
        return y

    assert "`x.shape[1] >= 2`" in refusal(function, [X], dynamic_shapes=[{1: (1, 4)}])


SLICED: dict[str, Callable[[torch.Tensor], Any]] = {
    "first": lambda x: x.select(1, 0),
    "last": lambda x: x[:, -1],
    "slice": lambda x: x[:, 1:3],
    "start": lambda x: x[:, :2],
    "end": lambda x: x[:, -2:],
    "step": lambda x: x[:, ::2],
    "half": lambda x: x[:, : (x.shape[1] + 1) // 2],
    "roll": lambda x: x.roll(1, 1),
    "middle": lambda x: x[:, x.shape[1] // 2],
    "before-the-end": lambda x: x[..., x.shape[1] - 1, :],
    "from-the-end": lambda x: x[0, -x.shape[1], None, 1:],
    "new-dimension": lambda x: x[None, :, None, x.shape[1] // 2, ..., 0],
}


@pytest.mark.parametrize("name", SLICED)
def test_slices_are_cut_at_the_ends_for_every_size(name: str) -> None:
    runs = [[torch.randn(2, size, 4)] for size in (3, 1, 2, 4)]
    compared(SLICED[name], runs, dynamic_shapes=[{1: (1, 4)}])


def swap(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, [0, 2]] = y[:, [2, 0]]
    return y


def copied(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(x.shape)
    y[:] = x
    y[:, 0] = x[:, 1]
    return y


LAYOUT: dict[str, Callable[..., Any]] = {
    "log-softmax": lambda x: x.permute(1, 0, 2).log_softmax(2),
    "softmax": lambda x: x.transpose(0, 1).softmax(-1),
    "swap": swap,
    "copied": copied,
    "einsum": lambda x: einsum("bij,bjk->bik", x, torch.ones(1, 4, 5)),
    "einsum-shared": lambda x: einsum("bij,jk->bik", x, torch.ones(4, 5)),
    "einsum-outer": lambda x: einsum("bij,bkj->bik", x, x),
    "reshape": lambda x: x.permute(2, 0, 1).reshape(4, -1),
    "flatten": lambda x: x.permute(2, 0, 1).flatten(1),
    "view": lambda x: x.contiguous().view(-1, 4),
    "sum": lambda x: x.permute(1, 0, 2).sum(0),
    "mean": lambda x: x.mean((0, 2)),
    "matmul": lambda x: x.transpose(0, 1) @ torch.ones(4, 2),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(1, 3, 1)),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "stack": lambda x: torch.stack([x, x.flip(2)], 1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1),
    "layer-norm": lambda x: F.layer_norm(x.transpose(0, 1), (4,)),
    "pad": lambda x: F.pad(x, (1, 2)),
    "cumsum": lambda x: x.cumsum(1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("example", [2, 1])
@pytest.mark.parametrize("name", LAYOUT)
def test_a_batch_of_one_is_nothing_special(name: str, example: int) -> None:
    runs = [[torch.randn(size, 3, 4)] for size in (example, 1, 5)]
    compared(LAYOUT[name], runs, max_batch_size=8)


BROADCAST: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + torch.ones(4, 1, 1),
    "in-place": lambda x: torch.ones(4, 3, 4).mul_(x),
    "assigned": lambda x: torch.zeros(4, 3, 4).index_put((torch.arange(4),), x),
    "expand": lambda x: x.expand(4, 3, 4),
    "where": lambda x: torch.where(torch.ones(4, 1, 1) > 0, x, x),
    "matmul": lambda x: matmul(x, torch.ones(4, 4, 5)),
    "einsum": lambda x: einsum("bij,bjk->bik", x, torch.ones(4, 4, 5)),
    "broadcast": lambda x: torch.broadcast_tensors(x, torch.ones(4, 1, 1))[0],
    "cat": lambda x: torch.cat([x, torch.ones(1, 3, 4)], 1),
    "squeeze": lambda x: x.squeeze(0),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_what_fits_only_a_batch_of_one_is_refused(name: str) -> None:
    message = refusal(BROADCAST[name], [X[:1]], max_batch_size=8)
    # PyTorch 2.8 asks first whether the sizes are the same.
    asked = "`batch != 4`" if name == "matmul" and TORCH < (2, 9) else "`batch == 1`"
    assert asked in message
    assert "static" in message
    assert re.search(r"test_dynamic\.py:\d+ in", message)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(3), nn.GroupNorm(3, 3),
        nn.InstanceNorm2d(3, affine=True), nn.PReLU(3),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_channels_that_weights_fix_are_not_dynamic(module: nn.Module) -> None:
    message = refusal(module.eval(), [IMAGE], dynamic_shapes=[{1: (1, 8)}])
    # A group norm asks first whether the groups divide the channels.
    condition = "% 3 == 0" if isinstance(module, nn.GroupNorm) else "== 3"
    assert f"`input.shape[1] {condition}`" in message


@pytest.mark.parametrize(
    "function",
    [
        nn.Linear(4, 5), nn.LayerNorm(4), nn.RMSNorm(4), lambda x: x @ torch.ones(4, 2),
        lambda x: F.scaled_dot_product_attention(x, torch.ones(2, 5, 4), torch.ones(2, 5, 4)),
    ],
)  # fmt: skip
def test_features_that_weights_fix_are_not_dynamic(function: Any) -> None:
    assert ".shape[2] == 4`" in refusal(function, [X], dynamic_shapes=[{2: (1, 8)}])


def test_what_selects_by_data_is_refused() -> None:
    for function in (torch.nonzero, lambda x: x[x > 0], lambda x: x[x[:, 0, 0, 0] > 0]):
        with pytest.raises(ConversionError, match="depends on the data"):
            to_network(function, [IMAGE], dynamic_shapes=[{0: (1, 4)}])


def test_a_window_must_fit_into_every_size() -> None:
    for module in (nn.Conv2d(3, 4, 3), nn.MaxPool2d(3)):
        assert "= 3..16: declare" in refusal(module, [IMAGE], dynamic_shapes=[{2: (1, 16)}])


NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "divmod": lambda x: x * divmod(x.shape[2], 3)[1],
    "power": lambda x: x * 2 ** (x.shape[2] // 8),
    "pad-to-multiple": lambda x: F.pad(x, (0, -x.shape[2] % 8)),
    "ceil": lambda x: x * math.ceil(x.shape[2] / 3),
    "floor": lambda x: x * math.floor(x.shape[2] * 0.7),
    # 0.29 * 100 is 29 in float32, and just below in Python.
    "decimal": lambda x: x * math.floor(x.shape[2] * 0.29),
    "sqrt": lambda x: x / math.sqrt(x.shape[2]),
    "floor-of-sqrt": lambda x: x * math.floor(math.sqrt(x.shape[2])),
    "log": lambda x: x * math.log(x.shape[2]),
    "log-of-base": lambda x: x * math.log(x.shape[2], 4),
    "round": lambda x: x * round(x.shape[2] / 3),
    "bits": lambda x: x * (x.shape[2] & 6),
    "shift": lambda x: x * (x.shape[2] >> 1),
    "extremes": lambda x: x * torch.sym_min(torch.sym_max(x.shape[2], 9), 30),
    "resized": lambda x: F.interpolate(x, scale_factor=1.7),
    "halved": lambda x: F.interpolate(x, scale_factor=0.5),
    "linspace": lambda x: x + torch.linspace(0, 1, x.shape[2]),
    "shape-as-tensor": lambda x: x * torch._shape_as_tensor(x)[2],
    "triangle": lambda x: x @ torch.ones(x.shape[2], x.shape[2]).tril(),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_made_of_sizes(name: str) -> None:
    runs = [[torch.randn(1, 3, size)] for size in (7, 4, 33, 100)]
    compared(NUMBERS[name], runs, dynamic_shapes=[{2: (4, 128)}])


EMPTY: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": torch.relu,
    "view": lambda x: x.view(-1, 12),
    "flatten": lambda x: x.flatten(1),
    "linear": nn.Linear(4, 5),
    "cat": lambda x: torch.cat([x, x]),
    "sum": lambda x: x.sum(0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_size_may_be_zero_where_it_is_declared_so(name: str) -> None:
    runs = [[torch.randn(size, 3, 4)] for size in (2, 0, 5)]
    compared(EMPTY[name], runs, dynamic_shapes=[{0: (0, 8)}])


# At the smallest of their sizes these take another way than at all others.
SMALLEST: dict[str, Callable[[torch.Tensor], Any]] = {
    "linspace-of-one": lambda x: x * torch.linspace(2, 5, x.shape[0]).view(-1, 1),
    "always-one": lambda x: x[: x.shape[0] - x.shape[0] // 3][:1].expand(x.shape),
    "always-one-of-more": lambda x: x.narrow(0, 0, 1 + x.shape[0] // 9)[:1].expand(9, 4) + x[:1],
    "without-rows": lambda x: F.pad(x[1:], (0, x.shape[0] % 2)).unflatten(-1, (-1, 1)),
    "without-columns": lambda x: x[:, x.shape[0] // 8 * 4 :].flatten().view(x.shape[0], -1, 1),
    "sum-of-nothing": lambda x: torch.einsum("ij,ij->i", x[1:], x[1:]).unsqueeze(-1) + x[1:],
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_size_is_none_of_the_usual(name: str) -> None:
    runs = [[torch.randn(size, 4)] for size in (3, 1, 2, 7)]
    compared(SMALLEST[name], runs, dynamic_shapes=[{0: (1, 7)}])


# PyTorch refuses these when they are too small; each with the least size that it takes.
TOO_SMALL: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "max": (lambda x: x[1:].max(0).values, 2),
    "min": (lambda x: x[1:].min(0).indices, 2),
    "max-of-all": (lambda x: x[1:].max(), 2),
    "amax": (lambda x: x[1:].amax(0), 2),
    "argmax": (lambda x: x[1:].argmax(), 2),
    "median": (lambda x: x[1:].median(0).values, 2),
    "adaptive": (lambda x: F.adaptive_avg_pool1d(x[None, None, 1:], 2), 2),
    "instance-norm": (lambda x: F.instance_norm(x[None, None, 1:]), 3),
    "resized": (lambda x: F.interpolate(x[None, None, 1:], scale_factor=0.5), 3),
    "pooled": (lambda x: F.max_pool1d(x[None, None, 1:], 2), 3),
    "convolved": (lambda x: F.conv1d(x[None, None, 1:], torch.ones(1, 1, 3)), 4),
    "indexed": (lambda x: x[1:][0], 2),
}


@pytest.mark.parametrize("name", TOO_SMALL)
def test_sizes_that_pytorch_refuses_are_refused(name: str) -> None:
    function, least = TOO_SMALL[name]
    x = torch.linspace(-1, 1, 8)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        function(x[: least - 1])
    assert "dimension 0" in refusal(function, [x], dynamic_shapes=[{0: (least - 1, 9)}])
    compared(function, [[x], [x[:least]], [x[1:]]], dynamic_shapes=[{0: (least, 9)}])


def test_an_image_cannot_be_resized_to_nothing() -> None:
    x = torch.randn(1, 2, 8)
    message = refusal(
        lambda x: F.interpolate(x, scale_factor=0.5), [x], dynamic_shapes=[{2: (1, 9)}]
    )
    assert "min=2" in message
    runs = [[torch.randn(1, 2, size)] for size in (8, 2, 3, 9)]
    compared(lambda x: F.interpolate(x, scale_factor=0.5), runs, dynamic_shapes=[{2: (2, 9)}])


def test_integers_of_a_dynamic_linspace_are_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.linspace(0, 9, x.shape[0], dtype=torch.int64).view(-1, 1)

    with pytest.raises(UnsupportedArgumentError, match=r"linspace of torch.int64 .*test_dynamic"):
        to_network(function, [X[0]], dynamic_shapes=[{0: (1, 7)}])


def test_a_size_is_read_once_for_all_that_is_computed_of_it() -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        h, w = x.shape[-2:]
        small = x.new_zeros(h // 2, w // 2).sum() + x.new_zeros(h // 3, w + 1).sum()
        return x + small + x.new_ones(h // 4, w * h).mean()

    dims = [{2: Dim("h", min=4, max=40), 3: Dim("w", min=4, max=40)}]
    conversion = compared(pooled, images((1, 3, 8, 12), (1, 3, 5, 7)), dynamic_shapes=dims)
    program = capture(conversion.network.raw, conversion.network.weights)
    shapes = {layer.outputs[0] for layer in program.layers if layer.kind == "SHAPE"}
    read = [layer for layer in program.layers if set(layer.inputs) & shapes]
    assert len(read) == 2


def test_no_size_can_be_inferred_without_elements() -> None:
    message = refusal(lambda x: x.view(x.shape[0], -1), [X], dynamic_shapes=[{0: (0, 8)}])
    assert "`x.shape[0] != 0`" in message


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_table_of_weights_resizes_to_every_size(mode: str) -> None:
    table = torch.randn(1, 2, 5, 6, generator=torch.Generator().manual_seed(0))

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + F.interpolate(table, size=x.shape[2:], mode=mode, antialias=True)

    runs = images((1, 2, 5, 9), (1, 2, 3, 3), (1, 2, 9, 6))
    compared(function, runs, dynamic_shapes=[{2: (3, 9), 3: (3, 9)}])


# -- checkpoints ---------------------------------------------------------------------------------


def test_signatures_of_the_first_format_are_read() -> None:
    specs = [TensorSpec(name, torch.float32, (-1, 3), (1, 3), (2, 3), (8, 3)) for name in "xy"]
    out = TensorSpec("out", torch.float32, (-1, 3))
    data = Signature.flat(specs, [out]).to_data()
    for part in ("dimensions", "profiles", "notes"):
        del data[part]
    for spec in (*data["inputs"], *data["outputs"]):
        del spec["sizes"]
    data.update(format=1, tied=[[[0, 0], [1, 0]]])
    old = Signature.from_json(json.dumps(data))
    assert old.inputs[0].shape_text() == "(1..8, 3)"
    old.check([torch.zeros(4, 3), torch.zeros(4, 3)])
    with pytest.raises(ShapeError, match="is 5, but must equal dimension 0 of 'x', which is 4"):
        old.check([torch.zeros(4, 3), torch.zeros(5, 3)])
