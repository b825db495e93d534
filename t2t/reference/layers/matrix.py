"""Matrix products and Einstein summation, attention, and what attention does to sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.errors import UnsupportedLayerError
from t2t.reference.layer import Kernel, Ready, ints, is_half, layer, wide
from t2t.reference.layers.quantization import quantized


def _operand(x: Tensor, op: str, column: bool) -> Tensor:
    if op == "TRANSPOSE":
        return x.mT
    if op == "VECTOR":
        return x.unsqueeze(-1 if column else -2)
    return x


@layer("MATRIX_MULTIPLY", "op0", "op1")
def matrix_multiply(ready: Ready) -> Kernel:
    """(..., M, K) by (..., K, N); halves are multiplied in float32 and rounded once."""
    op0, op1 = ready.attributes["op0"], ready.attributes["op1"]
    dtype = ready.dtype
    # A constant operand is widened here, not in every run.
    fixed = {
        position: value.float()
        for position, value in ready.constants.items()
        if is_half(value.dtype)
    }

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        left = _operand(fixed.get(0, a) if fixed else a, op0, column=False)
        right = _operand(fixed.get(1, b) if fixed else b, op1, column=True)
        # One matrix for the whole batch is faster as a matrix than as a batch of one.
        if right.dim() > 2 and op0 == "NONE" and right.shape[:-2].numel() == 1:
            right = right[(0,) * (right.dim() - 2)]
        result = torch.matmul(wide(left), wide(right))
        if op0 == "VECTOR":
            result = result.squeeze(-2)
        if op1 == "VECTOR":
            result = result.squeeze(-1)
        return result.to(dtype)

    return kernel


@layer("EINSUM", "equation")
def einsum(ready: Ready) -> Kernel:
    """Einstein summation by torch's own equation, which TensorRT's is a part of."""
    equation, dtype = ready.attributes["equation"], ready.dtype
    return lambda *operands: torch.einsum(equation, *map(wide, operands)).to(dtype)


# -- attention -------------------------------------------------------------------------------------


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


# -- sequences -------------------------------------------------------------------------------------


@layer("REVERSE_SEQUENCE", "batch_axis", "sequence_axis")
def reverse_sequence(ready: Ready) -> Kernel:
    """Turn round the first elements of each sequence, as many as ``lengths`` says."""
    batch, axis = ready.attributes["batch_axis"], ready.attributes["sequence_axis"]

    def kernel(x: Tensor, lengths: Tensor) -> Tensor:
        count = x.shape[axis]
        place = torch.arange(count, device=x.device)
        limit = lengths.long().unsqueeze(1)
        index = torch.where(place < limit, limit - 1 - place, place)
        shape = [1] * x.dim()
        shape[batch], shape[axis] = index.shape
        ordered = index if batch < axis else index.T
        return x.gather(axis, ordered.reshape(shape).expand(x.shape))

    return kernel


@layer("ROTARY_EMBEDDING", "interleaved", "rotary_embedding_dim")
def rotary_embedding(ready: Ready) -> Kernel:
    """(B, heads, S, H): rotate pairs of the first elements of H by the angles of a cache.

    The caches are (positions, H/2) with position ids (B, S), or (B, S, H/2) without. Pairs are
    neighbours where interleaved, else elements of the first and of the second half.
    """
    a, dtype = ready.attributes, ready.dtype

    def kernel(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is not None:
            cos, sin = cos[positions.long()], sin[positions.long()]
        cos, sin = wide(cos).unsqueeze(1), wide(sin).unsqueeze(1)
        size = a["rotary_embedding_dim"] or x.shape[-1]
        turned, kept = wide(x[..., :size]), x[..., size:]
        if a["interleaved"]:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, -1)
        parts = (first * cos - second * sin, first * sin + second * cos)
        turned = torch.stack(parts, -1).flatten(-2) if a["interleaved"] else torch.cat(parts, -1)
        return torch.cat([turned.to(dtype), kept], -1)

    return kernel


@layer("KV_CACHE_UPDATE", "cache_mode", "update_form", host=(2, 3))
def kv_cache_update(ready: Ready) -> Kernel:
    """Write each sequence's update into its (B, H, S, D) cache from its write index on.

    TensorRT writes into the cache's own memory; here the updated cache is a new tensor.
    """
    packed = ready.attributes.get("update_form") == "PACKED_NHD"

    def kernel(
        cache: Tensor, update: Tensor, write_indices: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        result = cache.clone()
        bounds = ints(lengths)
        for row, start in enumerate(ints(write_indices)):
            part = update[bounds[row] : bounds[row + 1]] if packed else update[row]
            new = part.transpose(0, 1) if packed else part
            result[row, :, start : start + new.shape[1]] = new
        return result

    return kernel
