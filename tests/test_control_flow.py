"""Operators that take functions, and functions that transform others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import t2t
from t2t.lowering import to_network
from tests.cases import TORCH, OpCase, ids, integers, run_case

# torch.cond and flex_attention compile themselves when a row runs in PyTorch.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning"),
]

LINEAR = nn.Linear(4, 3)
WEIGHT = torch.randn(4, 4)


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


def counted(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x.sin() * 2), (start, x))


def trees(x: torch.Tensor) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return {"sum": carry["sum"] + row["x"]}, (carry["sum"].sin(), row["x"] * 2)

    carry, (sines, doubles) = scan(step, {"sum": x[0].clone()}, {"x": x})
    return carry["sum"], sines, doubles


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


# Of fixed length, so they are unrolled.
LOOPS = [
    OpCase(
        "while-loop",
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (COUNT, x))[1],
        [(3, 4)], layers=4,
    ),
    OpCase("while-loop-all", counted, [(3, 4)]),
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
    OpCase("scan", lambda x: scan(lambda carry, y: (carry + y, carry * y), x[0], x), [(3, 4)]),
    OpCase(
        "scan-reverse",
        lambda x: scan(lambda c, y: (c + y, c * y), x[:, 0].clone(), x, dim=1, reverse=True),
        [(3, 4)],
    ),
    OpCase("scan-trees", trees, [(3, 4)]),
    OpCase(
        "scan-dynamic", lambda x: scan(lambda carry, y: (carry + y, carry * y), x[0], x), [(3, 4)],
        dynamic=[{1: (1, 8)}], shapes=[(3, 6)],
    ),
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
        [(3, 4)],
    ),
]  # fmt: skip

REFUSED = [
    OpCase(
        "while-loop-of-data",
        lambda x: while_loop(lambda x: x.sum() < 3, lambda x: (x * 2,), (x,)), [(3, 4)],
        raises="how often it runs depends on the input",
    ),
    OpCase(
        "scan-of-dynamic-length",
        lambda x: scan(lambda carry, y: (carry + y, carry * y), x[0], x), [(3, 4)],
        dynamic=[{0: (1, 8)}], raises="became a plain number",
    ),
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


@pytest.mark.parametrize("case", ids(LOOPS))
def test_loops_of_fixed_length(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(REFUSED))
def test_loops_are_refused(case: OpCase) -> None:
    run_case(case)


def test_what_pytorch_takes_only_on_a_gpu_is_its_own_error() -> None:
    def function(x: torch.Tensor) -> Any:
        return associative_scan(lambda a, b: a + b, x, 0)

    if MODE == "pointwise":
        run_case(OpCase("default", function, [(3, 4)]))
        return
    with pytest.raises(ValueError, match="all input tensors need to be on CUDA"):
        to_network(function, [torch.rand(3, 4)])
