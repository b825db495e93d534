"""The demo finds the same faces with PyTorch's networks and with the converted ones."""

import copy
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import t2t

PATH = Path(__file__).parents[1] / "examples" / "detect_faces.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("detect_faces", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(demo: ModuleType, tmp_path: Path, *arguments: str) -> int:
    status: int = demo.main([*arguments, "--out", str(tmp_path / "out")])
    return status


def test_astronaut(demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(demo, tmp_path) == 0
    text = capsys.readouterr().out
    # What MTCNN is known to find there, from both: box [181.05, 62.16, 267.75, 172.06].
    sides = [float(number) for number in re.findall(r"(?<![\d.])\d+\.\d{3}\b", text)]
    assert sides[:8] == pytest.approx([181.05, 62.16] * 2 + [267.75, 172.06] * 2, abs=0.1)
    probabilities = [float(number) for number in re.findall(r"\b0\.\d{7}\b", text)]
    assert probabilities[:2] == pytest.approx([0.9999977] * 2, abs=1e-4)
    assert "ran on: " in text
    # The console may break the line there.
    assert "same faces" in " ".join(text.split())
    with Image.open(tmp_path / "out" / "faces.png") as picture:
        assert picture.size == (512, 512)
        changed = np.abs(np.asarray(picture, int) - data.astronaut()).max(axis=2) > 0
    assert changed[62, 190:260].all(), "no frame on the upper side of the face"
    for name in ("pnet", "rnet", "onet"):
        state = torch.load(tmp_path / "out" / f"{name}.pth", weights_only=True)
        assert state


def test_two_faces_in_a_portrait_photo(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    face = data.astronaut()[:200, 120:330]
    photo = np.concatenate([face, face[::-1], face[:, ::-1]])
    Image.fromarray(photo).save(tmp_path / "photo.jpg", quality=95)
    assert run(demo, tmp_path, str(tmp_path / "photo.jpg")) == 0
    assert "│ 2 " in capsys.readouterr().out


def test_no_face(demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (61, 40), 128).save(tmp_path / "grey.png")
    assert run(demo, tmp_path, str(tmp_path / "grey.png")) == 0
    assert "Neither finds a face" in capsys.readouterr().out


def test_wrong_networks_are_noticed(
    demo: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    convert = t2t.convert

    def slightly_wrong(module: Any, inputs: Any, **options: Any) -> Any:
        changed = copy.deepcopy(module)
        if hasattr(changed, "dense6_2"):  # O-Net's last correction of the box
            changed.dense6_2.bias.data += 0.002
        return convert(changed, inputs, **options)

    monkeypatch.setattr(t2t, "convert", slightly_wrong)
    assert run(demo, tmp_path) == 1
    assert "NOT THE SAME" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"", "not a picture"),
        (b"plain text, not a picture", "not a picture"),
        (b"\x89PNG\r\n\x1a\n cut off", "not a picture"),
    ],
)
def test_no_picture(
    demo: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    message: str,
) -> None:
    path = tmp_path / "photo.png"
    if content is not None:
        path.write_bytes(content)
    assert run(demo, tmp_path, str(path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{path}: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_truncated_and_tiny_pictures(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, path = tmp_path / "whole.jpg", tmp_path / "cut.jpg"
    Image.fromarray(data.astronaut()).save(whole)
    path.write_bytes(whole.read_bytes()[:5000])
    assert run(demo, tmp_path, str(path)) == 2
    Image.new("RGB", (19, 400)).save(tmp_path / "tiny.png")
    assert run(demo, tmp_path, str(tmp_path / "tiny.png")) == 2
    assert "at least 20 x 20" in capsys.readouterr().err


def test_upright(demo: ModuleType, tmp_path: Path) -> None:
    picture = Image.new("RGB", (60, 30))
    exif = picture.getexif()
    exif[0x0112] = 6  # orientation: turn by a quarter
    picture.save(tmp_path / "turned.jpg", exif=exif)
    assert demo.read_picture(tmp_path / "turned.jpg").size == (30, 60)


@pytest.mark.parametrize("size", [(512, 512), (300, 211), (20, 20), (21, 333)])
def test_pyramid_is_the_detectors_own(demo: ModuleType, size: tuple[int, int]) -> None:
    detector = demo.make_detector(torch.device("cpu"))
    seen: list[tuple[int, ...]] = []
    detector.pnet.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    detector.detect(Image.new("RGB", size))
    assert demo.pyramid(size[1], size[0]) == seen


def test_difference(demo: ModuleType) -> None:
    boxes = np.array([[0.0, 0.0, 50.0, 50.0], [100.0, 0.0, 150.0, 50.0]])
    points = np.zeros((2, 5, 2))
    faces = demo.Faces(boxes, np.array([0.9, 0.8]), points)
    swapped = demo.Faces(boxes[::-1] + 0.01, np.array([0.8, 0.9]), points)
    assert demo.difference(faces, faces) == (0, 0)
    assert demo.difference(faces, swapped) == pytest.approx((0.01, 0))
    one = demo.Faces(boxes[:1], np.array([0.9]), points[:1])
    assert demo.difference(faces, one) == (np.inf, np.inf)
    twice = demo.Faces(boxes[[0, 0]], np.array([0.9, 0.9]), points)
    assert demo.difference(faces, twice) == (np.inf, np.inf)
    none = demo.Faces(boxes[:0], np.empty(0), points[:0])
    assert demo.difference(none, none) == (0, 0)
