"""Models of which only parts become engines: which ones, why, and that they are right."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import t2t
from t2t.errors import (
    CheckpointError,
    ConversionError,
    EngineError,
    OptionError,
    ShapeError,
    UnsupportedOperatorError,
)
from t2t.module import Part
from t2t.partial import _difference

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Head(nn.Module):
    """Selects by a mask, so that the number of rows depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 1)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).mean((2, 3))
        return self.linear(y[y[:, 0] > -10])


class Deciding(nn.Module):
    """Decides on a value in Python."""

    def __init__(self, part: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
        self.head = Head() if part is None else part

    def forward(self, x: torch.Tensor) -> Any:
        y = self.body(x)
        if y.mean() > 1000:
            y = y * 2
        return self.head(y)


def made(cls: Any = Deciding, *args: Any) -> Any:
    torch.manual_seed(0)
    return cls(*args).eval()


def check(model: nn.Module, converted: nn.Module, *inputs: torch.Tensor) -> None:
    for x in inputs:
        with torch.no_grad():
            torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-5)


def reasons(converted: t2t.PartialModule) -> dict[str, str]:
    return {part.name: part.reason for part in converted.parts if not part.in_engine}


def test_the_largest_parts_that_convert_are_engines() -> None:
    model = made()
    with pytest.raises(ConversionError, match="needs the value of a tensor"):
        t2t.convert(model, [X])
    converted = t2t.convert(model, [X], partial=True)
    assert list(converted.engines) == ["body", "head.conv", "head.linear"]
    why = reasons(converted)
    assert "needs the value of a tensor" in why["(the model)"]
    assert "test_partial.py" in why["(the model)"]
    assert "depends on the data" in why["head"]
    check(model, converted, X, torch.randn(2, 3, 16, 16))
    assert type(converted.model) is Deciding
    assert converted.parts.share == pytest.approx(1.0)


@pytest.mark.parametrize("options", [{}, {"fp16": True}, {"tf32": True}])
def test_verify_takes_a_model_with_engines_in_it(options: dict[str, Any]) -> None:
    model = made()
    converted = t2t.convert(model, [X], partial=True, **options)
    report = t2t.verify(model, converted, [X], raise_on_error=True)
    assert len(report.ran_on) == len(converted.engines) > 1
    assert converted.precision == ("fp16" if "fp16" in options else "fp32")
    assert report.rtol == (2e-2 if options else 1e-4)
    other = made()
    with torch.no_grad():
        other.head.linear.bias += 1
    assert not t2t.verify(other, converted, [X])


def test_a_model_that_converts_whole_is_converted_whole() -> None:
    model = made().body
    whole, partial = (t2t.convert(model, [X], partial=flag) for flag in (False, True))
    assert not isinstance(partial, t2t.PartialModule)
    assert torch.equal(whole.engine.plan, partial.engine.plan)


def test_the_model_is_left_as_it_was() -> None:
    model = made()
    before = {name: (id(x), x.clone()) for name, x in model.state_dict(keep_vars=True).items()}
    modules, hooks = dict(model.named_modules()), dict(model.body._forward_hooks)
    converted = t2t.convert(model, [X], partial=True)
    assert dict(model.named_modules()) == modules
    assert dict(model.body._forward_hooks) == hooks
    assert not model.body._forward_pre_hooks
    converted.to(torch.float64)
    for name, x in model.state_dict(keep_vars=True).items():
        assert id(x) == before[name][0]
        assert torch.equal(x, before[name][1])


def test_named_modules_must_convert() -> None:
    model = made()
    converted = t2t.convert_submodules(model, [X], modules=["body", "head.lin*"])
    assert list(converted.engines) == ["body", "head.linear"]
    check(model, converted, X, torch.randn(2, 3, 16, 16))
    with pytest.raises(ConversionError, match="depends on the data"):
        t2t.convert_submodules(model, [X], modules=["head"])
    with pytest.raises(ConversionError, match="has no submodule 'neck'"):
        t2t.convert_submodules(model, [X], modules=["neck"])


@pytest.mark.parametrize(
    ("excluded", "engines"),
    [
        (["head"], ["body"]),
        (["head.*"], ["body"]),
        (["body.0"], ["body.2", "head.conv", "head.linear"]),
        (["*.conv", "body"], ["head.linear"]),
    ],
)
def test_modules_that_stay_in_pytorch(excluded: list[str], engines: list[str]) -> None:
    model = made()
    converted = t2t.convert(model, [X], partial=True, torch_executed_modules=excluded)
    assert list(converted.engines) == engines
    check(model, converted, X, torch.randn(2, 3, 16, 16))


def test_a_whole_model_of_which_a_part_is_to_stay_in_pytorch() -> None:
    model = made().body
    converted = t2t.convert(model, [X], partial=True, torch_executed_modules=["2"])
    assert list(converted.engines) == ["0"]
    check(model, converted, X, torch.randn(2, 3, 16, 16))


# -- parts that cannot be replaced, though they convert ------------------------------------------


class Writes(nn.Module):
    """Its parent sees that it writes to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.relu_())


class Views(Writes):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), x[:, :1]


class Keeps(Writes):
    """Others read what it keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.width = x.shape[-1]
        return self.linear(x)


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(x)
        if isinstance(y, tuple):
            y[1].mul_(2)  # a view of x
            y = y[0]
        y = y * getattr(self.part, "width", 1)
        return (y + x) if float(y.mean()) < 100 else x


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Writes, "writes to its input in place, or returns a view"),
        (Views, "writes to its input in place, or returns a view"),
        (Keeps, "it keeps 'width' between calls"),
    ],
)
def test_what_others_see_stays_in_pytorch(part: Any, why: str) -> None:
    model = made(Around, part())
    x = torch.randn(4, 12)
    converted = t2t.convert(model, [x], partial=True)
    assert list(converted.engines) == ["part.linear"]
    assert why in reasons(converted)["part"]
    for given in (x, torch.randn(4, 12)):
        with torch.no_grad():
            wanted = model(given.clone())
            torch.testing.assert_close(converted(given.clone()), wanted, rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    """Reads the weight of a part that is also called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(6, 6, bias=False)
        self.middle = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.middle(self.embedding(x))
        return y @ self.embedding.weight if bool((y < 100).all()) else y


def test_a_part_whose_weight_is_read_stays_in_pytorch() -> None:
    model, x = made(Tied), torch.randn(3, 6)
    converted = t2t.convert(model, [x], partial=True)
    assert list(converted.engines) == ["middle"]
    assert reasons(converted)["embedding"] == "the model reads its attribute 'weight'"
    check(model, converted, x, torch.randn(3, 6))


class Force(nn.Module):
    """The gradient of an energy, as potentials of atoms give it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(6, 6)
        self.energy = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.energy(self.features(x).tanh()).pow(2).sum()
            return torch.autograd.grad(energy, x)[0]


def test_what_gradients_are_computed_through_stays_in_pytorch() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(12, 6), Force(), nn.Linear(6, 2)))
    x = torch.randn(4, 12)
    with pytest.raises(UnsupportedOperatorError, match="computes a gradient in its forward pass"):
        t2t.convert(model, [x])
    converted = t2t.convert(model, [x], partial=True)
    assert list(converted.engines) == ["0", "2"]
    assert "computes gradients through it" in reasons(converted)["1.features"]
    work = {part.name: part.share for part in converted.parts}
    assert work["0"] == 6 * work["2"] > 0
    assert sum(work.values()) == pytest.approx(1)
    check(model, converted, x, torch.randn(4, 12))


class Switched(nn.Module):
    """The parent sets how a part works before it calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Scaled()
        self.last = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.factor = 3.0
        y = self.part(x)
        self.part.factor = 1.0
        return self.last(y) if bool((y < 1e6).all()) else y


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor


def test_a_part_that_works_otherwise_inside_the_model_is_noticed() -> None:
    model, x = made(Switched), torch.randn(3, 6)
    converted = t2t.convert(model, [x], partial=True)
    assert list(converted.engines) == ["part.linear", "last"]
    assert "its engine disagrees" in reasons(converted)["part"]
    check(model, converted, x, torch.randn(3, 6))


def test_a_wrong_engine_is_seen() -> None:
    linear, other = nn.Linear(4, 3), nn.Linear(4, 3)
    converted, x = t2t.convert(linear, [torch.randn(2, 4)]), torch.randn(2, 4)
    assert _difference(converted, (x,), {}, linear(x)) == ""
    assert "differs" in _difference(converted, (x,), {}, other(x))
    assert "dtype" in _difference(converted, (x,), {}, linear(x).half())
    assert "structure" in _difference(converted, (x,), {}, (linear(x), linear(x)))
    assert "output" in _difference(converted, (x,), {}, linear(x) * (1 + 2e-4))
    assert "(3, 4)" in _difference(converted, (torch.randn(3, 4),), {}, other(x))


# -- sizes, calls, options -----------------------------------------------------------------------


def test_sizes_that_vary_are_ranges() -> None:
    model, small = made(), torch.randn(1, 3, 12, 20)
    converted = t2t.convert(model, [X], partial=True, shape_examples=[[small]])
    check(model, converted, X, small, torch.randn(2, 3, 15, 17), torch.randn(3, 3, 16, 24))
    static = t2t.convert(model, [X], partial=True)
    with pytest.raises(ShapeError, match="12"):
        static(small)


class Experts(nn.Module):
    """Each expert gets as many rows as the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, result = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                result[mask] = self.head(expert(x[mask]))
        return result


class Filtered(nn.Module):
    """Chooses rows by a list, as detectors do with their anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return self.head(y[[n for n, v in enumerate(y[:, 0].tolist()) if v > -0.5] or [0]])


class Suppressed(Filtered):
    """Chooses rows with NumPy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        kept: list[int] = []
        scores = y[:, 0].numpy()
        for row in np.argsort(-scores).tolist():
            if all(abs(scores[row] - scores[other]) > 0.2 for other in kept):
                kept.append(row)
        return self.head(y[kept])


class Converging(Filtered):
    """Goes on until little changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, change = self.body(x), 1.0
        while change > 1e-2:
            new = torch.tanh(self.body(y) * 0.5)
            change, y = (new - y).abs().max().item(), new
        return self.head(y)


class Exiting(Filtered):
    """Takes a short way where it is sure."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if y.mean() > 0:
            return self.head(y)
        return self.head(self.body(y.relu()))


@pytest.mark.parametrize("cls", [Experts, Filtered, Suppressed, Converging, Exiting])
@pytest.mark.parametrize("more", [[], [12, 3]])
def test_the_data_says_how_many_rows_a_part_gets(cls: Any, more: list[int]) -> None:
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randn(n, 6, generator=generator) for n in (8, *more)]
    model = made(cls)
    examples = {"shape_examples": [[x] for x in rows[1:]]} if more else {}
    converted = t2t.convert(model, [rows[0]], partial=True, **examples)
    assert len(converted.engines) == len([m for m in model.modules() if isinstance(m, nn.Linear)])
    counts = (3, 5, 8, 12) if more else (8,) * 6
    calls = [torch.randn(n, 6, generator=generator) * scale for n in counts for scale in (0.3, 2)]
    check(model, converted, *calls, *(x - 1 for x in calls), *(x + 1 for x in calls))


def test_a_part_whose_elements_are_read_is_left() -> None:
    class Twice(Deciding):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), self.body[0](x)

    model = made(Twice)
    converted = t2t.convert(model, [X], partial=True)
    assert "body" not in converted.engines
    assert reasons(converted)["body"] == "the model reads its element 0"
    with torch.no_grad():
        for a, b in zip(converted(X), model(X), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_lists_of_modules_and_other_references() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.order = [self.layers[2], self.layers[0]]
            self.unused = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.order if bool((x < 99).all()) else self.layers:
                x = layer(x)
            return x

    model, x = made(Listed), torch.randn(2, 4)
    converted = t2t.convert(model, [x], partial=True)
    assert list(converted.engines) == ["layers.0", "layers.2"]
    assert converted.model.order[0] is converted.model.layers[2]
    assert "not called" in reasons(converted)["unused"]
    check(model, converted, x, torch.randn(2, 4))


def test_wrong_uses() -> None:
    model = made()
    with pytest.raises(OptionError, match="with partial=True"):
        t2t.convert(model, [X], torch_executed_modules=["head"])
    with pytest.raises(OptionError, match=r"dynamic_shapes .* give shape_examples"):
        t2t.convert(model, [X], partial=True, dynamic_shapes=[{0: (1, 4)}])
    with pytest.raises(OptionError, match=r"compared with a whole model.*needs the value"):
        t2t.convert(model, [X], partial=True, weight_only="int8")
    with pytest.raises(OptionError, match="calibration"):
        t2t.convert(model, [X], partial=True, int8=True)
    with pytest.raises(OptionError, match="fp16_mode"):
        t2t.convert_submodules(model, [X], fp16_mode=True)
    with pytest.raises(ConversionError, match="a function has no submodules"):
        t2t.convert_submodules(torch.relu, [X])  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match=r"no part of the model converts.*on a number"):
        t2t.convert(made(Around, nn.Identity()), [torch.randn(2, 12)], partial=True)
    with pytest.raises(EngineError, match=r"body, head\.conv, head\.linear"):
        _ = t2t.convert(model, [X], partial=True).signature


def test_half_precision_goes_to_the_parts() -> None:
    model = made()
    converted = t2t.convert(model, [X], partial=True, fp16=True)
    assert converted.engines["body"].precision == "fp16"
    with torch.no_grad():
        torch.testing.assert_close(converted(X), model(X), rtol=2e-2, atol=2e-2)


def test_bags_of_dynamic_lengths_stay_in_pytorch_alone() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.EmbeddingBag(10, 4, mode="mean")
            self.dense = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
            self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, words: Any, starts: Any, x: Any) -> torch.Tensor:
            return self.head(self.bags(words, starts) + self.dense(x))

    model, rows = made(Bags), torch.export.Dim("rows", min=1, max=6)
    shapes = [{0: torch.export.Dim("words", min=2, max=20)}, {0: rows}, {0: rows}]
    calls = [
        (torch.randint(0, 10, (words,)), torch.tensor(starts), torch.randn(len(starts), 6))
        for words, starts in ((8, [0, 2, 5]), (20, [0, 0, 7, 9, 11, 20]), (3, [0]))
    ]
    converted = t2t.convert(model, [*calls[0]], partial=True, dynamic_shapes=shapes)
    stays = [part for part in converted.parts if not part.in_engine]
    assert [part.name for part in stays] == ["aten::_embedding_bag"]
    assert "bags" in stays[0].reason
    for call in calls:
        with torch.no_grad():
            torch.testing.assert_close(converted(*call), model(*call), rtol=1e-4, atol=1e-5)


# -- checkpoints ---------------------------------------------------------------------------------


def test_a_checkpoint_goes_into_another_model_of_the_class(tmp_path: Any) -> None:
    model = made()
    converted = t2t.convert(model, [X], partial=True)
    converted.save(tmp_path / "model.pth")
    torch.manual_seed(1)
    other = Deciding().eval()
    weights = copy.deepcopy(other.state_dict())
    loaded = t2t.load(tmp_path / "model.pth", other)
    assert list(loaded.engines) == list(converted.engines)
    assert list(loaded.parts) == list(converted.parts)
    check(model, loaded, X, torch.randn(2, 3, 16, 16))
    assert all(torch.equal(x, weights[name]) for name, x in other.state_dict().items())


def test_checkpoints_that_do_not_fit(tmp_path: Any) -> None:
    path = tmp_path / "model.pth"
    t2t.convert(made(), [X], partial=True).save(path)
    with pytest.raises(CheckpointError, match=r"t2t.load\(path, model\)"):
        t2t.load(path)
    with pytest.raises(CheckpointError, match="does not fit the model, a Linear"):
        t2t.load(path, nn.Linear(3, 3))
    with pytest.raises(CheckpointError, match="does not fit"):
        t2t.load(path, Deciding(nn.Linear(3, 3)))
    entries = torch.load(path, weights_only=True)
    torch.save({**entries, "parts": "[1]"}, path)
    with pytest.raises(CheckpointError, match="table of parts is damaged"):
        t2t.load(path, made())
    t2t.convert(nn.Linear(3, 3), [torch.randn(2, 3)]).save(path)
    with pytest.raises(CheckpointError, match="needs no model"):
        t2t.load(path, made())


def test_the_table() -> None:
    converted = t2t.convert(made(), [X], partial=True)
    lines = str(converted.parts).splitlines()
    assert re.match(r"part +runs in +work +reason$", lines[0])
    assert any(re.match(r"body +engine +9\d\.\d%$", line) for line in lines)
    assert lines[-1] == "3 engines with 100.0% of the multiplications"
    assert isinstance(converted.parts[0], Part)
    assert "runs in" in repr(converted)


# -- real models ---------------------------------------------------------------------------------


def test_the_face_detector_is_three_engines_by_one_call() -> None:
    image = pytest.importorskip("PIL.Image")
    mtcnn = pytest.importorskip("facenet_pytorch").MTCNN(keep_all=True).eval()
    photo = pytest.importorskip("skimage.data").astronaut()
    crops = [photo, photo[:400], photo[:300, 100:400]]
    first, *more = map(image.fromarray, crops)
    converted = t2t.convert_submodules(mtcnn, [first], shape_examples=[[x] for x in more])
    assert list(converted.engines) == ["pnet", "rnet", "onet"]
    for picture in (photo, photo[:450, :450]):
        both = [
            m.detect(image.fromarray(picture), landmarks=True) for m in (mtcnn, converted.model)
        ]
        for wanted, found in zip(*both, strict=True):
            found, wanted = (np.asarray(x, np.float64) for x in (found, wanted))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def yolo() -> nn.Module:
    tasks = pytest.importorskip(
        "ultralytics.nn.tasks", reason="pip install --no-deps ultralytics, with opencv and pyyaml"
    )
    torch.manual_seed(0)
    model = tasks.DetectionModel("yolov8n.yaml", verbose=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return model.eval()


class Detector(nn.Module):
    """YOLO with its boxes chosen in torch: all but the choice is in engines."""

    def __init__(self) -> None:
        super().__init__()
        self.model = yolo()

    def forward(self, x: torch.Tensor) -> Any:
        ops = pytest.importorskip("torchvision").ops
        found = self.model(x)[0][0]
        scores, kinds = found[4:].max(0)
        sure = scores > scores.mean()
        boxes = ops.box_convert(found[:4, sure].t(), "cxcywh", "xyxy")
        scores, kinds = scores[sure], kinds[sure]
        kept = ops.nms(boxes + kinds[:, None] * 1000.0, scores, 0.5)[:20]
        return boxes[kept], scores[kept], kinds[kept]


class Suppressing(Detector):
    """YOLO with ultralytics' own function, which decides in Python."""

    def forward(self, x: torch.Tensor) -> Any:
        nms = pytest.importorskip("ultralytics.utils.nms").non_max_suppression
        return nms(self.model(x)[0], conf_thres=1e-4, max_det=20)


@pytest.mark.parametrize("kind", [Detector, Suppressing])
@pytest.mark.filterwarnings("ignore:.create_unbacked_symint")
def test_yolo_with_its_suppression(
    kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    generator = torch.Generator().manual_seed(2)
    photos = [torch.rand(1, 3, 64, 96, generator=generator) for _ in range(3)]
    model = kind().eval()
    converted = t2t.convert(model, [photos[0]], partial=True)
    assert isinstance(converted, t2t.PartialModule) == (kind is Suppressing)
    assert converted.parts.share > 0.99
    for photo in photos:
        with torch.no_grad():
            wanted, found = model(photo), converted(photo)
        for a, b in zip(wanted, found, strict=True):
            assert len(a)
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3)


def test_a_detector_keeps_its_decisions_in_pytorch() -> None:
    detection = pytest.importorskip("torchvision").models.detection
    photo = pytest.importorskip("skimage.data").astronaut()
    picture = torch.tensor(photo).permute(2, 0, 1).float() / 255
    torch.manual_seed(0)
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        min_size=160,
        max_size=320,
        box_score_thresh=0.0,
        box_detections_per_img=20,
    ).eval()
    # Scores of random weights are all but equal, and a rounding would decide which come first.
    for layer in (model.rpn.head.cls_logits, model.roi_heads.box_predictor.cls_score):
        nn.init.normal_(layer.weight, std=2.0)
    for layer in model.backbone.fpn.layer_blocks:
        layer[0].weight.data *= 1e6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = t2t.convert(model, [[picture]], partial=True)
    assert {"backbone", "rpn.head", "roi_heads.box_head"} <= set(converted.engines)
    assert converted.parts.share > 0.95
    for x in (picture, picture.flip(2)):
        with torch.no_grad():
            [wanted], [found] = model([x]), converted([x])
        assert len(wanted["boxes"]) > 0
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-3, atol=1e-3)


def test_settings_of_all_engines() -> None:
    converted = t2t.convert(made(), [X], partial=True, weight_streaming=True)
    assert isinstance(converted, t2t.PartialModule)
    engines = list(converted.engines.values())
    assert len(engines) > 1
    for name, before, value in (
        ("cuda_graph", False, True),
        ("require_engine", False, True),
        ("weight_streaming_budget", None, 1 << 20),
    ):
        assert getattr(converted, name) == before
        setattr(converted, name, value)
        assert [getattr(engine, name) for engine in engines] == [value] * len(engines)
        assert getattr(converted, name) == value
        setattr(engines[0], name, before)
        assert getattr(converted, name) is None
    with pytest.raises(t2t.errors.EngineError, match="forbidden by require_engine"):
        converted(X)
