"""Rows of layers that move data: shuffle, slice, gather, scatter, resize, fill and so on."""

import numpy as np
import torch
import torch.nn.functional as F

from t2t.backend import trt
from tests.reference.rows import Row, const, setting, wired

X = (2, 3, 4, 5)


def _shuffle(**attributes):
    def build(n, x):
        layer = n.add_shuffle(x)
        for name, value in attributes.items():
            setattr(layer, name, value)
        return layer

    return build


def _axes(values):
    return np.array(values, np.int64)


SHUFFLES = [
    Row(
        "shuffle",
        [X],
        _shuffle(first_transpose=(1, 0, 3, 2), reshape_dims=(0, -1), second_transpose=(1, 0)),
        lambda x: x.permute(1, 0, 3, 2).reshape(3, -1).T,
    ),
    Row(
        "shuffle to no elements",
        [torch.zeros(0, 3)],
        _shuffle(reshape_dims=(3, 0), zero_is_placeholder=False),
        lambda x: x.reshape(3, 0),
    ),
    Row(
        "shuffle dynamic",
        [(4, 6)],
        lambda n, x: wired(n.add_shuffle(x), i1=const(n, [3, 8], np.int64)),
        lambda x: x.reshape(3, 8),
    ),
    Row(
        "reshape by shape",
        [X, (6, 20)],
        lambda n, x, y: wired(n.add_shuffle(x), i1=n.add_shape(y).get_output(0)),
        lambda x, y: x.reshape(6, 20),
        dynamic=True,
    ),
    Row(
        "concatenation",
        [(2, 3), (2, 5)],
        lambda n, x, y: setting(n.add_concatenation([x, y]), axis=1),
        lambda x, y: torch.cat([x, y], 1),
    ),
    Row(
        "concatenation of rows",
        [(2, 3), (1, 3)],
        lambda n, x, y: setting(n.add_concatenation([x, y]), axis=0),
        lambda x, y: torch.cat([x, y], 0),
    ),
    Row("shape", [X], lambda n, x: n.add_shape(x), lambda x: torch.tensor(x.shape), dynamic=True),
    Row(
        "squeeze",
        [(1, 3, 1, 2)],
        lambda n, x: n.add_squeeze(x, const(n, _axes([2]))),
        lambda x: x.squeeze(2),
    ),
    Row(
        "unsqueeze",
        [(3, 2)],
        lambda n, x: n.add_unsqueeze(x, const(n, _axes([0, -1]))),
        lambda x: x[None, :, :, None],
    ),
    Row(
        "padding",
        [X],
        lambda n, x: n.add_padding_nd(x, (1, -1), (2, 3)),
        lambda x: F.pad(x, (-1, 3, 1, 2)),
    ),
    Row(
        "padding of columns",
        [X],
        lambda n, x: n.add_padding_nd(x, (0, 2), (0, 1)),
        lambda x: F.pad(x, (2, 1)),
    ),
]


def _slice(start, shape, stride, mode="STRICT_BOUNDS", **given):
    def build(n, x):
        layer = setting(n.add_slice(x, start, shape, stride), mode=getattr(trt.SampleMode, mode))
        inputs = {f"i{k[1:]}": const(n, v) for k, v in given.items()}
        return wired(layer, **inputs)

    return build


def _out_of_bounds(numpy_mode):
    def truth(x):
        padded = np.pad(x.numpy(), ((3, 3), (6, 6)), mode=numpy_mode)
        return torch.from_numpy(padded[1:8:1, 1:15:2].copy())

    return truth


SLICES = [
    Row(
        "slice",
        [X],
        _slice((0, 1, 0, 1), (2, 2, 2, 2), (1, 1, 2, 3)),
        lambda x: x[:, 1:, ::2, 1::3],
    ),
    Row("slice back", [(4, 6)], _slice((3, 5), (4, 3), (-1, -2)), lambda x: x.flip(0, 1)[:, ::2]),
    Row("slice stride 0", [(1, 3)], _slice((0, 0), (4, 3), (0, 1)), lambda x: x.expand(4, 3)),
    Row(
        "slice axes",
        [X],
        lambda n, x: setting(n.add_slice(x, (1,), (2,), (1,)), axes=(2,)),
        lambda x: x[:, :, 1:3],
    ),
    Row(
        "slice by tensors",
        [(5, 6)],
        _slice((0, 0), (1, 1), (1, 1), i1=_axes([1, 0]), i2=_axes([2, 3]), i3=_axes([2, 2])),
        lambda x: x[1:5:2, 0:6:2],
    ),
    *[
        Row(f"slice {mode}", [(4, 7)], _slice((-2, -5), (7, 7), (1, 2), mode), _out_of_bounds(name))
        for mode, name in (("WRAP", "wrap"), ("CLAMP", "edge"), ("REFLECT", "reflect"))
    ],
    Row(
        "slice FILL",
        [(4, 7)],
        _slice((-2, -5), (7, 7), (1, 2), "FILL", i4=np.float32(2.5)),
        lambda x: F.pad(x, (6, 6, 3, 3), value=2.5)[1:8, 1:15:2],
    ),
    Row(
        "slice FILL zero",
        [(4, 7)],
        _slice((1, 2), (5, 4), (1, 1), "FILL"),
        lambda x: F.pad(x, (0, 0, 0, 2))[1:6, 2:6],
    ),
]

INDEX = torch.tensor([[0, 2, 1], [2, -1, 0]], dtype=torch.int32)


def _gather(mode, axis=0, **attributes):
    def build(n, x, i):
        layer = n.add_gather_v2(x, i, getattr(trt.GatherMode, mode))
        return setting(layer, axis=axis, **attributes)

    return build


def _scatter(mode, axis=0):
    def build(n, data, index, updates):
        layer = n.add_scatter(data, index, updates, getattr(trt.ScatterMode, mode))
        return setting(layer, axis=axis)

    return build


ND = torch.tensor([[1, 0], [0, 2]], dtype=torch.int64)
POSITIVE = INDEX.remainder(3)
GATHERS = [
    Row("gather", [(4, 3, 5), INDEX], _gather("DEFAULT", 1), lambda x, i: x[:, i.long()]),
    Row(
        "gather a batch",
        [(2, 4, 3), POSITIVE],
        _gather("DEFAULT", 1, num_elementwise_dims=1),
        lambda x, i: torch.stack([x[b][i[b].long()] for b in range(2)]),
    ),
    Row(
        "gather element",
        [(2, 3), POSITIVE],
        _gather("ELEMENT", 1),
        lambda x, i: x.gather(1, i.long()),
    ),
    Row("gather nd", [(2, 3, 4), ND], _gather("ND"), lambda x, i: x[i[:, 0], i[:, 1]]),
    Row(
        "gather nd of a batch",
        [(2, 3, 4), ND],
        _gather("ND", num_elementwise_dims=1),
        lambda x, i: torch.stack([x[b, i[b, 0], i[b, 1]] for b in range(2)]),
    ),
    Row(
        "scatter element",
        [(2, 3), POSITIVE, (2, 3)],
        _scatter("ELEMENT", 1),
        lambda x, i, u: x.scatter(1, i.long(), u),
    ),
    Row(
        "scatter nd",
        [(2, 3, 4), ND, (2, 4)],
        _scatter("ND"),
        lambda x, i, u: x.index_put((i[:, 0], i[:, 1]), u),
    ),
    Row(
        "one hot",
        [torch.tensor([[0, 2], [1, 0]], dtype=torch.int32), (2,)],
        lambda n, i, v: n.add_one_hot(i, v, const(n, 3, np.int32), 1),
        lambda i, v: torch.where(F.one_hot(i.long(), 3).bool(), v[1], v[0]).movedim(-1, 1),
    ),
    Row(
        "one hot in front",
        [torch.tensor([0, 2, 1], dtype=torch.int32), (2,)],
        lambda n, i, v: n.add_one_hot(i, v, const(n, 3, np.int32), 0),
        lambda i, v: torch.where(F.one_hot(i.long(), 3).bool(), v[1], v[0]).T,
    ),
    Row(
        "reverse sequence",
        [(4, 3, 2), torch.tensor([1, 4, 2], dtype=torch.int32)],
        lambda n, x, k: n.add_reverse_sequence(x, k),
        lambda x, k: torch.stack(
            [torch.cat([x[:c, b].flip(0), x[c:, b]]) for b, c in enumerate(k.tolist())], 1
        ),
    ),
    Row(
        "reverse sequence of rows",
        [(3, 4, 2), torch.tensor([1, 4, 2], dtype=torch.int32)],
        lambda n, x, k: setting(n.add_reverse_sequence(x, k), batch_axis=0, sequence_axis=1),
        lambda x, k: torch.stack(
            [torch.cat([x[b, :c].flip(0), x[b, c:]]) for b, c in enumerate(k.tolist())]
        ),
    ),
    Row(
        "non zero",
        [torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])],
        lambda n, x: n.add_non_zero(x),
        lambda x: x.nonzero().T.int(),
    ),
]


def _fill(shape, op="LINSPACE", dtype="FLOAT", **given):
    def build(n):
        layer = n.add_fill(shape, getattr(trt.FillOperation, op), getattr(trt.DataType, dtype))
        for name in ("alpha", "beta"):
            if name in given:
                setattr(layer, name, given.pop(name))
        return wired(layer, **{k: const(n, v) for k, v in given.items()})

    return build


FILLS = [
    Row(
        "fill",
        [],
        _fill((6,), alpha=1.5, beta=0.25),
        lambda: torch.arange(6) * 0.25 + 1.5,
    ),
    Row(
        "fill int",
        [],
        _fill((4,), dtype="INT32", alpha=5, beta=-2),
        lambda: torch.tensor([5, 3, 1, -1], dtype=torch.int32),
    ),
    Row(
        "fill by tensors",
        [],
        _fill((1,), dtype="INT64", i0=_axes([2, 3]), i1=np.int64(7), i2=_axes([10, 1])),
        lambda: torch.tensor([[7, 8, 9], [17, 18, 19]]),
    ),
    Row(
        "fill uniform of no width",
        [],
        _fill((5,), "RANDOM_UNIFORM", alpha=2.0, beta=2.0),
        lambda: torch.full((5,), 2.0),
    ),
    Row(
        "fill normal of no width",
        [],
        _fill((5,), "RANDOM_NORMAL", alpha=2.0, beta=0.0),
        lambda: torch.full((5,), 2.0),
    ),
]

MOVING_ROWS = [*SHUFFLES, *SLICES, *GATHERS, *FILLS]
