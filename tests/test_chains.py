"""Chains of reshapes and permutations become as few shuffle layers as TensorRT allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from t2t.converters._chains import _layers
from t2t.errors import UnsupportedArgumentError
from t2t.lowering import to_network
from tests.cases import OpCase, ids, run_case


def heads(x: Any) -> Any:
    return x.view(x.shape[0], -1, 4, 2).transpose(1, 2)


def joined_heads(x: Any) -> Any:
    return x.transpose(1, 2).reshape(x.shape[0], -1, x.shape[1] * x.shape[3])


def windows(x: Any) -> Any:
    b, h, w, c = x.shape
    x = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).contiguous()
    return x.view(-1, 4, c)


def windows_in_time(x: Any) -> Any:
    b, t, d, h, w, c = x.shape
    x = x.view(b, t, d // 2, 2, h // 2, 2, w // 2, 2, c).permute(0, 1, 2, 4, 6, 3, 5, 7, 8)
    return x.reshape(-1, 8, c) * 2


def windows_back(x: Any) -> Any:
    parts = x.view(1, 2, 2, 2, 3, 2, 2, 2, 3)
    whole = parts.permute(0, 1, 2, 5, 3, 6, 4, 7, 8).reshape(1, 2, 4, 4, 6, 3)
    return whole, parts.transpose(1, 4).flatten()


def reversed_bits(x: Any) -> Any:
    return x.view([2] * 9).permute(*range(8, -1, -1)).reshape(-1)


NINE = (1, 1, 1, 1, 1, 1, 1, 2, 3)
TABLE = torch.randn(2, *NINE[1:])


def seen_twice(x: Any) -> Any:
    y = x.view(2, 3, 4)
    return y.transpose(1, 2), y.relu()


def returned_as_well(x: Any) -> Any:
    y = x.view(2, 3, 4)
    return y, y.transpose(1, 2)


def written_between(x: Any) -> Any:
    y = x.view(2, 3, 4)
    z = y.transpose(1, 2)
    y[:, 0] = 1.0
    return z.reshape(2, 12)


def back_and_forth(x: Any) -> Any:
    return x.transpose(0, 1).transpose(0, 1).view(6, 4).view(2, 12) * 2


MANY_DIMENSIONS = [
    OpCase("windows", windows_in_time, [(1, 2, 4, 4, 6, 3)]),
    OpCase("windows-dynamic", windows_in_time, [(1, 2, 4, 4, 6, 3)], dynamic=[{0: (1, 4)}],
           shapes=[(3, 2, 4, 4, 6, 3)]),
    OpCase("windows-back", windows_back, [(24, 8, 3)]),
    OpCase("there-and-back", lambda x: x.view(NINE).view(6) + 1, [(2, 3)]),
    OpCase("squeezed", lambda x: x[None].squeeze() + 1, [NINE[1:]]),
    OpCase("result", lambda x: x.view(NINE), [(2, 3)], raises="9 dimensions"),
    OpCase("computed", lambda x: (x.view(NINE) * 2).view(6), [(2, 3)], raises="9 dimensions"),
    OpCase("reduced", lambda x: x.view(NINE).sum(-1), [(2, 3)], raises="9 dimensions"),
    OpCase("repeated", lambda x: x.view(NINE).expand(*NINE[:-3], 4, 2, 3).reshape(4, 6), [(2, 3)],
           raises="9 dimensions"),
    OpCase("stacked", lambda x: torch.stack([x, x + 1]).flatten(), [NINE[1:]]),
    OpCase("stacked-computed", lambda x: (torch.stack([x, x]) * 2).flatten(), [NINE[1:]],
           raises="9 dimensions"),
    OpCase("constant", lambda i: TABLE[i], [torch.tensor(1)], raises="9 dimensions"),
    OpCase("cannot-be-joined", reversed_bits, [(512,)], raises="9 dimensions"),
]  # fmt: skip

CASES = [
    OpCase("heads", heads, [(2, 5, 8)], layers=1),
    OpCase("joined-heads", joined_heads, [(2, 4, 5, 2)], layers=1),
    OpCase("windows", windows, [(2, 4, 6, 3)], layers=2),
    OpCase("three-permutations", lambda x: x.permute(2, 0, 1).view(4, 6).t().view(3, 2, 4).mT,
           [(2, 3, 4)], layers=2),
    OpCase("twice", seen_twice, [(2, 12)], layers=3),
    OpCase("returned-as-well", returned_as_well, [(2, 12)], layers=2),
    OpCase("written-between", written_between, [(2, 12)]),
    OpCase("nothing-left", back_and_forth, [(2, 12)], layers=2),
    OpCase("unsqueezed", lambda x: x.unsqueeze(1).transpose(0, 2).squeeze(1), [(2, 3)], layers=2),
    OpCase("heads-dynamic", heads, [(2, 5, 8)], dynamic=[{0: (1, 4), 1: (2, 9)}],
           shapes=[(3, 7, 8)]),
    OpCase("joined-heads-dynamic", joined_heads, [(2, 4, 5, 2)], dynamic=[{0: (1, 4), 2: (2, 9)}],
           shapes=[(3, 4, 7, 2)]),
    OpCase("windows-dynamic", windows, [(2, 4, 6, 3)],
           dynamic=[{0: (1, 4)}], shapes=[(3, 4, 6, 3)]),
    OpCase("empty", lambda x: x[:, :0].transpose(0, 1).reshape(3, 0), [(3, 4)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_case(case: OpCase) -> None:
    run_case(case)


def test_random_chains() -> None:
    """Whatever the steps are, the layers do what the steps do."""
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    shapes = [
        (2, 3, 4),
        (24,),
        (6, 4),
        (4, 6),
        (2, 12),
        (1, 24, 1),
        (2, 2, 3, 2),
        (3, 8),
        (2, 3, 4),
        (1, 2, 2, 1, 3, 1, 1, 2, 1),
        (3, 1, 1, 2, 1, 1, 1, 4, 1, 1),
    ]
    for _ in range(400):
        x = expected = torch.arange(24).reshape(2, 3, 4)
        steps: list[Any] = []
        for _ in range(1 + draw(6)):
            if draw(2):
                order = torch.randperm(expected.dim(), generator=generator).tolist()
                expected = expected.permute(order)
                steps.append(("permute", tuple(order)))
            else:
                sizes = shapes[draw(len(shapes))]
                expected = expected.reshape(sizes)
                steps.append(("reshape", sizes))
        result = x
        layers = list(_layers(x.shape, steps))
        assert all(len(layer.now) <= 8 for layer in layers[:-1])
        for layer in layers:
            result = result.permute(layer.first or tuple(range(result.dim())))
            result = result if layer.sizes is None else result.reshape(layer.sizes)
            result = result.permute(layer.second or tuple(range(result.dim())))
        assert torch.equal(result, expected), steps


@pytest.mark.parametrize("case", ids(MANY_DIMENSIONS))
def test_more_dimensions_than_tensorrt_has(case: OpCase) -> None:
    run_case(case)


def test_input_of_nine_dimensions() -> None:
    with pytest.raises(UnsupportedArgumentError, match="is a tensor of 9 dimensions"):
        to_network(lambda x: x.sum(-1), [torch.ones(NINE)])
