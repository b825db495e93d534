"""Operators that read or overwrite some elements of a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from t2t.precision import Policy
from tests.cases import TORCH, OpCase, ids, integers, run_case, uniform

W3 = torch.linspace(-1, 1, 9).reshape(3, 3)
FP16: dict[str, Any] = {
    "policy": Policy(torch.float16),
    "rtol": 2e-2,
    "atol": 2e-2,
    "reason": "half precision, compared with float32",
}
BYTES = integers(4, 5, 3, high=256, dtype=torch.uint8)

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

ONE = torch.tensor([2, 0])

INDICES = [
    OpCase("list", lambda x: x[[1, 1, 1, 1]], [(2, 3)], layers=2),
    OpCase("negative", lambda x: x[:, [0, -1]], [(2, 3)]),
    OpCase("matrix", lambda x: x[:, torch.tensor([[0, 2], [1, 1]])], [(2, 3, 4)]),
    OpCase("int32", lambda x: x[torch.tensor([1, 0], dtype=torch.int32)], [(2, 3)]),
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
    OpCase("unsafe", lambda x: torch.ops.aten._unsafe_index(x, [None, ONE]), [(2, 3)]),
    OpCase("index-select", lambda x: x.index_select(1, torch.tensor([2, 0])), [(2, 3)]),
    OpCase(
        "index-select-dim", lambda x, i: torch.index_select(x, -2, i),
        [(4, 2), integers(3, high=4)],
    ),
    OpCase("gather", lambda x, i: x.gather(1, i), [(2, 4), integers(2, 3, high=4)], layers=1),
    OpCase("gather-smaller", lambda x, i: x.gather(-1, i), [(3, 4), integers(2, 6, high=4)]),
    OpCase("take", lambda x: x.take(torch.tensor([[0, -1], [3, 2]])), [(2, 3)]),
    OpCase("take-traced", lambda x, i: x.take(i), [(2, 3), integers(4, low=-6, high=6)]),
    OpCase(
        "take-along-dim", lambda x: torch.take_along_dim(x, x.argsort(1), 1),
        [(3, 4)],
    ),
    OpCase("take-along", lambda x, i: x.take_along_dim(i, 1), [(3, 4), integers(1, 2, high=4)]),
]  # fmt: skip


def put(x: torch.Tensor, place: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[place] = value
    return x


PLACE = integers(high=3)
BACK = integers(low=-3, high=0)
TABLE = torch.arange(12.0).reshape(3, 4)


def added_at(x: torch.Tensor, place: Any, value: Any) -> torch.Tensor:
    x = x * 2
    x[place] += value
    return x


def counted(i: torch.Tensor, value: Any) -> torch.Tensor:
    counts = torch.zeros(3, 4)
    counts[i] = value
    counts[i] += 1
    return counts


def views_at(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x * 2
    before = x[i]
    x.mul_(3)
    x[i].add_(1)
    shown = x[:, i].unsqueeze(1)
    shown.zero_()
    i.add_(-1)
    return x, before, shown, x.narrow(1, i, 1)


def written_view(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x.narrow(1, i, 2).mul_(5)
    x[i].view(2, 2)[0] = 0
    return x


TENSOR_PLACES = [
    OpCase("first", lambda x, i: x[i], [(3, 4), PLACE]),
    OpCase("inner", lambda x, i: x[:, i], [(2, 3, 4), BACK]),
    OpCase("last", lambda x, i: x[..., i], [(2, 4, 3), BACK]),
    OpCase("two", lambda x, i, j: x[i, j], [(3, 3, 4), PLACE, BACK]),
    OpCase("two-apart", lambda x, i, j: x[i, ..., j], [(3, 2, 3), PLACE, BACK]),
    OpCase("none-and-slice", lambda x, i: x[1:, i, None, ::2], [(3, 3, 4), PLACE]),
    OpCase("none-first", lambda x, i: x[None, i], [(3, 4), PLACE]),
    OpCase("number", lambda x, i: x[i, 1], [(3, 4), PLACE]),
    OpCase("truth", lambda x, i: x[i, True], [(3, 4), PLACE]),
    OpCase("with-list", lambda x, i: x[i, :, [0, 2]], [(3, 2, 4), PLACE]),
    OpCase(
        "with-tensor", lambda x, i, k: x[i, :, k], [(3, 2, 4), PLACE, integers(2, 3, high=4)],
    ),
    OpCase("with-mask", lambda x, i: x[i, torch.tensor([True, False, True])], [(3, 3), PLACE]),
    OpCase("int32", lambda x, i: x[i], [(3, 4), integers(high=3, dtype=torch.int32)]),
    OpCase("int8", lambda x, i: x[i], [(3, 4), integers(high=3, dtype=torch.int8)]),
    OpCase("argmax", lambda x: x[x.sum(1).argmax()], [(3, 4)]),
    OpCase("constant-table", lambda i: TABLE[i], [PLACE]),
    OpCase("stacked", lambda x, i: x[[0, 1], torch.stack([i, i + 1])], [(3, 4), PLACE]),
    OpCase("again", lambda x, i: x[i][i], [(3, 4), PLACE]),
    OpCase("select", lambda x, i: x.select(0, i), [(3, 4), PLACE]),
    OpCase("select-function", lambda x, i: torch.select(x, -2, i), [(2, 3, 4), BACK]),
    OpCase("index-select", lambda x, i: x.index_select(0, i), [(3, 4), PLACE]),
    OpCase("narrow", lambda x, i: x.narrow(1, i, 2), [(3, 4), PLACE]),
    OpCase("narrow-back", lambda x, i: torch.narrow(x, 0, i, 1), [(3, 4), BACK]),
    OpCase(
        "narrow-dynamic", lambda x, i, y: x.narrow(0, i, y.shape[0]), [(9, 4), PLACE, (2,)],
        dynamic=[{}, {}, {0: (1, 5)}], shapes=[(9, 4), (), (4,)],
    ),
    OpCase("take", lambda x, i: x.take(i), [(3, 4), BACK]),
    OpCase("embedding", lambda w, i: F.embedding(i, w), [(3, 4), PLACE]),
    OpCase(
        "dynamic", lambda x, i: x[i], [(3, 4), BACK], dynamic=[{0: (3, 8)}, {}],
        shapes=[(5, 4), ()],
    ),
    OpCase(
        "dynamic-other", lambda x, i: x[:, i], [(2, 3, 4), BACK], dynamic=[{0: (1, 8)}, {}],
        shapes=[(5, 3, 4), ()],
    ),
    OpCase("put", lambda x, i, y: put(x, i, y), [(3, 4), PLACE, (4,)]),
    OpCase("put-number", lambda x, i: put(x, (slice(None), i), 2.0), [(2, 3, 4), BACK]),
    OpCase("put-two", lambda x, i, j: put(x, (i, j), 7.0), [(3, 3, 4), PLACE, BACK]),
    OpCase("put-slice", lambda x, i: put(x, (i, slice(1, 3)), 1.0), [(3, 4), PLACE]),
    OpCase("put-after-slice", lambda x, i: put(x, (slice(1, None), i), 1.0), [(3, 4), PLACE]),
    OpCase("add-at", added_at, [(3, 4), PLACE, (4,)]),
    OpCase("add-at-list", lambda x, i, y: added_at(x, (slice(None), i, [0, 2]), y),
           [(2, 3, 4), BACK, (2,)]),
    OpCase("count", counted, [PLACE, (4,)]),
    OpCase("select-scatter", lambda x, i, y: x.select_scatter(y, 1, i), [(3, 4), PLACE, (3,)]),
    OpCase("views", views_at, [(4, 5), integers(low=1, high=3)]),
    OpCase("written-view", written_view, [(3, 4), PLACE]),
    OpCase("truth-to-value", lambda x, m: put(x, m, 2.5),
           [(3, 4), integers(high=2, dtype=torch.bool)]),
    OpCase("fp16", lambda x, i: (x @ W3)[i], [(4, 3), PLACE], **FP16),
    OpCase("table-write", lambda x, i: added_at_table(x, i), [(4,), PLACE],
           raises="made before the forward pass"),
    OpCase("slice", lambda x, i: x[i : i + 1], [(3, 4), PLACE], raises="x.narrow"),
    OpCase("list", lambda x, i: x[[i, 0]], [(3, 4), PLACE], raises="torch.stack"),
    OpCase("mask", lambda x, m: x[m], [(3, 4), integers(high=2, dtype=torch.bool)],
           raises="torch.where"),
    OpCase("strided", lambda x, i: x[i].as_strided((2,), (1,), 0), [(3, 4), PLACE],
           raises="storage_offset"),
]  # fmt: skip


def added_at_table(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    TABLE[i] += x
    return TABLE


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
        raises="keeps no such state",
    ),
]  # fmt: skip

PAIRS = torch.tensor([[0, 3], [4, 1]])
SAME = torch.tensor([[0, 1, 1], [4, 4, 4]])


SCATTERS = [
    OpCase("slice-scatter", lambda x, y: x.slice_scatter(y, 1, 1, 3), [(2, 5), (2, 2)], layers=3),
    OpCase("slice-scatter-all", lambda x, y: x.slice_scatter(y, 1), [(2, 5), (2, 5)]),
    OpCase("slice-scatter-step", lambda x, y: x.slice_scatter(y, 1, 1, 5, 2), [(2, 5), (2, 2)]),
    OpCase("select-scatter", lambda x, y: x.select_scatter(y, 1, -2), [(2, 5), (2,)]),
    OpCase("diagonal-scatter", lambda x, y: x.diagonal_scatter(y, 1), [(3, 4), (3,)]),
    OpCase(
        "as-strided-scatter", lambda x, y: x.as_strided_scatter(y, (2,), (3,), 1), [(3, 4), (2,)],
    ),
    OpCase("scatter", lambda x, y: x.scatter(1, PAIRS, y), [(2, 5), (2, 2)], layers=2),
    OpCase("scatter-smaller", lambda x, y: x.scatter(-1, PAIRS[:1], y), [(3, 5), (3, 4)]),
    OpCase(
        "scatter-traced", lambda x, i, y: x.scatter(0, i, y),
        [(6, 2), lambda g: torch.stack([torch.randperm(6, generator=g) for _ in "ab"], 1), (6, 2)],
    ),
    OpCase("scatter-value", lambda x: x.scatter(1, PAIRS, 2.5), [(2, 5)]),
    OpCase("scatter-in-place", lambda x, y: x.clone().scatter_(1, PAIRS, y), [(2, 5), (2, 2)]),
    OpCase(
        "scatter-reduce-add", lambda x, y: x.scatter(1, SAME, y, reduce="add"), [(2, 5), (2, 3)],
    ),
    OpCase(
        "scatter-reduce-multiply", lambda x: x.scatter(1, SAME, 3.0, reduce="multiply"), [(2, 5)],
    ),
    OpCase(
        "scatter-add", lambda x, i, y: x.scatter_add(1, i, y),
        [(2, 5), integers(2, 4, high=5), (2, 4)],
    ),
    OpCase(
        "scatter-add-dim-0", lambda x, i, y: x.scatter_add(0, i, y),
        [(3, 5), integers(2, 4, high=3), (2, 4)],
    ),
    OpCase(
        "scatter-add-int", lambda x, i, y: x.scatter_add(0, i, y),
        [integers(4), integers(6, high=4), integers(6)],
    ),
    *(
        OpCase(
            f"scatter-reduce-{how}-{own}",
            lambda x, i, y, how=how, own=own: x.scatter_reduce(1, i, y, how, include_self=own),
            [(2, 5), integers(2, 4, high=5), (2, 4)],
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    OpCase(
        "scatter-mean-int", lambda x, i, y: x.scatter_reduce(0, i, y, "mean"),
        [integers(4, low=-9), integers(6, high=4), integers(6, low=-9)],
    ),
    OpCase("index-put", lambda x, y: x.index_put((torch.tensor([0, -1]),), y), [(3, 5), (2, 5)]),
    OpCase(
        "index-put-broadcast", lambda x, y: x.index_put((torch.tensor([0, 2]),), y),
        [(3, 5), (5,)],
    ),
    OpCase("index-put-apart", lambda x, y: put(x, (ONE, slice(None), ONE), y), [(3, 4, 5), (2, 4)]),
    OpCase("index-put-inner", lambda x, y: put(x, (slice(None), ONE, ONE), y), [(3, 4, 5), (3, 2)]),
    OpCase("index-put-last", lambda x, y: put(x, (..., ONE), y), [(3, 4, 5), (4, 2)]),
    OpCase(
        "index-put-traced", lambda x, i, y: put(x, (slice(None), i), y),
        [(3, 5), integers(1, low=-5, high=5), (3, 1)],
    ),
    OpCase(
        "index-put-mask-constant", lambda x, y: put(x, torch.eye(3, dtype=torch.bool), y),
        [(3, 3, 2), (3, 2)],
    ),
    OpCase(
        "index-put-accumulate",
        lambda x, y: x.index_put((torch.tensor([0, 0, 2]),), y, accumulate=True), [(3, 5), (3, 5)],
    ),
    OpCase(
        "index-put-accumulate-two",
        lambda x, y: x.index_put((SAME[0], torch.tensor([1, 1, 0])), y, accumulate=True),
        [(3, 5), (3,)],
    ),
    OpCase(
        "index-put-accumulate-traced",
        lambda x, i, y: x.index_put((i, torch.tensor([1, 1, 0])), y, accumulate=True),
        [(3, 5, 2), integers(3, low=-3, high=3), (3, 2)],
    ),
    OpCase("mask-to-value", lambda z: put(z, z > 0, 0), [(2, 3, 4)]),
    OpCase("mask-to-value-tensor", lambda z, v: put(z, z > 0, v[0]), [(2, 3, 4), (2,)]),
    OpCase("mask-of-first", lambda z, v: put(z, z[:, 0] > 0, v), [(4, 3), (3,)]),
    OpCase("mask-of-first-one", lambda z, v: put(z, z[:, 0] > 0, v), [(4, 3), (1, 3)]),
    OpCase("mask-of-last", lambda z, v: put(z, (slice(None), z[0] > 0), v), [(4, 3), (4, 1)]),
    OpCase(
        "mask-accumulate", lambda z: z.index_put((z > 0,), torch.tensor(2.0), accumulate=True),
        [(4, 3)],
    ),
    OpCase(
        "mask-many-values", lambda z, v: put(z, z > 0, v), [(4,), (4,)],
        raises="number depends on the data",
    ),
    OpCase("index-fill", lambda x: x.index_fill(1, torch.tensor([0, -1]), 2.0), [(3, 5)]),
    OpCase(
        "index-fill-tensor", lambda x, v: x.index_fill(1, torch.tensor([0, 2]), v[0]),
        [(3, 5), (1,)],
    ),
    OpCase("index-copy", lambda x, y: x.index_copy(1, torch.tensor([3, 0]), y), [(3, 5), (3, 2)]),
    OpCase("index-add", lambda x, y: x.index_add(1, torch.tensor([3, 0, 3]), y), [(3, 5), (3, 3)]),
    OpCase("gather-nothing", lambda x: x.gather(0, torch.zeros(2, 0, dtype=torch.int64)), [(5,)]),
    OpCase(
        "index-add-bool", lambda x, y: x.index_add(0, torch.tensor([0, 2, 2]), y),
        [integers(3, 4, high=2, dtype=torch.bool)] * 2,
    ),
    OpCase(
        "mask-accumulate-bool",
        lambda x, m: x.index_put((m,), torch.tensor(True), accumulate=True),
        [integers(3, 4, high=2, dtype=torch.bool)] * 2,
    ),
    OpCase(
        "scatter-add-bytes", lambda x, i, y: x.scatter_add(0, i, y),
        [integers(3, 4, high=120, dtype=torch.int8), integers(3, 4, high=3),
         integers(3, 4, high=120, dtype=torch.int8)],
    ),
    OpCase(
        "index-add-alpha", lambda x, y: x.index_add(0, torch.tensor([1, 0]), y, alpha=2),
        [(3, 5), (2, 5)],
    ),
    OpCase(
        "index-add-traced", lambda x, i, y: x.index_add(0, i, y),
        [(3, 5), integers(4, high=3), (4, 5)],
    ),
    OpCase("put", lambda x, y: x.put(torch.tensor([0, -1]), y), [(3, 5), (2,)]),
    OpCase(
        "masked-select", lambda x: x.masked_select(x > 0), [(3, 5)], raises="depends on the data",
    ),
    OpCase("nonzero", lambda x: x.nonzero(), [(3, 5)], raises="depends on the data"),
    OpCase("argwhere", lambda x: torch.argwhere(x), [(3, 5)], raises="depends on the data"),
    OpCase("where-one", lambda x: torch.where(x > 0)[0], [(3, 5)], raises="depends on the data"),
    OpCase("unique", lambda x: x.unique(), [(3, 5)], raises="depends on the data"),
    OpCase("copy", lambda x, y: x.copy_(y), [(2, 5), (5,)]),
    OpCase("copy-dtype", lambda x, y: x.copy_(y), [integers(2, 5), uniform(2, 5, low=-9, high=9)]),
    OpCase("fill", lambda x: x.fill_(2.5), [(2, 5)]),
    OpCase("fill-tensor", lambda x, y: x.fill_(y[0]), [(2, 5), (3,)]),
    OpCase("zero", lambda x: x.zero_(), [(2, 5)]),
    OpCase("slice-fp16", lambda x: (x @ W3)[:, 1:], [(2, 3)], **FP16),
    OpCase("index-fp16", lambda x: (x @ W3)[[1, 0], [0, -1]], [(2, 3)], **FP16),
    OpCase(
        "write-fp16", lambda x: put(x @ W3, (slice(None), slice(0, 3, 2)), x[:, :2]), [(2, 3)],
        **FP16,
    ),
    OpCase("write-half-fp16", lambda x: put(x, 0, (x @ W3)[1]), [(2, 3)], **FP16),
    OpCase("mask-fp16", lambda x: put(x @ W3, x > 0, 0.5), [(2, 3)], **FP16),
    OpCase(
        "add-up-fp16", lambda x: (x @ W3).index_add(0, torch.tensor([1, 1]), x), [(2, 3)], **FP16,
    ),
    OpCase("scatter-add-fp16", lambda x: (x @ W3).scatter_add(1, SAME % 3, x), [(2, 3)], **FP16),
    OpCase("uint8", lambda x: (x[:, 1:], x[:, [0, -1]], put(x, 0, x[1])), [BYTES]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(SLICES))
def test_slices(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(INDICES))
def test_indices(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(TENSOR_PLACES))
def test_places_that_are_tensors(case: OpCase) -> None:
    run_case(case)


def test_a_mask_before_a_place() -> None:
    def function(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return x[torch.eye(3, dtype=torch.bool), place]

    if TORCH >= (2, 9):
        run_case(OpCase("mask-before", function, [(3, 3, 4), PLACE]))
        return
    # PyTorch 2.8 takes the mask for one dimension, and has no result to compare with.
    with pytest.raises(IndexError, match="shape of the mask"):
        function(torch.randn(3, 3, 4), torch.tensor(1))


@pytest.mark.parametrize("case", ids(EMBEDDINGS))
def test_embeddings(case: OpCase) -> None:
    run_case(case)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("case", ids(SCATTERS))
def test_scatters(case: OpCase) -> None:
    run_case(case)
