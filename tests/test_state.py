"""Modules that keep tensors between calls: right over a sequence of calls, saved, reset."""

from types import SimpleNamespace
from typing import Any, NamedTuple

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


# -- tensors in other places than attributes of modules ------------------------------------------


class Linear(nn.Module):
    """Reads what it keeps and writes it; ``hold`` makes the place, ``step`` the write."""

    def __init__(self, hold: Any, step: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.step = nn.Linear(4, 4), step
        hold(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.step(self, y.tanh()) + x


class Slotted:
    __slots__ = ("h",)

    def __init__(self) -> None:
        self.h = torch.zeros(2, 4)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def zeros(count: int = 2) -> list[Tensor]:
    return [torch.zeros(2, 4) for _ in range(count)]


def set_lists(m: Any) -> None:
    m.states = zeros()


def set_tuple(m: Any) -> None:
    m.states = tuple(zeros())


def set_pair(m: Any) -> None:
    m.states = Pair(*zeros())


def set_dict(m: Any) -> None:
    m.states = {"a": torch.zeros(2, 4)}


def set_slots(m: Any) -> None:
    m.states = SimpleNamespace(layers=[Slotted()])


def set_shared(m: Any) -> None:
    m.register_buffer("kept", torch.zeros(2, 4))
    m.states, m.pair = [m.kept], {"x": (m.kept, 1)}


def set_two(m: Any) -> None:
    m.a, m.b = zeros()


def new_list(m: Any, y: Tensor) -> Tensor:
    m.states = [s * (i + 1) + y for i, s in enumerate(m.states)]
    return m.states[0] - m.states[1] * 2


def new_items(m: Any, y: Tensor) -> Tensor:
    for i in range(2):
        m.states[i] = m.states[i] * (i + 1) + y
    return m.states[0] - m.states[1] * 2


def in_place(m: Any, y: Tensor) -> Tensor:
    for i in range(2):
        m.states[i].mul_(0.5).add_(y * (i + 1))
    return m.states[0] - m.states[1] * 2


def new_tuple(m: Any, y: Tensor) -> Tensor:
    m.states = (m.states[1] + y, m.states[0] * 0.5)
    return m.states[0] - m.states[1] * 2


def new_pair(m: Any, y: Tensor) -> Tensor:
    m.states = Pair(a=m.states.b + y, b=m.states.a * 0.5)
    return m.states.a - m.states.b * 2


def new_key(m: Any, y: Tensor) -> Tensor:
    m.states["a"] = m.states["a"] + y
    return m.states["a"]


def new_dict(m: Any, y: Tensor) -> Tensor:
    m.states = {"a": m.states["a"] + y}
    return m.states["a"]


def new_slot(m: Any, y: Tensor) -> Tensor:
    m.states.layers[0].h = m.states.layers[0].h + y
    return m.states.layers[0].h


def written_by_one_name(m: Any, y: Tensor) -> Tensor:
    m.states[0].add_(y)
    return m.kept * 2 + m.pair["x"][0]


def swapped(m: Any, y: Tensor) -> Tensor:
    m.a.add_(y)
    m.a, m.b = m.b, m.a
    return m.a - m.b * 3


PLACES = [
    (set_lists, new_list, ["states[0]", "states[1]"]),
    (set_lists, new_items, ["states[0]", "states[1]"]),
    (set_lists, in_place, ["states[0]", "states[1]"]),
    (set_tuple, in_place, ["states[0]", "states[1]"]),
    (set_tuple, new_tuple, ["states[0]", "states[1]"]),
    (set_pair, new_pair, ["states[0]", "states[1]"]),
    (set_dict, new_key, ["states['a']"]),
    (set_dict, new_dict, ["states['a']"]),
    (set_slots, new_slot, ["states.layers[0].h"]),
    (set_shared, written_by_one_name, ["kept"]),
    (set_two, swapped, ["a", "b"]),
]


@pytest.mark.parametrize(
    ("hold", "step", "names"), PLACES, ids=lambda x: getattr(x, "__name__", "")
)
def test_where_state_may_be(hold: Any, step: Any, names: list[str], tmp_path: Any) -> None:
    model, calls = Linear(hold, step).eval(), inputs((2, 4), 4)
    before = str(vars(model))
    module = t2t.convert(model, [calls[0]])
    assert str(vars(model)) == before
    assert sorted(module.state) == names
    check(model, module, calls)
    module.save(tmp_path / "net.pt")
    check(model, t2t.load(tmp_path / "net.pt"), calls)


def test_all_state_is_found_in_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    count, original = 0, t2t.lowering.trace

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **kwargs)

    def hold(m: Any) -> None:
        m.states = zeros(9)

    def step(m: Any, y: Tensor) -> Tensor:
        for state in m.states:
            state.add_(y)
        return m.states[8]

    monkeypatch.setattr(t2t.lowering, "trace", counted)
    module = t2t.convert(Linear(hold, step).eval(), inputs((2, 4), 1))
    assert len(module.state) == 9
    assert count == 2


def keys(m: Any) -> None:
    m.register_buffer("keys", torch.zeros(1, 2, 6, 4))


WRITES: list[Any] = [
    lambda m, y, at: m.keys.__setitem__((slice(None), slice(None), at), y),
    lambda m, y, at: m.keys.__setitem__((slice(None), slice(None), at[0]), y[:, :, 0]),
    lambda m, y, at: m.keys[:, :, at[0]].copy_(y[:, :, 0]),
    lambda m, y, at: m.keys.narrow(2, at[0], 1).copy_(y),
    lambda m, y, at: m.keys.index_copy_(2, at, y),
    lambda m, y, at: m.keys.scatter_(2, at.view(1, 1, 1, 1).expand(1, 2, 1, 4), y),
    lambda m, y, at: m.keys.copy_(torch.where((torch.arange(6) == at)[:, None], y, m.keys)),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_cache_is_written_at_a_position(write: Any) -> None:
    class Written(Linear):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:  # type: ignore[override]
            self.step(self, self.linear(x), at)
            seen = (torch.arange(6) <= at).float()
            return (self.keys * seen[:, None]).sum(2)

    model = Written(keys, write).eval()
    calls = [(x, torch.tensor([n])) for n, x in enumerate(inputs((1, 2, 1, 4)))]
    module = t2t.convert(model, list(calls[2]))
    with torch.no_grad():
        for given in calls:
            torch.testing.assert_close(module(*given), model(*given), rtol=1e-5, atol=1e-6)


def test_an_lstm_keeps_its_pair_of_states() -> None:
    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)
            self.hidden = (torch.zeros(1, 1, 5), torch.zeros(1, 1, 5))

        def forward(self, x: Tensor) -> Tensor:
            y, self.hidden = self.lstm(x, self.hidden)
            return y

    model, calls = made(Stream), inputs((1, 3, 4))
    module = t2t.convert(model, [calls[0]])
    assert set(module.state) == {"hidden[0]", "hidden[1]"}
    check(model, module, calls)


class Parts(nn.Module):
    """One name of its buffer gets another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3))
        self.other = [self.kept]

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.kept + x[0]
        return x + self.kept + self.other[0]


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = [torch.zeros(4, 3)]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return torch.stack(self.seen).sum(0)


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
        (Counts, "keep 'calls' as a tensor"),
        (Starts, "'last' is no tensor before the first call; let it begin as one"),
        (Parts, "'kept', which has several names"),
        (Appends, r"'seen\[1\]'.*let forward\(\) take the state as an input"),
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
