"""Functions of one number, and casts."""

from __future__ import annotations

import pytest
import torch

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

FP16 = Policy(torch.float16)
HALF = "half has 11 bits"
INF, NAN = torch.inf, torch.nan
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, 7.0, -1.0])
SMALL = torch.tensor([1e-8, -1e-8, 3e-5, -3e-5, 1e-3, 0.1, -0.4, 0.6, 3.0, 40.0])
INTS = integers(2, 5, low=-9, high=10)
BYTES = integers(2, 5, low=0, high=256, dtype=torch.uint8)
SIGNED_BYTES = integers(2, 5, low=-128, high=128, dtype=torch.int8)
BOOLS = torch.tensor([True, False])
UNIT = uniform(2, 5, low=-0.99, high=0.99)


def one_layer(name: str, *inputs: object) -> list[OpCase]:
    """Give rows for a function that is one layer: real, special and integer values."""
    function = getattr(torch, name)
    return [
        OpCase(name, function, inputs or [(2, 5)], layers=1),
        OpCase(f"{name}-method", lambda x: getattr(x, name)(), [SPECIAL]),
        OpCase(f"{name}-int", function, [INTS]),
        OpCase(f"{name}-fp16", function, [UNIT], policy=FP16, rtol=2e-2, atol=2e-2, reason=HALF),
    ]


FUNCTIONS = [
    *one_layer("exp"),
    *one_layer("log", uniform(2, 5, low=0.1)),
    *one_layer("sqrt", uniform(2, 5, low=0.1)),
    *one_layer("reciprocal", uniform(2, 5, low=0.1)),
    *one_layer("sin"),
    *one_layer("cos"),
    *one_layer("tan"),
    *one_layer("asin", UNIT),
    *one_layer("acos", UNIT),
    *one_layer("atan"),
    *one_layer("sinh"),
    *one_layer("cosh"),
    *one_layer("asinh"),
    *one_layer("acosh", uniform(2, 5, low=1.1)),
    *one_layer("atanh", UNIT),
    *one_layer("erf"),
    *one_layer("abs"),
    *one_layer("neg"),
    *one_layer("ceil"),
    *one_layer("floor"),
    *one_layer("round"),
]

COMPOSED = [
    OpCase("abs-bytes", torch.abs, [SIGNED_BYTES]),
    OpCase("abs-uint8", torch.abs, [BYTES]),
    OpCase("neg-uint8", torch.neg, [BYTES]),
    OpCase("neg-in-place", lambda x: x.mul(2).neg_(), [(2, 5)]),
    OpCase("exp-dynamic", torch.exp, [(2, 5)], dynamic=[{0: (1, 8)}], shapes=[(4, 5)], layers=1),
    OpCase("exp-0d", torch.exp, [()], layers=1),
    OpCase("exp-half", torch.exp, [uniform(2, 5, dtype=torch.half)]),
    OpCase("exp-bfloat16", torch.exp, [uniform(2, 5, dtype=torch.bfloat16)]),
    OpCase("rsqrt", torch.rsqrt, [uniform(2, 5, low=0.1)], layers=2),
    OpCase("rsqrt-special", torch.rsqrt, [SPECIAL]),
    OpCase("rsqrt-int", torch.rsqrt, [integers(2, 5, low=1)]),
    OpCase("exp2", torch.exp2, [SPECIAL]),
    OpCase("exp2-int", torch.exp2, [INTS]),
    OpCase("expm1", torch.expm1, [SMALL], atol=1e-12, reason="all digits of small numbers"),
    OpCase("expm1-special", torch.expm1, [SPECIAL]),
    OpCase("log1p", torch.log1p, [SMALL], atol=1e-12, reason="all digits of small numbers"),
    OpCase("log1p-special", torch.log1p, [SPECIAL]),
    OpCase("log2", torch.log2, [uniform(2, 5, low=0.1)]),
    OpCase("log2-special", torch.log2, [SPECIAL]),
    OpCase("log10", torch.log10, [uniform(2, 5, low=0.1)]),
    OpCase("erfc", torch.erfc, [torch.linspace(-6, 9, 61)], atol=1e-40,
           reason="all digits of small numbers"),
    OpCase("erfc-special", torch.erfc, [SPECIAL]),
    OpCase("logit", torch.logit, [uniform(2, 5, low=0.01, high=0.99)]),
    OpCase("logit-eps", torch.logit, [SPECIAL], {"eps": 0.1}),
    OpCase("deg2rad", torch.deg2rad, [(2, 5)]),
    OpCase("deg2rad-int", torch.deg2rad, [INTS]),
    OpCase("rad2deg", torch.rad2deg, [(2, 5)]),
    OpCase("round-decimals", torch.round, [(2, 5)], {"decimals": 2}),
    OpCase("round-decimals-minus", torch.round, [uniform(2, 5, low=-900.0, high=900.0)],
           {"decimals": -2}),
    OpCase("round-decimals-0", torch.round, [SPECIAL], {"decimals": 0}),
    OpCase("trunc", torch.trunc, [SPECIAL]),
    OpCase("trunc-int", lambda x: torch.trunc(x) + 1, [INTS]),
    OpCase("fix", torch.fix, [uniform(2, 5, low=-9.0, high=9.0)]),
    OpCase("frac", torch.frac, [uniform(2, 5, low=-9.0, high=9.0)]),
    OpCase("sign", torch.sign, [SPECIAL]),
    OpCase("sign-int", torch.sign, [INTS], layers=1),
    OpCase("sign-bytes", torch.sign, [SIGNED_BYTES]),
    OpCase("sign-bool", lambda x: ~torch.sign(x), [BOOLS]),
    OpCase("sgn", torch.sgn, [SPECIAL]),
    OpCase("signbit", torch.signbit, [SPECIAL[1:]]),
    OpCase("signbit-int", torch.signbit, [INTS]),
    OpCase("isnan", torch.isnan, [SPECIAL], layers=1),
    OpCase("isinf", torch.isinf, [SPECIAL], layers=1),
    OpCase("isfinite", torch.isfinite, [SPECIAL]),
    OpCase("isposinf", torch.isposinf, [SPECIAL]),
    OpCase("isneginf", torch.isneginf, [SPECIAL]),
    OpCase("isnan-int", lambda x: torch.isnan(x) | (x > 0), [INTS]),
    OpCase("isinf-int", lambda x: torch.isinf(x) | (x > 0), [INTS]),
    OpCase("positive", lambda x: +x * 2, [(2, 5)]),
    OpCase("sinc", torch.sinc, [(2, 5)]),
]  # fmt: skip

CASTS = [
    OpCase("to-half", lambda x: x.half(), [(2, 5)], layers=1),
    OpCase("to-bfloat16", lambda x: x.to(torch.bfloat16), [(2, 5)], layers=1),
    OpCase("to-int", lambda x: x.long(), [uniform(2, 5, low=-9.0, high=9.0)], layers=1),
    OpCase("to-int32", lambda x: x.int(), [INTS], layers=1),
    OpCase("to-float", lambda x: x.float(), [INTS], layers=1),
    OpCase("to-same", lambda x: x.float() + 1, [(2, 5)], layers=2),
    OpCase("to-bool", lambda x: x.bool(), [SPECIAL]),
    OpCase("to-bool-int", lambda x: x.bool(), [integers(2, 5, low=255, high=258) ]),
    OpCase("to-bool-byte", lambda x: x.bool(), [BYTES]),
    OpCase("to-byte-from-int", lambda x: x.to(torch.uint8), [integers(2, 5, low=-300, high=300)]),
    OpCase("to-int8-from-int", lambda x: x.to(torch.int8), [integers(2, 5, low=-300, high=300)]),
    OpCase("to-byte-from-int8", lambda x: x.to(torch.uint8), [SIGNED_BYTES]),
    OpCase("to-byte-from-float", lambda x: x.to(torch.uint8), [uniform(2, 5, low=0, high=255)]),
    OpCase("to-int8-between", lambda x: x.to(torch.int8).float() * 2, [INTS]),
    OpCase("to-byte-between", lambda x: x.to(torch.uint8).float() * 2, [INTS]),
    OpCase("to-int-from-bool", lambda x: x.int(), [BOOLS]),
    OpCase("to-float-from-byte", lambda x: x.float(), [BYTES], layers=1),
    OpCase("type-as", lambda x, y: x.type_as(y), [(2, 5), INTS]),
    OpCase("to-other", lambda x, y: x.to(y), [(2, 5), INTS]),
    OpCase("to-copy", lambda x: x.to(torch.float32, copy=True) + 1, [(2, 5)]),
    OpCase("to-device", lambda x: x.to("cpu", torch.half, non_blocking=True), [(2, 5)]),
    OpCase("to-float64", lambda x: x.double(), [(2, 5)], raises="float64"),
    OpCase("to-float64-and-back", lambda x: (x.double() + 1).float(), [(2, 5)],
           raises="float64"),
    OpCase("to-complex", lambda x: x.to(torch.complex64).imag + x, [(2, 5)]),
    OpCase("half-input-fp16", lambda x: x.float() * 2, [uniform(2, 5, dtype=torch.half)],
           policy=FP16, rtol=2e-2, atol=2e-2, reason=HALF),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(FUNCTIONS + COMPOSED + CASTS))
def test_unary(case: OpCase) -> None:
    run_case(case)
