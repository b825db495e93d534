"""Sequences: reversal, rotary embedding, key and value caches."""

from __future__ import annotations

import torch
from torch import Tensor

from t2t.reference.axes import ints
from t2t.reference.datatypes import wide
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


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
