"""Operators that make tensors out of sizes and numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.cases import OpCase, ids, integers, run_case, uniform

N = [{0: (1, 6)}]
SIZES = [(2, 3)]
OTHER = [(5, 3)]

EDGES = torch.tensor([-0.5, 0.0, 1.0])
DOWN = torch.tensor([2, 1, 0])
ROWS = torch.tensor([[-1.0, 0.0, 1.0], [-0.5, 0.5, 2.0]])


def HALVES(generator: torch.Generator) -> torch.Tensor:
    """Draw multiples of a half, so that edges are hit."""
    return torch.randint(-4, 5, (3, 4), generator=generator) / 2


# Each is run with two batch sizes: the factory must follow.
DYNAMIC = {
    "zeros": lambda x: torch.zeros(x.shape[0], 2),
    "ones": lambda x: torch.ones((x.shape[0], 2), dtype=torch.int64),
    "full": lambda x: torch.full((x.shape[0],), 2.5),
    "full-size": lambda x: torch.full((2,), x.shape[0]),
    "full-bool": lambda x: torch.full((x.shape[0],), True),
    "empty": lambda x: torch.empty(x.shape[0], 3).copy_(x),
    "zeros-like": lambda x: torch.zeros_like(x),
    "ones-like": lambda x: torch.ones_like(x, dtype=torch.int32),
    "full-like": lambda x: torch.full_like(x, 2.5),
    "empty-like": lambda x: torch.empty_like(x).fill_(1),
    "new-zeros": lambda x: x.new_zeros(x.shape[0], 1),
    "new-ones": lambda x: x.new_ones(x.shape[0], dtype=torch.bool),
    "new-full": lambda x: x.new_full((x.shape[0], 2), 7),
    "empty-strided": lambda x: torch.empty_strided((x.shape[0], 3), (3, 1)).copy_(x),
    "new-empty-strided": lambda x: x.new_empty_strided((x.shape[0], 3), (3, 1)).copy_(x),
    "new-empty": lambda x: x.new_empty(x.shape).copy_(x),
    "arange": lambda x: torch.arange(x.shape[0]),
    "arange-start": lambda x: torch.arange(1, x.shape[0] + 2),
    "arange-step": lambda x: torch.arange(0, 3 * x.shape[0], 2),
    "arange-down": lambda x: torch.arange(x.shape[0], 0, -1),
    "arange-float": lambda x: torch.arange(x.shape[0], dtype=torch.float32) + 0.5,
    "arange-int32": lambda x: torch.arange(x.shape[0], dtype=torch.int32),
    "arange-half-steps": lambda x: torch.arange(0.25, x.shape[0], 0.5),
    "arange-symbolic-start": lambda x: torch.arange(x.shape[0], 2 * x.shape[0]),
    "arange-half": lambda x: torch.arange(x.shape[0], dtype=torch.float16),
    "eye": lambda x: torch.eye(x.shape[0]),
    "eye-rectangle": lambda x: torch.eye(x.shape[0], 3, dtype=torch.int64),
    "size-as-tensor": lambda x: torch.tensor(x.shape[0]) + 1,
    "size-as-float": lambda x: torch.tensor(x.shape[0], dtype=torch.float32) * 0.5,
    "sizes-as-tensor": lambda x: torch.tensor([x.shape[0], 2]),
    "scalar-tensor": lambda x: torch.scalar_tensor(x.shape[0]),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0]),
    "meshgrid": lambda x: torch.stack(
        torch.meshgrid(torch.arange(x.shape[0]), torch.arange(3), indexing="ij"), -1
    ),
    "causal-mask": lambda x: torch.ones(x.shape[0], x.shape[0]).tril(),
    "causal-mask-bool": lambda x: torch.ones(x.shape[0], 4, dtype=torch.bool).triu(1),
    "position-grid": lambda x: (torch.arange(x.shape[0])[:, None] - torch.arange(3)[None]).abs(),
}

CASES = [
    *(
        OpCase(name, lambda x, f=function: (f(x), x + 1), SIZES, dynamic=N, shapes=OTHER)
        for name, function in DYNAMIC.items()
    ),
    OpCase(
        "anchors", lambda x: anchors(x), [(1, 3, 4, 5)], dynamic=[{2: (1, 8), 3: (1, 9)}],
        shapes=[(1, 3, 6, 2)],
    ),
    OpCase("anchors-static", lambda x: anchors(x), [(1, 3, 4, 5)]),
    OpCase("zeros-like-static", lambda x: torch.zeros_like(x) + x, [(2, 3)]),
    OpCase("half-like", lambda x: torch.ones_like(x), [uniform(2, 3, dtype=torch.float16)]),
    OpCase("one-hot", lambda x: F.one_hot(x, 5), [integers(2, 3, high=5)]),
    OpCase("one-hot-infer", lambda x: F.one_hot(x), [integers(4, high=5)], raises="value|data"),
    OpCase("one-hot-constant", lambda x: F.one_hot(torch.tensor([0, 2])) + x, [(2, 3)]),
    OpCase("bucketize", lambda x: torch.bucketize(x, EDGES), [(3, 4)]),
    OpCase("bucketize-right", lambda x: torch.bucketize(x, EDGES, right=True), [HALVES]),
    OpCase("bucketize-int32", lambda x: torch.bucketize(x, EDGES, out_int32=True), [HALVES]),
    OpCase(
        "bucketize-int", lambda x: torch.bucketize(x, torch.tensor([1, 3])), [integers(3, high=5)],
    ),
    OpCase(
        "bucketize-traced", lambda x, b: torch.bucketize(x, b.cumsum(0)),
        [(3, 4), uniform(3, low=0)],
    ),
    OpCase("bucketize-number", lambda x: torch.bucketize(0.5, x.cumsum(0)), [uniform(4, low=0)]),
    OpCase("bucketize-scalar", lambda x: torch.bucketize(x[0, 0], EDGES), [(3, 4)]),
    OpCase("bucketize-nan", lambda x: torch.bucketize(x.log(), EDGES), [(3, 4)]),
    OpCase("searchsorted", lambda x: torch.searchsorted(EDGES, x), [HALVES]),
    OpCase("searchsorted-rows", lambda x: torch.searchsorted(ROWS, x), [(2, 5)]),
    OpCase("searchsorted-side", lambda x: torch.searchsorted(EDGES, x, side="right"), [HALVES]),
    OpCase(
        "searchsorted-sorter", lambda x: torch.searchsorted(EDGES.flip(0), x, sorter=DOWN),
        [HALVES],
    ),
    OpCase("searchsorted-nan", lambda x: torch.searchsorted(EDGES, x.log(), right=True), [(3, 4)]),
    OpCase("searchsorted-one", lambda x: torch.searchsorted(x.cumsum(0), 1.5), [uniform(4, low=0)]),
    OpCase("tril-indices", lambda x: x[torch.tril_indices(3, 3).unbind(0)], [(3, 3)]),
    OpCase("triu-indices", lambda x: x[tuple(torch.triu_indices(3, 3, 1))], [(3, 3)]),
    OpCase("random", lambda x: torch.rand_like(x) + x, [(2, 3)], raises="random numbers"),
]  # fmt: skip


def anchors(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(h) * 8, torch.arange(w) * 8, indexing="ij")
    return torch.stack([xs, ys, xs + 4, ys + 4], -1).reshape(-1, 4)


@pytest.mark.parametrize("case", ids(CASES))
def test_factories(case: OpCase) -> None:
    run_case(case)
