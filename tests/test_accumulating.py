"""Several elements combined in one place, in each of the ways in which that is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from t2t.formulas import accumulating
from tests.cases import OpCase, ids, integers, run_case, uniform

aten = torch.ops.aten

INFINITE = torch.tensor([[torch.inf], [1.0], [torch.nan], [2.0], [-torch.inf]])
CONSTANT = torch.tensor([0, 2, 2, 2, 2, 0, 1])
GRAPH: dict[str, Any] = {
    "dynamic": [
        {0: ("p", 2, 9), 1: ("w", 1, 5)},
        {0: ("n", 1, 12)},
        {0: ("n", 1, 12), 1: ("w", 1, 5)},
    ],
    "shapes": [(7, 4), (6,), (6, 4)],
}
NODES = [(5, 3), integers(6, high=5), (6, 3)]


def spread(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sum over the edges of a graph, as its libraries write it."""
    return x.scatter_add(0, i.view(-1, 1).expand_as(y), y)


def means(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    return out.scatter_reduce(0, i[:, None].expand_as(y), y, "mean", include_self=False)


def counted(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> Any:
    count = torch.zeros(x.shape[0], dtype=torch.int64).index_add_(0, i, torch.ones_like(i))
    return torch.zeros(x.shape[0], y.shape[1]).index_add_(0, i, y), count


def in_place(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[:, :2].index_add_(0, i, y[:, :2], alpha=3)
    return x


def drawn(dtype: torch.dtype, *shape: int) -> Any:
    if dtype.is_floating_point:
        return uniform(*shape, dtype=dtype)
    return integers(*shape, high=2 if dtype == torch.bool else 120, dtype=dtype)


CASES = [
    *(
        OpCase(f"index-add-{str(d)[6:]}", lambda x, i, y: x.index_add(0, i, y),
               [drawn(d, 5, 3), integers(6, high=5), drawn(d, 6, 3)])
        for d in (torch.float32, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)
    ),
    *(
        OpCase(f"scatter-{how}-{own}-{name}",
               lambda x, i, y, how=how, own=own: x.scatter_reduce(0, i, y, how, include_self=own),
               [given(5, 3), integers(6, 3, high=5), given(6, 3)])
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
        for name, given in (("float", uniform), ("int", integers))
    ),
    OpCase("negative", lambda x, i, y: x.index_put((i,), y, accumulate=True),
           [(5, 3), integers(6, low=-5, high=5), (6, 3)]),
    OpCase("inner-dim", lambda x, i, y: x.index_add(1, i, y),
           [(2, 5, 3), integers(6, high=5), (2, 6, 3)]),
    OpCase("two-indices", lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
           [(4, 5, 3), integers(6, high=4), integers(6, low=-5, high=5), (6, 3)]),
    OpCase("two-apart", lambda x, i, y: aten.index_put(x, [i, None, i], y, True),
           [(3, 2, 3), integers(4, high=3), (4, 2)]),
    OpCase("two-inner", lambda x, i, y: aten.index_put(x, [None, i, i], y, True),
           [(2, 3, 3), integers(4, high=3), (2, 4)]),
    OpCase("constant-and-traced",
           lambda x, i, y: x.index_put((i, torch.tensor([1, 1, 0])), y, accumulate=True),
           [(3, 5, 2), integers(3, low=-3, high=3), (3, 2)]),
    OpCase("one-value", lambda x, i: x.index_put((i,), torch.tensor(2.0), accumulate=True),
           [(5, 3), integers(6, high=5)]),
    OpCase("expanded", spread, NODES),
    OpCase("in-place", in_place, NODES),
    OpCase("graph-index-add", lambda x, i, y: x.index_add(0, i, y), NODES, **GRAPH),
    OpCase("graph-scatter-add", spread, NODES, **GRAPH),
    OpCase("graph-mean", means, NODES, **GRAPH),
    OpCase("graph-new", counted, NODES, **GRAPH),
    OpCase("scatter-dynamic", lambda x, i, y: x.scatter_add(1, i, y),
           [(2, 5), integers(2, 6, high=5), (2, 6)],
           dynamic=[{1: (2, 9)}, {1: ("n", 1, 12)}, {1: ("n", 1, 12)}],
           shapes=[(2, 7), (2, 6), (2, 6)]),
    OpCase("two-dynamic", lambda x, i, y: x.index_put((i, i), y, accumulate=True),
           [(5, 5, 3), integers(6, low=-5, high=5), (6, 3)],
           dynamic=[{0: ("p", 2, 9), 1: ("p", 2, 9)}, {0: ("n", 1, 12)}, {0: ("n", 1, 12)}],
           shapes=[(7, 7, 3), (6,), (6, 3)]),
    OpCase("infinite", lambda x, i: x.index_add(0, i, INFINITE), [(6, 1), integers(5, high=6)]),
    OpCase("infinite-maximum", lambda x, i: x.scatter_reduce(0, i, INFINITE, "amax"),
           [(6, 1), integers(5, 1, high=6)]),
    OpCase("constant", lambda x, y: x.index_add(0, CONSTANT, y), [(5, 3), (7, 3)]),
    OpCase("constant-dynamic", lambda x, y: x.index_add(0, CONSTANT, y), [(5, 3), (7, 3)],
           dynamic=[{0: (3, 9), 1: ("w", 1, 5)}, {1: ("w", 1, 5)}], shapes=[(7, 4), (7, 4)]),
    OpCase("constant-scatter",
           lambda x, y: x.scatter_add(0, torch.tensor([[0, 2, 2], [2, 2, 0]]), y),
           [(5, 3), (7, 3)]),
    OpCase("constant-mask",
           lambda x, y: x.index_put((torch.eye(3, dtype=torch.bool),), y, accumulate=True),
           [(3, 3, 2), (3, 2)]),
    OpCase("nothing", lambda x, y: x.index_add(0, torch.zeros(0, dtype=torch.int64), y),
           [(5, 3), (0, 3)]),
    OpCase("scalar", lambda x, i, y: x.scatter_add(0, i, y), [(5,), integers(high=1), ()]),
]  # fmt: skip

LARGE = [
    OpCase("edges", lambda x, i, y: x.index_add(0, i, y),
           [(5000, 4), integers(9000, high=5000), (9000, 4)]),
    OpCase("elements", lambda x, i, y: x.scatter_add(0, i, y),
           [(5000,), integers(5000, high=5000), (5000,)]),
    OpCase("one-place", lambda x, y: x.scatter_add(0, torch.zeros(5000, dtype=torch.int64), y),
           [(5000,), uniform(5000, low=0.0)]),
    OpCase("histogram", lambda i: torch.zeros(300, dtype=torch.int64).index_add(
        0, i, torch.ones_like(i)), [integers(9000, high=300)]),
]  # fmt: skip


@pytest.fixture(params=["compared", "sorted", "sorted-by-digits"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "compared":
        monkeypatch.setattr(accumulating, "MAX_PAIRS", 0)
    if request.param == "sorted-by-digits":
        monkeypatch.setattr(accumulating, "MAX_SORTED", 0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("case", ids(CASES))
def test_accumulating(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(LARGE))
def test_large(case: OpCase) -> None:
    run_case(case)
