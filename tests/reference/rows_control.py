"""Rows of loops, conditionals and non-maximum suppression."""

import numpy as np
import torch

from t2t.backend import trt
from tests.reference.rows import Row, const, out, wired

SUM, PROD, LESS = (
    lambda name=name: getattr(trt.ElementWiseOperation, name) for name in ("SUM", "PROD", "LESS")
)


def _ew(n, a, b, op):
    return out(n.add_elementwise(a, b, op()))


def _count(n, loop, trips):
    loop.add_trip_limit(const(n, trips, np.int32), trt.TripLimit.COUNT)


def _scan(kind, axis=0, reverse=False, output_axis=0, length=None, trips=3):
    """Sum the slices of x so far; give the sums of all iterations."""

    def build(n, x):
        loop = n.add_loop()
        _count(n, loop, trips)
        part = out(loop.add_iterator(x, axis, reverse))
        total = loop.add_recurrence(const(n, np.zeros(4, np.float32)))
        after = _ew(n, out(total), part, SUM)
        total.set_input(1, after)
        given = out(total) if kind == "LAST_VALUE" else after
        result = loop.add_loop_output(given, getattr(trt.LoopOutput, kind), output_axis)
        if kind == "LAST_VALUE":
            return result
        return wired(result, i1=const(n, length or trips, np.int32))

    return build


def _while(n, x):
    """Double x until its sum is 100; also give the number of times and a value inside."""
    loop = n.add_loop()
    value, count = loop.add_recurrence(x), loop.add_recurrence(const(n, 0, np.int32))
    total = n.add_reduce(out(value), trt.ReduceOperation.SUM, 1, False)
    going = _ew(n, out(total), const(n, 100.0, np.float32), LESS)
    loop.add_trip_limit(going, trt.TripLimit.WHILE)
    _count(n, loop, 50)
    value.set_input(1, _ew(n, out(value), out(value), SUM))
    count.set_input(1, _ew(n, out(count), const(n, 1, np.int32), SUM))
    last = trt.LoopOutput.LAST_VALUE
    return [loop.add_loop_output(out(part), last) for part in (value, count)]


def _while_truth(x):
    count = 0
    while float(x.sum()) < 100:
        x, count = x + x, count + 1
    return x, torch.tensor(count, dtype=torch.int32)


def _nested(n, x):
    """Three times: add the product of the rows of x to a total."""
    outer = n.add_loop()
    _count(n, outer, 3)
    total = outer.add_recurrence(const(n, np.zeros(4, np.float32)))
    inner = n.add_loop()
    _count(n, inner, 2)
    row = out(inner.add_iterator(x))
    product = inner.add_recurrence(_ew(n, out(total), const(n, np.ones(4, np.float32)), SUM))
    product.set_input(1, _ew(n, out(product), row, PROD))
    part = out(inner.add_loop_output(out(product), trt.LoopOutput.LAST_VALUE))
    total.set_input(1, _ew(n, out(total), part, SUM))
    return outer.add_loop_output(out(total), trt.LoopOutput.LAST_VALUE)


def _nested_truth(x):
    total = torch.zeros(4)
    for _ in range(3):
        total = total + (total + 1) * x[0] * x[1]
    return total


def _if(n, x, flag):
    choice = n.add_if_conditional()
    choice.set_condition(flag)
    inside = out(choice.add_input(x))
    then = out(n.add_unary(inside, trt.UnaryOperation.ABS))
    shared = out(n.add_unary(x, trt.UnaryOperation.NEG))
    other = _ew(n, shared, inside, PROD)
    first = choice.add_output(then, other)
    second = choice.add_output(shared, inside)
    return [first, second]


def _if_truth(x, flag):
    return (x.abs(), -x) if flag else (-x * x, x)


def _if_in_if(n, x, a, b):
    """a: (b: x + 1, else x * 2), else x; the side not taken would divide by zero."""
    outer, inner = n.add_if_conditional(), n.add_if_conditional()
    outer.set_condition(a)
    both = _ew(n, a, b, lambda: trt.ElementWiseOperation.AND)
    inner.set_condition(both)
    x_in = out(outer.add_input(x))
    x_inner = out(inner.add_input(x_in))
    more = _ew(n, x_inner, const(n, [1.0], np.float32), SUM)
    double = _ew(n, x_inner, const(n, [2.0], np.float32), PROD)
    chosen = out(inner.add_output(more, double))
    return outer.add_output(chosen, x_in)


def _nms(box="CORNER_PAIRS", most=3, overlap=None, least=None, limit=None):
    def build(n, boxes, scores):
        layer = n.add_nms(boxes, scores, const(n, most, np.int32))
        layer.bounding_box_format = getattr(trt.BoundingBoxFormat, box)
        if limit is not None:
            layer.topk_box_limit = limit
        if overlap is not None:
            layer.set_input(3, const(n, overlap, np.float32))
        if least is not None:
            layer.set_input(4, const(n, least, np.float32))
        return layer

    return build


def _chosen(*rows):
    return lambda boxes, scores: (
        torch.tensor(rows, dtype=torch.int32).reshape(-1, 3),
        torch.tensor(len(rows), dtype=torch.int32),
    )


# Box 1 overlaps box 0 by 9 of 11, box 2 touches nothing, box 3 is box 0 with corners swapped.
BOXES = torch.tensor([[[0.0, 0, 10, 10], [0, 1, 10, 11], [20, 20, 30, 30], [10, 10, 0, 0]]])
# Read as centre and size, box 1 overlaps box 0 by 95 of 115 and box 3 is empty.
SCORES = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.3, 0.95], [0.5, 0.05]]])
YES, NO = torch.tensor(True), torch.tensor(False)

LOOPS = [
    Row("loop last value", [(3, 4)], _scan("LAST_VALUE"), lambda x: x.sum(0)),
    Row("loop concatenate", [(3, 4)], _scan("CONCATENATE"), lambda x: x.cumsum(0)),
    Row(
        "loop concatenate axis 1",
        [(3, 4)],
        _scan("CONCATENATE", output_axis=1),
        lambda x: x.cumsum(0).T,
    ),
    Row("loop reversed output", [(3, 4)], _scan("REVERSE"), lambda x: x.cumsum(0).flip(0)),
    Row(
        "loop over columns, backwards",
        [(4, 3)],
        _scan("CONCATENATE", axis=1, reverse=True),
        lambda x: x.flip(1).cumsum(1).T,
    ),
    Row("loop while", [torch.tensor([1.0, 2.0, 0.5])], _while, _while_truth),
    Row("loop nested", [(2, 4)], _nested, _nested_truth, rtol=1e-4),
]
CONDITIONALS = [
    Row("if true", [(3,), YES], _if, _if_truth),
    Row("if false", [(3,), NO], _if, _if_truth),
    *[
        Row(f"if in if {int(a)}{int(b)}", [(3,), a, b], _if_in_if, truth)
        for a, b, truth in [
            (YES, YES, lambda x, a, b: x + 1),
            (YES, NO, lambda x, a, b: x * 2),
            (NO, YES, lambda x, a, b: x),
        ]
    ],
]
SUPPRESSIONS = [
    Row("nms", [BOXES, SCORES], _nms(), _chosen((0, 1, 2), (0, 0, 0), (0, 0, 2), (0, 1, 1))),
    Row(
        "nms overlap allowed",
        [BOXES, SCORES],
        _nms(overlap=0.85),
        _chosen((0, 1, 2), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 0)),
    ),
    Row("nms scores above", [BOXES, SCORES], _nms(least=0.5), _chosen((0, 1, 2), (0, 0, 0))),
    Row("nms one a class", [BOXES, SCORES], _nms(most=1), _chosen((0, 1, 2), (0, 0, 0))),
    Row("nms of the best", [BOXES, SCORES], _nms(limit=1), _chosen((0, 1, 2), (0, 0, 0))),
    Row(
        "nms centres",
        [BOXES, SCORES],
        _nms("CENTER_SIZES", overlap=0.5),
        _chosen((0, 1, 2), (0, 0, 0), (0, 0, 3), (0, 0, 2), (0, 1, 1), (0, 1, 3)),
    ),
]
CONTROL_ROWS = [*LOOPS, *CONDITIONALS, *SUPPRESSIONS]
