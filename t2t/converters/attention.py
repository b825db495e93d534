"""Scaled dot product attention, as two matrix products and a softmax between them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._arguments import agree, static_number
from t2t.errors import UnsupportedArgumentError, require
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import converter
from t2t.sizes import has_symbol, static_size

_ORIGINAL = F.scaled_dot_product_attention


def _meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if attn_mask is not None and is_causal:
        # torch refuses both.
        return NotImplemented
    heads = 3 if enable_gqa else 2
    batch = query.shape[:-heads]
    plain = same_sizes(batch, key.shape[:-heads]) and same_sizes(batch, value.shape[:-heads])
    plain = plain and agree((query.shape[-1], key.shape[-1]), (key.shape[-2], value.shape[-2]))
    plain = plain and (attn_mask is None or attn_mask.dtype in (torch.bool, query.dtype))
    if not plain or torch.is_autocast_enabled(query.device.type):
        return _ORIGINAL(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    innermost = static_size(query.stride(-1)) == 1
    if query.dim() == 4 and innermost and same_sizes(query.shape[-1:], value.shape[-1:]):
        # As torch's kernels: where heads were cut from rows, the rows can be viewed again.
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


# The function, for each device has an operator of its own, and some have no grouped queries.
@converter("torch.nn.functional.scaled_dot_product_attention", precision="compute", meta=_meta)
def scaled_dot_product_attention(
    net: Network,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> NetworkTensor:
    """Convert (*, [H,] L, E), (*, [H,] S, E), (*, [H,] S, V) to (*, [H,] L, V).

    The softmax is computed in float32. A query that may attend to nothing gets zeros, as in torch.
    """
    require("dropout_p", float(dropout_p), 0.0, "an engine draws no random numbers")
    groups = _groups(query, key, value) if enable_gqa else 1
    dtype = net.output.dtype
    return _attend(net, query, key, value, attn_mask, is_causal, scale, groups, dtype)


# -- attention captured before torch's function was patched: each device has operators of its own --


@converter("aten::_scaled_dot_product_flash_attention_for_cpu", precision="compute")
def flash_attention_for_cpu(
    net: Network,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Convert (N, H, L, E), (N, H, S, E), (N, H, S, V) to (N, H, L, V)."""
    return _captured(net, query, key, value, attn_mask, dropout_p, is_causal, scale)


@converter("aten::_scaled_dot_product_flash_attention", precision="compute")
def flash_attention(
    net: Network,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Convert as `flash_attention_for_cpu`."""
    del return_debug_mask
    return _captured(net, query, key, value, None, dropout_p, is_causal, scale)


@converter(
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    precision="compute",
)
def biased_attention(
    net: Network,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Convert as `flash_attention_for_cpu`."""
    del compute_log_sumexp, return_debug_mask
    return _captured(net, query, key, value, attn_bias, dropout_p, is_causal, scale)


def _captured(
    net: Network,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> Any:
    """Return the attention, and None for what else the operator gives, which is for training."""
    require("dropout_p", float(dropout_p), 0.0, "an engine draws no random numbers")
    grouped = not same_sizes(query.shape[-3:-2], key.shape[-3:-2])
    groups = _groups(query, key, value) if grouped else 1
    dtype = net.output[0].dtype
    result = _attend(net, query, key, value, mask, causal, scale, groups, dtype)
    return result, *[None for x in net.output[1:] if isinstance(x, torch.Tensor)]


def _groups(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Return how many heads of queries share one of keys."""
    heads = [static_number("heads", x.shape[-3]) for x in (query, key, value)]
    if heads[1] != heads[2]:
        raise UnsupportedArgumentError("enable_gqa: key and value have different numbers of heads")
    return heads[0] // heads[1]


def _attend(
    net: Network,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    groups: int,
    dtype: torch.dtype,
) -> NetworkTensor:
    """Compute attention in a type, which torch.autocast may have made another than that of q."""
    q, k, v = (net.tensor(x, dtype) for x in (query, key, value))
    if groups > 1:
        # (*, heads of keys, queries of each, L, E) by (*, heads of keys, 1, E, S)
        sizes = query.shape
        q = net.reshape(q, (*sizes[:-3], key.shape[-3], groups, *sizes[-2:]))
        k, v = (net.unsqueeze(x, [len(x.shape) - 2]) for x in (k, v))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    with _scoring(net, dtype):
        # Scaled before the product, where half precision would overflow first.
        q, k = net.tensor(q, dtype), net.tensor(k, dtype)
        q = q if factor == 1 else net.add_elementwise(q, factor, "PROD", dtype)
        scores = net.add_matrix_multiply(q, k, "NONE", "TRANSPOSE")
    allowed: NetworkTensor | None = None
    with net.precision("sensitive"):
        scores = net.tensor(scores, dtype)
        if causal:
            scores = _causal(net, scores, query.shape[-2], key.shape[-2])
        elif mask is not None:
            scores, allowed = _masked(net, scores, mask, groups, dtype)
        weights = net.add_softmax(scores, len(scores.shape) - 1)
    result = net.add_matrix_multiply(net.tensor(weights, dtype), v)
    if allowed is not None:
        result = net.add_select(allowed, result, 0.0, dtype)
    if groups > 1:
        result = net.reshape(result, (*query.shape[:-1], value.shape[-1]))
    return result


def _scoring(net: Network, dtype: torch.dtype) -> AbstractContextManager[None]:
    """Compute the scores in float32 where torch's kernels never round them: in half models.

    The softmax takes a rounding error of a score for a relative one of the weight, so the 8 bits of
    bfloat16 do not do elsewhere either. A product of halves is exact in TF32.
    """
    rounds = dtype != torch.float32 or net.compute_dtype(dtype) == torch.bfloat16
    return net.precision("sensitive") if rounds else nullcontext()


def _causal(net: Network, scores: NetworkTensor, rows: Any, columns: Any) -> NetworkTensor:
    """Let the query ``i`` attend to the keys up to ``i``."""
    if not has_symbol([rows, columns]):
        rank, size = len(scores.shape), (static_size(rows), static_size(columns))
        seen = net.once(
            ("causal", size, rank),
            lambda: net.constant(torch.ones(rows, columns, dtype=torch.bool).tril(), rank=rank),
        )
        return net.add_select(seen, scores, -math.inf, torch.float32)
    i, j = (net.add_linspace([n], 0, 1, torch.int32) for n in (rows, columns))
    later = net.add_elementwise(net.unsqueeze(j, [0]), net.unsqueeze(i, [1]), "GREATER")
    return net.add_select(later, -math.inf, scores, torch.float32)


def _masked(
    net: Network, scores: NetworkTensor, mask: torch.Tensor, groups: int, dtype: torch.dtype
) -> tuple[NetworkTensor, NetworkTensor | None]:
    """Apply a mask; also say which queries may attend to anything, where some may not.

    Under torch.autocast an added mask is cast to the low type ``dtype``, in which the least number
    of float32 is minus infinity.
    """
    boolean = mask.dtype == torch.bool
    every = False
    if not net.is_traced(mask):
        mask = mask if boolean else mask.to(dtype)
        every = bool((mask if boolean else mask > -math.inf).any(-1).all())
    low = net.tensor(mask) if boolean or mask.dtype == dtype else net.cast(net.tensor(mask), dtype)
    given = net.tensor(low, torch.bool if boolean else torch.float32)
    if groups > 1 and mask.dim() > 2:
        # The mask has one head for all, or one for each of the queries.
        heads = static_number("heads", mask.shape[-3])
        split = (1, 1) if heads == 1 else (heads // groups, groups)
        sizes = (*mask.shape[:-3], *split, *mask.shape[-2:])
        flat = given
        given = net.once(("heads", flat.name, split), lambda: net.reshape(flat, sizes))
    if boolean:
        masked = net.add_select(given, scores, -math.inf, torch.float32)
    else:
        masked = net.add_elementwise(scores, given, "SUM")
    if every:
        return masked, None
    return masked, net.once(("attends", given.name), lambda: _attends(net, given, boolean))


def _attends(net: Network, mask: NetworkTensor, boolean: bool) -> NetworkTensor:
    """Return which queries may attend to anything."""
    limit = 0.0 if boolean else -math.inf
    numbers = net.tensor(mask, torch.float32)
    most = net.add_reduce(numbers, "MAX", len(mask.shape) - 1, keep_dims=True)
    return net.add_elementwise(most, limit, "GREATER", torch.float32)
