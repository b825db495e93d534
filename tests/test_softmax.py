"""Softmax and its logarithm."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case, uniform

HALF = Policy(torch.float16)
HALF_REASON = "computed in half precision, compared with float32"
INF = float("inf")

# Exponentials of these overflow, and of their differences underflow.
LARGE = uniform(3, 5, low=-1e4, high=1e4)
MASKED = torch.tensor([[0.5, -INF, 1.0], [-INF, -INF, 2.0], [-INF, -INF, -INF]])


class Scores(nn.Module):
    """Attention scores of a linear layer, half under the policy."""

    def __init__(self, normalize: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)
        self.normalize = normalize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalize(self.linear(x))


def safe(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._safe_softmax(x, -1)


CASES = [
    OpCase("softmax", F.softmax, [(3, 5)], kwargs={"dim": 1}, layers=1),
    OpCase("softmax-first", F.softmax, [(3, 5)], kwargs={"dim": 0}, layers=1),
    OpCase("softmax-negative-dim", F.softmax, [(2, 3, 4, 5)], kwargs={"dim": -3}, layers=1),
    OpCase("softmax-5d", F.softmax, [(2, 3, 2, 2, 3)], kwargs={"dim": 3}, layers=1),
    OpCase("softmax-method", lambda x: x.softmax(-1), [(3, 5)], layers=1),
    OpCase("softmax-torch", lambda x: torch.softmax(x, 0), [(3, 5)], layers=1),
    OpCase("softmax-special", lambda x: torch.special.softmax(x, 0), [(3, 5)], layers=1),
    OpCase("softmax-module", nn.Softmax(dim=1), [(3, 5)], layers=1),
    OpCase("softmax2d", nn.Softmax2d(), [(2, 3, 4, 4)], layers=1),
    OpCase("softmax-1d", F.softmax, [(5,)], kwargs={"dim": 0}),
    OpCase("softmax-1d-negative", F.softmax, [(5,)], kwargs={"dim": -1}),
    OpCase("softmax-scalar", F.softmax, [()], kwargs={"dim": 0}),
    OpCase("softmax-dtype", F.softmax, [(3, 5)], kwargs={"dim": 1, "dtype": torch.float16}),
    OpCase(
        "softmax-half-to-float", F.softmax, [uniform(3, 5, dtype=torch.float16)],
        kwargs={"dim": 1, "dtype": torch.float32},
    ),
    OpCase(
        "softmax-int", F.softmax, [integers(3, 5)], kwargs={"dim": 1, "dtype": torch.float32}
    ),
    OpCase("softmax-half", F.softmax, [uniform(3, 5, dtype=torch.float16)], kwargs={"dim": 1}),
    OpCase(
        "softmax-bfloat16", F.softmax, [uniform(3, 5, dtype=torch.bfloat16)], kwargs={"dim": 1}
    ),
    OpCase("softmax-large", F.softmax, [LARGE], kwargs={"dim": 1}),
    OpCase("softmax-masked", F.softmax, [MASKED], kwargs={"dim": 1}),
    OpCase(
        "softmax-dynamic", F.softmax, [(3, 5)], kwargs={"dim": 1},
        dynamic=[{0: (1, 8), 1: (1, 8)}], shapes=[(4, 7)], layers=1,
    ),
    OpCase(
        "softmax-1d-dynamic", F.softmax, [(5,)], kwargs={"dim": 0}, dynamic=[{0: (1, 8)}],
        shapes=[(7,)],
    ),
    OpCase("log_softmax", F.log_softmax, [(3, 5)], kwargs={"dim": 1}, layers=6),
    OpCase("log_softmax-module", nn.LogSoftmax(dim=1), [(10, 20)], layers=6),
    OpCase("log_softmax-first", lambda x: x.log_softmax(0), [(3, 5, 2)], layers=6),
    OpCase("log_softmax-1d", F.log_softmax, [(5,)], kwargs={"dim": -1}),
    OpCase("log_softmax-scalar", F.log_softmax, [()], kwargs={"dim": 0}),
    OpCase("log_softmax-empty", F.log_softmax, [(3, 0)], kwargs={"dim": 1}),
    OpCase("log_softmax-empty-half", F.log_softmax, [uniform(3, 0, dtype=torch.float16)],
           kwargs={"dim": 1}),
    OpCase("safe_softmax-empty", torch.ops.aten._safe_softmax, [(3, 0)], kwargs={"dim": 1}),
    OpCase("log_softmax-large", F.log_softmax, [LARGE], kwargs={"dim": 1}),
    OpCase("log_softmax-masked", F.log_softmax, [MASKED], kwargs={"dim": 1}),
    OpCase("log_softmax-dtype", F.log_softmax, [(3, 5)], kwargs={"dim": 1, "dtype": torch.half}),
    OpCase(
        "log_softmax-half", F.log_softmax, [uniform(3, 5, dtype=torch.float16)], kwargs={"dim": 1}
    ),
    OpCase(
        "log_softmax-dynamic", F.log_softmax, [(3, 5)], kwargs={"dim": -1},
        dynamic=[{0: (1, 8), 1: (1, 8)}], shapes=[(4, 7)],
    ),
    OpCase("softmin", F.softmin, [(3, 5)], kwargs={"dim": 1}),
    OpCase("softmin-module", nn.Softmin(dim=0), [(3, 5)]),
    OpCase("softmin-dtype", F.softmin, [(3, 5)], kwargs={"dim": 1, "dtype": torch.float16}),
    OpCase("safe_softmax", safe, [(3, 5)]),
    OpCase("safe_softmax-masked", safe, [MASKED]),
    OpCase("safe_softmax-1d", safe, [torch.full((4,), -INF)]),
    OpCase(
        "safe_softmax-dtype", lambda x: torch.ops.aten._safe_softmax(x, 0, torch.float32),
        [uniform(3, 5, dtype=torch.float16)],
    ),
    OpCase(
        "softmax-policy", Scores(nn.Softmax(-1)), [(4, 8)], policy=HALF, rtol=2e-2, atol=2e-2,
        reason=HALF_REASON,
    ),
    OpCase(
        "log_softmax-policy", Scores(nn.LogSoftmax(-1)), [(4, 8)], policy=HALF, rtol=2e-2,
        atol=2e-2, reason=HALF_REASON,
    ),
    OpCase(
        "softmax-operator", lambda x: torch.ops.aten._softmax(x, 1, False), [(3, 5)],
        layers=1,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_softmax(case: OpCase) -> None:
    run_case(case)
