"""Size expressions: their arithmetic, bounds and text, proofs, shape tensors, fake results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dispatch.python import enable_python_dispatcher

from t2t import backend
from t2t.backend import trt
from t2t.building import create_builder
from t2t.errors import ConversionError, GuardError, UnsupportedArgumentError
from t2t.io import Dimension, Place
from t2t.network import Network
from t2t.reference import capture
from t2t.sizes import expressions as ex
from t2t.sizes import times
from t2t.sizes.arithmetic import ARRAYS, NUMBERS
from t2t.sizes.dynamic import DynamicSizes
from t2t.sizes.notation import text
from t2t.sizes.polynomials import symbol_value
from t2t.sizes.proofs import Range, counterexample, span
from t2t.sizes.terms import Polynomial, Symbol, Value, bounds, value_of
from t2t.torch_internals import hint_of, sizes_of_one_are_ordinary

H, W, N = (Symbol(name, 1, 40, order) for order, name in enumerate(("h", "w", "n")))
h, w, n = map(symbol_value, (H, W, N))
SYMBOLS = [H, W, N]
LEAVES: list[Any] = [*SYMBOLS, *range(-5, 10)]

# Each operation as an expression, and what Python computes.
OPERATIONS: dict[str, tuple[Callable[..., Value], Callable[..., Any]]] = {
    "add": (ex.add, lambda a, b, _: a + b),
    "subtract": (ex.subtract, lambda a, b, _: a - b),
    "multiply": (ex.multiply, lambda a, b, _: a * b),
    "floor_divide": (lambda a, b: ex.floor_divide(a, b), lambda a, _, c: a // c),
    "modulo": (ex.modulo, lambda a, _, c: a % c),
    "minimum": (ex.minimum, lambda a, b, _: min(a, b)),
    "maximum": (ex.maximum, lambda a, b, _: max(a, b)),
    "absolute": (lambda a, _: ex.absolute(a), lambda a, *_: abs(a)),
    "half": (lambda a, _: ex.truncate(ex.true_divide(a, 2)), lambda a, *_: int(a / 2)),
    "grown": (lambda a, _: ex.floor(ex.multiply(a, 1.7)), lambda a, *_: math.floor(a * 1.7)),
    "scaled": (lambda a, _: ex.truncate(ex.multiply(ex.real(a), 1.5)), lambda a, *_: int(a * 1.5)),
    "up": (lambda a, _: ex.ceiling(ex.true_divide(a, 3)), lambda a, *_: math.ceil(a / 3)),
    "root": (
        lambda a, _: ex.floor(ex.function("sqrt", ex.absolute(a))),
        lambda a, *_: math.floor(math.sqrt(abs(a))),
    ),
    "choose": (
        lambda a, b: ex.choose(ex.less(a, b), a, 3),
        lambda a, b, _: a if a < b else 3,
    ),
}
BY_NUMBER = ("floor_divide", "modulo")


def drawn(generator: random.Random, depth: int) -> Any:
    """Draw a tree of operations on symbols and numbers."""
    if depth == 0:
        return generator.choice(LEAVES)
    name = generator.choice(list(OPERATIONS))
    parts = drawn(generator, depth - 1), drawn(generator, generator.randrange(depth))
    return name, *parts, generator.randint(1, 7)


def built(tree: Any) -> Value:
    if not isinstance(tree, tuple):
        return symbol_value(tree) if isinstance(tree, Symbol) else tree
    name, a, b, number = tree
    return OPERATIONS[name][0](built(a), number if name in BY_NUMBER else built(b))


def computed(tree: Any, point: dict[Symbol, int]) -> Any:
    if not isinstance(tree, tuple):
        return point[tree] if isinstance(tree, Symbol) else tree
    name, a, b, number = tree
    return OPERATIONS[name][1](computed(a, point), computed(b, point), number)


@pytest.mark.parametrize("seed", range(8))
def test_expressions_are_what_python_computes(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(150):
        tree = drawn(generator, generator.randint(1, 4))
        expression = built(tree)
        low, high = bounds(expression)
        for _ in range(4):
            point = {symbol: generator.randint(1, 40) for symbol in SYMBOLS}
            wanted = computed(tree, point)
            assert ex.evaluate(expression, point, NUMBERS) == wanted
            arrays = {symbol: np.int64(value) for symbol, value in point.items()}
            assert ex.evaluate(expression, arrays, ARRAYS) == wanted
            assert low <= wanted <= high
            names = {symbol.name: value for symbol, value in point.items()}
            read = eval(text(expression), {"math": math}, names)  # noqa: S307  our own text
            assert read == wanted, text(expression)
        same = ex.substitute(expression, {H: w})
        point[H] = point[W]
        assert ex.evaluate(same, point, NUMBERS) == computed(tree, point)


def test_equal_sizes_are_equal_objects() -> None:
    half = ex.floor_divide
    assert half(ex.multiply(32, h), 2) == ex.multiply(16, h)
    assert half(half(ex.add(h, 1), 2), 2) == half(ex.add(h, 1), 4)
    # A convolution of stride 2 on 32 * h.
    assert ex.add(half(ex.subtract(ex.multiply(32, h), 1), 2), 1) == ex.multiply(16, h)
    area = ex.multiply(h, w)
    assert half(ex.multiply(ex.multiply(n, 64), area), area) == ex.multiply(64, n)
    rest = half(ex.add(ex.multiply(h, w), ex.multiply(h, 3)), ex.add(w, 3))
    assert rest == h
    assert ex.floor(ex.multiply(ex.real(h), 2.0)) == ex.multiply(2, h)
    assert ex.equal(ex.multiply(n, h), ex.multiply(n, w)) == ex.equal(h, w)
    assert ex.equal(ex.multiply(2, h), 7) is False
    assert ex.less(h, 41) is True
    assert isinstance(half(h, 2), Polynomial)


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        (ex.multiply(ex.multiply(21, h), w), "21*h*w"),
        (ex.multiply(h, h), "h**2"),
        (ex.add(ex.multiply(2, h), 1), "2*h+1"),
        (ex.floor_divide(ex.subtract(h, 1), 2), "(h+1)//2-1"),
        (ex.multiply(3, ex.floor_divide(h, 2)), "3*(h//2)"),
        (ex.modulo(h, 32), "h % 32"),
        (ex.equal(ex.modulo(h, 32), 0), "h % 32 == 0"),
        (ex.negation(ex.equal(ex.modulo(ex.add(h, 2), 32), 1)), "h % 32 != 31"),
        (ex.equal(ex.multiply(2, ex.floor_divide(ex.add(h, 1), 2)), h), "h % 2 == 0"),
        (ex.less(h, 8), "h <= 7"),
        (ex.less(3, h), "h >= 4"),
        (ex.equal(h, ex.multiply(2, w)), "h == 2*w"),
        (ex.equal(ex.multiply(2, w), h), "h == 2*w"),
        (ex.truncate(ex.multiply(h, 1.7)), "int(h*1.7)"),
        (ex.minimum(h, 5), "min(h, 5)"),
        (ex.conjunction(ex.less(h, 3), ex.equal(h, w)), "(h <= 2) and (h == w)"),
    ],
)
def test_text_is_the_users_notation(expression: Value, written: str) -> None:
    assert text(expression) == written


# -- proofs --------------------------------------------------------------------------------------


def test_conditions_are_proved_by_trying_all_sizes() -> None:
    box = {H: Range(1, 40), W: Range(5, 9)}
    assert counterexample(ex.less(0, h), box) is None
    differ = ex.negation(ex.equal(h, w))
    assert counterexample(differ, {H: Range(1, 4), W: Range(5, 9)}) is None
    assert counterexample(differ, {H: Range(1, 5), W: Range(5, 9)}) == {H: 5, W: 5}
    even = ex.equal(ex.modulo(h, 32), 0)
    assert counterexample(even, {H: Range(32, 320, 32)}) is None
    assert counterexample(even, {H: Range(32, 321)}) == {H: 33}
    assert counterexample(ex.conjunction(even, ex.less(0, h)), {H: Range(32, 64)}) == {H: 33}


def test_large_ranges_are_proved_by_bounds_or_refused() -> None:
    symbols = [Symbol(name, 1, 4096, order) for order, name in enumerate("abc")]
    a, b, c = map(symbol_value, symbols)
    box = {symbol: Range(1, 4096) for symbol in symbols}
    volume = ex.multiply(ex.multiply(a, b), c)
    assert counterexample(ex.less(ex.multiply(volume, 2), ex.add(1 << 37, a)), box) is None
    found = counterexample(ex.less(volume, 1 << 36), box)
    assert found is not None
    assert math.prod(found.values()) == 1 << 36
    # True for all sizes, but neither bounds nor 68 billion trials can say so.
    with pytest.raises(GuardError, match="cannot be proved"):
        counterexample(ex.negation(ex.equal(ex.modulo(volume, 4099), 0)), box)


def test_span_of_sizes() -> None:
    boxes = [{H: Range(2, 6, 2), W: Range(1, 1)}, {H: Range(20, 20), W: Range(3, 4)}]
    assert span(ex.multiply(h, w), boxes) == (2, 80)
    assert span(ex.subtract(h, ex.floor_divide(h, 2)), boxes) == (1, 10)
    assert span(7, boxes) == (7, 7)


# -- shape tensors -------------------------------------------------------------------------------


def network() -> tuple[Network, Any]:
    builder = create_builder()
    net = Network(backend.create_network(builder))
    tensor = net.raw.add_input("x", trt.float32, (-1, 4, -1))
    net.bind_symbol(H, Dimension("h", 1, 40, places=(Place(0, 0, 2, 1),)), [tensor])
    net.bind_symbol(W, Dimension("w", 1, 40, places=(Place(0, 2),)), [tensor])
    return net, builder


EMITTED = [
    ex.add(ex.multiply(2, h), 1),
    ex.subtract(ex.add(h, ex.multiply(2, w)), 3),
    ex.multiply(ex.multiply(h, h), w),
    ex.floor_divide(h, 2),
    ex.modulo(h, 3),
    ex.maximum(h, w),
    ex.minimum(h, 5),
    ex.absolute(ex.subtract(h, w)),
    ex.add(ex.floor_divide(ex.subtract(h, 1), 2), ex.modulo(ex.subtract(8, ex.modulo(w, 8)), 8)),
    ex.ceiling(ex.true_divide(h, 2)),
    # float32 gives 29 for 100 * 0.29, Python 28.
    ex.floor(ex.multiply(ex.add(ex.multiply(2, h), ex.multiply(w, 3)), 0.29)),
    ex.floor(ex.function("sqrt", ex.multiply(h, w))),
    ex.choose(ex.less(h, w), h, ex.multiply(w, 2)),
    ex.power(ex.add(w, 1), ex.minimum(h, 3)),
]


@pytest.mark.parametrize("expression", EMITTED, ids=text)
def test_expressions_are_emitted_as_exact_integers(expression: Value) -> None:
    net, builder = network()
    net.raw.mark_output(net._sizes.emit(expression))
    program = capture(net.raw)
    for first, second in ((2, 7), (5, 3), (1, 1), (35, 10), (40, 40)):
        (got,) = program.run([torch.zeros(2 * first + 1, 4, second)]).values()
        wanted = ex.evaluate(expression, {H: first, W: second}, NUMBERS)
        assert got.tolist() == [wanted], (first, second)
    del builder


def test_each_expression_is_emitted_once_and_a_dimension_is_read_as_it_is() -> None:
    net, builder = network()
    size = ex.add(ex.multiply(2, h), 1)
    net._sizes.emit(size)
    assert net.raw.num_layers == 2, "shape and slice"
    assert net._sizes.emit(ex.multiply(6, w)) is net._sizes.emit(ex.multiply(ex.multiply(w, 2), 3))
    layers = net.raw.num_layers
    net._sizes.emit(size)
    assert net.raw.num_layers == layers
    del builder


def test_a_table_that_would_be_too_large_is_refused() -> None:
    net, builder = network()
    large = Symbol("large", 1, 1 << 20, 3)
    net.bind_symbol(large, Dimension("large", 1, 1 << 20, places=(Place(0, 1),)), [None])
    with pytest.raises(UnsupportedArgumentError, match=r"int\(large\*0.3\).*declare fewer sizes"):
        net._sizes.emit(ex.floor(ex.multiply(symbol_value(large), 0.3)))
    with pytest.raises(ConversionError, match="not a dimension of an input"):
        net._sizes.emit(n)
    del builder


# -- fake results --------------------------------------------------------------------------------

IMAGE = (3, 8, 6, 10)

FAKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + x,
    "add-number": lambda x: x + 1,
    "add-broadcast": lambda x: x + torch.ones(8, 1, 1),
    "add-row": lambda x: x + x[:1, :, :, :1],
    "compare": lambda x: x > 0,
    "divide-integers": lambda x: x.int() / 2,
    "mixed": lambda x: x * torch.ones((), dtype=torch.float64),
    "half": lambda x: x.half() * 2.0,
    "permuted": lambda x: x.permute(0, 2, 3, 1).relu(),
    "channels-last": lambda x: x.to(memory_format=torch.channels_last) * x,
    "gelu": F.gelu,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked": lambda x: x.masked_fill(x > 0, 1.0),
    "clamp": lambda x: x.clamp(0, 1),
    "round": lambda x: x.round(decimals=1),
    "clone": lambda x: x.transpose(1, 2).clone(),
    "contiguous": lambda x: x.transpose(1, 2).clone(memory_format=torch.contiguous_format),
    "softmax": lambda x: x.transpose(1, 3).softmax(1),
    "log-softmax": lambda x: x.permute(1, 0, 2, 3).log_softmax(2),
    "cat": lambda x: torch.cat([x, x[:, :2]], 1),
    "cat-dynamic": lambda x: torch.cat([x, x], -1),
    "cat-promotes": lambda x: torch.cat([x, x.int()], 0),
    "permute": lambda x: x.permute(3, 0, -3, 2),
    "transpose": lambda x: x.transpose(-1, 1),
    "t": lambda x: x[0, 0].t(),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unsqueeze-front": lambda x: x.transpose(0, 2).unsqueeze(0),
    "unsqueeze-middle": lambda x: x.unsqueeze(2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze-all": lambda x: x[:, :1].unsqueeze(0).squeeze((0, 2)),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "expand-new": lambda x: x.expand(2, *x.shape),
    "expand-dynamic": lambda x: torch.ones(1, 8, 1, 1).expand(x.shape),
    "select": lambda x: x[:, 2],
    "select-end": lambda x: x.select(-1, -1),
    "select-dynamic": lambda x: x.select(2, x.shape[2] // 2),
    "slice": lambda x: x[:, 1:7:2],
    "slice-end": lambda x: x[..., -3:-1],
    "slice-beyond": lambda x: x[:, :, :4, 2:100],
    "slice-dynamic": lambda x: x[:, :, : x.shape[2] // 2],
    "slice-strided": lambda x: x[..., ::3],
    "view": lambda x: x.view(x.shape[0], 8, -1),
    "view-split": lambda x: x.view(-1, 2, 4, x.shape[2], x.shape[3]),
    "view-of-transposed": lambda x: x.transpose(1, 2).view(x.shape[0], -1, 4, 2, x.shape[3]),
    "view-ones": lambda x: x.view(-1, 1, 8, 1, x.shape[2], x.shape[3]),
    "alias": lambda x: x.detach(),
    "new": lambda x: x.new_empty((x.shape[0], 2, x.shape[3])),
    "like": lambda x: torch.empty_like(x.transpose(1, 3)),
}


def traced(sizes: Sequence[int]) -> tuple[DynamicSizes, torch.Tensor, list[Symbol]]:
    dimensions = [
        Dimension(name, 1, 12, places=(Place(0, dim),))
        for name, dim in (("batch", 0), ("h", 2), ("w", 3))
    ]
    box = {d.name: Range(1, 12) for d in dimensions}
    dynamic = DynamicSizes(dimensions, [box], ["x"], lambda: None)
    with dynamic.mode:
        x = torch.empty(dynamic.shape(0, sizes))
    return dynamic, x, list(dynamic._dimensions)


@pytest.mark.parametrize("name", FAKED)
def test_fake_results_have_the_sizes_and_strides_of_real_ones(name: str) -> None:
    function = FAKED[name]
    dynamic, x, symbols = traced(IMAGE)
    with dynamic.mode, sizes_of_one_are_ordinary(), enable_python_dispatcher():
        result = function(x)
    for sizes in (IMAGE, (5, 8, 9, 4), (2, 8, 12, 12)):
        point = dict(zip(symbols, (sizes[0], sizes[2], sizes[3]), strict=True))
        wanted = function(torch.zeros(sizes))
        assert result.dtype == wanted.dtype
        for got, expected in ((result.shape, wanted.shape), (result.stride(), wanted.stride())):
            values = [ex.evaluate(value_of(size), point, NUMBERS) for size in got]
            assert values == list(expected), sizes
    # A view shares its memory with its source, and nothing else does.
    real = torch.zeros(IMAGE)
    shares = function(real).untyped_storage().data_ptr() == real.untyped_storage().data_ptr()
    assert (result.untyped_storage()._cdata == x.untyped_storage()._cdata) == shares


@pytest.mark.parametrize("name", FAKED)
def test_fake_results_decide_nothing_that_does_not_hold(name: str) -> None:
    dynamic, x, _ = traced(IMAGE)
    with dynamic.mode, sizes_of_one_are_ordinary(), enable_python_dispatcher():
        FAKED[name](x)
    if name not in ("slice-end", "slice-beyond", "slice-dynamic"):
        dynamic.prove(False, ())


# What PyTorch's Python code asks of sizes and strides, and what it is told: what holds from 2 on.
QUESTIONS: dict[str, tuple[Callable[[Any, Any], Any], bool | None]] = {
    "one": (lambda h, w: h == 1, False),
    "not-one": (lambda h, w: h != 1, True),
    "product": (lambda h, w: h * w == 1, False),
    "stride": (lambda h, w: h * w > 1, True),
    "least-stride": (lambda h, w: w > 1, True),
    "less-stride": (lambda h, w: w < h * w, True),
    "multiple": (lambda h, w: 3 * w <= 3, False),
    "three": (lambda h, w: w == 3, None),
    "each-other": (lambda h, w: h < w, None),
}


@pytest.mark.parametrize("example", [1, 4])
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_that_mind_no_size_of_one(name: str, example: int) -> None:
    question, wanted = QUESTIONS[name]
    dynamic, x, _ = traced((2, 8, example, example))
    asked = question(x.shape[2], x.shape[3])
    answer = asked.node.guard_size_oblivious("", 0)  # what the function of this name calls
    if wanted is not None:
        assert answer is wanted
        dynamic.prove(False, ())
        # An error is told with the sizes of the example for which the answer is not so.
        assert bool(dynamic.assumed) == (example == 1)
        return
    # Decided as for the example, which is proved or refused.
    assert answer is bool(hint_of(asked))
    with pytest.raises(GuardError):
        dynamic.prove(False, ())


def test_whole_ratios_of_sizes() -> None:
    _, x, _ = traced(IMAGE)
    height = x.shape[2]
    assert times(height * 4, height) == 4
    assert times(height, height * 4) is None
    assert times(height * 4 + 1, height) is None
    assert times(8, 4) == 2
    assert times(8, 0) is None
