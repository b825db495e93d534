"""Operators that read or overwrite some elements of a tensor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.cases import OpCase, ids, integers, run_case, uniform

SLICES = [
    OpCase("slice", lambda x: x[:, 1:3], [(2, 5, 3)], layers=1),
    OpCase("slice-all", lambda x: x[:, :5] + 1, [(2, 5, 3)], layers=2, ),
    OpCase("slice-negative", lambda x: x[..., -2:], [(2, 5, 3)]),
    OpCase("slice-end", lambda x: x[:, :-1], [(2, 5, 3)]),
    OpCase("slice-beyond", lambda x: x[:, 3:100], [(2, 5, 3)]),
    OpCase("slice-step", lambda x: x[:, 1::2], [(2, 5, 3)]),
    OpCase("slice-empty", lambda x: x[:, 7:], [(2, 5, 3)]),
    OpCase(
        "slice-dynamic-other", lambda x: x[:, 1:3], [(2, 5, 3)], dynamic=[{0: (1, 8)}],
        shapes=[(5, 5, 3)], layers=1,
    ),
    OpCase(
        "slice-dynamic", lambda x: x[:, 1:], [(2, 5, 3)], dynamic=[{1: (2, 8)}],
        shapes=[(2, 7, 3)],
    ),
    OpCase(
        "slice-dynamic-negative", lambda x: x[:, -2:], [(2, 5, 3)], dynamic=[{1: (2, 8)}],
        shapes=[(2, 7, 3)],
    ),
    OpCase(
        "slice-dynamic-negative-short", lambda x: x[:, -3:], [(2, 5, 3)], dynamic=[{1: (2, 8)}],
        shapes=[(2, 2, 3)],
    ),
    OpCase(
        "slice-dynamic-end", lambda x: x[:, :-1], [(2, 5, 3)], dynamic=[{1: (2, 8)}],
        shapes=[(2, 7, 3)],
    ),
    OpCase(
        "slice-dynamic-step", lambda x: x[:, 1::2], [(2, 5, 3)], dynamic=[{1: (2, 8)}],
        shapes=[(2, 8, 3)],
    ),
    OpCase(
        "slice-dynamic-half", lambda x: x[:, x.shape[1] // 2 :], [(2, 5, 3)],
        dynamic=[{1: (2, 8)}], shapes=[(2, 8, 3)],
    ),
    OpCase("ellipsis-index-2d", lambda x: x[..., 0], [(2, 3)]),
    OpCase("ellipsis-index-3d", lambda x: x[..., 0], [(1, 4, 5)]),
    OpCase("select-negative", lambda x: x[:, -2], [(2, 5, 3)]),
    OpCase(
        "select-dynamic", lambda x: x[:, -1], [(2, 5, 3)], dynamic=[{0: (1, 4), 1: (2, 8)}],
        shapes=[(3, 7, 3)],
    ),
    OpCase(
        "select-symbolic", lambda x: x.select(1, x.shape[1] // 2), [(2, 5, 3)],
        dynamic=[{1: (2, 8)}], shapes=[(2, 8, 3)],
    ),
    OpCase("select-to-scalar", lambda x: x[1], [(4,)]),
    OpCase("select-int64", lambda x: x[1], [integers(4)]),
    OpCase("select-bool", lambda x: x[1], [integers(4, 3, high=2, dtype=torch.bool)]),
]  # fmt: skip

INDICES = [
    OpCase("list", lambda x: x[[1, 1, 1, 1]], [(2, 3)], layers=2),
    OpCase("negative", lambda x: x[:, [0, -1]], [(2, 3)]),
    OpCase("matrix", lambda x: x[:, torch.tensor([[0, 2], [1, 1]])], [(2, 3, 4)]),
    OpCase("int32", lambda x: x[torch.tensor([1, 0], dtype=torch.int32)], [(2, 3)]),
    OpCase("out-of-bounds", lambda x: x[:, [0, 3]], [(2, 3)], raises="index 3 is out of bounds"),
    OpCase("two", lambda x: x[[0, 1, 1], [2, 0, -1]], [(2, 3, 4)]),
    OpCase("two-broadcast", lambda x: x[torch.tensor([[0], [1]]), torch.tensor([0, 2])], [(2, 3)]),
    OpCase("two-inner", lambda x: x[:, [0, 1, 1], [2, 0, -1]], [(2, 3, 4, 5)]),
    OpCase("two-apart", lambda x: x[:, [0, 1], :, [2, 0]], [(2, 3, 4, 5)]),
    OpCase("two-apart-first", lambda x: x[[0, 1], :, [2, 0]], [(2, 3, 4, 5)]),
    OpCase("with-none", lambda x: x[:, None, [0, 1]], [(2, 3, 4)]),
    OpCase("with-slice", lambda x: x[1:, [0, 2], 1], [(2, 3, 4)]),
    OpCase("mask", lambda x: x[torch.tensor([True, False, True])], [(3, 2)]),
    OpCase("mask-2d", lambda x: x[:, torch.eye(3, dtype=torch.bool)], [(2, 3, 3, 2)]),
    OpCase("traced", lambda x, i: x[i], [(5, 3), integers(4, low=-5, high=5)]),
    OpCase(
        "traced-int32", lambda x, i: x[:, i],
        [(2, 5), integers(4, 2, low=-5, high=5, dtype=torch.int32)],
    ),
    OpCase(
        "traced-two", lambda x, i, j: x[i, :, j],
        [(5, 2, 3), integers(4, 1, low=-5, high=5), integers(2, low=-3, high=3)],
    ),
    OpCase("traced-and-constant", lambda x, i: x[i, [0, 2]], [(5, 3), integers(2, high=5)]),
    OpCase("traced-mask", lambda x: x[x < 0.5], [(10,)], raises="depends on the data"),
    OpCase(
        "dynamic", lambda x, i: x[:, i], [(2, 5), integers(4, low=-5, high=5)],
        dynamic=[{0: (1, 4)}, {}], shapes=[(3, 5), (4,)],
    ),
    OpCase("index-select", lambda x: x.index_select(1, torch.tensor([2, 0])), [(2, 3)]),
    OpCase("index-select-dim", lambda x, i: torch.index_select(x, -2, i), [(4, 2), integers(3, high=4)]),
    OpCase("gather", lambda x, i: x.gather(1, i), [(2, 4), integers(2, 3, high=4)], layers=1),
    OpCase("gather-smaller", lambda x, i: x.gather(-1, i), [(3, 4), integers(2, 6, high=4)]),
    OpCase("take", lambda x: x.take(torch.tensor([[0, -1], [3, 2]])), [(2, 3)]),
    OpCase("take-traced", lambda x, i: x.take(i), [(2, 3), integers(4, low=-6, high=6)]),
    OpCase(
        "take-along-dim", lambda x: torch.take_along_dim(x, x.argsort(1), 1),
        [(3, 4)], raises="sort|argsort",
    ),
    OpCase("take-along", lambda x, i: x.take_along_dim(i, 1), [(3, 4), integers(1, 2, high=4)]),
]  # fmt: skip

MAX_NORM = torch.nn.Embedding(10, 5, max_norm=1.0)

EMBEDDINGS = [
    OpCase("module", torch.nn.Embedding(10, 5), [integers(2, 3)], layers=2),
    OpCase("int32", torch.nn.Embedding(10, 5), [integers(2, 3, dtype=torch.int32)]),
    OpCase("padding-idx", torch.nn.Embedding(10, 5, padding_idx=3), [integers(2, 3)]),
    OpCase("functional", lambda i, w: F.embedding(i, w), [integers(4), (10, 3)]),
    OpCase(
        "dynamic", torch.nn.Embedding(10, 5), [integers(2, 3)], dynamic=[{0: (1, 4), 1: (2, 8)}],
    ),
    OpCase(
        "max-norm", lambda i: MAX_NORM(i), [integers(2, 3)],
        raises="parameter or buffer|embedding_renorm",
    ),
]  # fmt: skip

SCATTERS = [
    OpCase("slice-scatter", lambda x, y: x.slice_scatter(y, 1, 1, 3), [(2, 5), (2, 2)], layers=3),
    OpCase("slice-scatter-all", lambda x, y: x.slice_scatter(y, 1), [(2, 5), (2, 5)]),
    OpCase("slice-scatter-step", lambda x, y: x.slice_scatter(y, 1, 1, 5, 2), [(2, 5), (2, 2)]),
    OpCase("select-scatter", lambda x, y: x.select_scatter(y, 1, -2), [(2, 5), (2,)]),
    OpCase("copy", lambda x, y: x.copy_(y), [(2, 5), (5,)]),
    OpCase("copy-dtype", lambda x, y: x.copy_(y), [integers(2, 5), uniform(2, 5, low=-9, high=9)]),
    OpCase("fill", lambda x: x.fill_(2.5), [(2, 5)]),
    OpCase("fill-tensor", lambda x, y: x.fill_(y[0]), [(2, 5), (3,)]),
    OpCase("zero", lambda x: x.zero_(), [(2, 5)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(SLICES))
def test_slices(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(INDICES))
def test_indices(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(EMBEDDINGS))
def test_embeddings(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(SCATTERS))
def test_scatters(case: OpCase) -> None:
    run_case(case)
