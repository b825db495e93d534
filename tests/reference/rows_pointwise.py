"""Rows of activation, elementwise, unary, cast, select, scale, LRN, normalization, softmax."""

import numpy as np
import torch
import torch.nn.functional as F

from t2t.backend import trt
from tests.reference.rows import Row, setting

X = (2, 3, 4, 5)
WIDE = torch.linspace(-6, 6, 60).reshape(3, 20)


def _act(kind, alpha=None, beta=None):
    def build(n, x):
        layer = n.add_activation(x, getattr(trt.ActivationType, kind))
        given = {"alpha": alpha, "beta": beta}
        return setting(layer, **{k: v for k, v in given.items() if v is not None})

    return build


ACTIVATIONS = [
    Row(f"activation {kind}", [WIDE], _act(kind, *parameters), truth)
    for kind, parameters, truth in [
        ("RELU", (), torch.relu),
        ("SIGMOID", (), torch.sigmoid),
        ("TANH", (), torch.tanh),
        ("LEAKY_RELU", (0.3,), lambda x: F.leaky_relu(x, 0.3)),
        ("ELU", (0.7,), lambda x: F.elu(x, 0.7)),
        ("SELU", (1.5, 1.2), lambda x: torch.where(x > 0, 1.2 * x, 1.8 * (x.exp() - 1))),
        ("SOFTSIGN", (), F.softsign),
        ("SOFTPLUS", (0.5, 2.0), lambda x: 0.5 * torch.log(torch.exp(2.0 * x) + 1)),
        ("CLIP", (-1.0, 2.5), lambda x: x.clamp(-1.0, 2.5)),
        ("HARD_SIGMOID", (0.3, 0.4), lambda x: (0.3 * x + 0.4).clamp(0, 1)),
        ("SCALED_TANH", (1.7, 0.6), lambda x: 1.7 * torch.tanh(0.6 * x)),
        ("THRESHOLDED_RELU", (1.1,), lambda x: torch.where(x > 1.1, x, 0.0)),
        ("GELU_ERF", (), F.gelu),
        ("GELU_TANH", (), lambda x: F.gelu(x, approximate="tanh")),
    ]
] + [
    Row("activation int", [torch.arange(-4, 4, dtype=torch.int32)], _act("RELU"), torch.relu),
    Row("activation half", [WIDE.half()], _act("TANH"), lambda x: x.float().tanh().half()),
    Row(
        "parametric relu",
        [(2, 3, 4, 4), (1, 3, 1, 1)],
        lambda n, x, s: n.add_parametric_relu(x, s),
        lambda x, s: F.prelu(x, s.reshape(-1)),
    ),
    Row(
        "parametric relu an element",
        [(2, 3, 4), (1, 3, 4)],
        lambda n, x, s: n.add_parametric_relu(x, s),
        lambda x, s: torch.where(x < 0, s * x, x),
    ),
]


def _ew(op):
    return lambda n, x, y: n.add_elementwise(x, y, getattr(trt.ElementWiseOperation, op))


POSITIVE = torch.rand(2, 3, generator=torch.Generator().manual_seed(1)) + 0.5
INTS = torch.tensor([[-7, -6, 7, 8], [5, -5, 0, 3]], dtype=torch.int32)
BY = torch.tensor([[2, -4, -2, 3], [2, 2, 5, -3]], dtype=torch.int32)
FLAGS = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
ELEMENTWISE = (
    [
        Row(f"elementwise {op}", [(2, 1, 3), (1, 4, 3)], _ew(op), truth, dynamic=op == "SUM")
        for op, truth in [
            ("SUM", torch.add),
            ("PROD", torch.mul),
            ("MAX", torch.maximum),
            ("MIN", torch.minimum),
            ("SUB", torch.sub),
            ("DIV", torch.div),
            ("FLOOR_DIV", lambda x, y: torch.floor(x / y)),
            ("GREATER", torch.gt),
            ("LESS", torch.lt),
        ]
    ]
    + [
        Row("elementwise POW", [POSITIVE, (2, 3)], _ew("POW"), torch.pow),
        Row("elementwise EQUAL", [INTS, INTS.clamp(max=5)], _ew("EQUAL"), torch.eq),
        Row(
            "int DIV cuts",
            [INTS, BY],
            _ew("DIV"),
            lambda x, y: torch.from_numpy(np.trunc(x.numpy() / y.numpy()).astype(np.int32)),
        ),
        Row(
            "int FLOOR_DIV",
            [INTS, BY],
            _ew("FLOOR_DIV"),
            lambda x, y: torch.from_numpy(x.numpy() // y.numpy()),
        ),
    ]
    + [
        Row(f"elementwise {op}", list(FLAGS), _ew(op), truth)
        for op, truth in [
            ("AND", lambda x, y: x & y),
            ("OR", lambda x, y: x | y),
            ("XOR", lambda x, y: x ^ y),
        ]
    ]
)


def _un(op):
    return lambda n, x: n.add_unary(x, getattr(trt.UnaryOperation, op))


INSIDE = torch.linspace(-0.95, 0.95, 24).reshape(4, 6)
ODD = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.0, torch.inf, -torch.inf, torch.nan, 3.2])
UNARY = [
    Row(f"unary {op}", [given], _un(op), getattr(torch, name or op.lower()))
    for op, given, name in [
        ("EXP", WIDE, ""),
        ("LOG", POSITIVE, ""),
        ("SQRT", POSITIVE, ""),
        ("RECIP", POSITIVE, "reciprocal"),
        ("ABS", WIDE, ""),
        ("NEG", WIDE, ""),
        ("SIN", WIDE, ""),
        ("COS", WIDE, ""),
        ("TAN", INSIDE, ""),
        ("SINH", WIDE, ""),
        ("COSH", WIDE, ""),
        ("ASIN", INSIDE, ""),
        ("ACOS", INSIDE, ""),
        ("ATAN", WIDE, ""),
        ("ASINH", WIDE, ""),
        ("ACOSH", POSITIVE + 1, ""),
        ("ATANH", INSIDE, ""),
        ("CEIL", ODD, ""),
        ("FLOOR", ODD, ""),
        ("ERF", WIDE, ""),
        ("SIGN", WIDE, ""),
        ("ROUND", ODD, ""),
        ("ISINF", ODD, ""),
        ("ISNAN", ODD, ""),
        ("NOT", FLAGS[0], "logical_not"),
    ]
] + [
    Row("unary int", [INTS], _un("NEG"), torch.neg),
    Row(
        "unary bfloat16",
        [POSITIVE.bfloat16()],
        _un("LOG"),
        lambda x: x.float().log().bfloat16(),
    ),
]


def _cast(name):
    return lambda n, x: n.add_cast(x, getattr(trt.DataType, name))


HUGE = torch.tensor([3e9, -3e9, 1.9, -1.9, 0.0, 200.0])
OTHERS = [
    Row("cast to half", [WIDE], _cast("HALF"), lambda x: x.half()),
    Row("cast to bool", [ODD[:6]], _cast("BOOL"), lambda x: x != 0),
    Row("cast half to int", [WIDE.half()], _cast("INT32"), lambda x: x.float().trunc().int()),
    Row(
        "cast saturates",
        [HUGE],
        _cast("INT32"),
        lambda x: torch.tensor([2**31 - 1, -(2**31), 1, -1, 0, 200], dtype=torch.int32),
    ),
    Row(
        "identity",
        [X],
        lambda n, x: n.add_identity(x),
        lambda x: x,
        dynamic=True,
    ),
    Row(
        "select",
        [FLAGS[0].reshape(1, 4), (3, 4), (3, 1)],
        lambda n, c, x, y: n.add_select(c, x, y),
        torch.where,
    ),
]

POINTWISE_ROWS = [*ACTIVATIONS, *ELEMENTWISE, *UNARY, *OTHERS]
