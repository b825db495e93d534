"""torch.compile(backend="t2t") and programs of torch.export."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import t2t
from t2t.compiler import backend
from t2t.errors import OptionError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean = torch.rand(4)
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.norm(self.conv(x)).relu() * self.scale
        return {"features": y, "mean": y.mean((2, 3))}


class Broken(nn.Module):
    """A graph break between two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(y).tanh()


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


class Counted:
    """Counts the conversions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Any] = []
        monkeypatch.setattr("t2t.compiler.convert", self.convert)

    def convert(self, *args: Any, **options: Any) -> Any:
        self.made.append(t2t.convert(*args, **options))
        return self.made[-1]


def test_a_model_is_compiled_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, model = Counted(monkeypatch), made(Net)
    compiled = torch.compile(model, backend="t2t")
    with torch.no_grad():
        for shape in ((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 9, 8), (1, 3, 8, 8)):
            x = torch.rand(shape)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
    assert len(counted.made) == 2


def test_graph_breaks_give_several_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, model = Counted(monkeypatch), made(Broken)
    compiled = torch.compile(model, backend="t2t", options={"fp16": True})
    with torch.no_grad():
        x = torch.rand(2, 16)
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-3, atol=2e-3)
    assert len(counted.made) == 2
    assert {module.precision for module in counted.made} >= {"fp16"}


def test_changed_weights_are_seen() -> None:
    model = made(Broken)
    compiled = torch.compile(model, backend="t2t")
    x = torch.rand(2, 16)
    with torch.no_grad():
        first = compiled(x)
        model.second.weight.mul_(0.5)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(compiled(x), first)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own
def test_what_needs_gradients_or_does_not_convert_runs_in_pytorch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = made(Broken)
    x = torch.rand(2, 16)
    with caplog.at_level(logging.WARNING, "t2t"):
        y = torch.compile(model, backend="t2t")(x)
        torch.testing.assert_close(y, model(x))
        y.sum().backward()
        assert "no gradients" in caplog.text
        with torch.no_grad():
            numbers = torch.compile(lambda x: torch.special.zeta(x, x), backend="t2t")
            torch.testing.assert_close(numbers(x + 1), torch.special.zeta(x + 1, x + 1))
    assert "a graph runs in PyTorch: " in caplog.text


def test_an_unknown_option_is_named() -> None:
    graph = torch.fx.symbolic_trace(nn.ReLU())
    with pytest.raises(OptionError, match="fp17"):
        backend(graph, [], options={"fp17": True})(torch.ones(2))


# -- torch.export ----------------------------------------------------------------------------------


def test_an_exported_program_brings_its_inputs() -> None:
    model, x = made(Net), torch.rand(1, 3, 8, 8)
    module = t2t.convert(torch.export.export(model, (x,)))
    for x in (torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)):
        with torch.no_grad():
            torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-6)


class Pair(nn.Module):
    def forward(self, x: Tensor, *, y: Tensor) -> Tensor:
        return (x @ y).relu().sum(-1)


def test_its_dynamic_sizes_are_the_engines() -> None:
    n, m = torch.export.Dim("n", min=2, max=9), torch.export.Dim("m", min=2, max=4)
    sizes = {"x": {0: n, 1: 2 * m}, "y": {0: 2 * m}}
    program = torch.export.export(
        Pair(), (torch.rand(3, 4),), {"y": torch.rand(4, 5)}, dynamic_shapes=sizes
    )
    module = t2t.convert(program)
    x, y = module.signature.inputs
    assert (x.min_shape, x.max_shape) == ((2, 4), (9, 8))
    assert (y.min_shape, y.max_shape) == ((4, 5), (8, 5))
    for rows, inner in ((2, 4), (9, 8), (5, 6)):
        a, b = torch.rand(rows, inner), torch.rand(inner, 5)
        torch.testing.assert_close(module(a, y=b), Pair()(a, y=b), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError):
        module(torch.rand(2, 5), y=torch.rand(5, 5))


def test_sizes_that_are_given_win() -> None:
    n = torch.export.Dim("n", min=2, max=9)
    program = torch.export.export(nn.ReLU(), (torch.rand(3, 4),), dynamic_shapes=({0: n},))
    module = t2t.convert(program, [torch.rand(2, 4)], max_batch_size=3)
    [x] = module.signature.inputs
    assert (x.min_shape, x.max_shape) in (((1, 4), (3, 4)), ((2, 4), (3, 4)))
