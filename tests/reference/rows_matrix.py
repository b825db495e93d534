"""Rows of reductions, matrix products, attention, sequences, resize, sampling, quantization."""

import numpy as np
import torch
import torch.nn.functional as F

from t2t.backend import trt
from tests.reference.rows import Row, const, out, wired

X = (2, 3, 4, 5)
INTS = torch.arange(-12, 12, dtype=torch.int32).reshape(2, 3, 4)
DRAWN = torch.Generator().manual_seed(5)


def _reduce(op, axes, keep=False):
    mask = sum(1 << axis for axis in axes)
    return lambda n, x: n.add_reduce(x, getattr(trt.ReduceOperation, op), mask, keep)


REDUCTIONS = [
    Row("reduce SUM", [X], _reduce("SUM", (1, 3)), lambda x: x.sum((1, 3)), dynamic=True),
    Row("reduce keep", [X], _reduce("MAX", (2,), True), lambda x: x.amax(2, keepdim=True)),
    Row("reduce PROD", [X], _reduce("PROD", (0, 2)), lambda x: x.prod(2).prod(0)),
    Row("reduce MIN", [X], _reduce("MIN", (1,)), lambda x: x.amin(1)),
    Row("reduce AVG", [X], _reduce("AVG", (2, 3)), lambda x: x.mean((2, 3))),
    Row("reduce int", [INTS], _reduce("SUM", (1,)), lambda x: x.sum(1, dtype=torch.int32)),
    Row(
        "reduce half in float",
        [torch.full((1, 4096), 1.0).half()],
        _reduce("SUM", (1,), True),
        lambda x: torch.full((1, 1), 4096.0).half(),
    ),
]


def _topk(op, k, axis, dynamic=False):
    def build(n, x):
        layer = n.add_topk(x, getattr(trt.TopKOperation, op), 1 if dynamic else k, 1 << axis)
        return wired(layer, i1=const(n, k, np.int32)) if dynamic else layer

    return build


def _sorted(x, k, axis, largest):
    values, indices = x.sort(dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k).int()


TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [2.0, 2.0, 0.0, 2.0, 1.0]])
TOPS = [
    Row("topk", [(3, 7)], _topk("MAX", 3, 1), lambda x: _sorted(x, 3, 1, True)),
    Row("topk smallest", [(6, 3)], _topk("MIN", 2, 0), lambda x: _sorted(x, 2, 0, False)),
    Row("topk ties", [TIES], _topk("MAX", 4, 1), lambda x: _sorted(x, 4, 1, True)),
    Row("topk one", [TIES], _topk("MAX", 1, 1), lambda x: _sorted(x, 1, 1, True)),
    Row("topk by tensor", [(3, 7)], _topk("MAX", 5, 1, True), lambda x: _sorted(x, 5, 1, True)),
]


def _cumulative(exclusive, reverse):
    def build(n, x):
        axis = const(n, 1, np.int32)
        return n.add_cumulative(x, axis, trt.CumulativeOperation.SUM, exclusive, reverse)

    return build


SUMS = [
    Row("cumulative", [(2, 5)], _cumulative(False, False), lambda x: x.cumsum(1)),
    Row("cumulative exclusive", [(2, 5)], _cumulative(True, False), lambda x: x.cumsum(1) - x),
    Row(
        "cumulative reverse",
        [(2, 5)],
        _cumulative(False, True),
        lambda x: x.flip(1).cumsum(1).flip(1),
    ),
]


def _matmul(op0, op1):
    ops = [getattr(trt.MatrixOperation, op) for op in (op0, op1)]
    return lambda n, a, b: n.add_matrix_multiply(a, ops[0], b, ops[1])


W = np.random.default_rng(5).standard_normal((1, 4, 6)).astype(np.float32)


def _linear(n, x):
    weight = const(n, W)
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    product = n.add_matrix_multiply(x, none, weight, turned)
    bias = const(n, W[:, :1, :4])
    return n.add_elementwise(out(product), bias, trt.ElementWiseOperation.SUM)


HALF = [torch.randn(4, 32, generator=DRAWN).half(), torch.randn(32, 3, generator=DRAWN).half()]
PRODUCTS = [
    Row("matmul", [(2, 3, 4), (2, 4, 5)], _matmul("NONE", "NONE"), torch.matmul, dynamic=True),
    Row(
        "matmul transposed",
        [(2, 4, 3), (1, 5, 4)],
        _matmul("TRANSPOSE", "TRANSPOSE"),
        lambda a, b: a.mT @ b.mT,
    ),
    Row(
        "matmul vector",
        [(2, 3, 4), (2, 4)],
        _matmul("NONE", "VECTOR"),
        lambda a, b: (a @ b[..., None])[..., 0],
    ),
    Row(
        "vector matmul",
        [(2, 4), (2, 4, 3)],
        _matmul("VECTOR", "NONE"),
        lambda a, b: (a[:, None] @ b)[:, 0],
    ),
    Row(
        "linear",
        [(2, 3, 6)],
        _linear,
        lambda x: F.linear(x, torch.from_numpy(W[0]), torch.from_numpy(W[0, 0, :4])),
    ),
    Row(
        "matmul half",
        HALF,
        _matmul("NONE", "NONE"),
        lambda a, b: (a.float() @ b.float()).half(),
    ),
    Row(
        "einsum",
        [(2, 3, 4), (2, 4, 5), (5,)],
        lambda n, *x: n.add_einsum(list(x), "bij,bjk,k->bi"),
        lambda a, b, c: torch.einsum("bij,bjk,k->bi", a, b, c),
    ),
    Row(
        "einsum trace",
        [(2, 3, 3)],
        lambda n, x: n.add_einsum([x], "bii->b"),
        lambda x: x.diagonal(dim1=1, dim2=2).sum(1),
    ),
]


MATRIX_ROWS = [*REDUCTIONS, *TOPS, *SUMS, *PRODUCTS]
