"""Dropout in eval mode, without effect, and refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.cases import OpCase, ids, run_case

FUNCTIONS = {
    "dropout": (F.dropout, (2, 3)),
    "dropout1d": (F.dropout1d, (2, 3, 4)),
    "dropout2d": (F.dropout2d, (2, 3, 4, 4)),
    "dropout3d": (F.dropout3d, (2, 3, 2, 2, 2)),
    "alpha_dropout": (F.alpha_dropout, (2, 3)),
    "feature_alpha_dropout": (F.feature_alpha_dropout, (2, 3)),
}


def after_relu(function: Any, **kwargs: Any) -> Any:
    return lambda x: function(x.relu(), **kwargs)


CASES = [
    *[
        OpCase(f"{name}-eval", after_relu(function, training=False), [shape], layers=1)
        for name, (function, shape) in FUNCTIONS.items()
    ],
    *[
        OpCase(f"{name}-in-place", after_relu(function, training=False, inplace=True), [shape])
        for name, (function, shape) in FUNCTIONS.items()
    ],
    *[
        OpCase(f"{name}-zero", after_relu(function, p=0.0, training=True), [shape], layers=1)
        for name, (function, shape) in FUNCTIONS.items()
    ],
    *[
        OpCase(
            f"{name}-training", after_relu(function, training=True), [shape],
            raises="random numbers",
        )
        for name, (function, shape) in FUNCTIONS.items()
    ],
    *[
        OpCase(
            f"{name}-training-dynamic", after_relu(function, training=True), [shape],
            dynamic=[{0: (1, 4)}], raises="random numbers",
        )
        for name, (function, shape) in FUNCTIONS.items()
    ],
    OpCase("dropout-default", lambda x: F.dropout(x), [(2, 3)], raises="random numbers"),
    OpCase("module", nn.Sequential(nn.ReLU(), nn.Dropout(0.3)), [(2, 3)], layers=1),
    OpCase("module-alone", nn.Dropout(), [(2, 3)]),
    OpCase("module-alpha", nn.Sequential(nn.SELU(), nn.AlphaDropout()), [(2, 3)], layers=1),
    OpCase("torch", lambda x: torch.dropout(x.relu(), 0.5, False), [(2, 3)], layers=1),
    OpCase(
        "native", lambda x: torch.ops.aten.native_dropout(x.relu(), 0.5, False)[0], [(2, 3)],
        layers=1,
    ),
    OpCase(
        "native-training", lambda x: torch.ops.aten.native_dropout(x, 0.5, True)[0], [(2, 3)],
        raises="call .eval",
    ),
    OpCase(
        "dynamic", nn.Sequential(nn.ReLU(), nn.Dropout2d()), [(2, 3, 4, 4)],
        dynamic=[{0: (1, 4)}], shapes=[(3, 3, 4, 4)], layers=1,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_dropout(case: OpCase) -> None:
    run_case(case)
