"""Sizes and numbers that depend on the data, as torch.export's users write them: torch._check."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan

import t2t
from t2t.errors import CheckpointError
from t2t.module import Partition
from tests.models import Behind
from tests.test_partition import check, engines, loaded

pytestmark = [
    pytest.mark.filterwarnings("ignore::t2t.module.ReferenceExecutionWarning"),
    pytest.mark.filterwarnings("ignore:.create_unbacked_symint"),
    pytest.mark.filterwarnings("ignore:_check_is_size:FutureWarning"),
]


def counted(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] > 0).sum()


def narrowed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0], lambda: "there are not so many rows")
    return m.last(y.narrow(0, 0, n)).softmax(-1) + n


def is_size(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check_is_size(n)
    torch._check(n <= 20)
    table = torch.arange(n * 6, dtype=torch.float32).reshape(n, 6) * 0.01
    return m.last(table + y.mean(0)).softmax(-1), table.sum(0) / (n + 1)


def as_mask(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 0)
    torch._check(n <= 30)
    kept = torch.arange(x.shape[0]) < n
    return m.last(y.masked_fill(~kept[:, None], 0.0)).softmax(-1) * (n + 1)


def negative(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = x[0, 0].round().to(torch.int32).item()
    torch._check(n >= -5)
    torch._check(n <= 5)
    return m.last(y + n).softmax(-1) * (n + 6)


def twice(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 1)
    torch._check(n <= x.shape[0])
    k = (y[:n, 1] > 1).sum().item()
    torch._check(k >= 0)
    torch._check(k <= n)
    return m.last(y[:n].narrow(0, 0, k)).relu() + (n - k)


def pieces(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x)
    a, b = torch.split(y, torch.stack([n, x.shape[0] - n]).tolist())
    return m.last(a).softmax(-1), m.last(b).sum(0)


def bins(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    found = torch.bincount((x[:, 0].abs() * 3).long(), weights=y[:, 0], minlength=6)
    torch._check(found.shape[0] <= 40, lambda: "too many bins")
    return (found[:, None].cos() * 2 + m.last.get_submodule("2").bias).exp().softmax(0)


def repeated(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    chosen = torch.repeat_interleave(y, (x[:, 0].abs() * 2).long(), dim=0)
    torch._check(chosen.shape[0] <= 90)
    return m.last(chosen).softmax(-1)


def repeated_to(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Some rows twice and as many not at all."""
    order = x[:, 0].argsort()
    times = torch.ones(x.shape[0], dtype=torch.int64)
    times = times.index_put((order[:3],), torch.tensor(2)).index_put((order[-3:],), torch.tensor(0))
    chosen = torch.repeat_interleave(y, times, dim=0, output_size=x.shape[0])
    return m.last(chosen).softmax(-1)


def few(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    chosen = y[x[:, 0] > 0]
    torch._check(chosen.shape[0] <= 12)
    return m.last(chosen).softmax(-1) + chosen.shape[0]


CHOICES = [
    narrowed, is_size, as_mask, negative, twice, pieces, bins, repeated, few,
]  # fmt: skip


@pytest.mark.parametrize("choose", CHOICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_and_sizes_of_a_known_range(choose: Any, dynamic: bool, tmp_path: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    model = Behind(choose).eval()
    calls = [torch.randn(9, 6, generator=generator) for _ in range(3)]
    if choose is not twice:
        # Nothing is chosen.
        calls.append(-torch.rand(9, 6, generator=generator))
    calls.append(torch.rand(9, 6, generator=generator) + 1)
    options: dict[str, Any] = {"dynamic_shapes": [{0: (7, 12)}]} if dynamic else {}
    converted = t2t.convert(model, [calls[0]], partial=True, **options)
    assert type(converted) is t2t.TRTModule
    assert converted.parts[-1].in_engine
    assert engines(converted) >= 2
    more = [torch.randn(n, 6, generator=generator) for n in (12, 7)] if dynamic else []
    check(model, loaded(converted, tmp_path), *calls, *more)


def most(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    chosen = y[x[:, 0] > 0]
    torch._check(chosen.shape[0] <= 5, lambda: "more than five are chosen")
    return m.last(chosen).softmax(-1)


def unsaid(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x).item()
    torch._check(n >= 1)
    torch._check(n <= 5)
    return m.last(y[:n]).softmax(-1)


def only_checked(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """The number is used for nothing else."""
    torch._check(counted(x).item() <= 5, lambda: "more than five are positive")
    return m.last(y).softmax(-1)


def of_each_other(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n, k = counted(x).item(), (x[:, 1] > 0).sum().item()
    torch._check(k >= 0)
    torch._check(n >= k, lambda: "fewer than positive ones in the second column")
    torch._check(n <= x.shape[0])
    return m.last(y[:n]).softmax(-1).narrow(0, 0, k)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (most, "more than five are chosen"),
        (unsaid, "Expected cond to be True"),
        (only_checked, "more than five are positive"),
        (of_each_other, "fewer than positive ones"),
    ],
)
def test_numbers_outside_of_their_range_raise_as_in_the_model(
    choose: Any, message: str, tmp_path: Any
) -> None:
    model = Behind(choose).eval()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(3)).abs()
    x[3:, 0] *= -1
    x[2:, 1] *= -1
    converted = loaded(t2t.convert(model, [x], partial=True), tmp_path)
    assert type(converted) is t2t.TRTModule
    other = x.clone()
    other[1, 0] *= -1
    check(model, converted, x, other)
    wrong = x.abs()
    if choose is of_each_other:
        wrong[:, 0] *= -1
    for called in (model, converted):
        with pytest.raises(RuntimeError, match=message):
            called(wrong)


def without_a_bound(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Python takes negative bounds, too."""
    n = x[0, 0].round().long().item()
    return m.last(y[n:] * 2).softmax(-1), y[:n].sum(0) + n


def row(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """A row from the beginning or from the end."""
    n = counted(x).item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return m.last(y[n - 2]).softmax(-1) * 2, y[x[0].argmax().item()] + 1


def split_at(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    n = counted(x)
    a, b, c = torch.tensor_split(y, torch.stack([n // 2, n]))
    return m.last(a).relu(), b.sum(0), c


def classes(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    marked = nn.functional.one_hot((x[:, 0].abs() * 2).long())
    return m.last(y).softmax(-1), marked.sum(0).float().exp()


def unknown_bins(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.last(y).softmax(-1), torch.bincount((x[:, 0].abs() * 3).long()) * 2 + 1


def unknown_repeats(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.repeat_interleave(m.last(y), (x[:, 0].abs() * 2).long(), dim=0).exp()


def transcribed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    likely = m.last(y)[:, None].expand(-1, 2, -1).log_softmax(-1)
    words = 1 + (x[:2, :3] > 0).long()
    lengths = (x[:2] > 0).sum(1).clamp(max=3)
    steps = torch.full((2,), x.shape[0])
    return nn.functional.ctc_loss(likely, words, steps, lengths, reduction="none") * 2 + 1


SPLIT = torch.ops.aten.tensor_split.tensor_indices_or_sections
split_in_python = pytest.param(
    split_at,
    marks=pytest.mark.skipif(
        torch._C.DispatchKey.CompositeImplicitAutograd not in SPLIT.py_kernels,
        reason="in this PyTorch it reads plain numbers",
    ),
)


@pytest.mark.parametrize(
    "choose",
    [without_a_bound, row, split_in_python, classes, unknown_bins, unknown_repeats, transcribed],
)
def test_what_has_no_bound_stays_in_pytorch(choose: Any, tmp_path: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    model = Behind(choose).eval()
    calls = [torch.randn(9, 6, generator=generator) * 2 for _ in range(5)]
    converted = t2t.convert(model, [calls[0]], partial=True)
    assert type(converted) is t2t.TRTModule
    check(model, loaded(converted, tmp_path), *calls)


def test_repeats_to_a_known_number_are_in_the_engine() -> None:
    converted = t2t.convert(Behind(repeated_to).eval(), [torch.randn(9, 6)], partial=True)
    assert converted.engine is not None
    check(Behind(repeated_to).eval(), converted, torch.randn(9, 6), torch.randn(9, 6))


def decided(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.last(y if counted(x).item() > 4 else -y)


def truth(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.last(y if bool((x > 2).any()) else -y)


def at_least(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.last(y / max(x.max().item(), 1e-3))


def plain(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.last(y * float(x.mean()))


def not_a_number(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.mean().item()
    return m.last(y if k != k else y * k)


def cut_off(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return m.last(y * int(x.abs().max().item() * 10))


def caught(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    try:
        k = int(x.abs().max().item())
    except Exception:  # noqa: BLE001  as users write it
        k = 100
    return m.last(y * k)


def written_out(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.mean().item()
    return m.last(y * k * len(f"{k:.3f}"))


def asked_for_its_type(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.abs().max().item()
    return m.last(y * k if isinstance(k, float) else y)


def returned(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.mean().item()
    return m.last(y * k), k


DECISIONS = [
    decided,
    truth,
    at_least,
    plain,
    not_a_number,
    cut_off,
    caught,
    written_out,
    asked_for_its_type,
    returned,
]


@pytest.mark.parametrize("choose", DECISIONS)
def test_decisions_on_numbers_leave_submodules(choose: Any) -> None:
    model = Behind(choose).eval()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(3))
    converted = t2t.convert(model, [x], partial=True)
    assert isinstance(converted, t2t.PartialModule)
    assert converted.parts[0].reason
    check(model, converted, x, x.abs() + 2, -x.abs())


def scaled(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = y.abs().max().item()
    return m.last(y / k).softmax(-1) * (k + 1) + k


def computed(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.std().item()
    kept = k
    k *= 2
    k += 1
    return m.last(y * k - kept).softmax(-1) * k**2 / math.sqrt(k) + math.exp(-kept) % 0.7 - k / 3


def one_after_the_other(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    y = y * x.mean().item() + 1
    y = (m.last(y) / y.std().item()).softmax(-1).exp()
    return y * y.max().item()


def several(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = x[0, :2].tolist()
    return m.last(y * a + b).softmax(-1), torch.tensor([a, b, a * b]), torch.full((2, 3), b)


def in_place(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.amax().item()
    y += k
    y[:, 0] = k
    y[:, 1].mul_(k)
    y[:, 2].fill_(2 * k)
    return m.last(y.masked_fill(y > 3, k)).softmax(-1) + y.clamp(-k, k).mean()


def of_integers(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = y.mean().item()
    whole = (x * 3).long()
    return m.last(y).softmax(-1) * k, whole * k, whole / k, (x > 0) * k, x > k


def in_a_loop(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = y.abs().max().item()
    return m.last(scan(lambda h, row: (h + row / k, (h * k).sin()), 0 * y[0], y)[1])


def in_a_branch(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = y.abs().max().item()
    return m.last(torch.cond(x[0, 0] > 0, lambda y: (y @ y.t()) @ y / k, lambda y: y * k, (y,)))


def of_half(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k, d = x.half().amax().item(), x.double().mean().item()
    return m.last(y * k + d).softmax(-1).exp() * k


def demanded(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    k = x.abs().max().item()
    torch._check(k > 0.01, lambda: "too small")
    return m.last(y / k).softmax(-1).exp()


READ = [
    scaled,
    computed,
    one_after_the_other,
    several,
    in_place,
    of_integers,
    in_a_loop,
    in_a_branch,
    of_half,
    demanded,
]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_real_numbers_that_are_read(read: Any, dynamic: bool, tmp_path: Any) -> None:
    model = Behind(read).eval()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(3))
    options: dict[str, Any] = {"max_batch_size": 12} if dynamic else {}
    converted = t2t.convert(model, [x], partial=True, **options)
    assert type(converted) is t2t.TRTModule
    converted = loaded(converted, tmp_path)
    check(model, converted, x, -3 * x, x.flip(0) / 7 + 0.1)
    if dynamic:
        check(model, converted, torch.randn(12, 6), torch.randn(2, 6))
    if read is demanded:
        with pytest.raises(RuntimeError, match="too small"):
            converted(0 * x)


def test_a_real_number_in_half_precision() -> None:
    model = Behind(scaled).eval()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(3))
    converted = t2t.convert(model, [x], partial=True, fp16=True)
    assert converted.precision == "fp16"
    check(model, converted, x, -3 * x, x.flip(0) / 7, rtol=1e-2)


def test_a_number_that_is_too_large_to_compute_with_raises() -> None:
    def shifted(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return m.last(y).softmax(-1), (x[0, 0].double() * 2.0**50).long().item() + x.long()

    model = Behind(shifted).eval()
    converted = t2t.convert(model, [torch.ones(9, 6)], partial=True)
    assert type(converted) is t2t.TRTModule
    check(model, converted, torch.ones(9, 6), -torch.ones(9, 6))
    with pytest.raises(RuntimeError, match="a number is not in -9007199254740992"):
        converted(torch.full((9, 6), 64.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("value", ["system", 1]),
        ("value", {"tensor": 99, "dim": 0, "factor": 1, "offset": 0}),
        ("value", {"tensor": 0, "dim": "0", "factor": 1, "offset": 0}),
        ("low", "none"),
        ("high", None),
    ],
)
def test_changed_checks_are_refused(key: str, value: Any) -> None:
    converted = t2t.convert(Behind(unsaid).eval(), [torch.ones(9, 6)], partial=True)
    partition = converted._converted.partition
    assert partition is not None
    entries = partition.to_state()
    data = json.loads(entries["steps"])
    read = Partition.from_state(entries, lambda index: partition.engines[index])
    assert read.steps == partition.steps
    step = next(step for step in data["steps"] if "message" in step)
    step[key] = value
    with pytest.raises(CheckpointError):
        Partition.from_state(
            {**entries, "steps": json.dumps(data)}, lambda index: partition.engines[index]
        )
