"""Attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.errors import UnsupportedLayerError
from t2t.reference.axes import ints
from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.layers.quantization import quantized
from t2t.reference.registry import Kernel, layer


def _read(raw: Any) -> dict[str, Any]:
    """Read IAttention, which only its boundary layers lead to."""
    attention = raw.attention
    if hasattr(attention, "causal_kind"):
        causal = attention.causal_kind.name
    else:
        causal = "UPPER_LEFT" if attention.causal else "NONE"
    found = {"norm_op": attention.norm_op.name, "causal_kind": causal}
    found["name"] = attention.name
    for name in ("query_form", "key_value_form", "normalization_quantize_to_type"):
        if hasattr(attention, name):
            found[name] = getattr(attention, name).name
    return found


@layer("ATTENTION_INPUT", read=_read, host=(5, 6))
def attention(ready: Ready) -> Kernel:
    """(B, H, S, D) queries, keys and values: normalize(q @ k.T + mask) @ v, without a scale.

    Inputs: 0 query, 1 key, 2 value (fewer heads are shared by neighbouring query heads),
    3 mask (bool: True attends; else added), 4 scale of the quantized normalization,
    5 and 6 lengths of queries and of keys. Halves are computed in float32, rounded once.
    """
    a, dtype = ready.attributes, ready.dtype
    if "PACKED_NHD" in (a.get("query_form"), a.get("key_value_form")):
        raise UnsupportedLayerError(f"attention {ready.name!r}: packed sequences are not supported")
    fused = a["norm_op"] == "SOFTMAX" and not ready.has_input(4) and not ready.has_input(6)

    def kernel(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        scale: Tensor | None = None,
        query_lengths: Tensor | None = None,
        key_lengths: Tensor | None = None,
    ) -> Tensor:
        del query_lengths  # TensorRT ignores it for padded queries
        q, k, v = wide(query), wide(key), wide(value)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        causal = a["causal_kind"]
        if fused and (causal == "NONE" or mask is None):
            bias = _causal(causal, q, k) if mask is None else _wide_mask(mask)
            return F.scaled_dot_product_attention(q, k, v, bias, scale=1.0).to(dtype)
        scores = q @ k.mT
        for part in (mask, _causal(causal, q, k), _lengths(key_lengths, k)):
            if part is not None:
                scores = _masked(scores, part)
        weights = torch.softmax(scores, -1) if a["norm_op"] == "SOFTMAX" else scores
        if scale is not None:
            to_type = a["normalization_quantize_to_type"]
            step = wide(scale)
            weights = quantized(weights / step, to_type).float() * step
        return (weights @ v).to(dtype)

    return kernel


@layer("ATTENTION_OUTPUT")
def attention_output(ready: Ready) -> Kernel:
    """The attention's result, which its input layer has computed."""
    del ready
    return lambda x: x


def _wide_mask(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else wide(mask)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf)
    return scores + wide(mask)


def _causal(kind: str, q: Tensor, k: Tensor) -> Tensor | None:
    if kind == "NONE":
        return None
    rows, columns = q.shape[-2], k.shape[-2]
    diagonal = 0 if kind == "UPPER_LEFT" else columns - rows
    return torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(diagonal)


def _lengths(lengths: Tensor | None, k: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    limit = torch.tensor(ints(lengths), device=k.device).reshape(-1, 1, 1, 1)
    return torch.arange(k.shape[-2], device=k.device) < limit
