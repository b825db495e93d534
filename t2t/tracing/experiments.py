"""What a trace cannot see, tried on the module itself: state, and results that look constant.

Both are rare; where they are in doubt, the module runs for real, on the examples and on other
inputs like them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import torch

from t2t.errors import StateError, UnsupportedOperatorError
from t2t.examples import random_like
from t2t.io import Structure, copied, flatten, map_tree, tree_leaves
from t2t.isolation import Change, preserved
from t2t.tracing.state import Places

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

_SHOWN = 5


def check_state(
    module: Callable[..., Any],
    inputs: Inputs,
    kept: Sequence[Change],
    state: Mapping[str, torch.Tensor],
) -> None:
    """Raise where the results of a call depend on what earlier calls have kept.

    A module may keep what it likes (its last features, anchors of the last size) as long as nobody
    can tell: its results on new inputs must be the same after another call and without one.

    Args:
        module: the module, as it was before the trace.
        inputs: the examples, ``(args, kwargs)``.
        kept: what the forward pass has kept.
        state: what the network keeps for the module, so that results may depend on it.

    Raises:
        StateError: the text names what is kept.
    """
    kept = [change for change in kept if change.path not in state]
    if not kept:
        return
    names = list(dict.fromkeys(change.path for change in kept))
    listed = ", ".join(map(repr, names[:_SHOWN])) + (" and others" if names[_SHOWN:] else "")
    others = _others(inputs)
    try:
        fresh = _run(module, [others])[0]
        later = _run(module, [inputs, others], state)[1]
        same = _same(fresh, later)
        if same and (
            not _reads_an_earlier_call(module, inputs, others, state)
            or _keeps_the_same(module, names, inputs, others, state)
        ):
            return
        noise = fresh if same else _run(module, [others])[0]
    except Exception as error:
        raise UnsupportedOperatorError(
            f"the module keeps something between calls ({listed}), and whether its results depend "
            f"on that could not be tried, as it fails on inputs like the examples: {error}"
        ) from error
    if not _same(fresh, noise) and _same(fresh, later, rtol=1e-3):
        return
    raise StateError(
        f"the module keeps state between calls, and its results depend on it: {listed}. An engine "
        f"keeps tensors that the module holds, but nothing else: {_advice(kept)}",
        names,
    )


def _reads_an_earlier_call(
    module: Callable[..., Any], inputs: Inputs, others: Inputs, state: Mapping[str, torch.Tensor]
) -> bool:
    """Return whether results are computed of what an earlier call has computed.

    Numbers may hide it: a cache that is read at the first position shows nothing of others.
    Autograd does not: only the first call's inputs and weights require gradients. (Where the
    module switches it off, or cannot run with it, nothing is found.)
    """
    with preserved(module) as snapshot, torch.enable_grad():
        places = Places(module, snapshot, state)
        weights = [x for x in snapshot.tensors() if x.is_leaf and x.is_floating_point()]
        before = [x.requires_grad for x in weights]
        try:
            for weight in weights:
                weight.requires_grad_(isinstance(weight, torch.nn.Parameter))
            for path, tensor in state.items():
                places.put(path, tensor.clone())
            args, kwargs = map_tree(_with_gradient, inputs)
            sources = [*weights, *tree_leaves((args, kwargs))]
            module(*args, **kwargs)
            for weight in weights:
                weight.requires_grad_(False)
            for path, tensor in state.items():
                places.put(path, tensor.clone())
            args, kwargs = copied(others)
            results, _ = flatten(module(*args, **kwargs), name="output")
            return _is_computed_of(results, {id(x) for x in sources})
        except Exception:  # noqa: BLE001  code for inference may write where autograd needs the data
            return False
        finally:
            for weight, needed in zip(weights, before, strict=True):
                weight.requires_grad_(needed)


def _keeps_the_same(
    module: Callable[..., Any],
    names: Sequence[str],
    inputs: Inputs,
    others: Inputs,
    state: Mapping[str, torch.Tensor],
) -> bool:
    """Return whether a first call leaves the same behind, whatever its inputs are.

    What is computed of weights once does, such as tables of relative positions.
    """
    # The only token of a vocabulary has no other like it: such inputs show nothing.
    pairs = zip(*(flatten(call, name="inputs")[0] for call in (inputs, others)), strict=True)
    if any(_same_tensor(a, b, 0.0) for a, b in pairs):
        return False
    found = []
    for args, kwargs in (copied(inputs), copied(others)):
        with preserved(module) as snapshot, torch.no_grad():
            places = Places(module, snapshot, state)
            for path, tensor in state.items():
                places.put(path, tensor.clone())
            module(*args, **kwargs)
            found.append({change.path: change.new for change in snapshot.restore()})
    first, other = ([values.get(name) for name in names] for values in found)
    return all(
        isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _same_tensor(a, b, 0.0)
        for a, b in zip(first, other, strict=True)
    )


def _is_computed_of(results: Sequence[torch.Tensor], sources: Collection[int]) -> bool:
    """Return whether autograd leads from results back to leaves with these ids."""
    nodes = [x.grad_fn for x in results if x.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if id(getattr(node, "variable", None)) in sources:
            return True
        for earlier, _ in node.next_functions:
            if earlier is not None and earlier not in seen:
                seen.add(earlier)
                nodes.append(earlier)
    return False


def _with_gradient(x: Any) -> Any:
    x = copied(x)
    floating = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.requires_grad_() if floating else x


def _advice(kept: Sequence[Change]) -> str:
    """Return what to do about state that is no tensor."""
    for change in kept:
        if change.path.startswith("the random numbers"):
            return "draw the numbers outside, and pass them in as an input"
        if isinstance(change.new, torch.Tensor) and not change.path.endswith("]"):
            return (
                f"{change.path!r} is no tensor before the first call; let it begin as one, such as "
                "torch.zeros, or call the module once before its conversion, which then goes on "
                "from there"
            )
        if type(change.new) in (int, float):
            return (
                f"keep {change.path!r} as a tensor (register_buffer), which the forward pass "
                "changes by tensor operations, or let it be an input and an output"
            )
    return "let forward() take the state as an input and return it as an output"


def check_constants(
    module: Callable[..., Any], inputs: Inputs, constants: Mapping[int, torch.Tensor]
) -> None:
    """Raise where outputs that depend on no input in the trace do so in the module.

    Args:
        module: the module.
        inputs: the examples, ``(args, kwargs)``.
        constants: such outputs, by their place among all output tensors.

    Raises:
        UnsupportedOperatorError: an output has other values when the module runs.
    """
    if not constants:
        return
    runs = [_run(module, [inputs])[0]]
    # Inputs of our own making may be none that the module takes.
    with suppress(Exception):
        runs.append(_run(module, [_others(inputs)])[0])
    for tensors, _ in runs:
        for index, constant in constants.items():
            if not _same_tensor(constant, tensors[index], rtol=1e-5):
                raise UnsupportedOperatorError(
                    f"output {index} depends on no input in the trace, but the module gives other "
                    "values for it: a part of the module runs where t2t does not see it (compiled "
                    "code, a C extension, another thread, a captured CUDA graph); use torch "
                    "functions there, in the thread that calls the module"
                )


Results = tuple[list[torch.Tensor], Structure]


def _run(
    module: Callable[..., Any],
    calls: Sequence[Inputs],
    state: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> list[Results]:
    """Return the results of some calls, one after the other, from the module's present state.

    What ``state`` holds is put back before each.
    """
    results = []
    with preserved(module) as snapshot, torch.no_grad():
        places = Places(module, snapshot, state)
        for inputs in calls:
            for path, tensor in state.items():
                places.put(path, tensor.clone())
            args, kwargs = copied(inputs)
            torch.manual_seed(0)
            leaves, form = flatten(module(*args, **kwargs), share=True, name="output")
            results.append((copied(leaves), form))
    return results


def _others(inputs: Inputs) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    return map_tree(  # type: ignore[no-any-return]
        lambda x: random_like(generator, x) if isinstance(x, torch.Tensor) else x, inputs
    )


def _same(a: Results, b: Results, rtol: float = 0.0) -> bool:
    (tensors, form), (others, other_form) = a, b
    return form == other_form and all(
        _same_tensor(x, y, rtol) for x, y in zip(tensors, others, strict=True)
    )


def _same_tensor(a: torch.Tensor, b: torch.Tensor, rtol: float) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    size = float(a.abs().nan_to_num().max()) if a.is_floating_point() and a.numel() else 1.0
    return torch.allclose(a, b.to(a.device), rtol=rtol, atol=rtol * size, equal_nan=True)
