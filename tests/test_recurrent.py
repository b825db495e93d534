"""Recurrent layers, as loops: every kind and argument of them, models with them, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import t2t
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.lowering import Conversion, to_network
from t2t.precision import Policy
from t2t.reference import capture
from tests.cases import Autocast, OpCase, ids, run_case

pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning"),
]

FP16, BF16 = Policy(low=torch.float16), Policy(low=torch.bfloat16)
HALF = "half products, as fp16 has them: 2e-3 of values up to 1"
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn-relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}
# Two kinds stand for all where the arguments do not meet what a step computes.
TWO = ("lstm", "rnn")
# With one sequence and states smaller than 8, TensorRT-RTX takes minutes for GRUs of static length.
INPUT, STATE, SIZE = 4, 8, 5
LAYERS: dict[str, dict[str, Any]] = {
    "one": {},
    "layers": {"num_layers": 3},
    "bidirectional": {"bidirectional": True},
    "batch-first": {"batch_first": True},
    "no-bias": {"bias": False},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.5},
    "all-no-bias": {"num_layers": 2, "bidirectional": True, "bias": False},
}
ALL = LAYERS["all"]
DYNAMIC = [{0: ("a", 1, 9), 1: ("b", 1, 9)}]


def make(kind: str, dtype: torch.dtype = torch.float32, **options: Any) -> nn.RNNBase:
    """Make a layer in eval mode."""
    torch.manual_seed(len(kind))
    return KINDS[kind](INPUT, STATE, **options).to(dtype).eval()


class Stated(nn.Module):
    """Takes the initial states as inputs of their own."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None = None) -> Any:
        return self.rnn(x, h if c is None else (h, c))


class Zeros(nn.Module):
    """Makes its initial states in forward, as many models do."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.zeros(1, x.size(1), STATE) + 0.5
        return self.rnn(x, (h, h) if isinstance(self.rnn, nn.LSTM) else h)


def states(kind: str, *shape: int) -> list[tuple[int, ...]]:
    return [shape] * (2 if kind == "lstm" else 1)


def drawn(*shape: int, dtype: torch.dtype) -> Any:
    return lambda generator: torch.randn(shape, generator=generator).to(dtype)


MODULES = [
    *(
        OpCase(f"{kind}-{name}", make(kind, **options), [(SIZE, 2, INPUT)])
        for kind in KINDS
        for name, options in LAYERS.items()
        if kind in TWO or name in ("one", "all", "all-no-bias")
    ),
    *(
        OpCase(f"{kind}-{name}-dynamic", make(kind, **LAYERS[name]), [(SIZE, 2, INPUT)],
               dynamic=DYNAMIC, shapes=[(7, 3, INPUT)])
        for kind in KINDS
        for name in ("one", "all")
    ),
    # A size of 1 in the example is not special, nor is one in the second run.
    *(
        OpCase(f"{kind}-dynamic-from-1", make(kind, **ALL), [(1, 1, INPUT)],
               dynamic=DYNAMIC, shapes=[(7, 3, INPUT)])
        for kind in TWO
    ),
    *(
        OpCase(f"{kind}-dynamic-to-1", make(kind, **ALL), [(5, 3, INPUT)],
               dynamic=DYNAMIC, shapes=[(1, 1, INPUT)])
        for kind in TWO
    ),
    *(
        OpCase(f"{kind}-dynamic-length", make(kind, bidirectional=True), [(SIZE, 2, INPUT)],
               dynamic=[{0: (1, 9)}], shapes=[(9, 2, INPUT)])
        for kind in TWO
    ),
    *(
        OpCase(f"{kind}-dynamic-batch", make(kind, bidirectional=True), [(SIZE, 2, INPUT)],
               dynamic=[{1: (1, 9)}], shapes=[(SIZE, 4, INPUT)])
        for kind in TWO
    ),
    *(OpCase(f"{kind}-one-step", make(kind, **ALL), [(2, 1, INPUT)]) for kind in TWO),
    *(OpCase(f"{kind}-long", make(kind), [(200, 2, INPUT)]) for kind in KINDS),
    *(OpCase(f"{kind}-unbatched", make(kind, **ALL), [(SIZE, INPUT)]) for kind in KINDS),
    *(
        OpCase(f"{kind}-unbatched-dynamic", make(kind), [(SIZE, INPUT)], dynamic=[{0: (1, 9)}],
               shapes=[(8, INPUT)])
        for kind in TWO
    ),
]  # fmt: skip

STATES = [
    *(
        OpCase(f"{kind}-states", Stated(make(kind, **ALL)),
               [(2, SIZE, INPUT), *states(kind, 4, 2, STATE)])
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-states-dynamic", Stated(make(kind, **ALL)),
               [(2, SIZE, INPUT), *states(kind, 4, 2, STATE)],
               dynamic=[{0: ("n", 1, 8), 1: (1, 9)}, *[{1: ("n", 1, 8)}] * len(states(kind))],
               shapes=[(3, 7, INPUT), *states(kind, 4, 3, STATE)])
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-states-unbatched", Stated(make(kind, num_layers=2)),
               [(SIZE, INPUT), *states(kind, 2, STATE)])
        for kind in TWO
    ),
    *(
        OpCase(f"{kind}-states-constant", Zeros(make(kind)), [(SIZE, 2, INPUT)]) for kind in TWO
    ),
    *(
        OpCase(f"{kind}-states-made-dynamic", Zeros(make(kind)), [(SIZE, 2, INPUT)],
               dynamic=DYNAMIC, shapes=[(3, 4, INPUT)])
        for kind in TWO
    ),
    OpCase("constant-input", lambda h: GRU(torch.ones(SIZE, 2, INPUT), h), [(1, 2, STATE)]),
    OpCase("nothing-traced", lambda x: GRU(torch.ones(SIZE, 2, INPUT))[0] + x, [(2, STATE)]),
]  # fmt: skip

GRU, LSTM = make("gru"), make("lstm", num_layers=2)
OTHER = torch.randn(4 * STATE, STATE)

PROJECTIONS = [
    OpCase("one", make("lstm", proj_size=2), [(SIZE, 2, INPUT)]),
    OpCase("all", make("lstm", proj_size=2, **ALL), [(2, SIZE, INPUT)]),
    OpCase("no-bias", make("lstm", proj_size=2, **LAYERS["all-no-bias"]), [(SIZE, 2, INPUT)]),
    OpCase("dynamic", make("lstm", proj_size=1, **ALL), [(2, SIZE, INPUT)],
           dynamic=DYNAMIC, shapes=[(3, 2, INPUT)]),
    OpCase("states", Stated(make("lstm", proj_size=2, num_layers=2)),
           [(SIZE, 2, INPUT), (2, 2, 2), (2, 2, STATE)]),
    OpCase("fp16", make("lstm", proj_size=2, **ALL), [(2, SIZE, INPUT)], policy=FP16,
           atol=2e-3, reason=HALF),
    OpCase("half", make("lstm", torch.float16, proj_size=2, **ALL),
           [drawn(2, SIZE, INPUT, dtype=torch.float16)]),
]  # fmt: skip

PRECISION = [
    *(
        OpCase(f"{kind}-fp16", make(kind, **ALL), [(2, SIZE, INPUT)], policy=FP16,
               atol=2e-3, reason=HALF)
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-fp16-dynamic", make(kind, **ALL), [(2, SIZE, INPUT)], policy=FP16,
               dynamic=DYNAMIC, shapes=[(3, 8, INPUT)], atol=2e-3, reason=HALF)
        for kind in TWO
    ),
    *(
        OpCase(f"{kind}-bf16", make(kind), [(SIZE, 2, INPUT)], policy=BF16, atol=2e-2,
               reason="products in bfloat16, which has 8 bits")
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-half", make(kind, torch.float16, **ALL),
               [drawn(2, SIZE, INPUT, dtype=torch.float16)])
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-half-fp16", make(kind, torch.float16), policy=FP16,
               inputs=[drawn(SIZE, 2, INPUT, dtype=torch.float16)])
        for kind in TWO
    ),
    *(
        OpCase(f"{kind}-bfloat16", make(kind, torch.bfloat16),
               [drawn(SIZE, 2, INPUT, dtype=torch.bfloat16)])
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-autocast", Autocast(make(kind, num_layers=2)), [(SIZE, 2, INPUT)],
               atol=3e-2, rtol=2e-2, reason="torch rounds to bfloat16, which has 8 bits")
        for kind in KINDS
    ),
    *(
        OpCase(f"{kind}-autocast-low", Autocast(make(kind)), atol=3e-2, rtol=2e-2,
               inputs=[drawn(SIZE, 2, INPUT, dtype=torch.bfloat16)],
               reason="torch rounds to bfloat16, which has 8 bits")
        for kind in KINDS
    ),
    OpCase("lstm-half-states", Stated(make("lstm", torch.float16)),
           [drawn(*size, dtype=torch.float16)
            for size in ((SIZE, 2, INPUT), (1, 2, STATE), (1, 2, STATE))]),
]  # fmt: skip


def flags(layers: int = 1, dropout: float = 0.0, train: bool = False) -> tuple[Any, ...]:
    """Return the last arguments of torch.gru and the like."""
    return (True, layers, dropout, train, False, False)


def call(owner: Any, name: str, kind: str, **options: Any) -> Callable[..., Any]:
    """Return a function that calls one of torch's by its name, with the weights of a layer."""
    weights = list(make(kind, num_layers=options.get("layers", 1)).parameters())
    given = flags(**options)

    def called(x: torch.Tensor, *hx: torch.Tensor) -> Any:
        return getattr(owner, name)(x, hx if kind == "lstm" else hx[0], weights, *given)

    return called


class Kept(nn.Module):
    """Calls torch.lstm as it was before anything was patched, as an exported LSTM does."""

    lstm = staticmethod(torch.lstm)

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.rnn = make("lstm", **options)

    def forward(self, x: torch.Tensor) -> Any:
        rnn = self.rnn
        count = rnn.num_layers * (2 if rnn.bidirectional else 1)
        batch = x.shape[0 if rnn.batch_first else 1]
        h = torch.zeros(count, batch, STATE)
        last = (rnn.bias, rnn.num_layers, 0.0, False, rnn.bidirectional, rnn.batch_first)
        return Kept.lstm(x, (h, h), list(rnn.parameters()), *last)


def inputs(kind: str, layers: int = 1) -> list[tuple[int, ...]]:
    return [(SIZE, 2, INPUT), *states(kind, layers, 2, STATE)]


NAMES = {"lstm": "lstm", "gru": "gru", "rnn": "rnn_tanh", "rnn-relu": "rnn_relu"}

FUNCTIONS = [
    *(OpCase(f"torch-{n}", call(torch, n, k), inputs(k)) for k, n in NAMES.items()),
    *(OpCase(f"vf-{n}", call(torch._VF, n, k), inputs(k)) for k, n in NAMES.items()),
    *(
        # Nothing is dropped behind the last layer, nor with a probability of 0.
        OpCase(f"{n}-training-{options['layers']}", call(torch, n, k, train=True, **options),
               inputs(k, options["layers"]))
        for k, n in (("lstm", "lstm"), ("rnn", "rnn_tanh"))
        for options in ({"layers": 1, "dropout": 0.5}, {"layers": 2, "dropout": 0.0})
    ),
    OpCase("keywords", lambda x, h: torch.gru(
        input=x, hx=h, params=list(GRU.parameters()), has_biases=True, num_layers=1, dropout=0.0,
        train=False, bidirectional=False, batch_first=False), inputs("gru")),
    OpCase("weights-as-inputs", lambda x, w: torch.func.functional_call(
        LSTM, {"weight_hh_l0": w}, (x,)), [(SIZE, 2, INPUT), (4 * STATE, STATE)]),
    OpCase("weights-replaced", lambda x: torch.func.functional_call(
        LSTM, {"weight_hh_l1": OTHER}, (x,)), [(SIZE, 2, INPUT)]),
    OpCase("weight-norm", nn.utils.parametrizations.weight_norm(make("lstm"), "weight_hh_l0"),
           [(SIZE, 2, INPUT)]),
    OpCase("compiled", lambda x: torch.compile(GRU, backend="eager")(x), [(SIZE, 2, INPUT)]),
    OpCase("output-only", lambda x: LSTM(x)[0], [(SIZE, 2, INPUT)]),
    OpCase("hidden-only", lambda x: LSTM(x)[1][0][-1], [(SIZE, 2, INPUT)]),
    OpCase("cell-only", lambda x: LSTM(x)[1][1], [(SIZE, 2, INPUT)]),
    # The output lies in memory with the steps first.
    OpCase("view-behind", lambda x: BATCH_FIRST(x)[0].transpose(0, 1).view(-1, 2 * STATE),
           [(2, SIZE, INPUT)], dynamic=[{0: (1, 4), 1: (1, 9)}], shapes=[(3, 7, INPUT)]),
    # Without its name, the function arrives as its operators, layer by layer.
    *(
        OpCase(f"kept-{name}", Kept(LAYERS[name]), [(SIZE, 2, INPUT)])
        for name in ("one", "all", "all-no-bias")
    ),
    OpCase("kept-dynamic", Kept(ALL), [(SIZE, 2, INPUT)], dynamic=DYNAMIC,
           shapes=[(7, 3, INPUT)]),
    OpCase("kept-fp16", Kept(ALL), [(SIZE, 2, INPUT)], policy=FP16, atol=2e-3, reason=HALF),
    OpCase("gru-cell", nn.GRUCell(4, 3), [(5, 4)]),
    OpCase("gru-cell-state", nn.GRUCell(4, 3), [(5, 4), (5, 3)]),
    OpCase("lstm-cell", nn.LSTMCell(4, 3), [(5, 4)]),
    OpCase("rnn-cell", nn.RNNCell(4, 3), [(5, 4)]),
]  # fmt: skip

BATCH_FIRST = make("gru", **ALL)


class Packed(nn.Module):
    def __init__(self, rnn: nn.RNNBase, lengths: Sequence[int] | None = None) -> None:
        super().__init__()
        self.rnn = rnn
        self.lengths = None if lengths is None else torch.tensor(lengths)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        lengths = self.lengths if lengths is None else lengths
        assert lengths is not None
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return padded


class PackedByHand(nn.Module):
    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.rnn(PackedSequence(x, SIZES))[0]
        return packed.data  # type: ignore[no-any-return]


PLAIN_LSTM = list(make("lstm").parameters())
STEP = torch.zeros(1, 2, STATE)
SIZES = torch.tensor([2, 2, 1])


def lstm_with(x: torch.Tensor, hx: Any = (STEP, STEP), params: Any = None, layers: int = 1) -> Any:
    return torch.lstm(x, hx, params or PLAIN_LSTM, *flags(layers))


REFUSED = [
    *(
        OpCase(f"packed-{kind}", Packed(make(kind, batch_first=True)),
               [(2, SIZE, INPUT), torch.tensor([5, 3])], raises="a PackedSequence.* padded tensor")
        for kind in KINDS
    ),
    *(
        OpCase(f"packed-lengths-{kind}", Packed(make(kind, batch_first=True), [5, 3]),
               [(2, SIZE, INPUT)], raises="a PackedSequence.* padded tensor")
        for kind in KINDS
    ),
    *(
        OpCase(f"packed-by-hand-{kind}", PackedByHand(make(kind)), [(5, INPUT)],
               raises="a PackedSequence.* padded tensor")
        for kind in KINDS
    ),
    *(
        OpCase(f"training-{n}", call(torch, n, k, layers=2, dropout=0.5, train=True),
               inputs(k, 2), raises=r"dropout=0.5, train=True.*\.eval\(\)")
        for k, n in NAMES.items()
    ),
    OpCase("no-steps", lambda x: GRU(x[:0]), [(SIZE, 2, INPUT)], raises="without steps"),
    OpCase("no-batch", lambda x: torch.gru(x, STEP, list(GRU.parameters()), *flags()),
           [(SIZE, INPUT)], raises="an input of 2 dimensions"),
    OpCase("one-state", lambda x: lstm_with(x, [STEP]), [(SIZE, 2, INPUT)],
           raises="1 initial states; 2 are needed"),
    OpCase("state-of-other-batch", lambda x: lstm_with(x, [STEP[:, :1], STEP]),
           [(SIZE, 2, INPUT)], raises=r"\(1, 1, 8\), but must be \(1, 2, 8\)"),
    OpCase("state-of-other-layers", lambda x: lstm_with(x, [STEP, STEP.expand(2, 2, STATE)]),
           [(SIZE, 2, INPUT)], raises=r"\(2, 2, 8\), but must be \(1, 2, 8\)"),
    OpCase("state-of-other-batch-dynamic", lambda x, h: lstm_with(x, [h, h]),
           [(SIZE, 2, INPUT), (1, 3, STATE)], dynamic=[{1: (1, 8)}, {}],
           raises="initial state is"),
    OpCase("other-type", lambda x: lstm_with(x, [STEP.half(), STEP]), [(SIZE, 2, INPUT)],
           raises="of one type, but are float32, float16"),
    OpCase("too-few-weights", lambda x: lstm_with(x, params=PLAIN_LSTM[:3]), [(SIZE, 2, INPUT)],
           raises="0 layers and directions; needed are 1"),
    OpCase("too-many-weights", lambda x: lstm_with(x, params=PLAIN_LSTM * 2),
           [(SIZE, 2, INPUT)], raises="2 layers and directions; needed are 1"),
    OpCase("other-weight", lambda x: lstm_with(x, params=[OTHER, *PLAIN_LSTM[1:]]),
           [(SIZE, 2, INPUT)], raises=r"the weight for input is \(32, 8\), but must be \(32, 4\)"),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(MODULES))
def test_modules(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(STATES))
def test_initial_states(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(PROJECTIONS))
def test_projections(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(PRECISION))
def test_precision(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(FUNCTIONS))
def test_functions(case: OpCase) -> None:
    run_case(case)


@pytest.mark.parametrize("case", ids(REFUSED))
def test_refusals(case: OpCase) -> None:
    run_case(case)


# -- models ----------------------------------------------------------------------------------------


class Speech(nn.Module):
    """(N, T, 16) features to (N, T / 2, 10): convolutions, two layers both ways, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(16, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, 2, 1), nn.ReLU()
        )
        self.rnn = nn.LSTM(24, 20, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(self.front(x.transpose(1, 2)).transpose(1, 2))
        return self.out(y).log_softmax(-1)


class Crnn(nn.Module):
    """(N, 1, 16, W) pictures of text to (W / 4, N, 11), as CTC takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 24, (4, 1)), nn.ReLU(),
        )  # fmt: skip
        self.rnn = nn.LSTM(24, 16, 2, bidirectional=True)
        self.out = nn.Linear(32, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(self.cnn(x).squeeze(2).permute(2, 0, 1))
        length, batch, width = y.shape
        return self.out(y.view(length * batch, width)).view(length, batch, -1)


class Tagger(nn.Module):
    """(N, T) words to (N, T, 7) scores, with what the whole sentence says beside each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 12)
        self.rnn = nn.GRU(12, 10, bidirectional=True, batch_first=True)
        self.out = nn.Linear(40, 7)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        y, last = self.rnn(self.words(words))
        sentence = torch.cat([last[-2], last[-1]], 1).unsqueeze(1).expand_as(y)
        return self.out(torch.cat([y, sentence], 2))


def words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(length))


MODELS: dict[str, tuple[nn.Module, Callable[[int, int], torch.Tensor], Any]] = {
    "speech": (Speech(), lambda n, t: torch.randn(n, t, 16), {0: (1, 4), 1: (1, 64)}),
    "crnn": (Crnn(), lambda n, t: torch.randn(n, 1, 16, 4 * t),
             {0: (1, 4), 3: 4 * torch.export.Dim("w", min=1, max=64)}),
    "tagger": (Tagger(), words, {0: (1, 4), 1: (1, 64)}),
}  # fmt: skip


@pytest.mark.parametrize(("low", "tolerance"), [(None, 1e-5), (torch.float16, 2e-3)])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_dynamic_batch_and_length(
    name: str, low: torch.dtype | None, tolerance: float
) -> None:
    torch.manual_seed(0)
    model, draw, dims = MODELS[name]
    model.eval()
    converted = t2t.convert(
        model, [draw(2, 6)], dynamic_shapes=[dims], fp16=low is not None, progress=False
    )
    for batch, length in ((1, 1), (2, 6), (4, 33), (3, 64)):
        x = draw(batch, length)
        with torch.no_grad():
            expected = model(x)
        got = converted(x)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_do_not_depend_on_the_length(kind: str) -> None:
    rnn = make(kind, **ALL).eval()
    counts = [_layers(to_network(rnn, [torch.randn(2, n, INPUT)])) for n in (1, 7, 3000)]
    assert len(set(counts)) == 1
    ranges = [[{1: (1, most)}] for most in (8, 100_000)]
    x = torch.randn(2, 7, INPUT)
    dynamic = [_layers(to_network(rnn, [x], dynamic_shapes=dims)) for dims in ranges]
    assert len(set(dynamic)) == 1


def _layers(conversion: Conversion) -> int:
    return int(conversion.network.raw.num_layers)


def test_one_product_of_all_steps_stands_before_each_loop() -> None:
    conversion = to_network(make("lstm", **ALL).eval(), [torch.randn(2, SIZE, INPUT)])
    program = capture(conversion.network.raw, conversion.network.weights)
    products = [layer.shapes[0] for layer in program.layers if layer.kind == "MATRIX_MULTIPLY"]
    # Two layers in two directions, each with one product of all steps and one of each step.
    assert sorted(products, key=len) == [(2, 4 * STATE)] * 4 + [(2, SIZE, 4 * STATE)] * 4  # type: ignore[arg-type]
    assert sum(layer.kind == "TRIP_LIMIT" for layer in program.layers) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_equals_the_whole_run(kind: str) -> None:
    rnn = Stated(make(kind, num_layers=2).eval())
    x = torch.randn(9, 2, INPUT)
    state = [torch.randn(2, 2, STATE) for _ in states(kind)]
    dims = [{0: (1, 9)}, *[{}] * len(state)]
    converted = t2t.convert(rnn, [x, *state], dynamic_shapes=dims, progress=False)
    with torch.no_grad():
        whole, last = rnn(x, *state)
    for size in (1, 4, 9):
        parts, now = [], state
        for part in x.split(size):
            y, now = converted(part, *now)
            now = list(now) if kind == "lstm" else [now]
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)
        wanted = last if kind == "lstm" else [last]
        torch.testing.assert_close(now, list(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_float32_in_the_loop_of_a_half_network(kind: str) -> None:
    conversion = to_network(make(kind).eval(), [torch.randn(SIZE, 2, INPUT)], policy=FP16)
    program = capture(conversion.network.raw, conversion.network.weights)
    types = {layer.kind: layer.types[0] for layer in program.layers if layer.types}
    assert (types["RECURRENCE"], types["MATRIX_MULTIPLY"]) == ("FLOAT", "HALF")


def test_programs_with_loops_are_saved_printed_drawn_and_compared(tmp_path: Path) -> None:
    model = Tagger().eval()
    x = words(2, 6)
    dims = [{0: (1, 4), 1: (1, 64)}]
    converted = t2t.convert(model, [x], dynamic_shapes=dims, progress=False)
    converted.save(tmp_path / "tagger.pth")
    loaded = t2t.load(tmp_path / "tagger.pth")
    for inputs in (x, words(3, 1)):
        assert torch.equal(loaded(inputs), converted(inputs))
    program = loaded.program
    assert program is not None
    assert "RECURRENCE" in str(program)
    assert "recurrence" in program.to_html()
    assert "recurrence" in program.to_dot()
    half = t2t.convert(model, [x], dynamic_shapes=dims, fp16=True, progress=False)
    report = t2t.compare_layers(half, converted, [x])
    assert report.ok, report


# -- what is refused -------------------------------------------------------------------------------


def test_dropout_between_layers_in_training_mode() -> None:
    x = torch.randn(SIZE, 2, INPUT)
    rnn = make("gru", num_layers=2, dropout=0.5).train()
    with pytest.raises(ConversionError, match=r"training mode and its GRU is active: call \.eval"):
        to_network(rnn, [x])
    converted = t2t.convert(rnn, [x], ignore_dropout=True, progress=False)
    assert rnn.training
    torch.testing.assert_close(converted(x), rnn.eval()(x), rtol=1e-5, atol=1e-6)
    # Where nothing is dropped, training mode changes nothing.
    to_network(make("gru", dropout=0.5).train(), [x])


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_input(kind: str) -> None:
    packed = pack_padded_sequence(torch.randn(SIZE, 2, INPUT), torch.tensor([5, 3]))
    with pytest.raises(UnsupportedArgumentError, match=r"inputs\['input'\] is a PackedSequence"):
        to_network(make(kind).eval(), [packed])


WRONG: dict[str, tuple[Any, str]] = {
    "features": (lambda x: GRU(x[..., :2]), "input_size"),
    "rank": (lambda x: GRU(x[0, 0]), "2D or 3D"),
    "state": (lambda x: GRU(x, torch.zeros(2, 2, STATE)), "Expected hidden size"),
    "cell": (lambda x: LSTM(x, (torch.zeros(2, 2, STATE), torch.zeros(2, 2, 2))), r"hidden\[1\]"),
    "type": (lambda x: GRU(x.half()), "dtype|got type"),  # PyTorch 2.8 says the latter
}


@pytest.mark.parametrize("name", WRONG)
def test_the_models_own_mistakes_keep_their_words(name: str) -> None:
    function, text = WRONG[name]
    before = [getattr(owner, n) for owner in (torch, torch._VF) for n in NAMES.values()]
    with pytest.raises((RuntimeError, ValueError), match=text) as caught:
        to_network(function, [torch.randn(SIZE, 2, INPUT)])
    assert "test_recurrent.py" in "".join(getattr(caught.value, "__notes__", []))
    assert before == [getattr(owner, n) for owner in (torch, torch._VF) for n in NAMES.values()]


def test_a_length_that_may_be_zero_is_named() -> None:
    with pytest.raises(ConversionError, match="min"):
        to_network(make("gru").eval(), [torch.randn(SIZE, 2, INPUT)],
                   dynamic_shapes=[{0: (0, 9)}])  # fmt: skip


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export's own
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_layer_is_a_loop(kind: str) -> None:
    module = make(kind, batch_first=True)
    dims = ({0: torch.export.Dim("batch", min=1, max=8)},)
    program = torch.export.export(module, (torch.randn(2, SIZE, INPUT),), dynamic_shapes=dims)
    before = str(program.graph)
    converted = t2t.convert(program)
    assert str(program.graph) == before
    x = torch.randn(3, SIZE, INPUT)
    torch.testing.assert_close(converted(x), module(x), rtol=1e-5, atol=1e-6)
    assert "LOOP_OUTPUT" in {layer.kind for layer in converted.program.layers}


@pytest.mark.parametrize("options", [*LAYERS.values(), {"proj_size": 3}], ids=str)
@pytest.mark.parametrize("kind", ["rnn-relu", "rnn", "lstm", "gru"])
def test_what_was_kept_or_exported_on_a_gpu(kind: str, options: dict[str, Any]) -> None:
    # PyTorch has no kernel of it on the CPU, but converting takes none.
    if "proj_size" in options and kind != "lstm":
        pytest.skip("LSTMs alone have projections")
    rnn = make(kind, **options)
    count = rnn.num_layers * (2 if rnn.bidirectional else 1)
    weights, mode = list(rnn.parameters()), ["rnn-relu", "rnn", "lstm", "gru"].index(kind)
    stride = len(weights) // count

    def kept(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None = None) -> Any:
        last = (rnn.batch_first, 0.0, False, rnn.bidirectional, [], None)
        return torch.ops.aten._cudnn_rnn(
            x, weights, stride, None, h, c, mode, STATE, rnn.proj_size, rnn.num_layers, *last
        )[: 3 if kind == "lstm" else 2]

    def drawn_inputs() -> list[torch.Tensor]:
        state = (count, SIZE if rnn.batch_first else 2)
        h, c = torch.randn(*state, rnn.proj_size or STATE), torch.randn(*state, STATE)
        return [torch.randn(SIZE, 2, INPUT), h, *([c] if kind == "lstm" else [])]

    conversion = to_network(kept, drawn_inputs())
    program = capture(conversion.network.raw, conversion.network.weights)
    for x, *states in (drawn_inputs(), drawn_inputs()):
        with torch.no_grad():
            output, last = rnn(x, tuple(states) if kind == "lstm" else states[0])
        got = program.run([x, *states])
        wanted = [output, *(last if kind == "lstm" else [last])]
        for spec, want in zip(conversion.signature.outputs, wanted, strict=True):
            torch.testing.assert_close(got[spec.name], want, rtol=1e-5, atol=1e-6)


def test_a_trace_moves_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU they would lie in other memory then; models call it themselves, too.
    class Flattening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = make("lstm")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.rnn.flatten_parameters()
            return self.rnn(x)[0]

    module, called = Flattening().eval(), []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda rnn: called.append(rnn))
    to_network(module, [torch.randn(SIZE, 2, INPUT)])
    assert not called
    module(torch.randn(SIZE, 2, INPUT))
    assert called


def test_weights_that_autocast_has_moved_are_refused() -> None:
    rnn = make("lstm")
    flat = [x.detach().reshape(-1, 1) for x in rnn.parameters()]
    h = torch.zeros(1, 2, STATE)

    def kept(x: torch.Tensor) -> torch.Tensor:
        last = (False, 0.0, False, False, [], None)
        return torch.ops.aten._cudnn_rnn(x, flat, 4, None, h, h, 2, STATE, 0, 1, *last)[0]

    with pytest.raises(UnsupportedArgumentError, match="convert the module itself"):
        to_network(kept, [torch.randn(SIZE, 2, INPUT)])
