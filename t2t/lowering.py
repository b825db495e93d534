"""From a PyTorch module to a finished TensorRT network, not yet built."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from t2t import backend
from t2t.building import create_builder
from t2t.dtypes import is_supported
from t2t.errors import ConversionError, UnsupportedArgumentError
from t2t.io import (
    InputShape,
    Parameters,
    Signature,
    TensorSpec,
    arguments,
    classes_of,
    declared_shapes,
    flatten,
    leaf_paths,
)
from t2t.network import Network
from t2t.network.tensors import MAX_RANK, RANK
from t2t.options import check_module
from t2t.precision import Policy
from t2t.shapes import expression, static_size
from t2t.tracing import Graph, Value, emit, trace
from t2t.tracing.emit import gaps
from t2t.tracing.experiments import check_constants, check_state
from t2t.tracing.kinds import unsupported_input

__all__ = ["Conversion", "missing_operators", "to_network"]

# Fills the registry.
importlib.import_module("t2t.converters")


@dataclass
class Conversion:
    """A finished network and what belongs to it.

    Attributes:
        network: the network, with all layers.
        builder: the builder that made it; the network lives no longer than this.
        signature: names, dtypes, shapes and structure of inputs and outputs.
        graph: the trace that it comes from.
        sizes: what the sizes of tensors with dynamic dimensions are called, by network tensor:
            "batch", "2*sequence".
    """

    network: Network
    builder: Any
    signature: Signature
    graph: Graph
    sizes: Mapping[str, tuple[str, ...]]

    def profile(self) -> dict[str, Any]:
        """Give min, opt and max shape of every dynamic input, as the builder takes them."""
        return {
            spec.name: (spec.min_shape, spec.opt_shape, spec.max_shape)
            for spec in self.signature.inputs
            if spec.min_shape is not None
        }


def to_network(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    policy: Policy | None = None,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
    narrow_shapes: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    ignore_dropout: bool = False,
) -> Conversion:
    """Convert a module to a finished TensorRT network, without building it.

    Takes and raises what `convert` does.
    """
    check_module(module)
    # First, so that a missing TensorRT is said at once.
    builder = create_builder()
    example = _Example.of(
        module,
        inputs,
        kwargs,
        input_names,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        dynamic_shapes=dynamic_shapes,
    )
    traced = _trace(module, example, narrow_shapes, ignore_dropout)
    graph = traced.graph
    network = Network(backend.create_network(builder), policy)
    values, structure, classes = graph.output
    if not values:
        raise ConversionError("the module returns no tensor")
    wanted = _output_names(structure, len(values), output_names)
    emit(graph, network, example.names, values)
    for name, value in zip(wanted, values, strict=True):
        network.mark_output(value.tensor, name)
    outputs = tuple(
        TensorSpec(name, value.tensor.dtype, _plain(value.tensor))
        for name, value in zip(wanted, values, strict=True)
    )
    signature = Signature(
        traced.input_specs(),
        outputs,
        example.structure,
        structure,
        example.tied(),
        example.parameters.positional,
        example.parameters.defaults,
        classes,
    )
    return Conversion(network, builder, signature, graph, traced.named_sizes(network))


def missing_operators(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
) -> list[str]:
    """List everything that keeps a module from being converted, in one run.

    Args:
        module: the module.
        inputs: example inputs, as `convert` takes them.
        kwargs: more keyword inputs.
        min_shapes: declared shapes, as `convert` takes them; so are the following ones.
        opt_shapes: the shapes to optimize for.
        max_shapes: the largest shapes.
        dynamic_shapes: dynamic dimensions.

    Returns:
        One line for each operator call that cannot be converted and whose result is used, with the
        reason and the user's line; empty when the module converts.

    Raises:
        ConversionError: the inputs are not such as the module takes.
        ShapeError: the declared shapes do not fit.
    """
    check_module(module)
    example = _Example.of(
        module,
        inputs,
        kwargs,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        dynamic_shapes=dynamic_shapes,
    )
    try:
        traced = _trace(module, example, narrow_shapes=False, ignore_dropout=False)
    except ConversionError as error:
        # The forward pass cannot go on behind this one.
        return [str(error)]
    values, *_ = traced.graph.output
    network = Network(backend.create_network(builder := create_builder()))
    found = [str(error) for error in gaps(traced.graph, network, example.names, values)]
    del builder
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Example:
    """The example inputs, and what is known of them before the forward pass runs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parameters: Parameters
    structure: Any
    names: list[str]
    declared: list[InputShape]

    @classmethod
    def of(
        cls,
        module: Callable[..., Any],
        inputs: Any,
        kwargs: Mapping[str, Any] | None,
        input_names: Sequence[str] | None = None,
        **shapes: Any,
    ) -> _Example:
        if isinstance(module, torch.nn.Module):
            _check_initialized(module)
        args, keywords = arguments(inputs, kwargs)
        Parameters.check(module, args, keywords)
        parameters = Parameters.of(module)
        tensors, structure = _flat_call(args, keywords, parameters.positional)
        if not tensors:
            raise ConversionError("the example inputs hold no tensor")
        names = _input_names(structure, parameters.positional, input_names)
        declared = declared_shapes(names, tensors, **shapes)
        return cls(args, keywords, parameters, structure, names, declared)

    def tied(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        places: dict[str, list[tuple[int, int]]] = {}
        for index, shape in enumerate(self.declared):
            for dim, dynamic in shape.dynamic.items():
                places.setdefault(dynamic.name, []).append((index, dim))
        return tuple(tuple(group) for group in places.values() if len(group) > 1)


@dataclass
class _Traced:
    graph: Graph
    example: _Example

    def input_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(
            _input_spec(name, value, shape, self._ranges())
            for name, value, shape in zip(
                self.example.names, self.graph.inputs, self.example.declared, strict=True
            )
        )

    def named_sizes(self, network: Network) -> dict[str, tuple[str, ...]]:
        """Return the sizes of all tensors with dynamic dimensions, in the user's names."""
        names = {
            symbol: sympy.Symbol(self.example.declared[index].dynamic[dim].name)
            for symbol, (index, dim) in self.graph.symbols.items()
        }
        return {
            tensor.name: tuple(_size_text(expression(size).xreplace(names)) for size in value.shape)
            for value, tensor in network.traced_tensors()
            if any(static_size(size) is None for size in value.shape)
        }

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Return the range of each dynamic dimension, narrowed perhaps, by its name."""
        places = self.graph.symbols.items()
        return {
            self.example.declared[index].dynamic[dim].name: self.graph.ranges[symbol]
            for symbol, (index, dim) in places
        }


def _trace(
    module: Callable[..., Any], example: _Example, narrow_shapes: bool, ignore_dropout: bool
) -> _Traced:
    dimensions = [
        {dim: (d.name, (d.low, d.high)) for dim, d in shape.dynamic.items()}
        for shape in example.declared
    ]

    def finish(output: Any, tracer: Any) -> tuple[list[Value], Any, Any]:
        leaves, form = flatten(output, share=True, name="output")
        return [tracer.value(leaf) for leaf in leaves], form, classes_of(output)

    with _without_dropout(module, ignore_dropout):
        graph = trace(
            module,
            example.args,
            example.kwargs,
            dimensions,
            names=example.names,
            narrow_shapes=narrow_shapes,
            finish=finish,
        )
        inputs = example.args, example.kwargs
        check_state(module, inputs, graph.kept)
        check_constants(module, inputs, _constants(graph))
        graph.kept.clear()
    return _Traced(graph, example)


def _size_text(size: sympy.Expr) -> str:
    """Write an expression without the doubled parentheses of torch's floor division."""
    inner = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"
    return re.sub(rf"\((\({inner}\))\)", r"\1", str(size))


def _constants(graph: Graph) -> dict[int, torch.Tensor]:
    """Return the outputs that are constants, by their place."""
    values, *_ = graph.output
    return {
        index: value.tensor
        for index, value in enumerate(values)
        if value.call is None and value not in graph.inputs
    }


def _check_initialized(module: torch.nn.Module) -> None:
    for name, parameter in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(parameter):
            raise ConversionError(
                f"the parameter {name!r} has no size yet: run the module once before its conversion"
            )


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


def _flat_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[list[torch.Tensor], Any]:
    """Take the arguments of a call apart, each under its parameter's name in errors."""
    names = [*parameters[: len(args)], *range(len(parameters), len(args))]
    call = {**dict(zip(names, args, strict=True)), **kwargs}
    tensors, structure = flatten(call, name="inputs")
    for path, leaf in leaf_paths(structure, "inputs").items():
        if leaf["kind"] == "tensor":
            _check_input(path, tensors[leaf["index"]])
    items = structure["items"]
    positional = {"kind": "tuple", "items": items[: len(args)]}
    keyword = {"kind": "dict", "keys": list(kwargs), "items": items[len(args) :]}
    return tensors, {"kind": "tuple", "items": [positional, keyword]}


def _check_input(path: str, tensor: torch.Tensor) -> None:
    kind = unsupported_input(tensor)
    if not kind and tensor.ndim > MAX_RANK:
        kind = RANK.format(rank=tensor.ndim)
    if not kind and not is_supported(tensor.dtype):
        hint = "; pass it as .float(), and convert the model with .float() too"
        kind = f"{tensor.dtype}, which TensorRT does not take".removeprefix("torch.")
        kind += hint if tensor.dtype == torch.float64 else ""
    if kind:
        raise UnsupportedArgumentError(f"{path} is {kind}")


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
