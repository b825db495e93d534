"""Arithmetic of two tensors: promotion, broadcasting, rounding, powers and bits."""

from __future__ import annotations

import operator

import pytest
import torch

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

FP16 = Policy(torch.float16)
HALF = "half has 11 bits"
INF, NAN = torch.inf, torch.nan
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 1.0])
NUMBERS = SPECIAL.reshape(-1, 1)
BOOLS = torch.tensor([[True, True, False, False], [True, False, True, False]])
BYTES = integers(2, 5, low=0, high=256, dtype=torch.uint8)
SIGNED_BYTES = integers(2, 5, low=-128, high=128, dtype=torch.int8)
INTS = integers(2, 5, low=-9, high=10)
INTS32 = integers(2, 5, low=-9, high=10, dtype=torch.int32)
WIDE = torch.tensor([-(2**63), -(2**40) - 3, -7, -1, 0, 1, 6, 2**33 + 5, 2**63 - 1])
SHIFTS = torch.tensor([0, 1, 2, 62, 63, 64, -1, 5, 31])
DIVISORS = torch.tensor([[-3, -2, -1, 1, 2], [3, 4, 5, 6, 7]])


class Scaled(torch.nn.Module):
    """A parameter, a buffer, a Python number and an in-place product."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 3))
        self.register_buffer("shift", torch.tensor(2, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.scale + self.shift
        y *= 0.5
        return y - x


ARITHMETIC = [
    OpCase("add", torch.add, [(2, 3), (2, 3)], layers=1),
    OpCase("add-method", lambda x, y: x.add(y), [(2, 3), (3,)]),
    OpCase("add-operator", operator.add, [(2, 1, 3), (4, 1)]),
    OpCase("add-scalar", lambda x: x + 2.5, [(2, 3)], layers=2),
    OpCase("add-scalar-left", lambda x: 2 + x, [(2, 3)]),
    OpCase("add-in-place", lambda x: x.mul(1.5).add_(1), [(2, 3)]),
    OpCase("add-module", Scaled(), [(2, 3)]),
    OpCase("add-alpha", torch.add, [(2, 3), (2, 3)], {"alpha": 0.5}),
    OpCase("add-alpha-scalar", lambda x: torch.add(x, 3, alpha=2), [(2, 3)], layers=2),
    OpCase("add-alpha-constant", lambda x: torch.add(x, torch.ones(3), alpha=2), [(2, 3)]),
    OpCase("add-0d", torch.add, [(), (2, 3)]),
    OpCase("add-0d-0d", torch.add, [(), ()]),
    OpCase("add-int-float", torch.add, [INTS, (2, 5)]),
    OpCase("add-int-half", torch.add, [INTS, uniform(2, 5, dtype=torch.half)]),
    OpCase("add-int32-int64", torch.add, [INTS32, INTS]),
    OpCase("add-int-scalar-float", lambda x: x + 0.5, [INTS]),
    OpCase("add-bool-int", torch.add, [torch.tensor([True, False]), torch.tensor([2, 3])]),
    OpCase("add-bool-bool", lambda x: x[0] + x[1], [BOOLS]),
    OpCase("add-bool-alpha", lambda x: torch.add(x[0], x[1], alpha=False), [BOOLS]),
    OpCase("add-bytes-wrap", lambda x: x + x, [BYTES]),
    OpCase("add-dynamic-size", lambda x: x + x.size(0), [(2, 3)],
           dynamic=[{0: (1, 8)}], shapes=[(5, 3)]),
    OpCase("add-dynamic-both", torch.add, [(2, 3), (2, 3)],
           dynamic=[{0: ("n", 1, 8)}, {0: ("n", 1, 8)}], shapes=[(5, 3), (5, 3)]),
    OpCase("add-dynamic-broadcast", torch.add, [(2, 3, 4), (4,)],
           dynamic=[{0: (1, 8), 1: (1, 8)}, {}], shapes=[(5, 2, 4), (4,)]),
    OpCase("add-fp16", torch.add, [uniform(2, 3, dtype=torch.half), (2, 3)], policy=FP16,
           rtol=2e-2, atol=2e-2, reason=HALF),
    OpCase("add-float64", lambda x: x + torch.ones(3, dtype=torch.float64), [(2, 3)],
           raises=r"float64.*\.float\(\)"),
    OpCase("sub", torch.sub, [(2, 3), (2, 3)], layers=1),
    OpCase("sub-alpha", torch.sub, [(2, 3), (3,)], {"alpha": 3}),
    OpCase("sub-bytes-wrap", lambda x: x - 200, [BYTES]),
    OpCase("sub-int", lambda x: x - 3, [INTS]),
    OpCase("rsub", lambda x: 1 - x, [(2, 3)], layers=2),
    OpCase("rsub-alpha", torch.rsub, [(2, 3), (2, 3)], {"alpha": 2}),
    OpCase("rsub-bool-int", lambda x: 1 - x.long(), [BOOLS]),
    OpCase("mul", torch.mul, [(2, 3), (3,)]),
    OpCase("mul-number", lambda x: x * 3, [INTS], layers=2),
    OpCase("mul-bool", lambda x: x[0] * x[1], [BOOLS]),
    OpCase("mul-bool-float", torch.mul, [torch.tensor([True, False]), (3, 2)]),
    OpCase("mul-int8-wrap", lambda x: x * 3, [SIGNED_BYTES]),
    OpCase("mul-size", lambda x: x * (x.shape[1] // 2), [(2, 4)],
           dynamic=[{1: (2, 9)}], shapes=[(2, 7)]),
    OpCase("div", torch.div, [(2, 3), (2, 3)], layers=1),
    OpCase("div-int", torch.div, [INTS, DIVISORS]),
    OpCase("div-int-scalar", lambda x: x / 4, [INTS]),
    OpCase("div-byte-image", lambda x: x.float() / 255, [BYTES]),
    OpCase("div-scalar-left", lambda x: 2 / x, [uniform(2, 3, low=0.5)]),
    OpCase("div-zero", lambda x: x / 0.0, [SPECIAL]),
    OpCase("true-divide", torch.true_divide, [INTS, DIVISORS]),
    OpCase("div-fp16", lambda x: x.mul(2) / 3, [uniform(2, 3, dtype=torch.half)], policy=FP16,
           rtol=2e-2, atol=2e-2, reason=HALF),
    OpCase("div-half-tiny", lambda x: x / 1e-8 * 1e-8, [(2, 3)], policy=FP16),
    OpCase("mul-half-tiny", lambda x: x.half() * 1e-6 * 1e6, [uniform(2, 3, low=1, high=9)],
           rtol=1e-2, reason="1e-6 has few bits in half, in torch too"),
    OpCase("add-half-tiny", lambda x: x.half() + 1e-7, [torch.zeros(3)]),
    OpCase("byte-image", lambda x: (x.permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5,
           [integers(4, 5, 3, low=0, high=256, dtype=torch.uint8)]),
    OpCase("bytes-between", lambda x: (x * 2).to(torch.uint8) // 3 + 7,
           [integers(4, 5, low=0, high=100)]),
    OpCase("lerp", torch.lerp, [(2, 3), (2, 3)], {"weight": 0.3}),
    OpCase("lerp-tensor", torch.lerp, [(2, 3), (3,), uniform(2, 3, low=0, high=1)]),
    OpCase("addcmul", torch.addcmul, [(2, 3), (3,), (2, 1)], {"value": 0.5}),
    OpCase("addcmul-one", torch.addcmul, [(2, 3), (3,), (2, 1)], layers=3),
    OpCase("addcdiv", torch.addcdiv, [(2, 3), (3,), uniform(2, 1, low=1)], {"value": 2}),
    OpCase("square", torch.square, [(2, 3)], layers=1),
]  # fmt: skip

# Pairs that a rounded quotient gets wrong: 1 / 0.1 is 9.99..., and the like.
TOPS = torch.tensor([1.0, -1.0, 0.3, 6.0, -7.5, 1000.25, -0.0, 5e4, -1000.7])
STEPS = torch.tensor([0.1, 0.1, -0.1, 0.2, 2.5, 0.7, 3.0, 0.77, -3.3])

ROUNDED = [
    OpCase("floor-divide", lambda x, y: x // y, [TOPS, STEPS]),
    OpCase("floor-divide-scalar", lambda x: x // 0.1, [TOPS]),
    OpCase("floor-divide-int", lambda x, y: x // y, [INTS, DIVISORS], layers=1),
    OpCase("floor-divide-int32", lambda x: x // 4, [INTS32]),
    OpCase("floor-divide-bytes", lambda x: x // 7, [BYTES]),
    OpCase("floor-divide-special", lambda x, y: x // y, [SPECIAL, NUMBERS]),
    OpCase("div-floor", torch.div, [TOPS, STEPS], {"rounding_mode": "floor"}),
    OpCase("div-trunc", torch.div, [(2, 5), uniform(2, 5, low=0.1)], {"rounding_mode": "trunc"}),
    OpCase("div-floor-scalar", lambda x: x.div(0.3, rounding_mode="floor"), [(2, 5)]),
    OpCase("div-mode-overload", torch.ops.aten.div.Scalar_mode, [INTS],
           {"other": 2, "rounding_mode": "trunc"}),
    OpCase("div-trunc-special", torch.div, [SPECIAL, NUMBERS], {"rounding_mode": "trunc"}),
    OpCase("div-trunc-int", torch.div, [INTS, DIVISORS], {"rounding_mode": "trunc"}, layers=1),
    OpCase("div-mode-none", torch.div, [INTS, DIVISORS], {"rounding_mode": None}),
    OpCase("remainder", torch.remainder, [TOPS, STEPS]),
    OpCase("remainder-scalar", lambda x: x % 0.7, [TOPS], reason="sizes of 5e4", rtol=1e-5),
    OpCase("remainder-left", lambda x: 5.5 % x, [uniform(2, 5, low=0.5)]),
    OpCase("remainder-negative", lambda x: x % -1.5, [uniform(40, low=-90.0, high=90.0)]),
    OpCase("remainder-special", torch.remainder, [SPECIAL, NUMBERS]),
    OpCase("remainder-int", lambda x, y: x % y, [INTS, DIVISORS], layers=3),
    OpCase("remainder-bytes", lambda x: x % 10, [BYTES]),
    OpCase("remainder-fp16", lambda x: torch.remainder(x.mul(4), 1.5), [(2, 5)], policy=FP16),
    OpCase("fmod", torch.fmod, [TOPS, STEPS]),
    OpCase("fmod-special", torch.fmod, [SPECIAL, NUMBERS]),
    OpCase("fmod-int", torch.fmod, [INTS, DIVISORS]),
    OpCase("fmod-scalar", lambda x: torch.fmod(x, 2), [uniform(40, low=-90.0, high=90.0)]),
]  # fmt: skip

POWERS = [
    OpCase("pow-2", lambda x: x**2, [(2, 3)], layers=1),
    OpCase("pow-3", lambda x: x**3, [(2, 3)], layers=2),
    OpCase("pow-5", lambda x: torch.pow(x, 5.0), [(2, 3)]),
    OpCase(
        "pow-negative-zero", torch.pow,
        [torch.tensor([-0.0, -0.0, -0.0, 0.0, -torch.inf]), torch.tensor([-1, 3, 0.5, -1, -3.0])],
    ),
    OpCase("pow-0", lambda x: x**0, [SPECIAL]),
    OpCase("pow-0-dynamic", lambda x: x**0, [(2, 3)], dynamic=[{0: (1, 8)}], shapes=[(5, 3)]),
    OpCase("pow-1", lambda x: (x + 1) ** 1, [(2, 3)]),
    OpCase("pow-root", lambda x: x**0.5, [SPECIAL], layers=1),
    OpCase("pow-minus-root", lambda x: x**-0.5, [uniform(2, 3, low=0.1)]),
    OpCase("pow-minus-2", lambda x: x**-2, [SPECIAL]),
    OpCase("pow-fraction", lambda x: x**1.7, [SPECIAL]),
    OpCase("pow-large", lambda x: x**85, [SPECIAL]),
    OpCase("pow-tensor", torch.pow, [SPECIAL, NUMBERS]),
    OpCase("pow-tensors", torch.pow, [(3, 4), (4,)]),
    OpCase("pow-whole-tensors", torch.pow, [(3, 4), torch.tensor([-2.0, -1.0, 2.0, 3.0])]),
    OpCase("pow-base", lambda x: 2.5**x, [(2, 3)], layers=2),
    OpCase("pow-base-negative", lambda x: torch.pow(-2.0, x), [NUMBERS]),
    OpCase("pow-int", lambda x: x**3, [INTS], layers=2),
    OpCase("pow-int-0", lambda x: x**0, [INTS]),
    OpCase("pow-int-float", lambda x: x**2.0, [INTS]),
    OpCase("pow-int8-wrap", lambda x: x**3, [SIGNED_BYTES]),
    OpCase("pow-int-ints", torch.pow, [INTS, integers(2, 5, low=0, high=12)]),
    OpCase("pow-int-large", torch.pow, [torch.tensor([2, -1, 1, 2]), torch.tensor([62, 63, 9, 0])]),
    OpCase("pow-base-int", lambda x: 2**x, [integers(2, 5, low=0, high=30)]),
    OpCase("pow-int-minus", torch.pow, [torch.tensor([1, -1, -1, 3, 0]).reshape(-1, 1),
                                        torch.tensor([-1, -2, -3])]),
    OpCase("pow-in-place", lambda x: x.mul(2).pow_(2), [(2, 3)]),
    OpCase("pow-fp16", lambda x: x.mul(2) ** 2, [uniform(2, 3, dtype=torch.half)], policy=FP16,
           rtol=2e-2, atol=2e-2, reason=HALF),
]  # fmt: skip

COMPOSED = [
    OpCase("atan2", torch.atan2, [(5, 7), (5, 7)]),
    OpCase("atan2-special", torch.atan2, [SPECIAL, NUMBERS]),
    OpCase("atan2-int", torch.atan2, [INTS, INTS]),
    OpCase("hypot", torch.hypot, [(5, 7), (7,)]),
    OpCase("hypot-special", torch.hypot, [SPECIAL, NUMBERS]),
    OpCase("hypot-large", torch.hypot, [torch.tensor([3e30, 3e-30]), torch.tensor([4e30, 4e-30])]),
    OpCase("copysign", torch.copysign, [(2, 5), (2, 5)]),
    OpCase("copysign-special", lambda x, y: 1 / torch.copysign(x, y), [SPECIAL, NUMBERS[1:]]),
    OpCase("copysign-scalar", lambda x: torch.copysign(x, -0.0), [(2, 5)]),
    OpCase("copysign-int", torch.copysign, [INTS, (2, 5)]),
    OpCase("xlogy", torch.xlogy, [SPECIAL, NUMBERS]),
    OpCase("xlogy-scalar", lambda x: torch.xlogy(x, 3.0), [(2, 3)]),
    OpCase("heaviside", torch.heaviside, [SPECIAL, torch.tensor(0.5)]),
    OpCase("heaviside-int", torch.heaviside, [INTS, INTS]),
    OpCase("heaviside-bool", torch.heaviside, [torch.tensor([True, False])] * 2),
    OpCase("logaddexp", torch.logaddexp, [(2, 5), (5,)]),
    OpCase("logaddexp2", torch.logaddexp2, [(2, 5), (5,)]),
    OpCase("ldexp", torch.ldexp, [(2, 5), integers(2, 5, low=-3, high=4)]),
]

BITS = [
    OpCase("and-bool", lambda x: x[0] & x[1], [BOOLS]),
    OpCase("or-bool", lambda x: x[0] | x[1], [BOOLS]),
    OpCase("xor-bool", lambda x: x[0] ^ x[1], [BOOLS]),
    OpCase("not-bool", lambda x: ~x, [BOOLS], layers=1),
    OpCase("and-bool-scalar", lambda x: x & True, [BOOLS]),
    OpCase("and-bool-in-place", lambda x: (x > 0).logical_and_(x < 1), [(2, 5)]),
    OpCase("not-int", lambda x: ~x, [INTS]),
    OpCase("not-bytes", lambda x: ~x, [BYTES]),
    OpCase("and-mask", lambda x: x & 7, [INTS]),
    OpCase("and-mask-bytes", lambda x: x & 1, [BYTES]),
    OpCase("and-other", lambda x: x & 6, [INTS]),
    OpCase("and-all-but-sign", lambda x: x & 0x7FFFFFFF, [INTS32]),
    OpCase("and-ints", torch.bitwise_and, [WIDE, WIDE.flip(0)]),
    OpCase("and-bytes", torch.bitwise_and, [BYTES, BYTES]),
    OpCase("or-int", lambda x: x | 6, [INTS]),
    OpCase("or-bytes", torch.bitwise_or, [BYTES, BYTES]),
    OpCase("xor-int", torch.bitwise_xor, [WIDE, WIDE.flip(0)]),
    OpCase("xor-signed-bytes", torch.bitwise_xor, [SIGNED_BYTES, SIGNED_BYTES]),
    OpCase("shift-left", lambda x: x << 3, [INTS]),
    OpCase("shift-left-wrap", lambda x: x << 3, [BYTES]),
    OpCase("shift-right", lambda x: x >> 1, [INTS]),
    OpCase("shift-right-function", torch.bitwise_right_shift, [WIDE, SHIFTS]),
    OpCase("shift-right-bytes", torch.bitwise_right_shift, [SIGNED_BYTES, SIGNED_BYTES]),
    OpCase("shift-right-far", lambda x: x >> torch.tensor(63), [WIDE]),
    OpCase("shift-right-constant", lambda x: torch.bitwise_right_shift(x, 2), [INTS]),
    OpCase("shift-right-tensor", lambda x: x >> torch.tensor([0, 1, 2, 3, 4]), [INTS]),
    OpCase("shift-traced", torch.bitwise_left_shift, [WIDE, SHIFTS]),
    OpCase("shift-bytes", torch.bitwise_left_shift, [BYTES, BYTES]),
    OpCase("shift-far", lambda x: x << 70, [INTS]),
]


@pytest.mark.parametrize("case", ids(ARITHMETIC + ROUNDED + POWERS + COMPOSED + BITS))
def test_elementwise(case: OpCase) -> None:
    run_case(case)
