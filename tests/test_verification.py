"""verify: what it measures, what it notices, and that it leaves everything as it was."""

import copy
import math
import re
from typing import NamedTuple

import pytest
import torch
from torch import nn

from t2t.errors import EngineError, VerificationError
from t2t.verification import Report, verify

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
    assert "same on 2 inputs: max_rel_error" in text
    assert "output['a[0]']" in text
    assert "float32" in text
    assert "(3, 4)" in text
