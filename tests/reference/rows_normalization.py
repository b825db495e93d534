"""Rows of scale, LRN, normalization, softmax."""

import numpy as np
import torch
import torch.nn.functional as F

from t2t.backend import trt
from tests.reference.rows import Row, setting

X = (2, 3, 4, 5)
WIDE = torch.linspace(-6, 6, 60).reshape(3, 20)
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
    Row(
        "lrn wide",
        [(2, 7, 3, 3)],
        lambda n, x: n.add_lrn(x, 5, 0.5, 0.8, 1.1),
        lambda x: F.local_response_norm(x, 5, 0.5, 0.8, 1.1),
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
        "instance norm, as many elements as channels",
        [(2, 4, 2, 2), (1, 4, 1, 1), (1, 4, 1, 1)],
        _norm((2, 3), version=1, epsilon=0.05),
        lambda x, s, b: F.instance_norm(x, weight=s.reshape(-1), bias=b.reshape(-1), eps=0.05),
    ),
    Row(
        "layer norm, as many elements as channels",
        [(2, 4, 2, 2), (1, 1, 2, 2), (1, 1, 2, 2)],
        _norm((2, 3), epsilon=0.05),
        lambda x, s, b: F.layer_norm(x, (2, 2), s.reshape(2, 2), b.reshape(2, 2), 0.05),
    ),
    Row(
        "norm of the last axis by another one's scale",
        [(2, 5, 5), (1, 5, 1), (1, 5, 1)],
        _norm((2,), version=1, epsilon=0.05),
        lambda x, s, b: F.layer_norm(x, (5,), eps=0.05) * s + b,
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
        [WIDE.half().reshape(3, 4, 5)],
        lambda n, x: setting(n.add_softmax(x), axes=4),
        lambda x: x.float().softmax(2).half(),
    ),
    Row(
        "ragged softmax",
        [(1, 3, 5), torch.tensor([[[2], [5], [1]]], dtype=torch.int32)],
        lambda n, x, b: n.add_ragged_softmax(x, b),
        lambda x, b: torch.stack(
            [
                torch.cat([r[:k].softmax(0), torch.zeros(5 - k)])
                for r, k in zip(x[0], b[0], strict=True)
            ]
        ).unsqueeze(0),
    ),
]

NORMALIZATION_ROWS = [*SCALES, *NORMS]
