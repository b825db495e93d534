"""A model's own mistake is told in PyTorch's words, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.errors import ConversionError, GuardError
from t2t.lowering import to_network
from tests.cases import TORCH

pytestmark = pytest.mark.filterwarnings("ignore")

CONV, DECONV, LINEAR = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 4, 3), nn.Linear(3, 4)
W6, W7 = torch.ones(4, 2, 3, 3), torch.ones(7)
LONG = torch.int64


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


MISTAKES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "conv-channels": (lambda x: CONV(x), [r(1, 5, 8, 8)]),
    "conv-small": (lambda x: CONV(x), [r(1, 3, 2, 2)]),
    "conv-rank": (lambda x: CONV(x), [r(3, 8)]),
    "conv-rank-5": (lambda x: CONV(x), [r(1, 1, 3, 8, 8)]),
    "conv-int": (lambda x: CONV(x), [r(1, 3, 8, 8, dtype=LONG)]),
    "conv-half": (lambda x: CONV(x), [r(1, 3, 8, 8, dtype=torch.half)]),
    "conv-groups": (lambda x: F.conv2d(x, W6, groups=3), [r(1, 6, 8, 8)]),
    "conv-bias": (lambda x: F.conv2d(x, CONV.weight, W7), [r(1, 3, 8, 8)]),
    "conv-stride": (lambda x: F.conv2d(x, CONV.weight, stride=0), [r(1, 3, 8, 8)]),
    "conv-padding": (lambda x: F.conv2d(x, CONV.weight, padding=-1), [r(1, 3, 8, 8)]),
    "deconv-channels": (lambda x: DECONV(x), [r(1, 5, 8, 8)]),
    "deconv-output-padding": (
        lambda x: F.conv_transpose2d(x, DECONV.weight, output_padding=2, stride=2),
        [r(1, 3, 8, 8)],
    ),
    "linear": (lambda x: LINEAR(x), [r(2, 5)]),
    "linear-scalar": (lambda x: LINEAR(x), [r()]),
    "linear-int": (lambda x: LINEAR(x), [r(2, 3, dtype=LONG)]),
    "linear-half": (lambda x: LINEAR(x), [r(2, 3, dtype=torch.half)]),
    "matmul": (lambda x, y: x @ y, [r(2, 3), r(4, 5)]),
    "matmul-batch": (lambda x, y: x @ y, [r(2, 2, 3), r(3, 3, 5)]),
    "matmul-int": (lambda x, y: x @ y, [r(2, 3), r(3, 5, dtype=LONG)]),
    "mm": (lambda x, y: torch.mm(x, y), [r(2, 3), r(4, 5)]),
    "bmm": (lambda x, y: torch.bmm(x, y), [r(2, 2, 3), r(2, 4, 5)]),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), [r(2, 3), r(4, 5)]),
    "add": (lambda x, y: x + y, [r(2, 3), r(4, 5)]),
    "where": (lambda x: torch.where(x > 0, x, W7), [r(2, 3)]),
    "index": (lambda x: x[5], [r(2, 3)]),
    "index-list": (lambda x: x[[5]], [r(2, 3)]),
    "index-too-many": (lambda x: x[:, 0, 0], [r(2, 3)]),
    "index-select": (lambda x: x.index_select(1, torch.tensor([7])), [r(2, 3)]),
    "index-select-negative": (lambda x: x.index_select(1, torch.tensor([-1])), [r(2, 3)]),
    "gather": (lambda x: x.gather(1, torch.tensor([[7]])), [r(2, 3)]),
    "gather-rank": (lambda x: x.gather(1, torch.tensor([1])), [r(2, 3)]),
    "gather-float": (lambda x: x.gather(1, torch.ones(2, 3)), [r(2, 3)]),
    "scatter": (lambda x: x.scatter(1, torch.tensor([[7]]), 2.0), [r(2, 3)]),
    "take": (lambda x: x.take(torch.tensor([17])), [r(2, 3)]),
    "embedding-float": (lambda x: F.embedding(x, LINEAR.weight), [r(2)]),
    "view": (lambda x: x.view(4, 4), [r(2, 3)]),
    "view-strided": (lambda x: x.t().view(6), [r(2, 3)]),
    "reshape": (lambda x: x.reshape(4, -1), [r(2, 3)]),
    "permute": (lambda x: x.permute(0, 0), [r(2, 3)]),
    "squeeze": (lambda x: x.squeeze(4), [r(2, 3)]),
    "unbind": (lambda x: x.unbind(7), [r(2, 3)]),
    "split": (lambda x: x.split([1, 1], 1), [r(2, 3)]),
    "cat": (lambda x, y: torch.cat([x, y]), [r(2, 3), r(2, 4)]),
    "cat-rank": (lambda x, y: torch.cat([x, y]), [r(2, 3), r(2, 3, 1)]),
    "stack": (lambda x, y: torch.stack([x, y]), [r(2, 3), r(2, 4)]),
    "layer-norm": (lambda x: F.layer_norm(x, (5,)), [r(2, 3)]),
    "layer-norm-one": (lambda x: F.layer_norm(x, (1,)), [r(2, 3)]),
    "layer-norm-weight": (lambda x: F.layer_norm(x, (3,), torch.ones(1)), [r(2, 3)]),
    "rms-norm": (lambda x: F.rms_norm(x, (5,)), [r(2, 3)]),
    "group-norm": (lambda x: F.group_norm(x, 2), [r(2, 3, 4, 4)]),
    "group-norm-weight": (lambda x: F.group_norm(x, 3, W7), [r(2, 3, 4, 4)]),
    "batch-norm": (lambda x: F.batch_norm(x, W7, W7), [r(2, 3, 4, 4)]),
    "instance-norm": (lambda x: F.instance_norm(x, weight=W7), [r(2, 3, 4, 4)]),
    "instance-norm-point": (lambda x: F.instance_norm(x), [r(2, 3, 1, 1)]),
    "attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k), [r(1, 2, 4, 8), r(1, 2, 4, 6)],
    ),
    "attention-mask": (
        lambda q: F.scaled_dot_product_attention(q, q, q, torch.zeros(3, 3)), [r(1, 2, 4, 8)],
    ),
    "attention-both": (
        lambda q: F.scaled_dot_product_attention(q, q, q, torch.zeros(4, 4), is_causal=True),
        [r(1, 2, 4, 8)],
    ),
    "pool-small": (lambda x: F.max_pool2d(x, 5), [r(1, 1, 3, 3)]),
    "pool-padding": (lambda x: F.max_pool2d(x, 2, padding=2), [r(1, 1, 3, 3)]),
    "pool-rank": (lambda x: F.max_pool2d(x, 2), [r(3, 3)]),
    "average-padding": (lambda x: F.avg_pool2d(x, 2, padding=2), [r(1, 1, 3, 3)]),
    "adaptive-rank": (lambda x: F.adaptive_avg_pool2d(x, (2, 2)), [r(4, 4)]),
    "reflect": (lambda x: F.pad(x, (4, 4), mode="reflect"), [r(1, 1, 4)]),
    "pixel-shuffle": (lambda x: F.pixel_shuffle(x, 2), [r(1, 6, 4, 4)]),
    "softmax-dim": (lambda x: x.softmax(5), [r(2, 3)]),
    "softmax-int": (lambda x: x.softmax(0), [r(3, dtype=LONG)]),
    "sum-dim": (lambda x: x.sum(5), [r(2, 3)]),
    "mean-int": (lambda x: x.mean(), [r(3, dtype=LONG)]),
    "topk": (lambda x: x.topk(7), [r(2, 3)]),
    "power": (lambda x: x**-1, [r(2, dtype=LONG)]),
    "and-float": (lambda x: x & 1, [r(2, 3)]),
    "grid": (lambda x: F.grid_sample(x, torch.ones(1, 2, 2, 3)), [r(1, 1, 4, 4)]),
    "in-place-type": (lambda x: x.add_(1.5), [r(2, dtype=LONG)]),
    "in-place-shape": (lambda x: x.add_(torch.ones(2, 3)), [r(3)]),
    "write-shape": (lambda x: x.__setitem__(0, W7), [r(2, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_words_are_pytorchs(name: str) -> None:
    function, inputs = MISTAKES[name]
    if name == "attention-both" and TORCH < (2, 12):
        pytest.skip("an older PyTorch takes both")
    with pytest.raises(Exception) as expected:  # noqa: PT011  whatever PyTorch raises
        function(*[x.clone() for x in inputs])
    with pytest.raises(Exception) as caught:  # noqa: PT011  the same
        to_network(function, [x.clone() for x in inputs])
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert str(expected.value) in text
    assert "test_mistakes.py:" in text
    assert isinstance(caught.value, (type(expected.value), ConversionError))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.blocks(x)


def test_module_is_named() -> None:
    with pytest.raises(RuntimeError, match="2x4 and 5x2") as caught:
        to_network(Deep(), [r(2, 4)])
    assert "Deep.forward" in caught.value.__notes__[0]
    assert "blocks.1" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "module",
    [CONV, DECONV, LINEAR, nn.LayerNorm(3), nn.RMSNorm(3), nn.BatchNorm2d(3).eval()],
    ids=lambda m: type(m).__name__,
)
def test_fixed_dimension_declared_dynamic(module: nn.Module) -> None:
    rank = 4 if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)) else 2
    x = torch.randn((2, 3, 5, 5)[:rank])
    with pytest.raises(GuardError, match=r"torch/nn/modules/.* needs `\w+\.shape\[1\] == 3`"):
        to_network(module, [x], dynamic_shapes=[{1: (1, 4)}])


def test_values_of_zeros_are_not_blamed() -> None:
    """What PyTorch says of zeros says nothing of the model: a mask of zeros selects nothing."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[x > 0] = y
        return x

    with pytest.raises(ConversionError, match="depends on the data"):
        to_network(function, [torch.ones(4), torch.ones(4)])
