"""Operators that PyTorch computes inside an engine: the plugins, and what they are made of."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import t2t
from t2t import backend, registry
from t2t.backend import trt
from t2t.errors import (
    CheckpointError,
    EngineError,
    RegistrationError,
    UnsupportedArgumentError,
    UnsupportedLayerError,
    UnsupportedOperatorError,
)
from t2t.io import Place
from t2t.network import Network
from t2t.operator_data import find_operator
from t2t.plugins import classes
from t2t.plugins.call import PluginCall
from t2t.plugins.classes import NAME, NAMESPACE, VERSION, make_plugin, register_creator
from t2t.plugins.sizes import InputSizes, to_dimension
from t2t.reference import layer as reference
from t2t.sizes import expressions as ex
from t2t.sizes.arithmetic import NUMBERS
from t2t.sizes.polynomials import symbol_value
from t2t.sizes.terms import Symbol
from tests.plugins import (
    DEVICE,
    ExprBuilder,
    Plugins,
    call,
    check,
    description,
    enqueue,
    output_shapes,
    revived,
    shape_of,
)

Tensor = torch.Tensor
SPACE = "t2t_test_plugins"


@torch.library.custom_op(f"{SPACE}::swish", mutates_args=())
def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@torch.library.custom_op(f"{SPACE}::pairs", mutates_args=())
def pairs(x: Tensor) -> Tensor:
    """Sums of neighbours in the last dimension; an odd last one stands alone."""
    padded = torch.nn.functional.pad(x, (0, x.shape[-1] % 2))
    return padded.unflatten(-1, (-1, 2)).sum(-1)


@torch.library.custom_op(f"{SPACE}::peaks", mutates_args=())
def peaks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, places = x.max(-1)
    return values, places, x > 0


@torch.library.custom_op(f"{SPACE}::around", mutates_args=())
def around(x: Tensor, before: int, after: int) -> Tensor:
    """Zeros around the first dimension."""
    return torch.cat([x.new_zeros(before, *x.shape[1:]), x, x.new_zeros(after, *x.shape[1:])])


@torch.library.custom_op(f"{SPACE}::every", mutates_args=())
def every(
    x: Tensor,
    flag: bool,
    count: int,
    factor: float,
    name: str,
    sizes: Sequence[int],
    factors: Sequence[float],
    flags: Sequence[bool],
    dtype: torch.dtype,
    limit: int | None = None,
    other: Tensor | None = None,
    *,
    scale: float = 1.0,
) -> Tensor:
    result = (x if flag else -x) * factor + count + len(name) + sum(sizes) + sum(flags)
    result = result + sum(y for y in factors if math.isfinite(y)) * scale
    result = result if limit is None else result.clamp(max=limit)
    return (result if other is None else result + other).to(dtype)


@torch.library.custom_op(f"{SPACE}::joined", mutates_args=())
def joined(xs: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(xs))


@torch.library.custom_op(f"{SPACE}::liar", mutates_args=())
def liar(x: Tensor) -> Tensor:
    return x.double() if x.shape[0] == 2 else x[:1].clone()


@swish.register_fake
def _(x: Tensor, beta: float = 1.0) -> Tensor:
    return torch.empty_like(x)


@pairs.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], (x.shape[-1] + 1) // 2)


@peaks.register_fake
def _(x: Tensor) -> Any:
    least = x.new_empty(x.shape[:-1])
    return least, least.new_empty(least.shape, dtype=torch.int64), torch.empty_like(x).bool()


@around.register_fake
def _(x: Tensor, before: int, after: int) -> Tensor:
    return x.new_empty(x.shape[0] + before + after, *x.shape[1:])


@every.register_fake
def _(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    del kwargs
    return torch.empty_like(x, dtype=args[7])


@joined.register_fake
def _(xs: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(xs))


@liar.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Plugins last for one test."""
    before = dict(registry.plugins)
    yield
    registry.plugins.clear()
    registry.plugins.update(before)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Networks take plugin layers."""
    made = Plugins()
    real = backend.has_layer
    monkeypatch.setattr(backend, "has_layer", lambda m: m == "add_plugin_v3" or real(m))
    monkeypatch.setattr(Network, "add_plugin_v3", lambda *args: made.add(*args))
    return made


def name(operator: str) -> str:
    return f"{SPACE}::{operator}"


# -- in a network --------------------------------------------------------------------------------


def test_an_operator_of_a_library_is_a_plugin(plugins: Plugins) -> None:
    t2t.plugin(name("swish"))

    def model(x: Tensor) -> Tensor:
        return torch.relu(torch.ops.t2t_test_plugins.swish(x + 1, 0.5)) * 2

    check(plugins, model, [torch.randn(2, 3)], [torch.randn(2, 3)])
    [layer] = plugins.layers
    assert layer.attributes["call"]["operator"] == name("swish")
    assert layer.attributes["call"]["args"] == [{"tensor": 0}, 0.5]


@pytest.mark.parametrize(
    ("operator", "function", "x"),
    [
        ("aten::special_bessel_j0", torch.special.bessel_j0, torch.rand(3, 4) * 9),
        ("aten::special_i1", torch.special.i1, torch.rand(5)),
        ("aten::cumsum", lambda x: x.cumsum(1), torch.randn(2, 5)),
        ("aten::sort", lambda x: x.sort(-1, descending=True), torch.randn(3, 6)),
        ("aten::sort.stable", lambda x: x.sort(stable=True, dim=0), torch.randint(4, (6, 2))),
        ("aten::tril", lambda x: x.tril(-1), torch.randn(4, 4)),
        ("aten::any", lambda x: (x > 0).any(), torch.randn(4)),
        ("aten::relu", lambda x: (x + 0).relu_(), torch.randn(4)),
        ("aten::_to_copy", lambda x: x.to(torch.bfloat16), torch.randn(4)),
        ("aten::bincount", None, None),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_operators_of_pytorch(plugins: Plugins, operator: str, function: Any, x: Any) -> None:
    t2t.plugin(operator)
    if function is None:
        with pytest.raises(UnsupportedOperatorError, match="depends on the data"):
            t2t.to_network(torch.bincount, [torch.tensor([1, 2])])
        return

    def model(x: Tensor) -> Any:
        result = function(x + 1)
        return result if isinstance(result, Tensor) else tuple(result)

    check(plugins, model, [x], [x.flip(0)])
    assert {x.attributes["call"]["operator"].split(".")[0] for x in plugins.layers} == {
        operator.split(".")[0]
    }


def test_several_results_and_unread_ones(plugins: Plugins) -> None:
    t2t.plugin(name("peaks"))
    check(plugins, lambda x: peaks(x * 2), [torch.randn(4, 5)], [torch.randn(4, 5)])
    check(plugins, lambda x: peaks(x * 2)[1] + 1, [torch.randn(4, 5)], [torch.randn(4, 5)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64])
def test_types_are_the_models(plugins: Plugins, dtype: torch.dtype) -> None:
    t2t.plugin(name("joined"))
    x = torch.arange(6).reshape(3, 2).to(dtype)
    conversion = check(plugins, lambda a, b: joined([a, b, a]) + 1, [x, x + 2], [x * 3, x])
    assert conversion.network.plugins == {name("joined")}
    assert len(plugins.layers[0].inputs) == 2


@pytest.mark.parametrize("options", [{"fp16": True}, {"bf16": True}], ids=str)
def test_half_precision_stops_at_a_plugin(plugins: Plugins, options: dict[str, bool]) -> None:
    from t2t.precision import Policy

    t2t.plugin(name("swish"))
    low = torch.float16 if "fp16" in options else torch.bfloat16
    model = nn.Sequential(nn.Linear(4, 8), nn.Identity()).eval()
    conversion = t2t.to_network(
        lambda x: swish(model(x), 2.0) @ model[0].weight, [torch.randn(2, 4)], policy=Policy(low)
    )
    [layer] = plugins.layers
    assert layer.types == ("FLOAT",)
    assert layer.attributes["call"]["inputs"] == ["float32"]
    x = torch.randn(2, 4)
    got = plugins.program(conversion).run([x.to(DEVICE)])["output"].cpu()
    torch.testing.assert_close(got, swish(model(x), 2.0) @ model[0].weight, rtol=3e-2, atol=3e-2)


def test_a_half_model_has_half_plugins(plugins: Plugins) -> None:
    t2t.plugin(name("swish"))
    check(plugins, lambda x: swish(x * 2, 0.25), [torch.randn(3, 3).half()])
    assert plugins.layers[0].types == ("HALF",)


def test_attributes_of_all_types(plugins: Plugins) -> None:
    t2t.plugin(name("every"))
    weight = torch.randn(2, 3)

    def model(x: Tensor) -> Tensor:
        one = every(
            x, True, 3, 0.5, "abc", [1, 2], [1.5, -math.inf], [True, False], torch.float16, 4
        )
        two = every(
            x, False, -1, 2.0, "", [], [math.nan], [], torch.float32, other=weight, scale=3.0
        )
        return one.float() + two

    check(plugins, model, [torch.randn(2, 3)], [torch.randn(2, 3)])
    args = plugins.layers[0].attributes["call"]["args"]
    assert args[1:] == [
        True,
        3,
        0.5,
        "abc",
        [1, 2],
        [1.5, {"float": "-inf"}],
        [True, False],
        {"dtype": "float16"},
        4,
    ]
    # The weight is in the engine.
    assert len(plugins.layers[1].inputs) == 2


def test_a_function_runs_in_place_of_the_operator(plugins: Plugins) -> None:
    calls = []

    @t2t.plugin(name("swish"))
    def fast_swish(x: Tensor, beta: float = 1.0) -> Tensor:
        calls.append(beta)
        return x * torch.sigmoid(x * beta)

    check(plugins, lambda x: swish(x * 2), [torch.randn(2, 3)])
    assert calls == [1.0]  # the reference executor has run the operator itself


def test_a_function_may_write_its_results(plugins: Plugins) -> None:
    addresses = []

    @t2t.plugin(name("peaks"))
    def fast_peaks(x: Tensor, *, out: list[Tensor]) -> None:
        addresses.append([y.data_ptr() for y in out])
        torch.max(x, -1, out=out[:2])
        torch.gt(x, 0, out=out[2])

    check(plugins, lambda x: peaks(x * 2), [torch.randn(2, 3)])
    assert len(addresses[0]) == 3

    @t2t.plugin(name("swish"))
    def fast_swish(x: Tensor, beta: float = 1.0, *, out: Tensor) -> None:
        torch.mul(x, torch.sigmoid(x * beta), out=out)

    check(plugins, lambda x: swish(x * 2, 3.0), [torch.randn(2, 3)])


# -- dynamic sizes -------------------------------------------------------------------------------


def test_sizes_of_the_inputs(plugins: Plugins) -> None:
    t2t.plugin(name("pairs"))
    ranges = [{0: (1, 8), 1: (1, 9)}]
    inputs = [[torch.randn(n, w)] for n, w in [(2, 5), (3, 8), (1, 1), (8, 9)]]
    check(plugins, lambda x: pairs(x) * 2, *inputs, dynamic_shapes=ranges)
    [layer] = plugins.layers
    assert layer.shapes == ((-1, -1),)


def test_sizes_of_sizes(plugins: Plugins) -> None:
    """Halved twice, and joined: expressions of the model's sizes, found in the plugin's inputs."""
    t2t.plugin(name("pairs"))
    t2t.plugin(name("joined"))
    ranges = [{0: (1, 8), 1: (4, 40)}]

    def model(x: Tensor) -> Tensor:
        y = pairs(pairs(x * 2))
        return joined([y, y + 1, y]) - 1

    inputs = [[torch.randn(n, w)] for n, w in [(2, 9), (3, 8), (8, 40), (1, 5)]]
    check(plugins, model, *inputs, dynamic_shapes=ranges)


def test_derived_dimensions(plugins: Plugins) -> None:
    t2t.plugin(name("pairs"))
    half = torch.export.Dim("half", min=2, max=9)
    inputs = [[torch.randn(2, w)] for w in (6, 4, 18)]
    check(plugins, lambda x: pairs(x) + 1, *inputs, dynamic_shapes=[{1: 2 * half}])


def test_a_size_that_stands_in_no_input(plugins: Plugins) -> None:
    """The plugin reads n * 3 only; n comes with the network's input."""
    t2t.plugin(name("around"))

    def model(x: Tensor) -> Tensor:
        n, m = x.shape
        return around((x * 2).flatten(), n, 2 * m)

    inputs = [[torch.randn(n, m)] for n, m in [(2, 3), (5, 2), (1, 1)]]
    check(plugins, model, *inputs, dynamic_shapes=[{0: (1, 8), 1: (1, 4)}])
    [layer] = plugins.layers
    assert layer.inputs[1] == "x"


def test_an_equal_size_is_read_where_it_stands(plugins: Plugins) -> None:
    t2t.plugin(name("swish"))
    ranges = [{0: (1, 8), 1: (1, 4)}]
    inputs = [[torch.randn(n, m)] for n, m in [(2, 3), (5, 2)]]
    check(plugins, lambda x: swish((x * 2).flatten()), *inputs, dynamic_shapes=ranges)
    [layer] = plugins.layers
    assert len(layer.inputs) == 1
    assert layer.attributes["call"]["outputs"][0][1] == [
        {"tensor": 0, "dim": 0, "factor": 1, "offset": 0}
    ]


def test_numbers_that_are_computed_of_sizes(plugins: Plugins) -> None:
    t2t.plugin(name("every"))

    def model(x: Tensor) -> Tensor:
        n = x.shape[0]
        return every(x + 1, True, n * n, 0.5, "", [n, 2], [], [n > 3], torch.float32)

    with pytest.raises(t2t.errors.GuardError):  # a truth value in a list is decided
        t2t.to_network(model, [torch.randn(4, 2)], dynamic_shapes=[{0: (1, 8)}])

    def better(x: Tensor) -> Tensor:
        n = x.shape[0]
        return every(x + 1, True, n * n // 2, 0.5, "", [n, 2 * n], [], [], torch.float32)

    inputs = [[torch.randn(n, 2)] for n in (4, 3, 8, 1)]
    check(plugins, better, *inputs, dynamic_shapes=[{0: (1, 8)}])


def test_subtraction_never_divides_negative_numbers(plugins: Plugins) -> None:
    t2t.plugin(name("around"))

    def model(x: Tensor) -> Tensor:
        n = x.shape[0]
        return around(x * 2, (3 - n) // 2 + 5, -(-n // 3))

    inputs = [[torch.randn(n, 2)] for n in (4, 3, 8, 1, 9)]
    check(plugins, model, *inputs, dynamic_shapes=[{0: (1, 9)}])


HEIGHT, WIDTH = Symbol("h", 1, 9, 0), Symbol("w", 2, 7, 1)


def _numbers() -> st.SearchStrategy[Any]:
    """Expressions of two sizes, as arithmetic in a model makes them."""
    leaves = st.sampled_from([*map(symbol_value, (HEIGHT, WIDTH)), -3, -1, 0, 1, 2, 5])
    binary = (ex.add, ex.subtract, ex.multiply, ex.minimum, ex.maximum)

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        two = st.builds(lambda f, a, b: f(a, b), st.sampled_from(binary), inner, inner)
        divide = (ex.floor_divide, ex.modulo)
        one = st.builds(
            lambda f, a, b: f(a, b), st.sampled_from(divide), inner, st.sampled_from([1, 2, 3, 7])
        )
        return two | one

    return st.recursive(leaves, grow, max_leaves=6)


@given(_numbers())
@settings(max_examples=150)
def test_expressions_of_sizes_have_pythons_values(value: Any) -> None:
    places = {HEIGHT: Place(0, 1, 3, -2), WIDTH: Place(1, 0)}
    data = InputSizes(lambda symbol: places[symbol]).dimension(value)
    data = json.loads(json.dumps(data))
    inputs = [shape_of(0, [-1, -1]), shape_of(1, [-1])]
    size = to_dimension(data, inputs, ExprBuilder())
    for h, w in itertools.product(range(1, 10), range(2, 8)):
        want = ex.evaluate(value, {HEIGHT: h, WIDTH: w}, NUMBERS)
        assert size.compute([(1, 3 * h - 2), (w,)]) == want


def test_a_size_that_tensorrt_cannot_compute(plugins: Plugins) -> None:
    t2t.plugin(name("around"))

    def model(x: Tensor) -> Tensor:
        return around(x, torch.sym_int(x.shape[0] * 1.7), 0)

    with pytest.raises(UnsupportedArgumentError, match=r"::around: the size .* 'ratio'.* in test_"):
        t2t.to_network(model, [torch.randn(4, 2)], dynamic_shapes=[{0: (1, 8)}])


def test_types_that_a_plugin_cannot_have(plugins: Plugins) -> None:
    t2t.plugin(name("joined"))
    for dtype in (torch.uint8, torch.float64):
        with pytest.raises((UnsupportedArgumentError, UnsupportedOperatorError), match="supported"):
            t2t.to_network(lambda x, dtype=dtype: joined([x.to(dtype)]).float(), [torch.ones(2, 2)])


def test_pictures_of_networks_with_plugins(plugins: Plugins) -> None:
    t2t.plugin(name("swish"))
    conversion = check(plugins, lambda x: swish(x * 2) + 1, [torch.randn(2, 3)])
    program = plugins.program(conversion)
    for text in (str(program), program.to_dot(), program.to_html(), program.to_model_explorer()):
        assert "plugin" in text.lower()


def test_a_layer_is_read_by_its_plugin() -> None:
    made = make_plugin(call("aten::tanh", [torch.float32], [torch.float32]))
    read = reference.spec_of("PLUGIN_V3", "x", "").read
    assert read is not None
    found = read(SimpleNamespace(name="x", plugin=made))
    assert PluginCall.from_text(json.dumps(found["call"])).operator == "aten::tanh"
    with pytest.raises(UnsupportedLayerError, match="somebody else's"):
        read(SimpleNamespace(name="x", plugin=object()))


def test_what_is_converted_knows_its_plugins(plugins: Plugins) -> None:
    t2t.plugin(name("swish"))

    def model(x: Tensor) -> Tensor:
        return swish(x * 2) + 1

    module = t2t.convert(model, [torch.randn(2, 3)], keep_program=False)
    assert module.details["plugins"] == [name("swish")]
    assert len(plugins.layers) == 1
    with pytest.raises(EngineError, match=r"swish inside this engine.*C\+\+"):
        module.export("never")

    def with_step(x: Tensor) -> Tensor:
        y = swish(x * 2) + 1
        return y.sort(-1).values * 2

    stay = {"partial": True, "torch_executed_ops": ["aten::sort"], "min_block_size": 1}
    cut = t2t.convert(with_step, [torch.randn(2, 3)], **stay)
    assert cut._filled().partition is not None
    [first, *_] = cut._filled().partition.engines
    assert first.details["plugins"] == [name("swish")]
    assert [part.in_engine for part in cut.parts][:2] == [True, False]


# -- where there are none ------------------------------------------------------------------------


def test_without_plugins_the_operator_is_refused() -> None:
    t2t.plugin(name("swish"))

    def model(x: Tensor) -> Tensor:
        return swish(x + 1) * 2

    with pytest.raises(UnsupportedOperatorError) as caught:
        t2t.convert(model, [torch.randn(2)])
    text = str(caught.value)
    assert text.startswith(f"{name('swish')}: ")
    assert "partial=True" in text
    assert 'backend="tensorrt"' in text
    assert "test_plugins.py" in text


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_without_plugins_the_operator_is_a_step() -> None:
    @t2t.plugin(name("swish"))
    def never(x: Tensor, beta: float = 1.0) -> Tensor:
        raise AssertionError("it is of an engine")

    def model(x: Tensor) -> Tensor:
        return (swish((x * 2 + 1).exp()) + 1).exp() * 2

    module = t2t.convert(model, [torch.rand(3)], partial=True, min_block_size=1)
    assert [part.in_engine for part in module.parts] == [True, False, True]
    for x in (torch.rand(3), torch.rand(3)):
        torch.testing.assert_close(module(x), model(x))


def test_a_plugin_goes_before_a_converter(plugins: Plugins) -> None:
    def convert_swish(net: Any, x: Tensor, beta: float = 1.0) -> Any:
        raise AssertionError("the plugin was asked for")

    t2t.converter(name("swish"))(convert_swish)
    try:
        t2t.plugin(name("swish"))
        check(plugins, lambda x: swish(x * 2), [torch.randn(2)])
        assert t2t.supported_operators()[name("swish")] == "t2t.plugins.registration.add_plugin"
        t2t.unregister(name("swish"))
    finally:
        with pytest.raises(RegistrationError, match="no converter or formula of yours"):
            t2t.unregister(name("swish"))


# -- registration --------------------------------------------------------------------------------


def test_names_that_can_be_no_plugin() -> None:
    for wrong, text in [
        ("aten::no_such_operator", "no operator has the name"),
        ("torch.relu", "a Python function"),
        ("aten::relu_", "does not return a tensor of its own"),
        ("aten::transpose", "a view"),
        ("aten::rand_like", "random numbers"),
        ("aten::softmax.int", "takes it apart"),
        ("aten::equal", "does not return a tensor"),
        ("aten::from_file", "side effects"),
    ]:
        with pytest.raises(RegistrationError, match=text):
            t2t.plugin(wrong)
    with pytest.raises(RegistrationError, match="takes the name"):
        t2t.plugin(swish)  # type: ignore[arg-type]
    assert not registry.plugins


def test_functions_that_do_not_fit() -> None:
    for function in (
        lambda x: x,
        lambda x, beta=2.0: x,
        lambda x, beta=1.0, *, more: x,
    ):
        with pytest.raises(RegistrationError):
            t2t.plugin(name("swish"))(function)
        assert not registry.plugins


def test_registering_twice() -> None:
    t2t.plugin(name("swish"))
    t2t.plugin(name("swish"))

    def first(x: Tensor, beta: float = 1.0) -> Tensor:
        return x

    def second(x: Tensor, beta: float = 1.0) -> Tensor:
        return x

    t2t.plugin(name("swish"))(first)
    t2t.plugin(name("swish"))(first)
    t2t.plugin(name("swish"))
    with pytest.raises(RegistrationError, match=r"by .*first; pass override=True"):
        t2t.plugin(name("swish"))(second)
    assert registry.plugins[name("swish")].implementation is first
    t2t.plugin(name("swish"), override=True)(second)
    assert registry.plugins[name("swish")].implementation is second


def test_the_creator_is_registered_once() -> None:
    creator = register_creator()
    assert register_creator() is creator
    assert trt.get_plugin_registry().get_creator(NAME, VERSION, NAMESPACE) is creator
    assert [field.name for field in creator.field_names] == ["call"]
    # As when t2t is imported again.
    assert classes._creator.__wrapped__(backend.name()) is creator


# -- the plugin itself ---------------------------------------------------------------------------


def test_what_tensorrt_asks() -> None:
    made = make_plugin(call("aten::tanh", [torch.float32], [torch.float32]))
    for kind in ("CORE", "BUILD", "RUNTIME"):
        assert made.get_capability_interface(getattr(trt.PluginCapabilityType, kind)) is made
    assert (made.plugin_name, made.plugin_version, made.plugin_namespace) == (
        NAME,
        VERSION,
        NAMESPACE,
    )
    assert made.num_outputs == 1
    assert made.metadata_string == "aten::tanh"
    desc = description(torch.float32, (2, 3))
    assert made.configure_plugin([desc], [desc]) is None
    assert made.clone().call == made.call
    assert isinstance(made, trt.IPluginV3)
    assert output_shapes(made, [(-1, 4)])[0][1].fixed


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1, 1)], ids=str)
def test_memory_is_read_and_written_where_it_is(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    made = revived(make_plugin(call("aten::neg", [dtype], [dtype])))
    for start in (1, 5):
        x = torch.arange(start, start + math.prod(shape)).reshape(shape).to(dtype).to(DEVICE)
        [y] = enqueue(made, x)
        assert torch.equal(y, -x)
        assert y.dtype == dtype


def test_truth_values_and_points() -> None:
    made = revived(make_plugin(call("aten::logical_not", [torch.bool], [torch.bool])))
    x = torch.tensor([[True, False]], device=DEVICE)
    assert enqueue(made, x)[0].tolist() == [[False, True]]
    point = revived(make_plugin(call("aten::neg", [torch.float32], [(torch.float32, [])])))
    assert enqueue(point, torch.tensor(2.5, device=DEVICE))[0].item() == -2.5


def test_an_operator_that_can_write_its_results_copies_nothing() -> None:
    made = revived(make_plugin(call("aten::neg", [torch.float32], [torch.float32])))
    seen = []
    real = torch.ops.aten.copy_.default

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        enqueue(made, torch.ones(2, 2, device=DEVICE))
    assert torch.ops.aten.neg.out in seen
    assert real not in seen


def test_the_builder_runs_indices_of_zero() -> None:
    """A builder times plugins on whatever is in memory, which may be no index at all."""
    args = [{"tensor": 0}, 0, {"tensor": 1}]
    sizes = [{"tensor": 1, "dim": 0, "factor": 1, "offset": 0}]
    kinds = [torch.float32, torch.int64]
    made = make_plugin(call("aten::index_select", kinds, [(torch.float32, sizes)], *args))
    x = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    wild = torch.tensor([2, 1 << 40], device=DEVICE)
    for plugin in (made, made.clone(), revived(made, building=True)):
        assert enqueue(plugin, x, wild)[0].tolist() == [1.0, 1.0]
    assert enqueue(revived(made), x, wild.clamp(max=1))[0].tolist() == [2.0, 2.0]


def test_an_error_in_an_operator_is_told() -> None:
    made = revived(make_plugin(call("aten::tanh", [torch.float32], [(torch.float32, [2, 3])])))
    backend.forget_errors()
    with pytest.raises(EngineError, match="by its fake implementation"):
        enqueue(made, torch.ones(2, 2, device=DEVICE))
    with pytest.raises(RuntimeError):  # more than there is memory for
        enqueue(made, torch.ones(3, 3, device=DEVICE))
    assert "the plugin aten::tanh failed" in backend.error_text()
    assert enqueue(made, torch.zeros(2, 3, device=DEVICE))[0].tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("rows", [2, 3])
def test_an_operator_that_is_not_as_its_fake_says(rows: int) -> None:
    made = make_plugin(call(name("liar"), [torch.float32], [torch.float32]))
    with pytest.raises(EngineError, match="by its fake implementation"):
        enqueue(made, torch.ones(rows, 2, device=DEVICE))


def test_autocast_and_gradients_of_the_caller_do_not_matter() -> None:
    args = [{"tensor": 0}, {"tensor": 0}]
    made = make_plugin(call("aten::mm", [torch.float32], [torch.float32], *args))
    x = torch.full((2, 2), 1 / 3, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        [y] = enqueue(made, x)
    assert torch.equal(y, x @ x)


# -- what a plan holds ---------------------------------------------------------------------------


def test_a_call_is_text_and_back() -> None:
    made = call("aten::clamp", [torch.float32], [torch.float32], {"tensor": 0}, -1, max=math.pi)
    again = PluginCall.from_text(made.to_text())
    assert again == PluginCall(*(getattr(made, f) for f in ("operator",)), list(made.args),
                               made.kwargs, made.inputs, made.outputs)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"operator": "t2t_test_plugins::gone"}, "torch has no operator"),
        ({"operator": "aten::relu_"}, "side effects"),
        ({"operator": "os::system"}, "torch has no operator"),
        ({"args": [{"tensor": 1}]}, "damaged"),
        ({"args": [{"code": "x"}]}, "has the argument"),
        ({"inputs": ["float31"]}, "damaged"),
        ({"inputs": ["save"]}, "damaged"),
        ({"outputs": []}, "damaged"),
        ({"outputs": [["float32", [["system", 1]]]]}, "has the size"),
        ({"outputs": None}, "damaged"),
    ],
    ids=str,
)
def test_damaged_calls(change: dict[str, Any], text: str) -> None:
    data = json.loads(call("aten::tanh", [torch.float32], [torch.float32]).to_text())
    with pytest.raises(CheckpointError, match=text):
        PluginCall.from_text(json.dumps({**data, **change}))


def test_the_creator_says_what_is_missing() -> None:
    creator = register_creator()
    phase = trt.TensorRTPhase.RUNTIME
    backend.forget_errors()
    with pytest.raises(CheckpointError, match="of no operator"):
        creator.create_plugin(NAME, trt.PluginFieldCollection([]), phase)
    assert "no plugin can be made" in backend.error_text()


def test_strings_are_for_operators_that_the_user_knows() -> None:
    with pytest.raises(CheckpointError, match=r"t2t\.plugin\('t2t_test_plugins::every'\)"):
        find_operator(name("every"))
    t2t.plugin(name("every"))
    assert find_operator(name("every"))


def test_a_checkpoint_names_its_operators(plugins: Plugins) -> None:
    t2t.plugin(name("swish"))
    conversion = check(plugins, lambda x: swish(x * 2), [torch.randn(2)])
    program = plugins.program(conversion)
    plan = torch.frombuffer(bytearray(b"ftrt" + bytes(60)), dtype=torch.uint8)
    module = t2t.TRTModule(plan, conversion.signature, program, plugins=conversion.network.plugins)
    assert module.details["plugins"] == [name("swish")]
    state = module.state_dict()
    again = t2t.TRTModule()
    again.load_state_dict(state)
    x = torch.randn(2)
    with pytest.warns(t2t.ReferenceExecutionWarning):
        torch.testing.assert_close(again(x), swish(x * 2))
    gone = t2t.TRTModule(plan, conversion.signature, plugins=[name("gone")])
    with pytest.raises(CheckpointError, match="has no operator 't2t_test_plugins::gone'"):
        t2t.TRTModule().load_state_dict(gone.state_dict())
