"""Rows of attention, rotary embedding and key and value caches."""

import numpy as np
import torch

from t2t.backend import trt
from tests.reference.rows import Row, const, wired

DRAWN = torch.Generator().manual_seed(5)


def _attention(n, q, k, v, mask=None, kind="NONE", norm="SOFTMAX", **extra):
    layer = n.add_attention_v2(
        q,
        k,
        v,
        getattr(trt.AttentionNormalizationOp, norm),
        getattr(trt.CausalMaskKind, kind),
    )
    if mask is not None:
        layer.mask = mask
    for name, value in extra.items():
        setattr(layer, name, value)
    return layer


def _attend(q, k, v, mask=None, lengths=None):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    if lengths is not None:
        late = torch.arange(k.shape[2]) >= lengths.reshape(-1, 1, 1, 1)
        scores = scores.masked_fill(late, -torch.inf)
    return scores.softmax(-1) @ v


QKV = [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)]
MASK = torch.rand(2, 4, 3, 5, generator=DRAWN) > 0.3
MASK[..., 0] = True
LENGTHS = torch.tensor([2, 5], dtype=torch.int32)


def _step(n, q, k, v):
    scale = const(n, 0.05, np.float32)
    return _attention(
        n,
        q,
        k,
        v,
        normalization_quantize_scale=scale,
        normalization_quantize_to_type=trt.DataType.INT8,
    )


def _stepped(q, k, v):
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    weights = (q @ k.mT).softmax(-1)
    return ((weights / 0.05).round().clamp(-128, 127) * 0.05) @ v


ATTENTIONS = [
    Row("attention, grouped queries", QKV, _attention, _attend, rtol=1e-4),
    Row("attention mask", [*QKV, MASK], _attention, _attend, rtol=1e-4),
    Row("attention bias", [*QKV, (2, 4, 3, 5)], _attention, _attend, rtol=1e-4),
    Row(
        "attention upper left",
        QKV,
        lambda n, *x: _attention(n, *x, kind="UPPER_LEFT"),
        lambda *x: _attend(*x, torch.ones(3, 5).tril().bool()),
        rtol=1e-4,
    ),
    Row(
        "attention lower right",
        QKV,
        lambda n, *x: _attention(n, *x, kind="LOWER_RIGHT"),
        lambda *x: _attend(*x, torch.ones(3, 5).tril(2).bool()),
        rtol=1e-4,
    ),
    Row(
        "attention without softmax",
        QKV,
        lambda n, *x: _attention(n, *x, norm="NONE"),
        lambda q, k, v: (q @ k.repeat_interleave(2, 1).mT) @ v.repeat_interleave(2, 1),
        rtol=1e-4,
        atol=1e-5,
    ),
    Row(
        "attention lengths",
        [*QKV, LENGTHS],
        lambda n, q, k, v, i: _attention(n, q, k, v, key_value_lengths=i),
        lambda q, k, v, i: _attend(q, k, v, None, i),
        rtol=1e-4,
    ),
    Row("attention quantized", QKV, _step, _stepped, rtol=1e-4),
]


def _rope(interleaved, size, positions=None):
    def build(n, x, cos, sin):
        layer = n.add_rotary_embedding(x, cos, sin, interleaved, size)
        return layer if positions is None else wired(layer, i3=const(n, positions))

    return build


def _roped(x, cos, sin, interleaved, size):
    result = x.clone()
    half = size // 2
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        c, s = cos[..., i].unsqueeze(1), sin[..., i].unsqueeze(1)
        result[..., a] = x[..., a] * c - x[..., b] * s
        result[..., b] = x[..., a] * s + x[..., b] * c
    return result


PLACES = np.array([[3, 1, 0], [2, 2, 4]], np.int64)


def _written(cache, update, index):
    result = cache.clone()
    for b, start in enumerate(index.tolist()):
        result[b, :, start : start + update.shape[2]] = update[b]
    return result


def _packed(n, cache, update, index):
    layer = n.add_kv_cache_update(cache, update, index, trt.KVCacheMode.LINEAR)
    layer.update_form = trt.AttentionIOForm.PACKED_NHD
    layer.update_lengths = const(n, [0, 1, 3], np.int32)
    return layer


def _packed_truth(cache, update, index):
    result = cache.clone()
    result[0, :, 1] = update[0]
    result[1, :, 4:6] = update[1:].transpose(0, 1)
    return result


SEQUENCES = [
    Row(
        "rotary halves",
        [(2, 4, 3, 8), (2, 3, 4), (2, 3, 4)],
        _rope(False, 0),
        lambda x, c, s: _roped(x, c, s, False, 8),
    ),
    Row(
        "rotary pairs of a part",
        [(2, 4, 3, 8), (5, 2), (5, 2)],
        _rope(True, 4, PLACES),
        lambda x, c, s: _roped(x, c[PLACES], s[PLACES], True, 4),
    ),
    Row(
        "kv cache",
        [(2, 3, 6, 4), (2, 3, 2, 4), torch.tensor([1, 4], dtype=torch.int32)],
        lambda n, c, u, i: n.add_kv_cache_update(c, u, i, trt.KVCacheMode.LINEAR),
        _written,
    ),
    Row(
        "kv cache, packed",
        [(2, 3, 6, 4), (3, 3, 4), torch.tensor([1, 4], dtype=torch.int32)],
        _packed,
        _packed_truth,
    ),
]

ATTENTION_ROWS = [*ATTENTIONS, *SEQUENCES]
