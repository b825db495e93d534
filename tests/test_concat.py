"""Operators that join, cut, repeat and mirror tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

HALF = uniform(2, 3, dtype=torch.float16)

W3 = torch.linspace(-1, 1, 9).reshape(3, 3)
FP16: dict[str, Any] = {
    "policy": Policy(torch.float16),
    "rtol": 2e-2,
    "atol": 2e-2,
    "reason": "half precision, compared with float32",
}

JOINS = [
    OpCase("cat", lambda x, y: torch.cat([x, y]), [(2, 3), (4, 3)], layers=1),
    OpCase("cat-dim", lambda x, y: torch.cat((x, y), dim=-1), [(2, 3), (2, 1)], layers=1),
    OpCase("cat-one", lambda x: torch.cat([x + 1], 1), [(2, 3)]),
    OpCase("cat-constant", lambda x: torch.cat([x, torch.ones(1, 3)]), [(2, 3)]),
    OpCase("cat-promotes", lambda x, y: torch.cat([x, y]), [(2, 3), integers(1, 3)]),
    OpCase("cat-promotes-half", lambda x, y: torch.cat([x, y]), [HALF, (1, 3)]),
    OpCase("cat-legacy-empty", lambda x: torch.cat([torch.zeros(0), x], 1), [(2, 3)]),
    OpCase("cat-empty", lambda x: torch.cat([torch.zeros(2, 0), x], 1), [(2, 3)]),
    OpCase("cat-bool", lambda x, y: torch.cat([x > 0, y > 0]), [(2, 3), (2, 3)]),
    OpCase("concat-axis", lambda x, y: torch.concat([x, y], axis=1), [(2, 3), (2, 1)]),
    OpCase(
        "cat-dynamic", lambda x, y: torch.cat([x, y, x], 1), [(2, 3), (2, 2)],
        dynamic=[{0: ("n", 1, 4), 1: (1, 5)}, {0: ("n", 1, 4)}], shapes=[(3, 1), (3, 2)],
    ),
    OpCase("stack", lambda x, y: torch.stack([x, y]), [(2, 3), (2, 3)]),
    OpCase("stack-last", lambda x, y: torch.stack([x, y], -1), [(2, 3), (2, 3)], layers=3),
    OpCase("stack-promotes", lambda x, y: torch.stack([x, y], 1), [(2, 3), integers(2, 3)]),
    OpCase("stack-scalars", lambda x: torch.stack([x[0], x[1]]), [(2,)]),
    OpCase("hstack", lambda x, y: torch.hstack([x, y]), [(2, 3), (2, 1)]),
    OpCase("dstack", lambda x, y: torch.dstack([x, y]), [(2, 3), (2, 3)]),
    OpCase("column-stack", lambda x, y: torch.column_stack([x, y]), [(3,), (3,)]),
    OpCase("cat-fp16", lambda x: torch.cat([x @ W3, x], 1), [(2, 3)], **FP16),
    OpCase("stack-fp16", lambda x: torch.stack([x, x @ W3], 1), [(2, 3)], **FP16),
    OpCase("roll-fp16", lambda x: (x @ W3).roll(1, 1).flip(0).repeat(2, 1), [(2, 3)], **FP16),
]  # fmt: skip

CUTS = [
    OpCase("split", lambda x: x.split(2, dim=1), [(1, 5, 4, 4)]),
    OpCase("split-use-one", lambda x: torch.split(x, 2, -1)[1], [(2, 5)], layers=1),
    OpCase("split-sizes", lambda x: x.split([1, 4], 1), [(2, 5)], layers=2),
    OpCase("split-bigger", lambda x: x.split(8, 1), [(2, 5)]),
    OpCase("split-sizes-zero", lambda x: x.split([0, 5], 1), [(2, 5)]),
    OpCase("chunk", lambda x: x.chunk(3, 1), [(2, 7)]),
    OpCase("chunk-more", lambda x: x.chunk(9, 1), [(2, 4)]),
    OpCase("unbind", lambda x: x.unbind(1), [(2, 3)]),
    OpCase("unbind-some", lambda x: torch.unbind(x, -1)[:3], [(3500, 5)]),
    OpCase("tensor-split", lambda x: x.tensor_split(3, 1), [(2, 7)]),
    OpCase("tensor-split-at", lambda x: torch.tensor_split(x, (2, 5), 1), [(2, 7)]),
    OpCase("hsplit", lambda x: x.hsplit(2), [(2, 4)]),
    OpCase("vsplit", lambda x: x.vsplit([1]), [(2, 4)]),
    OpCase("dsplit", lambda x: x.dsplit(2), [(2, 3, 4)]),
    OpCase("unsafe-split-sizes", lambda x: torch.unsafe_split_with_sizes(x, [1, 3], 1), [(2, 4)]),
    OpCase("unsafe-split", lambda x: torch.unsafe_split(x, 2, 1), [(2, 4)]),
    OpCase("unsafe-chunk", lambda x: torch.unsafe_chunk(x, 2, 1), [(2, 4)]),
    OpCase("narrow", lambda x: x.narrow(1, 1, 2), [(2, 4)], layers=1),
    OpCase(
        "split-dynamic-other", lambda x: x.split(2, 1), [(2, 5)], dynamic=[{0: (1, 4)}],
        shapes=[(4, 5)], layers=3,
    ),
    OpCase(
        "split-dynamic-half",
        lambda x: x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1),
        [(2, 6)], dynamic=[{1: (2, 9)}], shapes=[(2, 7)],
    ),
    OpCase(
        "chunk-dynamic", lambda x: x.chunk(2, 1), [(2, 6)], dynamic=[{1: (2, 9)}],
        shapes=[(2, 7)],
    ),
]  # fmt: skip

REPEATS = [
    OpCase("repeat", lambda x: x.repeat(2, 3), [(2, 3)], layers=1),
    OpCase("repeat-new-dims", lambda x: x.repeat(2, 1, 3), [(2, 3)]),
    OpCase("repeat-nothing", lambda x: x.repeat(1, 1) + 1, [(2, 3)]),
    OpCase("repeat-scalar", lambda x: x[0].repeat(3), [(2,)]),
    OpCase("repeat-int", lambda x: x.repeat(1, 2), [integers(2, 3)]),
    OpCase(
        "repeat-dynamic", lambda x: x.repeat(2, 3), [(2, 3)], dynamic=[{0: (1, 5)}],
        shapes=[(4, 3)],
    ),
    OpCase(
        "repeat-symbolic", lambda x: x[:1].repeat(x.shape[0], 1), [(2, 3)],
        dynamic=[{0: (1, 5)}], shapes=[(4, 3)],
    ),
    OpCase("tile", lambda x: torch.tile(x, (2,)), [(2, 3)]),
    OpCase("repeat-interleave", lambda x: x.repeat_interleave(2, 1), [(2, 3)]),
    OpCase("repeat-interleave-flat", lambda x: torch.repeat_interleave(x, 3), [(2, 3)]),
    OpCase(
        "repeat-interleave-counts",
        lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 1]), dim=1), [(2, 3)],
    ),
    OpCase(
        "repeat-interleave-of-known-size",
        lambda x, n: x.repeat_interleave(n, 1, output_size=5),
        [(2, 3), lambda g: torch.tensor([2, 0, 3])[torch.randperm(3, generator=g)]],
    ),
    OpCase(
        "repeat-interleave-traced", lambda x, n: x.repeat_interleave(n, 0),
        [(2, 3), integers(2, high=3)], raises="depends on the data",
    ),
    OpCase("roll", lambda x: x.roll(1, 1), [(2, 5)], layers=1),
    OpCase("roll-negative", lambda x: x.roll(-2, -1), [(2, 5)]),
    OpCase("roll-two", lambda x: torch.roll(x, (1, -3), (0, 1)), [(3, 5)], layers=1),
    OpCase("roll-twice-one", lambda x: torch.roll(x, (1, 2), (1, 1)), [(3, 5)], layers=1),
    OpCase("roll-flat", lambda x: x.roll(2), [(3, 5)]),
    OpCase("roll-beyond", lambda x: x.roll(12, 1), [(3, 5)]),
    OpCase(
        "roll-dynamic", lambda x: x.roll(7, 1), [(3, 5)], dynamic=[{0: (1, 4), 1: (2, 9)}],
        shapes=[(2, 8)],
    ),
    OpCase("flip", lambda x: x.flip(1), [(3, 5)], layers=1),
    OpCase("flip-two", lambda x: torch.flip(x, (0, -1)), [(3, 5)], layers=1),
    OpCase("fliplr", lambda x: x.fliplr(), [(3, 5)]),
    OpCase("flipud", lambda x: x.flipud(), [(3, 5)]),
    OpCase(
        "flip-dynamic", lambda x: x.flip(1), [(3, 5)], dynamic=[{0: (1, 4), 1: (2, 9)}],
        shapes=[(2, 8)],
    ),
    OpCase("rot90", lambda x: x.rot90(1, (0, 1)), [(3, 5)]),
    OpCase("rot90-three", lambda x: torch.rot90(x, 3, (1, 2)), [(3, 5, 2)]),
    OpCase("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), [(3,), (4,)]),
    OpCase("meshgrid-xy", lambda x, y: torch.meshgrid(x, y, indexing="xy"), [(3,), (4,)]),
    OpCase("cartesian-prod", lambda x, y: torch.cartesian_prod(x, y), [(3,), (4,)]),
    OpCase("block-diag", lambda x, y: torch.block_diag(x, y), [(3, 2), (1, 4)]),
    OpCase("tril", lambda x: x.tril(), [(3, 5)]),
    OpCase("tril-diagonal", lambda x: torch.tril(x, diagonal=-1), [(2, 3, 5)]),
    OpCase("triu", lambda x: torch.triu(x, 1), [(3, 5)]),
    OpCase("triu-int", lambda x: torch.triu(x, 1), [integers(3, 5)]),
    OpCase("diag-embed", lambda x: torch.diag_embed(x, 1), [(3, 2)]),
    OpCase("diag-vector", lambda x: torch.diag(x), [(3,)]),
    OpCase("diag-matrix", lambda x: torch.diag(x, 1), [(3, 3)]),
    OpCase("unfold", lambda x: F.unfold(x, (2, 3), padding=1, stride=2), [(2, 3, 5, 6)]),
    OpCase("unfold-dilation", lambda x: F.unfold(x, 2, dilation=2), [(2, 3, 5, 6)]),
    OpCase(
        "unfold-batch", lambda x: F.unfold(x, 3, padding=1), [(2, 3, 5, 6)],
        dynamic=[{0: (1, 4)}], shapes=[(3, 3, 5, 6)],
    ),
    OpCase("fold", lambda x: F.fold(x, (4, 5), 2), [(2, 12, 12)]),
    OpCase("fold-stride", lambda x: F.fold(x, (5, 6), (3, 2), padding=1, stride=2), [(1, 12, 12)]),
    OpCase("fold-dilation", lambda x: F.fold(x, (5, 5), 2, dilation=2), [(1, 12, 9)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(JOINS))
def test_joins(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(CUTS))
def test_cuts(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(REPEATS))
def test_repeats(case: OpCase) -> None:
    run_case(case)
