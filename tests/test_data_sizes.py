"""Sizes and numbers that depend on the data, as torch.export's users write them: torch._check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import t2t
from tests.test_partition import check, engines, loaded

pytestmark = [
    pytest.mark.filterwarnings("ignore::t2t.module.ReferenceExecutionWarning"),
    pytest.mark.filterwarnings("ignore:.create_unbacked_symint"),
    pytest.mark.filterwarnings("ignore:_check_is_size:FutureWarning"),
]


class Model(nn.Module):
    """Layers before and behind a choice by numbers in the data."""

    def __init__(self, choose: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.choose = nn.Linear(6, 6), choose
        self.last = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.choose(self, x, (self.first(x).tanh() + 1).square())


def counted(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] > 0).sum()


def narrowed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0], lambda: "there are not so many rows")
    return m.last(y.narrow(0, 0, n)).softmax(-1) + n


def is_size(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check_is_size(n)
    torch._check(n <= 20)
    table = torch.arange(n * 6, dtype=torch.float32).reshape(n, 6) * 0.01
    return m.last(table + y.mean(0)).softmax(-1), table.sum(0) / (n + 1)


def as_mask(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 0)
    torch._check(n <= 30)
    kept = torch.arange(x.shape[0]) < n
    return m.last(y.masked_fill(~kept[:, None], 0.0)).softmax(-1) * (n + 1)


def negative(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = x[0, 0].round().to(torch.int32).item()
    torch._check(n >= -5)
    torch._check(n <= 5)
    return m.last(y + n).softmax(-1) * (n + 6)


def twice(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 1)
    torch._check(n <= x.shape[0])
    k = (y[:n, 1] > 1).sum().item()
    torch._check(k >= 0)
    torch._check(k <= n)
    return m.last(y[:n].narrow(0, 0, k)).relu() + (n - k)


def pieces(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x)
    a, b = torch.split(y, torch.stack([n, x.shape[0] - n]).tolist())
    return m.last(a).softmax(-1), m.last(b).sum(0)


def bins(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    found = torch.bincount((x[:, 0].abs() * 3).long(), weights=y[:, 0], minlength=6)
    torch._check(found.shape[0] <= 40, lambda: "too many bins")
    return (found[:, None].cos() * 2 + m.last.get_submodule("2").bias).exp().softmax(0)


def repeated(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    chosen = torch.repeat_interleave(y, (x[:, 0].abs() * 2).long(), dim=0)
    torch._check(chosen.shape[0] <= 90)
    return m.last(chosen).softmax(-1)


def repeated_to(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Some rows twice and as many not at all."""
    order = x[:, 0].argsort()
    times = torch.ones(x.shape[0], dtype=torch.int64)
    times = times.index_put((order[:3],), torch.tensor(2)).index_put((order[-3:],), torch.tensor(0))
    chosen = torch.repeat_interleave(y, times, dim=0, output_size=x.shape[0])
    return m.last(chosen).softmax(-1)


def few(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    chosen = y[x[:, 0] > 0]
    torch._check(chosen.shape[0] <= 12)
    return m.last(chosen).softmax(-1) + chosen.shape[0]


CHOICES = [
    narrowed, is_size, as_mask, negative, twice, pieces, bins, repeated, few,
]  # fmt: skip


@pytest.mark.parametrize("choose", CHOICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_and_sizes_of_a_known_range(choose: Any, dynamic: bool, tmp_path: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    model = Model(choose).eval()
    calls = [torch.randn(9, 6, generator=generator) for _ in range(3)]
    if choose is not twice:
        # Nothing is chosen.
        calls.append(-torch.rand(9, 6, generator=generator))
    calls.append(torch.rand(9, 6, generator=generator) + 1)
    options: dict[str, Any] = {"dynamic_shapes": [{0: (7, 12)}]} if dynamic else {}
    converted = t2t.convert(model, [calls[0]], partial=True, **options)
    assert type(converted) is t2t.TRTModule
    assert converted.parts[-1].in_engine
    assert engines(converted) >= 2
    more = [torch.randn(n, 6, generator=generator) for n in (12, 7)] if dynamic else []
    check(model, loaded(converted, tmp_path), *calls, *more)
