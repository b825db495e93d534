"""The second half of a conversion: the recorded calls become layers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from t2t.converters._chains import CHAIN, Step, step_of
from t2t.dtypes import is_supported
from t2t.errors import (
    ConversionError,
    T2TError,
    UnsupportedArgumentError,
    UnsupportedOperatorError,
    add_note,
)
from t2t.float32 import default_dtype, without_autocast
from t2t.io import Place
from t2t.network import Network, Operation
from t2t.network.tensors import MAX_RANK, RANK
from t2t.rounding import Rounding
from t2t.sizes import expression, static_size
from t2t.sizes.expressions import symbols_of
from t2t.sizes.polynomials import multiple_of
from t2t.tracing.graph import Call, Graph, Value, map_tree, tree_leaves
from t2t.tracing.mistakes import is_refused, mistake
from t2t.tracing.operands import describe_precision
from t2t.tracing.quantizing import with_rounded

_NO_INPUT = (
    "it takes a tensor of {0.dtype} and {0.ndim} dimensions, which no input of a network can be"
)


@default_dtype.held()
@without_autocast()
def emit(
    graph: Graph,
    net: Network,
    names: Sequence[str],
    outputs: Sequence[Value],
    roundings: Mapping[tuple[int, int], Rounding] | None = None,
) -> None:
    """Add the network inputs and the layers of all calls that the outputs depend on.

    Args:
        graph: a trace.
        net: an empty network.
        names: names of the inputs.
        outputs: the values that are needed.
        roundings: how operands are quantized, by the id of the call and the operand's place.

    Raises:
        ConversionError: a call cannot be converted; the text says which, and where it stands.
    """
    _begin(graph, net, names)
    emit_calls(graph, net, outputs, roundings or {})


def emit_calls(
    graph: Graph,
    net: Network,
    outputs: Sequence[Value],
    roundings: Mapping[tuple[int, int], Rounding] = MappingProxyType({}),
) -> None:
    """Add the layers of all calls that the outputs depend on; the graph's inputs are there."""
    calls = join_chains(graph.used_calls(outputs), outputs, net.policy.low is not None)
    read = _read(calls, outputs)
    for call in calls:
        emit_call(call, net, read, roundings)


def _read(calls: Sequence[Call], outputs: Sequence[Value]) -> set[tuple[int, int]]:
    """Return the outputs that are read, each as the id of its call and its place."""
    values = itertools.chain(outputs, *(call.inputs() for call in calls))
    return {(id(value.call), value.index) for value in values}


def _begin(graph: Graph, net: Network, names: Sequence[str]) -> None:
    tensors = [net.add_input(n, v.tensor) for n, v in zip(names, graph.inputs, strict=True)]
    for symbol, dimension in graph.dimensions.items():
        if dimension.places:
            net.bind_symbol(symbol, dimension, tensors)
    for symbol, (held, _) in graph.numbers.items():
        if held in graph.inputs:
            net.bind_number(symbol, tensors[graph.inputs.index(held)])


def gaps(
    graph: Graph, net: Network, names: Sequence[str], outputs: Sequence[Value]
) -> Iterator[tuple[Call, Exception]]:
    """Yield every call that cannot become layers, and why: not only the first.

    A call that fails gets network inputs as its results, so that those behind it can be tried.
    """
    _begin(graph, net, names)
    calls = graph.used_calls(outputs)
    read = _read(calls, outputs)
    missing: set[int] = set()
    # Sizes that depend on the data are those of what comes from the call that makes them.
    made = {s: d for s, d in graph.dimensions.items() if not d.places}
    reals = {id(held.tensor): s for s, (held, sized) in graph.numbers.items() if held is sized}
    for call in calls:
        try:
            for value in call.inputs():
                if call.problem is None and id(value.tensor) in missing:
                    raise located(UnsupportedOperatorError(_NO_INPUT.format(value.tensor)), call)
            emit_call(call, net, read, {})
        except T2TError as error:
            yield call, error
            for x in tree_leaves(call.output):
                if not isinstance(x, torch.Tensor):
                    continue
                if is_supported(x.dtype) and x.ndim <= MAX_RANK:
                    tensor = net.add_input(f"{call.short_name}_result", x)
                    if id(x) in reals:
                        net.bind_number(reals[id(x)], tensor)
                    for dim, size in enumerate(map(expression, x.shape) if made else ()):
                        for symbol in symbols_of(size) & {*made}:
                            multiple = multiple_of(size, symbol)
                            if multiple is not None:
                                place = Place(0, dim, *multiple)
                                dimension = replace(made.pop(symbol), places=(place,))
                                net.bind_symbol(symbol, dimension, [tensor])
                else:
                    missing.add(id(x))


def emit_call(
    call: Call,
    net: Network,
    read: Collection[tuple[int, int]],
    roundings: Mapping[tuple[int, int], Rounding],
) -> None:
    """Add the layers of one call.

    Args:
        call: the call.
        net: the network.
        read: which outputs of calls are read, as ids of calls and places.
        roundings: how operands are quantized, by the id of the call and the operand's place.

    Raises:
        ConversionError: (or another exception of the converter) with the place of the call.
    """
    if call.problem is not None:
        raise located(call.problem, call) from call.problem
    assert call.converter is not None
    count = sum(isinstance(x, torch.Tensor) for x in tree_leaves(call.output))
    operation = Operation(
        name=call.short_name,
        scope=call.scope,
        operators=call.operators,
        line=str(call.location or ""),
        output=call.output,
        unused=frozenset(place for place in range(count) if (id(call), place) not in read),
    )
    args, kwargs = map_tree(_tensor, (call.args, call.kwargs))
    try:
        _check_rank(call)
        precision = call.precision or call.converter.precision_of(call.output, args, kwargs)
        if net.policy.low is not None:
            precision = describe_precision(call, precision, operation, net)
        with net.operation(operation, precision):
            rounded = with_rounded(call, net, roundings)
            if rounded is not None:
                args, kwargs = map_tree(_tensor, rounded)
            result = _without_elements(net, call) or call.converter.function(net, *args, **kwargs)
            _finish(call, net, result)
    except (UnsupportedArgumentError, UnsupportedOperatorError) as error:
        # Zeros, with which PyTorch is asked, may be refused for their values.
        refused = call.function is not None and is_refused(call.function, call.args, call.kwargs)
        raise located((_mistake(call) if refused else None) or error, call) from error
    except T2TError as error:
        raise located(_mistake(call) or error, call) from error
    except Exception as error:
        if own := _mistake(call):
            raise located(own, call) from error
        add_note(error, f"in the converter {call.converter.qualified_name}, {describe(call)}")
        raise


def _mistake(call: Call) -> ConversionError | None:
    """Return what PyTorch itself has against a call that could not be converted."""
    if call.function is None or not call.name.startswith(("torch.", "aten::")):
        return None
    error = mistake(call.function, call.args, call.kwargs)
    return None if error is None else ConversionError(str(error))


def _check_rank(call: Call) -> None:
    for x in tree_leaves(call.output):
        if isinstance(x, torch.Tensor) and x.ndim > MAX_RANK:
            raise UnsupportedArgumentError(RANK.format(rank=x.ndim))


def _without_elements(net: Network, call: Call) -> list[Any]:
    """Return the results of a call where none has elements: nothing is computed for these."""
    expected = [x for x in tree_leaves(call.output) if isinstance(x, torch.Tensor)]
    if not all(0 in map(static_size, x.shape) and is_supported(x.dtype) for x in expected):
        return []
    results = []
    for x in expected:
        point = torch.empty([0 if static_size(size) == 0 else 1 for size in x.shape], dtype=x.dtype)
        results.append(net.expand(net.constant(point), x.shape))
    return results


def _tensor(x: Any) -> Any:
    return x.tensor if isinstance(x, Value) else x


def _finish(call: Call, net: Network, result: Any) -> None:
    expected = [x for x in tree_leaves(call.output) if isinstance(x, torch.Tensor)]
    results = list(result) if isinstance(result, tuple | list) else [result]
    if len(results) != len(expected):
        raise ConversionError(
            f"the converter returned {len(results)} tensors, torch gives {len(expected)}"
        )
    for index, (tensor, value) in enumerate(zip(results, expected, strict=True)):
        if tensor is not None:
            net.finish(tensor, value)
            continue
        # None stands for an output that TensorRT cannot give; it must not be used.
        reason = f"TensorRT cannot give its output {index}, which must not be used"
        net.refuse(value, located(UnsupportedOperatorError(reason), call))


def located(error: Exception, call: Call) -> Exception:
    """Return the same error with the place of the call in its text."""
    kind = type(error) if isinstance(error, T2TError) else UnsupportedOperatorError
    name = f"{call.origin} (its part {call.name})" if call.origin else call.name
    return kind(f"{name}: {error} ({describe(call)})")


def describe(call: Call) -> str:
    """Return where a call stands: "called at model.py:12 in forward, in module 'layer1.0'"."""
    parts = [f"called at {call.location}"] if call.location else []
    parts += [f"in module {call.scope!r}"] if call.scope else []
    return ", ".join(parts) or "called by the module itself"


# -- chains of calls that only move elements -------------------------------------------------------


def join_chains(calls: Sequence[Call], outputs: Sequence[Value], respect_casts: bool) -> list[Call]:
    """Join ``view``, ``transpose`` and their like where nobody else reads what is between them.

    Args:
        calls: the calls that are to become layers, in order.
        outputs: the values that the module returns.
        respect_casts: keep what the model says of precision where it was said.
    """
    readers = Counter(id(value.tensor) for value in outputs)
    for call in calls:
        readers.update(id(value.tensor) for value in call.inputs())
    # The last call of each chain: its first value and its steps.
    chains: dict[int, tuple[Value, list[Step], Call]] = {}
    result: list[Call] = []
    dropped: set[int] = set()
    for call in calls:
        step = None
        if not call.problem and not (call.cast and respect_casts):
            step = step_of(call.converter, call.args, call.output)
        if step is None or not isinstance(source := call.args[0], Value):
            result.append(call)
            continue
        joined = call
        earlier = chains.get(id(source.tensor))
        # What has more dimensions than a network can have is moved anew for each reader.
        if earlier is not None and (
            readers[id(source.tensor)] == 1 or source.tensor.ndim > MAX_RANK
        ):
            readers[id(source.tensor)] -= 1
            if not readers[id(source.tensor)]:
                dropped.add(id(earlier[2]))
            source, steps, _ = earlier
            steps = [*steps, step]
            joined = replace(call, converter=CHAIN, args=(source, steps), kwargs={}, function=None)
        else:
            steps = [step]
        assert isinstance(call.output, torch.Tensor)
        chains[id(call.output)] = (source, steps, joined)
        result.append(joined)
    return [call for call in result if id(call) not in dropped]
