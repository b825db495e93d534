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

RNG = np.random.default_rng(3)
C3, C3B = (RNG.random(3).astype(np.float32) + 0.5 for _ in range(2))
E3 = RNG.random((3, 4, 5)).astype(np.float32) + 0.5
P3 = np.array([1.0, 2.0, 3.0], np.float32)


def _scale(mode, shift=None, scale=None, power=None, axis=1):
    def build(n, x):
        given = {"shift": shift, "scale": scale, "power": power}
        given = {k: trt.Weights(v) for k, v in given.items() if v is not None}
        return n.add_scale_nd(x, getattr(trt.ScaleMode, mode), **given, channel_axis=axis)

    return build


def _ch(w, axis=1, rank=4):
    return torch.from_numpy(w).reshape([-1 if d == axis else 1 for d in range(rank)])


SCALES = [
    Row(
        "scale channel",
        [X],
        _scale("CHANNEL", C3, C3B),
        lambda x: x * _ch(C3B) + _ch(C3),
    ),
    Row(
        "scale power",
        [torch.rand(X, generator=torch.Generator().manual_seed(2))],
        _scale("CHANNEL", C3, C3B, P3),
        lambda x: (x * _ch(C3B) + _ch(C3)) ** _ch(P3),
    ),
    Row(
        "scale axis 0",
        [(3, 2, 4, 5)],
        _scale("CHANNEL", None, C3, axis=0),
        lambda x: x * _ch(C3, axis=0),
    ),
    Row(
        "scale uniform",
        [X],
        _scale("UNIFORM", C3[:1], C3B[:1]),
        lambda x: x * float(C3B[0]) + float(C3[0]),
    ),
    Row(
        "scale elementwise",
        [X],
        _scale("ELEMENTWISE", E3, E3),
        lambda x: x * torch.from_numpy(E3) + torch.from_numpy(E3),
    ),
    Row(
        "lrn",
        [(2, 7, 3, 3)],
        lambda n, x: n.add_lrn(x, 3, 0.9, 0.6, 1.3),
        lambda x: F.local_response_norm(x, 3, 0.9, 0.6, 1.3),
    ),
]


def _norm(axes, version=2, **attributes):
    def build(n, x, scale, bias):
        add = n.add_normalization_v2 if version == 2 else n.add_normalization
        return setting(add(x, scale, bias, sum(1 << a for a in axes)), **attributes)

    return build


def _group(x, scale, bias, groups=2):
    normal = F.group_norm(x, groups, eps=0.1)
    repeats = x.shape[1] // scale.shape[1]
    return normal * scale.repeat_interleave(repeats, 1) + bias.repeat_interleave(repeats, 1)


NORMS = [
    Row(
        "layer norm",
        [(2, 3, 8), (1, 1, 8), (1, 1, 8)],
        _norm((2,), epsilon=0.05),
        lambda x, s, b: F.layer_norm(x, (8,), s.reshape(-1), b.reshape(-1), 0.05),
    ),
    Row(
        "instance norm",
        [X, (1, 3, 1, 1), (1, 3, 1, 1)],
        _norm((2, 3), version=1, epsilon=0.05),
        lambda x, s, b: F.instance_norm(x, weight=s.reshape(-1), bias=b.reshape(-1), eps=0.05),
    ),
    Row(
        "group norm 1",
        [(2, 4, 3, 3), (1, 2, 1, 1), (1, 2, 1, 1)],
        _norm((2, 3), version=1, num_groups=2, epsilon=0.1),
        _group,
    ),
    Row(
        "group norm 2",
        [(2, 4, 3, 3), (1, 4, 1, 1), (1, 4, 1, 1)],
        _norm((2, 3), num_groups=2, epsilon=0.1),
        _group,
    ),
    Row(
        "norm of axis 1",
        [X, (1, 3, 1, 1), (1, 3, 1, 1)],
        _norm((1,)),
        lambda x, s, b: F.layer_norm(x.movedim(1, -1), (3,)).movedim(-1, 1) * s + b,
    ),
    Row(
        "softmax",
        [X],
        lambda n, x: setting(n.add_softmax(x), axes=2),
        lambda x: x.softmax(1),
    ),
    Row(
        "softmax half",
        [WIDE.half()],
        lambda n, x: setting(n.add_softmax(x), axes=2),
        lambda x: x.float().softmax(1).half(),
    ),
    Row(
        "ragged softmax",
        [(1, 3, 5), torch.tensor([[[2], [5], [1]]], dtype=torch.int32)],
        lambda n, x, b: n.add_ragged_softmax(x, b),
        lambda x, b: torch.stack(
            [torch.cat([r[:k].softmax(0), torch.zeros(5 - k)]) for r, k in zip(x[0], b[0])]
        ).unsqueeze(0),
    ),
]

POINTWISE_ROWS = [*ACTIVATIONS, *ELEMENTWISE, *UNARY, *OTHERS, *SCALES, *NORMS]
