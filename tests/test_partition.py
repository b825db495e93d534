"""Models of which some operators stay in PyTorch, cut into engines and steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops import scan, while_loop

import t2t
from t2t import registry
from t2t.errors import CheckpointError, ConversionError, EngineError, OptionError
from t2t.module.checkpoint import FORMAT, _summary, _text_checksum
from t2t.operator_data import find_operator
from t2t.partition import levels
from tests.cases import TORCH
from tests.models import Behind

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


@pytest.fixture(autouse=True, scope="module")
def _no_complex_numbers() -> Iterator[None]:
    """Fourier transforms stand here for operators that no network has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.complex_formulas, "own", {})
        yield


def conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.SiLU()
    )


class Middle(nn.Module):
    """Something between two small networks."""

    def __init__(self, middle: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Sequential(conv(3, 8), conv(8, 8)), conv(8, 8)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.middle(self.first(x))
        return self.last(y).mean((2, 3))


def made(middle: Callable[[torch.Tensor], Any]) -> Middle:
    torch.manual_seed(0)
    model = Middle(middle).eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
    return model


X = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(1))


def check(model: nn.Module, converted: Any, *inputs: Any, rtol: float = 1e-4) -> None:
    """Compare both on the inputs, which are tensors or tuples of them, each with the same seed."""
    for x in inputs:
        args = x if isinstance(x, tuple) else (x,)
        results = []
        for module in (model, converted):
            torch.manual_seed(5)
            with torch.no_grad():
                results.append(module(*(arg.clone() for arg in args)))
        wanted, found = results
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-5)


def loaded(converted: t2t.TRTModule, tmp_path: Any) -> t2t.TRTModule:
    converted.save(tmp_path / "model.pth")
    return t2t.load(tmp_path / "model.pth")


def engines(converted: t2t.TRTModule) -> int:
    return sum(part.in_engine for part in converted.parts)


def steps(converted: t2t.TRTModule) -> list[str]:
    return [part.name for part in converted.parts if not part.in_engine]


def top_rows(y: torch.Tensor) -> torch.Tensor:
    values, places = y.flatten(2).sort(dim=-1, stable=True)
    return (values + 0.01 * places).reshape(y.shape)


def spectrum(y: torch.Tensor) -> torch.Tensor:
    bands = torch.fft.rfft2(y)
    bands = bands * torch.complex(torch.tensor(0.5), torch.tensor(0.25))
    return torch.fft.irfft2(bands, s=y.shape[-2:])


def eigen(y: torch.Tensor) -> torch.Tensor:
    square = y.flatten(2) @ y.flatten(2).transpose(1, 2)
    return y + torch.linalg.eigvalsh(square).tanh()[..., None, None]


def noisy(y: torch.Tensor) -> torch.Tensor:
    return y + torch.randn_like(y) * torch.rand(y.shape[1], 1, 1)


def dropped(y: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(y, 0.5, training=True)


def written(y: torch.Tensor) -> torch.Tensor:
    """In-place writes before and after a step, through views."""
    y[:, :2].mul_(3)
    part = y[:, 2:4]
    bands = torch.fft.fft(y).abs()
    bands[:, 1:3] += part
    part.add_(bands.mean())
    return y - bands


def solved(y: torch.Tensor) -> torch.Tensor:
    """A system of more equations than are written out."""
    rows = y.flatten(1, 2)
    square = rows @ rows.mT + torch.eye(64)
    return torch.linalg.solve(square, rows).view_as(y)


def infinite(y: torch.Tensor) -> torch.Tensor:
    """Arguments that JSON does not have."""
    bands = torch.fft.fft(torch.nan_to_num(y, nan=0.0, posinf=float("inf")))
    return (bands * (0.5 + 2j)).real.masked_fill(y > 1e9, float("-inf"))


MIDDLES = {
    "spectrum": (spectrum, ["aten::_fft_r2c"]),
    "eigenvalues": (eigen, ["aten::_linalg_eigh"]),
    "random": (noisy, ["aten::randn_like", "aten::rand"]),
    "dropout": (dropped, ["aten::bernoulli_.float"]),
    "in place": (written, ["aten::_fft_r2c"]),
    "solve": (solved, ["aten::_linalg_solve_ex"]),
    "infinite": (infinite, ["aten::_fft_r2c"]),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_an_operator_in_the_middle_stays_in_pytorch(name: str, tmp_path: Any) -> None:
    middle, names = MIDDLES[name]
    model = made(middle)
    with pytest.raises(ConversionError):
        t2t.convert(model, [X])
    converted = t2t.convert(model, [X], partial=True)
    assert type(converted) is t2t.TRTModule
    assert engines(converted) == 2
    assert set(names) <= set(steps(converted))
    assert converted.parts.share > 0.9
    others = X, torch.randn(2, 3, 8, 10)
    check(model, converted, *others)
    again = loaded(converted, tmp_path)
    check(model, again, *others)
    assert str(again.parts) == str(converted.parts)
    assert again.signature == converted.signature


def seeded(y: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return y + torch.rand(3, 1)[:1]


def forked(y: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        return seeded(y)


def attending(y: torch.Tensor) -> torch.Tensor:
    """Functions of which only one operator draws."""
    torch.manual_seed(0)
    return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5)


@pytest.mark.parametrize("middle", [seeded, forked, attending])
def test_random_numbers_of_a_seed_of_the_models_own_stay_in_its_code(middle: Any) -> None:
    model = made(middle)
    torch.manual_seed(0)
    converted = t2t.convert(model, [X], partial=True)
    assert isinstance(converted, t2t.PartialModule)
    check(model, converted, X)


FUNCTIONS = {
    "rms_norm": lambda y: nn.functional.rms_norm(y, y.shape[-1:]),
    "quantile": lambda y: y - torch.quantile(y, 0.25, dim=-1, keepdim=True),
    "pad": lambda y: nn.functional.pad(y, (1, 1, 1, 1), value=float("-inf")).clamp(-5),
    "attention": lambda y: nn.functional.scaled_dot_product_attention(y, y, y),
    "einsum": lambda y: torch.einsum("bchw,bdhw->bcdw", y, y)[:, :, :8],
    "resize": lambda y: nn.functional.interpolate(y, scale_factor=2.0, mode="bicubic"),
}


def test_operators_inside_of_functions_get_the_defaults_of_their_in_place_forms() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        drop = torch.nn.functional.scaled_dot_product_attention
        return drop(q.sin() * 2 + 1, k, k, dropout_p=0.5).relu().exp().sum(-1)

    q, k = torch.randn(4, 3, 8), torch.randn(4, 6, 8)
    converted = t2t.convert(attend, [q, k], partial=True)
    for seed in (0, 1):
        torch.manual_seed(seed)
        wanted = attend(q, k)
        torch.manual_seed(seed)
        torch.testing.assert_close(converted(q, k), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_several_operators_stay_in_pytorch(name: str, tmp_path: Any) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = FUNCTIONS[name]

        def forward(self, y: torch.Tensor) -> Any:
            result = self.function(y)
            return y + result[0].mean() if isinstance(result, tuple) else result

    model = made(Inner())
    converted = t2t.convert(model, [X], partial=True, torch_executed_modules=["middle"])
    assert engines(converted) == 2
    if name == "quantile" and TORCH < (2, 14):
        # It looks at the value of q, so it is no row of operators: the model's own code stays.
        with pytest.raises(CheckpointError, match="the rest is the model's own code"):
            loaded(converted, tmp_path)
        check(model, t2t.load(tmp_path / "model.pth", model), X, torch.randn(2, 3, 8, 10))
        return
    check(model, loaded(converted, tmp_path), X, torch.randn(2, 3, 8, 10))


@pytest.mark.parametrize("name", MIDDLES)
def test_sizes_are_ranges_through_the_cut(name: str, tmp_path: Any) -> None:
    if name == "solve":
        pytest.skip("its sizes are those of a matrix")
    model = made(MIDDLES[name][0])
    height = torch.export.Dim("h", min=2, max=8)
    converted = t2t.convert(
        model, [X], partial=True, max_batch_size=4, dynamic_shapes=[{2: 2 * height, 3: (3, 12)}]
    )
    assert engines(converted) == 2
    check(model, loaded(converted, tmp_path), X, torch.randn(1, 3, 4, 3), torch.randn(4, 3, 16, 12))
    with pytest.raises(t2t.errors.ShapeError, match="multiple of 2"):
        converted(torch.randn(1, 3, 5, 5))


class Cropped(nn.Module):
    """Sizes behind the cut are no multiples of the inputs', and a number is one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.a(x)
        half = y.shape[2] // 2
        z = self.b(torch.fft.fft(y).real[:, :, :half])
        sizes = (x.shape[2] + 3, x.shape[3] * 2)
        resized = nn.functional.interpolate(torch.fft.fft(z).imag, size=sizes)
        number = torch.arange(half * 3).float().sin().sum() + half / 3
        return self.c(resized) * number, torch.ones(x.shape[0], half)


@pytest.mark.parametrize(
    "wished", [[], ["torch._C._nn.upsample_nearest2d"], ["aten::arange", "aten::convolution"]]
)
def test_sizes_are_computed_on_both_sides_of_a_cut(wished: list[str], tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Cropped().eval()
    options = {"max_batch_size": 4, "dynamic_shapes": [{2: (4, 17), 3: (3, 12)}]}
    converted = t2t.convert(
        model, [X], partial=True, torch_executed_ops=wished, min_block_size=2, **options
    )
    converted = loaded(converted, tmp_path)
    assert engines(converted) == 3
    shapes = (1, 3, 4, 3), (4, 3, 17, 12), (3, 3, 5, 7)
    check(model, converted, X, *(torch.randn(shape) for shape in shapes))


def test_profiles_go_through_the_cut() -> None:
    model = made(spectrum)
    sizes = {"opt": [(2, 3, 8, 10)], "max": [(4, 3, 9, 10)]}
    profiles = [{"min": [(1, 3, 4, 10)], **sizes}, {"min": [(2, 3, 6, 10)], **sizes}]
    converted = t2t.convert(model, [X], partial=True, profiles=profiles)
    [_, after] = converted._filled().partition.engines
    assert [profile[0][0][:3] for profile in after.signature.profiles] == [(1, 8, 4), (2, 8, 6)]
    check(model, converted, X, torch.randn(1, 3, 4, 10))


def test_verify_says_what_ran() -> None:
    model = made(spectrum)
    converted = t2t.convert(model, [X], partial=True)
    report = t2t.verify(model, converted, [X])
    assert report.ok
    assert report.max_rel_error < 1e-5
    assert [place.executor for place in report.ran_on] == ["reference executor"]
    with pytest.raises(EngineError, match="engine does not run"):
        t2t.verify(model, converted, [X], require_engine=True)
    other = made(lambda y: spectrum(y) * 1.1)
    assert not t2t.verify(other, converted, [X]).ok


def test_half_precision_goes_to_the_engines() -> None:
    model = made(spectrum)
    half = t2t.convert(model, [X], partial=True, fp16=True)
    assert half.precision == "fp16"
    [before, after] = half._filled().partition.engines
    assert {before.details["precision"], after.details["precision"]} == {"fp16"}
    # Steps get what they get in the model.
    assert before.signature.outputs[0].dtype == torch.float32
    report = t2t.verify(model, half, [X])
    assert report.ok
    assert report.max_rel_error > 1e-6


def test_what_converts_whole_is_one_engine_of_the_same_bytes() -> None:
    model = made(lambda y: y)
    whole, partial = (t2t.convert(model, [X], partial=flag) for flag in (False, True))
    assert torch.equal(whole.engine.plan, partial.engine.plan)
    assert not partial.parts
    assert whole.state_dict().keys() == partial.state_dict().keys()


# -- sizes that depend on the data ---------------------------------------------------------------


def distinct(y: torch.Tensor) -> torch.Tensor:
    values, places, counts = torch.unique((y * 3).round(), return_inverse=True, return_counts=True)
    return y + (values * counts).sum() * 1e-3 + places * 0.01


def masked(y: torch.Tensor) -> torch.Tensor:
    return y - y[y > 0].sum() / 100


def numbered(y: torch.Tensor) -> torch.Tensor:
    """How many there are is a number in later calls."""
    places = torch.nonzero(y > 0.5)
    numbers = torch.arange(places.shape[0], dtype=torch.float32) * 0.01
    result = torch.zeros_like(y)
    result[tuple(places.unbind(1))] = numbers + places.shape[0] // 2
    return result + y


def suppressed(y: torch.Tensor) -> torch.Tensor:
    nms = pytest.importorskip("torchvision").ops.nms
    b = y.flatten(2)[0].t()[:, :4]
    boxes = torch.cat([b[:, :2], b[:, :2] + b[:, 2:].abs() + 0.5], 1)
    kept = boxes[nms(boxes, b[:, 0], 0.3)]
    return y + kept.sum() * 0.01 + (kept @ kept.t()).mean()


def rows(y: torch.Tensor) -> torch.Tensor:
    values, counts = torch.unique((y > 0.2).flatten(2), dim=2, return_counts=True)
    return y + (values * counts).sum() * 1e-4


@pytest.mark.parametrize("middle", [distinct, masked, numbered, rows, suppressed])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:.create_unbacked_symint")
def test_sizes_that_depend_on_the_data(middle: Any, dynamic: bool, tmp_path: Any) -> None:
    model = made(middle)
    with pytest.raises(ConversionError, match="depends on the data"):
        t2t.convert(model, [X])
    options = {"max_batch_size": 4, "dynamic_shapes": [{2: (4, 9)}]} if dynamic else {}
    converted = loaded(t2t.convert(model, [X], partial=True, **options), tmp_path)
    assert engines(converted) == 2
    check(model, converted, X, torch.randn(2, 3, 8, 10), 0 * X)
    if dynamic:
        check(model, converted, torch.randn(1, 3, 4, 10), torch.randn(4, 3, 9, 10))


def test_a_result_has_a_size_that_depends_on_the_data() -> None:
    class Found(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = made(lambda y: y)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.body(x)
            return y[y > 0.1]

    model = Found().eval()
    converted = t2t.convert(model, [X], partial=True)
    assert str(converted.signature.outputs[0]) == "output: float32 (0..16,)"
    check(model, converted, X, torch.randn(2, 3, 8, 10), 0 * X)


def by_mask(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    keep = x[:, 0] > 0
    z = m.last(y[keep]).softmax(-1) + x[keep][:, :3].cos()
    return z, z.sum(0) + 1, torch.arange(z.shape[0]) * 2 + 1


def by_places(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    places = (x > 0.5).nonzero()
    return (places * 2 + 1).float().sqrt().exp(), m.last(y[places[:, 0]])


def by_elements(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    del m
    chosen = torch.masked_select(y, x > 0)
    return (chosen.sin() * chosen.cos()).exp(), chosen.sum() * 2 + 1


def by_values(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    del m, y
    values, counts = (x * 2).round().unique(return_counts=True)
    return (values.sin() * counts).exp() + 1


def by_expanding(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    chosen = y[x[:, 0] > 0]
    token = m.first.bias.expand(chosen.shape[0], 6).sin().exp()
    return m.last(token * x.mean()), chosen.reshape(-1, 3).relu().exp().sin(), chosen.t() @ chosen


def by_boxes(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    boxes = torch.cat([y[:, :2], y[:, :2] + y[:, 2:4] + 0.5], 1)
    kept = pytest.importorskip("torchvision").ops.nms(boxes, x[:, 0], 0.4)
    return m.last(y[kept]).softmax(-1), boxes[kept] * 2, kept


@pytest.mark.parametrize(
    "choose", [by_mask, by_places, by_elements, by_values, by_expanding, by_boxes]
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:.create_unbacked_symint")
def test_what_follows_such_a_size_is_an_engine_again(
    choose: Any, dynamic: bool, tmp_path: Any
) -> None:
    generator = torch.Generator().manual_seed(3)
    model = Behind(choose).eval()
    calls = [torch.randn(9, 6, generator=generator) for _ in range(3)]
    # Nothing is chosen, and everything.
    calls += [-torch.rand(9, 6, generator=generator), torch.rand(9, 6, generator=generator) + 1]
    options: dict[str, Any] = {"max_batch_size": 12} if dynamic else {}
    converted = t2t.convert(model, [calls[0]], partial=True, **options)
    assert converted.parts[-1].in_engine
    converted = loaded(converted, tmp_path)
    more = [torch.randn(n, 6, generator=generator) for n in (12, 1)] if dynamic else []
    check(model, converted, *calls, *more)


def test_the_same_mask_chooses_as_many() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        keep = x[:, 0] > 0
        total = x[keep] * x[:, 1:2][keep] + torch.masked_select(x[:, 2], keep)[:, None]
        keep &= x[:, 1] > 0
        return total.sum() + (x[keep] * x[:, 3:4][keep]).sum() + keep.nonzero().sum()

    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return chosen(x.cos() * x.sin() - x)

    converted = t2t.convert(Chosen(), [torch.randn(9, 6)], partial=True)
    assert not isinstance(converted, t2t.PartialModule)
    check(Chosen(), converted, torch.randn(9, 6), torch.randn(9, 6))


def test_different_masks_may_choose_another_number() -> None:
    class Different(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.body(x)
            a, keep = y[y[:, 0] > 0], y[:, 0] > 0
            keep &= y[:, 1] > 0
            return a + y[keep]

    torch.manual_seed(0)
    model = Different().eval()
    x = torch.ones(3, 6)
    with torch.no_grad():
        model.body.bias.fill_(3.0)
    assert isinstance(t2t.convert(model, [x], partial=True), t2t.PartialModule)


def test_no_engine_reserves_memory_for_all_that_might_be() -> None:
    def pairs(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        del m
        chosen = y.flatten()[x.flatten() > 0]
        return (chosen[:, None] - chosen[None]).abs().exp().sum()

    converted = t2t.convert(Behind(pairs).eval(), [torch.randn(1500, 6)], partial=True)
    assert "may have 81000000 elements" in str(converted.parts)


def test_a_decision_on_such_a_size_leaves_submodules() -> None:
    model = made(lambda y: y if (y > 2).nonzero().shape[0] else y + 1)
    converted = t2t.convert(model, [X], partial=True)
    assert isinstance(converted, t2t.PartialModule)
    assert "`nonzero_0 != 0` does not hold" in converted.parts[0].reason
    check(model, converted, X, 0 * X)


@pytest.mark.parametrize("number", [torch.max, torch.sum])
def test_a_decision_on_a_declared_size_beside_a_number_that_is_read(number: Any) -> None:
    class Cut(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            y = x.sin().exp() * number(ids).item() + 1
            return y[:3] if x.shape[0] >= 3 else y

    inputs = torch.randn(5, 8), torch.tensor([1, 2])
    with pytest.raises(OptionError, match=r"`x.shape\[0\] >= 3`.* It holds for .* = 3..9"):
        t2t.convert(Cut(), inputs, partial=True, dynamic_shapes=[{0: (1, 9)}, {}])
    sizes = [{0: (3, 9)}, {}]
    converted = t2t.convert(Cut(), inputs, partial=True, dynamic_shapes=sizes, min_block_size=1)
    check(Cut(), converted, inputs, (torch.randn(9, 8), torch.tensor([-5, -3])))


# -- the shape of a graph ------------------------------------------------------------------------


class Branches(nn.Module):
    """Each branch waits for the other's step: as two engines around both they would be a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (conv(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.a(x), self.b(x)
        left = torch.fft.fft(a).real
        right = torch.fft.fft(self.c(b) + left).imag
        return self.d(right) + b, self.c(left) + a


def test_branches_make_no_circle(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Branches().eval()
    converted = t2t.convert(model, [X], partial=True)
    assert engines(converted) == 3
    check(model, loaded(converted, tmp_path), X, torch.randn(2, 3, 8, 10))


class Edges(nn.Module):
    """Outputs that are inputs, results of steps, constants, and one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = conv(3, 4)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> dict[str, Any]:
        bands = torch.fft.rfft(x).abs()
        y = self.body(x)
        return {"x": x, "step": (bands, bands), "y": y, "table": self.table, "unused": [unused]}


def test_outputs_come_from_anywhere(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Edges().eval()
    numbers = torch.arange(3)
    converted = loaded(t2t.convert(model, [X, numbers], partial=True), tmp_path)
    check(model, converted, (X, numbers), (torch.randn(2, 3, 8, 10), numbers + 4))
    # The module's constants are its own.
    converted(X, numbers)["table"].zero_()
    check(model, converted, (X, numbers))


def test_small_engines_stay_in_pytorch() -> None:
    model = made(lambda y: torch.fft.fft(torch.fft.fft(y).real * 2 + 1).real)
    assert engines(t2t.convert(model, [X], partial=True)) == 2
    fine = t2t.convert(model, [X], partial=True, min_block_size=1)
    assert engines(fine) == 3
    check(model, fine, X)
    with pytest.raises(ConversionError, match="min_block_size"):
        t2t.convert(
            made(spectrum), [X], partial=True, min_block_size=50, torch_executed_ops=["aten::mul"]
        )


# -- what the user names -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("aten::silu", True),
        ("aten::convolution", False),
        ("torch.nn.functional.conv2d", False),
        ("aten::native_batch_norm", True),
        ("torch.nn.functional.batch_norm", True),
    ],
)
def test_operators_that_stay_in_pytorch(name: str, others: bool) -> None:
    model = made(lambda y: y)
    converted = t2t.convert(model, [X], partial=True, torch_executed_ops=[name], min_block_size=1)
    rows = [part for part in converted.parts if not part.in_engine]
    assert len(rows) == 3
    assert all("torch_executed_ops names it" in row.reason for row in rows)
    assert (converted.parts.share > 0.9) is others
    check(model, converted, X, torch.randn(2, 3, 8, 10))


def test_modules_that_stay_in_pytorch() -> None:
    model = made(lambda y: y)
    converted = t2t.convert(model, [X], partial=True, torch_executed_modules=["la*"])
    assert engines(converted) == 1
    assert all("names its module" in part.reason for part in converted.parts[1:4])
    check(model, converted, X, torch.randn(2, 3, 8, 10))


class Steps(nn.Module):
    """A part that goes in steps, and three small layers behind an operator in PyTorch."""

    def __init__(self, part: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.part = nn.Linear(8, 8), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.digamma(self.part(self.inner, x).abs() + 1)
        return self.inner(self.inner(self.inner(y)))


def scanned(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return scan(lambda h, row: ((h + layer(row)).sin(), layer(h)), x[0], x)[1]


def repeated(layer: Any, x: torch.Tensor) -> torch.Tensor:
    def step(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, layer(y).tanh()

    return while_loop(lambda i, y: i < y.sum() + 2, step, (torch.zeros(()), x))[1]


def branched(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: layer(layer(x)), layer, (x,))


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers = kind(8, 8)

    def forward(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        del layer
        return self.layers(x[:, None])[0][:, 0]


# How many products of a row and a matrix of 8 x 8 there are for each row of x, beside the three.
PARTS_OF_STEPS = {
    "scan": (scanned, 2),
    "while_loop": (repeated, 1),  # each step as one
    "cond": (branched, 2),
    "rnn": (Recurrent(nn.RNN), 2),
    "gru": (Recurrent(nn.GRU), 6),
    "lstm": (Recurrent(nn.LSTM), 8),
}


@pytest.mark.parametrize("name", PARTS_OF_STEPS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_steps_of_a_loop_are_work(name: str, dynamic: bool) -> None:
    part, products = PARTS_OF_STEPS[name]
    torch.manual_seed(0)
    model = Steps(part).eval()
    x = torch.randn(5, 8)
    options = {"max_batch_size": 7} if dynamic else {}
    converted = t2t.convert(model, [x], partial=True, min_block_size=1, **options)
    shares = [row.share for row in converted.parts if row.in_engine]
    assert shares == pytest.approx([products / (products + 3), 3 / (products + 3)])
    check(model, converted, x, -x, *([torch.randn(7, 8)] if dynamic else []))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_can_stay_in_pytorch(kind: Any, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Steps(Recurrent(kind)).eval()
    x = torch.randn(5, 8)
    converted = t2t.convert(model, [x], partial=True, torch_executed_modules=["part.layers"])
    assert type(converted) is t2t.TRTModule
    assert engines(converted) == 1
    check(model, loaded(converted, tmp_path), x, torch.randn(5, 8))
    # No list of operators leaves open how many steps there are.
    with pytest.raises(OptionError, match=r"it cannot stay in PyTorch: .*give shape_examples"):
        t2t.convert(
            model, [x], partial=True, torch_executed_modules=["part.layers"], max_batch_size=7
        )


def test_wrong_names_are_said() -> None:
    model = made(lambda y: y)
    with pytest.raises(
        OptionError, match=r"no call of 'aten::sorted'; it calls .*aten::convolution"
    ):
        t2t.convert(model, [X], partial=True, torch_executed_ops=["aten::sorted"])
    with pytest.raises(OptionError, match="with partial=True"):
        t2t.convert(model, [X], torch_executed_ops=["aten::silu"])
    with pytest.raises(OptionError, match="low_precision_io is of a module that converts whole"):
        t2t.convert(
            model,
            [X],
            partial=True,
            torch_executed_ops=["aten::silu"],
            fp16=True,
            low_precision_io=True,
        )
    with pytest.raises(OptionError, match="min_block_size=0"):
        t2t.convert(model, [X], partial=True, min_block_size=0)


# -- checkpoints ---------------------------------------------------------------------------------


def tampered(state: dict[str, Any], change: Callable[[Any], None]) -> dict[str, Any]:
    """Change the steps of a checkpoint, as somebody does who knows the format."""
    data = json.loads(state["steps"])
    change(data)
    text = json.dumps(data)
    metadata = json.loads(state["metadata"])
    metadata["entries"]["steps"] = _summary(text)
    written = json.dumps(metadata)
    return {**state, "steps": text, "metadata": written, "checksum": _text_checksum(written)}


def operator_step(data: Any) -> Any:
    return next(step for step in data["steps"] if "operator" in step)


def engine_step(data: Any) -> Any:
    return next(step for step in data["steps"] if "engine" in step)


CHANGES = {
    "a file": lambda d: operator_step(d).update(operator="aten::from_file", args=["/etc/passwd"]),
    "a write": lambda d: operator_step(d).update(operator="aten::add_.Tensor"),
    "an out=": lambda d: operator_step(d).update(operator="aten::add.out"),
    "no tensor": lambda d: operator_step(d).update(operator="aten::_local_scalar_dense"),
    "no operator": lambda d: operator_step(d).update(operator="aten::nothing"),
    "a method": lambda d: operator_step(d).update(operator="load_library::load_library"),
    "an attribute": lambda d: operator_step(d).update(operator="aten::__class__"),
    "a class": lambda d: operator_step(d).update(args=[{"dtype": "nn"}]),
    "an object": lambda d: operator_step(d).update(args=[{"object": "x"}]),
    "a size": lambda d: operator_step(d).update(args=[{"size": ["system", 1]}]),
    "a later tensor": lambda d: operator_step(d).update(args=[{"tensor": d["outputs"][0]}]),
    "no tensor of it": lambda d: operator_step(d).update(args=[{"tensor": "a"}]),
    "twice": lambda d: operator_step(d).update(results=[0]),
    "no engine": lambda d: engine_step(d).update(engine=7),
    "few inputs": lambda d: engine_step(d).update(inputs=[]),
    "no output": lambda d: d.update(outputs=[999]),
    "more outputs": lambda d: d.update(outputs=[0, 0]),
    "no steps": lambda d: d.pop("steps"),
    "constants": lambda d: d.update(constants={"0": [3]}),
}


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    return t2t.convert(made(spectrum), [X], partial=True).state_dict()


@pytest.mark.parametrize("name", CHANGES)
def test_changed_steps_are_refused(name: str, state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        t2t.TRTModule().load_state_dict(tampered(state, CHANGES[name]))


def test_steps_that_were_not_changed_are_read(state: dict[str, Any]) -> None:
    module = t2t.TRTModule()
    module.load_state_dict(tampered(state, lambda data: None))
    check(made(spectrum), module, X)
    assert json.loads(state["metadata"])["format"] == FORMAT


def test_damage_is_seen(state: dict[str, Any]) -> None:
    for name in state:
        if name in ("metadata", "checksum"):
            continue
        damaged = dict(state)
        if isinstance(state[name], str):
            damaged[name] = state[name] + " "
        else:
            damaged[name] = state[name].clone()
            damaged[name].view(torch.uint8)[-1] ^= 1
        with pytest.raises(CheckpointError):
            t2t.TRTModule().load_state_dict(damaged)


def test_a_step_takes_no_file_names() -> None:
    library = torch.library.Library("t2t_test_files", "DEF")
    library.define("read(str name) -> Tensor")
    library.define("twice(Tensor x) -> Tensor")
    assert find_operator("t2t_test_files::twice")
    with pytest.raises(CheckpointError, match="a string"):
        find_operator("t2t_test_files::read")
    library._destroy()


def test_a_part_of_a_larger_model_is_saved_with_it(state: dict[str, Any]) -> None:
    whole = nn.ModuleDict({"part": t2t.TRTModule()})
    whole["part"].load_state_dict(state)
    other = nn.ModuleDict({"part": t2t.TRTModule()})
    other.load_state_dict(whole.state_dict())
    check(made(spectrum), other["part"], X)


# -- random graphs -------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "aten::tanh": lambda a, b: torch.tanh(a),
    "aten::add": lambda a, b: a + b,
    "aten::mul": lambda a, b: a * b,
    "aten::sin": lambda a, b: torch.sin(b),
    "aten::relu": lambda a, b: torch.relu(a),
    "aten::flip": lambda a, b: a.flip(1),
    "aten::sub": lambda a, b: a - b,
}


@st.composite
def graphs(draw: Any) -> Any:
    """Draw a program, and the operators that stay in PyTorch."""
    count = draw(st.integers(2, 12))
    names = st.sampled_from(sorted(OPERATORS))
    program = [
        (draw(names), draw(st.integers(0, index)), draw(st.integers(0, index)))
        for index in range(count)
    ]
    outputs = draw(st.lists(st.integers(0, count), min_size=1, max_size=3))
    return program, [*outputs, count], draw(st.sets(names, max_size=3))


class Program(nn.Module):
    def __init__(self, program: Any, outputs: Any) -> None:
        super().__init__()
        self.program, self.outputs = program, outputs

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        values = [x]
        for name, a, b in self.program:
            values.append(OPERATORS[name](values[a], values[b]))
        return [values[index] for index in self.outputs]


def longest_alternation(program: Any, outputs: Any, excluded: Any) -> int:
    """Return the most engines that a path enters, among the calls that are used."""
    best: list[tuple[int, bool]] = [(0, False)]
    for name, a, b in program:
        reads = {"aten::tanh": [a], "aten::sin": [b], "aten::relu": [a], "aten::flip": [a]}
        sources = [best[index] for index in reads.get(name, [a, b])]
        inside = name not in excluded
        best.append((max(n + (inside and not was) for n, was in sources), inside))
    return max(best[index][0] for index in range(len(best)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.integers(1, 3))
def test_random_graphs(graph: Any, min_block_size: int) -> None:
    program, outputs, wished = graph
    model = Program(program, outputs)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    used, pending = set(), list(outputs)
    while pending:
        index = pending.pop()
        if index and index not in used:
            used.add(index)
            name, a, b = program[index - 1]
            single = {"aten::tanh": [a], "aten::sin": [b], "aten::relu": [a], "aten::flip": [a]}
            pending += single.get(name, [a, b])
    excluded = sorted(wished & {program[index - 1][0] for index in used})
    options = {"torch_executed_ops": excluded, "min_block_size": min_block_size}
    inside = [index for index in used if program[index - 1][0] not in excluded]
    if excluded and len(inside) < 3 * min_block_size:
        # Whether enough of these are together is for the other tests.
        with suppress(ConversionError):
            check(model, t2t.convert(model, [x], partial=True, **options), x)
        return
    try:
        converted = t2t.convert(model, [x], partial=True, **options)
    except ConversionError:
        assume(False)
    check(model, converted, x, torch.randn(3, 4))
    if excluded:
        assert 1 <= engines(converted) <= longest_alternation(program, outputs, set(excluded))
        assert {name.partition(".")[0] for name in steps(converted)} >= set(excluded)


@st.composite
def reads_of_graphs(draw: Any) -> Any:
    count = draw(st.integers(1, 30))
    reads = [
        draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
        for index in range(count)
    ]
    convertible = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    work = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return reads, convertible, work


def alternations(reads: Any, convertible: Any) -> int:
    """Return the most engines that one path visits, by trying all paths."""
    best: list[int] = []
    for index, sources in enumerate(reads):
        before = [
            best[source] + (convertible[index] and not convertible[source]) for source in sources
        ]
        best.append(max([*before, int(convertible[index])]))
    return max(best)


@given(reads_of_graphs(), st.integers(1, 4))
def test_parts_are_acyclic_and_few(graph: Any, min_block_size: int) -> None:
    reads, convertible, work = graph
    found = levels(reads, convertible, work, min_block_size)
    for index, sources in enumerate(reads):
        assert all(found[source] <= found[index] for source in sources)
        assert convertible[index] or found[index] % 2 == 1
    parts = {level for level in found if level % 2 == 0}
    for part in parts:
        amounts = [w for w, level in zip(work, found, strict=True) if level == part]
        assert sum(amounts) >= min_block_size
    assert len(parts) <= alternations(reads, convertible)


@given(reads_of_graphs())
def test_all_that_can_is_in_engines_where_size_does_not_matter(graph: Any) -> None:
    reads, convertible, _ = graph
    found = levels(reads, convertible, [1] * len(reads))
    assert [level % 2 == 0 for level in found] == convertible
    assert len({level for level in found if level % 2 == 0}) == alternations(reads, convertible)


def test_a_small_engine_joins_pytorch_and_its_neighbours_join_each_other() -> None:
    # conv -> nms -> view -> nms -> conv: the view alone is no engine.
    chain = [[], [0], [1], [2], [3]]
    assert levels(chain, [True, False, True, False, True], [5, 1, 0, 1, 5]) == [2, 3, 3, 3, 4]
