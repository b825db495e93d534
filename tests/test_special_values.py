"""Elementwise operators on special values and with numbers beyond a type's range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t.lowering import to_network
from t2t.reference import capture
from tests.cases import OpCase, ids, run_case

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 100.25, math.inf, -math.inf,
          math.nan, 1e-30, 65504.0]  # fmt: skip
DTYPES = (torch.float32, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64,
          torch.bool)  # fmt: skip


def special(dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a type that are most often wrong."""
    if dtype.is_floating_point:
        return torch.tensor(FLOATS).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([False, True])
    limits = torch.iinfo(dtype)
    signed = [-1, -2, -3, -100, limits.min] if limits.min else [128, 200, 129]
    return torch.tensor([0, 1, 2, 3, 7, 100, limits.max, *signed], dtype=dtype)


BYTES, SIGNED = special(torch.uint8), special(torch.int8)
HALVES = special(torch.float16)

# torch takes a number into the tensor's type: there -1 is 255, and 300 is 44.
BOUNDS = [
    OpCase("clamp", lambda x: x.clamp(-1, 1), [BYTES]),
    OpCase("clamp-low", lambda x: x.clamp(3, -1), [BYTES]),
    OpCase("clamp-min", lambda x: torch.clamp_min(x, -7), [BYTES]),
    OpCase("clamp-tensor", lambda x: x.clamp(torch.tensor(256), torch.tensor(5)), [BYTES]),
    OpCase("hardtanh", lambda x: F.hardtanh(x, -2, 7), [SIGNED]),
    OpCase("threshold", lambda x: F.threshold(x, -1, 3), [BYTES]),
    OpCase("maximum", lambda x: torch.maximum(x, torch.tensor(300)), [SIGNED]),
    OpCase("minimum", lambda x: torch.minimum(x, torch.tensor(-129)), [BYTES]),
    OpCase("maximum-traced", torch.maximum, [SIGNED, torch.tensor(300)]),
    OpCase("fmax", lambda x: torch.fmax(x, torch.tensor(128)), [SIGNED]),
    OpCase("equal", lambda x: (x == 255, x != 256, x > -200, x <= 300), [SIGNED]),
    OpCase("equal-bytes", lambda x: (x == -1, x != 256, x > -200, x <= 300), [BYTES]),
    OpCase("remainder", lambda x: (x % 300, torch.fmod(x, 300), x // 300), [SIGNED]),
    OpCase("remainder-bytes", lambda x: (x % -7, torch.fmod(x, -7), x // -7), [BYTES]),
    OpCase("divide", lambda x: torch.div(x, -200, rounding_mode="trunc"), [BYTES]),
    OpCase("and", lambda x: torch.logical_and(x, torch.tensor(256)), [SIGNED]),
    OpCase("add", lambda x: (x + 300, x - 300, x * 300, 300 - x), [SIGNED]),
    OpCase("add-large", lambda x: (x + 2**31, x * 2**40), [BYTES]),
    OpCase("bits", lambda x: (x & 300, x | 300, x ^ -200), [SIGNED]),
    OpCase("constant", lambda x: torch.maximum(x, torch.tensor(1e20)), [HALVES]),
    OpCase("half-equal", lambda x: x == 1e20, [HALVES]),
    OpCase("half-remainder", lambda x: 1e20 % x.clamp(min=1), [HALVES]),
    OpCase("half-nan-to-num", lambda x: torch.nan_to_num(x, 1e20), [HALVES]),
    OpCase("addcmul", lambda x, y: torch.addcmul(x, y, y, value=0), [torch.ones(3),
           torch.tensor([1e20, 1.0, 2.0])]),
    OpCase("addcdiv", lambda x, y: torch.addcdiv(x, y, y + 1e-30, value=0), [torch.ones(3),
           torch.tensor([1e20, 1.0, 2.0])]),
    OpCase("lerp-end", lambda x, y: torch.lerp(x, y, 1.0), [torch.tensor([1e20, 3.0]),
           torch.tensor([1.0, 0.1])]),
    OpCase("lerp-weights", torch.lerp, [torch.tensor([1e20, 3.0, 2.0]),
           torch.tensor([1.0, 0.1, 7.0]), torch.tensor([1.0, 0.3, 0.7])]),
    OpCase("power", torch.pow, [torch.tensor([2, 3, -3, 0]), torch.tensor([100, 100, 63, 70])]),
    OpCase("power-bytes", torch.pow, [torch.tensor([2, 3, -3], dtype=torch.int8),
           torch.tensor([9, 100, 63], dtype=torch.int8)]),
    OpCase("shift", torch.bitwise_left_shift, [torch.tensor([1, -1]),
           torch.tensor([-(2**63), 2**40])]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(BOUNDS))
def test_numbers_beyond_a_type(case: OpCase) -> None:
    run_case(case)


UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.abs, torch.neg, torch.sign, torch.ceil, torch.floor, torch.round, torch.trunc, torch.frac,
    torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.sigmoid, torch.relu,
    torch.isnan, torch.isinf, torch.isfinite, torch.logical_not, torch.square, torch.log1p,
    torch.expm1, torch.tanh, torch.erf, torch.nan_to_num, F.silu, F.hardswish, F.relu6, F.softplus,
    F.softsign, torch.bitwise_not, torch.signbit,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], torch.Tensor]] = [
    torch.add, torch.sub, torch.mul, torch.div, torch.remainder, torch.fmod, torch.floor_divide,
    torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.maximum, torch.minimum,
    torch.fmax, torch.fmin, torch.pow, torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor,
    torch.bitwise_left_shift, torch.bitwise_right_shift, torch.logical_and, torch.logical_or,
    torch.atan2, torch.xlogy, torch.logaddexp, torch.where,
]  # fmt: skip
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3}
DIVISIONS = (torch.div, torch.remainder, torch.fmod, torch.floor_divide)


def check(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """Compare the network with torch, where torch computes this at all."""
    try:
        expected = function(*[x.clone() for x in inputs])
    except (RuntimeError, NotImplementedError, TypeError):
        return
    conversion = to_network(function, [x.clone() for x in inputs])
    program = capture(conversion.network.raw, conversion.network.weights)
    result = program.run([x.clone() for x in inputs])[conversion.signature.outputs[0].name]
    assert result.dtype == expected.dtype
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=1e-7, equal_nan=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(function=st.sampled_from(UNARY), dtype=st.sampled_from(DTYPES))
def test_one_operand(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    check(function, special(dtype))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    function=st.sampled_from(BINARY), first=st.sampled_from(DTYPES), second=st.sampled_from(DTYPES)
)
def test_two_operands(
    function: Callable[..., torch.Tensor], first: torch.dtype, second: torch.dtype
) -> None:
    a, b = torch.broadcast_tensors(special(first).unsqueeze(1), special(second))
    a, b = a.contiguous(), b.contiguous()
    if {first, second} & {torch.float16} and {first, second} & {torch.int32, torch.int64}:
        # Where an integer is beyond half precision, torch computes with an infinity.
        return
    if {first, second} == {torch.int8, torch.uint8}:
        return  # int16, which TensorRT does not have
    if function in DIVISIONS:
        # Quotients beyond 2 ** 16 have a remainder of limited accuracy.
        a, b = (x.where(x != x.new_tensor(FLOATS[-2]), 1) if x.is_floating_point() else x
                for x in (a, b))  # fmt: skip
        a, b = (x.clamp(-9999, 9999) if x.dtype.itemsize > 2 else x for x in (a, b))
        # A division of integers by zero, and of the smallest by -1, ends the process in C.
        b = torch.where(b == 0, torch.ones_like(b), b) if not b.is_floating_point() else b
        smallest = torch.finfo(first).min if first.is_floating_point else None
        if smallest is None and first != torch.bool:
            a = a.clamp(min=torch.iinfo(first).min + 1)
    if function is torch.where:
        check(lambda x, y: torch.where(x > y, x, y), a, b)
        return
    check(function, a, b)


NUMBERS = [-1, 0, 1, 2, 3, -7, 255, 256, 300, -129, 128, 0.5, -0.5, 2.5, 1e20, math.inf, math.nan]
SCALAR: list[Callable[[Any, Any], torch.Tensor]] = [
    torch.add, torch.sub, torch.mul, torch.eq, torch.lt, torch.ge, torch.clamp_min, torch.clamp_max,
    torch.remainder, torch.bitwise_and, torch.bitwise_xor, torch.pow, torch.div,
]  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    function=st.sampled_from(SCALAR), dtype=st.sampled_from(DTYPES), number=st.sampled_from(NUMBERS)
)
def test_a_number(function: Callable[..., torch.Tensor], dtype: torch.dtype, number: float) -> None:
    if number == 0 and function in (torch.remainder, torch.div) and not dtype.is_floating_point:
        return
    if dtype == torch.float16 and (function is torch.pow or abs(number) > 65504):
        return  # computed in half or in float32 by torch, as its device is
    if function is torch.remainder and number == 2.5:
        return  # see above
    x = special(dtype)
    if not dtype.is_floating_point and dtype != torch.bool and function in DIVISIONS:
        x = x.clamp(min=torch.iinfo(dtype).min + 1)
    check(lambda x: function(x, number), x)
