"""verify: what it measures, what it notices, and that it leaves everything as it was."""

import copy
import json
import math
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import EngineError, VerificationError
from t2t.runtime import Execution
from t2t.verification import Report, verify
from tests.engines import Info, StandInEngine

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def returning(value):
    return lambda *_: value


def scaled(factor):
    return lambda x: x * factor


def report(original, converted, inputs=(X,), **options):
    return verify(original, converted, inputs, **options)


def test_equal_modules():
    result = report(nn.ReLU(), torch.relu)
    assert result
    assert result.ok
    assert (result.max_abs_error, result.max_rel_error, result.runs) == (0, 0, 2)
    assert result.min_cosine == pytest.approx(1)


def test_figures():
    original, converted = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    result = report(returning(original), returning(converted), random_inputs=0)
    assert result.max_abs_error == pytest.approx(0.5)
    assert result.max_rel_error == pytest.approx(0.1)
    assert result.min_cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert not result.ok


@pytest.mark.parametrize(
    ("error", "rtol", "precision", "dtype", "ok"),
    [
        (5e-5, None, None, torch.float32, True),
        (2e-4, None, None, torch.float32, False),
        (1e-2, None, "fp16", torch.float32, True),
        (3e-2, None, "fp16", torch.float32, False),
        (3e-2, None, "bf16", torch.float32, True),
        (1e-2, None, None, torch.float16, True),
        (3e-2, None, None, torch.float16, False),
        (1e-2, 1e-1, None, torch.float32, True),
        (1e-2, 1e-3, "fp16", torch.float16, False),
    ],
)
def test_tolerances(error, rtol, precision, dtype, ok):
    class Converted:
        def __call__(self, x):
            return (x.double() * (1 + error)).to(dtype)

    converted = Converted()
    if precision:
        converted.precision = precision
    assert report(lambda x: x.to(dtype), converted, rtol=rtol).ok is ok


def test_a_stuck_output_is_noticed_by_the_random_input():
    first = torch.sigmoid(X)
    assert report(torch.sigmoid, returning(first), random_inputs=0).ok
    assert not report(torch.sigmoid, returning(first)).ok


def test_each_output_has_its_figures_and_place():
    class Pair(NamedTuple):
        a: object
        b: object

    def converted(x):
        return {"p": (x, x * 1.5), "q": [x]}

    result = report(lambda x: {"p": Pair(x, x), "q": [x]}, converted)
    assert [(o.name, o.ok) for o in result.outputs] == [
        ("output['p'][0]", True),
        ("output['p'][1]", False),
        ("output['q'][0]", True),
    ]
    assert result.max_rel_error == pytest.approx(0.5)
    assert result.outputs[0].max_rel_error == 0


@pytest.mark.parametrize(
    ("original", "converted", "words"),
    [
        ((X, X), (X,), r"missing \['output\[1\]'\]"),
        ({"a": X}, {"b": X}, r"missing \[\"output\['a'\]\"\], extra \[\"output\['b'\]\"\]"),
        ((X, 3), (X, 4), r"output\[1\] is 4, the original's 3"),
        ((X, None), (X, X), r"output\[1\] is 'a tensor', the original's None"),
        (X, (X,), "structure differs"),
    ],
)
def test_another_structure_is_a_problem(original, converted, words):
    result = report(returning(original), returning(converted))
    assert not result.ok
    assert result.max_rel_error == result.max_abs_error == math.inf
    assert result.min_cosine == -1
    with pytest.raises(VerificationError, match=words):
        report(returning(original), returning(converted), raise_on_error=True)


@pytest.mark.parametrize(
    ("original", "converted", "ok", "note"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True, ""),
        (torch.tensor([10**6, 2]), torch.tensor([10**6 + 1, 2]), False, ""),
        (torch.tensor([True, False]), torch.tensor([True, True]), False, ""),
        (torch.tensor([True, False]), torch.tensor([True, False]), True, ""),
        (torch.tensor([0, 0]), torch.tensor([0, 1]), False, "zeros"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), True, "1 NaN .* both"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0]), False, "1 NaN .* one"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.inf]), True, "in both"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), False, "in one"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.nan]), False, "in one"),
        (torch.zeros(2), torch.zeros(2), True, "zeros"),
        (torch.zeros(2), torch.full((2,), 1e-8), True, "zeros"),
        (torch.zeros(2), torch.full((2,), 1e-3), False, "zeros"),
        (torch.ones(2), torch.zeros(2), False, ""),
        (torch.ones(2), torch.ones(3), False, r"shape \(3,\)"),
        (torch.ones(2), torch.ones(2).half(), False, "dtype float16"),
        (torch.ones(2), torch.ones(2, dtype=torch.int64), False, "dtype int64"),
        (torch.zeros(0, 3), torch.zeros(0, 3), True, ""),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1j]), True, ""),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), False, ""),
        (torch.tensor(2.0), torch.tensor(2.0), True, ""),
    ],
)
def test_kinds_of_outputs(original, converted, ok, note):
    result = report(returning(original), returning(converted))
    assert result.ok is ok
    assert re.search(note, result.outputs[0].note)
    assert str(result)
    if not ok and "dtype" not in note:
        assert result.max_abs_error > 0


def test_the_worst_run_counts():
    def converted(x):
        return x if torch.equal(x, X) else x * 2

    result = report(lambda x: x, converted, random_inputs=3)
    assert result.runs == 4
    assert not result.ok
    assert result.max_rel_error == pytest.approx(1)


def seen_inputs(*inputs, **options):
    seen = []
    verify(returning(None), lambda *args, **kwargs: seen.append((args, kwargs)), inputs, **options)
    return seen


def test_random_inputs_are_like_the_given_ones():
    index = torch.tensor([[0, 7], [3, 3]])
    mask = torch.ones(4, dtype=torch.bool)
    image = torch.rand(2, 3, 8, 8).half()
    runs = seen_inputs(index, [mask, {"i": image}], 5, random_inputs=4)
    assert len(runs) == 5
    assert torch.equal(runs[0][0][0], index)
    for args, _ in runs[1:]:
        assert args[0].dtype == torch.int64
        assert args[0].shape == (2, 2)
        assert 0 <= args[0].min() <= args[0].max() <= 7
        assert args[1][0].all()
        drawn = args[1][1]["i"]
        assert drawn.dtype == torch.half
        assert image.min() <= drawn.min() <= drawn.max() <= image.max()
        assert args[2] == 5
    assert not torch.equal(runs[1][0][1][1]["i"], runs[2][0][1][1]["i"])


@pytest.mark.parametrize("given", [torch.ones(50), torch.zeros(50), torch.tensor([2.0])])
def test_constant_inputs_become_others(given):
    drawn = seen_inputs(given)[1][0][0]
    assert not torch.equal(drawn, given)
    assert given[0] == 0 or bool((drawn > 0).all())


def test_the_seed_decides():
    first, again = (seen_inputs(X, seed=3)[1][0][0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, seen_inputs(X, seed=4)[1][0][0])


def test_random_state_of_torch_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    report(nn.ReLU(), torch.relu, random_inputs=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_keyword_arguments_and_a_single_tensor():
    assert verify(torch.add, lambda x, other: x + other, [X], {"other": X}).ok
    assert verify(torch.relu, torch.relu, X).ok


def test_inputs_and_module_stay_as_they_were():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].eval()
    flags = [part.training for part in model.modules()]
    state = copy.deepcopy(model.state_dict())
    x = X.clone().requires_grad_()
    result = verify(model, copy.deepcopy(model), [x])
    assert result.ok
    assert torch.equal(x, X)
    assert x.grad is None
    assert [part.training for part in model.modules()] == flags
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_module_that_changes_its_flag_gets_it_back():
    class Careless(nn.Module):
        def forward(self, x):
            self.eval()
            return x

    model = Careless()
    verify(model, torch.clone, [X])
    assert model.training


def fail(_):
    raise EngineError("no GPU here")


def test_a_failing_converted_module_is_reported_not_raised():
    result = report(torch.relu, fail)
    assert not result
    assert "EngineError: no GPU here" in str(result)
    with pytest.raises(VerificationError, match="no GPU here"):
        report(torch.relu, fail, raise_on_error=True)


def test_raises_only_if_asked_and_wrong():
    assert isinstance(report(torch.relu, torch.relu, raise_on_error=True), Report)
    with pytest.raises(VerificationError, match=r"DIFFERENT on 2 inputs(?s:.*)NO"):
        report(torch.relu, scaled(2), raise_on_error=True)


def test_printed():
    text = str(report(lambda x: {"a[0]": x}, lambda x: {"a[0]": x * (1 + 1e-6)}))
    assert text.splitlines()[1].startswith("max_rel_error 9.5")
    assert "output['a[0]']" in text
    assert "float32" in text
    assert "3x4" in text


class Scaled(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2


@pytest.fixture(scope="module")
def converted():
    return t2t.convert(Scaled(), [X])


@pytest.fixture
def on_engine(monkeypatch, converted):
    """Let the engine run as if the CPU were a GPU that can."""
    info = Info("x", torch.float32, tuple(X.shape))
    output = Info("output", torch.float32, tuple(X.shape))
    stand_in = StandInEngine([info], [output], converted.program.run)
    execution = Execution(stand_in, torch.device("cpu"))
    monkeypatch.setattr("t2t.runtime.Engine.load", lambda _self, _device: execution)


quiet = pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")


@quiet
def test_the_first_line_says_what_ran(converted):
    result = verify(Scaled(), converted, [X])
    [place] = result.ran_on
    assert place.executor == "reference executor"
    lines = str(result).splitlines()
    assert lines[0].startswith(
        "same on 2 inputs, run by the reference executor (PyTorch) on cpu, network of tensorrt_rtx"
    )
    assert lines[1].startswith("no engine ran: an engine runs on CUDA tensors")
    assert max(map(len, lines)) <= 100


@pytest.mark.usefixtures("on_engine")
def test_the_first_line_says_that_the_engine_ran(converted):
    result = verify(Scaled(), converted, [X], require_engine=True)
    assert result.ok
    assert result.ran_on[0].is_engine
    first = str(result).splitlines()[0]
    assert re.match(r"same on 2 inputs, run by the engine of tensorrt_rtx [\d.]+ on cpu$", first)
    assert "no engine ran" not in str(result)
    assert not converted.require_engine


@quiet
def test_the_parts_of_a_larger_module_say_where_they_ran(converted):
    class Larger(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part, self.unused = part, copy.deepcopy(part)

        def forward(self, x):
            return self.part(x) + 1

    result = verify(Larger(Scaled()), Larger(converted), [X])
    assert [place.executor for place in result.ran_on] == ["reference executor"]


def test_what_is_no_converted_module_ran_nowhere():
    result = report(torch.relu, torch.relu)
    assert result.ran_on == ()
    assert str(result).startswith("same on 2 inputs, no module of t2t was run")


@quiet
def test_an_earlier_run_is_not_taken_for_this_one(converted):
    converted(X)
    result = verify(lambda x: x, converted, [X[:2]])
    assert result.problem
    assert result.ran_on == ()


def test_the_engine_can_be_required(converted, monkeypatch):
    with pytest.raises(EngineError, match="forbidden by require_engine"):
        verify(Scaled(), converted, [X], require_engine=True)
    assert not converted.require_engine
    monkeypatch.setenv("T2T_REQUIRE_ENGINE", "1")
    with pytest.raises(EngineError, match="T2T_REQUIRE_ENGINE"):
        verify(Scaled(), converted, [X])


@quiet
def test_as_json_and_html(converted):
    result = verify(lambda x: torch.tanh(x) * 2.01, converted, [X])
    data = json.loads(result.to_json())
    assert data["ok"] is False
    assert data["ran_on"][0]["executor"] == "reference executor"
    assert data["ran_on"][0]["device"] == "cpu"
    assert data["outputs"][0]["dtype"] == "float32"
    assert data["max_rel_error"] == pytest.approx(result.max_rel_error)
    page = result._repr_html_()
    for words in ("DIFFERENT", "reference executor", "<th>output</th>", "font-weight:bold"):
        assert words in page
    failed = json.loads(report(torch.relu, fail).to_json())
    assert failed["max_rel_error"] is None
    assert "no GPU here" in failed["problem"]


NOTEBOOK = """
from IPython.testing.globalipapp import start_ipython
import builtins, sys
shell = start_ipython()
builtins.get_ipython = lambda: shell
type(shell).__name__ = "ZMQInteractiveShell"
import torch, t2t
from t2t.errors import VerificationError
from t2t.verification import verify
text = str(verify(torch.relu, torch.relu, [torch.ones(2)]))
assert text.startswith("same on 2 inputs"), repr(text)
try:
    verify(torch.relu, torch.neg, [torch.ones(2)], raise_on_error=True)
except VerificationError as error:
    assert "DIFFERENT" in str(error), repr(str(error))
"""


def test_reports_are_text_in_a_notebook_too():
    command = [sys.executable, "-c", NOTEBOOK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
