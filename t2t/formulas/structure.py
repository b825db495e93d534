"""Operators whose formula in PyTorch is long, or hides what is a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.errors import UnsupportedArgumentError, require
from t2t.registry import formula

aten = torch.ops.aten


@formula("aten::split.Tensor", "aten::unsafe_split.Tensor")
def split(self: torch.Tensor, split_size: Any, dim: int = 0) -> list[torch.Tensor]:
    """Cut into slices of one size, the last one perhaps smaller.

    As slices of their own, those that nobody uses are no layers, and writes to one reach
    the whole.
    """
    size = self.shape[dim]
    # torch gives one piece where there is nothing to cut.
    count = 1 if split_size == 0 else max(1, int((size + split_size - 1) // split_size))
    return [
        aten.slice.Tensor(self, dim, index * split_size, (index + 1) * split_size)
        for index in range(count)
    ]


@formula("aten::split_with_sizes.default", "aten::unsafe_split_with_sizes.default")
def split_with_sizes(
    self: torch.Tensor, split_sizes: Sequence[Any], dim: int = 0
) -> list[torch.Tensor]:
    """Cut into slices of given sizes."""
    torch._check(
        sum(split_sizes) == self.shape[dim],
        lambda: f"split_with_sizes: {split_sizes} do not add up to {self.shape[dim]}",
    )
    pieces, start = [], 0
    for size in split_sizes:
        torch._check(size >= 0, lambda: f"split_with_sizes: {split_sizes} has a negative size")
        pieces.append(aten.slice.Tensor(self, dim, start, start + size))
        start = start + size
    return pieces


@formula("aten::unbind.int")
def unbind(self: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Select every index of a dimension."""
    return [aten.select.int(self, dim, index) for index in range(int(self.shape[dim]))]


@formula("aten::_thnn_fused_lstm_cell.default")
def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take one step of an LSTM, as nn.LSTMCell does on a GPU."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    enters, forgets, new, leaves = gates.chunk(4, 1)
    cell = forgets.sigmoid() * cx + enters.sigmoid() * new.tanh()
    # The last is for the gradient.
    return leaves.sigmoid() * cell.tanh(), cell, torch.zeros_like(input_gates)


@formula("aten::_thnn_fused_gru_cell.default")
def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one step of a GRU, as nn.GRUCell does on a GPU."""
    given = _with_bias(input_gates, input_bias).chunk(3, 1)
    kept = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update = ((given[i] + kept[i]).sigmoid() for i in range(2))
    new = (given[2] + reset * kept[2]).tanh()
    # The last is for the gradient.
    return new + update * (hx - new), hx.new_zeros(hx.shape[0], 5 * hx.shape[1])


def _with_bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


@formula("aten::native_batch_norm.default")
def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize by one of three operators, which say what they write: this one does not."""
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    if training:
        return aten._native_batch_norm_legit.default(
            input, weight, bias, running_mean, running_var, True, momentum, eps
        )
    return aten._native_batch_norm_legit_no_training.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )


@formula("aten::_batch_norm_no_update.default")
def batch_norm_no_update(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize by running statistics."""
    training = running_mean is None or running_var is None
    results = native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return *results, torch.empty(0, dtype=torch.uint8)


@formula("aten::_native_batch_norm_legit_functional", precision="sensitive")
def native_batch_norm_functional(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Normalize, and update running statistics in training: the last two results."""
    if not training:
        results = aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )
        return *results, running_mean.clone(), running_var.clone()
    results = aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)
    axes = [axis for axis in range(input.ndim) if axis != 1]
    mean, variance = input.mean(axes), input.var(axes)
    return (
        *results,
        running_mean * (1 - momentum) + mean * momentum,
        running_var * (1 - momentum) + variance * momentum,
    )


@formula("aten::diagonal_scatter.default")
def diagonal_scatter(
    self: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Write into a diagonal of a copy."""
    out = self.clone()
    aten.diagonal.default(out, offset, dim1, dim2).copy_(src)
    return out


@formula("aten::as_strided_scatter.default")
def as_strided_scatter(
    self: torch.Tensor, src: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None
) -> torch.Tensor:
    """Write into a view of a copy."""
    out = self.clone()
    aten.as_strided.default(out, size, stride, storage_offset).copy_(src)
    return out


@formula("aten::put.default")
def put(
    self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Write into the flattened tensor."""
    indices, values = [index.reshape(-1)], source.reshape(-1)
    flat: torch.Tensor = aten.index_put.default(self.reshape(-1), indices, values, accumulate)
    return flat.reshape(self.shape)


@formula("aten::addmm.default", "aten::addmv.default", "aten::baddbmm.default")
def addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """Add ``self`` to a product of matrices, or of batches of them, or of a matrix and a vector.

    As operators of their own: under ``fp16=True`` the product computes in half, but the sum in
    float32 where ``self`` is a mask of -1e9.
    """
    product = torch.matmul(mat1, mat2)
    if not product.is_floating_point():
        # torch cuts them to integers.
        beta, alpha = int(beta), int(alpha)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        # As torch has it, nothing of ``self`` matters then, not even NaN.
        return product
    return product + (self if beta == 1 else self * beta)


@formula("aten::addbmm.default")
def addbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """Add ``self`` to the sum of all products of a batch: one product of longer rows."""
    rows = batch1.transpose(0, 1).flatten(1)
    return addmm(self, rows, batch2.flatten(0, 1), beta=beta, alpha=alpha)


@formula("aten::_grouped_mm", precision="compute")
def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply each group of rows (rows, k) with its matrix of (groups, k, n), to (rows, n).

    ``offs`` says where each group of rows ends. Rows behind the last group, which torch leaves
    undefined, are zeros. Every row is multiplied with every matrix, as the groups' sizes depend on
    the data: time and memory grow with the number of groups.
    """
    require("bias", bias, None, "torch does not define it")
    dtype = out_dtype or self.dtype
    if self.ndim == mat2.ndim == 3 and offs is None:
        return torch.matmul(self, mat2).to(dtype)
    if (self.ndim, mat2.ndim) != (2, 3) or offs is None:
        raise UnsupportedArgumentError(
            f"mat_a of rank {self.ndim}, mat_b of rank {mat2.ndim}: supported: 2 and 3 with "
            "offs, 3 and 3 without"
        )
    row, ends = torch.arange(self.shape[0], dtype=offs.dtype), offs.unsqueeze(1)
    begins = torch.cat([ends.new_zeros(1, 1), ends[:-1]])
    inside = ((begins < row + 1) & (row < ends)).unsqueeze(2)
    return torch.where(inside, torch.matmul(self, mat2), 0.0).sum(0).to(dtype)


@formula("aten::_convolution.default")
def convolution(*args: Any) -> torch.Tensor:
    """Convolve; a scripted module calls it with four switches of cuDNN behind the arguments."""
    result: torch.Tensor = aten.convolution.default(*args[:9])
    return result


@formula("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    sorted_sequence: torch.Tensor,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count the boundaries below each value; torch's own search needs a loop."""
    bounds = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    values = torch.as_tensor(self).unsqueeze(-1)
    bounds = bounds.unsqueeze(-2) if bounds.ndim > 1 else bounds
    # Negated, as NaN stands behind all numbers.
    behind = bounds > values if right or side == "right" else bounds >= values
    return (~behind).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


@formula("aten::bucketize.Tensor", "aten::bucketize.Scalar")
def bucketize(
    self: Any, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Count the boundaries below each value."""
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@formula("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: torch.Tensor, *, output_size: Any = None) -> Any:
    """Return for each element of the result whose repetition stands there."""
    if output_size is None:
        # How long it is depends on the data; torch says so.
        return NotImplemented
    position = torch.arange(output_size, dtype=repeats.dtype)
    return searchsorted(repeats.cumsum(0), position, right=True).to(repeats.dtype)


# -- attention and encoder layers, as torch.jit.trace keeps the fast paths of their modules --------


@formula("aten::_native_multi_head_attention")
def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: Any,
    num_head: Any,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from (N, L, E) to (N, S, E); the mask is True where there is nothing to attend to."""
    if mask is not None and mask_type == 2:
        mask = mask.expand(-1, num_head, -1, -1).flatten(0, 1)
    result, weights = F.multi_head_attention_forward(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        embed_dim,
        num_head,
        qkv_weight,
        qkv_bias,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=proj_weight,
        out_proj_bias=proj_bias,
        training=False,
        key_padding_mask=mask if mask_type == 1 else None,
        need_weights=need_weights,
        attn_mask=mask if mask_type != 1 else None,
        average_attn_weights=average_attn_weights,
    )
    unused = result.new_empty(0) if weights is None else weights
    return result.transpose(0, 1).contiguous(), unused


@formula("aten::_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Compute a layer of nn.TransformerEncoder in eval mode, (N, L, E)."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        masks = (mask, False, True, mask_type)
        return native_multi_head_attention(x, x, x, embed_dim, num_heads, *weights, *masks)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(hidden, ffn_weight_2, ffn_bias_2)

    def first(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first(src))
        return x + feed(second(x))
    x = first(src + attend(src))
    return second(x + feed(x))
