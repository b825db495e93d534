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


class ClassToken(nn.Module):
    """A ViT's class token, a parameter that was initialized in place, repeated for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        nn.init.trunc_normal_(self.token)

    def forward(self, x: Any) -> Any:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)


def rows_written(x: Any) -> Any:
    """What is written through a view of dynamic size must show in the constant and its views."""
    table = torch.zeros(8, 4)
    turned = table.t()
    rows = table[: x.shape[0]]
    rows += 1
    return x + turned[:, : x.shape[0]].t()


def rows_filled(x: Any) -> Any:
    table = torch.zeros(8, 4)
    table[: x.shape[0]] = x
    return table * 2


def constant_written_behind(x: Any) -> Any:
    table = torch.zeros(8, 4)
    rows = table[: x.shape[0]]
    table[0] = x[0]
    return x + rows


DYNAMIC = {"inputs": [(2, 4)], "dynamic": [{0: (1, 6)}]}

CASES = [
    OpCase(
        "positions-of-a-written-buffer",
        Positions(),
        [integers(2, 5)],
        dynamic=[{0: (1, 4), 1: (2, 16)}],
    ),
    OpCase("class-token", ClassToken(), [(2, 3, 4)], dynamic=[{0: (1, 8)}], shapes=[(5, 3, 4)]),
    OpCase("rows-written", rows_written, **DYNAMIC, raises="a constant cut to a dynamic size"),
    OpCase("rows-filled", rows_filled, **DYNAMIC, raises="build the result with torch.cat"),
    OpCase("constant-behind", constant_written_behind, **DYNAMIC, raises="changed in place"),
]


@pytest.mark.parametrize("case", ids(CASES))
def test_case(case: OpCase) -> None:
    run_case(case)
