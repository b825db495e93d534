"""The trace: what it records, what it refuses, and that it leaves everything as it was."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import t2t
from t2t import registry
from t2t.errors import ConversionError, GuardError, ShapeWarning, UnsupportedOperatorError
from t2t.io import Dimension, Place
from t2t.lowering import to_network
from t2t.reference import capture

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
captured_relu = F.relu


def patched_attributes() -> dict[str, Any]:
    """Give every attribute that a trace may replace, as it is now."""
    found: dict[str, Any] = {}
    # Packages that other tests import bring functions of their own.
    for name in filter(lambda name: name.startswith("torch."), registry.function_converters()):
        owner, attribute = registry.resolve(name)
        found[name] = (getattr(owner, attribute), attribute in vars(owner))
    for owner, attribute in (
        (nn.Module, "__call__"),
        (torch.Tensor, "numpy"),
        (torch.Tensor, "__array__"),
        (torch.backends.mha, "get_fastpath_enabled"),
    ):
        found[f"{owner.__name__}.{attribute}"] = (
            getattr(owner, attribute),
            attribute in vars(owner),
        )
    return found


# Taken before any test of this file traces: a leak of an earlier test would show.
BEFORE = patched_attributes()


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was() -> Iterator[None]:
    yield
    assert patched_attributes() == BEFORE


def run(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    conversion = to_network(function, inputs, **options)
    program = capture(conversion.network.raw, conversion.network.weights)
    got = program.run([x.clone() for x in inputs])
    return [got[spec.name] for spec in conversion.signature.outputs]


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    for shift in (0.0, 0.7):
        given = [x + shift if x.is_floating_point() else x for x in inputs]
        wanted = function(*[x.clone() for x in given])
        got = run(function, *given)
        torch.testing.assert_close(got[0], wanted, rtol=1e-5, atol=1e-6)


# -- what is recorded ----------------------------------------------------------------------------


def test_a_function_captured_before_the_trace_converts() -> None:
    check(lambda x: captured_relu(x) + 1, X)


def test_constants_are_what_they_were_when_they_were_read() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(4)
        first = x * weight
        weight.mul_(3)
        return first + x * weight

    check(function, X)


def test_a_scripted_module_converts() -> None:
    module = nn.Sequential(nn.Conv1d(3, 2, 3), nn.BatchNorm1d(2), nn.ReLU()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.trace(module, X)
    check(scripted, X)


def test_a_frozen_script_converts() -> None:
    module = nn.Sequential(nn.Conv1d(3, 2, 3), nn.Dropout(), nn.ReLU()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(torch.jit.freeze(torch.jit.trace(module, X)), X)


FUSED = """
import warnings
import torch
from t2t.lowering import to_network
from t2t.reference import capture

warnings.simplefilter("ignore")
torch._C._jit_override_can_fuse_on_cpu(True)
torch._C._jit_set_texpr_fuser_enabled(True)
torch._C._jit_set_te_must_use_llvm_cpu(False)
x = torch.randn(4, 8)
script = torch.jit.trace(lambda x: (x * 2 + 1).relu() * x.tanh() + x.sigmoid(), (x,))
wanted = [script(x) for _ in range(4)][0]
assert "TensorExprGroup" in str(torch.jit.last_executed_optimized_graph())
conversion = to_network(script, [x])
(got,) = capture(conversion.network.raw, conversion.network.weights).run([x]).values()
torch.testing.assert_close(got, wanted)
assert conversion.network.raw.num_layers > 4
torch.testing.assert_close(script(x), wanted)
"""


def test_a_script_that_became_one_kernel_converts() -> None:
    # As scripts do on GPUs. That kernel reads the memory of fake tensors, which have none: where
    # it ran, the process ended.
    done = subprocess.run(
        [sys.executable, "-c", FUSED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_results_that_are_not_used_cost_no_layers() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        _ = torch.sigmoid(x) * 3
        return torch.relu(x)

    assert to_network(function, [X]).network.raw.num_layers == 1


def test_an_unconvertible_operator_is_no_matter_where_its_result_is_not_used() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        _ = torch.special.bessel_j0(x)
        return torch.relu(x)

    check(function, X)


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)  # the line that errors name


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.ReLU(), Inner())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def test_the_error_names_operator_module_file_and_line() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        to_network(Outer().eval(), [X])
    line = Inner.forward.__code__.co_firstlineno + 1
    for part in ("aten::special_bessel_j0", "blocks.1", f"test_tracing.py:{line}", "Inner.forward"):
        assert part in str(caught.value)


def test_missing_operators_lists_all_gaps_in_one_run() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.special.bessel_j0(x).relu()
        return torch.special.bessel_j1(y) + y

    lines = t2t.missing_operators(function, [X])
    assert len(lines) == 2
    assert "bessel_j0" in lines[0]
    assert "bessel_j1" in lines[1]
    assert t2t.missing_operators(torch.relu, [X]) == []


def item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def to_numpy(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.numpy().sum())


def to_list(x: torch.Tensor) -> torch.Tensor:
    return x * x.tolist()[0][0][0]


def mask(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def sections(x: torch.Tensor) -> Any:
    return x.tensor_split((x[0, 0] > 0).long().cumsum(0))


@pytest.mark.parametrize("function", [item, branch, to_numpy, to_list, mask, sections])
def test_what_needs_data_is_refused_with_the_line(function: Callable[..., Any]) -> None:
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(
        UnsupportedOperatorError, match=rf"test_tracing\.py:{line} in {function.__name__}"
    ):
        to_network(function, [X])


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: float(x.max()),
        lambda x: x.max().long().item(),
        lambda x: len(range(int(x.sum()))),
        lambda x: x.numpy().max(),
        lambda x: torch.linspace(0, x.max(), 4).sum(),
        lambda x: 1.0 if x.sum() > 0 else 2.0,
    ],
)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning")
def test_a_refusal_that_the_model_catches_is_raised(ask: Any, partial: bool) -> None:
    """Without t2t it would take the other branch."""

    def asking(x: torch.Tensor) -> torch.Tensor:
        y = (x.sin() + 1).exp() * 2
        try:
            factor = ask(x)
        except Exception:  # noqa: BLE001  as models have it
            factor = 0.0
        return (y * factor + 1).cos()

    x = torch.arange(5.0)
    try:
        converted = t2t.convert(asking, [x], partial=partial)
    except ConversionError:
        return
    for y in (x, x + 1):
        torch.testing.assert_close(converted(y), asking(y))


def test_random_numbers_are_refused_not_frozen() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"random.*test_tracing\.py"):
        to_network(lambda x: x + torch.rand(4), [X])
    with pytest.raises(UnsupportedOperatorError, match="random"):
        to_network(lambda x: F.dropout(x, 0.5, training=True), [X])


def test_an_exception_of_the_model_keeps_its_type_and_gets_a_note() -> None:
    def function(_x: torch.Tensor) -> torch.Tensor:
        raise LookupError("the model's own")

    with pytest.raises(LookupError, match="the model's own") as caught:
        to_network(function, [X])
    assert "test_tracing.py" in caught.value.__notes__[0]


def test_torch_is_restored_after_keyboard_interrupt() -> None:
    def function(_x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_network(function, [X])
    assert patched_attributes() == BEFORE


def test_after_a_conversion_boolean_masks_work_as_before() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]

    run(torch.relu, X)
    with pytest.raises(UnsupportedOperatorError):
        to_network(failing, [X])
    assert torch.ones(1, 3)[torch.tensor([True])].shape == (1, 3)


# -- what is left alone --------------------------------------------------------------------------


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (x * self.weight * torch.sign(self.calls)).relu_()


def test_the_module_and_the_inputs_are_left_as_they_are() -> None:
    module, x = Stateful().eval(), X.clone()
    got = run(module, x)
    assert module.calls == 0
    assert torch.equal(x, X)
    torch.testing.assert_close(got[0], X.relu())
    module.train()
    to_network(module, [x])
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(x)
        return self.cache + 1


def test_state_that_depends_on_the_input_is_the_networks() -> None:
    module = Cache()
    assert to_network(module, [X]).signature.state == ("cache",)
    assert not module.cache.any()


def test_another_thread_computes_while_a_module_is_traced() -> None:
    weight, image = torch.ones(4, 3, 3, 3), torch.ones(1, 3, 5, 5)
    wanted, seen = F.conv2d(image, weight).relu(), []

    def other() -> None:
        seen.append(F.conv2d(image, weight).relu_())
        layer = nn.Linear(3, 1)
        layer(torch.ones(2, 3)).sum().backward()
        seen.append(layer.weight.grad)

    def function(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return torch.relu(x)

    check(function, X)
    assert torch.equal(seen[0], wanted)
    assert torch.equal(seen[1], torch.full((1, 3), 2.0))


def test_two_threads_convert_at_the_same_time() -> None:
    results: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        results[n] = run(lambda x: torch.relu(x * n), X)[0]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        assert torch.equal(results[n], (X * n).relu())


# -- dynamic sizes -------------------------------------------------------------------------------


def dynamic_run(
    function: Callable[..., Any], example: torch.Tensor, other: torch.Tensor, **options: Any
) -> None:
    conversion = to_network(function, [example], **options)
    program = capture(conversion.network.raw, conversion.network.weights)
    for x in (example, other):
        (got,) = program.run([x]).values()
        torch.testing.assert_close(got, function(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.shape[0],
        lambda x: x.reshape(x.shape[0], -1) + x.shape[1] // 2,
        lambda x: x * x.shape[1] ** -0.5,
        lambda x: x.flatten(0, 1) * (x.numel() % 7),
        lambda x: x + max(x.shape[0] * 100, x.shape[1]),
        lambda x: x / math.sqrt(x.shape[1]),
        lambda x: x * torch.tensor(x.shape[1]),
        lambda x: x.sum(0) * torch.tensor([[1], [x.shape[0]]]).sum(0),
        lambda x: x * torch.tensor(x.shape[0] / 2),
        lambda x: x.sum((0, 2)) + torch.linspace(0, 1, x.shape[1]),
        lambda x: x[: x.shape[0] // 2 + 1, -1],
        lambda x: torch.cat([x, x.new_zeros(x.shape[0], 2, 4)], 1),
        lambda x: x + torch.arange(x.shape[1])[:, None],
        lambda x: torch.ones(1, 1, 4).expand(x.shape[0], -1, -1) + x,
    ],
)
def test_sizes_follow_the_input(function: Callable[..., Any]) -> None:
    dynamic_run(function, X, torch.randn(5, 7, 4), dynamic_shapes=[{0: (1, 8), 1: (1, 9)}])


def test_a_decision_on_a_size_names_the_line_and_the_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 3 else x

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(GuardError, match=rf"test_tracing\.py:{line}.*dimension 0 of input 'x' = 4"):
        to_network(function, [X], dynamic_shapes=[{0: (1, 8)}])
    with pytest.warns(ShapeWarning, match=r"was declared as 1\.\.8 and is 1\.\.3 for"):
        narrowed = to_network(function, [X], dynamic_shapes=[{0: (1, 8)}], narrow_shapes=True)
    assert narrowed.signature.inputs[0].max_shape == (3, 3, 4)
    # Where the decision is the same in the whole range, there is nothing to refuse.
    to_network(function, [X], dynamic_shapes=[{0: (1, 3)}])


def test_what_torch_cannot_trace_with_dynamic_sizes_is_refused() -> None:
    n = torch.export.Dim("n", min=2, max=5)
    with pytest.raises(UnsupportedOperatorError, match=r"plain numbers.*test_tracing\.py"):
        to_network(
            lambda x, w: torch.cov(x, aweights=w),
            [torch.randn(3, 4), torch.rand(4)],
            dynamic_shapes=[{1: n}, {0: n}],
        )


def test_results_without_elements_may_be_dynamic() -> None:
    dynamic_run(lambda x: x[:, :0].relu(), X, torch.randn(5, 3, 4), dynamic_shapes=[{0: (1, 8)}])


def test_a_range_is_narrowed_for_all_dimensions_of_one_name() -> None:
    n = torch.export.Dim("n", min=1, max=8)
    with pytest.warns(ShapeWarning, match="dimension 0 of input 'x'"):
        converted = to_network(
            lambda x: x * 2 if x.shape[0] > 3 else x,
            [torch.randn(3, 3)],
            dynamic_shapes=[{0: n, 1: n}],
            narrow_shapes=True,
        )
    assert converted.signature.inputs[0].max_shape == (3, 3)


def test_a_size_that_becomes_a_plain_number_is_refused() -> None:
    with pytest.raises(GuardError, match=r"plain number .*torch\.sym_int"):
        to_network(lambda x: x * int(x.shape[0] * 1.5), [X], dynamic_shapes=[{0: (1, 8)}])


def test_equal_example_sizes_are_not_taken_to_be_equal() -> None:
    square = torch.randn(3, 3)
    with pytest.raises(GuardError, match="dimension 1"):
        to_network(lambda x: x + x.t(), [square], dynamic_shapes=[{0: (1, 8), 1: (1, 8)}])


def test_an_encoder_follows_batch_and_length() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    dims = [{0: (1, 4), 1: (1, 16)}]
    dynamic_run(encoder, torch.randn(2, 7, 16), torch.randn(1, 9, 16), dynamic_shapes=dims)


def test_a_write_to_what_may_be_a_copy_or_an_alias_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 1).reshape(-1, 4)
        y += 1
        return x.sum() + y

    with pytest.raises(ConversionError, match=r"\.clone\(\).*test_tracing\.py"):
        to_network(function, [X], dynamic_shapes=[{0: (1, 8)}])
    dynamic_run(
        lambda x: x.transpose(0, 1).reshape(-1, 4).clone().mul_(2),
        X,
        torch.randn(1, 3, 4),
        dynamic_shapes=[{0: (1, 8)}],
    )


def test_one_dim_in_two_inputs_is_one_size() -> None:
    n = torch.export.Dim("n", min=1, max=8)
    conversion = to_network(torch.add, [X, X + 1], dynamic_shapes=[{0: n}, {0: n}])
    assert conversion.signature.dimensions == (
        Dimension("n", 1, 8, places=(Place(0, 0), Place(1, 0))),
    )
    with pytest.raises(GuardError, match="dimension 0 of input"):
        to_network(torch.add, [X, X + 1], dynamic_shapes=[{0: (1, 8)}, {0: (1, 8)}])


def test_example_outside_its_range_is_refused() -> None:
    with pytest.raises(t2t.errors.ShapeError, match="example's 2"):
        to_network(torch.relu, [X], min_shapes=[(3, 3, 4)], max_shapes=[(8, 3, 4)])


# -- the frame around it -------------------------------------------------------------------------


def test_dropout_in_training_mode_is_refused_unless_told_otherwise() -> None:
    module = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    with pytest.raises(ConversionError, match=r"ignore_dropout=True"):
        to_network(module, [X])
    got = run(module, X, ignore_dropout=True)
    assert torch.equal(got[0], X.relu())
    assert module[1].training


def test_names_of_inputs_and_outputs() -> None:
    def function(image: torch.Tensor, pair: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": image + pair[0], "same": pair[1], "twice": pair[1]}

    signature = to_network(function, [X, [X, X + 1]]).signature
    assert [spec.name for spec in signature.inputs] == ["image", "pair_0", "pair_1"]
    assert [spec.name for spec in signature.outputs] == ["sum", "same"]


def test_a_module_without_tensors_is_refused() -> None:
    with pytest.raises(ConversionError, match="no tensor"):
        to_network(lambda _x: 3, [X])
    with pytest.raises(ConversionError, match="no tensor"):
        to_network(torch.relu, [3])
    with pytest.raises(ConversionError, match="is a path"):
        to_network("resnet18.pth", [X])
