"""Comparisons, logic, choices, clamping and extremes of two."""

from __future__ import annotations

import pytest
import torch

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

FP16 = Policy(torch.float16)
HALF = "half has 11 bits"
INF, NAN = torch.inf, torch.nan
NAN_BOUNDS = bool(torch.ones(9).clamp(min=NAN).isnan().all())
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 1.0])
NUMBERS = SPECIAL.reshape(-1, 1)
BOOLS = torch.tensor([[True, True, False, False], [True, False, True, False]])
INTS = integers(2, 5, low=-3, high=4)
BYTES = integers(2, 5, low=0, high=4, dtype=torch.uint8)


def compared(name: str, layers: int, int_layers: int) -> list[OpCase]:
    """Give rows for one comparison."""
    function = getattr(torch, name)
    return [
        OpCase(name, function, [(2, 5), (2, 5)], layers=layers),
        OpCase(f"{name}-special", function, [SPECIAL, NUMBERS]),
        OpCase(f"{name}-scalar", lambda x: getattr(x, name)(0.5), [(2, 5)]),
        OpCase(f"{name}-int", function, [INTS, INTS], layers=int_layers),
        OpCase(f"{name}-int-scalar", lambda x: function(x, 1), [INTS]),
        OpCase(f"{name}-int-with-float", lambda x: function(x, 0.5), [INTS]),
        OpCase(f"{name}-int-float", function, [INTS, (2, 5)]),
        OpCase(f"{name}-bool", lambda x: function(x[0], x[1]), [BOOLS]),
        OpCase(f"{name}-bool-scalar", lambda x: function(x, 1), [BOOLS]),
        OpCase(f"{name}-byte", function, [BYTES, BYTES]),
        OpCase(f"{name}-0d", function, [(), (2, 5)]),
        OpCase(f"{name}-size", lambda x: function(x, x.size(0)), [uniform(3, 5, high=9.0)]),
    ]


COMPARED = [
    *compared("eq", 1, 1),
    *compared("ne", 2, 2),
    *compared("lt", 1, 1),
    *compared("gt", 1, 1),
    *compared("le", 3, 2),
    *compared("ge", 3, 2),
    OpCase("lt-operator", lambda x, y: (x < y) & (y > 0), [(2, 5), (5,)]),
    OpCase("gt-dynamic-size", lambda x: x > x.size(0) - 4, [(2, 5)],
           dynamic=[{0: (1, 8)}], shapes=[(5, 5)]),
    OpCase("eq-half", lambda x: x == 0.5, [torch.tensor([0.5, 1.0], dtype=torch.half)]),
    OpCase("isclose", torch.isclose, [torch.tensor([1.0, 2.0, NAN, INF]),
                                      torch.tensor([1.00001, 2.1, NAN, INF])]),
    # PyTorch 2.11 and older do not broadcast here.
    OpCase(
        "isclose-nan", torch.isclose, [SPECIAL.expand(8, 8), NUMBERS.expand(8, 8)],
        {"equal_nan": True, "atol": 0.6},
    ),
]  # fmt: skip

LOGIC = [
    OpCase("logical-and", torch.logical_and, [INTS, (2, 5)]),
    OpCase("logical-and-bool", lambda x: torch.logical_and(x[0], x[1]), [BOOLS]),
    OpCase("logical-or", torch.logical_or, [SPECIAL, NUMBERS]),
    OpCase("logical-xor", torch.logical_xor, [INTS, BYTES]),
    OpCase("logical-not", torch.logical_not, [SPECIAL]),
    OpCase("logical-not-bool", torch.logical_not, [BOOLS], layers=1),
    OpCase("logical-not-int", torch.logical_not, [INTS]),
    OpCase("logical-not-byte", torch.logical_not, [BYTES]),
]

CHOICES = [
    OpCase("where", torch.where, [BOOLS, (2, 4), (2, 4)], layers=1),
    OpCase("where-broadcast", torch.where, [BOOLS, (4,), (3, 1, 1)]),
    OpCase("where-scalar", lambda c, x: torch.where(c, x, 0.0), [BOOLS, (2, 4)]),
    OpCase("where-scalar-left", lambda c, x: torch.where(c, 1, x), [BOOLS, (2, 4)]),
    OpCase("where-scalars", lambda c: torch.where(c, 1.5, -1.0), [BOOLS]),
    OpCase("where-method", lambda x: x.where(x > 0, -x), [(2, 4)]),
    OpCase("where-promotion", torch.where, [BOOLS, integers(2, 4), (2, 4)]),
    OpCase("where-int", torch.where, [BOOLS, integers(2, 4), integers(4)]),
    OpCase("where-bool", lambda c: torch.where(c, c[0], ~c[1]), [BOOLS]),
    OpCase("where-byte", lambda c, x: torch.where(c, x, x * 2),
           [BOOLS, integers(2, 4, high=200, dtype=torch.uint8)]),
    OpCase("where-nan", lambda x: torch.where(torch.isnan(x), 0.0, x), [SPECIAL]),
    OpCase("where-dynamic", lambda x: torch.where(x > 0, x, x.new_zeros(())), [(2, 4)],
           dynamic=[{0: (1, 8)}], shapes=[(5, 4)]),
    OpCase("where-places", lambda x: torch.where(x > 0), [(2, 4)], raises="nonzero|depends on"),
    OpCase("where-fp16", lambda x: torch.where(x > 0, x * 2, -1.0),
           [uniform(2, 4, dtype=torch.half)], policy=FP16, rtol=2e-2, atol=2e-2, reason=HALF),
    OpCase("masked-fill", lambda x: x.masked_fill(x > 0, 2.0), [(2, 4)]),
    OpCase("masked-fill-broadcast", lambda x: x.masked_fill(x[0] > 0, -INF), [(2, 4)]),
    OpCase("masked-fill-tensor", lambda x, v: x.masked_fill(x > 0, v), [(2, 4), ()]),
    OpCase("masked-fill-int", lambda x: x.masked_fill(x > 0, 7), [INTS]),
    OpCase("masked-fill-in-place", lambda x: x.mul(2).masked_fill_(x > 0, 0), [(2, 4)]),
    OpCase("masked-fill-fp16", lambda x: x.masked_fill(x > 0, -1e9).clamp(min=-1e4),
           [uniform(2, 4)], policy=FP16),
    OpCase("nan-to-num", torch.nan_to_num, [SPECIAL]),
    OpCase("nan-to-num-all", torch.nan_to_num, [SPECIAL],
           {"nan": 2.0, "posinf": 3.0, "neginf": -4.0}),
    OpCase("nan-to-num-int", lambda x: torch.nan_to_num(x) + 1, [INTS]),
]  # fmt: skip

BOUNDS = [
    OpCase("clamp", torch.clamp, [(2, 5)], {"min": -1, "max": 0.5}, layers=6),
    OpCase("clamp-special", torch.clamp, [SPECIAL], {"min": -1, "max": 0.5}),
    OpCase("clamp-min", torch.clamp, [SPECIAL], {"min": 0.25}),
    OpCase("clamp-min-0", torch.clamp, [(2, 5)], {"min": 0}, layers=1),
    OpCase("clamp-max", lambda x: x.clamp(max=0.25), [SPECIAL]),
    OpCase("clamp-crossed", torch.clamp, [(2, 5)], {"min": 1, "max": -1}),
    OpCase("clamp-infinite", lambda x: torch.clamp(x, -INF, INF) + 1, [SPECIAL], layers=2),
    # PyTorch 2.11 and older take it for no bound, though not with a bound of a tensor.
    *([OpCase("clamp-nan", torch.clamp, [(2, 5)], {"min": NAN})] if NAN_BOUNDS else []),
    OpCase("clamp-int", torch.clamp, [INTS], {"min": -1, "max": 2}),
    OpCase("clamp-int-float", torch.clamp, [INTS], {"min": -1.5, "max": 2}),
    OpCase("clamp-byte", torch.clamp, [BYTES], {"min": 1, "max": 2}),
    OpCase("clamp-tensors", torch.clamp, [(2, 5), (5,), (2, 1)]),
    OpCase("clamp-tensor-min", lambda x, low: x.clamp(min=low), [SPECIAL, NUMBERS]),
    OpCase("clamp-tensor-max", lambda x, high: x.clamp(max=high), [SPECIAL, NUMBERS]),
    OpCase("clamp-in-place", lambda x: x.mul(2).clamp_(-1, 1), [(2, 5)]),
    OpCase("clamp-size", lambda x: x.mul(9).clamp(0, x.size(0) - 1), [(2, 5)],
           dynamic=[{0: (1, 8)}], shapes=[(5, 5)]),
    OpCase("clamp-fp16", lambda x: x.mul(2).clamp(-1, 1), [uniform(2, 5, dtype=torch.half)],
           policy=FP16, rtol=2e-2, atol=2e-2, reason=HALF),
    OpCase("clip", torch.clip, [(2, 5)], {"min": -0.5, "max": 0.5}),
    OpCase("clamp-min-op", torch.clamp_min, [(2, 5)], {"min": 0.1}),
    OpCase("clamp-min-op-tensor", torch.clamp_min, [(2, 5), (5,)]),
    OpCase("clamp-max-op", torch.clamp_max, [(2, 5)], {"max": 0.1}),
    OpCase("clamp-max-op-tensor", torch.clamp_max, [(2, 5), (5,)]),
    OpCase("maximum", torch.maximum, [SPECIAL, NUMBERS]),
    OpCase("maximum-constant", lambda x: torch.maximum(x, torch.tensor(0.5)), [SPECIAL]),
    OpCase("maximum-constant-left", lambda x: torch.maximum(torch.tensor(0.5), x), [SPECIAL]),
    OpCase("maximum-int", torch.maximum, [INTS, INTS], layers=1),
    OpCase("maximum-promotion", torch.maximum, [INTS, (2, 5)]),
    OpCase("maximum-bool", lambda x: torch.maximum(x[0], x[1]), [BOOLS]),
    OpCase("max-other", lambda x: torch.max(*x.chunk(2, 1)), [(1, 6, 4, 4)]),
    OpCase("minimum", torch.minimum, [SPECIAL, NUMBERS]),
    OpCase("minimum-bool", lambda x: torch.minimum(x[0], x[1]), [BOOLS]),
    OpCase("minimum-byte", torch.minimum, [BYTES, BYTES]),
    OpCase("min-other", torch.min, [(2, 5), (5,)]),
    OpCase("fmax", torch.fmax, [SPECIAL, NUMBERS]),
    OpCase("fmax-int", torch.fmax, [INTS, INTS]),
    OpCase("fmin", torch.fmin, [SPECIAL, NUMBERS]),
    OpCase("fmin-int", torch.fmin, [INTS, INTS]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(COMPARED + LOGIC + CHOICES + BOUNDS))
def test_comparison(case: OpCase) -> None:
    run_case(case)
