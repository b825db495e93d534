"""Programs drawn as graphs: Graphviz's language, and a page of HTML that needs nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from t2t.reference.layer import Layer, TensorInfo
from t2t.reference.text import Sizes, attribute_texts, size_text, type_text

__all__ = ["Box", "Graph", "graph_of", "to_dot"]

_COLOURS = {
    "input": "#ffffff",
    "compute": "#c8e6c9",
    "pointwise": "#fff3c4",
    "movement": "#d6e4f5",
    "control": "#e8d5f2",
}
_COMPUTE = (
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
)
_POINTWISE = ("ACTIVATION", "CAST", "ELEMENTWISE", "PARAMETRIC_RELU", "SCALE", "SELECT", "UNARY")
_CONTROL = (
    "CONDITIONAL_INPUT",
    "CONDITIONAL_OUTPUT",
    "ITERATOR",
    "LOOP_OUTPUT",
    "RECURRENCE",
    "TRIP_LIMIT",
)


@dataclass(frozen=True)
class Box:
    """One layer, input or output as it is drawn.

    Attributes:
        key: unique name.
        module: the module path that it belongs to, "layer1.0.conv1"; empty where there is none.
        lines: what is written in it, the first line in bold.
        colour: the fill, "#rrggbb".
        hint: what is shown when the pointer rests on it.
    """

    key: str
    module: str
    lines: tuple[str, ...]
    colour: str
    hint: str = ""


@dataclass
class Graph:
    """The boxes, and for each pair of joined boxes what flows from one to the other."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[str, str, str]] = field(default_factory=list)


def graph_of(
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    layers: Sequence[Layer],
    sizes: Sizes,
) -> Graph:
    """Make the graph; constants are written into the boxes that use them.

    Args:
        inputs: the network's inputs.
        outputs: the network's outputs.
        layers: its layers.
        sizes: the shapes of tensors with names for dynamic sizes, by the tensor's name.
    """
    graph = Graph()
    constants = {layer.outputs[0]: layer for layer in layers if layer.kind == "CONSTANT"}
    makers: dict[str, tuple[str, str]] = {}
    for info in inputs:
        kind = str(info.dtype).removeprefix("torch.")
        shape = size_text(sizes.get(info.name, info.shape))
        lines = (info.name, f"{kind} {shape}")
        graph.boxes.append(Box(f"input {info.name}", "", lines, _COLOURS["input"]))
        makers[info.name] = (f"input {info.name}", shape)
    drawn = [layer for layer in layers if layer.kind != "CONSTANT"]
    for layer in drawn:
        graph.boxes.append(_box(layer, constants, sizes))
        for name, dims in zip(layer.outputs, layer.shapes, strict=True):
            makers[name] = (layer.name, size_text(sizes.get(name, dims)))
    for layer in drawn:
        for source in dict.fromkeys(layer.inputs):
            if source in makers:
                graph.edges.append((makers[source][0], layer.name, makers[source][1]))
    for info in outputs:
        key = f"output {info.name}"
        graph.boxes.append(Box(key, "", (info.name,), _COLOURS["input"]))
        if info.name in makers:
            graph.edges.append((makers[info.name][0], key, makers[info.name][1]))
    return graph


def _box(layer: Layer, constants: dict[str, Layer], sizes: Sizes) -> Box:
    module, _, operation = layer.name.rpartition("/")
    lines = [operation if module else layer.kind.lower()]
    lines += [layer.kind.lower()] if module else []
    lines += _wrapped(attribute_texts(layer))
    fixed = [constants[name] for name in layer.inputs if name in constants]
    lines += [f"constant {size_text(entry.shapes[0])}" for entry in fixed]
    lines.append(
        ", ".join(
            f"{type_text(kind)} {size_text(sizes.get(name, shape))}"
            for name, kind, shape in zip(layer.outputs, layer.types, layer.shapes, strict=True)
        )
    )
    family = next(
        (
            name
            for name, kinds in (
                ("compute", _COMPUTE),
                ("pointwise", _POINTWISE),
                ("control", _CONTROL),
            )
            if layer.kind in kinds
        ),
        "movement",
    )
    hint = "\n".join(part for part in (layer.name, layer.metadata) if part)
    return Box(layer.name, module, tuple(line for line in lines if line), _COLOURS[family], hint)


def _wrapped(parts: Sequence[str], width: int = 36) -> list[str]:
    """Write attributes one after the other in lines of about this many letters."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def to_dot(graph: Graph) -> str:
    """Write a graph in Graphviz's language, with a frame around each module."""
    lines = [
        "digraph program {",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=10]',
        '  edge [fontname="Helvetica", fontsize=8, color="#666666"]',
    ]
    numbers = {box.key: f"n{index}" for index, box in enumerate(graph.boxes)}
    lines += _frames(graph.boxes, numbers, (), "  ")
    for source, target, label in graph.edges:
        lines.append(f"  {numbers[source]} -> {numbers[target]} [label={_quoted(label)}]")
    return "\n".join([*lines, "}", ""])


def _frames(
    boxes: Sequence[Box], numbers: dict[str, str], path: tuple[str, ...], indent: str
) -> list[str]:
    """Write the boxes of a module and, framed, those of its submodules.

    A frame holds an unbroken run of boxes: a module that is called twice gets two.
    """
    lines: list[str] = []
    for name, members in itertools.groupby(boxes, lambda box: _part(box, len(path))):
        run = list(members)
        if name is None:
            lines += [_node(box, numbers, indent, "") for box in run]
        elif len(run) == 1:
            # A frame around one box tells nothing that its label cannot.
            lines.append(_node(run[0], numbers, indent, run[0].module))
        else:
            deeper = (*path, name)
            title = ".".join(deeper)
            lines.append(f"{indent}subgraph {_quoted(f'cluster {numbers[run[0].key]} {title}')} {{")
            lines.append(f'{indent}  label={_quoted(title)}; color="#bbbbbb"; fontsize=9')
            lines += _frames(run, numbers, deeper, indent + "  ")
            lines.append(f"{indent}}}")
    return lines


def _part(box: Box, depth: int) -> str | None:
    parts = box.module.split(".") if box.module else []
    return parts[depth] if len(parts) > depth else None


def _node(box: Box, numbers: dict[str, str], indent: str, module: str) -> str:
    label = "\\n".join(_escaped(line) for line in (module, *box.lines) if line)
    return (
        f'{indent}{numbers[box.key]} [label="{label}", fillcolor="{box.colour}", '
        f"tooltip={_quoted(box.hint or box.key)}]"
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
