"""Padding in every mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case

ops = torch.ops.aten
BOTH = [{0: (1, 4), 2: (3, 20), 3: (3, 20)}]

CASES = [
    OpCase("constant", lambda x: F.pad(x, (1, 2)), [(2, 3, 4)], layers=2),
    OpCase("constant-value", lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5), [(2, 3, 4)]),
    OpCase("constant-infinity", lambda x: F.pad(x, [1, 0], "constant", -torch.inf), [(2, 3)]),
    OpCase("constant-all-dims", lambda x: F.pad(x, (1, 0, 0, 2, 3, 1)), [(2, 3, 4)]),
    OpCase("constant-crop", lambda x: F.pad(x, (-1, -2)), [(2, 3, 5)], layers=1),
    OpCase("constant-crop-and-pad", lambda x: F.pad(x, (-1, 2, 3, -2)), [(2, 3, 5)], layers=2),
    OpCase("constant-nothing", lambda x: F.pad(x, (0, 0)) + 1, [(2, 3, 5)]),
    OpCase("constant-int", lambda x: F.pad(x, (1, 2), value=7), [integers(2, 3)]),
    OpCase("constant-bool", lambda x: F.pad(x > 0, (1, 2), value=True), [(2, 3)]),
    OpCase("module-2d", nn.ConstantPad2d((1, 2, 3, 4), 2.0), [(2, 3, 4, 4)]),
    OpCase("module-crop", nn.ConstantPad2d(-6, 0.0), [(1, 1, 20, 20)]),
    OpCase("module-zero", nn.ZeroPad2d(2), [(1, 2, 4, 5)]),
    OpCase("module-1d", nn.ConstantPad1d((2, 1), 0.5), [(1, 2, 4)]),
    OpCase("module-3d", nn.ConstantPad3d((1, 2, 0, 1, 2, 0), 0.5), [(1, 2, 3, 4, 5)]),
    OpCase("reflect", nn.ReflectionPad2d((1, 2, 3, 4)), [(2, 3, 8, 8)], layers=1),
    OpCase("reflect-1d", nn.ReflectionPad1d((3, 1)), [(2, 3, 4)]),
    OpCase("reflect-3d", nn.ReflectionPad3d((1, 2, 0, 1, 2, 0)), [(1, 2, 3, 4, 5)]),
    OpCase("reflect-unbatched", lambda x: F.pad(x, (1, 2), "reflect"), [(3, 4)]),
    OpCase("reflect-crop", lambda x: F.pad(x, (-1, 2), mode="reflect"), [(2, 3, 4)]),
    OpCase("reflect-aten", lambda x: ops.reflection_pad2d(x, [1, 2, 0, 3]), [(2, 3, 4, 5)]),
    OpCase("replicate", nn.ReplicationPad2d((1, 2, 3, 4)), [(2, 3, 2, 3)], layers=1),
    OpCase("replicate-1d", nn.ReplicationPad1d((3, 1)), [(2, 3, 2)]),
    OpCase("replicate-3d", nn.ReplicationPad3d((1, 2, 0, 1, 2, 0)), [(1, 2, 3, 4, 5)]),
    OpCase("replicate-crop", lambda x: F.pad(x, (2, -1), mode="replicate"), [(2, 3, 4)]),
    OpCase("replicate-aten", lambda x: ops.replication_pad1d(x, [1, 5]), [(2, 3, 4)]),
    OpCase("circular", nn.CircularPad2d((1, 2, 3, 4)), [(2, 3, 4, 5)], layers=1),
    OpCase("circular-1d", nn.CircularPad1d((3, 1)), [(2, 3, 4)]),
    OpCase("circular-3d", nn.CircularPad3d((1, 2, 0, 1, 2, 0)), [(1, 2, 3, 4, 5)]),
    OpCase("circular-crop", lambda x: F.pad(x, (-1, 2), mode="circular"), [(2, 3, 4)]),
    OpCase("circular-crop-end", lambda x: F.pad(x, (2, -1), mode="circular"), [(2, 3, 4)]),
    OpCase("aten", lambda x: ops.constant_pad_nd(x, [1, 2, 0, 1], 3), [(2, 3)]),
    OpCase(
        "dynamic", lambda x: F.pad(x, (1, 2, 0, 3)), [(2, 3, 4, 5)], dynamic=BOTH,
        shapes=[(3, 3, 6, 3)],
    ),
    OpCase(
        "dynamic-reflect", lambda x: F.pad(x, (1, 2, 0, 2), "reflect"), [(2, 3, 4, 5)],
        dynamic=BOTH, shapes=[(3, 3, 6, 3)],
    ),
    OpCase(
        "dynamic-circular", lambda x: F.pad(x, (1, 2, 0, 2), "circular"), [(2, 3, 4, 5)],
        dynamic=BOTH, shapes=[(3, 3, 6, 3)],
    ),
    OpCase(
        "dynamic-to-multiple",
        lambda x: F.pad(x, (0, (8 - x.shape[3] % 8) % 8, 0, (8 - x.shape[2] % 8) % 8)),
        [(2, 3, 4, 5)], dynamic=BOTH, shapes=[(3, 3, 8, 11)],
    ),
    OpCase(
        "fp16", nn.Sequential(nn.Conv2d(3, 3, 1), nn.ConstantPad2d(1, 0.3)), [(2, 3, 4, 4)],
        policy=Policy(torch.float16), rtol=2e-2, atol=2e-2,
        reason="computed in half precision, compared with float32",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_padding(case: OpCase) -> None:
    run_case(case)
