"""Scaled dot product attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.lowering import to_network
from t2t.precision import Policy
from t2t.reference import capture
from tests.cases import Autocast, OpCase, ids, run_case

# PyTorch's own encoder, in eval mode with a padding mask, uses them.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

aten = torch.ops.aten
FP16 = Policy(torch.float16)
HALF = {"rtol": 2e-2, "atol": 2e-2, "reason": "computed in half precision, compared with float32"}
BF16 = {"rtol": 3e-2, "atol": 3e-2, "reason": "computed in bfloat16, in another order"}
QKV = [(2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6)]
CAPTURED = F.scaled_dot_product_attention

SOME = torch.rand((3, 5), generator=torch.Generator().manual_seed(3)) > 0.4
SOME[:, 0] = True
NONE_FOR_ONE = SOME.clone()
NONE_FOR_ONE[1] = False
LEAST = torch.zeros(3, 5).index_fill(0, torch.tensor(1), torch.finfo(torch.float32).min)
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


def encode(norm: nn.Module | None = None, **options: bool) -> Callable[..., torch.Tensor]:
    """Return a function that runs an encoder with a padding mask, in eval mode."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm, **options).eval()
    return lambda x, mask: encoder(x, src_key_padding_mask=mask)


def behind(batch: int, length: int) -> Callable[..., torch.Tensor]:
    """Draw a padding mask, True behind sequences of different lengths."""
    return lambda g: torch.arange(length) >= torch.randint(1, length + 1, (batch, 1), generator=g)


def within(batch: int, length: int) -> Callable[..., torch.Tensor]:
    """Draw a padding mask that is True anywhere but at the first place."""
    return lambda g: (
        torch.cat([torch.zeros(batch, 1), torch.rand(batch, length - 1, generator=g)], 1)
        .round()
        .bool()
    )


ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
SQUARE = torch.zeros(6, 6, dtype=torch.bool)


def viewed(*inputs: torch.Tensor) -> torch.Tensor:
    """Attend, and view the result as (N, L, E), which needs no copy where q came as that."""
    batch, length, width = inputs[0].shape
    q, k, v = (x.view(batch, length, 4, -1).transpose(1, 2) for x in inputs)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(batch, length, width)


class Normed(nn.Module):
    """Norms queries and keys, which autocast leaves in float32, beside values in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x).chunk(3, -1)
        return F.scaled_dot_product_attention(self.norm(q.float()), self.norm(k.float()), v)


LAYER = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval().requires_grad_(False)
PADDED = torch.arange(5) >= torch.tensor([[4], [5]])
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def fast(
    mask: torch.Tensor | None = None, kind: int | None = None, weights: bool = False
) -> object:
    """Attend by the operator that torch.jit.trace keeps of nn.MultiheadAttention."""
    own = LAYER.self_attn
    given = own.in_proj_weight, own.in_proj_bias, own.out_proj.weight, own.out_proj.bias
    last = mask, weights, True, kind
    found = slice(None) if weights else 0
    return lambda x: torch._native_multi_head_attention(x, x, x, 16, 4, *given, *last)[found]


def fast_layer(first: bool, gelu: bool, *mask: object) -> object:
    """Compute an encoder's layer by the operator that torch.jit.trace keeps of it."""
    own = LAYER.self_attn
    given = own.in_proj_weight, own.in_proj_bias, own.out_proj.weight, own.out_proj.bias
    parts = LAYER.norm1, LAYER.norm2, LAYER.linear1, LAYER.linear2
    rest = [x for part in parts for x in (part.weight, part.bias)]
    return lambda x: torch._transformer_encoder_layer_fwd(
        x, 16, 4, *given, gelu, first, 1e-5, *rest, *mask
    )


CASES = [
    OpCase("traced", fast(), [(2, 5, 16)]),
    OpCase("traced-weights", fast(weights=True), [(2, 5, 16)]),
    OpCase("traced-mask", fast(LATER, 0), [(2, 5, 16)]),
    OpCase("traced-padding", fast(PADDED, 1), [(2, 5, 16)]),
    OpCase("traced-both", fast((LATER | PADDED[:, None, None]).expand(2, 4, 5, 5), 2),
           [(2, 5, 16)]),
    OpCase("traced-dynamic", fast(), [(2, 5, 16)], dynamic=[{0: (1, 4), 1: (2, 9)}],
           shapes=[(3, 7, 16)]),
    OpCase("traced-layer", fast_layer(False, False), [(2, 5, 16)]),
    OpCase("traced-layer-first", fast_layer(True, True), [(2, 5, 16)]),
    OpCase("traced-layer-padding", fast_layer(False, True, PADDED, 1), [(2, 5, 16)]),
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
    OpCase("autocast", Autocast(attention(is_causal=True)), [(2, 4, 3, 8)] * 3, **BF16),
    OpCase("autocast-mask", Autocast(masked), [*QKV, lambda g: ADDED], **BF16),
    OpCase(
        "autocast-gqa", Autocast(attention(enable_gqa=True)),
        [(2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)], **BF16,
    ),
    OpCase("viewed", viewed, [(2, 5, 32)] * 3),
    OpCase("viewed-dynamic", viewed, [(2, 5, 32)] * 3, shapes=[(3, 7, 32)] * 3,
           dynamic=[{0: ("b", 1, 4), 1: ("l", 2, 9)}] * 3),
    OpCase("autocast-mask-least", Autocast(lambda q, k, v: masked(q, k, v, LEAST)), QKV, **BF16),
    OpCase("autocast-mask-least-given", Autocast(masked), [*QKV, LEAST], **BF16),
    OpCase("autocast-mask-added", Autocast(masked), [*QKV, (2, 1, 3, 5)], **BF16),
    OpCase("autocast-normed", Autocast(Normed()), [(2, 5, 8)], **BF16),
    OpCase("captured", lambda q, k, v: CAPTURED(q, k, v, is_causal=True), QKV),
    OpCase(
        "captured-gqa", lambda q, k, v: CAPTURED(q, k, v, enable_gqa=True),
        [(2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
    ),
    OpCase("multihead", Heads(), [(2, 5, 8)]),
    OpCase(
        "multihead-dynamic", Heads(), [(2, 5, 8)], dynamic=[{0: (1, 4), 1: (1, 9)}],
        shapes=[(3, 7, 8)],
    ),
    OpCase(
        "transformer", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), [(2, 5, 8)],
    ),
    OpCase("encoder-padding", encode(), [(3, 6, 16), behind(3, 6)]),
    OpCase("encoder-padding-norm", encode(norm=nn.LayerNorm(16)), [(3, 6, 16), behind(3, 6)]),
    OpCase("encoder-padding-within", encode(), [(3, 6, 16), within(3, 6)]),
    OpCase("encoder-padding-unchecked", encode(mask_check=False), [(3, 6, 16), behind(3, 6)]),
    OpCase("encoder-padding-kept", encode(enable_nested_tensor=False), [(3, 6, 16), behind(3, 6)]),
    OpCase(
        "encoder-padding-added", lambda x, m: ENCODER(
            x, src_key_padding_mask=torch.zeros(3, 6).masked_fill(m, -torch.inf)),
        [(3, 6, 16), behind(3, 6)],
    ),
    OpCase(
        "encoder-padding-dynamic", encode(), [(3, 6, 16), behind(3, 6)],
        dynamic=[{0: ("n", 1, 4), 1: ("s", 2, 9)}, {0: ("n", 1, 4), 1: ("s", 2, 9)}],
    ),
    OpCase("encoder-mask-and-padding", lambda x, m: ENCODER(x, SQUARE, src_key_padding_mask=m),
           [(3, 6, 16), behind(3, 6)]),
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


@pytest.mark.parametrize("scale", [1.0, None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_models_are_not_rounded(dtype: torch.dtype, scale: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 33, 64, generator=generator).mul(2).to(dtype) for _ in range(3))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=scale)
    conversion = to_network(attention(scale=scale), [q, k, v])
    (got,) = capture(conversion.network.raw, conversion.network.weights).run([q, k, v]).values()
    own = F.scaled_dot_product_attention(q, k, v, scale=scale)
    errors = [float((x.double() - exact).norm() / exact.norm()) for x in (got, own)]
    # What remains are the weights and the result in the half type, as torch has them.
    assert errors[0] < 1.5 * errors[1]


OF_GPUS = {
    "flash": lambda q, k, v, mask: aten._scaled_dot_product_flash_attention(q, k, v)[0],
    "flash-causal": lambda q, k, v, mask: aten._scaled_dot_product_flash_attention(
        q, k, v, is_causal=True
    )[0],
    "efficient": lambda q, k, v, mask: aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, False, scale=0.3
    )[0],
    "cudnn": lambda q, k, v, mask: aten._scaled_dot_product_cudnn_attention(q, k, v, mask, False)[
        0
    ],
}


@pytest.mark.parametrize("kind", OF_GPUS)
def test_what_was_captured_on_a_gpu(kind: str) -> None:
    # PyTorch has no kernels of them on the CPU, but converting takes none.
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 3, 5)
    inputs = [torch.randn(size, generator=generator) for size in sizes]
    conversion = to_network(OF_GPUS[kind], inputs)
    q, k, v, mask = inputs
    expected = F.scaled_dot_product_attention(
        q,
        k,
        v,
        None if kind.startswith("flash") else mask,
        is_causal="causal" in kind,
        scale=0.3 if kind == "efficient" else None,
    )
    (got,) = capture(conversion.network.raw, conversion.network.weights).run(inputs).values()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_an_encoder_gives_zeros_at_padded_places_as_in_eval_mode() -> None:
    x, mask = torch.randn(2, 6, 16), torch.arange(6) >= torch.tensor([[4], [6]])
    with torch.no_grad():
        expected = ENCODER(x, src_key_padding_mask=mask)
    assert not expected[mask].any()
    assert not torch.equal(ENCODER(x, src_key_padding_mask=mask)[mask], expected[mask])
    forward = nn.TransformerEncoder.forward
    conversion = to_network(ENCODER, [x], {"src_key_padding_mask": mask})
    program = capture(conversion.network.raw, conversion.network.weights)
    (got,) = program.run([x, mask]).values()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert nn.TransformerEncoder.forward is forward
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("case", ids(CASES))
def test_attention(case: OpCase) -> None:
    run_case(case)
