"""Operators that take functions, and functions that transform others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import t2t
from t2t.errors import OptionError, UnsupportedOperatorError
from t2t.lowering import to_network
from t2t.precision import Policy
from t2t.reference import capture
from tests.cases import TORCH, OpCase, ids, integers, run_case, uniform

# torch.cond and flex_attention compile themselves when a row runs in PyTorch.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning"),
]

LINEAR = nn.Linear(4, 3)
WEIGHT = torch.randn(4, 4)
MIX = torch.randn(4, 4) / 2


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.saved_tensors[0].exp()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> Any:
        return torch.cond(chosen, self.first, self.second, (x,))


def several(x: torch.Tensor) -> Any:
    first, second = torch.cond(
        x.sum() > 0, lambda x: (x + 1, x.argmax(1)), lambda x: (x * 2, x.argmin(1)), (x,)
    )
    return first, second


def nested(x: torch.Tensor) -> Any:
    def positive(x: torch.Tensor) -> Any:
        return torch.cond(x.amax() > 1, lambda x: x.clamp(max=1), lambda x: x.sin(), (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: -x, (x,))


def gradient(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad((x**3).sum(), x)[0]


def stacked(x: torch.Tensor) -> Any:
    parameters = {
        name: torch.stack([value, -value]).detach() for name, value in LINEAR.named_parameters()
    }

    def call(parameters: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(LINEAR, parameters, (x,))

    return torch.vmap(call, in_dims=(0, None))(parameters, x)


COND = [
    OpCase("tensor", lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), [(3, 4)]),
    OpCase("modules", Branches(), [(3, 4), integers(high=2, dtype=torch.bool)]),
    OpCase("several", several, [(3, 4)]),
    OpCase("nested", nested, [(3, 4)]),
    OpCase("constant", lambda x: torch.cond(torch.tensor(False), torch.sin, torch.cos, (x,)),
           [(3, 4)]),
    OpCase("size", lambda x: torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)), [(3, 4)]),
    OpCase("dynamic", lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), [(3, 4)],
           dynamic=[{0: (2, 8)}], shapes=[(5, 4)]),
]  # fmt: skip

# Where a row is NaN: the other branch has no value there, and is not chosen.
COND.append(
    OpCase("not-chosen-nan", lambda x: torch.cond(x.amin() > 9, torch.log, torch.exp, (x,)),
           [(3, 4)])
)  # fmt: skip


def outside(x: torch.Tensor) -> Any:
    y = x.sin()
    first, second = torch.cond(
        x.sum() > 0, lambda: (y @ WEIGHT, y + 1), lambda: (LINEAR_4(y), x + y)
    )
    return first, second, y * 2


class Early(nn.Module):
    """Refines what is not good enough yet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 4))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        return torch.cond(y.sum() > 0, lambda y: y.clone(), self.second, (y,))


LINEAR_4 = nn.Linear(4, 4)

CONDITIONALS = [
    OpCase("modules", Branches(), [(3, 4), integers(high=2, dtype=torch.bool)]),
    OpCase("modules-dynamic", Branches(), [(3, 4), integers(high=2, dtype=torch.bool)],
           dynamic=[{0: (1, 9)}, {}], shapes=[(7, 4), ()]),
    OpCase("modules-half", Branches(), [(3, 4), integers(high=2, dtype=torch.bool)],
           policy=Policy(torch.float16), rtol=1e-2, atol=1e-2, reason="fp16"),
    OpCase("early", Early(), [(3, 4)]),
    OpCase("outside", outside, [(3, 4)]),
    OpCase("constant", lambda x: torch.cond(x.sum() > 0, lambda: x @ WEIGHT, lambda: MIX[:3] * 2),
           [(3, 4)]),
]  # fmt: skip

QKV = [(2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)]
BIAS = torch.randn(4)
CAUSAL = create_block_mask(lambda b, h, q, k: q >= k, None, None, 6, 6, device="cpu")


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    del b
    return score + BIAS[h] * (q - k)


def with_heads_inside(x: torch.Tensor) -> torch.Tensor:
    q = x.view(2, 6, 4, 8).transpose(1, 2)
    return flex_attention(q, q, q).transpose(1, 2).reshape(2, 6, 32)  # type: ignore[union-attr]


FLEX = [
    OpCase("plain", flex_attention, QKV),
    OpCase("scale", lambda q, k, v: flex_attention(q, k, v, scale=0.5), QKV),
    OpCase("score-mod", lambda q, k, v: flex_attention(q, k, v, score_mod=relative), QKV),
    OpCase("block-mask", lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL), QKV),
    OpCase("grouped-heads", lambda q, k, v: flex_attention(q, k, v, enable_gqa=True),
           [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)]),
    OpCase("heads-inside", with_heads_inside, [(2, 6, 32)]),
]  # fmt: skip

TRANSFORMS = [
    OpCase("vmap", lambda x: torch.vmap(lambda row: row.softmax(-1) @ WEIGHT)(x), [(3, 4)]),
    OpCase("vmap-dims", lambda x: torch.vmap(lambda r: r * r.sum(), in_dims=1, out_dims=1)(x),
           [(3, 4)]),
    OpCase("vmap-module", lambda x: torch.vmap(LINEAR)(x), [(3, 4)]),
    OpCase("vmap-index", lambda x, i: torch.vmap(lambda r, n: r.gather(0, n))(x, i),
           [(3, 4), integers(3, 2, high=4)]),
    OpCase("vmap-parameters", stacked, [(3, 4)]),
    OpCase("functional-call", lambda x, w: torch.func.functional_call(
        LINEAR, {"weight": w, "bias": LINEAR.bias}, (x,)), [(2, 4), (3, 4)]),
    OpCase("grad", lambda x: torch.func.grad(lambda y: (y**3).sum())(x), [(3, 4)]),
    OpCase("jacobian", lambda x: torch.func.jacrev(lambda y: y**3)(x), [(4,)]),
    OpCase("jvp", lambda x: torch.func.jvp(lambda y: y**3, (x,), (x,)), [(3, 4)]),
    OpCase("autograd", gradient, [(3, 4)]),
    OpCase("autograd-function", lambda x: Exp.apply(x), [(3, 4)]),
    OpCase("checkpoint", lambda x: checkpoint(torch.sin, x, use_reentrant=False), [(3, 4)]),
    OpCase("compile", lambda x: torch.compile(torch.sin, backend="eager")(x), [(3, 4)]),
]  # fmt: skip

# PyTorch before 2.14 takes the default only of tensors on a GPU, and says so itself.
MODE = "pointwise" if TORCH >= (2, 14) else "generic"

COUNT = torch.tensor(0)
HALF = Policy(torch.float16)
LENGTH = [{0: (1, 9)}]


def counted(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x.sin() * 2), (start, x))


def newton(x: torch.Tensor) -> Any:
    """Take square roots in as many steps as the largest error asks for, and count them."""
    squares = x.abs() + 0.5

    def step(root: torch.Tensor, count: torch.Tensor) -> Any:
        return 0.5 * (root + squares / root), count + 1

    def is_rough(root: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        del count
        return (root * root - squares).abs().amax() > 1e-3

    return while_loop(is_rough, step, (squares.clone(), COUNT))


def swapped(x: torch.Tensor) -> Any:
    return while_loop(
        lambda a, b: a.sum() < 50, lambda a, b: (b.clone(), a.abs() + b.abs() + 1), (x, x + 1)
    )


def nested_carry(x: torch.Tensor) -> Any:
    def step(carry: Any) -> Any:
        return ({"x": carry["x"].abs() + 1, "steps": carry["steps"] + 1},)

    (carry,) = while_loop(lambda c: c["x"].sum() < 50, step, ({"x": x, "steps": COUNT},))
    return carry["x"], carry["steps"]


def flag(x: torch.Tensor) -> Any:
    return while_loop(
        lambda go, x: go.clone(), lambda go, x: (x.sum() < 20, x.abs() * 2 + 0.1), (x.sum() < 99, x)
    )


def row_of_the_step(x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, total: torch.Tensor) -> Any:
        return i + 1, total + x.index_select(0, i.reshape(1))[0]

    return while_loop(lambda i, total: i < x.shape[0], step, (COUNT, torch.zeros(4)))[1]


def writes_inside(x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, total: torch.Tensor) -> Any:
        y = torch.zeros(3, 4)
        y[1] = total.sum(0)
        y += 1
        y.view(-1)[0] = total.sum()
        return i + 1, total * 0.5 + y

    return while_loop(lambda i, x: i < 3, step, (COUNT, x))[1]


def in_scan(x: torch.Tensor) -> Any:
    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        _, y = while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 0.5 + row), (COUNT, carry))
        return y, y.sin()

    return scan(step, torch.zeros(4), x)


def of_scans(x: torch.Tensor) -> Any:
    def step(n: torch.Tensor, y: torch.Tensor) -> Any:
        last, ys = scan(lambda c, row: ((c + row) * 0.5, c * row), y, x)
        return n + 1, last + ys.mean(0)

    return while_loop(lambda n, y: n < 2, step, (COUNT, x[0].clone()))


def with_branches(x: torch.Tensor) -> Any:
    def step(n: torch.Tensor, y: torch.Tensor) -> Any:
        return n + 1, torch.cond(y.sum() > 0, lambda: y @ MIX, lambda: y.abs() + 1)

    return while_loop(lambda n, y: n < 4, step, (COUNT, x))[1]


def in_branch(x: torch.Tensor) -> Any:
    def grow(x: torch.Tensor) -> Any:
        return while_loop(lambda y: y.sum() < 30, lambda y: (y.abs() + 1,), (x,))[0]

    return torch.cond(x.sum() > 0, grow, torch.sin, (x,))


def invariants(x: torch.Tensor) -> Any:
    mean = x.mean(0)
    return scan(lambda c, row: (c + row * mean, (mean * 2, torch.ones(2))), torch.zeros(4), x)


def forgets(x: torch.Tensor) -> Any:
    return scan(lambda c, row: (row.clone(), (row.clone(), c.clone())), torch.zeros(4), x)


def written_before(x: torch.Tensor) -> Any:
    y = x.sin()
    view = y[0]
    y.add_(1)
    last, rows = scan(lambda c, row: (c + row * view, c * view), x[0].clone(), x)
    return last, rows, view * 2


def of_complex(x: torch.Tensor) -> Any:
    z = torch.view_as_complex(x)
    last, rows = scan(lambda c, row: (c * row, c + row), z[0].clone(), z)
    return torch.view_as_real(last), torch.view_as_real(rows)


class Recurrent(nn.Module):
    """A recurrent layer that the user wrote with torch.scan."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.across = nn.Linear(4, 8), nn.Linear(8, 8)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        def step(state: torch.Tensor, row: torch.Tensor) -> Any:
            state = torch.tanh(self.across(state) + row)
            return state, state.clone()

        return scan(step, x.new_zeros(x.shape[1], 8), self.inside(x))


def trees(x: torch.Tensor) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return {"sum": carry["sum"] + row["x"]}, (carry["sum"].sin(), row["x"] * 2)

    carry, (sines, doubles) = scan(step, {"sum": x[0].clone()}, {"x": x})
    return carry["sum"], sines, doubles


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def sums(x: torch.Tensor) -> Any:
    return scan(lambda carry, y: (carry + y, carry * y), x[0].clone(), x)


LOOPS = [
    OpCase(
        "while-loop",
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (COUNT, x))[1],
        [(3, 4)],
    ),
    OpCase("while-loop-all", counted, [(3, 4)]),
    OpCase("while-loop-all-dynamic", counted, [(3, 4)], dynamic=LENGTH, shapes=[(7, 4)]),
    OpCase(
        "while-loop-never",
        lambda x: while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * 2), (COUNT, x.sin()))[1],
        [(3, 4)],
    ),
    OpCase(
        "while-loop-dynamic",
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (COUNT, x))[1],
        [(3, 4)], dynamic=[{0: (1, 8)}], shapes=[(5, 4)],
    ),
    # Counted in Python, so unrolled.
    OpCase(
        "while-loop-numbers",
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + i), (0, x))[1],
        [(3, 4)], layers=9,
    ),
    OpCase("while-loop-of-data", newton, [(3, 4)]),
    OpCase("while-loop-swapped", swapped, [(3, 4)]),
    OpCase("while-loop-nested-carry", nested_carry, [(3, 4)]),
    OpCase("while-loop-flag", flag, [(3, 4)]),
    OpCase("while-loop-row", row_of_the_step, [(3, 4)], dynamic=LENGTH, shapes=[(7, 4)]),
    OpCase("while-loop-writes-inside", writes_inside, [(3, 4)]),
    OpCase("while-loop-in-scan", in_scan, [(3, 4)]),
    OpCase("while-loop-of-scans", of_scans, [(3, 4)]),
    OpCase("while-loop-with-branches", with_branches, [(3, 4)]),
    OpCase("while-loop-in-branch", in_branch, [(3, 4)]),
    OpCase("while-loop-half", newton, [(3, 4)], policy=HALF, rtol=1e-2, atol=1e-2,
           reason="fp16; the states are float32"),
    OpCase("scan", sums, [(3, 4)]),
    OpCase(
        "scan-reverse",
        lambda x: scan(lambda c, y: (c + y, c * y), x[:, 0].clone(), x, dim=1, reverse=True),
        [(3, 4)], dynamic=[{1: (1, 9)}], shapes=[(3, 8)],
    ),
    OpCase("scan-trees", trees, [(3, 4)]),
    OpCase("scan-length", sums, [(3, 4)], dynamic=LENGTH, shapes=[(9, 4)]),
    OpCase("scan-length-one", sums, [(3, 4)], dynamic=LENGTH, shapes=[(1, 4)]),
    OpCase("scan-rows", sums, [(3, 4)], dynamic=[{1: (1, 8)}], shapes=[(3, 6)]),
    OpCase("scan-module", Recurrent(), [(3, 2, 4)], dynamic=[{0: (1, 9), 1: (1, 4)}],
           shapes=[(8, 3, 4)]),
    OpCase("scan-half", Recurrent(), [(3, 2, 4)], policy=HALF, rtol=1e-2, atol=1e-2,
           reason="fp16; the states are float32"),
    OpCase("scan-float16", sums, [uniform(3, 4, dtype=torch.float16)]),
    OpCase("scan-integers", sums, [integers(3, 4, dtype=torch.int32)]),
    OpCase("scan-bytes", sums, [integers(3, 4, high=200, dtype=torch.uint8)]),
    OpCase("scan-complex", of_complex, [(3, 4, 2)]),
    OpCase("scan-invariants", invariants, [(3, 4)], dynamic=LENGTH, shapes=[(7, 4)]),
    OpCase("scan-forgets", forgets, [(3, 4)]),
    OpCase("scan-after-writes", written_before, [(3, 4)]),
    OpCase(
        "associative-scan", lambda x: associative_scan(lambda a, b: a + b, x, 0, False, MODE),
        [(3, 4)],
    ),
    OpCase(
        "associative-scan-pairs",
        lambda x: associative_scan(affine, (x, x.sin()), 1, True, "generic"), [(3, 4)],
    ),
    OpCase(
        "associative-scan-dict",
        lambda x: associative_scan(
            lambda a, b: {"x": a["x"] * b["x"]}, {"x": x}, 0, False, MODE
        )["x"],
        [(3, 4)],
    ),
    OpCase(
        "associative-scan-one", lambda x: associative_scan(lambda a, b: a + b, x, 0, False, MODE),
        [(1, 4)],
    ),
    OpCase("map", lambda x: torch._higher_order_ops.map(torch.sin, x), [(3, 4)]),
    OpCase(
        "map-pairs", lambda x: torch._higher_order_ops.map(lambda r: (r.sin(), r.sum()), x),
        [(3, 4)], dynamic=LENGTH, shapes=[(7, 4)],
    ),
    OpCase(
        "map-more", lambda x: torch._higher_order_ops.map(lambda r, w: r @ w, x, MIX), [(3, 4)],
    ),
]  # fmt: skip

# PyTorch before 2.14 takes associative_scan apart itself here.
if MODE == "pointwise":
    LOOPS.append(
        OpCase(
            "associative-scan-length",
            lambda x: associative_scan(lambda a, b: a * b, x, 0, False, MODE), [(3, 4)],
            dynamic=LENGTH, shapes=[(8, 4)],
        )
    )  # fmt: skip

OUTSIDE = torch.zeros(4)


def writes(to: str) -> Callable[[torch.Tensor], Any]:
    """Return a function whose steps write to a tensor of some kind."""

    def function(x: torch.Tensor) -> Any:
        traced, made = x.sin(), torch.zeros(4)
        view = traced[0]

        def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
            targets = {"traced": traced, "view": view, "carry": carry, "row": row}
            if to == "metadata":
                traced.t_()
            else:
                {**targets, "constant": made, "global": OUTSIDE}[to].add_(1)
            return carry + row + made + OUTSIDE, carry * row

        return scan(step, x[0].clone(), x)

    return function


def writes_traced(x: torch.Tensor) -> Any:
    total = torch.zeros(4)

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        total.add_(row)
        return carry + row, carry * row

    return scan(step, x[0].clone(), x), total


def writes_in_branch(x: torch.Tensor) -> Any:
    y = x.sin()

    def add() -> torch.Tensor:
        return y.add_(1) * 2

    return torch.cond(x.sum() > 0, add, lambda: y * 3), y


def escaped(x: torch.Tensor) -> Any:
    kept: list[torch.Tensor] = []

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        kept.append(carry * 2)
        return carry + row, carry * row

    return scan(step, x[0].clone(), x), kept[0] + 1


def decides(x: torch.Tensor) -> Any:
    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        return (carry + row if carry.sum() > 0 else carry - row), carry.clone()

    return scan(step, x[0].clone(), x)


REFUSED = [
    *(
        OpCase(f"scan-writes-{to}", writes(to), [(3, 4)], raises="in place into a tensor from out")
        for to in ("traced", "view", "carry", "row", "metadata", "constant", "global")
    ),
    OpCase("scan-writes-sum", writes_traced, [(3, 4)], raises="in place into a tensor from out"),
    OpCase("cond-writes", writes_in_branch, [(3, 4)], raises="in place into a tensor from out"),
    OpCase("scan-escaped", escaped, [(3, 4)], raises="one that a loop or a branch runs"),
    OpCase("scan-decides", decides, [(3, 4)], raises="needs the value of a tensor.* in decides"),
    OpCase(
        "scan-other-type",
        lambda x: scan(lambda c, y: ((c + y).to(torch.int32), c * y), x[0].clone(), x), [(3, 4)],
        raises=r"at place 0 is torch.float32 \(4,\) before a step, and torch.int32 \(4,\) after",
    ),
    OpCase(
        "scan-random", lambda x: scan(lambda c, y: (c + torch.rand(4), c * y), x[0].clone(), x),
        [(3, 4)], raises="draws random numbers",
    ),
    OpCase(
        "scan-unknown", lambda x: scan(lambda c, y: (c + y, torch.linalg.pinv(y[None])), x[0], x),
        [(3, 4)], raises="no converter",
    ),
    OpCase("scan-of-no-steps", sums, [(3, 4)], dynamic=[{0: (0, 8)}], raises=r"shape\[0\] >= 1"),
    OpCase(
        "while-loop-grows",
        lambda x: while_loop(lambda x: x.sum() < 3, lambda x: (torch.cat([x, x]),), (x,)), [(3, 4)],
        raises=r"at place 0 is torch.float32 \(3, 4\) before a step, and torch.float32 \(6, 4\)",
    ),
    OpCase(
        "while-loop-carries-less",
        lambda x: while_loop(lambda x, y: x.sum() < 3, lambda x, y: (x + 1,), (x, x)), [(3, 4)],
        raises="it carries 2 tensors, and a step returns 1",
    ),
    OpCase(
        "while-loop-without-end",
        lambda x: while_loop(lambda y: x.sum() < 3, lambda y: (y + 1,), (x,)), [(3, 4)],
        raises="its condition does not depend on what the loop carries",
    ),
    OpCase(
        "while-loop-true",
        lambda x: while_loop(lambda y: torch.tensor(True), lambda y: (y + 1,), (x,)), [(3, 4)],
        raises="its condition does not depend on what the loop carries",
    ),
    OpCase("cond-shapes", lambda x: torch.cond(x.sum() > 0, lambda x: x[:1], lambda x: x, (x,)),
           [(3, 4)], raises=r"one branch returns torch.float32 \(1, 4\), the other"),
    OpCase("cond-numbers", lambda x: torch.cond(x.sum() > 0, lambda: (x, 1), lambda: (x, 2)),
           [(3, 4)], raises="one branch returns 1, the other 2"),
    OpCase("cond-number", lambda x: torch.cond(x.sum() > 0, lambda: 1, lambda: x),
           [(3, 4)], raises="one branch returns 1, the other torch.float32"),
    OpCase("cond-types", lambda x: torch.cond(x.sum() > 0, lambda x: x.int(), lambda x: x, (x,)),
           [(3, 4)], raises=r"one branch returns torch.int32 \(3, 4\), the other"),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(COND))
def test_cond(case: OpCase) -> None:
    run_case(case)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_cond_returns_the_structure_of_its_branches() -> None:
    def tensor(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    def tree(x: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0,
            lambda x: {"a": [x * 2], "b": -x},
            lambda x: {"a": [x / 3], "b": x + 1},
            (x,),
        )

    for function in (tensor, tree):
        for x in (torch.ones(3), -torch.ones(3)):
            converted = t2t.convert(function, [x])
            assert t2t.verify(function, converted, [x]).ok
            assert type(converted(x)) is type(function(x))


@pytest.mark.parametrize("case", ids(FLEX))
def test_flex_attention(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(TRANSFORMS))
def test_transforms(case: OpCase) -> None:
    run_case(case)


def kinds_of(conversion: Any) -> list[str]:
    raw = conversion.network.raw
    return [raw.get_layer(index).type.name for index in range(raw.num_layers)]


@pytest.mark.parametrize("case", ids(CONDITIONALS))
def test_large_branches_are_conditionals(case: OpCase) -> None:
    assert "CONDITION" in kinds_of(run_case(case))


def test_small_branches_are_both_computed() -> None:
    assert "CONDITION" not in kinds_of(run_case(COND[0]))


@pytest.mark.parametrize("case", ids(LOOPS))
def test_loops(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(REFUSED))
def test_refused_in_loops_and_branches(case: OpCase) -> None:
    run_case(case)
    assert not OUTSIDE.any()


def test_a_network_has_one_size_for_every_number_of_steps() -> None:
    networks = [to_network(Recurrent(), [torch.rand(n, 2, 4)]) for n in (2, 50)]
    few, many = map(kinds_of, networks)
    assert few == many
    assert few.count("TRIP_LIMIT") == few.count("ITERATOR") == 1


def test_an_index_that_is_carried() -> None:
    # PyTorch itself does not take this, where it compiles the loop.
    def function(x: torch.Tensor) -> Any:
        def step(i: torch.Tensor, rows: torch.Tensor) -> Any:
            rows = rows.clone()
            rows[i] = x[i].cumsum(0)
            return i + 1, rows

        return while_loop(lambda i, rows: i < 3, step, (COUNT, torch.zeros(3, 4)))[1]

    x = torch.rand(3, 4)
    conversion = to_network(function, [x])
    program = capture(conversion.network.raw, conversion.network.weights)
    torch.testing.assert_close(program.run([x])["output"], x.cumsum(1))


class Beside(Recurrent):
    """A loop whose steps no network takes, beside layers that one does."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.before(x)
        return scan(lambda c, row: (c + row, torch.linalg.pinv(row + c)), y[0].clone(), y)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_a_loop_stays_in_pytorch_with_its_module() -> None:
    model, x = Beside().eval(), torch.rand(5, 3, 4)
    with pytest.raises(UnsupportedOperatorError, match=r"torch.scan: .*pinv.* in Beside.forward"):
        t2t.convert(model, [x])
    partial = t2t.convert(model, [x], partial=True)
    assert [part.name for part in partial.parts if part.in_engine] == ["before"]
    for y in (x, -x):
        for got, wanted in zip(partial(y), model(y), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_a_loop_is_one_call_where_a_model_is_cut() -> None:
    class Tail(Recurrent):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x)[1], torch.nonzero(x[0] > 0)

    model, x = Tail().eval(), torch.rand(5, 3, 4)
    dims = [{0: torch.export.Dim("n", min=1, max=9)}]
    partial = t2t.convert(model, [x], partial=True, dynamic_shapes=dims, min_block_size=1)
    assert "torch.scan" not in [part.name for part in partial.parts]
    for y in (x, torch.randn(7, 3, 4)):
        for got, wanted in zip(partial(y), model(y), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_options_reach_into_loops() -> None:
    model, x = Recurrent().eval(), torch.rand(5, 3, 4)
    assert t2t.convert(model, [x], fp16=True, fp32_ops=["aten::tanh"]).precision == "fp16"
    with pytest.raises(OptionError, match="the module does not call 'aten::erf'"):
        t2t.convert(model, [x], fp16=True, fp32_ops=["aten::erf"])
    kept = t2t.convert(model, [x], fp16=True, fp32_modules=["across", "inside"])
    torch.testing.assert_close(kept(x)[1], model(x)[1], rtol=1e-5, atol=1e-6)
    quantized = t2t.convert(model, [x], int8=True, calibration=[[x]])
    reasons = {row.call: row.reason for row in quantized.quantization.calls}
    assert reasons["scan"] == "loops and branches compute in float"


def test_what_pytorch_takes_only_on_a_gpu_is_its_own_error() -> None:
    def function(x: torch.Tensor) -> Any:
        return associative_scan(lambda a, b: a + b, x, 0)

    if MODE == "pointwise":
        run_case(OpCase("default", function, [(3, 4)]))
        return
    with pytest.raises(ValueError, match="all input tensors need to be on CUDA"):
        to_network(function, [torch.rand(3, 4)])
