"""In-place writes and views: a network computes what PyTorch's shared memory would hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from t2t.errors import ConversionError, StateError, UnsupportedOperatorError
from t2t.lowering import to_network
from t2t.reference import capture
from tests.cases import OpCase, ids, run_case, uniform
from tests.programs import OPERATIONS, Step, replay, run_program


def writes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of copies: what it writes into are not the network's inputs."""

    def copied(*inputs: torch.Tensor) -> Any:
        copies = [x + 0 for x in inputs]
        result = function(*copies)
        return copies[0] if result is None else result

    return copied


def statements(*lines: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that calls others in turn and returns its first input, written."""

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        copies = [x + 0 for x in inputs]
        for line in lines:
            line(*copies)
        return copies[0]

    return function


def assign(place: Any, value: Any) -> Callable[..., Any]:
    def write(x: torch.Tensor, *others: torch.Tensor) -> None:
        x[place] = value(x, *others) if callable(value) else value

    return statements(write)


def sigmoid_of_columns(x: torch.Tensor) -> torch.Tensor:
    y = torch.sigmoid(x)
    y[:, 0:2] = torch.sigmoid(y[:, 0:2])
    return y


def stale(x: torch.Tensor) -> Any:
    view = x[:, 1:]
    x.mul_(2)
    return view, x


def earlier(x: torch.Tensor) -> Any:
    before = x + 0
    view = before[0]
    copy = view.clone()
    before.add_(1)
    return copy, view, before


def filled(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(4, 3)
    for index in range(2):
        out[index] = x[index] * 2
    out[2:] += x
    return out


def filled_empty(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2, 3)
    out[:, :2] = x[:, 1:]
    out[:, 2] = x[:, 0]
    return out


def filled_like(x: torch.Tensor) -> Any:
    zeros, ones, new = torch.zeros_like(x), torch.ones_like(x), x.new_zeros(2, 3)
    zeros[0] = x[1]
    ones[:, 0] += x[:, 1]
    new[1].copy_(x[0])
    return zeros, ones, new


def view_of_constant(x: torch.Tensor) -> Any:
    buffer = torch.zeros(4, 3)
    rows = buffer[1:3]
    top = rows[0]
    rows.copy_(x)
    return buffer, rows, top


def pieces(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, 1)
    a.mul_(2)
    b.add_(a)
    first, *_ = x.unbind(0)
    first.neg_()
    x.split([1, 3], 1)[1].sub_(1)
    return x


def mutated_constant(x: torch.Tensor) -> Any:
    scale = torch.ones(3)
    a = x * scale
    scale.mul_(2)
    b = x * scale
    scale[0] = 5.0
    return a, b, x * scale


def counted(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2, 3)
    for factor in (1.0, 2.0):
        total += x * factor
    return total


def out_argument(x: torch.Tensor) -> Any:
    out = torch.zeros(2, 3)
    same = torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    return out, same + 0


def out_of_pair(x: torch.Tensor) -> Any:
    values, indices = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    torch.max(x, 1, out=(values, indices))
    return values, indices


def out_that_is_empty(x: torch.Tensor) -> Any:
    out = torch.empty(0)
    name = out
    torch.mul(x, 2, out=out)
    torch.add(x, name, out=out)
    return out, name + 1


def out_of_pair_that_is_empty(x: torch.Tensor) -> Any:
    values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.max(x, 1, out=(values, indices))
    values += 1
    return values, indices


def out_with_empty_view(x: torch.Tensor) -> Any:
    out = torch.empty(0)
    view = out.view(0, 3)
    return torch.mul(x, 2, out=out), view


def returned_twice(x: torch.Tensor) -> Any:
    y = x + 1
    z = y.relu_()
    return y, z + 0, y[0]


def swap(x: torch.Tensor) -> torch.Tensor:
    x[[0, 1]] = x[[1, 0]]
    return x


def turned(x: torch.Tensor) -> Any:
    row = x[0]
    flat = x.view(-1)
    x.t_()
    x[0] = 1.0
    x.unsqueeze_(0)
    x.squeeze_()
    x.transpose_(0, 1)
    return x, row, flat


def turned_by_two_names(x: torch.Tensor) -> Any:
    y = x * 1
    same = y.float()
    y.t_()
    return y, same


def cast_on_write(x: torch.Tensor) -> Any:
    ints = torch.zeros(2, 3, dtype=torch.int32)
    ints.copy_(x)
    ints[0] += 1
    flags = torch.zeros(2, 3, dtype=torch.bool)
    flags[:] = x > 0
    return ints, flags


def branch(x: torch.Tensor) -> Any:
    y = x.relu()
    y += x
    z = y
    z *= 2
    return x, y


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.plain = torch.ones(3)
        self.rows = torch.zeros(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Each call leaves the same behind, so results do not depend on how many there were.
        self.steps.zero_().add_(1)
        self.plain.fill_(1).mul_(2)
        self.rows[0] = 1
        self.rows[1] = self.rows[0] + 1
        return x * self.plain + self.steps + self.rows


class Keeps(nn.Module):
    def __init__(self, buffer: bool) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("cache", torch.zeros(2, 3))
        else:
            self.cache = torch.zeros(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[0] = x[0]
        return self.cache + x


def constant_pieces(x: torch.Tensor) -> Any:
    buffer = torch.zeros(4, 3)
    halves, columns = buffer.split(2), buffer.unbind(1)
    halves[0].copy_(x)
    columns[1].mul_(2)
    return buffer, halves[1], columns[0]


def turned_constant(x: torch.Tensor) -> Any:
    buffer = torch.zeros(2, 3)
    buffer.copy_(x)
    buffer.unsqueeze_(0)
    row = buffer[0]
    buffer.squeeze_()
    buffer.t_()
    buffer[0] = 1.0
    return buffer, row


def turned_constant_with_views(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(2, 3)
    row = buffer[0]
    buffer.t_()
    buffer.copy_(x.t())
    return row


def read_before_turn(x: torch.Tensor) -> Any:
    buffer = torch.arange(6.0).reshape(2, 3)
    before = x + buffer
    buffer.t_()
    return before, x.t() + buffer


def data_assigned(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.data = x * 2
    return y


def constant_data_assigned(x: torch.Tensor) -> Any:
    scale = torch.ones(3)
    before = x * scale
    scale.data = torch.full((3,), 2.0)
    return before, x * scale


def index_changes(x: torch.Tensor) -> Any:
    index = torch.arange(3)
    index[0] = 2
    before = x[:, index]
    index[1] = 0
    return before, x[:, index]


def many(x: torch.Tensor) -> torch.Tensor:
    y = x + 0
    y.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(3.0))
    y.index_add_(0, torch.tensor([1]), x[:1])
    y.index_copy_(1, torch.tensor([0]), x[:, 1:2])
    y.put_(torch.tensor([5]), torch.tensor([7.0]))
    y.scatter_add_(0, torch.zeros(1, 3, dtype=torch.int64), x[1:])
    y.addcmul_(x, x).lerp_(x, 0.5).clamp_min_(0).pow_(2).sqrt_().neg_().tril_()
    return y


def same_dtype(x: torch.Tensor) -> torch.Tensor:
    x.float().mul_(2)
    x.to(x.dtype)[0].add_(1)
    nn.Identity()(x).sub_(0.5)
    return x


def in_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x + 1
        y.add_(1)
        y[0].mul_(2)
    return y


def reshaped_then_written(x: torch.Tensor) -> torch.Tensor:
    y = x.transpose(1, 2).reshape(x.shape[0], -1)
    x.relu_()
    return y + 1


def padded(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(x.shape[0] + 2, 3)
    out[1:-1] = x
    return out


WEIGHT = torch.zeros(2, 3)
X = (2, 3)
CASES = [
    OpCase("relu", writes(lambda x: x.relu_()), [X]),
    OpCase("read-after", writes(lambda x: (x.relu_(), x + 1)[1]), [X]),
    OpCase("input-written", lambda x: (x.add_(1), x * 2), [X]),
    OpCase("input-view-written", lambda x: (x[0].add_(1), x * 2), [X]),
    OpCase("slice-of-sigmoid", sigmoid_of_columns, [(2, 4, 5)]),
    OpCase("slice-constant", assign((slice(None), slice(1, 3)), 2.5), [X]),
    OpCase("slice-step", assign((slice(None), slice(0, None, 2)), 2.5), [(2, 5)]),
    OpCase("slice-value", assign((slice(None), slice(0, 2)), lambda _, y: y), [X, (2, 2)]),
    OpCase("slice-broadcast", assign((slice(None), slice(0, 2)), lambda _, y: y), [X, (2, 1)]),
    OpCase("slice-leading-one", assign(slice(None), lambda _, y: y), [X, (1, 2, 3)]),
    OpCase("ellipsis", assign((..., 0), lambda _, y: y), [(2, 3, 4), (3,)]),
    OpCase("everything", assign(..., 1.0), [X]),
    OpCase("two-slices", assign((slice(0, 1), slice(1, 3)), 4.0), [(2, 4)]),
    OpCase("new-axis", assign((None, 0), lambda _, y: y), [X, (1, 3)]),
    OpCase("column-times", statements(lambda x: x[..., 0].mul_(2)), [(2, 3, 4)]),
    OpCase("subscript-times", assign((..., 0), lambda x: x[..., 0] * 2), [(2, 3, 4)]),
    OpCase("view-of-view", statements(lambda x: x[:, :3][1:].t()[0].mul_(2)), [(4, 5)]),
    OpCase("transposed", statements(lambda x: x.t().mul_(torch.arange(2.0))), [X]),
    OpCase("permuted-slice", statements(lambda x: x.permute(2, 0, 1)[1:].fill_(3)), [(2, 3, 4)]),
    OpCase("reshaped", statements(lambda x: x.view(3, 2)[0].zero_()), [X]),
    OpCase("flattened", statements(lambda x: x.flatten()[1::2].add_(1)), [X]),
    OpCase("flattened-copy", statements(lambda x: x.t().flatten()[1::2].add_(1)), [X]),
    OpCase("unsqueezed", statements(lambda x: x.unsqueeze(1).mul_(2)), [X]),
    OpCase("squeezed", statements(lambda x: x.squeeze(1).mul_(2)), [(2, 1, 3)]),
    OpCase("expanded-to-itself", statements(lambda x: x.expand(2, 3).mul_(2)), [X]),
    OpCase("diagonal", statements(lambda x: x.diagonal().fill_(7)), [(3, 4)]),
    OpCase("fill-diagonal", statements(lambda x: x.fill_diagonal_(7)), [(3, 3)]),
    OpCase("strided", statements(lambda x: x.as_strided((2, 2), (3, 1), 1).mul_(2)), [X]),
    OpCase("unfolded", statements(lambda x: x.unfold(1, 2, 2).mul_(2)), [(2, 6)]),
    OpCase("detached", statements(lambda x: x.detach().mul_(2)), [X]),
    OpCase("movedim", statements(lambda x: x.movedim(0, 1)[2].copy_(x[:, 0])), [X]),
    OpCase("stale-view", writes(stale), [X]),
    OpCase("copies-stay", earlier, [X]),
    OpCase("chunks-and-pieces", writes(pieces), [(2, 4)]),
    OpCase("swap-rows", writes(swap), [X]),
    OpCase("turned", writes(turned), [X]),
    OpCase("filled-zeros", filled, [X]),
    OpCase("filled-empty", filled_empty, [X]),
    OpCase("filled-like", filled_like, [X]),
    OpCase("constant-view", view_of_constant, [X]),
    OpCase("constant-changes", mutated_constant, [X]),
    OpCase("sum-in-constant", counted, [X]),
    OpCase("cast-on-write", cast_on_write, [uniform(2, 3, low=-5, high=5)]),
    OpCase("out", out_argument, [X]),
    OpCase("out-pair", out_of_pair, [X]),
    OpCase("twice", returned_twice, [X]),
    OpCase("augmented", branch, [X]),
    OpCase("constant-pieces", constant_pieces, [X]),
    OpCase("constant-turned", turned_constant, [X]),
    OpCase("constant-turned-views", turned_constant_with_views, [X], raises="several tensors"),
    OpCase("constant-read-before-turn", read_before_turn, [X]),
    OpCase("constant-data", constant_data_assigned, [X]),
    OpCase("index-changes", index_changes, [X]),
    OpCase("many-operators", many, [X]),
    OpCase("same-dtype", writes(same_dtype), [X]),
    OpCase("inference-mode", in_inference_mode, [X]),
    OpCase("data", statements(lambda x: x.data.mul_(2)), [X]),
    OpCase("dtype-view", statements(lambda x: x.view(torch.int32).zero_()), [X], raises="dtype"),
    OpCase("mask", statements(lambda x: x.masked_fill_(x > 0, 0)), [X]),
    OpCase("mask-index", statements(lambda x: x.__setitem__(x > 0, 0.0)), [X]),
    OpCase("mask-of-view", statements(lambda x: x[0].__setitem__(x[0] > 0, 9.0)), [X]),
    OpCase("index", assign([0, 1], lambda _, y: y), [(3, 2), (2, 2)]),
    OpCase("scatter", statements(lambda x: x[1:].scatter_(1, torch.tensor([[2]]), 5.0)), [X]),
    OpCase("dropout", writes(lambda x: nn.functional.dropout(x, 0.5, False, True).add_(1)), [X]),
    OpCase("elu-module", nn.ELU(inplace=True), [(1, 3, 10, 10)]),
    OpCase("leaky-relu-module", nn.LeakyReLU(inplace=True), [(3, 2, 5)]),
    OpCase("silu-in-place", lambda x: nn.functional.silu(x, inplace=True), [(6, 8)]),
    OpCase("selu-in-place", lambda x: nn.functional.selu(x, inplace=True), [(9, 2, 13)]),
    OpCase("residual", nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)), [X]),
    OpCase(
        "dynamic", statements(lambda x, y: x[:, 1:3].copy_(y)), [(2, 4), (2, 2)],
        dynamic=[{0: ("n", 1, 5)}, {0: ("n", 1, 5)}], shapes=[(4, 4), (4, 2)],
    ),
    OpCase(
        "dynamic-slice", statements(lambda x: x[:, 1:].mul_(2)), [(2, 4)],
        dynamic=[{1: (2, 6)}], shapes=[(2, 6)],
    ),
    OpCase(
        "dynamic-column", statements(lambda x: x[:, -1].mul_(2)), [(2, 4)],
        dynamic=[{0: (1, 4), 1: (2, 6)}], shapes=[(3, 6)],
    ),
    OpCase(
        "dynamic-transposed", statements(lambda x: x.t()[0].zero_()), [(2, 4)],
        dynamic=[{0: (1, 4), 1: (2, 6)}], shapes=[(3, 6)],
    ),
    OpCase(
        "dynamic-zeros", lambda x: torch.zeros(x.shape[0], 4).index_copy_(1, torch.tensor([2]), x),
        [(2, 1)], dynamic=[{0: (1, 4)}], shapes=[(3, 1)],
    ),
    OpCase(
        "dynamic-zeros-rows", padded, [(2, 3)], dynamic=[{0: (1, 4)}],
        shapes=[(3, 3)],
    ),
    OpCase(
        "dynamic-diagonal", statements(lambda x: x.diagonal().zero_()), [(3, 3)],
        dynamic=[{0: ("n", 1, 4), 1: ("n", 1, 4)}], raises="dynamic shape",
    ),
    OpCase(
        "dynamic-reshape-written", lambda x: x.transpose(1, 2).reshape(x.shape[0], -1).relu_(),
        [(2, 3, 4)], dynamic=[{0: (1, 4), 1: (1, 5)}], shapes=[(1, 1, 4)],
    ),
    OpCase(
        "dynamic-flatten-written", lambda x: torch.flatten((x + 1).transpose(1, 2), 1).relu_(),
        [(2, 3, 4)], dynamic=[{0: (1, 4), 1: (1, 5)}], shapes=[(1, 1, 4)],
    ),
    OpCase(
        "dynamic-contiguous-written", lambda x: (x.transpose(1, 2).contiguous().relu_(), x + 1)[1],
        [(2, 3, 4)], dynamic=[{0: (1, 4), 1: (1, 5)}], raises="at some sizes",
    ),
    OpCase(
        "dynamic-source-written", reshaped_then_written, [(2, 3, 4)],
        dynamic=[{0: (1, 4), 1: (1, 5)}], raises="at some sizes",
    ),
    OpCase("turned-by-two-names", turned_by_two_names, [X], raises="two names"),
    OpCase("expanded", lambda x: x.expand(2, 3).add_(1), [(1, 3)], raises="share memory"),
    OpCase("overlapping", lambda x: x.unfold(1, 2, 1).mul_(2), [X], raises="share memory"),
    OpCase("out-of-other-shape", lambda x: torch.add(x, 1, out=torch.ones(3)), [X], raises="out="),
    OpCase("out-that-is-empty", out_that_is_empty, [X]),
    OpCase("out-of-pair-that-is-empty", out_of_pair_that_is_empty, [X]),
    # PyTorch itself gives the sort inside an empty tensor for the places.
    OpCase("out-with-empty-inside", lambda x: torch.msort(x, out=torch.zeros(2, 3)), [X]),
    OpCase("out-with-empty-view", out_with_empty_view, [X], raises="out="),
    OpCase(
        "out-that-is-empty-dynamic", out_that_is_empty, [X],
        dynamic=[{0: (1, 4)}], raises="out=",
    ),
    OpCase("parameter", lambda x: WEIGHT.copy_(x), [X], raises="before the forward pass"),
]  # fmt: skip


@pytest.mark.parametrize("case", ids(CASES))
def test_aliasing(case: OpCase) -> None:
    run_case(case)


def test_assigning_data_is_refused() -> None:
    with pytest.raises(ConversionError, match="cannot follow"):
        to_network(data_assigned, [torch.ones(2, 3)])


def test_an_empty_buffer_that_out_would_resize_is_refused_and_stays() -> None:
    module, x = Counter(), torch.randn(2, 3)
    module.register_buffer("made", torch.empty(0))
    module.forward = lambda x: torch.mul(x, 2, out=module.made)  # type: ignore[assignment]
    with pytest.raises(ConversionError, match="out="):
        to_network(module, [x])
    assert module.made.shape == (0,)


def test_constants_that_the_module_writes_are_put_back() -> None:
    module, x = Counter(), torch.randn(2, 3)
    conversion = to_network(module, [x])
    assert module.steps == 0
    assert torch.equal(module.plain, torch.ones(3))
    assert torch.equal(module.rows, torch.zeros(2, 3))
    program = capture(conversion.network.raw, conversion.network.weights)
    torch.testing.assert_close(program.run([x])["output"], x * 2 + torch.tensor([[2.0], [3.0]]))


@pytest.mark.parametrize("buffer", [True, False])
def test_state_that_depends_on_the_input_is_the_networks_and_left(buffer: bool) -> None:
    module = Keeps(buffer)
    conversion = to_network(module, [torch.ones(2, 3)])
    assert conversion.signature.state == ("cache",)
    assert torch.equal(module.cache, torch.zeros(2, 3))


def test_state_outside_of_a_module_is_refused_with_the_line() -> None:
    cache = torch.zeros(2, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        cache[0] = x[0]
        return cache + x

    with pytest.raises(StateError, match=r"keeps no such state.*test_aliasing\.py"):
        to_network(function, [torch.ones(2, 3)])
    assert torch.equal(cache, torch.zeros(2, 3))


def test_the_example_inputs_are_not_written() -> None:
    x = torch.randn(2, 3)
    before = x.clone()
    to_network(lambda x: x.mul_(2)[0].add_(1), [x])
    assert torch.equal(x, before)
    assert x._version == 0


def test_views_made_before_the_forward_pass_are_no_way_around() -> None:
    base = torch.zeros(2, 3)
    row = base[0]

    def function(x: torch.Tensor) -> torch.Tensor:
        base.copy_(x)
        return row + 1

    with pytest.raises(ConversionError, match="keeps no such state"):
        to_network(function, [torch.ones(2, 3)])
    assert torch.equal(base, torch.zeros(2, 3))


STEPS = st.lists(
    st.tuples(*[st.integers(0, len(OPERATIONS) - 1), *[st.integers(0, 23)] * 3]), max_size=10
)
# A write through these is refused, and a view of memory outside its tensor.
REFUSED = "elements share memory|reads memory outside|value of a tensor"


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(STEPS)
def test_random_programs(steps: list[Step]) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 3, generator=generator), torch.randn(3, 4, generator=generator)]
    pool, done = run_program(steps, *(x.clone() for x in inputs))

    try:
        conversion = to_network(lambda *tensors: tuple(replay(done, *tensors)), inputs)
    except UnsupportedOperatorError as error:
        hypothesis.assume(not re.search(REFUSED, str(error)))
        raise
    got = capture(conversion.network.raw, conversion.network.weights).run(inputs)
    expected = list({id(x): x for x in pool}.values())
    for spec, wanted in zip(conversion.signature.outputs, expected, strict=True):
        torch.testing.assert_close(got[spec.name], wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
