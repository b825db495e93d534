"""Registering converters, and which of them is used."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import library, linalg, nn
from torch.linalg import matrix_exp

import t2t
from t2t import registry
from t2t.errors import ConversionError, RegistrationError, UnsupportedArgumentError
from t2t.lowering import to_network
from t2t.reference import capture
from tests.cases import OpCase, run_case, uniform

X = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4)


def shifted(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return torch.special.bessel_j0(x) * 0 + x + by


class Marked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = {*registry.converters.users, *registry.formulas.users}
    yield
    t2t.unregister(*({*registry.converters.users, *registry.formulas.users} - before))


def run(function: Any, x: torch.Tensor = X) -> torch.Tensor:
    conversion = to_network(function, [x])
    (result,) = capture(conversion.network.raw, conversion.network.weights).run([x]).values()
    return result


def test_a_converter_of_any_importable_function() -> None:
    @t2t.converter(f"{__name__}.shifted")
    def convert_shifted(net: Any, x: torch.Tensor, by: float = 1.0) -> Any:
        return net.add_elementwise(x, by, "SUM")

    torch.testing.assert_close(run(lambda x: shifted(x, by=3.0)), X + 3)


def test_a_converter_of_a_modules_forward() -> None:
    @t2t.converter(f"{__name__}.Marked.forward")
    def convert_marked(net: Any, self: Marked, x: torch.Tensor) -> Any:
        assert isinstance(self, Marked)
        return net.add_activation(x, "RELU")

    assert torch.equal(run(nn.Sequential(Marked())), X.relu())


def test_a_users_converter_is_used_instead_of_ours() -> None:
    @t2t.converter("aten::relu")
    def minus_relu(net: Any, self: torch.Tensor) -> Any:
        return net.add_unary(net.add_activation(self, "RELU"), "NEG")

    assert torch.equal(run(torch.relu), -X.relu())
    assert t2t.supported_operators()["aten::relu"].endswith("minus_relu")
    t2t.unregister("aten::relu")
    assert torch.equal(run(torch.relu), X.relu())


def test_one_overload_comes_before_all_overloads() -> None:
    @t2t.converter("aten::add.Tensor")
    def subtract(net: Any, self: torch.Tensor, other: torch.Tensor, alpha: float = 1) -> Any:
        assert alpha == 1
        return net.add_elementwise(self, other, "SUB")

    assert not run(lambda x: x + x).any()


def test_a_wrong_name_is_refused_at_once() -> None:
    for name in ("torch.nn.functional.max_pool9d", "aten::no_such_operator", "no_such_package.f"):
        with pytest.raises(RegistrationError, match="no operator has the name"):
            t2t.converter(name)(lambda net, x: x)
    with pytest.raises(RegistrationError, match="takes the names"):
        t2t.converter(torch.relu)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="precision='half'"):
        t2t.converter("aten::relu", precision="half")  # type: ignore[arg-type]


def test_a_taken_name_is_refused_unless_overridden() -> None:
    def first(net: Any, self: torch.Tensor) -> Any:
        return net.add_activation(self, "RELU")

    t2t.converter("aten::relu")(first)
    with pytest.raises(RegistrationError, match=r"already has the converter .*first"):
        t2t.converter("aten::relu")(lambda net, self: None)
    t2t.converter("aten::relu", override=True)(first)


def test_unknown_arguments_are_named() -> None:
    @t2t.converter(f"{__name__}.shifted")
    def convert_shifted(net: Any, x: torch.Tensor) -> Any:
        return net.tensor(x)

    with pytest.raises(UnsupportedArgumentError, match=r"'by'.*test_registry\.py"):
        run(lambda x: shifted(x, by=2.0))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda net, x: net.reshape(x, (2, 12)), r"give shape \(2, 12\), torch gives"),
        (lambda net, x: net.cast(net.tensor(x), torch.int32), "give torch.int32, torch gives"),
        (lambda net, x: None if x is None else x, "returned FakeTensor"),
        (lambda net, x: (net.tensor(x), net.tensor(x)), "returned 2 tensors"),
        (lambda net, x: net.add_elementwise(x, torch.ones(7), "SUM"), "TensorRT cannot infer"),
    ],
)
def test_a_converter_that_disagrees_with_torch_fails_at_once(wrong: Any, text: str) -> None:
    def converter(net: Any, x: torch.Tensor, by: float = 1.0) -> Any:
        return wrong(net, x)

    t2t.converter(f"{__name__}.shifted")(converter)
    with pytest.raises(ConversionError, match=rf"(?s){text}.*test_registry\.py"):
        run(lambda x: shifted(x))


def test_an_exception_of_a_converter_keeps_its_type_and_says_where() -> None:
    @t2t.converter(f"{__name__}.shifted")
    def broken(net: Any, x: torch.Tensor, by: float = 1.0) -> Any:
        raise LookupError("inside")

    with pytest.raises(LookupError, match="inside") as caught:
        run(lambda x: shifted(x))
    assert "broken" in caught.value.__notes__[-1]
    assert "test_registry.py" in caught.value.__notes__[-1]


def test_converters_have_torchs_own_parameters_and_defaults() -> None:
    """A default that was retyped wrongly would be a silent wrong answer."""
    wrong = []
    for name, entry in registry.converters.own.items():
        if "::" not in name:
            continue
        namespace, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), operator.partition(".")[0])
        overloads = [operator.partition(".")[2]] if "." in operator else packet.overloads()
        known: dict[str, set[Any]] = {}
        for overload in overloads:
            for argument in getattr(packet, overload)._schema.arguments:
                value = argument.default_value if argument.has_default_value() else "required"
                known.setdefault(argument.name, set()).add(repr(value))
        for parameter in list(entry.signature.parameters.values())[1:]:
            default = parameter.default
            if default is inspect.Parameter.empty or parameter.name not in known:
                continue
            # An overload without the parameter needs a neutral default; None is one.
            values = known[parameter.name]
            if "'required'" in values:
                continue
            if not any(_same(default, value) for value in values) and default is not None:
                wrong.append(f"{name}: {parameter.name}={default!r}, schema has {values}")
    assert not wrong, "\n".join(wrong)


def _same(default: Any, value: str) -> bool:
    forms = {repr(default)}
    if isinstance(default, int | float | bool):
        forms |= {repr(int(default)), repr(float(default)), repr(bool(default))}
        # A window's argument may be one number for all dimensions.
        forms |= {repr([default] * n) for n in (1, 2, 3)}
    if isinstance(default, tuple | list):
        forms |= {repr(list(default)), repr(tuple(default))}
        forms |= {repr(default[0])} if len(set(default)) == 1 else set()
    return value in forms


def test_functions_with_the_name_of_ours_are_called_through_every_alias() -> None:
    weight = torch.ones(3, 2, 1, 1)
    assert torch.equal(run(lambda x: torch.conv2d(x, weight)), F.conv2d(X, weight))


class Bare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x) + 1


@pytest.mark.parametrize("suffix", ["", ".forward"])
def test_a_modules_class_means_its_forward(suffix: str) -> None:
    @t2t.converter(f"{__name__}.Bare")
    def convert_bare(net: Any, self: Bare, x: torch.Tensor) -> Any:
        return net.add_activation(x, "RELU")

    assert torch.equal(run(nn.Sequential(Bare())), X.relu())
    assert f"{__name__}.Bare.forward" in t2t.supported_operators()
    t2t.unregister(f"{__name__}.Bare{suffix}")
    with pytest.raises(ConversionError, match="bessel_j0"):
        run(Bare())


def test_torchs_own_modules_are_named_by_their_class() -> None:
    @t2t.converter("torch.nn.Softsign")
    def convert_softsign(net: Any, self: nn.Softsign, input: torch.Tensor) -> Any:
        return net.add_activation(input, "RELU")

    assert torch.equal(run(nn.Sequential(nn.Softsign())), X.relu())


def test_other_classes_are_refused() -> None:
    with pytest.raises(RegistrationError, match="is a class: name the method"):
        t2t.converter("collections.OrderedDict")(lambda net, x: x)


@pytest.mark.parametrize("function", [lambda ctx: None, lambda: None])
def test_what_cannot_be_a_converter_is_refused_at_once(function: Any) -> None:
    with pytest.raises(RegistrationError, match=r"takes the network and then.*def relu.*torch2trt"):
        t2t.converter("torch.nn.functional.softsign")(function)
    assert "torch.nn.functional.softsign" not in registry.converters.users


CALLS: dict[str, tuple[Any, str]] = {
    "function": (lambda x: torch.linalg.matrix_exp(x), "'torch.linalg.matrix_exp')"),
    "inner": (lambda x: (torch.linalg.matrix_exp(x + 1)).relu(), "'torch.linalg.matrix_exp')"),
    "alias": (lambda x: linalg.matrix_exp(x), "'torch.linalg.matrix_exp')"),
    "captured": (lambda x: matrix_exp(x), "'torch.linalg.matrix_exp'), and call it by this"),
    "method": (lambda x: x.matrix_exp(), "'torch.Tensor.matrix_exp')"),
    "method of a result": (lambda x: (x + 1).matrix_exp(), "'torch.Tensor.matrix_exp')"),
    "decomposed": (lambda x: torch.linalg.cond(x), "'torch.linalg.cond')"),
    "functional": (lambda x: torch.special.bessel_j0(x), "'torch.special.bessel_j0')"),
    "two lines": (
        lambda x: torch.linalg.svdvals(
            x,
        ),
        "'torch.linalg.svdvals')",
    ),
    "not torch's": (lambda x: shifted(x), "'torch.special.bessel_j0')"),
    "a module's": (nn.Sequential(Bare()), "'torch.special.bessel_j0')"),
}


@pytest.mark.parametrize(("function", "advice"), CALLS.values(), ids=CALLS)
def test_the_advice_names_what_the_model_called(function: Any, advice: str) -> None:
    with pytest.raises(ConversionError) as caught:
        run(function, torch.rand(3, 3))
    assert f"@t2t.converter({advice}" in str(caught.value)


def test_the_advice_can_be_followed() -> None:
    @t2t.converter("torch.linalg.det")
    def convert_det(net: Any, A: torch.Tensor) -> Any:
        return net.reshape(A, ())

    x = torch.rand(1, 1)
    torch.testing.assert_close(run(lambda x: torch.linalg.det(x), x), torch.linalg.det(x))


# -- formulas --------------------------------------------------------------------------------------

library.define(
    "t2t_test_formulas::swish",
    "(Tensor x, float beta=1.0, *, bool twice=False) -> Tensor",
)
library.define("t2t_test_formulas::pair", "(Tensor x) -> (Tensor, Tensor)")


def swish(x: torch.Tensor, beta: float = 1.0, *, twice: bool = False) -> torch.Tensor:
    result = x * torch.sigmoid(beta * x)
    return result * torch.sigmoid(beta * result) if twice else result


def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


for name, function in (("swish", swish), ("pair", pair)):
    library.impl(f"t2t_test_formulas::{name}", "cpu", function)
    library.register_fake(f"t2t_test_formulas::{name}", function)

OPS = torch.ops.t2t_test_formulas


def test_a_formula_of_an_operator_of_ones_own() -> None:
    t2t.formula("t2t_test_formulas::swish", precision="sensitive")(swish)
    t2t.formula("t2t_test_formulas::pair")(pair)
    assert t2t.supported_operators()["t2t_test_formulas::swish"].endswith("test_registry.swish")
    for given in ((), (2.0,)):
        for twice in (False, True):
            case = OpCase("swish", lambda x, g=given, t=twice: OPS.swish(x, *g, twice=t), [(2, 3)])
            run_case(case)
    run_case(OpCase("one of two", lambda x: OPS.pair(x)[1], [(2, 3)], layers=1))
    dynamic = {"dynamic": [{0: (1, 8)}], "shapes": [(5, 3)]}
    run_case(OpCase("dynamic", lambda x: OPS.swish(x, 3.0), [(2, 3)], **dynamic))
    t2t.unregister("t2t_test_formulas::swish")
    with pytest.raises(ConversionError, match="t2t_test_formulas::swish"):
        run(lambda x: OPS.swish(x))


def test_a_formula_of_an_operator_of_pytorch() -> None:
    @t2t.formula("aten::special_i0e", precision="sensitive")
    def i0e(self: torch.Tensor) -> torch.Tensor:
        # The trapezoidal rule of a periodic function: exp(x * (cos t - 1)), over t.
        angle = torch.arange(64) * (math.pi / 32)
        return torch.exp(self.abs().unsqueeze(-1) * (angle.cos() - 1)).mean(-1)

    run_case(OpCase("i0e", torch.special.i0e, [uniform(2, 3, low=-8, high=8)]))


def test_a_users_formula_wins_over_ours_and_may_call_what_it_replaces() -> None:
    @t2t.formula("aten::gelu")
    def clipped(self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        return F.gelu(self, approximate=approximate).clamp(max=1)

    assert t2t.supported_operators()["aten::gelu"].endswith("clipped")
    torch.testing.assert_close(run(lambda x: F.gelu(3 * x)), F.gelu(3 * X).clamp(max=1))
    t2t.unregister("aten::gelu")
    torch.testing.assert_close(run(lambda x: F.gelu(3 * x)), F.gelu(3 * X))


def test_a_users_converter_wins_over_a_users_formula() -> None:
    @t2t.formula("aten::gelu")
    def zero(self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        return self * 0

    @t2t.converter("aten::gelu.default")
    def relu(net: Any, self: torch.Tensor, *, approximate: str = "none") -> Any:
        return net.add_activation(self, "RELU")

    assert torch.equal(run(F.gelu), X.relu())
    t2t.unregister("aten::gelu.default")
    assert not run(F.gelu).any()


def test_a_formula_that_declines_leaves_the_call_to_the_next() -> None:
    @t2t.formula("aten::gelu")
    def only_tanh(self: torch.Tensor, *, approximate: str = "none") -> Any:
        return self * 0 if approximate == "tanh" else NotImplemented

    assert not run(lambda x: F.gelu(x, approximate="tanh")).any()
    torch.testing.assert_close(run(F.gelu), F.gelu(X))


def test_what_a_formula_calls_is_named_in_errors() -> None:
    @t2t.formula("aten::special_i0e")
    def i0e(self: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(self)

    with pytest.raises(ConversionError, match=r"special_i0e.*bessel_j0.*test_registry\.py"):
        run(torch.special.i0e)


@pytest.mark.parametrize(
    "wrong", [lambda x: x.to(torch.float16), lambda x: x.sum(0), lambda x: (x, x)]
)
def test_a_formula_with_other_results_than_the_operators_is_refused(wrong: Any) -> None:
    @t2t.formula("aten::special_i0e")
    def i0e(self: torch.Tensor) -> torch.Tensor:
        return wrong(self)

    with pytest.raises(ConversionError, match=r"its formula gives .*test_registry\.py"):
        run(lambda x: torch.special.i0e(x))


def _one(x: torch.Tensor) -> torch.Tensor:
    return x


def _one_and_two(x: torch.Tensor, beta: float = 2.0, *, twice: bool = False) -> torch.Tensor:
    return x


WRONG: dict[str, tuple[Any, str, str]] = {
    "unknown": (_one, "aten::no_such_operator", "no operator has the name"),
    "function": (_one, "torch.nn.functional.gelu", "is a Python function: what it calls"),
    "in place": (_one, "aten::relu_", "does not return a tensor of its own.*aten::relu"),
    "overload": (_one, "aten::add_.Tensor", "does not return a tensor of its own"),
    "random": (_one, "aten::bernoulli.p", "draws random numbers"),
    "view": (_one, "aten::t", "its result is a view"),
    "taken apart": (_one, "aten::einsum", "PyTorch takes it apart"),
    "too few": (_one, "t2t_test_formulas::swish", r"cannot be the formula of .*swish\(Tensor x"),
    "too many": (lambda x, y: x, "aten::special_i0e", "missing a required argument: 'y'"),
    "default": (_one_and_two, "t2t_test_formulas::swish", "beta is 1.0 by default in"),
}


@pytest.mark.parametrize(("function", "name", "text"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_a_formula_is_refused_at_once(function: Any, name: str, text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        t2t.formula(name)(function)
    assert not registry.formulas.users


def test_a_taken_name_of_a_formula_is_refused_unless_overridden() -> None:
    t2t.formula("t2t_test_formulas::pair")(pair)
    with pytest.raises(RegistrationError, match=r"already has the formula .*pair; pass override"):
        t2t.formula("t2t_test_formulas::pair")(pair)
    t2t.formula("t2t_test_formulas::pair", override=True)(pair)
    t2t.unregister("t2t_test_formulas::pair")
    with pytest.raises(RegistrationError, match="no converter or formula of yours"):
        t2t.unregister("t2t_test_formulas::pair")
    with pytest.raises(RegistrationError, match=r'@formula\("aten::hypot"\)'):
        t2t.formula(pair)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="precision='half'"):
        t2t.formula("aten::hypot", precision="half")  # type: ignore[arg-type]
