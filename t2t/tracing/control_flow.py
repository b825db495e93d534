"""Operators that take functions: loops, branches and flex_attention.

`while_loop`, `scan` and their relatives become loops of TensorRT, and branches with large products
conditionals: their functions are recorded once, each into a graph of its own, and their layers are
added inside. What a function reads from outside stays there; what it makes, only its results tell.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.network import Network, NetworkTensor
from t2t.network.loops import Loop
from t2t.precision import Kind
from t2t.registry import Converter
from t2t.sizes import example_size, expression, static_size
from t2t.torch_internals import FakeTensor, flex_attention_in_plain_operators, pytree
from t2t.tracing.emit import emit_calls
from t2t.tracing.graph import Call, Graph, Value
from t2t.tracing.recorder import Recorder

NO_LOOPS = (
    "torch.{name} has no converter: use operators on whole tensors, torch.cond, while_loop, scan, "
    "or a Python loop of fixed length, which is unrolled"
)

Results = list[NetworkTensor | None]


# -- branches --------------------------------------------------------------------------------------


def cond(
    recorder: Recorder,
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """Record both branches, which give tensors of the same shapes, in trees of one structure.

    A conditional runs one of them, but costs a look at the condition before it, and nothing is
    fused with what is inside. So where both are cheap they are computed, and `torch.where` chooses;
    likewise where a call has no converter, as only single calls can stay in PyTorch.
    """
    if isinstance(pred, torch.Tensor) and not recorder.is_traced(pred):
        pred = bool(pred)
    if not isinstance(pred, torch.Tensor):
        return true_fn(*operands) if pred else false_fn(*operands)
    pred = pred.reshape(())
    branches, results, structures = [], [], []
    for function in (true_fn, false_fn):
        with recorder.body() as (branch, _):
            leaves, structure = pytree.tree_flatten(function(*operands))
            branch.output = [recorder.value(x) for x in leaves if isinstance(x, torch.Tensor)]
        branches.append(branch)
        results.append(leaves)
        structures.append(structure)
    if structures[0] != structures[1]:
        raise UnsupportedOperatorError(
            "torch.cond: its branches return other structures; return the same tree of tensors"
        )
    for a, b in zip(*results, strict=True):
        if _kind(a) != _kind(b):
            raise UnsupportedOperatorError(
                f"torch.cond: one branch returns {_text(a)}, the other {_text(b)}; return tensors "
                "of one type and shape"
            )
    tensors = [[x for x in leaves if isinstance(x, torch.Tensor)] for leaves in results]
    if _is_worthwhile(branches):
        shapes = [x.shape for x in tensors[0]]
        made = _record(recorder, CONDITIONAL, (pred, *branches), shapes, tensors[0])
    else:
        for branch in branches:
            recorder.graph.calls += branch.calls
            recorder.note_results(branch.output)
        # Of what was written with traced values, the value's tensor is still known.
        sides = [
            [
                y.tensor if isinstance(y.tensor, FakeTensor) else x
                for x, y in zip(xs, ys, strict=True)
            ]
            for xs, ys in zip(tensors, (branch.output for branch in branches), strict=True)
        ]
        made = [torch.where(pred, a, b) for a, b in zip(*sides, strict=True)]
    rest = iter(made)
    chosen = [next(rest) if isinstance(x, torch.Tensor) else x for x in results[0]]
    return pytree.tree_unflatten(chosen, structures[0])


def _is_worthwhile(branches: Sequence[Graph]) -> bool:
    calls = [call for branch in branches for call in branch.used_calls(branch.output)]
    if any(call.converter is None or call.problem is not None for call in calls):
        return False
    # The precision of some products depends on their sizes.
    kinds = [call.converter.precision for call in calls if call.converter is not None]
    return any(kind == "compute" or callable(kind) for kind in kinds) or any(
        call.bodies() for call in calls
    )


def add_conditional(
    net: Network, pred: torch.Tensor, true_fn: Graph, false_fn: Graph
) -> list[NetworkTensor]:
    """Add a conditional; each tensor from outside enters it once for both branches."""
    conditional = net.add_conditional(pred)
    read = [value.tensor for branch in (true_fn, false_fn) for value in branch.captured()]
    outside = list({id(x): x for x in read if net.is_traced(x)}.values())
    inside = [conditional.add_input(net.bound(x)) for x in outside]
    sides = []
    with net.standing_for(outside, inside):
        for branch in (true_fn, false_fn):
            emit_calls(branch, net, branch.output)
            sides.append([net.tensor(value.tensor) for value in branch.output])
    return [conditional.add_output(a, b) for a, b in zip(*sides, strict=True)]


# -- loops -----------------------------------------------------------------------------------------


def while_loop(
    recorder: Recorder,
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **mutated: Any,
) -> Any:
    """Record a loop that runs as often as the data says.

    Python numbers among what is carried are known while the model is traced, and may be sizes or
    indices; a loop that counts by them is unrolled.
    """
    del mutated
    if not all(isinstance(x, torch.Tensor) for x in carried_inputs):
        while cond_fn(*carried_inputs, *additional_inputs):
            carried_inputs = tuple(body_fn(*carried_inputs, *additional_inputs))
        return carried_inputs
    shapes = [x.shape for x in carried_inputs]
    with recorder.body(shapes, carried_inputs) as (body, carried):
        goes_on = torch.as_tensor(cond_fn(*carried, *additional_inputs)).reshape(())
        after, structure = pytree.tree_flatten(body_fn(*carried, *additional_inputs))
        _check_carried("while_loop", carried, after)
        body.output = [recorder.value(x) for x in (goes_on, *after)]
    if body.output[0] not in _changing(body):
        raise UnsupportedOperatorError(
            "torch.while_loop: its condition does not depend on what the loop carries, so that it "
            "never ends, or never begins"
        )
    made = _record(recorder, WHILE, (body, list(carried_inputs)), shapes, carried_inputs)
    return pytree.tree_unflatten(made, structure)


def add_while(net: Network, body: Graph, carried: Sequence[torch.Tensor]) -> Results:
    """Add a loop whose condition is the first output of its body."""
    loop = net.add_loop()
    before = _recurrences(net, loop, body, carried)
    emit_calls(body, net, body.output)
    condition, *after = [net.tensor(value.tensor) for value in body.output]
    loop.add_condition(condition)
    return _last_values(net, loop, before, after)


def scan(
    recorder: Recorder,
    combine_fn: Callable[..., Any],
    init: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
    **mutated: Any,
) -> Any:
    """Record a loop over rows: the last carried values, and what each step gives stacked.

    Where PyTorch compiles nothing, its wrapper gives and expects trees, as the user's function
    returns them; functions that were exported return the leaves of both in one row.
    """
    del mutated
    trees = isinstance(combine_fn, functools.partial)
    length = xs[0].shape[0]
    if static_size(length) == 0:
        raise UnsupportedOperatorError("a scan or map without steps")
    torch._check(length > 0)
    shapes: list[Sequence[Any]] = [*(x.shape for x in init), *(x.shape[1:] for x in xs)]
    with recorder.body(shapes, [*init, *xs]) as (body, given):
        made = combine_fn(*given, *additional_inputs)
        last, row = made if trees else (list(made[: len(init)]), list(made[len(init) :]))
        after, structure = pytree.tree_flatten(last)
        ys, structure_of_ys = pytree.tree_flatten(row)
        _check_carried("scan", given[: len(init)], after)
        if any(y is not None and not isinstance(y, torch.Tensor) for y in ys):
            raise UnsupportedOperatorError("torch.scan: a step returns what is no tensor")
        likes = [y for y in ys if y is not None]
        body.output = [recorder.value(x) for x in (*after, *likes)]
    shapes = [*(x.shape for x in init), *((length, *y.shape) for y in likes)]
    args = (body, list(init), list(xs), length)
    results = _record(recorder, SCAN, args, shapes, [*init, *likes])
    last = pytree.tree_unflatten(results[: len(init)], structure)
    rest = iter(results[len(init) :])
    stacked = pytree.tree_unflatten(
        [None if y is None else next(rest) for y in ys], structure_of_ys
    )
    return (last, stacked) if trees else (*last, *stacked)


def add_scan(
    net: Network,
    body: Graph,
    init: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    length: Any,
) -> Results:
    """Add a loop over the first dimension of some tensors."""
    loop = net.add_loop(length)
    before = _recurrences(net, loop, body, init)
    for value, x in zip(body.inputs[len(init) :], xs, strict=True):
        net.bind(value.tensor, loop.add_iterator(x), net.kind(x) or Kind.FLOAT)
    emit_calls(body, net, body.output)
    tensors = [net.tensor(value.tensor) for value in body.output]
    results = _last_values(net, loop, before, tensors[: len(init)])
    changing = _changing(body)
    for place in range(len(init), len(tensors)):
        y = tensors[place]
        if not net.is_used(place):
            results.append(None)
        elif body.output[place] in changing:
            results.append(loop.concatenate(y))
        else:
            # What a loop gives has to come from inside.
            shape = net.output[place].shape
            results.append(net.expand(net.unsqueeze(y, [0]), shape))
    return results


def associative_scan(
    recorder: Recorder,
    combine_fn: Callable[..., Any],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """Record an associative scan as a scan from the first row to the last, which starts with it."""
    count = len(xs)
    structures = []

    def step(is_first: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        row = given[count : 2 * count]
        combined, structure = pytree.tree_flatten(combine_fn(*given))
        structures.append(structure)
        after = [torch.where(is_first, x, y) for x, y in zip(row, combined, strict=True)]
        return [torch.zeros((), dtype=torch.bool, device=is_first.device), *after, *after]

    is_first = torch.ones((), dtype=torch.bool, device=xs[0].device)
    rows = [x[0] for x in xs]
    made = scan(recorder, step, [is_first, *rows], xs, additional_inputs)
    return pytree.tree_unflatten(made[1 + count :], structures[0])


def map_rows(
    recorder: Recorder,
    f: Callable[..., Any],
    xs: Sequence[torch.Tensor],
    pos_args: Sequence[Any],
    **mutated: Any,
) -> Any:
    """Record torch's map of a function over rows, as a scan that carries nothing."""
    del mutated
    structures = []

    def step(*given: torch.Tensor) -> list[torch.Tensor]:
        results, structure = pytree.tree_flatten(f(*given))
        structures.append(structure)
        return results

    made = scan(recorder, step, [], xs, pos_args)
    return pytree.tree_unflatten(made, structures[0])


def _recurrences(
    net: Network, loop: Loop, body: Graph, carried: Sequence[torch.Tensor]
) -> list[NetworkTensor]:
    found = []
    for value, x in zip(body.inputs, carried, strict=False):
        found.append(loop.add_recurrence(x))
        net.bind(value.tensor, found[-1], net.kind(x) or Kind.FLOAT)
    return found


def _last_values(
    net: Network, loop: Loop, before: Sequence[NetworkTensor], after: Sequence[NetworkTensor]
) -> Results:
    for old, new in zip(before, after, strict=True):
        loop.set_next(old, new)
    return [loop.last_value(x) if net.is_used(n) else None for n, x in enumerate(before)]


def _changing(body: Graph) -> list[Value]:
    """Return the outputs that differ from one step to the next: those that depend on its inputs."""
    inside = {id(value) for value in body.inputs}
    calls = set()
    for call in body.calls:
        if any(id(x) in inside or id(x.call) in calls for x in call.inputs()):
            calls.add(id(call))
    return [x for x in body.output if id(x) in inside or id(x.call) in calls]


def _check_carried(name: str, before: Sequence[torch.Tensor], after: Sequence[Any]) -> None:
    """Raise where a step gives something else for the next one than it takes."""
    if len(before) != len(after):
        raise UnsupportedOperatorError(
            f"torch.{name}: it carries {len(before)} tensors, and a step returns {len(after)}"
        )
    for place, (x, y) in enumerate(zip(before, after, strict=True)):
        if _kind(x) != _kind(y):
            raise UnsupportedOperatorError(
                f"torch.{name}: what it carries at place {place} is {_text(x)} before a step, and "
                f"{_text(y)} after it; a loop carries tensors whose type and shape stay the same"
            )


def _kind(x: Any) -> Any:
    """Return type and sizes, symbolic ones as expressions: to compare these decides nothing."""
    return (x.dtype, *map(expression, x.shape)) if isinstance(x, torch.Tensor) else x


def _text(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


def _record(
    recorder: Recorder,
    converter: Converter,
    args: tuple[Any, ...],
    shapes: Sequence[Sequence[Any]],
    likes: Sequence[torch.Tensor],
) -> list[Any]:
    """Record a call that takes graphs; return its fake results."""
    output = [recorder.empty(*pair) for pair in zip(shapes, likes, strict=True)]
    call = recorder.call(converter.names[0], converter, args, {})
    return recorder.register(call, None, output, [], [])  # type: ignore[no-any-return]


def _converter(name: str, function: Callable[..., Any]) -> Converter:
    # What goes around in a loop adds up what every step rounds; so states are float32, as in the
    # recurrent layers. It is registered under no name: PyTorch's functions take functions.
    return Converter(function, (name,), "sensitive", None, inspect.signature(function))


CONDITIONAL = _converter("torch.cond", add_conditional)
SCAN = _converter("torch.scan", add_scan)
WHILE = _converter("torch.while_loop", add_while)


def trip_count(call: Call) -> int:
    """Return how often the functions of a call run for the example; 1 where only the data tells."""
    return int(example_size(call.args[-1])) if call.converter is SCAN else 1


# -- attention -------------------------------------------------------------------------------------


def flex_attention(
    recorder: Recorder, query: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """Compute with PyTorch's own definition: all scores, changed by the two functions."""
    del recorder
    out, *scores = flex_attention_in_plain_operators(query, *args, **kwargs)
    # In memory the result lies as the query does, on which a .view() behind it may rely.
    strides = query.stride()
    order = sorted(range(4), key=lambda axis: -strides[axis])
    inverse = sorted(range(4), key=lambda axis: order[axis])
    return out.permute(order).contiguous().permute(inverse), *scores


HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "associative_scan": associative_scan,
    "cond": cond,
    "flex_attention": flex_attention,
    "map": map_rows,
    "scan": scan,
    "while_loop": while_loop,
}
"""What records a call of an operator that takes functions, by its name; first goes the recorder."""
