"""Scaled dot product attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import OpCase, ids, run_case

FP16 = Policy(torch.float16)
HALF = {"rtol": 2e-2, "atol": 2e-2, "reason": "computed in half precision, compared with float32"}
QKV = [(2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6)]
CAPTURED = F.scaled_dot_product_attention

SOME = torch.rand((3, 5), generator=torch.Generator().manual_seed(3)) > 0.4
SOME[:, 0] = True
NONE_FOR_ONE = SOME.clone()
NONE_FOR_ONE[1] = False
ADDED = torch.randn((2, 1, 3, 5), generator=torch.Generator().manual_seed(3))


def attention(**kwargs: object) -> object:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **kwargs)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, m)


def some_queries_see_nothing(*shape: int) -> object:
    def draw(generator: torch.Generator) -> torch.Tensor:
        mask = torch.rand(shape, generator=generator) > 0.3
        mask[..., 0, :] = False
        return mask

    return draw


def minus_infinity(*shape: int) -> object:
    def draw(generator: torch.Generator) -> torch.Tensor:
        mask = torch.randn(shape, generator=generator)
        mask[..., 0, :] = -torch.inf
        mask[..., 1, 2:] = -torch.inf
        return mask

    return draw


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


BATCHED = [
    {0: ("n", 1, 4), 2: (1, 9)}, {0: ("n", 1, 4), 2: ("s", 1, 9)}, {0: ("n", 1, 4), 2: ("s", 1, 9)}
]  # fmt: skip
OTHERS = [(3, 4, 6, 8), (3, 4, 2, 8), (3, 4, 2, 6)]


def in_two_layers(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor
) -> torch.Tensor:
    return masked(masked(q, k, v, m), k, v, m)


def causal_in_two_layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(y, k, v, is_causal=True)


CASES = [
    # 4 constants; cast, maximum and comparison of the mask once; 6 layers for each attention.
    OpCase(
        "a-mask-in-two-layers",
        in_two_layers,
        [(2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8), some_queries_see_nothing(2, 1, 3, 5)],
        layers=18,
    ),
    OpCase(
        "causal-in-two-layers",
        causal_in_two_layers,
        [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)],
        layers=13,
    ),
    OpCase("plain", attention(), QKV, layers=5),
    OpCase("scale", attention(scale=0.3), QKV),
    OpCase("scale-one", attention(scale=1.0), QKV, layers=3),
    OpCase("causal", attention(is_causal=True), QKV),
    OpCase("causal-more-queries", attention(is_causal=True), [(1, 2, 6, 8), *[(1, 2, 4, 8)] * 2]),
    OpCase("mask-bool", attention(attn_mask=SOME), QKV),
    OpCase("mask-bool-nothing", attention(attn_mask=NONE_FOR_ONE), QKV),
    OpCase("mask-float", attention(attn_mask=ADDED), QKV),
    OpCase("mask-traced-bool", masked, [*QKV, some_queries_see_nothing(2, 1, 3, 5)]),
    OpCase("mask-traced-bool-keys", masked, [*QKV, some_queries_see_nothing(2, 1, 1, 5)]),
    OpCase("mask-traced-float", masked, [*QKV, (2, 4, 3, 5)]),
    OpCase("mask-traced-infinity", masked, [*QKV, minus_infinity(2, 1, 3, 5)]),
    OpCase("mask-least", masked, [*QKV, torch.full((3, 5), torch.finfo(torch.float32).min)]),
    OpCase("dropout-zero", attention(dropout_p=0.0), QKV),
    OpCase("dropout", attention(dropout_p=0.5), QKV, raises="dropout_p"),
    OpCase("3d", attention(), [(2, 3, 8), (2, 5, 8), (2, 5, 6)]),
    OpCase("2d", attention(), [(3, 8), (5, 8), (5, 6)]),
    OpCase("5d", attention(is_causal=True), [(2, 2, 2, 3, 8)] * 3),
    OpCase("broadcast", attention(), [(2, 1, 3, 8), (1, 4, 5, 8), (2, 4, 5, 8)]),
    OpCase("gqa", attention(enable_gqa=True), [(2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)]),
    OpCase(
        "gqa-causal", attention(enable_gqa=True, is_causal=True),
        [(2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
    ),
    OpCase(
        "gqa-mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        [(2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8), some_queries_see_nothing(2, 6, 3, 5)],
    ),
    OpCase("gqa-equal", attention(enable_gqa=True), QKV, layers=5),
    OpCase("dynamic", attention(), QKV, dynamic=BATCHED, shapes=OTHERS, layers=5),
    OpCase("dynamic-causal", attention(is_causal=True), QKV, dynamic=BATCHED, shapes=OTHERS),
    OpCase(
        "dynamic-mask", lambda q, k, v: masked(q, k, v, (q @ k.mT).relu()), QKV,
        dynamic=BATCHED, shapes=OTHERS,
    ),
    OpCase("captured", lambda q, k, v: CAPTURED(q, k, v, is_causal=True), QKV),
    OpCase("multihead", Heads(), [(2, 5, 8)]),
    OpCase(
        "multihead-dynamic", Heads(), [(2, 5, 8)], dynamic=[{0: (1, 4), 1: (1, 9)}],
        shapes=[(3, 7, 8)],
    ),
    OpCase(
        "transformer", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), [(2, 5, 8)],
    ),
    OpCase("fp16", attention(is_causal=True), QKV, policy=FP16, **HALF),
    OpCase(
        "fp16-mask-least", masked, [*QKV, torch.full((3, 5), torch.finfo(torch.float32).min)],
        policy=FP16, **HALF,
    ),
    OpCase(
        "half", attention(), [lambda g: torch.randn((2, 4, 3, 8), generator=g).half()] * 3,
        rtol=5e-3, atol=5e-3, reason="torch rounds other intermediate results to half than we do",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_attention(case: OpCase) -> None:
    run_case(case)
