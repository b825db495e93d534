"""Find the faces in a picture twice: with PyTorch's networks and with the converted ones.

    python examples/detect_faces.py [photo.jpg] [--out FOLDER]

The detector is MTCNN from facenet-pytorch with its pretrained weights: P-Net proposes boxes on a
pyramid of shrunken pictures, R-Net and O-Net refine them. The three networks are converted, saved
as checkpoints, loaded again and put into the same detector. Without a picture it takes the
astronaut photograph of scikit-image.

Exit status: 0 when both find the same faces, 1 when they do not, 2 when there is no picture.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from facenet_pytorch import MTCNN
from PIL import Image, ImageDraw, ImageFont, ImageOps
from rich.console import Console
from rich.table import Table
from skimage import data

import t2t

PIXELS = 0.1  # how far a side of a box may move
PROBABILITY = 1e-4  # how far a probability may move
SMALLEST_FACE = 20  # pixels; smaller faces are not looked for
LARGEST_BATCH = 512  # facenet-pytorch passes at most so many candidates at once
FACTOR = 0.709  # each picture of the pyramid is so much smaller than the one before

Shapes = list[tuple[int, ...]]


class PictureError(Exception):
    """The file is missing, or is no picture that the detector can use."""


@dataclass(frozen=True)
class Faces:
    """What a detector found, the largest face first."""

    boxes: npt.NDArray[np.float64]
    """(N, 4): left, top, right, bottom in pixels."""
    probabilities: npt.NDArray[np.float64]
    """(N,)"""
    points: npt.NDArray[np.float64]
    """(N, 5, 2): eyes, nose and corners of the mouth; x, y in pixels."""

    def __len__(self) -> int:
        return len(self.boxes)


def read_picture(path: Path | None) -> Image.Image:
    """Read a picture, upright and in RGB; the astronaut where no file is given."""
    if path is None:
        return Image.fromarray(data.astronaut())
    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file).convert("RGB")
    except FileNotFoundError:
        raise PictureError(f"{path}: there is no such file") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise PictureError(f"{path}: not a picture that Pillow can read ({error})") from error
    if min(picture.size) < SMALLEST_FACE:
        raise PictureError(
            f"{path}: {picture.width} x {picture.height} pixels; the detector needs at least "
            f"{SMALLEST_FACE} x {SMALLEST_FACE}"
        )
    return picture


def pyramid(height: int, width: int) -> Shapes:
    """Give P-Net's input shapes for a picture, as facenet-pytorch computes them."""
    scale = 12 / SMALLEST_FACE
    shortest = min(height, width) * scale
    shapes: Shapes = []
    while shortest >= 12:
        shapes.append((1, 3, int(height * scale + 1), int(width * scale + 1)))
        scale *= FACTOR
        shortest *= FACTOR
    return shapes


def convert(net: torch.nn.Module, least: tuple[int, ...], most: tuple[int, ...]) -> t2t.TRTModule:
    """Convert one network for every input shape between two."""
    example = torch.zeros(most, device=next(net.parameters()).device)
    return t2t.convert(net, [example], min_shapes=[least], opt_shapes=[most], max_shapes=[most])


def reload(module: t2t.TRTModule, path: Path) -> t2t.TRTModule:
    """Save a converted network and load it again, as another program would."""
    module.save(path)
    return t2t.load(path)


def make_detector(device: torch.device) -> MTCNN:
    """Make MTCNN with its pretrained weights."""
    return MTCNN(min_face_size=SMALLEST_FACE, factor=FACTOR, keep_all=True, device=device).eval()


def convert_detector(detector: MTCNN, picture: Image.Image, folder: Path) -> MTCNN:
    """Give a detector with the three networks converted, saved and loaded again."""
    shapes = pyramid(picture.height, picture.width)
    ranges = {
        "pnet": (shapes[-1], shapes[0]),
        "rnet": ((1, 3, 24, 24), (LARGEST_BATCH, 3, 24, 24)),
        "onet": ((1, 3, 48, 48), (LARGEST_BATCH, 3, 48, 48)),
    }
    converted = make_detector(detector.device)
    for name, (least, most) in ranges.items():
        module = convert(getattr(detector, name), least, most)
        setattr(converted, name, reload(module, folder / f"{name}.pth"))
    return converted


def find(detector: MTCNN, picture: Image.Image) -> Faces:
    """Run a detector."""
    boxes, probabilities, points = detector.detect(picture, landmarks=True)
    if boxes is None:
        return Faces(np.empty((0, 4)), np.empty(0), np.empty((0, 5, 2)))
    return Faces(boxes.astype(float), probabilities.astype(float), points.astype(float))


def find_and_say_where(detector: MTCNN, picture: Image.Image) -> tuple[Faces, list[str]]:
    """Run a converted detector; give also why it did not run on its engines, if so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", t2t.ReferenceExecutionWarning)
        faces = find(detector, picture)
    reasons = []
    for warning in caught:
        if issubclass(warning.category, t2t.ReferenceExecutionWarning):
            reasons.append(str(warning.message))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return faces, list(dict.fromkeys(reasons))


def difference(ours: Faces, theirs: Faces) -> tuple[float, float]:
    """Give the largest difference of a side in pixels and of a probability; inf: other faces."""
    if len(ours) != len(theirs):
        return float("inf"), float("inf")
    if not len(ours):
        return 0.0, 0.0
    # Faces of nearly one size may change places in the list: each meets the one nearest to it.
    apart = np.abs(ours.boxes[:, None] - theirs.boxes[None]).max(axis=2)
    nearest = apart.argmin(axis=1)
    if len(set(nearest)) < len(ours):
        return float("inf"), float("inf")
    moved = np.abs(ours.probabilities - theirs.probabilities[nearest])
    return float(apart.min(axis=1).max()), float(moved.max())


def table(original: Faces, converted: Faces) -> Table:
    """Lay both results side by side."""
    result = Table("face", "PyTorch: box", "probability", "converted: box", "probability")
    for i in range(max(len(original), len(converted))):
        cells = [str(i + 1)]
        for faces in (original, converted):
            if i < len(faces):
                cells.append("  ".join(f"{side:.3f}" for side in faces.boxes[i]))
                cells.append(f"{faces.probabilities[i]:.7f}")
            else:
                cells += ["-", "-"]
        result.add_row(*cells)
    return result


def annotate(picture: Image.Image, original: Faces, converted: Faces) -> Image.Image:
    """Draw both results: PyTorch's as a wide frame, the converted networks' as a line in it."""
    result = picture.copy()
    draw = ImageDraw.Draw(result)
    line = max(2, max(picture.size) // 250)
    font = ImageFont.load_default(size=max(12, max(picture.size) // 36))
    wide, thin = "#101820", "#39ff88"
    for box in original.boxes:
        draw.rectangle(_grown(box, line), outline=wide, width=3 * line)
    for box, probability, points in zip(
        converted.boxes, converted.probabilities, converted.points, strict=True
    ):
        draw.rectangle(_grown(box, 0), outline=thin, width=line)
        for x, y in points:
            draw.ellipse((x - line, y - line, x + line, y + line), fill=thin)
        _label(draw, (box[0], box[3] + 2 * line), f"{probability:.7f}", font, thin)
    corner = (line * 2, result.height - line * 4 - font.size)
    _label(draw, corner, "PyTorch: dark frame, converted: green line", font, thin)
    return result


def _grown(box: npt.NDArray[np.float64], by: int) -> tuple[float, float, float, float]:
    left, top, right, bottom = (float(side) for side in box)
    return left - by, top - by, right + by, bottom + by


def _label(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    colour: str,
) -> None:
    left, top, right, bottom = draw.textbbox(at, text, font=font)
    draw.rectangle((left - 3, top - 3, right + 3, bottom + 3), fill="#101820")
    draw.text(at, text, font=font, fill=colour)


def compare(picture: Image.Image, folder: Path, console: Console) -> int:
    """Run both detectors, print and draw what they find; give the exit status."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    original = make_detector(device)
    started = time.perf_counter()
    converted = convert_detector(original, picture, folder)
    console.print(f"Converted 3 networks in {time.perf_counter() - started:.1f} s.")
    expected = find(original, picture)
    found, reasons = find_and_say_where(converted, picture)
    where = "the reference executor, in PyTorch" if reasons else "TensorRT engines"
    console.print(f"The converted networks ran on: {where} ({device}).")
    for reason in reasons:
        console.print(f"  {reason}", markup=False, soft_wrap=True)
    console.print(table(expected, found))
    if not len(expected) and not len(found):
        console.print("Neither finds a face in this picture.")
    annotate(picture, expected, found).save(folder / "faces.png")
    console.print(f"The picture with both results: {folder / 'faces.png'}", soft_wrap=True)
    pixels, probability = difference(expected, found)
    same = pixels <= PIXELS and probability <= PROBABILITY
    console.print(
        f"Largest difference: {pixels:.2g} pixels (allowed {PIXELS}), probability "
        f"{probability:.2g} (allowed {PROBABILITY}): {'same faces' if same else 'NOT THE SAME'}.",
        soft_wrap=True,
    )
    return 0 if same else 1


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; give the exit status."""
    parser = argparse.ArgumentParser(description="Find faces with PyTorch and with TensorRT.")
    parser.add_argument("picture", nargs="?", type=Path, help="a picture; else the astronaut")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for what it writes")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        picture = read_picture(options.picture)
    except PictureError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    return compare(picture, options.out, console)


if __name__ == "__main__":
    sys.exit(main())
