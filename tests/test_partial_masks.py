"""What a mask chooses and the same mask puts back: whole engines, or right all the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import t2t
from t2t.errors import ConversionError

pytestmark = pytest.mark.filterwarnings(
    "ignore::t2t.ReferenceExecutionWarning", "ignore:.create_unbacked_symint"
)


class Masked(nn.Module):
    """A linear layer, and what is done to its result."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x), y)


def inputs(shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(shape, generator=generator) for _ in range(2))
    # All and nothing is chosen by some.
    return x, y + {5: 9.0, 6: -9.0}.get(seed, 0.0)


def check(model: nn.Module, converted: nn.Module, shape: tuple[int, ...]) -> None:
    for seed in (2, 3, 5, 6):
        given = inputs(shape, seed)
        with torch.no_grad():
            wanted, found = (m(*(t.clone() for t in given)) for m in (model, converted))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def put(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x[index] = value
    return x


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y > 0
    x[mask] += y[mask]
    x[y < 0] *= 3
    return x


def in_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y[:, 1:].transpose(0, 1) > 0
    x[:, 1:].transpose(0, 1)[mask] = y[:, 1:].transpose(0, 1)[mask]
    return x


def in_a_loop(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for step in range(3):
        mask = y > step * 0.3
        x[mask] = x[mask] * 0.5 + y[mask]
    return x


def source_written_since(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y, mask = y.clone(), y > 0
    chosen = y[mask]
    y.mul_(3)
    return put(x, mask, chosen) + y


def scattered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y[:, :1] > 0
    return x.masked_scatter(mask, torch.masked_select(y, mask) * 2)


def changed_inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y[:, 0] > 0
    chosen = x[mask]
    chosen[:, 0] = 5.0
    chosen[:, 1:3].mul_(2)
    more = chosen[:, 3] > 0
    chosen[more] = chosen[more] * 4
    return put(x, mask, chosen)


def farthest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Choose points as PointNet++ does."""
    del y
    count, rows = x.shape[0], torch.arange(x.shape[0])
    chosen = torch.zeros(count, 3, dtype=torch.long)
    distance = torch.full(x.shape[:2], 1e10)
    last = torch.zeros(count, dtype=torch.long)
    for step in range(3):
        chosen[:, step] = last
        squares = ((x - x[rows, last].view(count, 1, -1)) ** 2).sum(-1)
        mask = squares < distance
        distance[mask] = squares[mask]
        last = distance.max(-1)[1]
    return chosen


WHOLE: list[tuple[str, tuple[int, ...], Callable[..., torch.Tensor]]] = [
    ("full", (3, 4), lambda x, y: put(x, y > 0, y[y > 0])),
    ("computed", (3, 4), lambda x, y: put(x, x < 0, x[x < 0].exp() - 1)),
    ("leading", (2, 3, 4), lambda x, y: put(x, y[..., 0] > 0, y[y[..., 0] > 0] * 2)),
    ("behind", (2, 3, 4), lambda x, y: put(x, (slice(None), y[0] > 0), y[:, y[0] > 0].cos())),
    ("rest", (3, 4), lambda x, y: put(x, (y[:, 0] > 0, slice(None)), y[y[:, 0] > 0, :])),
    ("place", (2, 3, 4), lambda x, y: put(x, (y[..., 0] > 0, 1), y[y[..., 0] > 0][:, 2])),
    ("broadcast", (3, 4), lambda x, y: put(x, y[:, 0] > 0, y[y[:, 0] > 0][:, :1] - x[0])),
    ("reduced", (3, 4), lambda x, y: put(x[:, 0], y[:, 0] > 0, y[y[:, 0] > 0].pow(2).sum(-1))),
    ("accumulated", (3, 4), lambda x, y: x.index_put((y > 0,), y[y > 0], accumulate=True)),
    ("boolean", (3, 4), lambda x, y: x * put(x > 0, y > 0, ~(x > 0)[y > 0])),
    ("not", (3, 4), lambda x, y: put(put(x, ~(y > 0), y[~(y > 0)]), y > 0, x[y > 0] + 1)),
    ("added", (3, 4), added),
    ("view", (3, 4), in_a_view),
    ("loop", (3, 4), in_a_loop),
    ("written", (3, 4), source_written_since),
    ("scattered", (3, 4), scattered),
    ("inside", (3, 4), changed_inside),
    ("farthest", (2, 8, 4), farthest),
]


@pytest.mark.parametrize(("shape", "function"), [c[1:] for c in WHOLE], ids=[c[0] for c in WHOLE])
def test_the_same_mask_is_a_choice(shape: tuple[int, ...], function: Any) -> None:
    model = Masked(function)
    try:
        model(*inputs(shape, 1))
    except IndexError:
        pytest.skip("PyTorch 2.8 refuses a number behind a mask of several dimensions")
    converted = t2t.convert(model, [*inputs(shape, 1)])
    assert not converted.parts
    check(model, converted, shape)


@pytest.mark.parametrize("precision", [{}, {"fp16": True}])
def test_a_choice_with_dynamic_sizes(precision: dict[str, bool]) -> None:
    model = Masked(lambda x, y: put(x, y[..., 0] > 0, y[y[..., 0] > 0] + 1))
    converted = t2t.convert(model, [*inputs((2, 3, 4), 1)], max_batch_size=5, **precision)
    for count in (1, 5):
        given = inputs((count, 3, 4), count)
        tolerance = 2e-3 if precision else 1e-5  # a product of halves
        with torch.no_grad():
            torch.testing.assert_close(
                converted(*given), model(*given), rtol=tolerance, atol=tolerance
            )


def other_mask(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As many elements, but others."""
    mask = y > 0
    return put(x, mask.flip(1), y[mask])


def mask_changed_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y > 0
    chosen = y[mask]
    mask.copy_(mask.flip(0))
    return put(x, mask, chosen)


def moved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y > 0
    return put(x, mask, y[mask].flip(0))


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return put(x, y > 0, y[y > 0].cumsum(0))


def normalized(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y[:, 0] > 0
    return put(x, mask, x[mask].softmax(0))


def divided(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Integers, of which those that are not chosen cannot be divided by."""
    whole = (y * 2).long()
    return x + put(torch.zeros_like(whole), whole != 0, 12 // whole[whole != 0])


def with_places(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask, places = y[:, 0] > 0, (y[:, 1].abs() * 4).long() % 4
    return put(x, (mask, places[mask]), y[mask].sum(-1))


def of_bytes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A mask as it was before there was bool; PyTorch still takes it, with a warning."""
    mask = (y > 0).to(torch.uint8)
    return put(x, mask, y[mask] * 2)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize(
    "function",
    [other_mask, mask_changed_between, moved, summed, normalized, divided, with_places, of_bytes],
)
def test_what_is_no_choice_stays_in_pytorch(function: Any) -> None:
    model = Masked(function)
    with pytest.raises(ConversionError, match=r"depends on the data.*test_partial_masks"):
        t2t.convert(model, [*inputs((3, 4), 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = t2t.convert(model, [*inputs((3, 4), 1)], partial=True)
    assert not all(part.in_engine for part in converted.parts)
    check(model, converted, (3, 4))


def test_values_of_another_type_are_refused_as_by_pytorch() -> None:
    def typed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return put(x, y > 0, y.long()[y > 0])

    model, given = Masked(typed), inputs((3, 4), 1)
    with pytest.raises(RuntimeError, match="dtypes match"):
        model(*given)
    with pytest.raises(ConversionError):
        t2t.convert(model, [*given])


def test_a_users_converter_wins_over_a_choice() -> None:
    asked: list[Any] = []

    @t2t.formula("aten::index_put")
    def own(
        self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
    ) -> Any:
        del self, values, accumulate
        asked.append(indices)
        return NotImplemented

    model = Masked(added)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = t2t.convert(model, [*inputs((3, 4), 1)], partial=True)
    finally:
        t2t.unregister("aten::index_put")
    assert asked
    check(model, converted, (3, 4))
    asked.clear()
    assert not t2t.convert(model, [*inputs((3, 4), 1)]).parts
    assert not asked
