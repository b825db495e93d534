"""From a PyTorch module to a finished TensorRT network, not yet built."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t import backend
from t2t.building import create_builder
from t2t.converters import import_for_packages
from t2t.errors import (
    ConversionError,
    OptionError,
    ShapeWarning,
    StateError,
)
from t2t.inputs import Example
from t2t.io import (
    Dimension,
    Profile,
    Signature,
    TensorSpec,
    classes_of,
    flatten,
    names_of_sizes,
    whole_range,
)
from t2t.io.names import as_name, output_names_of
from t2t.network import Network
from t2t.options import check_module
from t2t.precision import Policy, operator_name
from t2t.quantization.plan import Plan, Wanted, planned
from t2t.quantization.scales import Quantization
from t2t.sizes import expression, static_size
from t2t.sizes.declared import InputShape
from t2t.sizes.expressions import symbols_of
from t2t.sizes.notation import text
from t2t.sizes.proofs import span
from t2t.tracing import Graph, Recorder, Value, emit, trace
from t2t.tracing.emit import gaps
from t2t.tracing.experiments import check_constants, check_state
from t2t.tracing.graph import Call, symbols_of_call, with_bodies
from t2t.tracing.weights import WeightRecorder

# Fills the registry.
importlib.import_module("t2t.formulas")


@dataclass
class Conversion:
    """A finished network and what belongs to it.

    Attributes:
        network: the network, with all layers.
        builder: the builder that made it; the network lives no longer than this.
        signature: names, dtypes, shapes and structure of inputs and outputs.
        graph: the trace that it comes from.
        kept: names of what the module keeps between calls, though its results do not depend on it.
        quantization: what calibration or ``weights`` has made of its products.
        state: what the module keeps between calls, as it is before the first one.
        never_empty: sizes of 0, which the signature allows, never reach the engine.
        weights: how the network's weights were computed, where that was recorded.
    """

    network: Network
    builder: Any
    signature: Signature
    graph: Graph
    kept: tuple[str, ...] = ()
    quantization: Quantization = field(default_factory=Quantization)
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    never_empty: bool = False
    weights: WeightRecorder | None = None

    def profiles(self) -> list[dict[str, Any]]:
        """Return min, opt and max shape of every dynamic input, in each profile of the builder."""
        least = 1 if self.never_empty else 0
        return [
            {
                name: tuple(tuple(max(least, size) for size in shape) for shape in three)
                for name, three in profile.items()
            }
            for profile in self.signature.ranges()
        ]


def to_network(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    policy: Policy | None = None,
    quantize: Wanted | None = None,
    **options: Any,
) -> Conversion:
    """Convert a module to a finished TensorRT network, without building it.

    Takes and raises what `trace_module` does; ``policy`` says what its layers compute in, and
    ``quantize`` what is to be rounded, and by what.
    """
    traced = trace_module(module, inputs, kwargs, **options)
    conversion = traced.lowered(policy or Policy(), quantize)
    traced.warn()
    return conversion


def trace_module(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    narrow_shapes: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    ignore_dropout: bool = False,
    data_sizes: bool = False,
    refittable: bool = False,
    **shapes: Any,
) -> Traced:
    """Run a module's forward pass once; networks of several precisions can be made of it.

    Takes and raises what `convert` does, all but what decides about precision and the engine.
    ``shapes`` are the declared ones (``min_shapes`` and its like). With ``data_sizes``, sizes may
    depend on the data, which no network can have but a partition. With ``refittable``, what
    computes weights of the module's own is recorded.
    """
    check_module(module)
    import_for_packages()
    # First, so that a missing TensorRT is said at once.
    builder = create_builder()
    example = Example.of(module, inputs, kwargs, input_names, **shapes)
    weights = WeightRecorder(_entries(module)) if refittable else None
    example, graph, kept = _trace(
        module, example, narrow_shapes, ignore_dropout, data_sizes, weights
    )
    values, structure, _ = graph.output
    if not values:
        raise ConversionError("the module returns no tensor")
    names = output_names_of(structure, len(values), output_names, example.names)
    return Traced(graph, example, kept, builder, tuple(names), weights)


def _entries(module: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a module's ``state_dict``, its own ones."""
    found = module.state_dict(keep_vars=True) if isinstance(module, torch.nn.Module) else {}
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def missing_operators(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
    max_batch_size: int | None = None,
    shape_examples: Any = None,
    profiles: Sequence[Mapping[str, Any]] | None = None,
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
        max_batch_size: the largest batch.
        shape_examples: further inputs, whose sizes make the ranges.
        profiles: several sets of shapes.

    Returns:
        One line for each operator call that cannot be converted and whose result is used, with the
        reason and the user's line; empty when the module converts.

    Raises:
        ConversionError: the inputs are not such as the module takes.
        ShapeError: the declared shapes do not fit.
    """
    check_module(module)
    example = Example.of(
        module,
        inputs,
        kwargs,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        dynamic_shapes=dynamic_shapes,
        max_batch_size=max_batch_size,
        shape_examples=shape_examples,
        profiles=profiles,
    )
    try:
        example, graph, _ = _trace(module, example, narrow_shapes=False, ignore_dropout=False)
    except ConversionError as error:
        # The forward pass cannot go on behind this one.
        return [str(error)]
    values = [*graph.output[0], *graph.state]
    network = Network(backend.create_network(builder := create_builder()))
    found = [str(error) for _, error in gaps(graph, network, example.names, values)]
    del builder
    return list(dict.fromkeys(found))


def _depth() -> int:
    """Return how many frames of t2t stand between the caller and the user's code."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("t2t."):
        depth, frame = depth + 1, frame.f_back
    return depth


@dataclass
class Traced:
    """A forward pass that was recorded, from which networks are made.

    Attributes:
        graph: the trace.
        example: the example inputs.
        kept: names of what the module keeps between calls, though its results do not depend on it.
        builder: the builder of the networks.
        output_names: names of the networks' outputs.
        weights: records what computes weights, for a network that gets new ones.
    """

    graph: Graph
    example: Example
    kept: tuple[str, ...]
    builder: Any
    output_names: tuple[str, ...]
    weights: WeightRecorder | None = None

    @property
    def outputs(self) -> dict[str, Value]:
        """The values that a network returns, by name; last what it keeps for the next call."""
        kept = zip(self.example.state, self.graph.state, strict=True)
        state = {f"next_{as_name(path)}": value for path, value in kept}
        return {**dict(zip(self.output_names, self.graph.output[0], strict=True)), **state}

    def calls(self) -> list[Call]:
        """Return the calls that the outputs depend on, in program order, also those in loops."""
        return [*with_bodies(self.graph.used_calls(list(self.outputs.values())))]

    def check_fp32_ops(self, operators: Sequence[str]) -> None:
        """Raise OptionError for names of operators that the module does not call."""
        there = {name for call in self.calls() for name in call.operators}
        known = set(map(operator_name, there))
        for name in operators:
            if operator_name(name) not in known:
                raise OptionError(
                    f"fp32_ops: the module does not call {name!r}; it calls "
                    f"{', '.join(sorted(there))}"
                )

    def check_edges(self) -> None:
        """Raise OptionError for inputs and outputs that are in half precision without asking."""
        for value in (*self.graph.inputs, *self.graph.output[0]):
            if value.tensor.dtype in (torch.float16, torch.bfloat16):
                raise OptionError(
                    "low_precision_io makes half of inputs and outputs that are float32, and the "
                    f"module has one that is {value.tensor.dtype} itself: leave it out"
                )

    def lowered(
        self, policy: Policy, quantize: Wanted | None = None, strict: bool = True
    ) -> Conversion:
        """Make a finished network of the trace.

        Args:
            policy: which floating types its layers compute in.
            quantize: what is to be rounded, and by what.
            strict: refuse to quantize where there is nothing to quantize.

        Raises:
            ConversionError: a call cannot be converted, or not be quantized.
        """
        raw = backend.create_network(self.builder)
        network = Network(raw, policy, refittable=self.weights is not None)
        values = list(self.outputs.values())
        for name in self.outputs:
            network.reserve(name)
        with self.weights or nullcontext():
            plan = Plan() if quantize is None else planned(self.graph, values, quantize, policy)
            if quantize is not None and strict:
                plan.check()
            emit(self.graph, network, self.example.names, values, plan.roundings)
            for name, value in self.outputs.items():
                network.mark_output(value.tensor, name)
        return Conversion(
            network,
            self.builder,
            self.signature(policy),
            self.graph,
            self.kept,
            plan.quantization,
            dict(self.example.state),
            weights=self.weights,
        )

    def signature(self, policy: Policy) -> Signature:
        """Return names, dtypes, shapes and structure of inputs and outputs."""
        _, structure, classes = self.graph.output
        parameters = self.example.parameters
        return Signature(
            self.input_specs(policy),
            tuple(
                output_spec(name, value.tensor, self.graph, policy.at_edges(value.tensor.dtype))
                for name, value in self.outputs.items()
            ),
            self.example.structure,
            structure,
            self.dimensions(),
            parameters.positional,
            parameters.defaults,
            classes,
            self.profiles() if len(self.example.declared.profiles) > 1 else (),
            (*self.example.declared.notes, *self.graph.notes),
            tuple(self.example.state),
        )

    def warn(self) -> None:
        """Warn of what was decided about sizes."""
        for note in (*self.example.declared.notes, *self.graph.notes):
            warnings.warn(note, ShapeWarning, stacklevel=_depth())

    def dimensions(self) -> tuple[Dimension, ...]:
        """Return the dynamic dimensions, with the ranges for which the trace holds."""
        return tuple(dict.fromkeys(d for d in self.graph.dimensions.values() if d.places))

    def profiles(self) -> tuple[Profile, ...]:
        """Return the shapes of all inputs in each profile, narrowed as the dimensions are."""
        kept = [(tuple(x.shape),) * 3 for x in self.example.state.values()]
        return tuple(
            (*(self._narrowed(index, shape) for index, shape in enumerate(profile)), *kept)
            for profile in self.example.declared.profiles
        )

    def _narrowed(self, index: int, shape: InputShape) -> tuple[Any, Any, Any]:
        low, best, high = list(shape.min), list(shape.opt), list(shape.max)
        for dimension in self.dimensions():
            values = range(dimension.low, dimension.high + 1, dimension.step)
            for place in dimension.places:
                if place.input == index:
                    d = place.dim
                    fitting = [v for v in values if low[d] <= place.size(v) <= high[d]]
                    nearest = min(fitting, key=lambda v: abs(place.size(v) - best[d]))
                    low[d], high[d] = place.size(fitting[0]), place.size(fitting[-1])
                    best[d] = place.size(nearest)
        return tuple(low), tuple(best), tuple(high)

    def input_specs(self, policy: Policy) -> tuple[TensorSpec, ...]:
        """Return names, dtypes and shapes of a network's inputs."""
        pairs = zip(self.example.names, self.graph.inputs, strict=True)
        return tuple(
            self._input_spec(index, name, value.tensor, policy.at_edges(value.tensor.dtype))
            for index, (name, value) in enumerate(pairs)
        )

    def _input_spec(self, index: int, name: str, x: torch.Tensor, dtype: torch.dtype) -> TensorSpec:
        shape = _plain(x)
        if -1 not in shape:
            return TensorSpec(name, dtype, shape)
        sizes = whole_range([profile[index] for profile in self.profiles()])
        names = names_of_sizes(self.dimensions(), index, len(shape))
        return TensorSpec(name, dtype, shape, *sizes, names)


def _trace(
    module: Callable[..., Any],
    example: Example,
    narrow_shapes: bool,
    ignore_dropout: bool,
    data_sizes: bool = False,
    weights: WeightRecorder | None = None,
) -> tuple[Example, Graph, tuple[str, ...]]:
    """Return the trace, and names of what the module keeps without that results depend on it.

    What they depend on becomes a part of the example, as far as an engine can keep it.
    """
    if narrow_shapes and len(example.declared.profiles) > 1:
        raise ConversionError("narrow_shapes shrinks one range; it does not go with profiles")

    def finish(output: Any, recorder: Recorder) -> tuple[list[Value], Any, Any]:
        leaves, form = flatten(output, share=True, name="output")
        return [recorder.value(leaf) for leaf in leaves], form, classes_of(output)

    refused: ConversionError | None = None
    while True:
        try:
            with without_dropout(module, ignore_dropout):
                with weights or nullcontext():
                    graph = trace(
                        module,
                        example.args,
                        example.kwargs,
                        names=example.names,
                        dimensions=example.declared.dimensions,
                        boxes=example.declared.boxes(),
                        narrow_shapes=narrow_shapes,
                        automatic=example.declared.automatic,
                        data_sizes=data_sizes or refused is not None,
                        state=example.state,
                        finish=finish,
                    )
                if refused is not None:
                    _forget_data_sizes(graph)
                inputs = example.args, example.kwargs
                check_state(module, inputs, graph.kept, example.state)
                check_constants(module, inputs, _constants(graph))
            break
        except StateError as error:
            example = example.keeping(module, error)
        except ConversionError as error:
            if data_sizes or refused is not None or not error.by_mask:
                raise refused or error from error.__cause__
            # What a mask chooses may be put back by the same one, so that no size is left of it.
            refused = error
    paths = (change.path for change in graph.kept if change.path not in example.state)
    kept = tuple(dict.fromkeys(paths))
    graph.kept.clear()
    return example, graph, kept


def _forget_data_sizes(graph: Graph) -> None:
    """Forget sizes that depend on the data; raise ConversionError where a result needs one."""
    made = {symbol for symbol, dimension in graph.dimensions.items() if not dimension.places}
    calls = graph.used_calls([*graph.output[0], *graph.state])
    if graph.checks or any(made & symbols_of_call(call) for call in calls):
        raise ConversionError("a size depends on the data")
    graph.numbers.clear()
    graph.dimensions = {s: d for s, d in graph.dimensions.items() if s not in made}
    graph.boxes = [{s: r for s, r in box.items() if s not in made} for box in graph.boxes]


def _constants(graph: Graph) -> dict[int, torch.Tensor]:
    """Return the outputs that are constants, by their place."""
    values, *_ = graph.output
    return {
        index: value.tensor
        for index, value in enumerate(values)
        if value.call is None and value not in graph.inputs
    }


def output_spec(
    name: str, x: torch.Tensor, graph: Graph, dtype: torch.dtype | None = None
) -> TensorSpec:
    """Return name, dtype and shape of a traced tensor, with the ranges of its sizes."""
    shape, dtype = _plain(x), dtype or x.dtype
    if -1 not in shape:
        return TensorSpec(name, dtype, shape)
    sizes = [expression(size) for size in x.shape]
    low, high = zip(*(span(size, graph.boxes) for size in sizes), strict=True)
    placed = [all(graph.dimensions[s].places for s in symbols_of(size)) for size in sizes]
    names = tuple(
        text(size) if plain == -1 and is_placed else ""
        for size, plain, is_placed in zip(sizes, shape, placed, strict=True)
    )
    return TensorSpec(name, dtype, shape, low, None, high, names)


def _plain(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(-1 if (n := static_size(size)) is None else n for size in x.shape)


@contextmanager
def without_dropout(module: Any, ignore: bool) -> Iterator[None]:
    """Switch active dropout layers off inside the ``with`` block, or refuse them.

    Args:
        module: the module.
        ignore: switch them off.

    Raises:
        ConversionError: dropout is active, and not to be ignored.
    """
    modules = module.modules() if isinstance(module, torch.nn.Module) else ()
    # A frozen TorchScript module has no such attribute.
    active = [m for m in modules if getattr(m, "training", False) and _drops(m)]
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


def _drops(m: torch.nn.Module) -> bool:
    """Return whether a module drops elements in training mode."""
    if isinstance(m, torch.nn.RNNBase):
        return m.dropout > 0 and m.num_layers > 1
    return isinstance(m, _DROPOUT) and m.p > 0


_DROPOUT = (
    torch.nn.Dropout,
    torch.nn.Dropout1d,
    torch.nn.Dropout2d,
    torch.nn.Dropout3d,
    torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout,
)
