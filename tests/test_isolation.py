"""The module, torch and Python are left as they were: after a conversion, an error, or Ctrl-C."""

import array
import contextlib
import contextvars
import ctypes
import functools
import gc
import itertools
import math
import multiprocessing
import os
import random
import signal
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import t2t
from t2t.errors import ConversionError, StateError, T2TError, UnsupportedOperatorError
from t2t.float32 import default_dtype, float32_precision
from t2t.isolation import SavedMemory, preserved, storage_key
from t2t.isolation.preserve import _WriteGuard
from t2t.lowering import to_network
from t2t.reference import capture

pytestmark = [
    pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning"),
    pytest.mark.filterwarnings("ignore:a batch norm is in training mode"),
]

X = torch.linspace(-2, 3, 8).reshape(2, 4)


def run(module, *inputs, **options):
    conversion = to_network(module, inputs, **options)
    program = capture(conversion.network.raw, conversion.network.weights)
    return list(program.run([x.clone() for x in inputs]).values())


def assert_converts(module, *inputs) -> None:
    """The network gives what the module gives, on two inputs."""
    conversion = to_network(module, inputs)
    program = capture(conversion.network.raw, conversion.network.weights)
    for factor in (1.0, 1.5):
        given = [x * factor for x in inputs]
        with preserved(module), torch.no_grad():
            expected = module(*(x.clone() for x in given))
        torch.testing.assert_close(program.run(given)["output"], expected)


# -- compiled code -------------------------------------------------------------------------------


@torch.compile
def compiled_function(x):
    return torch.sin(x) + 1


class CallsCompiled(nn.Module):
    def forward(self, x):
        return compiled_function(x) * 2


class CompilesInside(nn.Module):
    def forward(self, x):
        @torch.compile
        def inner(y):
            return y * 3

        return inner(x) + torch.compile(torch.cos)(x)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()


def compiled_in_place() -> nn.Module:
    module = linear()
    module.compile()
    return module


COMPILED = {
    "module": lambda: torch.compile(linear()),
    "in place": compiled_in_place,
    "submodule": lambda: nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.Tanh()).eval(),
    "submodule in place": lambda: nn.Sequential(compiled_in_place(), nn.Tanh()).eval(),
    "function": lambda: CallsCompiled().eval(),
    "inside": lambda: CompilesInside().eval(),
    "twice": lambda: torch.compile(torch.compile(linear())),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_converts_as_eager(name: str) -> None:
    module = COMPILED[name]()
    assert t2t.missing_operators(module, [X]) == []
    first, second = run(module, X)[0], run(module, X * 0.5)[0]
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(first, module(X))
        torch.testing.assert_close(second, module(X * 0.5))


# -- state ---------------------------------------------------------------------------------------

CACHE: dict[str, Any] = {"calls": 0}
CALLS = 0
KEPT: list[Any] = []


class Assigns(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("y", torch.zeros(1))

    def forward(self, x):
        self.y = x + self.y
        return self.y


class CountsInDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.info = {"calls": {"n": 0}}

    def forward(self, x):
        self.info["calls"]["n"] += 1
        return x * self.info["calls"]["n"]


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = deque()

    def forward(self, x):
        self.history.append(0)
        return x * len(self.history)


class CountsInObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(scale=1.0)

    def forward(self, x):
        self.config.scale *= 1.5
        return x * self.config.scale


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 1


class CountsInSlot(nn.Module):
    def __init__(self):
        super().__init__()
        self.slotted = Slotted()

    def forward(self, x):
        self.slotted.n += 1
        return x + self.slotted.n


class CountsInClass(nn.Module):
    count = 0

    def forward(self, x):
        CountsInClass.count += 1
        return x + CountsInClass.count


class CountsInGlobal(nn.Module):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return x + CALLS


class CountsInGlobalDict(nn.Module):
    def forward(self, x):
        return x + bumped()


def bumped():
    CACHE["calls"] += 1
    return CACHE["calls"]


class CountsInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        return x * self.steps


class CountsInNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = np.zeros(1, np.float32)

    def forward(self, x):
        self.steps += 1
        return x * torch.from_numpy(self.steps)


class Difference(nn.Module):
    """The first call has no frame before it."""

    previous = None

    def forward(self, x):
        before = x if self.previous is None else self.previous
        self.previous = x
        return x - before


class DrawsOnce(nn.Module):
    @functools.lru_cache  # noqa: B019  the fault that is looked for
    def table(self):
        return self.last * 1

    def forward(self, x):
        self.last = x
        return x + self.table()


def closure_counter():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return x * count

    return function


def default_counter(x, calls=[]):  # noqa: B006  the fault that is looked for
    calls.append(0)
    return x * len(calls)


class Steps(nn.Module):
    """Multiplies by what the next step of something gives."""

    def __init__(self, source, step):
        super().__init__()
        self.source, self.step = source, step

    def forward(self, x):
        return x * self.step(self.source)


def numbers():
    value = 1
    while True:
        yield value
        value += 1


def counted(mapping):
    mapping[torch] = mapping.get(torch, 0) + 1
    return mapping[torch]


def in_thread(local):
    local.count = getattr(local, "count", 0) + 1
    return local.count


def filled(numbers):
    numbers[0] += 1
    return numbers[0]


def turned(table):
    table.move_to_end(next(iter(table)))
    return next(iter(table.values()))


def turned_plainly(table):
    first = next(iter(table))
    table[first] = table.pop(first)
    return next(iter(table.values()))


def raised(number):
    number.value += 1
    return number.value


def raised_in_module(_):
    import kept_by_another

    kept_by_another.calls += 1
    return kept_by_another.calls


def flipped(weight):
    weight.requires_grad_(not weight.requires_grad)
    return 2 if weight.requires_grad else 1


def in_environment(_):
    os.environ["CALLS"] = str(int(os.environ.get("CALLS", "0")) + 1)
    return int(os.environ["CALLS"])


LEVEL = contextvars.ContextVar("LEVEL", default=0)


def deeper(variable):
    variable.set(variable.get() + 1)
    return variable.get()


STATE = {
    "'y'": Assigns,
    r"info\['calls'\]\['n'\]": CountsInDict,
    r"history\[0\]": Appends,
    r"config\.scale": CountsInObject,
    r"slotted\.n": CountsInSlot,
    r"CountsInClass\.count": CountsInClass,
    r"CALLS": CountsInGlobal,
    r"CACHE\['calls'\]": CountsInGlobalDict,
    "'steps": CountsInNumpy,
    "'previous'": Difference,
    "'last', 'the cache of DrawsOnce.table": DrawsOnce,
    "count of closure_counter": closure_counter,
    "a default of default_counter": lambda: default_counter,
}


@pytest.mark.parametrize("name", STATE)
def test_state_is_refused_by_its_name(name: str) -> None:
    module = STATE[name]()
    before = described(module)
    with pytest.raises(UnsupportedOperatorError, match=rf"keeps state .*{name}"):
        to_network(module, [X])
    assert described(module) == before
    assert (CALLS, CACHE, CountsInClass.count) == (0, {"calls": 0}, 0)


# What Python keeps where no attribute shows it: how it begins, a step, and the name in the error.
HIDDEN = {
    "count": (lambda: itertools.count(1), next, "source"),
    "generator": (numbers, next, "source"),
    "list-iterator": (lambda: iter(range(1, 9)), next, "source"),
    "enumerate": (lambda: enumerate(range(9)), lambda x: 1.0 + next(x)[0], "source"),
    "random": (lambda: random.Random(1), lambda x: x.random(), "source"),
    "numpy-state": (lambda: np.random.RandomState(1), lambda x: float(x.rand()), "source"),
    "numpy-generator": (lambda: np.random.default_rng(1), lambda x: float(x.random()), "source"),
    "weak-keys": (weakref.WeakKeyDictionary, counted, "source"),
    "thread-local": (threading.local, in_thread, "source.count"),
    "array": (lambda: array.array("i", [0]), filled, "source"),
    "context": (lambda: LEVEL, deeper, "source"),
    "matrix": (lambda: np.zeros(1).view(np.recarray), filled, "source"),
    "order": (lambda: OrderedDict(a=1, b=2, c=3), turned, "the order of source"),
    "plain-order": (lambda: {"a": 1, "b": 2}, turned_plainly, "the order of source"),
    "ctypes": (lambda: ctypes.c_int(0), raised, "source"),
    "shared-memory": (lambda: multiprocessing.Value("i", 0), raised, "source"),
    "module": (int, raised_in_module, r"kept_by_another\.calls"),
    "requires-grad": (lambda: torch.zeros(1), flipped, "source.requires_grad"),
    "environment": (int, in_environment, "the environment variables"),
    "python-random": (int, lambda _: random.random(), "the random numbers of Python"),
    "numpy-random": (int, lambda _: float(np.random.rand()), "the random numbers of numpy"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_state_that_no_attribute_shows_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, step, where = HIDDEN[name]
    other = types.ModuleType("kept_by_another")
    other.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.delenv("CALLS", raising=False)
    with pytest.raises(StateError, match=rf"keeps state .*'{where}") as caught:
        to_network(Steps(make(), step), [X])
    drawn = where.startswith("the random numbers")
    assert ("draw the numbers outside" in str(caught.value)) == drawn
    assert LEVEL.get() == 0
    assert other.calls == 0
    assert "CALLS" not in os.environ


class FillsCache(nn.Module):
    """A cache that is made at the first call; at its first place nothing of others is read."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.cache = None

    def forward(self, x, place):
        if self.cache is None:
            self.cache = torch.zeros(8, 4)
        self.cache[place] = self.linear(x)
        return ((torch.arange(8) <= place).unsqueeze(1) * self.cache).sum(0)


def test_a_cache_that_the_example_does_not_show_is_refused() -> None:
    module = FillsCache().eval()
    with pytest.raises(StateError, match=r"'cache' is no tensor before the first call"):
        to_network(module, [X[:1], torch.tensor([0])])
    assert module.cache is None
    assert all(weight.requires_grad for weight in module.parameters())
    module.cache = torch.zeros(8, 4)
    assert list(t2t.convert(module, [X[:1], torch.tensor([0])]).state) == ["cache"]


class CachesBiases(nn.Module):
    """As timm's LeViT: a table of weights, made at the first call on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = str(x.device)
        if device not in self.cache:
            self.cache[device] = self.biases[torch.tensor([0, 2, 1, 0])]
        return x + self.cache[device]


def test_a_module_that_was_made_in_inference_mode() -> None:
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    converted = t2t.convert(module, [X])
    assert t2t.verify(module, converted, [X])
    assert module[1].running_var.is_inference()


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def default(request: pytest.FixtureRequest) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def test_any_default_dtype(default: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).float().eval()
    converted = t2t.convert(module, [X])
    report = t2t.verify(module, converted, [X])
    assert report.ok, report
    assert report.max_rel_error < 1e-6
    assert torch.get_default_dtype() == default


IMAGE = torch.rand(1, 3, 7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
BOXES = torch.tensor([[0.0, 1.0, 1.0, 6.0, 5.0], [0.0, 0.0, 2.0, 8.0, 6.0]], dtype=torch.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"),
        lambda x: F.interpolate(x, size=(5, 4), mode="bicubic", antialias=True),
        lambda x: F.affine_grid(x[:, :2, :1, :3].squeeze(2), [1, 3, 5, 6], align_corners=False),
        lambda x: torch.view_as_real(torch.view_as_complex(x[..., :2].contiguous() * 1e25) / 2.5),
        lambda x: (x - 0.5).angle(),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.0137, 0, -128, 127),
        lambda x: torchvision.ops.ps_roi_pool(x, BOXES, 1, 0.9),
        lambda x: F.batch_norm(x, x.mean((0, 2, 3)), x.var((0, 2, 3))),
        lambda x: torch.stft(x[0, 0], 8, 4, window=torch.hann_window(8, dtype=x.dtype),
                             return_complex=True).abs(),
    ],
)  # fmt: skip
def test_tables_are_float32_under_any_default(default: torch.dtype, function: Any) -> None:
    """As in PyTorch, where the tensors say what the result's type is."""
    expected = function(IMAGE)
    assert expected.dtype == torch.float32
    for result in run(function, IMAGE):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_a_table_of_weights_that_is_kept_converts() -> None:
    module = CachesBiases().eval()
    assert_converts(module, X)
    assert module.cache == {}


class CachesTokens(nn.Module):
    """A cache of what earlier tokens were, which this one does not read yet."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 4)
        self.cache: list[torch.Tensor] = []

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        if not self.cache:
            self.cache.append(torch.zeros(8, 4))
        self.cache[0] = self.cache[0].index_copy(0, place, self.embedding(token))
        return ((torch.arange(8) <= place).unsqueeze(1) * self.cache[0]).sum(0)


@pytest.mark.parametrize("words", [1, 9])
def test_a_cache_of_tokens_is_refused(words: int) -> None:
    """The only token that there is leaves the same behind in every call."""
    token = torch.tensor([0, words - 1])[-1:]
    with pytest.raises(StateError, match=r"keeps state .*'cache\[0\]'"):
        to_network(CachesTokens(words).eval(), [token, torch.tensor([0])])


def test_random_numbers_that_decide_nothing_convert() -> None:
    """As layer drop, which draws a number in evaluation, too."""

    def layer(x):
        return x + 1 if random.random() >= 0.0 else x

    random.seed(3)
    expected = random.random()
    random.seed(3)
    assert_converts(layer, X)
    assert random.random() == expected


def test_a_buffer_that_counts_in_place_is_kept_and_left() -> None:
    module = CountsInPlace()
    before = described(module)
    assert to_network(module, [X]).signature.state == ("steps",)
    assert described(module) == before


class KeepsLast(nn.Module):
    def forward(self, x):
        self.last = {"x": [x * 2]}
        KEPT.append(x)
        return x + 1


class CountsOnly(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x.relu()


class Anchors(nn.Module):
    """As detectors keep their anchors until the size changes."""

    shape = None

    def __init__(self):
        super().__init__()
        self.anchors = torch.empty(0)

    def forward(self, x):
        if self.shape != x.shape:
            self.anchors = torch.arange(x.shape[-1], dtype=x.dtype) + 0.5
            self.shape = x.shape
        return x + self.anchors


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = OrderedDict()

    def forward(self, x):
        if x.shape[0] not in self.tables:
            self.tables[x.shape[0]] = torch.arange(x.shape[0]).float().outer(torch.ones(4)).cos()
        return x * self.tables[x.shape[0]]


class RegistersInside(nn.Module):
    def forward(self, x):
        self.register_buffer("made", torch.ones(4))
        self.weight = nn.Parameter(torch.ones(4))
        self.part = nn.ReLU()
        self.register_forward_hook(lambda module, args, output: output)
        return self.part(x * self.made * self.weight)


class ReplacesData(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.weight.data = torch.full((4,), 2.0)
        self.weight.requires_grad_(False)
        return x * self.weight


@functools.lru_cache
def table(n):
    return torch.arange(n).float()


class CachesTable(nn.Module):
    def forward(self, x):
        return x + table(x.shape[-1])


class WritesByNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(4))
        self.array = np.zeros(4, np.float32)

    def forward(self, x):
        self.table.numpy()[:] = 5
        torch.from_numpy(self.array).fill_(3)
        return x + self.table


class DrawsAtConstruction(nn.Module):
    def forward(self, x):
        random.random()
        np.random.rand()
        torch.randn(3)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        self.training = True
        return x * 2


HARMLESS = (
    KeepsLast,
    CountsOnly,
    Anchors,
    Rotary,
    RegistersInside,
    ReplacesData,
    CachesTable,
    WritesByNumpy,
    DrawsAtConstruction,
)


@pytest.mark.parametrize("kind", HARMLESS, ids=lambda kind: kind.__name__)
def test_what_is_kept_is_gone_afterwards(kind: Any) -> None:
    module = kind().eval()
    before = described(module)
    draws = drawn()
    assert_converts(module, X)
    assert t2t.missing_operators(module, [X]) == []
    converted = t2t.convert(module, [X])
    assert t2t.verify(module, converted, [X]).ok
    t2t.compare_layers(converted.program, module, [X])
    assert described(module) == before
    assert KEPT == []
    assert table.cache_info().currsize == 0
    assert drawn() == draws
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("kind", [KeepsLast, Anchors, CachesTable])
def test_the_module_runs_after_a_dynamic_conversion(kind: Any) -> None:
    module = kind().eval()
    to_network(module, [X], dynamic_shapes=[{0: (1, 4)}])
    assert module(X[:1]).shape == (1, 4)
    with preserved(module):
        module(X)
    KEPT.clear()


class ImportsWhatItIsAskedFor(OrderedDict[str, Any]):
    """A table such as those of transformers' Auto classes: its methods may fail."""

    def _fails(self, *_: Any) -> Any:
        raise ValueError("no such model is installed")

    __getitem__ = __iter__ = __contains__ = __len__ = __bool__ = _fails  # type: ignore[assignment]
    keys = values = items = get = _fails  # type: ignore[assignment]


TABLE = ImportsWhatItIsAskedFor()
OrderedDict.__setitem__(TABLE, "a", 1)


class ReadsATable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recent = OrderedDict(a=torch.ones(4), b=torch.ones(4))
        self.recent.move_to_end("a")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.recent["a"] + OrderedDict.__getitem__(TABLE, "a")


def test_tables_with_methods_of_their_own_are_left_alone() -> None:
    module = ReadsATable().eval()
    assert_converts(module, X)
    assert list(module.recent) == ["b", "a"], "the order of an OrderedDict stays, too"
    assert list(OrderedDict.keys(TABLE)) == ["a"]


def test_hooks_may_keep_what_they_see() -> None:
    seen: list[Any] = []
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    handle = module[0].register_forward_hook(lambda part, args, output: seen.append(output))
    assert_converts(module, X)
    assert seen == []
    assert len(module[0]._forward_hooks) == 1
    handle.remove()


def test_autocast_keeps_no_cast_of_the_trace() -> None:
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.linear(x)

    module = Casts().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = module(X)
        to_network(module, [X])
        assert type(module(X)) is torch.Tensor
        assert torch.equal(module(X), expected)


def test_a_converted_module_is_not_rounded_inside_of_autocast() -> None:
    module = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 3)).eval()
    converted = t2t.convert(module, [X], progress=False)
    with torch.no_grad():
        expected = module(X)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(converted(X), expected, rtol=1e-5, atol=1e-6)
            assert torch.is_autocast_enabled("cpu")


def test_tables_are_not_rounded_by_autocast_around_the_conversion() -> None:
    def function(theta: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.affine_grid(theta, [1, 3, 5, 7], align_corners=False)

    theta = torch.linspace(-1, 1, 6).reshape(1, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = run(function, theta)
    torch.testing.assert_close(got, function(theta), rtol=1e-5, atol=1e-6)


# -- data that the trace does not see ------------------------------------------------------------


class FromThread(nn.Module):
    def __init__(self, reads_input: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.reads_input = reads_input

    def forward(self, x):
        made: list[torch.Tensor] = []
        source = x if self.reads_input else self.weight
        thread = threading.Thread(target=lambda: made.append(source.detach() * 2))
        thread.start()
        thread.join()
        return x + made[0]


@pytest.mark.parametrize("reads_input", [True, False])
def test_what_another_thread_makes_is_noticed(reads_input: bool) -> None:
    with pytest.raises(UnsupportedOperatorError, match="where t2t does not see it"):
        to_network(FromThread(reads_input), [X])


class Unseen(nn.Module):
    """Stands for code outside PyTorch: the trace takes its result for a constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 4))

    def forward(self, x):
        if type(x) is torch.Tensor:  # when it runs for real
            self.kept.copy_(x * 2)
        return self.kept


def test_an_output_that_depends_on_no_input_is_tried() -> None:
    with pytest.raises(UnsupportedOperatorError, match="output 0 depends on no input"):
        to_network(Unseen(), [X])


class Grid(nn.Module):
    def forward(self, x):
        return {"y": x + 1, "grid": torch.arange(x.shape[1]), "scale": torch.tensor(2.0)}


def test_outputs_that_are_constants_convert() -> None:
    y, grid, scale = run(Grid(), X)
    assert torch.equal(y, X + 1)
    assert torch.equal(grid, torch.arange(4))
    assert scale == 2


class FromBuffer(nn.Module):
    def forward(self, x):
        data = bytearray(np.arange(4, dtype=np.float32).tobytes())
        return x + torch.frombuffer(data, dtype=torch.float32) + torch.from_dlpack(np.ones(4, "f4"))


def test_python_buffers_are_constants() -> None:
    assert_converts(FromBuffer(), X)


# -- errors and Ctrl-C ---------------------------------------------------------------------------


class Stop(Exception):
    """Raised in the middle of a forward pass."""


def tick() -> None:
    """The place where a module fails; a test replaces it."""


class Everything(nn.Module):
    """Keeps, writes, caches, hooks and assigns, in the order that a test draws."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.linear = nn.Linear(4, 4)
        self.compiled = torch.compile(nn.Linear(4, 4))
        self.register_buffer("table", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4)
        self.cache: dict[Any, Any] = {"list": [], "set": set()}
        self.holder = SimpleNamespace(kept=None)

    def forward(self, x):
        for step in self.steps:
            tick()
            x = getattr(self, step)(x)
            tick()
        return x

    def assign(self, x):
        self.last = x
        return x + 1

    def write(self, x):
        self.table.fill_(3)
        self.linear.weight.data[0].fill_(2)
        return x + self.table

    def cached(self, x):
        self.cache[x.shape] = torch.ones(4)
        self.cache["list"].append(x)
        self.cache["set"].add("k")
        return x * self.cache[x.shape]

    def hold(self, x):
        self.holder.kept = x
        self.holder.more = self
        return x - 1

    def hook(self, x):
        self.linear.register_forward_hook(lambda module, args, output: output)
        return x

    def call(self, x):
        return self.norm(self.linear(x))

    def call_compiled(self, x):
        return self.compiled(x)

    def switch(self, x):
        self.train(not self.training)
        torch.set_grad_enabled(False)
        self.requires_grad_(False)
        return F.relu(x)

    def replace(self, x):
        self.linear = nn.Linear(4, 4)
        del self.holder
        self.holder = SimpleNamespace(kept=None)
        return x


STEPS = (
    "assign", "write", "cached", "hold", "hook", "call", "call_compiled", "switch", "replace",
)  # fmt: skip


def described(module: Any) -> Any:
    """Write down a module as it is: names, identities of objects, and the bits of tensors."""
    seen: set[int] = set()

    def form(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            data = value.detach().clone()
            return (id(value), value.requires_grad, data.dtype, data.numpy().tobytes())
        if isinstance(value, np.ndarray):
            return (id(value), value.tobytes())
        if isinstance(value, dict):
            return (id(value), [(key, form(item)) for key, item in value.items()])
        if isinstance(value, list | tuple | deque):
            return (id(value), [form(item) for item in value])
        if isinstance(value, set):
            return (id(value), sorted(map(repr, value)))
        names = [*vars(value)] if hasattr(value, "__dict__") else getattr(value, "__slots__", [])
        if not names or id(value) in seen or isinstance(value, type):
            return id(value) if callable(value) or names else repr(value)
        seen.add(id(value))
        return (id(value), [(name, form(getattr(value, name))) for name in names])

    return form(module)


def drawn() -> Any:
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],
    )


def patched_names() -> list[Any]:
    owners = (torch, torch.Tensor, F, nn.Module, torch.backends.mha, math, torch._VF)
    return [{n: v for n, v in vars(owner).items() if not n.startswith("__")} for owner in owners]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5))
def test_modules_are_left_after_an_error_at_any_call(steps: list[str]) -> None:
    module = Everything(steps).eval()
    before, draws, names = described(module), drawn(), patched_names()
    calls = 0
    for error in (Stop, KeyboardInterrupt):
        for stop in range(2 * len(steps) + 1):
            calls = 0

            def raising(stop=stop, error=error) -> None:
                nonlocal calls
                calls += 1
                if calls > stop:
                    raise error

            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(globals(), "tick", raising)
                with contextlib.suppress(error, ConversionError):
                    run(module, X)
            assert described(module) == before
            assert drawn() == draws
            assert patched_names() == names
            assert torch.is_grad_enabled()
            assert gc.isenabled()


IN_MAIN = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach that only"
)
# Python reports, and drops, what is raised while it frees an object.
DROPPED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@IN_MAIN
@DROPPED
def test_ctrl_c_while_an_object_is_freed(default_interrupts: None) -> None:
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    class Frees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Freed()
            return x * 2

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        to_network(Frees(), [X])
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.fixture
def default_interrupts() -> Any:
    # A shell's background jobs start with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@IN_MAIN
@DROPPED
def test_ctrl_c_at_any_point_leaves_everything(default_interrupts: None) -> None:
    module = Everything(["assign", "write", "cached", "call", "hook", "hold"]).eval()
    before, names = described(module), patched_names()
    to_network(module, [X])
    handler = signal.getsignal(signal.SIGINT)

    def interrupted(at: int) -> int:
        """Send Ctrl-C at the n-th call of a Python function; return how many there were."""
        events = 0

        def profile(frame: Any, event: str, arg: Any) -> None:
            nonlocal events
            events += 1
            if events == at:
                signal.raise_signal(signal.SIGINT)

        sys.setprofile(profile)
        try:
            to_network(module, [X])
        except KeyboardInterrupt:
            pass
        else:
            assert events < at
        finally:
            sys.setprofile(None)
        return events

    total = interrupted(1 << 62)
    generator = random.Random(0)
    for at in sorted(generator.sample(range(1, total), 60)):
        interrupted(at)
        assert described(module) == before
        assert patched_names() == names
        assert signal.getsignal(signal.SIGINT) is handler
        assert gc.isenabled()
    assert_still_works(module)


def assert_still_works(module: nn.Module) -> None:
    with preserved(module), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        assert type(module(X)) is torch.Tensor


# -- threads -------------------------------------------------------------------------------------


def test_conversions_and_plain_torch_do_not_mix() -> None:
    """Five threads convert, five run the same kinds of module in plain torch."""
    failures: list[BaseException] = []
    done = threading.Event()

    def guarded(work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  shown by the test
            failures.append(error)

    def convert(seed: int) -> None:
        for turn in range(3):
            torch.manual_seed(seed)
            module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GELU(), nn.Flatten(), nn.Linear(48, 4))
            module.eval()
            x = torch.full((1, 2, 6, 6), 0.1 * (seed + turn))
            (got,) = run(module, x)
            with torch.no_grad():
                torch.testing.assert_close(got, module(x))

    def compute(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(1, 2, 6, 6, generator=generator)
        convolution = nn.Conv2d(2, 3, 3)
        expected = F.gelu(convolution(x)).flatten(1).contiguous().reshape(3, -1)
        while not done.is_set():
            got = F.gelu(convolution(x)).flatten(1).contiguous().reshape(3, -1)
            assert type(got) is torch.Tensor
            assert torch.equal(got, expected)
            assert got.requires_grad
            assert len(x.numpy().shape) == 4

    plain = [
        threading.Thread(target=guarded, args=[functools.partial(compute, i)]) for i in range(5)
    ]
    converting = [
        threading.Thread(target=guarded, args=[functools.partial(convert, i)]) for i in range(5)
    ]
    for thread in (*plain, *converting):
        thread.start()
    for thread in converting:
        thread.join()
    done.set()
    for thread in plain:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_only_memory_that_was_there_before_is_saved(mode: Any) -> None:
    """What a pass makes is not copied; an operator may return its input, which is not of it."""
    weight, memory = nn.Parameter(torch.ones(8)), SavedMemory()
    with mode(), _WriteGuard(memory):
        made = torch.cat([weight * 2, weight])
        made[2:].relu_().add_(1)
        nn.functional.dropout(weight, 0.5, training=False).add_(1)
        weight.view(2, 4)[1].mul_(3)
        torch.zeros(8).copy_(weight)
    assert list(memory) == [storage_key(weight)]
    assert weight.tolist() == [2.0] * 4 + [6.0] * 4
    memory.restore()
    assert torch.equal(weight, torch.ones(8))


def test_an_error_in_verify_leaves_the_module() -> None:
    module = Everything(["assign", "hook", "write", "switch"]).eval()
    before = described(module)

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise T2TError("no")

    report = t2t.verify(module, fails, [X])
    assert not report.ok
    assert described(module) == before


# -- float32 in float32 --------------------------------------------------------------------------

backends = torch.backends
PRECISIONS = {
    "as PyTorch comes": lambda: None,
    "TF32 for matrix products": lambda: torch.set_float32_matmul_precision("high"),
    "bfloat16 for matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "no TF32 for convolutions": lambda: setattr(backends.cudnn, "allow_tf32", False),
    "only cuBLAS": lambda: setattr(backends.cuda.matmul, "allow_tf32", True),
}
if hasattr(backends, "fp32_precision"):
    PRECISIONS |= {
        "everything": lambda: setattr(backends, "fp32_precision", "tf32"),
        "everything exact": lambda: setattr(backends, "fp32_precision", "ieee"),
        "cuDNN": lambda: setattr(backends.cudnn, "fp32_precision", "tf32"),
        "cuBLAS": lambda: setattr(backends.cuda.matmul, "fp32_precision", "tf32"),
        "oneDNN": lambda: setattr(backends.mkldnn.matmul, "fp32_precision", "bf16"),
    }


def float32_setting() -> list[Any]:
    """Everything that can be asked about it; some questions raise, by what was set."""
    owners = [backends, backends.cudnn, backends.cuda.matmul]
    for library in (backends.cudnn, backends.mkldnn):
        owners += [getattr(library, name, None) for name in ("conv", "rnn", "matmul")]
    questions: list[Any] = [
        torch.get_float32_matmul_precision,
        lambda: backends.cuda.matmul.allow_tf32,
        lambda: backends.cudnn.allow_tf32,
        *(lambda owner=owner: getattr(owner, "fp32_precision", None) for owner in owners),
    ]
    found: list[Any] = []
    for question in questions:
        try:
            found.append(question())
        except RuntimeError:
            found.append("raises")
    return found


def convolutions_are_exact() -> bool:
    conv = getattr(backends.cudnn, "conv", None)
    return conv.fp32_precision == "ieee" if conv else not backends.cudnn.allow_tf32


class SeesTheSetting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen, self.pipe = os.pipe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Lists would be put back as they were.
        os.write(self.pipe, b"exact " if convolutions_are_exact() else b"else ")
        return self.linear(x)


@pytest.mark.parametrize("name", PRECISIONS)
def test_float32_is_exact_where_results_are_compared(name: str) -> None:
    """In a process of its own: nothing takes such a setting back wholly."""
    process = multiprocessing.get_context("fork").Process(target=_compares, args=(name,))
    process.start()
    process.join()
    assert process.exitcode == 0


def _compares(name: str) -> None:
    PRECISIONS[name]()
    before = float32_setting()
    module = SeesTheSetting().eval()
    converted = t2t.convert(module, [X])
    os.read(module.seen, 1000)
    assert float32_setting() == before
    for work in (
        lambda: t2t.verify(module, converted, [X], raise_on_error=True),
        lambda: t2t.compare_layers(converted, module, [X]),
        lambda: t2t.convert(module, [X], fp16=True, tolerance=1e-6),
    ):
        work()
        assert os.read(module.seen, 1000).split()[-1] == b"exact"
        assert float32_setting() == before
    watched: list[bool] = []
    converted.program.run([X], watch=lambda layer, made: watched.append(convolutions_are_exact()))
    assert watched
    assert all(watched)
    assert float32_setting() == before


def test_threads_share_the_default_dtype(default: torch.dtype) -> None:
    """One that began while another held float32 puts back the user's."""
    with default_dtype.held():
        context = preserved(nn.Identity())
        context.__enter__()
        assert torch.get_default_dtype() == torch.float32
    context.__exit__(None, None, None)
    assert torch.get_default_dtype() == default


def test_threads_share_float32() -> None:
    """One that began while another was comparing puts back what was before both."""
    before, entered, go = float32_setting(), threading.Event(), threading.Event()

    def converts() -> None:
        with preserved(nn.Identity()):
            entered.set()
            go.wait()

    thread = threading.Thread(target=converts)
    with float32_precision.held():
        thread.start()
        entered.wait()
        assert convolutions_are_exact()
    assert float32_setting() == before
    with float32_precision.held():
        go.set()
        thread.join()
        assert convolutions_are_exact()
    assert float32_setting() == before
