"""Einstein summation of two operands as one matrix product."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import torch

from t2t.converters._compute import product_precision
from t2t.network import Network, NetworkTensor
from t2t.network.movement import same_sizes
from t2t.registry import Precision, converter

__all__ = ["einsum"]


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
