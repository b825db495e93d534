"""Grouped matrix products and histograms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

if not hasattr(F, "grouped_mm"):
    pytest.skip("PyTorch has it from 2.10", allow_module_level=True)


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


class Experts(nn.Module):
    """A mixture of experts as transformers computes it: rows sorted by expert, then put back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.weights = nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x: Any) -> Any:
        chosen = self.router(x).topk(2, dim=-1)
        order = chosen.indices.reshape(-1).sort()
        counts = torch.histc(order.values.float(), bins=4, min=0, max=3)
        offsets = torch.cumsum(counts, 0, dtype=torch.int32)
        y = F.grouped_mm(x[order.indices // 2], self.weights.transpose(-2, -1), offs=offsets)
        y = y * chosen.values.softmax(-1).reshape(-1)[order.indices].unsqueeze(-1)
        back = torch.empty_like(order.indices)
        back[order.indices] = torch.arange(order.indices.size(0))
        return y[back].view(x.shape[0], 2, 8).sum(1)


CASES = [
    OpCase(
        "groups", lambda a, b, o: F.grouped_mm(a, b, offs=o), [(9, 4), (3, 4, 8), ends(2, 5, 9)]
    ),
    OpCase(
        "an-empty-group",
        lambda a, b, o: F.grouped_mm(a, b, offs=o),
        [(6, 4), (4, 4, 8), ends(0, 4, 4, 6)],
    ),
    OpCase(
        "constant-matrices",
        lambda a, o: F.grouped_mm(a, torch.arange(96.0).reshape(3, 4, 8), offs=o),
        [(6, 4), ends(1, 4, 6)],
    ),
    OpCase(
        "groups-fp16-policy",
        lambda a, b, o: F.grouped_mm(a, b, offs=o),
        [(9, 4), (3, 4, 8), ends(2, 5, 9)],
        policy=Policy(torch.float16),
        rtol=2e-2,
        atol=2e-2,
        reason="half precision",
    ),
    OpCase("batches", F.grouped_mm, [(3, 5, 4), (3, 4, 8)]),
    OpCase(
        "columns-refused",
        lambda a, b, o: F.grouped_mm(a, b, offs=o),
        [(8, 16), (16, 8), ends(4, 16)],
        raises="supported: 2 and 3 with offs",
    ),
    OpCase("experts", Experts(), [(5, 8)]),
    OpCase("experts-dynamic", Experts(), [(5, 8)], dynamic=[{0: (2, 12)}]),
    OpCase("histc", lambda x: torch.histc(x, 8, -1.0, 2.0), [uniform(3, 40, low=-2.0, high=3.0)]),
    OpCase("histc-edges", lambda x: torch.histc(x, bins=4, min=0, max=3),
           [integers(30, low=-1, high=5, dtype=torch.float32)]),
    OpCase("histc-own-bounds", lambda x: torch.histc(x, 5), [(3, 4)], raises="give bounds"),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_case(case: OpCase) -> None:
    run_case(case)
