"""Convert torchvision's detectors with partial=True and write docs/detectors.md.

python tools/sweep_detectors.py              all twelve (about ten minutes on one core)
python tools/sweep_detectors.py "retina*"    only what the pattern matches; writes no document

Random weights with a seed, skimage's astronaut as the photograph. Each converted detector is run on
the photograph and on its mirror image, and compared with PyTorch. Exits with 1 where one differs,
or less than 95 % of its multiplications are in engines.
"""

from __future__ import annotations

import fnmatch
import functools
import multiprocessing
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn
from zoo.case import Case
from zoo.weights import vary

import t2t
from t2t import backend

TARGET = Path(__file__).resolve().parent.parent / "docs" / "detectors.md"
LEAST_SHARE = 0.95
TOLERANCE = 1e-3
ROUNDING = 1e-6
"""Of a score, which is between 0 and 1."""
LIMIT = 900.0
SIZE = {"min_size": 320, "max_size": 640}
DETECTORS: dict[str, dict[str, int]] = {
    "fasterrcnn_resnet50_fpn": SIZE,
    "fasterrcnn_resnet50_fpn_v2": SIZE,
    "fasterrcnn_mobilenet_v3_large_fpn": SIZE,
    "fasterrcnn_mobilenet_v3_large_320_fpn": {},
    "maskrcnn_resnet50_fpn": SIZE,
    "maskrcnn_resnet50_fpn_v2": SIZE,
    "keypointrcnn_resnet50_fpn": SIZE,
    "retinanet_resnet50_fpn": SIZE,
    "retinanet_resnet50_fpn_v2": SIZE,
    "fcos_resnet50_fpn": SIZE,
    "ssd300_vgg16": {},
    "ssdlite320_mobilenet_v3_large": {},
}

_HEAD = """# Detectors

Written by `python tools/sweep_detectors.py` ({backend} {version}, torch {torch}); do not edit.

torchvision's detectors, converted by `t2t.convert(model, [[photo]], partial=True,
shape_examples=more)`: decisions on values and the choice of boxes stay in PyTorch. Random weights;
the smaller side is 320 where a detector takes any. *work* is the engines' share of all
multiplications, by PyTorch's count. Results on two photographs are compared with PyTorch's (boxes,
scores, labels, masks, keypoints, to 1e-3).

| detector | engines | work in engines | boxes | same as PyTorch | seconds |
|-|-|-|-|-|-|
{rows}
"""


def main(patterns: Sequence[str]) -> int:
    """Judge the detectors, write the document, and return the process's exit status."""
    names = [n for n in DETECTORS if not patterns or any(fnmatch.fnmatch(n, p) for p in patterns)]
    context = multiprocessing.get_context("spawn")
    rows, failed = [], 0
    for name in names:
        with context.Pool(1) as pool:
            try:
                row, good = pool.apply_async(judged, (name,)).get(LIMIT)
            except Exception as error:  # noqa: BLE001  the table says what happened
                row, good = f"| {name} | | | | {type(error).__name__}: {error!s:.200} | |", False
        rows.append(row)
        failed += not good
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
    if not patterns:
        text = _HEAD.format(
            backend=backend.name(),
            version=backend.version(),
            torch=torch.__version__,
            rows="\n".join(rows),
        )
        TARGET.write_text(text, encoding="utf-8")
    return 1 if failed else 0


def judged(name: str) -> tuple[str, bool]:
    """Return a detector's row, and whether it is as it should be."""
    warnings.simplefilter("ignore")
    photo = _photo()
    model = _made(name)
    started = time.perf_counter()
    # How many boxes there are differs from photograph to photograph.
    more = [[[photo.flip(1)]], [[photo.roll(100, 2)]]]
    converted = t2t.convert(model, [[photo]], partial=True, shape_examples=more)
    seconds = time.perf_counter() - started
    boxes, worst = 0, ""
    for x in (photo, photo.flip(2)):
        with torch.no_grad():
            [wanted], [found] = model([x]), converted([x])
        boxes += len(wanted["boxes"])
        worst = worst or _difference(wanted, found)
    share = converted.parts.share
    engines = sum(part.in_engine for part in converted.parts)
    row = f"| {name} | {engines} | {share:.1%} | {boxes} | {worst or 'yes'} | {seconds:.0f} |"
    return row, not worst and share >= LEAST_SHARE and boxes > 0


def _made(name: str) -> nn.Module:
    """Return a detector whose scores lie apart, so that no rounding changes their order."""
    from torchvision.models import detection

    torch.manual_seed(0)
    make = getattr(detection, name)
    model: nn.Module = make(weights=None, weights_backbone=None, **DETECTORS[name]).eval()
    for part in (model, getattr(model, "roi_heads", None)):
        if hasattr(part, "score_thresh"):
            part.score_thresh = 0.0  # type: ignore[union-attr]
        for limit in ("detections_per_img", "topk_candidates"):
            if hasattr(part, limit):
                setattr(part, limit, 20)
    vary(model, Case(name, lambda: model, _draw))
    # Boxes near their anchors, and scores neither equal nor all 0 and 1.
    wanted = {"cls": 0.2, "classification_head": 0.2, "bbox": 0.1, "regression_head": 0.1}
    handles = []
    for path, module in model.named_modules():
        size = next((size for word, size in wanted.items() if word in path), None)
        if size is not None and isinstance(module, nn.Conv2d | nn.Linear):
            handles.append(module.register_forward_hook(functools.partial(_scaled, size)))
    with torch.no_grad():
        model(*_draw(torch.Generator().manual_seed(9), 0)[0])
    for handle in handles:
        handle.remove()
    return model


def _scaled(size: float, layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Scale a layer so that its output has this deviation."""
    del inputs
    factor = size / output.std() if output.numel() > 1 else torch.ones(())
    for parameter in layer.parameters(recurse=False):
        parameter.mul_(factor)
    return output * factor


def _draw(generator: torch.Generator, run: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    del run
    photo = _photo()
    return ([photo.flip(1) + 0.2 * torch.rand(photo.shape, generator=generator)],), {}


def _photo() -> torch.Tensor:
    from skimage.data import astronaut

    return torch.tensor(astronaut()).permute(2, 0, 1).float() / 255


def _difference(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    if wanted["boxes"].shape == found["boxes"].shape and len(found["boxes"]):
        # Scores that lie within a rounding of each other have no order.
        places = torch.cdist(wanted["boxes"], found["boxes"]).argmin(1)
        moved = found["scores"][places] - found["scores"]
        if len(places.unique()) == len(places) and float(moved.abs().max()) <= ROUNDING:
            found = {key: x[places] for key, x in found.items()}
    for key, a in wanted.items():
        b = found[key]
        if a.shape != b.shape:
            return f"{key}: {tuple(b.shape)} instead of {tuple(a.shape)}"
        size = max(float(a.abs().max()), 1.0) if a.numel() else 1.0
        if not torch.allclose(a.float(), b.float(), rtol=TOLERANCE, atol=TOLERANCE * size):
            count = int((~torch.isclose(a.float(), b.float(), TOLERANCE, TOLERANCE * size)).sum())
            return f"{key}: {count} of {a.numel()} differ"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
