"""Inputs on which users saw converters fail, as specifications: each gives what PyTorch gives.

The numbers are those of the reports. A constant output passes one input, so there are two.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import t2t
from t2t.errors import GuardError, ShapeError, UnsupportedOperatorError
from t2t.lowering import to_network
from t2t.precision import Policy
from t2t.reference import capture
from tests.cases import OpCase, ids, integers, run_case, uniform

GENERATOR = torch.Generator().manual_seed(0)


def twice_sigmoid(x: torch.Tensor) -> torch.Tensor:
    y = torch.sigmoid(x)
    y[:, 0:2] = torch.sigmoid(y[:, 0:2])
    return y


class Keep(nn.Module):
    """Channel pruning: a stored index keeps 100 of 256 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 256, 3, padding=1)
        self.register_buffer("index", torch.randperm(256, generator=GENERATOR)[:100])

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.conv(x)[:, self.index] - other


def masked(z: torch.Tensor) -> torch.Tensor:
    z[z > 0] = 0
    return z


def halves(x: torch.Tensor) -> torch.Tensor:
    a, b = torch.split(x, 3, dim=1)
    return torch.max(a, b)


def pieces(x: torch.Tensor) -> torch.Tensor:
    a, b, c = x.split(2, dim=1)
    return a + b + c


def anchors(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.meshgrid(
        torch.arange(x.shape[-2]), torch.arange(x.shape[-1]), indexing="ij"
    )
    return torch.stack([rows, columns, rows + 4, columns + 4], -1).reshape(-1, 4).float()


def sized(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape[-2:]
    x = F.interpolate(x, size=(2 * h, 2 * w), mode="nearest")
    x = x.flatten(2).unsqueeze(0).squeeze(0)
    return x.view(x.size(0), -1).reshape(x.size(0), 3, -1)


PAIR = [{0: ("n", 1, 4)}]
CASES = [
    OpCase("1-slice-set", twice_sigmoid, [(2, 4, 5)]),
    OpCase("3-elu", nn.ELU(inplace=True), [(1, 3, 10, 10)]),
    OpCase("3-leaky-relu", nn.LeakyReLU(inplace=True), [(3, 2, 5)]),
    OpCase("3-silu", lambda x: F.silu(x, inplace=True), [(6, 8)]),
    OpCase("3-selu", lambda x: F.selu(x, inplace=True), [(9, 2, 13)]),
    OpCase("5-index-2d", lambda x: x[..., 0], [(2, 3)]),
    OpCase("5-index-3d", lambda x: x[..., 0], [(1, 4, 5)]),
    OpCase("6-index-list", lambda x: x[[1, 1, 1, 1]], [(2, 3)]),
    OpCase("7-index-tensor", Keep(), [(1, 3, 56, 56), (1, 100, 56, 56)]),
    OpCase("8-mask-get", lambda v: v[v < 0.5], [(10,)], raises="depends on the data"),
    OpCase("8-mask-set", masked, [(2, 3, 4)]),
    OpCase(
        "11-sizes", sized, [(2, 3, 4, 5)], dynamic=[{0: (1, 4), 2: (2, 8), 3: (2, 8)}],
        shapes=[(3, 3, 6, 7)],
    ),
    OpCase("12-adaptive", nn.AdaptiveAvgPool2d(3), [(1, 3, 5, 6)]),
    OpCase("13-adaptive-max", lambda x: F.adaptive_max_pool2d(x, (6, 6)), [(1, 1, 10, 10)]),
    OpCase("13-adaptive-larger", nn.AdaptiveAvgPool2d((7, 7)), [(1, 512, 1, 1)]),
    OpCase("13-adaptive-none", nn.AdaptiveAvgPool2d((None, 4)), [(1, 2, 5, 8)]),
    OpCase(
        "16-circular", nn.Conv3d(2, 3, 3, stride=2, padding=(1, 2, 3), padding_mode="circular"),
        [(2, 2, 4, 4, 4)],
    ),
    OpCase("18-constant-pad", nn.ConstantPad2d((1, 2, 3, 4), 2.0), [(2, 3, 4, 4)]),
    OpCase("18-reflection-pad", nn.ReflectionPad2d((1, 2, 3, 4)), [(2, 3, 8, 8)]),
    OpCase("18-crop", nn.ConstantPad2d(-6, 0.0), [(1, 1, 20, 20)]),
    OpCase(
        "19-bicubic", lambda x: F.interpolate(x, (4, 6), mode="bicubic", align_corners=True),
        [(1, 2, 4, 4)],
    ),
    OpCase("20-bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), [(1, 4, 12, 12)]),
    OpCase(
        "20-bilinear-corners", nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        [(1, 4, 12, 12)], rtol=1e-4, atol=1e-5,
        reason="the executor and torch round the sampling positions differently",
    ),
    OpCase(
        "21-training-statistics",
        lambda x: F.batch_norm(
            x, torch.ones(3), torch.full((3,), 2.0), torch.tensor([1.0, 2.0, 3.0]), torch.ones(3),
            training=True, eps=1e-3,
        ),
        [(2, 3, 4, 4, 4)],
    ),
    OpCase("21-batch-norm-1d", nn.BatchNorm1d(5), [(1, 5)]),
    OpCase("23-softplus", nn.Softplus(beta=2, threshold=-100), [(10, 20)]),
    OpCase("23-log-softmax", nn.LogSoftmax(dim=1), [(10, 20)]),
    OpCase("25-halves", nn.Sequential(nn.Conv2d(3, 6, 1)), [(1, 3, 4, 4)]),
    OpCase("25-split-max", halves, [(1, 6, 4, 4)]),
    OpCase("25-uneven", lambda x: x.split(2, dim=1), [(1, 5, 4, 4)]),
    OpCase("25-add", pieces, [(1, 6, 4, 4)]),
    OpCase("26-dict", lambda x: {"b": x + 1, "a": x * 2}, [(2, 3)]),
    OpCase("26-nested", lambda x: [[x + 1, x * 2], [x - 1]], [(2, 3)]),
    OpCase("29-embedding", nn.Embedding(10, 5), [integers(2, 3)]),
    OpCase(
        "grid-sample",
        lambda x, g: F.grid_sample(
            x, g, mode="bilinear", padding_mode="border", align_corners=True
        ),
        [(1, 3, 32, 52), (1, 32, 52, 2)],
    ),
    OpCase("einsum-list", lambda a, b: torch.einsum("ij,jk->ik", [a, b]), [(2, 3), (3, 4)]),
    OpCase(
        "einsum-three", lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c),
        [(2, 3), (3, 4), (4, 5)],
    ),
    OpCase("normalize-p85", lambda x: F.normalize(x, p=85.0), [uniform(9, 2, low=0.1)]),
    OpCase("unbind", lambda x: torch.unbind(x, -1)[:3], [(3500, 5)]),
    OpCase("anchors", anchors, [(1, 3, 4, 6)]),
    OpCase("anchors-dynamic", anchors, [(1, 3, 4, 6)], dynamic=[{2: (2, 8), 3: (2, 8)}],
           shapes=[(1, 3, 5, 7)]),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_case(case: OpCase) -> None:
    run_case(case)


def run(module: t2t.TRTModule, *inputs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", t2t.ReferenceExecutionWarning)
        return module(*inputs)


def test_10_a_batch_within_its_range_and_one_outside() -> None:
    torch.manual_seed(0)
    model, x = torchvision.models.alexnet().eval(), torch.randn(1, 3, 224, 224)
    converted = t2t.convert(
        model, [x], min_shapes=[(1, 3, 224, 224)], max_shapes=[(4, 3, 224, 224)], progress=False
    )
    three = torch.randn(3, 3, 224, 224)
    torch.testing.assert_close(run(converted, three), model(three), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match=r"'x'.*5.*1\.\.4"):
        run(converted, torch.randn(5, 3, 224, 224))


def test_11_a_size_frozen_by_int_names_the_line() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        h, w = x.shape[-2:]
        return F.interpolate(x, size=(int(2 * h), int(2 * w)), mode="nearest")

    with pytest.raises(GuardError, match=r"test_user_cases\.py:\d+ in .*function"):
        to_network(function, [torch.randn(1, 2, 4, 4)], dynamic_shapes=[{2: (2, 8), 3: (2, 8)}])


def test_26_structures_keep_their_order_and_kind() -> None:
    x = torch.randn(2, 3)
    heads = t2t.convert(lambda x: {"b": x + 1, "a": [x * 2, (x,)]}, [x], progress=False)
    answer = run(heads, x)
    assert list(answer) == ["b", "a"]
    assert type(answer["a"]) is list
    assert type(answer["a"][1]) is tuple
    assert torch.equal(answer["a"][1][0], x)


def test_28_inputs_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    image = torch.randn(1, 8, 8, 3).permute(0, 3, 1, 2)
    converted = t2t.convert(model, [image], progress=False)
    for x in (image, torch.randn(1, 8, 8, 3).permute(0, 3, 1, 2)):
        torch.testing.assert_close(run(converted, x), model(x), rtol=1e-5, atol=1e-6)


def test_after_a_conversion_that_raised_masks_work_as_before() -> None:
    with pytest.raises(UnsupportedOperatorError):
        to_network(lambda v: v[v < 0.5], [torch.randn(10)])
    assert torch.ones(1, 3)[torch.tensor([True])].shape == (1, 3)


def test_ten_threads_each_get_their_own_answer() -> None:
    converted = t2t.convert(lambda x: torch.relu(x) * 2, [torch.randn(4, 5)], progress=False)
    run(converted, torch.randn(4, 5))
    inputs = [torch.full((4, 5), float(n)) for n in range(10)]
    answers: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        answers[n] = converted(inputs[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(answers[n], inputs[n] * 2) for n in range(10))


def test_fp16_gives_half_layers() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    conversion = to_network(model, [x], policy=Policy(torch.float16))
    program = capture(conversion.network.raw, conversion.network.weights)
    kinds = {layer.kind: layer for layer in program.layers}
    assert kinds["CONVOLUTION"].weights["kernel"].dtype == torch.float16
    assert program.outputs[0].dtype == torch.float32


def test_converting_a_hundred_times_keeps_memory_flat() -> None:
    import resource

    model, x = torchvision.models.resnet18().eval(), torch.randn(1, 3, 64, 64)
    for _ in range(20):
        to_network(model, [x])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(80):
        to_network(model, [x])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # A leak of the weights would be 45 MB each time; ru_maxrss is in KiB.
    assert grown < 100 * 1024, f"80 conversions took {grown // 1024} MiB more"
