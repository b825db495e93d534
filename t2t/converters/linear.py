"""Linear layers, products of matrices and vectors, and sums of products by an equation."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from t2t.converters._arguments import agree
from t2t.converters._compute import product_precision
from t2t.converters._spatial import autocast, squeeze
from t2t.network import Network, NetworkTensor, TensorLike
from t2t.network.movement import same_sizes
from t2t.registry import Precision, converter

MAX_RANK = 8
"""TensorRT's largest number of dimensions."""

_LINEAR, _MATMUL = F.linear, torch.matmul


def product(net: Network, a: TensorLike, b: TensorLike, op1: str = "NONE") -> NetworkTensor:
    """Multiply as torch.matmul does, in torch's result type; ``op1`` may "TRANSPOSE" ``b``."""
    dtype = net.output.dtype
    ranks = [len(a.shape), len(b.shape)]  # type: ignore[union-attr]
    rows, columns = ranks[0] == 1, ranks[1] == 1
    rank = max(*ranks, 2)
    left = net.tensor(a, dtype, rank)
    if columns:
        # As matrices of one row or column, for TensorRT's vectors do not mix with other ranks.
        right, op1 = net.unsqueeze(net.tensor(b, dtype), [1]), "NONE"
    else:
        right = net.tensor(b, dtype, rank)
    if not net.dtype_of(left).is_floating_point or _is_sum(net, left, right, op1):
        z = _by_terms(net, left, right, op1)
    else:
        z = net.add_matrix_multiply(left, right, "NONE", op1)
    return squeeze(net, z, [rank - 2] * rows + [rank - 1] * columns)


def _is_sum(net: Network, a: NetworkTensor, b: NetworkTensor, op1: str) -> bool:
    """Return whether a product is better off as its terms: where few are float32 in a half network.

    TensorRT-RTX has no products of float32 matrices for Turing, whose networks are all half.
    """
    if net.policy.low is None or net.dtype_of(a) != torch.float32:
        return False
    columns = b.shape[-2 if op1 == "TRANSPOSE" else -1]
    return len(a.shape) < MAX_RANK and (columns == 1 or 0 <= a.shape[-1] < 8)


def _by_terms(net: Network, a: NetworkTensor, b: NetworkTensor, op1: str) -> NetworkTensor:
    """(*, m, k) by (*, k, n), also of integers, which TensorRT's layer does not multiply."""
    rank = max(len(a.shape), len(b.shape))
    a, b = net.tensor(a, rank=rank), net.tensor(b, rank=rank)
    a, b = net.unsqueeze(a, [rank]), net.unsqueeze(b, [rank - 2])
    if op1 == "TRANSPOSE":
        b = net.transpose(b, [*range(rank - 1), rank, rank - 1])
    terms = net.add_elementwise(a, b, "PROD")
    return net.add_reduce(terms, "SUM", len(terms.shape) - 2, keep_dims=False)


def _linear_meta(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    known = autocast(input, _LINEAR, weight, bias)
    if known is not None:
        return known
    fits = (
        input.dtype == weight.dtype
        and input.dim() > 0
        and weight.dim() in (1, 2)
        and agree((input.shape[-1], weight.shape[-1]))
        and (bias is None or (bias.dtype == input.dtype and bias.dim() < weight.dim()))
    )
    if not fits:
        # What does not go together, torch is to say.
        return NotImplemented
    return input.new_empty((*input.shape[:-1], *weight.shape[:-1]))


def _linear_precision(
    output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: Any = None
) -> Precision:
    del input, bias
    return product_precision(output.shape[-1] if weight.dim() > 1 else 1)


# The function, for PyTorch flattens the batch around its product of matrices.
@converter("torch.nn.functional.linear", precision=_linear_precision, meta=_linear_meta)
def linear(
    net: Network, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> NetworkTensor:
    """Convert (*, in) to (*, out) by a weight (out, in), or to (*) by one of (in,)."""
    y = product(net, input, weight, "TRANSPOSE")
    # A bias of zeros, as fresh layers have it, would be a layer that does nothing.
    if bias is None or not (net.is_traced(bias) or net.refittable or bias.any()):
        return y
    return net.add_elementwise(y, bias, "SUM", dtype=net.output.dtype)


def _matmul_meta(input: torch.Tensor, other: torch.Tensor) -> Any:
    if torch.is_autocast_enabled(input.device.type) or min(input.dim(), other.dim()) < 2:
        return _MATMUL(input, other)
    batches = (input.shape[:-2], other.shape[:-2])
    if all(batches) and not same_sizes(*batches):
        return _MATMUL(input, other)
    fits = input.dtype == other.dtype and agree((input.shape[-1], other.shape[-2]))
    if not fits:
        return NotImplemented
    return input.new_empty((*max(batches, key=len), input.shape[-2], other.shape[-1]))


def _matmul_precision(output: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Precision:
    return product_precision(output.shape[-1] if b.dim() > 1 else 1, a.shape[-1])


# The functions, for PyTorch repeats what is broadcast, and flattens the batch, around its product.
@converter(
    "torch.matmul",
    "torch.linalg.matmul",
    "torch.Tensor.matmul",
    "torch.Tensor.__matmul__",
    precision=_matmul_precision,
    meta=_matmul_meta,
)
def matmul(net: Network, input: torch.Tensor, other: torch.Tensor) -> NetworkTensor:
    """Convert a product of any ranks: (*, m, k) by (*, k, n), 1-D operands being vectors."""
    return product(net, input, other)


@converter("aten::mm", "aten::bmm", "aten::mv", "aten::dot", precision=_matmul_precision)
def multiply(net: Network, self: torch.Tensor, mat2: torch.Tensor) -> NetworkTensor:
    """Convert (*, m, k) by (*, k, n), (m, k) by (k,), or (k,) by (k,)."""
    return product(net, self, mat2)


# -- sums of products by an equation ---------------------------------------------------------------


def _parsed(args: Sequence[Any]) -> tuple[list[str], str | None, list[torch.Tensor]]:
    """Return the labels of the operands and of the result (None: all that occur once)."""
    if isinstance(args[0], str):
        rest = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        terms, arrow, result = args[0].replace(" ", "").partition("->")
        return terms.split(","), result if arrow else None, list(rest)
    lists = [_letters(labels) for labels in args[1::2]]
    return lists, _letters(args[-1]) if len(args) % 2 else None, list(args[: len(lists) * 2 : 2])


def _letters(labels: Sequence[Any]) -> str:
    return "".join("..." if n is Ellipsis else string.ascii_letters[n] for n in labels)


def _result(terms: Sequence[str], result: str | None) -> str:
    text = "".join(terms)
    return "".join(sorted(c for c in set(text) if text.count(c) == 1)) if result is None else result


def _einsum_meta(*args: Any) -> Any:
    terms, result, operands = _parsed(args)
    shapes = [x.shape for x in operands]
    plain = (
        len(terms) == 2
        and "..." not in "".join(terms)
        and all(len(set(term)) == len(term) for term in terms)
        and all(len(term) == len(shape) for term, shape in zip(terms, shapes, strict=True))
    )
    if not plain or torch.is_autocast_enabled(operands[0].device.type):
        return NotImplemented
    sizes = dict(zip(terms[0], shapes[0], strict=True))
    for label, size in zip(terms[1], shapes[1], strict=True):
        if label in sizes and not same_sizes([sizes[label]], [size]):
            # One of them may be 1, and broadcast.
            return NotImplemented
        sizes[label] = size
    return operands[0].new_empty([sizes[label] for label in _result(terms, result)])


def _precision(output: torch.Tensor, *args: Any) -> Precision:
    del output
    terms, given, operands = _parsed(args)
    result = _result(terms, given)
    sizes = dict(zip("".join(terms), [n for x in operands for n in x.shape], strict=True))
    columns = [sizes[label] for label in terms[1] if label in result and label not in terms[0]]
    inner = [size for label, size in sizes.items() if label not in result]
    return product_precision(math.prod(columns), math.prod(inner))


# The function, for PyTorch makes products of three dimensions of it, with reshapes around them.
@converter("torch.einsum", precision=_precision, meta=_einsum_meta)
def einsum(net: Network, *args: Any) -> NetworkTensor:
    """Convert a sum of products of two operands, given by an equation or by lists of labels.

    Other forms (one operand, more than two, ellipses, diagonals, broadcasting) reach the converters
    of the operators that torch makes of them.
    """
    terms, given, operands = _parsed(args)
    result = _result(terms, given)
    sizes = {
        label: size
        for term, x in zip(terms, operands, strict=True)
        for label, size in zip(term, x.shape, strict=True)
    }
    left, right = (
        _summed(net, term, net.tensor(x, net.output.dtype), result + other)
        for term, x, other in zip(terms, operands, reversed(terms), strict=True)
    )
    inner = [label for label in left[0] if label in right[0] and label not in result]
    if not inner or not net.dtype_of(left[1]).is_floating_point:
        return _by_elements(net, left, right, inner, result)
    return _by_matrices(net, left, right, inner, result, sizes)


_Labelled = tuple[str, NetworkTensor]


def _summed(net: Network, term: str, x: NetworkTensor, used: str) -> _Labelled:
    """Sum over the dimensions that nothing else refers to."""
    alone = [axis for axis, label in enumerate(term) if label not in used]
    if not alone:
        return term, x
    return "".join(c for c in term if c in used), net.add_reduce(x, "SUM", alone, keep_dims=False)


def _arranged(net: Network, labelled: _Labelled, order: Sequence[str]) -> NetworkTensor:
    """Permute to an order of labels, with dimensions of size 1 for those that are missing."""
    term, x = labelled
    x = net.transpose(x, [term.index(label) for label in order if label in term])
    missing = [axis for axis, label in enumerate(order) if label not in term]
    return net.unsqueeze(x, missing) if missing else x


def _by_elements(
    net: Network, left: _Labelled, right: _Labelled, inner: Sequence[str], result: str
) -> NetworkTensor:
    order = [*result, *inner]
    y = net.add_elementwise(_arranged(net, left, order), _arranged(net, right, order), "PROD")
    return net.add_reduce(y, "SUM", range(len(result), len(order)), False) if inner else y


def _by_matrices(
    net: Network,
    left: _Labelled,
    right: _Labelled,
    inner: Sequence[str],
    result: str,
    sizes: dict[str, Any],
) -> NetworkTensor:
    batch = [label for label in result if label in left[0] and label in right[0]]
    rows = [label for label in result if label in left[0] and label not in batch]
    columns = [label for label in result if label in right[0] and label not in batch]
    a, transposed_a = _matrix(net, left, batch, rows, inner, sizes)
    b, transposed_b = _matrix(net, right, batch, inner, columns, sizes)
    y = net.add_matrix_multiply(a, b, transposed_a, transposed_b)
    order = [*batch, *rows, *columns]
    y = net.reshape(y, [sizes[label] for label in order])
    return net.transpose(y, [order.index(label) for label in result])


def _matrix(
    net: Network,
    labelled: _Labelled,
    batch: Sequence[str],
    first: Sequence[str],
    second: Sequence[str],
    sizes: dict[str, Any],
) -> tuple[NetworkTensor, str]:
    """Return an operand as (batch, first, second), or TRANSPOSEd where it lies so already."""
    term, x = labelled
    turned = list(term) == [*batch, *second, *first] and list(term) != [*batch, *first, *second]
    parts = (second, first) if turned else (first, second)
    x = _arranged(net, labelled, [*batch, *parts[0], *parts[1]])
    if len(first) != 1 or len(second) != 1:
        matrix = (math.prod(sizes[label] for label in part) for part in parts)
        x = net.reshape(x, [*(sizes[label] for label in batch), *matrix])
    return x, "TRANSPOSE" if turned else "NONE"
