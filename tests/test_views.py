"""Operators that give the same elements under another shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from t2t.precision import Policy
from tests.cases import OpCase, ids, integers, run_case

TOKEN = torch.randn(1, 1, 4)

W3 = torch.linspace(-1, 1, 9).reshape(3, 3)
FP16: dict[str, Any] = {
    "policy": Policy(torch.float16),
    "rtol": 2e-2,
    "atol": 2e-2,
    "reason": "half precision, compared with float32",
}
BYTES = integers(4, 5, 3, high=256, dtype=torch.uint8)

ONES = torch.ones(6)
# What torch's kernels leave channels last, has views as such; what they do not, as it is.
CHANNELS_LAST: dict[str, Any] = {
    "max-pool": lambda x: F.max_pool2d(x, 2),
    "avg-pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive-pool": lambda x: F.adaptive_avg_pool2d(x, (2, 1)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "bicubic": lambda x: F.interpolate(x, size=(6, 5), mode="bicubic"),
    "conv": lambda x: F.conv2d(x, torch.ones(6, 6, 3, 3)),
    "conv-transpose": lambda x: F.conv_transpose2d(x, torch.ones(6, 6, 2, 2)),
    "batch-norm": lambda x: F.batch_norm(x, ONES, ONES),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
}
CONTIGUOUS: dict[str, Any] = {
    "layer-norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "instance-norm": F.instance_norm,
    "batch-norm": lambda x: F.batch_norm(x, ONES, ONES),
    "max-pool": lambda x: F.max_pool2d(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "log-softmax": lambda x: x.log_softmax(-1),
}


def behind(function: Any) -> Any:
    """Turn an image (N, H, W, C) to channels first, call a function, and view it as it lies."""
    return lambda x: function(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).view(-1)


def turned(function: Any) -> Any:
    """Exchange batch and channels, and view the result of a function as rows."""
    return lambda x: function(x.transpose(0, 1)).view(2, -1)


CASES = [
    *(OpCase(f"channels-last-{n}", behind(f), [(2, 4, 5, 6)]) for n, f in CHANNELS_LAST.items()),
    OpCase(
        "channels-last-weight", behind(lambda x: F.conv2d(
            x.contiguous(), torch.ones(6, 6, 3, 3).to(memory_format=torch.channels_last))),
        [(2, 4, 5, 6)],
    ),
    OpCase(
        "channels-last-dynamic", behind(lambda x: F.max_pool2d(x, 2)), [(2, 4, 5, 6)],
        dynamic=[{1: (2, 9), 2: (2, 9)}], shapes=[(2, 7, 6, 6)],
    ),
    OpCase(
        "channels-last-3d",
        lambda x: F.max_pool3d(x.movedim(4, 1), 2).permute(0, 2, 3, 4, 1).view(-1),
        [(2, 4, 5, 4, 3)],
    ),
    OpCase("avg-pool-3d-contiguous", lambda x: F.avg_pool3d(x.movedim(4, 1), 2).view(2, -1),
           [(2, 4, 5, 4, 3)]),
    *(OpCase(f"contiguous-{n}", turned(f), [(6, 2, 4, 5)]) for n, f in CONTIGUOUS.items()),
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
    OpCase("view-as", lambda x, y: x.view_as(y), [(2, 6), (3, 4)]),
    OpCase("reshape-alias", lambda x: torch.ops.aten._reshape_alias(x, [6], [1]), [(2, 3)]),
    OpCase("view-dtype-same", lambda x: x.view(torch.float32) + 1, [(2, 3)]),
    OpCase("view-dtype", lambda x: x.view(torch.int32), [(2, 3)], raises="dtype=torch.int32"),
    OpCase("reshape-copies", lambda x: x.t().reshape(6), [(2, 3)]),
    OpCase("reshape-scalar", lambda x: x.reshape(()), [(1, 1)], layers=1),
    OpCase("reshape-nothing", lambda x: x.reshape(2, -1) + 1, [(2, 3)], layers=2),
    OpCase("reshape-empty", lambda x: x[:0].reshape(0, 1, 3), [(2, 3)]),
    OpCase("flatten", lambda x: x.flatten(), [(2, 3, 4)], layers=1),
    OpCase("flatten-from", lambda x: torch.flatten(x, 1), [(2, 3, 4)], layers=1),
    OpCase("flatten-range", lambda x: x.flatten(0, -2), [(2, 3, 4)], layers=1),
    OpCase("flatten-module", torch.nn.Flatten(), [(2, 3, 4)], layers=1),
    OpCase(
        "flatten-dynamic", lambda x: x.flatten(1), [(2, 3, 4)], dynamic=[{0: (1, 8)}],
        shapes=[(5, 3, 4)], layers=1,
    ),
    OpCase("unflatten", lambda x: x.unflatten(1, (2, -1)), [(2, 6)]),
    OpCase("unflatten-module", torch.nn.Unflatten(1, (2, 3)), [(2, 6)]),
    OpCase("permute", lambda x: x.permute(2, 0, 1), [(2, 3, 4)], layers=1),
    OpCase("permute-negative", lambda x: torch.permute(x, (-1, 0, 1)), [(2, 3, 4)]),
    OpCase("permute-nothing", lambda x: x.permute(0, 1) + 1, [(2, 3)], layers=2),
    OpCase(
        "permute-dynamic", lambda x: x.permute(2, 0, 1), [(2, 3, 4)],
        dynamic=[{0: (1, 8), 1: (1, 8)}], shapes=[(5, 2, 4)], layers=1,
    ),
    OpCase("transpose", lambda x: x.transpose(0, -1), [(2, 3, 4)], layers=1),
    OpCase("swapaxes", lambda x: torch.swapaxes(x, 0, 1), [(2, 3, 4)]),
    OpCase("swapdims", lambda x: x.swapdims(0, 1), [(2, 3, 4)]),
    OpCase("movedim", lambda x: x.movedim(0, 2), [(2, 3, 4)]),
    OpCase("movedim-several", lambda x: torch.movedim(x, (0, 1), (1, 2)), [(2, 3, 4)]),
    OpCase("moveaxis", lambda x: x.moveaxis(0, -1), [(2, 3, 4)]),
    OpCase("t", lambda x: x.t(), [(2, 3)], layers=1),
    OpCase("t-vector", lambda x: x.t() + 1, [(3,)]),
    OpCase("T", lambda x: x.T, [(2, 3)]),
    OpCase("mT", lambda x: x.mT, [(2, 3, 4)]),
    OpCase("mH", lambda x: x.mH, [(2, 3, 4)]),
    OpCase("squeeze", lambda x: x.squeeze(), [(1, 3, 1)], layers=1),
    OpCase("squeeze-dim", lambda x: x.squeeze(0), [(1, 3, 1)], layers=1),
    OpCase("squeeze-dims", lambda x: x.squeeze((0, -1)), [(1, 3, 1)], layers=1),
    OpCase("squeeze-not-one", lambda x: x.squeeze(1) + 1, [(1, 3, 1)], layers=2),
    OpCase(
        "squeeze-dynamic", lambda x: x.squeeze(1), [(2, 1, 3)], dynamic=[{0: (1, 4), 2: (1, 8)}],
        shapes=[(4, 1, 7)],
    ),
    OpCase(
        "squeeze-all-dynamic", lambda x: x.squeeze(), [(2, 1, 3)], dynamic=[{0: (1, 4)}],
        raises="does not hold",
    ),
    OpCase(
        "squeeze-all-dynamic-above-one", lambda x: x.squeeze(), [(2, 1, 3)],
        dynamic=[{0: (2, 4)}], shapes=[(3, 1, 3)],
    ),
    OpCase("unsqueeze", lambda x: x.unsqueeze(1), [(2, 3)], layers=1),
    OpCase("unsqueeze-last", lambda x: x.unsqueeze(-1), [(2, 3)], layers=1),
    OpCase("none-index", lambda x: x[:, None], [(2, 3)]),
    OpCase(
        "unsqueeze-dynamic", lambda x: x.unsqueeze(0), [(2, 3)], dynamic=[{0: (1, 4), 1: (1, 8)}],
        shapes=[(4, 7)], layers=1 + 1,
    ),
    OpCase("expand", lambda x: x.expand(2, 3, 4), [(3, 1)]),
    OpCase("expand-keep", lambda x: x.expand(5, -1, 4), [(1, 3, 1)], layers=1),
    OpCase("expand-as", lambda x, y: x.expand_as(y), [(3, 1), (2, 3, 4)]),
    OpCase("broadcast-to", lambda x: torch.broadcast_to(x, (2, 3)), [(3,)]),
    OpCase("expand-scalar", lambda x: x[0].expand(2, 3), [(3,)]),
    OpCase("expand-bool", lambda x: (x > 0).expand(2, 3), [(3,)]),
    OpCase(
        "expand-dynamic", lambda x, y: x.expand(y.shape[0], -1), [(1, 3), (2, 4)],
        dynamic=[{}, {0: (1, 8)}], shapes=[(1, 3), (5, 4)],
    ),
    OpCase(
        "class-token", lambda x: TOKEN.expand(x.shape[0], -1, -1), [(2, 4)],
        dynamic=[{0: (1, 8)}], shapes=[(5, 4)],
    ),
    OpCase("contiguous", lambda x: x.t().contiguous(), [(2, 3)], layers=1),
    OpCase("clone-format", lambda x: x.clone(memory_format=torch.channels_last), [(2, 3, 4, 4)]),
    OpCase("detach", lambda x: x.detach() + 1, [(2, 3)], layers=2),
    OpCase("real", lambda x: torch.real(x) + 1, [(2, 3)]),
    OpCase("complex", lambda x: torch.view_as_real(torch.complex(x, x)), [(2, 3)]),
    OpCase("diagonal", lambda x: x.diagonal(), [(3, 4)]),
    OpCase("diagonal-offset", lambda x: x.diagonal(1, -1, 0), [(3, 2, 4)]),
    OpCase("diagonal-below", lambda x: torch.diagonal(x, -2, 1, 2), [(2, 4, 3)]),
    OpCase("diagonal-empty", lambda x: x.diagonal(5), [(3, 4)]),
    OpCase(
        "diagonal-dynamic", lambda x: x.diagonal(0, 1, 2), [(2, 3, 3)],
        dynamic=[{0: (1, 4), 1: ("n", 1, 5), 2: ("n", 1, 5)}], shapes=[(3, 5, 5)],
    ),
    OpCase("unfold", lambda x: x.unfold(1, 3, 2), [(2, 8, 3)]),
    OpCase("unfold-patches", lambda x: x.unfold(1, 2, 2).unfold(2, 3, 3), [(2, 5, 6)]),
    OpCase("unfold-scalar", lambda x: x[0].unfold(0, 1, 1), [(2,)]),
    OpCase(
        "unfold-dynamic", lambda x: x.unfold(1, 3, 2), [(2, 8, 3)], dynamic=[{1: (3, 12)}],
        shapes=[(2, 11, 3)],
    ),
    OpCase(
        "unfold-dynamic-patches", lambda x: x.unfold(1, 2, 2), [(2, 8)], dynamic=[{1: (2, 12)}],
        shapes=[(2, 11)],
    ),
    OpCase("as-strided", lambda x: x.as_strided((3, 2), (2, 3), 1), [(2, 5)]),
    OpCase("as-strided-same", lambda x: x.as_strided((5, 2), (2, 1)), [(2, 5)], layers=1),
    OpCase("as-strided-transposed", lambda x: x.t().as_strided((2, 2), (5, 1)), [(2, 5)]),
    OpCase(
        "as-strided-outside", lambda x: x[1].as_strided((2, 2), (5, 1), 0), [(2, 5)],
        raises="outside",
    ),
    OpCase("fp16", lambda x: (x @ W3).t().reshape(2, 3).expand(4, 2, 3), [(2, 3)], **FP16),
    OpCase("uint8", lambda x: x.permute(2, 0, 1).float() / 255, [BYTES]),
    OpCase("uint8-stays", lambda x: x.permute(2, 0, 1), [BYTES]),
    OpCase("bool", lambda x: (x > 0).t().reshape(3, 2), [(2, 3)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_views(case: OpCase) -> None:
    run_case(case)
