"""fp16=True and bf16=True: what is half, and what stays float32 because the model wants it so.

Sizes are multiples of eight: smaller products follow their inputs, and would show nothing.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.lowering import Conversion, to_network
from t2t.precision import Cast, Kind, Operand, Policy, after_cast, promoted
from t2t.reference import Program, capture

FP16, BF16 = Policy(torch.float16), Policy(torch.bfloat16)
LEAST = torch.finfo(torch.float32).min
# Half activations have 11 bits, bfloat16 ones 8.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
both = pytest.mark.parametrize("policy", [FP16, BF16], ids=["fp16", "bf16"])


def seeded(module: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return module().eval()


def program_of(conversion: Conversion) -> Program:
    return capture(conversion.network.raw, conversion.network.weights)


def converted(
    function: Callable[..., Any], inputs: Sequence[Tensor], policy: Policy = FP16
) -> tuple[list[Tensor], list[Tensor], Program]:
    """Return what the network gives, what torch gives in float32, and the network."""
    with torch.no_grad():
        conversion = to_network(function, [x.clone() for x in inputs], policy=policy)
        program = program_of(conversion)
        results = program.run([x.clone() for x in inputs])
        expected = function(*inputs)
    leaves = [expected] if isinstance(expected, Tensor) else list(expected)
    return [results[spec.name] for spec in conversion.signature.outputs], leaves, program


def check(function: Callable[..., Any], inputs: Sequence[Tensor], policy: Policy = FP16) -> Program:
    """Compare with float32, and see that something was half at all."""
    got, expected, program = converted(function, inputs, policy)
    assert policy.low is not None
    assert policy.low in {dtype for layer in program.layers for dtype in layer.dtypes}
    for result, wanted in zip(got, expected, strict=True):
        assert relative(result, wanted) < TOLERANCE[policy.low]
    return program


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def products(program: Program) -> list[torch.dtype]:
    """Return the dtypes of the matrix products and convolutions, in order."""
    kinds = ("MATRIX_MULTIPLY", "CONVOLUTION", "DECONVOLUTION")
    return [layer.dtype for layer in program.layers if layer.kind in kinds]


# -- the rules -------------------------------------------------------------------------------------

WEIGHT, HALF, WIDE, FLOAT, CAST = Kind.WEIGHT, Kind.HALF, Kind.WIDE, Kind.FLOAT, Kind.CAST
LOW, F32 = {torch.float32: torch.float16}, {}


@pytest.mark.parametrize(
    ("precision", "kinds", "dtypes", "kind"),
    [
        ("compute", [FLOAT, WEIGHT], LOW, HALF),
        ("compute", [FLOAT, FLOAT], LOW, HALF),
        ("compute", [CAST, WEIGHT], LOW, HALF),
        ("compute", [CAST, HALF], LOW, HALF),
        ("compute", [WIDE, WIDE], LOW, HALF),
        ("compute", [CAST, CAST], F32, CAST),
        ("compute", [CAST, FLOAT], F32, CAST),
        ("small", [WIDE, WEIGHT], LOW, HALF),
        ("small", [WIDE, FLOAT], F32, FLOAT),
        ("small", [CAST, WEIGHT], F32, CAST),
        ("follow", [], F32, FLOAT),
        ("follow", [WEIGHT], LOW, HALF),
        ("follow", [HALF, WEIGHT], LOW, HALF),
        ("follow", [HALF, WIDE], LOW, HALF),
        ("follow", [WIDE, WEIGHT], F32, WIDE),
        ("follow", [HALF, FLOAT], F32, FLOAT),
        ("follow", [WIDE, FLOAT], F32, FLOAT),
        ("follow", [CAST, HALF], F32, CAST),
        ("follow", [CAST, FLOAT], F32, CAST),
    ],
)
def test_kinds_decide(
    precision: Any, kinds: list[Kind], dtypes: dict[torch.dtype, torch.dtype], kind: Kind
) -> None:
    assert FP16.choose(precision, operands=[Operand(k, 2) for k in kinds]) == (dtypes, kind)


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        ([HALF], WIDE),
        ([WEIGHT], WIDE),
        ([WIDE, HALF], WIDE),
        ([FLOAT, HALF], FLOAT),
        ([CAST], CAST),
    ],
)
def test_delicate_operators_compute_in_float32(kinds: list[Kind], kind: Kind) -> None:
    choice = FP16.choose("sensitive", operands=[Operand(k, 2) for k in kinds])
    assert choice.kind is kind
    assert choice.dtypes[torch.float32] == choice.dtypes[torch.float16] == torch.float32


def test_tensors_without_dimensions_and_small_numbers_decide_nothing() -> None:
    assert promoted([Operand(HALF, 1), Operand(FLOAT, 0)]) is HALF
    assert promoted([Operand(WEIGHT, 1), Operand(CAST, 0)]) is WIDE
    assert promoted([Operand(HALF, 0), Operand(FLOAT, 0)]) is FLOAT
    half = [Operand(HALF, 1)]
    assert FP16.choose("follow", operands=half, numbers=[0.5, 2048, -1, math.inf]).kind is HALF
    assert FP16.choose("follow", operands=half, numbers=[-1e4]).kind is FLOAT
    assert FP16.choose("follow", operands=half, numbers=[1e-12]).kind is WIDE
    assert BF16.choose("follow", operands=half, numbers=[1e-12]).kind is HALF
    assert BF16.choose("follow", operands=half, numbers=[LEAST]).kind is FLOAT


def test_a_cast_goes_up_and_back_down() -> None:
    up, unknown, down = Cast("float32"), Cast("dtype"), Cast("like")
    assert [after_cast(kind, up) for kind in Kind] == [CAST] * 5
    assert [after_cast(kind, unknown) for kind in Kind] == [WEIGHT, CAST, CAST, FLOAT, WIDE]
    assert [after_cast(kind, down) for kind in Kind] == [WEIGHT, HALF, WIDE, FLOAT, WIDE]
    assert [after_cast(kind, down, HALF) for kind in Kind] == [WEIGHT, HALF, WIDE, WIDE, WIDE]
    assert [after_cast(kind, down, FLOAT) for kind in Kind] == [WEIGHT, CAST, CAST, FLOAT, CAST]


def test_named_modules_and_fp32_keep_torchs_types() -> None:
    policy = Policy(torch.float16, fp32_modules=("head", "layer*.norm"))
    half = [Operand(HALF, 2)]
    for scope in ("head", "head.0", "layer3.norm"):
        assert policy.choose("compute", scope, half) == ({}, FLOAT)
    assert policy.choose("compute", "body", half) == (LOW, HALF)
    assert FP16.choose("compute", "body", half, cast=Cast("region")) == ({}, FLOAT)
    assert Policy().choose("compute", "body", half).dtypes == {}
    assert Policy().choose("sensitive", "body", half).dtypes[torch.float16] == torch.float32


# -- casts -----------------------------------------------------------------------------------------

FLOAT_DTYPE = torch.float32
CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32),
    "to-dtype": lambda x: x.to(dtype=torch.float32),
    "to-float": lambda x: x.to(torch.float),
    "to-device": lambda x: x.to("cpu", torch.float32),
    "to-copy": lambda x: x.to(torch.float32, copy=True),
    "to-variable": lambda x: x.to(FLOAT_DTYPE),
    "to-tensor": lambda x: x.to(torch.ones(1)),
    "type": lambda x: x.type(torch.float32),
    "type-float": lambda x: x.type(torch.float),
    "type-name": lambda x: x.type("torch.FloatTensor"),
    "type-variable": lambda x: x.type(FLOAT_DTYPE),
    "type-as": lambda x: x.type_as(torch.ones(1)),
    "as-tensor": lambda x: torch.as_tensor(x, dtype=torch.float32),
    "unbound": lambda x: torch.Tensor.float(x),
    "bound": lambda x: x.float.__call__(),
    "mapped": lambda x: next(map(torch.Tensor.float, [x])),
}
casts = pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)


class Large(nn.Module):
    """Half values of about 600, then a function of them."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(32, 32), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x) * 600)


def large(function: Callable[[Tensor], Any]) -> nn.Module:
    return seeded(lambda: Large(function))


ROWS = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))


@both
@casts
def test_a_norm_in_float32(cast: Callable[[Tensor], Tensor], policy: Policy) -> None:
    def norm(y: Tensor) -> Tensor:
        wide = cast(y)
        shifted = wide + 1  # no square of a value with itself, which would be enough
        return y * torch.rsqrt((wide * shifted).mean(-1, keepdim=True) + 1e-6)

    check(large(norm), [ROWS], policy)


@casts
def test_products_of_what_was_cast_stay_float32(cast: Callable[[Tensor], Tensor]) -> None:
    def scores(y: Tensor) -> Tensor:
        return cast(y) @ cast(y + 1).mT

    program = check(large(scores), [ROWS])
    assert products(program) == [torch.float16, torch.float32]


def test_products_of_inputs_that_were_cast_stay_float32() -> None:
    def scores(q: Tensor, k: Tensor) -> Tensor:
        return q.to(torch.float32) @ k.float().mT

    got, expected, program = converted(scores, [ROWS * 600, ROWS + 600])
    assert products(program) == [torch.float32]
    torch.testing.assert_close(got, expected)
    assert products(converted(lambda q, k: q @ k.mT, [ROWS, ROWS + 1])[2]) == [torch.float16]


class RMSNorm(nn.Module):
    """As language models have it: up to float32, and back to the input's type."""

    def __init__(self, back: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.back = nn.Parameter(torch.rand(32) + 0.5), back

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * self.back(wide, x)


BACK: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "to-dtype": lambda wide, x: wide.to(x.dtype),
    "to-variable": lambda wide, x: (lambda dtype: wide.to(dtype))(x.dtype),
    "type-as": lambda wide, x: wide.type_as(x),
    "to-tensor": lambda wide, x: wide.to(x),
}


@both
@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_a_cast_back_lets_the_next_product_be_half(
    back: Callable[[Tensor, Tensor], Tensor], policy: Policy
) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([RMSNorm(back), RMSNorm(back)])
            self.q, self.k, self.out = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.out(x) * 600
            q, k = self.norms[0](self.q(x)), self.norms[1](self.k(x))
            return (q @ k.mT).softmax(-1) @ x

    program = check(seeded(Block), [ROWS], policy)
    assert products(program) == [policy.low] * 5


def test_parameters_take_the_type_of_the_model_unless_they_are_cast() -> None:
    class Router(nn.Module):
        def __init__(self, cast: bool) -> None:
            super().__init__()
            self.weight, self.cast = nn.Parameter(torch.randn(16, 32)), cast
            self.linear = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            weight = self.weight.type(torch.float32) if self.cast else self.weight.to(x.dtype)
            return F.linear(y.type(torch.float32), weight)

    for cast, dtype in ((True, torch.float32), (False, torch.float16)):
        program = check(seeded(functools.partial(Router, cast)), [ROWS])
        assert products(program) == [torch.float16, dtype]


# -- regions without autocast ----------------------------------------------------------------------

REGIONS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", enabled=False),
    "amp": lambda: torch.amp.autocast(device_type="cpu", enabled=False),
    "cuda": lambda: torch.autocast("cuda", enabled=False),
    "cpu-amp": lambda: torch.amp.autocast_mode.autocast("cpu", torch.bfloat16, enabled=False),
}


@both
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_regions_without_autocast_are_float32(region: Callable[[], Any], policy: Policy) -> None:
    def function(y: Tensor) -> Tensor:
        with region():
            scores = y @ (y + 1).mT
            mean = (y * (y + 1)).mean(-1, keepdim=True)
        return (scores / 1e6) @ (y / mean)

    program = check(large(function), [ROWS], policy)
    assert products(program) == [policy.low, torch.float32, policy.low]


def test_a_decorated_function_is_a_region_and_one_may_be_inside() -> None:
    @torch.autocast("cpu", enabled=False)
    def square(y: Tensor) -> Tensor:
        return y @ (y + 1).mT

    def function(y: Tensor) -> Tensor:
        return square(y) / 1e6 + (y / 600) @ (y / 600).mT[:, :8]

    assert products(check(large(function), [ROWS])) == [torch.float16, torch.float32, torch.float32]

    # Another way to write a slice of all; one of fewer is no square.
    def part(y: Tensor, count: int) -> Tensor:
        return (y / 600) @ torch.narrow((y / 600).mT, 1, 0, count)

    for count, dtype in ((8, torch.float32), (7, torch.float16)):
        program = check(large(functools.partial(part, count=count)), [ROWS])
        assert products(program) == [torch.float16, dtype]

    def nested(y: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False), torch.autocast("cpu", torch.bfloat16):
            return y @ torch.ones(32, 16)

    conversion = to_network(large(nested), [ROWS], policy=FP16)
    assert products(program_of(conversion))[1] == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_functions_that_cast_are_regions() -> None:
    def norm(y: Tensor) -> Tensor:
        wide = y.float()
        return y * torch.rsqrt((wide * (wide + 1)).mean(-1, keepdim=True))

    def scaled(y: Tensor, position: Tensor) -> Tensor:
        return (y / 600) @ (y / 599).relu().mT + position.float()[:, None]

    module = torch.jit.script(large(norm))
    (got,), (expected,), _ = converted(module, [ROWS])
    assert relative(got, expected) < 2e-3
    check(large(torch.jit.script(norm)), [ROWS])
    plain = torch.jit.trace(scaled, (ROWS, torch.arange(8)))
    check(large(lambda y: plain(y, torch.arange(8))), [ROWS])


def test_after_an_exception_nothing_is_patched() -> None:
    methods = [getattr(torch.Tensor, name) for name in ("float", "to", "type", "type_as")]
    called, as_tensor = torch.jit.ScriptFunction.__call__, torch.as_tensor
    enter, inherited = torch.autocast.__enter__, "float" in vars(torch.Tensor)

    def function(y: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            raise ValueError(y.float().shape)

    with pytest.raises(ValueError, match="8, 32"):
        to_network(large(function), [ROWS], policy=FP16)
    assert methods == [getattr(torch.Tensor, name) for name in ("float", "to", "type", "type_as")]
    assert torch.autocast.__enter__ is enter
    assert torch.jit.ScriptFunction.__call__ == called
    assert torch.as_tensor is as_tensor
    assert ("float" in vars(torch.Tensor)) is inherited
    assert ROWS.float() is ROWS
    # The next conversion is in no region.
    assert products(check(large(lambda y: y @ (y / 600).relu().mT), [ROWS])) == [torch.float16] * 2


def test_casts_are_no_layers_in_float32() -> None:
    def function(x: Tensor) -> Tensor:
        return x.view(4, 2, 32).float().transpose(0, 1).to(x.dtype).reshape(8, 32)

    plain = to_network(lambda x: x.view(4, 2, 32).transpose(0, 1).reshape(8, 32), [ROWS])
    cast = to_network(function, [ROWS])
    assert cast.network.raw.num_layers == plain.network.raw.num_layers


def test_writes_through_a_cast_reach_the_tensor() -> None:
    def function(y: Tensor) -> Tensor:
        wide = y.float()
        wide += 1
        wide[:, :8].mul_(2)
        return y

    check(large(function), [ROWS])


# -- half meets float32 ----------------------------------------------------------------------------


class Warp(nn.Module):
    """Flow from half products, added to a table of pixel coordinates."""

    def __init__(self, table: Callable[[int, int, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.flow, self.make = nn.Conv2d(8, 8, 3, padding=1), table
        self.register_buffer("table", pixels(24, 1920, torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        table = self.table if self.make is None else self.make(24, 1920, x)
        place = table + self.flow(x)[:, :2] * 4
        scale = torch.tensor([2 / 1919, 2 / 23]).reshape(1, 2, 1, 1)
        grid = (place * scale - 1).permute(0, 2, 3, 1)
        return place, F.grid_sample(x, grid, align_corners=True)


def pixels(height: int, width: int, dtype: torch.dtype) -> Tensor:
    y, x = torch.meshgrid(
        torch.arange(height, dtype=dtype), torch.arange(width, dtype=dtype), indexing="ij"
    )
    return torch.stack([x, y])[None]


TABLES: dict[str, Callable[[int, int, Tensor], Tensor] | None] = {
    "buffer": None,
    "arange": lambda h, w, x: pixels(h, w, torch.float32),
    "integers": lambda h, w, x: pixels(h, w, torch.int64),
    "of-the-inputs-type": lambda h, w, x: pixels(h, w, torch.int64).to(x.dtype),
    "type-as": lambda h, w, x: pixels(h, w, torch.int64).type_as(x),
    "sums": lambda h, w, x: torch.stack(
        [torch.ones(h, w).cumsum(1) - 1, torch.ones(h, w).cumsum(0) - 1])[None],
    "of-the-input": lambda h, w, x: torch.cat(
        [(x[:, :1] * 0 + 1).cumsum(3) - 1, (x[:, :1] * 0 + 1).cumsum(2) - 1], 1),
}  # fmt: skip


def test_a_table_in_a_parameter() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)
            self.table = nn.Parameter(torch.arange(32.0) * 77, requires_grad=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.linear(x)
            return y + self.table, torch.cat([y, self.table.expand(8, 32)])

    got, expected, _ = converted(seeded(Model), [ROWS])
    for result, wanted in zip(got, expected, strict=True):
        assert float((result - wanted).abs().max()) < 0.01


@both
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_warp_keeps_its_coordinates(table: Any, policy: Policy) -> None:
    x = torch.rand(1, 8, 24, 1920, generator=torch.Generator().manual_seed(0))
    got, expected, program = converted(seeded(lambda: Warp(table)), [x], policy)
    assert products(program) == [policy.low]
    # Of a pixel: the flow itself is half.
    assert float((got[0] - expected[0]).abs().max()) < (0.01 if policy is FP16 else 0.05)
    assert relative(got[1], expected[1]) < 2e-2


class Rotary(nn.Module):
    """Attention with rotary embedding, far from the beginning."""

    def __init__(self, angles: Callable[[Rotary, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))
        self.angles = angles
        self.register_buffer("inverse", 1 / 10000 ** (torch.arange(0, 64, 2) / 64))
        table = torch.outer(torch.arange(30_000 + 16).float(), self.inverse)
        self.register_buffer("cos", torch.cat([table, table], -1).cos())
        self.register_buffer("sin", torch.cat([table, table], -1).sin())

    def forward(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = self.angles(self, x, position)
        q, k = (y * cos + turned(y) * sin for y in (self.q(x), self.k(x)))
        return q, k, (q @ k.mT / 8).softmax(-1) @ self.v(x)


def turned(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 32:], x[..., :32]], -1)


def waves(table: Tensor) -> tuple[Tensor, Tensor]:
    twice = torch.cat([table, table], -1)
    return twice.cos(), twice.sin()


def outer(model: Rotary, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    inverse = model.inverse[None, :, None].float().expand(len(position), -1, 1)
    with torch.autocast(device_type="cpu", enabled=False):
        table = (inverse.float() @ position[:, None, :].float()).transpose(1, 2)
        cos, sin = waves(table)
    return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


ANGLES: dict[str, Callable[[Rotary, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "buffer": lambda m, x, p: (m.cos[p], m.sin[p]),
    "buffer-cast": lambda m, x, p: (m.cos[p].to(x.dtype), m.sin[p].type_as(x)),
    "product": lambda m, x, p: waves(p[..., None] * m.inverse),
    "product-cast": lambda m, x, p: waves(p[..., None].float() * m.inverse),
    "einsum": lambda m, x, p: waves(torch.einsum("bi,j->bij", p.to(m.inverse.dtype), m.inverse)),
    "outer": lambda m, x, p: waves(torch.outer(p[0].type_as(m.inverse), m.inverse)),
    "arange": lambda m, x, p: waves(torch.outer(torch.arange(30_000, 30_016.0), m.inverse)),
    "matmul-in-float32": outer,
}


@both
@pytest.mark.parametrize("angles", ANGLES.values(), ids=ANGLES)
def test_rotary_embedding_far_from_the_beginning(angles: Any, policy: Policy) -> None:
    x = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0))
    position = torch.arange(30_000, 30_016)[None]
    program = check(seeded(lambda: Rotary(angles)), [x, position], policy)
    assert products(program)[-2:] == [policy.low] * 2  # attention itself


def test_rotary_embedding_of_a_dynamic_length() -> None:
    class Model(Rotary):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            position = torch.arange(30_000, 30_000 + x.shape[1], device=x.device)[None]
            return super().forward(x, position)

    module = seeded(lambda: Model(outer))
    short, long = (torch.randn(1, length, 64) for length in (16, 24))
    conversion = to_network(module, [short], policy=FP16, dynamic_shapes=[{1: (8, 32)}])
    program = program_of(conversion)
    for x in (short, long):
        with torch.no_grad():
            expected = module(x)
        results = program.run([x])
        for spec, wanted in zip(conversion.signature.outputs, expected, strict=True):
            assert relative(results[spec.name], wanted) < 2e-3


# -- masks -----------------------------------------------------------------------------------------

MASKS: dict[str, Callable[[Tensor, float, Tensor], Tensor]] = {
    "input": lambda m, value, s: (1 - m.float())[:, None, None] * value,
    "where": lambda m, value, s: torch.where(m, 0.0, value)[:, None, None],
    "where-tensor": lambda m, value, s: torch.where(m, 0.0, torch.tensor(value))[:, None, None],
    "zeros": lambda m, value, s: torch.zeros(2, 16).masked_fill(~m, value)[:, None, None],
    "zeros-like": lambda m, value, s: torch.zeros_like(s).masked_fill_(~m[:, None, None], value),
    "full": lambda m, value, s: torch.full_like(s, value) * ~m[:, None, None],
    "integers": lambda m, value, s: (1 - m.long())[:, None, None] * value,
    "inverted": lambda m, value, s: m.to(s.dtype).sub(1).mul(-value)[:, None, None],
}


class Scores(nn.Module):
    """Hand-written attention: scores, an additive mask, a softmax."""

    def __init__(self, mask: Callable[[Tensor, float, Tensor], Tensor], value: float) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.mask, self.value = mask, value

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / 4
        return (scores + self.mask(m, self.value, scores)).softmax(-1) @ v


@both
@pytest.mark.parametrize("value", [-1e4, -1e5, -1e9, -1e12, LEAST])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_additive_masks(mask: Any, value: float, policy: Policy) -> None:
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0)) * 4
    seen = torch.arange(16) < torch.tensor([[11], [0]])  # the second may see nothing
    check(seeded(lambda: Scores(mask, value)), [x, seen], policy)


@both
@pytest.mark.parametrize("value", [-1e4, -1e9, LEAST])
def test_additive_masks_in_buffers_and_products(value: float, policy: Policy) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)
            mask = torch.full((16, 16), value).triu(1)
            mask[3] = value
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            q, k = self.q(x), self.k(x).mT
            added = torch.baddbmm(self.mask, q, k, alpha=0.2)
            single = torch.addmm(self.mask, q[0], k[0], alpha=0.2)
            return ((q @ k) * 0.2 + self.mask).softmax(-1), added.softmax(-1), single.softmax(-1)

    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0)) * 4
    check(seeded(Model), [x], policy)


@both
def test_a_mask_of_multi_head_attention(policy: Policy) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.attention = nn.Linear(32, 32), nn.MultiheadAttention(32, 2)

        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            return self.attention(*[self.inner(x)] * 3, attn_mask=mask)

    mask = torch.full((16, 16), LEAST).triu(1)
    mask[5] = LEAST
    check(seeded(Model), [torch.randn(16, 2, 32), mask], policy)


CAPTURED = F.scaled_dot_product_attention


@both
@pytest.mark.parametrize("captured", [False, True], ids=["patched", "captured"])
@pytest.mark.parametrize("width", [16, 8], ids=["as-wide", "narrower"])
@pytest.mark.parametrize("value", [-1e4, -1e9, LEAST])
def test_masks_of_attention(captured: bool, width: int, value: float, policy: Policy) -> None:
    q, k, v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, width)

    def function(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        attend = CAPTURED if captured else F.scaled_dot_product_attention
        return attend(q(x), k(y), v(y), mask)

    x, y = torch.randn(1, 2, 16, 16), torch.randn(1, 2, 24, 16)
    mask = torch.full((16, 24), value).triu(1)
    mask[3] = value
    check(function, [x, y, mask], policy)


# -- boxes -----------------------------------------------------------------------------------------


class Boxes(nn.Module):
    """A detector's box decoding: a distribution of distances, anchors and strides."""

    def __init__(self, mean: str, anchors: str) -> None:
        super().__init__()
        self.distances, self.classes = nn.Conv2d(16, 64, 1), nn.Conv2d(16, 16, 1)
        self.mean = nn.Conv2d(16, 1, 1, bias=False).requires_grad_(False)
        self.mean.weight.data[:] = torch.arange(16.0).view(1, 16, 1, 1)
        self.project, self.how, self.anchors = torch.arange(16.0), mean, anchors
        for name, tensor in zip(("centres", "strides"), self.make(torch.ones(1)), strict=True):
            self.register_buffer(name, tensor)

    def make(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.arange(40, device=x.device, dtype=x.dtype) + 0.5
        x = torch.arange(240, device=x.device, dtype=x.dtype) + 0.5
        y, x = torch.meshgrid(y, x, indexing="ij")
        return torch.stack([x, y]).reshape(2, -1)[None], torch.full((1, 40 * 240), 8.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        bins = self.distances(x).flatten(2).view(1, 4, 16, -1)
        if self.how == "convolution":
            sides = self.mean(bins.transpose(2, 1).softmax(1)).view(1, 4, -1)
        else:
            weights = bins.permute(0, 3, 1, 2).softmax(3)
            sides = weights.matmul(self.project.type(bins.dtype)).transpose(1, 2)
        centres, strides = self.make(x) if self.anchors == "made" else (self.centres, self.strides)
        before, after = sides.chunk(2, 1)
        low, high = centres - before, centres + after
        boxes = torch.cat([(low + high) / 2, high - low], 1) * strides
        return boxes, torch.cat([boxes, self.classes(x).flatten(2).sigmoid()], 1)


@pytest.mark.parametrize("anchors", ["buffer", "made"])
@pytest.mark.parametrize("mean", ["convolution", "matmul"])
def test_boxes_of_a_detector_at_1920_pixels(mean: str, anchors: str) -> None:
    x = torch.randn(1, 16, 40, 240, generator=torch.Generator().manual_seed(0))
    got, expected, program = converted(seeded(lambda: Boxes(mean, anchors)), [x])
    assert products(program).count(torch.float16) == 2
    assert float(expected[0].max()) > 1900
    for result, wanted in zip(got, expected, strict=True):
        assert float((result - wanted).abs().max()) < 0.05


# -- what leaves half's range ----------------------------------------------------------------------

SQUARES: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda y: (y * y).mean(-1),
    "sum": lambda y: (y * y).sum(),
    "power": lambda y: y.pow(2).mean(-1),
    "square": lambda y: torch.square(y).mean(-1),
    "multiply": lambda y: torch.multiply(y, y).mean(-1),
    "in-place": lambda y: y.clone().mul_(y).mean(-1),
    "conjugate": lambda y: (y * y.conj()).mean(-1),
    "absolute": lambda y: (y.abs() * y.abs()).sum(-1),
    "centred": lambda y: ((y - 1) * (y - 1)).mean(-1),
    "scaled": lambda y: (y * y * 2).mean(-1),
    "cube": lambda y: (y * y * y).mean(-1),
    "transposed": lambda y: (y.view(8, 4, 8) * y.reshape(8, 4, 8)).sum((1, 2)),
    "addcmul": lambda y: torch.addcmul(torch.zeros(32), y, y).mean(-1),
    "vecdot": lambda y: torch.linalg.vecdot(y, y),
    "dot": lambda y: torch.dot(y[0], y[0]),
    "einsum": lambda y: torch.einsum("bi,bi->b", y, y),
    "einsum-matrix": lambda y: torch.einsum("bi,ci->bc", y, y),
    "matmul": lambda y: y @ y.mT,
    "mm": lambda y: torch.mm(y, y.t()),
    "bmm": lambda y: torch.bmm(y[None], y[None].transpose(1, 2)),
    "matmul-scaled": lambda y: 2 * y @ -y.mT,
    "inner": lambda y: torch.inner(y, y),
    "norm": lambda y: y.norm(dim=-1),
    "variance": lambda y: y.var(-1),
    "mse": lambda y: F.mse_loss(y, torch.zeros_like(y)),
    "cosine": lambda y: F.cosine_similarity(y, y + 1),
    "cdist": lambda y: torch.cdist(y, y + 300),
}


@pytest.mark.parametrize("square", SQUARES.values(), ids=SQUARES)
def test_squares_do_not_overflow(square: Callable[[Tensor], Tensor]) -> None:
    check(large(square), [ROWS])


def test_other_products_of_alike_values_are_half() -> None:
    program = check(large(lambda y: (y / 99) @ (y / 99).relu().mT), [ROWS])
    assert products(program) == [torch.float16] * 2


EPSILONS: dict[str, Callable[[Tensor], Tensor]] = {
    "rsqrt": lambda y: y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-12),
    "division": lambda y: y / (y.abs() + 1e-12),
    "sum": lambda y: y / (y.abs().sum(-1, keepdim=True) + 1e-15),
    "clamp": lambda y: y / y.abs().clamp(min=1e-9),
    "norm": lambda y: y / y.norm(dim=-1, keepdim=True).clamp_min(1e-12),
    "log": lambda y: (y.abs() + 1e-12).log(),
    "tensor": lambda y: y / (y.abs() + torch.tensor(1e-12)),
}


@pytest.mark.parametrize("divided", EPSILONS.values(), ids=EPSILONS)
def test_epsilons_below_halfs_range_keep_zeros_finite(divided: Callable[[Tensor], Tensor]) -> None:
    linear = nn.Linear(32, 32, bias=False)
    x = ROWS.clone()
    x[2] = 0
    check(lambda x: divided(linear(x)), [x])


def test_divisors_and_bounds_are_no_large_values() -> None:
    def function(y: Tensor) -> tuple[Tensor, ...]:
        y = y / 600
        mean = y.sum(-1, keepdim=True) / 5000
        return (y * mean).clamp(-1e5, 1e5) + y, y / 1e5, y / 50_000, y * mean / 1e-3

    program = check(large(function), [ROWS])
    sums = [layer for layer in program.layers if layer.name.startswith("add")]
    assert [layer.dtype for layer in sums] == [torch.float16]


def test_large_factors_and_integers_beside_half() -> None:
    def function(y: Tensor) -> tuple[Tensor, ...]:
        return y.sigmoid() * 1e6, y + torch.arange(32) * 70_000, y * 1e30

    check(large(function), [ROWS])


@both
def test_linear_attention_in_float32(policy: Policy) -> None:
    class Attention(nn.Module):
        """Without a softmax: divided by a sum with an epsilon that half does not have."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (self.qkv(x) * 40).chunk(3, -1)
            q, k, v = q.relu().float(), k.relu().float(), F.pad(v, (0, 1), value=1.0).float()
            with torch.autocast("cpu", enabled=False):
                y = q @ (k.mT @ v)
                y = y[..., :-1] / (y[..., -1:] + 1e-15)
            return self.out(y)

    check(seeded(Attention), [torch.randn(2, 64, 32)], policy)


# -- what it costs ---------------------------------------------------------------------------------


class Block(nn.Module):
    """A transformer layer, before or after whose parts it normalizes."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norms, self.first = nn.ModuleList([nn.LayerNorm(32), nn.LayerNorm(32)]), first

    def forward(self, x: Tensor) -> Tensor:
        for part, norm in zip((self.attend, self.feed), self.norms, strict=True):
            x = x + part(norm(x)) if self.first else norm(x + part(x))
        return x

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        y = (q @ k.mT / 4).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Encoder(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(1, 16, 32))
        self.blocks = nn.Sequential(*[Block(first) for _ in range(3)])

    def forward(self, words: Tensor) -> Tensor:
        return self.blocks(self.words(words) + self.places)


@pytest.mark.parametrize("first", [True, False], ids=["pre-norm", "post-norm"])
def test_residual_streams_stay_half(first: bool) -> None:
    program = check(seeded(lambda: Encoder(first)), [torch.randint(50, (2, 16))])
    assert set(products(program)) == {torch.float16}
    casts = [layer for layer in program.layers if layer.kind == "CAST"]
    # Each norm and each softmax: up and down; after a norm, the sum with half goes up once more.
    assert len(casts) <= 3 * (6 if first else 8) + 1
    sums = [layer for layer in program.layers if "add" in layer.name and "/" in layer.name]
    if first:
        assert {layer.dtype for layer in sums if layer.kind == "ELEMENTWISE"} == {torch.float16}


def test_casts_are_shared_and_none_is_undone() -> None:
    def function(y: Tensor) -> tuple[Tensor, Tensor]:
        up = y.float()
        return (up.sin() + y.cos()) * y.float(), up @ torch.ones(32, 16)

    _, _, program = converted(large(function), [ROWS / 600])
    casts = [(layer.inputs[0], layer.dtype) for layer in program.layers if layer.kind == "CAST"]
    assert len(casts) == len(set(casts))
    made = {layer.outputs[0]: layer for layer in program.layers}
    for source, _ in casts:
        assert source not in made or made[source].kind != "CAST"


def test_a_sum_of_a_norm_is_not_rounded_where_it_is_moved() -> None:
    class Downsampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
            self.before, self.behind = nn.LayerNorm(32), nn.LayerNorm(32)

        def forward(self, x: Tensor) -> Tensor:
            y = self.before(self.first(x))
            return self.behind((y + self.second(y)).transpose(0, 1))

    program = check(seeded(Downsampled), [ROWS.expand(3, -1, -1)])
    # The input and the norm come down to the products, which go up for the norm and the sum.
    assert sum(layer.kind == "CAST" for layer in program.layers) == 4


def test_frozen_batch_norm_is_half() -> None:
    from torchvision.ops import FrozenBatchNorm2d

    model = nn.Sequential(nn.Conv2d(8, 8, 3), FrozenBatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    for buffer in model[1].buffers():
        buffer.copy_(torch.rand(8) + 0.5)
    program = check(model.eval(), [torch.randn(1, 8, 12, 12)])
    assert sum(layer.kind == "CAST" for layer in program.layers) == 2


SMALL: dict[str, tuple[Callable[..., Tensor], Sequence[tuple[int, ...]]]] = {
    "points": (lambda x, m: x @ m.mT, [(100, 3), (3, 3)]),
    "cameras": (lambda x, m: torch.bmm(x, m), [(2, 100, 4), (2, 4, 4)]),
    "linear": (lambda x, m: F.linear(x, m), [(100, 16), (3, 16)]),
    "outer": (lambda x, m: torch.outer(x, m), [(100,), (32,)]),
    "outer-einsum": (lambda x, m: torch.einsum("i,j->ij", x, m), [(100,), (32,)]),
    "weights-einsum": (
        lambda x, m: torch.einsum("bk,kc->bc", x.softmax(-1), (m * 0 + 1).cumsum(0)),
        [(8, 100), (100, 2)],
    ),
    "weights": (lambda x, m: x.softmax(-1) @ (m * 0 + 1).cumsum(0), [(8, 100), (100, 2)]),
    "mean": (lambda x, m: x.softmax(-1) @ (m * 0 + 1).cumsum(0), [(8, 100), (100,)]),
}


@pytest.mark.parametrize(("function", "shapes"), SMALL.values(), ids=SMALL)
def test_small_products_of_float32_are_float32(
    function: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, m = (torch.randn(shape, generator=generator) * 1920 for shape in shapes)
    got, expected, program = converted(function, [x, m])
    assert torch.float16 not in {dtype for layer in program.layers for dtype in layer.dtypes}
    assert relative(got[0], expected[0]) < 1e-6


def test_a_small_head_is_half() -> None:
    head = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 3)).eval()
    assert products(check(head, [ROWS])) == [torch.float16] * 2


def test_a_module_kept_in_float32_keeps_its_large_values() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.wide, self.norm = (
                nn.Linear(32, 32),
                nn.Linear(32, 32),
                nn.LayerNorm(32),
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.norm(y + self.wide(y) * 1.0)

    model = seeded(Model)
    with torch.no_grad():
        model.wide.weight.mul_(1e6)
    program = check(model, [ROWS], Policy(torch.float16, ("wide",)))
    assert products(program) == [torch.float16, torch.float32]
    (overflows,), _, _ = converted(model, [ROWS])
    assert not overflows.isfinite().all()


# -- half models -----------------------------------------------------------------------------------


def test_half_models_keep_their_own_casts() -> None:
    model = nn.Linear(32, 32).half().eval()

    def function(x: Tensor) -> Tensor:
        y = model(x) * 600
        return y * torch.rsqrt((y.float() * y.float()).mean(-1, keepdim=True) + 1e-6).to(y.dtype)

    x = ROWS.half()
    with torch.no_grad():
        expected = function(x)
        for policy in (Policy(), FP16):
            (got,) = program_of(to_network(function, [x], policy=policy)).run([x]).values()
            assert got.dtype == torch.float16
            assert relative(got, expected) < 2e-3


def test_models_under_autocast_keep_torchs_types() -> None:
    model = nn.Linear(32, 32).eval()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            return y, y.float() @ y.float().mT

    with torch.no_grad():
        expected = function(ROWS)
        program = program_of(to_network(function, [ROWS]))
    got = program.run([ROWS])
    for result, wanted in zip(got.values(), expected, strict=True):
        assert result.dtype == wanted.dtype == torch.bfloat16
        assert relative(result, wanted) < 1.6e-2


def test_every_bfloat16_weight_of_a_network_is_known_without_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 4, 2), nn.PReLU(4),
        nn.Flatten(), nn.Linear(196, 5), nn.LayerNorm(5),
    ).eval()  # fmt: skip
    model[1].running_mean.normal_()
    x = torch.randn(2, 3, 8, 8)
    conversion = to_network(model, x, policy=BF16)

    def from_pointer(name: str, weights: object) -> torch.Tensor:
        raise AssertionError(f"{name} is read from an address")

    monkeypatch.setattr(sys.modules[capture.__module__], "_from_pointer", from_pointer)
    program = capture(conversion.network.raw, conversion.network.weights)
    del conversion
    for other in (x, x.flip(0) * 2):
        (result,) = program.run([other]).values()
        expected = model(other).detach()
        assert float((result - expected).norm() / expected.norm()) < 2e-2
