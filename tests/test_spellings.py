"""Operators under the names that the other tables do not call them by."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import OpCase, ids, run_case

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(3)


def weight(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR) / 4


W1, W3 = weight(2, 3, 3), weight(2, 3, 3, 3, 3)
T1, T3 = weight(3, 2, 3), weight(3, 2, 3, 3, 3)
PAIRS = weight(2, 3, 4)

CASES = [
    OpCase("matmul", lambda a, b: torch.matmul(a, b), [(2, 3, 4), (4, 5)]),
    OpCase("matmul-vectors", lambda a, b: torch.matmul(a, b), [(4,), (4,)]),
    OpCase("matmul-broadcast", lambda a, b: torch.matmul(a, b), [(2, 1, 3, 4), (5, 4, 2)]),
    OpCase(
        "matmul-dynamic", lambda a, b: torch.matmul(a, b), [(2, 3, 4), (2, 4, 5)],
        dynamic=[{0: ("n", 1, 4)}, {0: ("n", 1, 4)}], shapes=[(3, 3, 4), (3, 4, 5)],
    ),
    OpCase("linalg-matmul", lambda a, b: torch.linalg.matmul(a, b), [(3, 4), (4,)]),
    OpCase("at", lambda a, b: a @ b, [(2, 3, 4), (4, 5)]),
    OpCase("bilinear", lambda a, b: torch.bilinear(a, b, PAIRS, None), [(5, 3), (5, 4)]),
    OpCase("conv3d", lambda x: torch.conv3d(x, W3, padding=1), [(1, 3, 4, 5, 6)]),
    OpCase("conv_transpose1d", lambda x: torch.conv_transpose1d(x, T1, stride=2), [(1, 3, 7)]),
    OpCase(
        "conv_transpose3d", lambda x: torch.conv_transpose3d(x, T3, stride=2), [(1, 3, 3, 4, 5)]
    ),
    OpCase(
        "affine_grid_generator",
        lambda t: torch.affine_grid_generator(t, (2, 3, 4, 5), align_corners=True), [(2, 2, 3)],
    ),
    OpCase(
        "flash-attention",
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
        [(1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)],
    ),
    OpCase(
        "flash-attention-causal-scaled",
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, scale=0.5
        )[0],
        [(1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)],
    ),
    OpCase(
        "adaptive_max_pool3d", lambda x: aten.adaptive_max_pool3d(x, [2, 3, 2])[0],
        [(1, 2, 4, 6, 5)],
    ),
    OpCase(
        "grid_sampler_2d", lambda x, g: aten.grid_sampler_2d(x, g, 0, 1, False),
        [(1, 2, 5, 6), (1, 3, 4, 2)],
    ),
    OpCase(
        "grid_sampler_3d", lambda x, g: aten.grid_sampler_3d(x, g, 0, 0, True),
        [(1, 2, 4, 5, 6), (1, 2, 3, 4, 3)],
    ),
    OpCase("channel_shuffle", lambda x: aten.native_channel_shuffle(x, 3), [(1, 6, 2, 3)]),
    OpCase("reflection_pad1d", lambda x: aten.reflection_pad1d(x, [1, 2]), [(2, 3, 5)]),
    OpCase(
        "reflection_pad3d", lambda x: aten.reflection_pad3d(x, [1, 2, 0, 1, 1, 1]),
        [(1, 2, 3, 4, 5)],
    ),
    OpCase("replication_pad2d", lambda x: aten.replication_pad2d(x, [1, 2, 3, 0]), [(1, 2, 3, 4)]),
    OpCase(
        "replication_pad3d", lambda x: aten.replication_pad3d(x, [1, 2, 0, 1, 1, 1]),
        [(1, 2, 3, 4, 5)],
    ),
]  # fmt: skip
if hasattr(torch._C._nn, "_upsample_lanczos2d_aa"):  # torch 2.14
    CASES.append(
        OpCase(
            "lanczos",
            lambda x: F.interpolate(x, (4, 5), mode="lanczos", antialias=True),
            [(1, 2, 9, 8)],
        )
    )


@pytest.mark.parametrize("case", ids(CASES))
def test_spelling(case: OpCase) -> None:
    run_case(case)
