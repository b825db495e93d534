"""Operators that give the same elements under another shape."""

from __future__ import annotations

import pytest
import torch

from tests.cases import OpCase, ids, run_case

CASES = [
    OpCase("view", lambda x: x.view(2, 12), [(2, 3, 4)], layers=1),
    OpCase("view-infer", lambda x: x.view(-1, 4), [(2, 3, 4)]),
    OpCase(
        "view-dynamic", lambda x: x.view(x.size(0), -1), [(2, 3, 4)], dynamic=[{0: (1, 8)}],
        shapes=[(5, 3, 4)], layers=1,
    ),
    OpCase(
        "view-two-dynamic", lambda x: x.view(x.size(0), -1, 2), [(2, 3, 4)],
        dynamic=[{0: (1, 8), 1: (1, 9)}], shapes=[(5, 7, 4)],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_views(case: OpCase) -> None:
    run_case(case)
