"""What real architectures do that no table of single operators shows: found by `make sweep`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.cases import OpCase, ids, integers, run_case


class Positions(nn.Module):
    """BERT's embeddings: a buffer that was written to when it was made, cut to a dynamic length."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Buffer(torch.zeros(1, 16, dtype=torch.int64), persistent=False)
        self.ids += torch.arange(16)
        self.kinds = nn.Buffer(torch.zeros(1, 16, dtype=torch.int64), persistent=False)
        self.embedding = nn.Embedding(16, 4)

    def forward(self, x: Any) -> Any:
        batch, length = x.shape
        positions = self.ids[:, :length]
        kinds = torch.gather(self.kinds.expand(positions.shape[0], -1), dim=1, index=positions)
        kinds = kinds.expand(batch, length)
        return self.embedding(x) + self.embedding(positions) + self.embedding(kinds)


CASES = [
    OpCase(
        "positions-of-a-written-buffer",
        Positions(),
        [integers(2, 5)],
        dynamic=[{0: (1, 4), 1: (2, 16)}],
    ),
]


@pytest.mark.parametrize("case", ids(CASES))
def test_case(case: OpCase) -> None:
    run_case(case)
