"""From a PyTorch module to a finished TensorRT network, not yet built."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from t2t import backend
from t2t.building import create_builder
from t2t.declared import InputShape, declared_shapes
from t2t.dtypes import to_trt
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.network import Network
from t2t.network.tensors import MAX_RANK, RANK
from t2t.precision import Policy
from t2t.signature import Signature, TensorSpec, flatten, leaf_paths
from t2t.tracing import Graph, Value, emit, trace
from t2t.tracing.emit import gaps
from t2t.tracing.kinds import unsupported_input

__all__ = ["Conversion", "missing_operators", "to_network"]

# Fills the registry.
importlib.import_module("t2t.converters")
importlib.import_module("t2t.formulas")


@dataclass
class Conversion:
    """A finished network and what belongs to it.

    Attributes:
        network: the network, with all layers.
        builder: the builder that made it; the network lives no longer than this.
        signature: names, dtypes, shapes and structure of inputs and outputs.
        graph: the trace that it comes from.
    """

    network: Network
    builder: Any
    signature: Signature
    graph: Graph

    def profile(self) -> dict[str, Any]:
        """Give min, opt and max shape of every dynamic input, as the builder takes them."""
        return {
            spec.name: (spec.min_shape, spec.opt_shape, spec.max_shape)
            for spec in self.signature.inputs
            if spec.min_shape is not None
        }


def to_network(
    module: Callable[..., Any],
    inputs: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    policy: Policy | None = None,
    narrow_shapes: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    ignore_dropout: bool = False,
    **shapes: Any,
) -> Conversion:
    """Convert a module to a finished TensorRT network, without building it.

    Takes and raises what `convert` does.
    """
    # First, so that a missing TensorRT is said at once.
    builder = create_builder()
    traced = _trace(module, inputs, kwargs, narrow_shapes, input_names, ignore_dropout, shapes)
    graph, names = traced.graph, traced.names
    network = Network(backend.create_network(builder), policy)
    values, structure = graph.output
    if not values:
        raise ConversionError("the module returns no tensor")
    wanted = _output_names(structure, len(values), output_names)
    emit(graph, network, names, values)
    for name, value in zip(wanted, values, strict=True):
        network.mark_output(value.tensor, name)
    outputs = tuple(
        TensorSpec(name, value.tensor.dtype, _plain(value.tensor))
        for name, value in zip(wanted, values, strict=True)
    )
    signature = Signature(
        traced.input_specs(), outputs, traced.structure, structure, traced.tied(), traced.parameters
    )
    return Conversion(network, builder, signature, graph)


def missing_operators(
    module: Callable[..., Any],
    inputs: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    **shapes: Any,
) -> list[str]:
    """List everything that keeps a module from being converted, in one run.

    Args:
        module: the module.
        inputs: example inputs.
        kwargs: example keyword inputs.
        shapes: declared shapes, as `convert` takes them.

    Returns:
        One line for each operator call that cannot be converted and whose result is used, with the
        reason and the user's line; empty when the module converts.
    """
    try:
        traced = _trace(module, inputs, kwargs, False, None, False, shapes)
    except ConversionError as error:
        # The forward pass cannot go on behind this one.
        return [str(error)]
    values, _ = traced.graph.output
    network = Network(backend.create_network(builder := create_builder()))
    found = [str(error) for error in gaps(traced.graph, network, traced.names, values)]
    del builder
    return list(dict.fromkeys(found))


@dataclass
class _Traced:
    graph: Graph
    names: list[str]
    parameters: tuple[str, ...]
    structure: Any
    declared: list[InputShape]

    def input_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(
            _input_spec(name, value, shape, self._ranges())
            for name, value, shape in zip(self.names, self.graph.inputs, self.declared, strict=True)
        )

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Give the range of each dynamic dimension, narrowed perhaps, by its name."""
        places = self.graph.symbols.items()
        return {
            self.declared[index].dynamic[dim].name: self.graph.ranges[symbol]
            for symbol, (index, dim) in places
        }

    def tied(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        places: dict[str, list[tuple[int, int]]] = {}
        for index, shape in enumerate(self.declared):
            for dim, dynamic in shape.dynamic.items():
                places.setdefault(dynamic.name, []).append((index, dim))
        return tuple(tuple(group) for group in places.values() if len(group) > 1)


def _trace(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    narrow_shapes: bool,
    input_names: Sequence[str] | None,
    ignore_dropout: bool,
    shapes: Mapping[str, Any],
) -> _Traced:
    if not callable(module):
        raise ConversionError(
            f"a module or a function of tensors is needed, not {type(module).__name__}"
        )
    if isinstance(module, torch.nn.Module):
        _check_initialized(module)
    args = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    keywords = dict(kwargs or {})
    tensors, structure = flatten((args, keywords), name="inputs")
    if not tensors:
        raise ConversionError("the example inputs hold no tensor")
    parameters = _parameters(module)
    names = _input_names(structure, parameters, input_names)
    _check_inputs(names, tensors)
    declared = declared_shapes(names, tensors, **shapes)
    dimensions = [
        {dim: (d.name, (d.low, d.high)) for dim, d in shape.dynamic.items()} for shape in declared
    ]

    def finish(output: Any, tracer: Any) -> tuple[list[Value], Any]:
        leaves, form = flatten(output, share=True, name="output")
        return [tracer.value(leaf) for leaf in leaves], form

    with _without_dropout(module, ignore_dropout):
        graph = trace(
            module, args, keywords, dimensions, names=names, narrow_shapes=narrow_shapes,
            finish=finish,
        )  # fmt: skip
    return _Traced(graph, names, parameters, structure, declared)


def _check_initialized(module: torch.nn.Module) -> None:
    for name, parameter in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(parameter):
            raise ConversionError(
                f"the parameter {name!r} has no size yet: run the module once before its conversion"
            )


def _check_inputs(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        kind = unsupported_input(tensor)
        if kind:
            raise UnsupportedArgumentError(f"input {name!r}: {kind}")
        if tensor.ndim > MAX_RANK:
            raise UnsupportedArgumentError(f"input {name!r}: {RANK.format(rank=tensor.ndim)}")
        try:
            to_trt(tensor.dtype)
        except UnsupportedArgumentError as error:
            raise UnsupportedArgumentError(f"input {name!r}: {error}") from None


def _input_spec(
    name: str, value: Value, shape: InputShape, ranges: Mapping[str, tuple[int, int]]
) -> TensorSpec:
    if not shape.dynamic:
        return TensorSpec(name, value.tensor.dtype, _plain(value.tensor))
    low, best, high = list(shape.min), list(shape.opt), list(shape.max)
    for dim, dimension in shape.dynamic.items():
        if dimension.name in ranges:
            low[dim], high[dim] = least, most = ranges[dimension.name]
            best[dim] = min(max(best[dim], least), most)
    dynamic = tuple(-1 if a != b else a for a, b in zip(shape.min, shape.max, strict=True))
    return TensorSpec(name, value.tensor.dtype, dynamic, tuple(low), tuple(best), tuple(high))


def _plain(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in x.shape)


def _parameters(module: Any) -> tuple[str, ...]:
    function = module.forward if isinstance(module, torch.nn.Module) else module
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        # Functions of C, such as torch.relu, do not tell their parameters.
        return ()
    return tuple(p.name for p in parameters if p.kind in kinds)


def _input_names(
    structure: Any, parameters: Sequence[str], given: Sequence[str] | None
) -> list[str]:
    positional, keyword = structure["items"]
    names = []
    for position, item in enumerate(positional["items"]):
        name = parameters[position] if position < len(parameters) else f"input_{position}"
        names += _leaf_names(item, name)
    for key, item in zip(keyword["keys"], keyword["items"], strict=True):
        names += _leaf_names(item, str(key))
    return _given_names("input_names", given, names)


def _output_names(structure: Any, count: int, given: Sequence[str] | None) -> list[str]:
    if structure.get("keys"):
        names = [
            leaf
            for key, item in zip(structure["keys"], structure["items"], strict=True)
            for leaf in _leaf_names(item, str(key))
        ]
    else:
        names = _leaf_names(structure, "output")
    # A tensor that stands in several places is one output.
    names = list(dict.fromkeys(names))[:count]
    return _given_names("output_names", given, names)


def _leaf_names(structure: Any, name: str) -> list[str]:
    return [
        re.sub(r"[^0-9A-Za-z]+", "_", path).strip("_")
        for path, leaf in leaf_paths(structure, name).items()
        if leaf["kind"] == "tensor"
    ]


def _given_names(what: str, given: Sequence[str] | None, names: list[str]) -> list[str]:
    if given is not None and len(given) != len(names):
        raise ConversionError(f"{what} has {len(given)} names, needed are {len(names)}: {names}")
    result = list(given) if given is not None else names
    if len(set(result)) != len(result):
        raise ConversionError(f"{what}: names must differ, but are {result}")
    return result


@contextmanager
def _without_dropout(module: Any, ignore: bool) -> Iterator[None]:
    modules = module.modules() if isinstance(module, torch.nn.Module) else ()
    active = [
        m
        for m in modules
        if isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.training and m.p > 0
    ]
    if active and not ignore:
        raise ConversionError(
            f"the module is in training mode and its {type(active[0]).__name__} is active: call "
            ".eval(), or pass ignore_dropout=True to convert it without dropout"
        )
    for m in active:
        m.training = False
    try:
        yield
    finally:
        for m in active:
            m.training = True
