"""What TensorRT proper does with plugins, where only their classes are: TensorRT-RTX has no layer.

A plugin layer's outputs become inputs of the network, of the types and shapes that the plugin's own
answers say, and the layer is put into the program that is captured. So everything about a plugin is
TensorRT's real interface but the layer and the expressions of sizes.
"""

import gc
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import t2t
from t2t import backend
from t2t.backend import trt
from t2t.dtypes import from_trt, to_trt
from t2t.network import Network
from t2t.plugins.call import Output, PluginCall
from t2t.plugins.classes import make_plugin, register_creator
from t2t.reference import Program, capture
from t2t.reference import layer as kinds
from t2t.reference.layer import Layer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where an enqueue takes its addresses to be."""


class Size:
    """IDimensionExpr: computes a size of all inputs' shapes."""

    def __init__(self, compute: Callable[[Any], int], fixed: bool) -> None:
        self.compute, self.fixed = compute, fixed


def _no_negative(a: int, b: int) -> int:
    assert a >= 0, "how TensorRT rounds negative quotients is not said"
    assert b > 0
    return a // b


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "SUM": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "PROD": lambda a, b: a * b,
    "MAX": max,
    "MIN": min,
    "FLOOR_DIV": _no_negative,
}


class ExprBuilder:
    """IExprBuilder."""

    def constant(self, number: int) -> Size:
        assert type(number) is int
        return Size(lambda _: number, True)

    def operation(self, operation: Any, a: Size, b: Size) -> Size:
        assert isinstance(operation, trt.DimensionOperation)
        function = OPERATIONS[operation.name]
        return Size(lambda s: function(a.compute(s), b.compute(s)), a.fixed and b.fixed)


def shape_of(number: int, sizes: Sequence[int]) -> list[Size]:
    """DimsExprs of an input; -1 for dynamic sizes."""

    def size(dim: int, given: int) -> Size:
        if given == -1:
            return Size(lambda shapes: shapes[number][dim], False)
        return Size(lambda _: given, True)

    return [size(*pair) for pair in enumerate(sizes)]


def output_shapes(plugin: Any, shapes: Sequence[Sequence[int]]) -> list[list[Size]]:
    """Ask a plugin for the expressions of its outputs' sizes."""
    inputs = [shape_of(number, sizes) for number, sizes in enumerate(shapes)]
    with pytest.MonkeyPatch.context() as patch:
        # Only TensorRT can make the expressions that the real one holds.
        patch.setattr(importlib.import_module(backend.name()), "DimsExprs", list)
        answer: list[list[Size]] = plugin.get_output_shapes(inputs, [], ExprBuilder())
    return answer


def description(dtype: torch.dtype, sizes: Sequence[int], kind: str = "LINEAR") -> Any:
    """PluginTensorDesc."""
    desc = trt.PluginTensorDesc()
    desc.dims, desc.type = trt.Dims(list(sizes)), to_trt(dtype)
    desc.format = getattr(trt.TensorFormat, kind)
    return desc


def dynamic(desc: Any) -> Any:
    """DynamicPluginTensorDesc."""
    made = trt.DynamicPluginTensorDesc()
    made.desc = desc
    return made


def revived(plugin: Any, building: bool = False) -> Any:
    """Serialize a plugin's fields, and let the creator make a plugin of them in a context."""
    fields = plugin.get_fields_to_serialize()
    copied = [trt.PluginField(f.name, f.data.copy(), f.type) for f in fields]
    gc.collect()
    phase = trt.TensorRTPhase.BUILD if building else trt.TensorRTPhase.RUNTIME
    collection = trt.PluginFieldCollection(copied)
    made = register_creator().create_plugin(plugin.plugin_name, collection, phase)
    return made.attach_to_context(None).clone()


def enqueue(plugin: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Run a plugin on tensors, by their addresses, on the current stream."""
    stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0
    given = [x.contiguous() for x in inputs]
    shapes = [tuple(x.shape) for x in given]
    types = plugin.get_output_data_types([to_trt(x.dtype) for x in given])
    sizes = [[s.compute(shapes) for s in out] for out in output_shapes(plugin, shapes)]
    outputs = [
        torch.empty(size, dtype=from_trt(kind), device=DEVICE)
        for size, kind in zip(sizes, types, strict=True)
    ]
    before, after = ([description(x.dtype, x.shape) for x in xs] for xs in (given, outputs))
    plugin.on_shape_change(before, after)
    plugin.set_tactic(0)
    addresses = [[x.data_ptr() for x in xs] for xs in (given, outputs)]
    plugin.enqueue(before, after, *addresses, 0, stream)
    return tuple(outputs)


def call(
    operator: str, inputs: Sequence[torch.dtype], outputs: Any, *args: Any, **kwargs: Any
) -> PluginCall:
    """A call whose outputs have the sizes of input 0, or those that are given."""
    same = [{"tensor": 0, "dim": dim, "factor": 1, "offset": 0} for dim in range(2)]
    made = [Output(*x) if isinstance(x, tuple) else Output(x, same) for x in outputs]
    return PluginCall(operator, args or [{"tensor": 0}], kwargs, inputs, made)


class Plugins:
    """The plugin layers that were added, and the networks that they are in."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin another network."""
        self.layers: list[Layer] = []
        self.tensors: list[Any] = []
        self.outputs: set[str] = set()

    def add(self, net: Network, inputs: Sequence[Any], plugin: Any) -> list[Any]:
        """Stand for `Network.add_plugin_v3`."""
        net.keep(plugin)
        tensors = [net.tensor(x) for x in inputs]
        shapes = output_shapes(plugin, [tuple(x.shape) for x in tensors])
        kinds = plugin.get_output_data_types([x.dtype for x in tensors])
        assert plugin.num_outputs == len(shapes) == len(kinds)
        check_formats(plugin, [*(x.dtype for x in tensors), *kinds], len(tensors))
        name = net.unique_name("plugin")
        sizes = [tuple(s.compute(()) if s.fixed else -1 for s in shape) for shape in shapes]
        outputs = [
            net.raw.add_input(f"{name}:{index}", kind, size)
            for index, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
        ]
        text = plugin.get_fields_to_serialize()[0].data.tobytes()
        layer = Layer(
            kind="PLUGIN_V3",
            name=name,
            attributes={"call": json.loads(text)},
            inputs=tuple(x.name for x in tensors),
            outputs=tuple(x.name for x in outputs),
            types=tuple(kind.name for kind in kinds),
            shapes=tuple(sizes),
        )
        self.layers.append(layer)
        self.tensors += tensors
        return outputs

    def program(self, conversion: Any) -> Program:
        """Return the network of a conversion as a program that was saved and read again."""
        network = conversion.network
        raw = network.raw
        if not self.outputs:
            self.outputs = {raw.get_output(index).name for index in range(raw.num_outputs)}
            for tensor in self.tensors:
                # What only plugins read counts as needed.
                if not (tensor.is_network_input or tensor.name in self.outputs):
                    raw.mark_output(tensor)
        found = capture(network.raw, network.weights, network.sizes())
        made = {name for layer in self.layers for name in layer.outputs}
        inputs = [info for info in found.inputs if info.name not in made]
        outputs = [info for info in found.outputs if info.name in self.outputs]
        layers = [*found.layers, *self.layers]
        return Program.from_state(Program(inputs, outputs, layers, found.version).to_state())


def check_formats(plugin: Any, kinds: Sequence[Any], inputs: int) -> None:
    """Only the types of the model are supported, and only without padding or blocks."""
    descs = [dynamic(description(from_trt(kind), (2, 2))) for kind in kinds]
    for place, kind in enumerate(kinds):
        assert plugin.supports_format_combination(place, descs, inputs) is True
        others = list(descs)
        others[place] = dynamic(description(from_trt(kind), (2, 2), "CHW32"))
        assert plugin.supports_format_combination(place, others, inputs) is False
        other = torch.float16 if from_trt(kind) != torch.float16 else torch.float32
        others[place] = dynamic(description(other, (2, 2)))
        assert plugin.supports_format_combination(place, others, inputs) is False


@contextmanager
def run_by_plugins() -> Iterator[None]:
    """Let programs run plugin layers by plugins that were revived from their data."""

    def prepare(ready: Any) -> Any:
        plugin = revived(make_plugin(PluginCall.from_text(json.dumps(ready.attributes["call"]))))
        return lambda *inputs: enqueue(plugin, *inputs)

    with pytest.MonkeyPatch.context() as patch:
        spec = kinds.Spec(prepare, (), (), frozenset(), None)
        patch.setitem(kinds._SPECS, "PLUGIN_V3", spec)
        yield


def check(plugins: Plugins, function: Any, *sets: Sequence[torch.Tensor], **options: Any) -> Any:
    """Convert a function with plugins in it; compare programs with it on each set of inputs."""
    plugins.forget()
    conversion = t2t.to_network(function, list(sets[0]), **options)
    assert plugins.layers, "no plugin is in the network"
    for inputs in sets:
        want = function(*inputs)
        want = want if isinstance(want, tuple) else (want,)
        placed = [x.to(DEVICE) for x in inputs]
        runs = [plugins.program(conversion).run(placed)]
        with run_by_plugins():
            runs.append(plugins.program(conversion).run(placed))
        for results in runs:
            for got, expected in zip(results.values(), want, strict=True):
                torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)
    return conversion
