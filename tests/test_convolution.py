"""Convolution and transposed convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from t2t.precision import Policy
from tests.cases import OpCase, ids, run_case, uniform

FP16 = Policy(torch.float16)
HALF = {"rtol": 2e-2, "atol": 2e-2, "reason": "computed in half precision, compared with float32"}


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) / 4


W1, W2, W3 = weight(6, 4, 3), weight(6, 4, 3, 2), weight(6, 2, 3, 2, 1)
BIAS, LONG_BIAS = weight(6), weight(12)
# Transposed kernels are (C, K / groups, *window).
T1, T2, T3 = weight(4, 6, 3), weight(4, 6, 3, 2), weight(2, 6, 3, 2, 2)


class Pruned(nn.Module):
    """Keeps some of a convolution's channels, by a stored index."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.register_buffer("kept", torch.arange(0, 30, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.conv(x)[:, self.kept] - y


def modulated(x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
    """Convolve each sample with kernels of its own, as StyleGAN does."""
    batch = x.shape[0]
    kernels = (W2 * style[:, None, :, None, None]).flatten(0, 1)
    y = F.conv2d(x.flatten(0, 1)[None], kernels, padding=(1, 0), stride=2, groups=batch)
    return y.view(batch, 6, *y.shape[2:])


def modulated_up(x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
    batch = x.shape[0]
    kernels = (T2 * style[:, :, None, None, None]).flatten(0, 1)
    y = F.conv_transpose2d(
        x.flatten(0, 1)[None], kernels, stride=2, padding=1, output_padding=(1, 0), groups=batch
    )
    return y.view(batch, 6, *y.shape[2:])


def correlated(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Correlate the channels of a search region with those of a template, as trackers do."""
    kernels = z.reshape(-1, 1, *z.shape[2:])
    y = F.conv2d(
        x.reshape(1, -1, *x.shape[2:]), kernels, kernels.sum((1, 2, 3)), groups=kernels.shape[0]
    )
    return y.view(*x.shape[:2], *y.shape[2:])


BATCH = {"dynamic": [{0: ("b", 1, 5)}] * 2}

# The number of groups or of kernels is dynamic, which TensorRT's layer cannot have.
MANY_KERNELS = [
    OpCase("modulated", modulated, [(2, 4, 5, 6), (2, 4)], **BATCH,
           shapes=[(3, 4, 5, 6), (3, 4)]),
    OpCase("modulated-half", modulated, [(2, 4, 5, 6), (2, 4)], **BATCH,
           shapes=[(5, 4, 5, 6), (5, 4)], policy=FP16, **HALF),
    OpCase("modulated-up", modulated_up, [(2, 4, 5, 6), (2, 4)], **BATCH,
           shapes=[(1, 4, 5, 6), (1, 4)]),
    OpCase("correlated", correlated, [(2, 4, 9, 8), (2, 4, 3, 2)],
           dynamic=[{0: ("b", 1, 5), 2: (4, 20), 3: (4, 20)}, {0: ("b", 1, 5)}],
           shapes=[(4, 4, 6, 13), (4, 4, 3, 2)]),
    OpCase("kernels", lambda x, z: F.conv2d(x, z, z.mean((1, 2, 3)), dilation=(2, 1)),
           [(2, 4, 9, 8), (5, 4, 3, 2)], dynamic=[{0: (1, 5)}, {0: (1, 9)}],
           shapes=[(3, 4, 9, 8), (2, 4, 3, 2)]),
    OpCase("kernels-1d", lambda x, z: F.conv1d(x, z, stride=2, padding=2),
           [(2, 4, 9), (5, 4, 3)], dynamic=[{}, {0: (1, 9)}], shapes=[(2, 4, 9), (2, 4, 3)]),
    OpCase("kernels-3d", F.conv3d, [(2, 4, 4, 5, 6), (6, 4, 3, 2, 1)], dynamic=[{}, {0: (2, 8)}],
           shapes=[(2, 4, 4, 5, 6), (3, 4, 3, 2, 1)]),
    OpCase("kernels-of-groups", lambda x, z: F.conv3d(x, z, groups=2),
           [(2, 4, 4, 5, 6), (6, 2, 3, 2, 1)], dynamic=[{}, {0: (2, 8)}], raises=r"% 2.* == 0"),
    OpCase("kernels-up-bf16", lambda x, z: F.conv_transpose1d(x, z, z[0, :, 0], stride=2),
           [uniform(2, 4, 5, dtype=torch.bfloat16), uniform(4, 3, 2, dtype=torch.bfloat16)],
           dynamic=[{}, {1: (1, 5)}],
           shapes=[(2, 4, 5), (4, 2, 2)], rtol=2e-2, atol=2e-2, reason="bf16 keeps 8 bits"),
]  # fmt: skip


class Maxout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.conv(x).split(3, dim=1)
        return torch.max(first, second)


def channels_last_in_memory(generator: torch.Generator) -> torch.Tensor:
    return torch.randn((1, 6, 7, 4), generator=generator).permute(0, 3, 1, 2)


KERNEL = torch.linspace(-1, 1, 4 * 3 * 3 * 3).reshape(4, 3, 3, 3)

CASES = [
    OpCase(
        "switches-of-cudnn",
        lambda x: torch._convolution(
            x, KERNEL, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True
        ),
        [(2, 3, 5, 6)],
    ),
    OpCase("pruned", Pruned(), [(1, 3, 8, 8), (1, 10, 8, 8)]),
    OpCase(
        "conv-int", lambda x: F.conv2d(x, x), [torch.ones(1, 1, 3, 3, dtype=torch.int64)],
        raises="floating types only",
    ),
    OpCase(
        "conv-transpose-int", lambda x: F.conv_transpose1d(x, x),
        [torch.ones(1, 1, 3, dtype=torch.int64)], raises="floating types only",
    ),
    OpCase(
        "conv-transpose-bf16-traced-bias", F.conv_transpose1d,
        [torch.ones(1, 1, 3).bfloat16(), torch.ones(1, 1, 3).bfloat16(), torch.ones(1).bfloat16()],
        raises="constant bias",
    ),
    OpCase("maxout", Maxout(), [(1, 3, 4, 4)]),
    OpCase("conv2d-not-contiguous", nn.Conv2d(4, 5, 3), [channels_last_in_memory]),
    OpCase("conv2d-permuted", lambda x: F.conv2d(x.permute(0, 3, 1, 2), W2), [(1, 7, 8, 4)]),
    OpCase(
        "conv2d-bf16", nn.Conv2d(4, 5, 3, bias=True).bfloat16(),
        [lambda g: torch.randn((2, 4, 5, 6), generator=g).bfloat16()],
    ),
    OpCase("conv2d", lambda x: F.conv2d(x, W2), [(2, 4, 7, 8)], layers=1),
    OpCase("conv2d-torch", lambda x: torch.conv2d(x, W2, BIAS), [(2, 4, 7, 8)], layers=1),
    OpCase("conv2d-bias", lambda x: F.conv2d(x, W2, BIAS), [(2, 4, 7, 8)], layers=1),
    OpCase("conv2d-keywords", lambda x: F.conv2d(input=x, weight=W2, padding=1), [(2, 4, 7, 8)]),
    OpCase("conv2d-ints", lambda x: F.conv2d(x, W2, BIAS, 2, 1, 2), [(2, 4, 9, 8)]),
    OpCase(
        "conv2d-tuples", lambda x: F.conv2d(x, W2, BIAS, (2, 1), (0, 2), (1, 3)), [(2, 4, 9, 8)]
    ),
    OpCase("conv2d-list-of-one", lambda x: F.conv2d(x, W2, stride=[2]), [(2, 4, 9, 8)]),
    OpCase("conv2d-same", lambda x: F.conv2d(x, W2, padding="same"), [(2, 4, 9, 8)]),
    OpCase(
        # Where the sides differ, PyTorch pads the longer one itself.
        "conv2d-same-dilation", lambda x: F.conv2d(x, W2, padding="same", dilation=(2, 3)),
        [(2, 4, 9, 8)], layers=3,
    ),
    OpCase("conv2d-valid", lambda x: F.conv2d(x, W2, padding="valid"), [(2, 4, 9, 8)]),
    OpCase("conv2d-groups", lambda x: F.conv2d(x, W2, BIAS, groups=2), [(2, 8, 7, 8)]),
    OpCase("conv2d-depthwise", nn.Conv2d(4, 8, 3, groups=4, padding=1), [(2, 4, 7, 8)]),
    OpCase("conv2d-unbatched", lambda x: F.conv2d(x, W2, BIAS), [(4, 7, 8)], layers=3),
    OpCase(
        "conv2d-dynamic", lambda x: F.conv2d(x, W2, BIAS, stride=2, padding=1), [(2, 4, 7, 8)],
        dynamic=[{0: (1, 4), 2: (4, 20), 3: (4, 20)}], shapes=[(3, 4, 11, 6)], layers=1,
    ),
    OpCase(
        "conv2d-unbatched-dynamic", lambda x: F.conv2d(x, W2, BIAS), [(4, 7, 8)],
        dynamic=[{1: (4, 20), 2: (4, 20)}], shapes=[(4, 11, 6)],
    ),
    OpCase("conv2d-traced-weight", lambda x, w: F.conv2d(x, w), [(2, 4, 7, 8), (6, 4, 3, 2)]),
    OpCase(
        "conv2d-traced-weight-bias", lambda x, w, b: F.conv2d(x, w, b, groups=2),
        [(2, 4, 7, 8), (6, 2, 3, 2), (6,)],
    ),
    OpCase("conv2d-constant-input", lambda w: F.conv2d(torch.ones(1, 2, 5, 5), w), [(3, 2, 2, 2)]),
    OpCase("conv2d-1x1", nn.Conv2d(4, 5, 1, bias=False), [(2, 4, 1, 1)]),
    OpCase("conv2d-module-stride", nn.Conv2d(4, 5, (3, 1), 2, (1, 0)), [(2, 4, 6, 6)]),
    OpCase("conv2d-aten", lambda x: torch.ops.aten.conv2d(x, W2, BIAS, [2, 1]), [(2, 4, 7, 8)]),
    OpCase(
        "conv2d-circular", nn.Conv2d(4, 5, 3, padding=(1, 2), padding_mode="circular"),
        [(2, 4, 6, 7)],
    ),
    OpCase(
        "conv2d-reflect", nn.Conv2d(4, 5, 3, padding=(1, 2), padding_mode="reflect"),
        [(2, 4, 6, 7)],
    ),
    OpCase(
        "conv2d-replicate", nn.Conv2d(4, 5, 3, padding=(1, 2), padding_mode="replicate"),
        [(2, 4, 6, 7)],
    ),
    OpCase("conv2d-fp16", nn.Conv2d(4, 5, 3), [(2, 4, 6, 7)], policy=FP16, **HALF),
    OpCase("conv1d", lambda x: F.conv1d(x, W1), [(2, 4, 9)], layers=3),
    OpCase("conv1d-all", lambda x: torch.conv1d(x, W1, BIAS, 2, 3, 2), [(2, 4, 9)]),
    OpCase("conv1d-groups", lambda x: F.conv1d(x, W1, BIAS, groups=2), [(2, 8, 9)]),
    OpCase("conv1d-same-even", nn.Conv1d(4, 5, 4, padding="same"), [(2, 4, 9)]),
    OpCase("conv1d-unbatched", lambda x: F.conv1d(x, W1, BIAS), [(4, 9)]),
    OpCase(
        "conv1d-dynamic", lambda x: F.conv1d(x, W1, BIAS), [(2, 4, 9)],
        dynamic=[{0: (1, 4), 2: (4, 20)}], shapes=[(3, 4, 12)], layers=3,
    ),
    OpCase("conv1d-traced-weight", lambda x, w: F.conv1d(x, w), [(2, 4, 9), (6, 4, 3)]),
    OpCase("conv1d-reflect", nn.Conv1d(4, 5, 3, padding=2, padding_mode="reflect"), [(2, 4, 9)]),
    OpCase("conv3d", lambda x: F.conv3d(x, W3), [(2, 2, 5, 6, 4)], layers=1),
    OpCase(
        "conv3d-all", lambda x: F.conv3d(x, W3, BIAS, (1, 2, 1), (1, 0, 2), (2, 1, 1), 2),
        [(2, 4, 5, 6, 4)],
    ),
    OpCase("conv3d-same", nn.Conv3d(2, 4, (3, 2, 1), padding="same"), [(2, 2, 5, 6, 4)]),
    OpCase("conv3d-unbatched", lambda x: F.conv3d(x, W3, BIAS), [(2, 5, 6, 4)]),
    OpCase(
        "conv3d-circular",
        nn.Conv3d(2, 3, 3, stride=2, padding=(1, 2, 3), padding_mode="circular"),
        [(2, 2, 4, 4, 4)],
    ),
    OpCase("transpose2d", lambda x: F.conv_transpose2d(x, T2), [(2, 4, 5, 6)], layers=1),
    OpCase(
        "transpose2d-torch", lambda x: torch.conv_transpose2d(x, T2, BIAS), [(2, 4, 5, 6)]
    ),
    OpCase(
        "transpose2d-all",
        lambda x: F.conv_transpose2d(x, T2, LONG_BIAS, (2, 3), (1, 2), (1, 0), 2),
        [(2, 4, 5, 6)], layers=1,
    ),
    OpCase(
        "transpose2d-output-padding", nn.ConvTranspose2d(4, 3, 3, 2, 0, 1), [(2, 4, 5, 6)]
    ),
    OpCase(
        "transpose2d-output-padding-dilation",
        lambda x: F.conv_transpose2d(x, T2, BIAS, 1, 0, (2, 1), 1, (3, 2)), [(2, 4, 5, 6)],
    ),
    OpCase(
        "transpose2d-dilation", lambda x: F.conv_transpose2d(x, T2, BIAS, dilation=2),
        [(2, 4, 5, 6)],
    ),
    OpCase(
        "transpose2d-stride-dilation",
        lambda x: F.conv_transpose2d(x, T2, BIAS, stride=2, padding=1, dilation=(2, 3)),
        [(2, 4, 5, 6)],
    ),
    OpCase(
        "transpose2d-depthwise", nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=4), [(2, 4, 5, 6)]
    ),
    OpCase("transpose2d-unbatched", lambda x: F.conv_transpose2d(x, T2, BIAS), [(4, 5, 6)]),
    OpCase(
        "transpose2d-dynamic", nn.ConvTranspose2d(4, 3, 2, 2), [(2, 4, 5, 6)],
        dynamic=[{0: (1, 4), 2: (2, 9), 3: (2, 9)}], shapes=[(1, 4, 3, 8)], layers=1,
    ),
    OpCase(
        "transpose2d-dynamic-output-padding", nn.ConvTranspose2d(4, 3, 3, 2, 0, 1),
        [(2, 4, 5, 6)], dynamic=[{0: (1, 4), 2: (2, 9), 3: (2, 9)}], shapes=[(1, 4, 3, 8)],
    ),
    OpCase(
        "transpose2d-module-output-size",
        lambda x: nn.functional.conv_transpose2d(x, T2, stride=2, padding=1, output_padding=(0, 1)),
        [(2, 4, 5, 6)],
    ),
    OpCase(
        "transpose2d-traced-weight", lambda x, w: F.conv_transpose2d(x, w, stride=2),
        [(2, 4, 5, 6), (4, 3, 2, 2)],
    ),
    OpCase(
        "transpose2d-traced-weight-dilation",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=2),
        [(2, 4, 5, 6), (4, 3, 2, 2)],
    ),
    OpCase(
        "transpose2d-aten",
        lambda x: torch.ops.aten.conv_transpose2d(x, T2, BIAS, [2, 1], [1, 0], [1, 0]),
        [(2, 4, 5, 6)],
    ),
    OpCase(
        "transpose2d-bf16", nn.ConvTranspose2d(4, 3, 2, 2).bfloat16(),
        [lambda g: torch.randn((2, 4, 5, 6), generator=g).bfloat16()],
    ),
    OpCase("transpose2d-fp16", nn.ConvTranspose2d(4, 3, 2, 2), [(2, 4, 5, 6)], policy=FP16, **HALF),
    OpCase("transpose1d", lambda x: F.conv_transpose1d(x, T1, BIAS), [(2, 4, 9)]),
    OpCase(
        "transpose1d-all", lambda x: F.conv_transpose1d(x, T1, LONG_BIAS, 3, 2, 1, 2, 2),
        [(2, 4, 9)],
    ),
    OpCase("transpose1d-unbatched", nn.ConvTranspose1d(4, 3, 3, 2), [(4, 9)]),
    OpCase("transpose3d", lambda x: F.conv_transpose3d(x, T3, BIAS), [(2, 2, 3, 4, 5)]),
    OpCase(
        "transpose3d-all", nn.ConvTranspose3d(2, 4, (3, 2, 2), (2, 1, 2), 1, (1, 0, 1), 2),
        [(2, 2, 3, 4, 5)],
    ),
]  # fmt: skip


# torch warns that "same" copies the input where the padding is uneven.
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("case", ids(CASES))
def test_convolution(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(MANY_KERNELS))
def test_many_kernels(case: OpCase) -> None:
    run_case(case)
