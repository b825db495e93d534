"""float64 inside a model: refused, or computed in float32 where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import t2t
from t2t.errors import UnsupportedArgumentError
from t2t.precision import Policy
from tests.cases import OpCase, ids, run_case, uniform

DOUBLE = torch.float64
ASKED = Policy(float64_as_float32=True)
HALF = Policy(torch.float16, float64_as_float32=True)
REASON = "torch computes in float64, the network in float32"


def rotary(positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Turn features by angles that are computed in float64, as image models do."""
    frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2, dtype=DOUBLE) / 8))
    angles = torch.outer(positions, frequencies)
    return x * angles.cos().float() + angles.sin().float()


USES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "arithmetic": lambda x: (x.double() * 2 + 1).float(),
    "constant": lambda x: (x * torch.linspace(0, 1, 4, dtype=DOUBLE)).float(),
    "folded": lambda x: x * (torch.tensor(1e8, dtype=DOUBLE) + 1 - 1e8).float(),
    "product": lambda x: (x.double() @ x.double().T).float(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x.double(), x.double()).float(),
    "softmax": lambda x: x.double().softmax(-1).float(),
    "layer-norm": lambda x: F.layer_norm(x.double(), (4,)).float(),
    "deviation": lambda x: x.double().std(1).float(),
    "choice": lambda x: torch.where(x > 0, x.double(), 0.5).float(),
    "running-sum": lambda x: x.double().cumsum(1).float(),
    "power": lambda x: (x.double().abs() ** 0.3).float(),
    "float-power": lambda x: torch.float_power(x.abs(), 2).float(),
    "write": lambda x: x.double().index_fill(0, torch.tensor([1]), 5.0).float(),
    "add-up": lambda x: x.double().index_add(0, torch.tensor([0, 0, 1]), x.double()).float(),
    "integers": lambda x: (x.double() * 3).long(),
    "comparison": lambda x: x.double() > 0.5,
    "infinity": lambda x: x.double().masked_fill(x > 0, -torch.inf).float(),
}

CASES = [
    OpCase("rotary-refused", rotary, [uniform(5, low=0, high=50), (5, 4)],
           raises="float64_as_float32=True"),
    OpCase("rotary", rotary, [uniform(5, low=0, high=50), (5, 4)], policy=ASKED, rtol=1e-4,
           atol=2e-5, reason=REASON),
    OpCase("rotary-half", rotary, [uniform(5, low=0, high=50), (5, 4)], policy=HALF, rtol=1e-4,
           atol=2e-5, reason=REASON),
    OpCase("arange-dynamic",
           lambda x: (torch.arange(x.shape[0], dtype=DOUBLE) * x.double()[:, 0]).float(), [(3, 4)],
           dynamic=[{0: (1, 5)}], shapes=[(4, 4)], policy=ASKED),
    *(
        OpCase(f"{name}-{kind}", function, [(3, 4)], policy=policy, rtol=1e-4, atol=1e-5,
               reason=REASON)
        for name, function in USES.items()
        for kind, policy in (("fp32", ASKED), ("fp16", HALF))
        if kind == "fp32" or name not in ("constant", "folded")
    ),
    OpCase("output", lambda x: x.double(), [(3, 4)], policy=ASKED, raises="float64"),
    OpCase("number-out-of-range", lambda x: (x.double() * 1e300).float(), [(3, 4)], policy=ASKED,
           raises="beyond the range of float32"),
    OpCase("constant-out-of-range",
           lambda x: (x.double() * torch.tensor([1e200], dtype=DOUBLE)).float(), [(3, 4)],
           policy=ASKED, raises="beyond the range of float32"),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_float64(case: OpCase) -> None:
    if case.name == "output":
        with pytest.raises(UnsupportedArgumentError, match="'output' is float64"):
            t2t.to_network(case.function, [torch.ones(3, 4)], policy=ASKED)
        return
    run_case(case)


@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_option_of_convert() -> None:
    x: list[Any] = [torch.rand(5) * 50, torch.rand(5, 4)]
    converted = t2t.convert(rotary, x, float64_as_float32=True)
    torch.testing.assert_close(converted(*x), rotary(*x), rtol=1e-4, atol=2e-5)
    with pytest.raises(UnsupportedArgumentError, match="float64"):
        t2t.convert(rotary, x)
