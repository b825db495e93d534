"""Modules that keep tensors between calls: right over a sequence of calls, saved, reset."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import t2t
from t2t.errors import CheckpointError, ShapeError, StateError, UnsupportedOperatorError

pytestmark = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


class Mean(nn.Module):
    """A running mean, written in place into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class Assigned(nn.Module):
    """The same by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


class Attribute(nn.Module):
    """A recurrence over an attribute that is no buffer, inside a submodule."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 5)
            self.hidden = torch.zeros(2, 5)

        def forward(self, x: Tensor) -> Tensor:
            self.hidden = self.cell(x, self.hidden)
            return self.hidden

    def __init__(self) -> None:
        super().__init__()
        self.cell = self.Cell()
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x))


class Streaming(nn.Module):
    """A causal convolution that keeps the last samples of the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 4)
        self.register_buffer("past", torch.zeros(1, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.past, x], -1)
        self.past.copy_(x[..., -3:])
        return self.conv(x)


class Cache(nn.Module):
    """Attention over a static cache of keys and values, with a position that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 6, 8))
        self.register_buffer("values", torch.zeros(1, 6, 8))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        at = self.position.reshape(1)
        self.keys.index_copy_(1, at, k)
        self.values.index_copy_(1, at, v)
        seen = torch.arange(6) <= self.position
        scores = (q @ self.keys.transpose(1, 2)).masked_fill(~seen, -1e9)
        self.position += 1
        return scores.softmax(-1) @ self.values


CASES: list[tuple[type[nn.Module], tuple[int, ...]]] = [
    (Mean, (4, 3)),
    (Assigned, (4, 3)),
    (Attribute, (2, 4)),
    (Streaming, (1, 2, 7)),
    (Cache, (1, 1, 8)),
]


def inputs(shape: tuple[int, ...], count: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def check(model: nn.Module, module: nn.Module, calls: list[Tensor]) -> None:
    with torch.no_grad():
        for x in calls:
            torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_a_sequence_of_calls(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    model = made(kind)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    calls = inputs(shape)
    module = t2t.convert(model, [calls[0]])
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]), f"the conversion changed {name}"
    check(model, module, calls)
    # Anew, from where the original was when it was converted.
    module.reset_state()
    check(made(kind), module, calls)
    assert set(module.state) <= {*before, "cell.hidden"}


def test_the_state_is_saved_and_goes_on(tmp_path: Any) -> None:
    model = made(Streaming)
    calls = inputs((1, 2, 7))
    module = t2t.convert(model, [calls[0]])
    check(model, module, calls[:2])
    assert torch.equal(module.state_dict()["state.past"], model.past)
    module.save(tmp_path / "net.pt")
    loaded = t2t.load(tmp_path / "net.pt")
    assert torch.equal(loaded.state["past"], model.past)
    check(model, loaded, calls[2:])
    # The initial state is saved, too.
    loaded.reset_state()
    check(made(Streaming), loaded, calls)


def test_a_damaged_state_is_refused() -> None:
    module = t2t.convert(made(Mean), [torch.ones(4, 3)])
    good = module.state_dict()
    for x in (torch.zeros(2), torch.zeros(3, dtype=torch.float64), "zeros"):
        with pytest.raises(CheckpointError, match="'mean'"):
            module.load_state_dict({**good, "state.mean": x})
    with pytest.raises(CheckpointError):
        module.load_state_dict({**good, "initial.mean": torch.ones(3)})
    module.load_state_dict(good)
    with pytest.raises(ShapeError, match="state"):
        module.set_state({"mean": torch.zeros(2)})


def test_the_state_is_named_and_set() -> None:
    module = t2t.convert(made(Mean), [torch.ones(4, 3)])
    assert "keeps mean: torch.float32 (3,)" in repr(module)
    assert module.input_names == ["x", "state_mean"]
    module.set_state({"mean": torch.full((3,), 2.0)})
    x = torch.zeros(4, 3)
    torch.testing.assert_close(module(x), torch.full((4, 3), -1.8))


def test_it_depends_on_the_state_and_verify_leaves_it() -> None:
    model = made(Mean)
    calls = inputs((4, 3))
    module = t2t.convert(model, [calls[0]])
    first = module(calls[0])
    assert not torch.allclose(module(calls[0]), first, rtol=1e-3)
    kept = module.state["mean"].clone()
    report = t2t.verify(model, module, [calls[1]])
    assert report.ok
    assert torch.equal(module.state["mean"], kept)
    assert t2t.compare_layers(module, model, [calls[1]]).ok


def test_in_half_precision_and_with_a_dynamic_batch() -> None:
    model = made(Mean)
    module = t2t.convert(model, [torch.ones(4, 3)], fp16=True, max_batch_size=6)
    calls = [*inputs((4, 3), 2), *inputs((6, 3), 2), *inputs((1, 3), 1)]
    with torch.no_grad():
        for x in calls:
            torch.testing.assert_close(module(x), model(x), rtol=2e-3, atol=2e-3)
    assert module.state["mean"].dtype == torch.float32


def test_it_goes_along_to_another_place() -> None:
    module = t2t.convert(made(Mean), [torch.ones(4, 3)])
    module(torch.ones(4, 3))
    assert module.to("meta").state["mean"].is_meta


class Through(nn.Module):
    """Reads what it keeps through a view, or another name, that was made before."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 3))
        self.row, self.held, self.read = self.kept[0], [self.kept], read

    def forward(self, x: Tensor) -> Tensor:
        self.kept.copy_(x)
        return x + self.read(self)


@pytest.mark.parametrize(
    "read",
    [
        lambda m: m.row,
        lambda m: m.row + 1,
        lambda m: m.held[0].sum(),
        lambda m: torch.from_numpy(m.row.numpy()),
        lambda m: m.row.add_(1),
    ],
)
def test_other_ways_to_the_memory_of_state_are_refused(read: Any) -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"'kept'|made before the forward pass"):
        t2t.convert(Through(read), [torch.ones(4, 3)])


def test_state_beside_operators_that_stay_in_pytorch() -> None:
    model = made(Mean)
    calls = inputs((4, 3))
    module = t2t.convert(
        model, [calls[0]], partial=True, torch_executed_ops=["aten::sub"], min_block_size=1
    )
    assert not all(part.in_engine for part in module.parts)
    check(model, module, calls)
    module.reset_state()
    check(made(Mean), module, calls)


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Starts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros_like(x) if self.last is None else self.last
        self.last = x
        return x - before


class Trains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5).add_(x.mean(0))
        return x * self.weight


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Grows, r"'seen', which is torch.float32 \(1, 3\) before a call and .*\(5, 3\) after"),
        (Counts, "'calls'"),
        (Starts, "'last'"),
        (Trains, "'weight'"),
    ],
)
def test_what_no_engine_can_keep(kind: type[nn.Module], words: str) -> None:
    model = made(kind)
    with pytest.raises(UnsupportedOperatorError, match=words):
        t2t.convert(model, [torch.ones(4, 3)])
    if isinstance(model, Starts):
        assert model.last is None


def test_the_error_names_what_is_kept() -> None:
    with pytest.raises(StateError) as caught:
        t2t.convert(made(Counts), [torch.ones(4, 3)])
    assert caught.value.names == ("calls",)
