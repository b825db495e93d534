"""Detectors, U-Nets, vision transformers and diffusion nets with dynamic batch, height and width.

Each is compared with PyTorch at five sizes, and refuses others. The packages that detectors and
transformers come from are not needed by other tests: without them, these are skipped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import GuardError, ShapeError
from t2t.io import unflatten
from t2t.lowering import Conversion, to_network
from t2t.reference import capture
from tests.models import UNet

Dim = torch.export.Dim
BATCH = Dim("batch", min=1, max=8)


def leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, Mapping) else tree
    return [leaf for item in items for leaf in leaves(item)] if items is not None else []


@torch.no_grad()
def check(
    module: nn.Module,
    runs: Sequence[Sequence[Tensor]],
    refused: Sequence[Sequence[Tensor]],
    shapes: Any,
) -> Conversion:
    """Convert with the first inputs, compare for all, and let others be refused."""
    conversion = to_network(copy.deepcopy(module), runs[0], dynamic_shapes=shapes)
    program = capture(conversion.network.raw, conversion.network.weights)
    signature = conversion.signature
    for inputs in runs:
        wanted = leaves(copy.deepcopy(module)(*(x.clone() for x in inputs)))
        signature.check(inputs)
        answers = program.run(inputs)
        outputs = [answers[spec.name] for spec in signature.outputs]
        got = leaves(unflatten(signature.output_structure, outputs))
        assert [x.shape for x in got] == [x.shape for x in wanted]
        for result, expected in zip(got, wanted, strict=True):
            error = float((result - expected).norm() / expected.norm())
            assert error < 1e-5, f"{[tuple(x.shape) for x in inputs]}: {error}"
    for inputs in refused:
        with pytest.raises(ShapeError):
            signature.check(inputs)
    return conversion


def pictures(*sizes: tuple[int, int, int], channels: int = 3) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(n, channels, h, w, generator=generator)] for n, h, w in sizes]


# -- detectors -----------------------------------------------------------------------------------

TASKS = ("", "-seg", "-pose", "-obb", "-cls")
YOLO = [f"{family}n{task}.yaml" for family in ("yolov8", "yolo11") for task in TASKS]
QUICK = ("yolov8n.yaml", "yolo11n-seg.yaml")
SIZES = [(1, 64, 96), (2, 96, 64), (3, 32, 32), (8, 64, 64), (1, 160, 128)]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ultralytics writes its settings when it is imported."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.getbasetemp()))


def ultralytics_model(name: str) -> Any:
    tasks = pytest.importorskip(
        "ultralytics.nn.tasks", reason="pip install --no-deps ultralytics, with opencv and pyyaml"
    )
    kinds = {"seg": "Segmentation", "pose": "Pose", "obb": "OBB", "cls": "Classification"}
    kind = kinds.get(name.removesuffix(".yaml").rpartition("-")[2], "Detection")
    kind = "RTDETRDetection" if "rtdetr" in name else kind
    torch.manual_seed(0)
    model = getattr(tasks, f"{kind}Model")(name, verbose=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return model.eval()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in YOLO]
)
def test_yolo(name: str) -> None:
    model = ultralytics_model(name)
    h, w = Dim("h", min=1, max=10), Dim("w", min=1, max=10)
    conversion = check(
        model,
        pictures(*SIZES),
        pictures((1, 64, 80), (1, 48, 96), (9, 64, 64), (1, 352, 64)),
        [{0: BATCH, 2: 32 * h, 3: 32 * w}],
    )
    first = conversion.signature.outputs[0].shape_text()
    if "cls" not in name:
        assert first.startswith("(batch=1..8, ")
        assert first.endswith(", 21*h*w=21..2100)")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rtdetr-l.yaml", "rtdetr-resnet50.yaml", "yolov8-rtdetr.yaml"])
def test_rtdetr(name: str) -> None:
    model = ultralytics_model(name)
    head = model.model[-1]
    # Of a few queries with scores far apart, rounding errors cannot change the order.
    head.num_queries = 4
    nn.init.normal_(head.enc_score_head.weight)
    h, w = Dim("h", min=3, max=10), Dim("w", min=3, max=10)
    check(
        model,
        pictures((1, 192, 160), (2, 160, 192), (1, 320, 96), (3, 128, 128), (1, 224, 256)),
        pictures((1, 176, 160), (1, 64, 96)),
        [{0: BATCH, 2: 32 * h, 3: 32 * w}],
    )


def test_a_detector_that_was_called_before_says_what_it_remembers() -> None:
    model = ultralytics_model("yolov8n.yaml")
    [x] = pictures((1, 64, 96))[0]
    with torch.no_grad():
        model(x)
    with pytest.raises(GuardError, match="keeps from an earlier call, convert it before"):
        to_network(model, [x], dynamic_shapes=[{2: 32 * Dim("h", min=1, max=8)}])


# -- U-Nets --------------------------------------------------------------------------------------


def test_segmentation_unet() -> None:
    h, w = Dim("h", min=1, max=16), Dim("w", min=1, max=16)
    torch.manual_seed(0)
    check(
        UNet().eval(),
        pictures((1, 16, 24), (2, 4, 4), (3, 64, 8), (8, 20, 12), (1, 32, 60)),
        pictures((1, 16, 22), (1, 68, 24)),
        [{0: BATCH, 2: 4 * h, 3: 4 * w}],
    )


class Attention(nn.Module):
    """Multi-head attention over tokens, or from tokens to a text."""

    def __init__(self, channels: int, context: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context, channels, bias=False)
        self.to_v = nn.Linear(context, channels, bias=False)
        self.to_out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        batch, _, channels = x.shape
        size = channels // self.heads
        q, k, v = (
            made.view(batch, -1, self.heads, size).transpose(1, 2)
            for made in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(y.transpose(1, 2).reshape(batch, -1, channels))


class Transformer(nn.Module):
    """Self-attention over h * w tokens, attention to a text, and a gated feed-forward part."""

    def __init__(self, channels: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.proj_in, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own, self.cross = Attention(channels, channels), Attention(channels, context)
        self.widen, self.narrow = (
            nn.Linear(channels, 8 * channels),
            nn.Linear(4 * channels, channels),
        )

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        y = self.proj_in(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        y = self.own(self.norms[0](y)) + y
        y = self.cross(self.norms[1](y), context) + y
        wide, gate = self.widen(self.norms[2](y)).chunk(2, dim=-1)
        y = self.narrow(wide * F.gelu(gate)) + y
        y = y.reshape(batch, height, width, channels).permute(0, 3, 1, 2).contiguous()
        return self.proj_out(y) + x


class Residual(nn.Module):
    """Two convolutions with the time between them."""

    def __init__(self, channels: int, out: int, time: int = 32) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class DiffusionUNet(nn.Module):
    """Stable Diffusion's net in small: three times down and up again, text and time beside it."""

    def __init__(self, widths: Sequence[int] = (8, 16, 16, 16), context: int = 12) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(4, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.down, self.texts, self.halve = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.up, self.enlarge = nn.ModuleList(), nn.ModuleList()
        channels, skips = widths[0], [widths[0]]
        for index, width in enumerate(widths):
            self.down.append(Residual(channels, width))
            self.texts.append(Transformer(width, context))
            channels = width
            skips.append(channels)
            if index < len(widths) - 1:
                self.halve.append(nn.Conv2d(channels, channels, 3, 2, 1))
                skips.append(channels)
        self.middle, self.middle_text = Residual(channels, channels), Transformer(channels, context)
        for width in reversed(widths):
            first = Residual(channels + skips.pop(), width)
            self.up.append(nn.ModuleList([first, Residual(width + skips.pop(), width)]))
            channels = width
            self.enlarge.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm, self.conv_out = nn.GroupNorm(4, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        steps = torch.exp(-math.log(10000) * torch.arange(8, dtype=torch.float32) / 8)
        angle = timestep[:, None].float() * steps[None]
        time = self.time(torch.cat([angle.cos(), angle.sin()], -1))
        x = self.conv_in(x)
        skips = [x]
        for index, (down, attend) in enumerate(zip(self.down, self.texts, strict=True)):
            x = attend(down(x, time), text)
            skips.append(x)
            if index < len(self.halve):
                x = self.halve[index](x)
                skips.append(x)
        x = self.middle_text(self.middle(x, time), text)
        for index, (up, enlarge) in enumerate(zip(self.up, self.enlarge, strict=True)):
            for residual in up:
                x = residual(torch.cat([x, skips.pop()], 1), time)
            if index < len(self.halve):
                x = enlarge(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv_out(F.silu(self.norm(x)))


def latents(batch: int, height: int, width: int, tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch + height)
    shapes = ((batch, 4, height, width), (batch,), (batch, tokens, 12))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_diffusion_unet() -> None:
    torch.manual_seed(0)
    h, w, n = (Dim(name, min=1, max=8) for name in "hwn")
    conversion = check(
        DiffusionUNet().eval(),
        [
            latents(2, 16, 24, 77),
            latents(1, 8, 8, 77),
            latents(3, 32, 16, 154),
            latents(4, 64, 64, 231),
            latents(1, 40, 8, 77),
        ],
        [
            latents(1, 20, 8, 77),
            latents(1, 8, 8, 78),
            [*latents(1, 8, 8, 77)[:2], torch.zeros(2, 77, 12)],
        ],
        [{0: BATCH, 2: 8 * h, 3: 8 * w}, {0: BATCH}, {0: BATCH, 1: 77 * n}],
    )
    inputs = [spec.shape_text() for spec in conversion.signature.inputs]
    assert inputs[2] == "(batch=1..8, 77*n=77..616, 12)"


# -- vision transformers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"class_token": False, "reg_tokens": 2, "global_pool": "avg"}, marks=pytest.mark.slow
        ),
        pytest.param({"dynamic_img_pad": True}, marks=pytest.mark.slow),
    ],
    ids=["class-token", "registers", "padded"],
)
def test_vit_of_any_size(options: dict[str, Any]) -> None:
    timm = pytest.importorskip("timm", reason="pip install timm")
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", depth=2, dynamic_img_size=True, num_classes=10, **options
    ).eval()
    nn.init.normal_(model.pos_embed)
    h, w = Dim("h", min=1, max=14), Dim("w", min=1, max=14)
    check(
        model,
        pictures((2, 64, 96), (1, 16, 16), (3, 96, 64), (1, 224, 224), (8, 112, 48)),
        pictures((1, 60, 96), (1, 240, 96)),
        [{0: BATCH, 2: 16 * h, 3: 16 * w}],
    )
