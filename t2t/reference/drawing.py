"""What every picture of a program shows: boxes, the tensors between them, groups by module.

A collapsed group stands for the layers of one call of a module. Its layers follow one another in
the network's order, so whatever is collapsed, the picture has no cycle.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from t2t.reference.layer import Layer, TensorInfo
from t2t.reference.named_sizes import name_sizes
from t2t.reference.schedule import readers_of
from t2t.reference.shared import logical_shape
from t2t.reference.text import (
    Sizes,
    attribute_texts,
    brief_text,
    short_line,
    tensor_text,
    torch_type_text,
)


class _Entry(Protocol):
    """A layer in a report."""

    @property
    def name(self) -> str:
        """The layer's name."""

    @property
    def max_rel_error(self) -> float:
        """Its relative error."""


class _Report(Protocol):
    """A report on layers, such as `compare_layers` returns."""

    @property
    def layers(self) -> Sequence[_Entry]:
        """The layers."""


Heat = Mapping[str, float] | _Report
"""What layers are coloured by: a number by name, or a report."""

ROOT = 0
"""Index of the group that holds everything."""

_FAMILIES = {
    "compute": (
        "ATTENTION_INPUT",
        "CONVOLUTION",
        "DECONVOLUTION",
        "EINSUM",
        "GRID_SAMPLE",
        "MATRIX_MULTIPLY",
        "NORMALIZATION",
        "POOLING",
        "REDUCE",
        "RESIZE",
        "SOFTMAX",
        "TOPK",
    ),
    "pointwise": (
        "ACTIVATION",
        "CAST",
        "ELEMENTWISE",
        "PARAMETRIC_RELU",
        "SCALE",
        "SELECT",
        "UNARY",
    ),
    "control": (
        "CONDITION",
        "CONDITIONAL_INPUT",
        "CONDITIONAL_OUTPUT",
        "ITERATOR",
        "LOOP_OUTPUT",
        "RECURRENCE",
        "TRIP_LIMIT",
    ),
}
_FAMILY = {kind: family for family, kinds in _FAMILIES.items() for kind in kinds}
_INDEX_DTYPES = (torch.bool, torch.int32, torch.int64)
_INTEGERS = ("BOOL", "INT32", "INT64", "UINT8")
# A module that calls more layers than this by itself is cut into parts.
_MOST_CHILDREN = 100
_LONGEST_SIZE = 12  # letters


@dataclass(frozen=True)
class Box:
    """One layer, input or output as it is drawn.

    Attributes:
        key: unique name: the layer's, "input x" or "output y".
        operator: the operator that made it, "conv2d"; the name of an input or output.
        kind: the name in TensorRT's LayerType, "INPUT" or "OUTPUT".
        module: path of the module that it belongs to, "layer1.0.conv1", or "".
        family: "input", "compute", "pointwise", "movement" or "control".
        brief: its most telling attributes in a few words.
        attributes: what differs from TensorRT's defaults, as "name=value".
        weights: its weights and constant inputs, as pairs of a name and a type with sizes.
        outputs: the tensors that it makes: the name, the type with sizes, and the same in brief.
        line: where the user's code made it.
        parameters: how many numbers of its weights no box before it has.
        folded: whether it belongs to the arithmetic of sizes, which is hidden at first.
        group: index of the group that it stands in.
    """

    key: str
    operator: str
    kind: str
    module: str = ""
    family: str = "input"
    brief: str = ""
    attributes: tuple[str, ...] = ()
    weights: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str, str], ...] = ()
    line: str = ""
    parameters: int = 0
    folded: bool = False
    group: int = ROOT


@dataclass(frozen=True)
class Edge:
    """A tensor that goes from one box to another, by their indices and those of the tensor."""

    source: int
    output: int
    target: int
    input: int


@dataclass(frozen=True)
class Group:
    """The layers of one call of a module, or a part of them.

    Attributes:
        title: what it is called inside its parent, "layer1.0".
        module: the module's path; "" for the root.
        parent: index of the group around it; the root is its own.
    """

    title: str
    module: str
    parent: int


@dataclass
class Graph:
    """The boxes in the network's order, inputs first and outputs last.

    A group stands behind its parent.
    """

    boxes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    groups: list[Group] = field(default_factory=lambda: [Group("", "", ROOT)])

    def relative_module(self, box: Box) -> str:
        """Return a box's module as it is called inside its group: "conv1" in "layer1.0"."""
        return _relative(box.module, self.groups[box.group].module)

    def members(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the indices of the subgroups and of the boxes of each group."""
        groups: list[list[int]] = [[] for _ in self.groups]
        boxes: list[list[int]] = [[] for _ in self.groups]
        for index, group in enumerate(self.groups[1:], 1):
            groups[group.parent].append(index)
        for index, box in enumerate(self.boxes):
            boxes[box.group].append(index)
        return groups, boxes


def graph_of(
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    layers: Sequence[Layer],
    sizes: Sizes,
) -> Graph:
    """Return the graph of a program; constants are written into the boxes that use them.

    Args:
        inputs: the network's inputs.
        outputs: the network's outputs.
        layers: its layers.
        sizes: the shapes of tensors with names for dynamic sizes, by the tensor's name.
    """
    results = {info.name for info in outputs}
    hidden = _size_arithmetic(inputs, layers, results)
    constants = {
        layer.outputs[0]: layer
        for layer in layers
        if layer.kind == "CONSTANT" and not results.intersection(layer.outputs)
    }
    known = name_sizes(inputs, layers, sizes)
    graph = Graph()
    makers: dict[str, tuple[int, int]] = {}
    for info in inputs:
        tensor = _tensor(info.name, torch_type_text(info.dtype), known)
        makers[info.name] = (len(graph.boxes), 0)
        graph.boxes.append(Box(f"input {info.name}", info.name, "INPUT", outputs=(tensor,)))
    drawn = [layer for layer in layers if not constants.keys() & set(layer.outputs)]
    counted: set[int] = set()
    for layer in drawn:
        makers.update((name, (len(graph.boxes), at)) for at, name in enumerate(layer.outputs))
        box = _box(layer, constants, known, counted)
        graph.boxes.append(replace(box, folded=layer.name in hidden))
    for target, layer in enumerate(drawn, len(inputs)):
        for at, name in enumerate(layer.inputs):
            if name is not None and name in makers:
                graph.edges.append(Edge(*makers[name], target, at))
    for info in outputs:
        if info.name in makers:
            graph.edges.append(Edge(*makers[info.name], len(graph.boxes), 0))
        graph.boxes.append(Box(f"output {info.name}", info.name, "OUTPUT"))
    _arrange(graph)
    return graph


def heat_values(
    heat: Heat | None, label: str | None, layers: Sequence[Layer]
) -> tuple[dict[str, float], str]:
    """Return a number for layers by name, and what it is.

    A layer that ran several times has its largest number.

    Raises:
        ValueError: there is no layer of some name.
    """
    values: dict[str, float] = {}
    if isinstance(heat, Mapping):
        values = {name: float(value) for name, value in heat.items()}
    elif heat is not None:
        for entry in heat.layers:
            before = values.get(entry.name, -math.inf)
            # NaN is larger than any number here.
            is_larger = math.isnan(entry.max_rel_error) or entry.max_rel_error > before
            values[entry.name] = entry.max_rel_error if is_larger else before
        label = label or "relative error"
    unknown = sorted(values.keys() - {layer.name for layer in layers})
    if unknown:
        raise ValueError(f"heat: there is no layer {unknown[0]!r}; print(program) lists the names")
    return values, label or "error"


def _size_arithmetic(
    inputs: Sequence[TensorInfo], layers: Sequence[Layer], results: set[str]
) -> set[str]:
    """Find the layers that compute sizes, indices and masks from nothing but the inputs' sizes.

    Floating results of several dimensions, as position embeddings have, belong to the model.
    """
    readers = readers_of(layers)
    data: set[str] = set()
    pending = [info.name for info in inputs]
    while pending:
        for layer in readers[pending.pop()]:
            if layer.name not in data and layer.kind != "SHAPE":
                data.add(layer.name)
                pending += layer.outputs
    return {
        layer.name
        for layer in layers
        if layer.name not in data
        and _FAMILY.get(layer.kind) != "control"
        and not results.intersection(layer.outputs)
        and all(
            kind in _INTEGERS or (shape is not None and len(shape) < 2)
            for kind, shape in zip(layer.types, layer.shapes, strict=True)
        )
    }


def _box(layer: Layer, constants: Mapping[str, Layer], sizes: Sizes, counted: set[int]) -> Box:
    module, operator = split_name(layer)
    weights = [(name, w, _weight_text(layer, name, w)) for name, w in layer.weights.items()]
    for at, name in enumerate(layer.inputs):
        if name is not None and name in constants:
            given = constants[name]
            text = tensor_text(given.types[0], given.attributes["shape"])
            weights += [(f"input {at}", w, text) for w in given.weights.values()]
    parameters = 0
    for _, weight, _ in weights:
        # The same memory is one weight, whoever reads it; an index or a factor is none.
        is_weight = weight.dtype not in _INDEX_DTYPES and weight.numel() > 1
        if is_weight and weight.data_ptr() not in counted:
            counted.add(weight.data_ptr())
            parameters += weight.numel()
    made = zip(layer.outputs, layer.types, strict=True)
    return Box(
        layer.name,
        operator,
        layer.kind,
        module,
        _FAMILY.get(layer.kind, "movement"),
        brief_text(layer),
        tuple(attribute_texts(layer)),
        tuple((name, text) for name, _, text in weights),
        tuple(_tensor(name, kind, sizes) for name, kind in made),
        short_line(layer.metadata),
        parameters,
    )


def _tensor(name: str, kind: str, known: Sizes) -> tuple[str, str, str]:
    sizes = known.get(name)
    short = sizes and [size if len(size) <= _LONGEST_SIZE else "..." for size in sizes]
    return name, tensor_text(kind, sizes), tensor_text(kind, short)


def split_name(layer: Layer) -> tuple[str, str]:
    """Return the module's path and the operator of a layer's name.

    Constants and casts are called after the operator that needs them: "fc/linear/constant".
    """
    name = layer.name
    if layer.kind in ("CONSTANT", "CAST"):
        name = re.sub(r"/(constant|cast)(_\d+)?$", "", name)
    module, _, operator = name.rpartition("/")
    return module, operator


def _weight_text(layer: Layer, name: str, weight: Tensor) -> str:
    return tensor_text(torch_type_text(weight.dtype), logical_shape(layer, name, weight))


def _arrange(graph: Graph) -> None:
    """Group the layers by module, each unbroken run of them; hidden layers join a group nearby."""
    shown = [i for i, box in enumerate(graph.boxes) if box.family != "input" and not box.folded]
    _add_members(graph, shown, ROOT, 0)
    last = ROOT
    near: list[tuple[int, int]] = []
    for index, box in enumerate(graph.boxes):
        if box.folded:
            near.append((index, last))
        else:
            last = box.group
            for folded, before in near:
                paths = [_innermost(graph, g, graph.boxes[folded].module) for g in (before, last)]
                graph.boxes[folded] = replace(graph.boxes[folded], group=max(paths)[1])
            near.clear()


def _innermost(graph: Graph, group: int, module: str) -> tuple[int, int]:
    """Find, from a group outwards, one that a module is in; return its depth and index."""
    while group != ROOT and not f"{module}.".startswith(f"{graph.groups[group].module}."):
        group = graph.groups[group].parent
    return len(graph.groups[group].module), group


def _add_members(graph: Graph, boxes: Sequence[int], parent: int, depth: int) -> None:
    """Put boxes into a group, those of a submodule of it into groups inside.

    Args:
        graph: the graph.
        boxes: indices of the boxes, which share the first ``depth`` parts of their modules' paths.
        parent: index of the group.
        depth: how many parts the path of the group's module has.
    """

    def part(index: int) -> str:
        return ".".join(graph.boxes[index].module.split(".")[depth : depth + 1])

    members: list[list[int]] = []
    for name, found in itertools.groupby(boxes, part):
        run = list(found)
        members += [run] if name else [[index] for index in run]
    if len(members) > _MOST_CHILDREN:
        count = math.ceil(math.sqrt(len(members)))
        for start in range(0, len(members), count):
            group = len(graph.groups)
            end = min(start + count, len(members))
            title = f"part {start // count + 1} of {math.ceil(len(members) / count)}"
            graph.groups.append(Group(title, graph.groups[parent].module, parent))
            _place(graph, members[start:end], group)
    else:
        _place(graph, members, parent)


def _place(graph: Graph, members: Sequence[list[int]], parent: int) -> None:
    for run in members:
        if len(run) == 1:
            # A group of one layer tells nothing that the layer's own label cannot.
            graph.boxes[run[0]] = replace(graph.boxes[run[0]], group=parent)
            continue
        # Modules that hold nothing but one module share its group: "encoder.layer".
        path = _common([graph.boxes[index].module.split(".") for index in run])
        group = len(graph.groups)
        graph.groups.append(Group(_title(graph, path, parent), ".".join(path), parent))
        _add_members(graph, run, group, len(path))


def _common(paths: Sequence[list[str]]) -> list[str]:
    low, high = min(paths), max(paths)
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high))]  # noqa: B905


def _title(graph: Graph, path: Sequence[str], parent: int) -> str:
    module = ".".join(path)
    title = _relative(module, graph.groups[parent].module) or path[-1]
    calls = sum(group.module == module and group.parent == parent for group in graph.groups)
    return f"{title} ({calls + 1})" if calls else title


def _relative(module: str, outer: str) -> str:
    """Return a path as it is called inside another; a number says too little without its list."""
    if not outer or module == outer:
        return "" if module == outer else module
    inner = module.removeprefix(f"{outer}.")
    around = outer.split(".")
    while inner[:1].isdigit() and around:
        inner = f"{around.pop()}.{inner}"
    return inner
