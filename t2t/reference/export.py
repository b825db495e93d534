"""A graph in other forms: Graphviz's language, Model Explorer's JSON, and a table of modules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from t2t.reference.drawing import ROOT, Box, Graph

_COLOURS = {
    "input": "#ffffff",
    "compute": "#c8e6c9",
    "pointwise": "#fff3c4",
    "movement": "#d6e4f5",
    "control": "#e8d5f2",
}


def to_dot(graph: Graph) -> str:
    """Return a graph in Graphviz's language, with a frame around each module.

    The arithmetic of sizes is left out.
    """
    lines = [
        "digraph program {",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=10]',
        '  edge [fontname="Helvetica", fontsize=8, color="#666666"]',
        *_frame(graph, *graph.members(), ROOT, "  "),
    ]
    for edge in graph.edges:
        source, target = graph.boxes[edge.source], graph.boxes[edge.target]
        if not source.folded and not target.folded:
            label = _quoted(source.outputs[edge.output][2])
            lines.append(f"  n{edge.source} -> n{edge.target} [label={label}]")
    return "\n".join([*lines, "}", ""])


def _frame(
    graph: Graph, groups: list[list[int]], boxes: list[list[int]], group: int, indent: str
) -> Iterator[str]:
    for index in boxes[group]:
        box = graph.boxes[index]
        if not box.folded:
            lines = [
                graph.relative_module(box),
                box.operator,
                f"{box.kind.lower()} {box.brief}".strip(),
            ]
            yield (
                f"{indent}n{index} [label={_quoted(chr(10).join(filter(None, lines)))}, "
                f'fillcolor="{_COLOURS[box.family]}", tooltip={_quoted(_hint(box))}]'
            )
    for inner in groups[group]:
        yield f'{indent}subgraph "cluster {inner}" {{'
        yield f'{indent}  label={_quoted(graph.groups[inner].title)}; color="#bbbbbb"; fontsize=9'
        yield from _frame(graph, groups, boxes, inner, indent + "  ")
        yield f"{indent}}}"


def _hint(box: Box) -> str:
    return "\n".join(part for part in (box.key, *box.attributes, box.line) if part)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def to_model_explorer(
    graph: Graph, title: str, heat: Mapping[str, float] | None = None, label: str = ""
) -> str:
    """Return a graph as JSON that Google's Model Explorer opens.

    The format is a collection of graphs as its ``graph_builder.py`` describes them (0.1.34),
    https://github.com/google-ai-edge/model-explorer/wiki/4.-API-Guide.

    Args:
        graph: the graph; the arithmetic of sizes is put into groups of its own.
        title: name of the collection.
        heat: a number for each box, by its key; it becomes an attribute.
        label: what the numbers are.
    """
    spaces = [""]
    for group in graph.groups[1:]:
        # A slash in a title would make two groups of one.
        spaces.append("/".join(filter(None, (spaces[group.parent], group.title.replace("/", "|")))))
    nodes = []
    for box in graph.boxes:
        parts = [spaces[box.group], "shape arithmetic" if box.folded else ""]
        attributes = [("layer", box.kind), ("module", box.module), ("line", box.line)]
        attributes += [tuple(text.split("=", 1)) for text in box.attributes]  # type: ignore[misc]
        attributes += [(f"weight {name}", text) for name, text in box.weights]
        if heat and box.key in heat:
            attributes.append((label, f"{heat[box.key]:g}"))
        nodes.append(
            {
                "id": box.key,
                "label": box.operator,
                "namespace": "/".join(filter(None, parts)),
                "attrs": _pairs([pair for pair in attributes if pair[1]]),
                "incomingEdges": [],
                "outputsMetadata": [
                    {
                        "id": str(at),
                        "attrs": _pairs([("tensor_name", name), ("shape", text)]),
                    }
                    for at, (name, text, _) in enumerate(box.outputs)
                ],
            }
        )
    for edge in graph.edges:
        nodes[edge.target]["incomingEdges"].append(  # type: ignore[attr-defined]
            {
                "sourceNodeId": graph.boxes[edge.source].key,
                "sourceNodeOutputId": str(edge.output),
                "targetNodeInputId": str(edge.input),
            }
        )
    rows = {
        space: {"module": group.module} for space, group in zip(spaces, graph.groups, strict=True)
    }
    del rows[""]
    drawn = {"id": "network", "nodes": nodes, "groupNodeAttributes": rows}
    return json.dumps({"label": title, "graphs": [drawn]}, allow_nan=False)


def _pairs(items: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in items]


def to_table(graph: Graph, depth: int) -> str:
    """Return a line for each module: how many layers and weights it has, and what it gives.

    Args:
        graph: the graph; the arithmetic of sizes is not counted.
        depth: how many levels of modules are listed.
    """
    groups, boxes = graph.members()
    inside: list[list[int]] = [[] for _ in graph.groups]
    for index, box in enumerate(graph.boxes):
        group = box.group
        while not box.folded and box.family != "input" and group != ROOT:
            inside[group].append(index)
            group = graph.groups[group].parent
    rows = [("module", "layers", "weights", "output")]

    def add(title: str, members: list[int], level: int) -> None:
        drawn = [graph.boxes[index] for index in members]
        weights = sum(box.parameters for box in drawn)
        layers = "" if drawn[0].family == "input" else f"{len(drawn):,}"
        made = drawn[-1].outputs[0][1] if drawn[-1].outputs else ""
        rows.append(("  " * level + title, layers, f"{weights:,}" if weights else "", made))

    def add_inside(group: int, level: int) -> None:
        found = [(inside[inner][0], inner) for inner in groups[group]]
        found += [(index, ROOT) for index in boxes[group] if not graph.boxes[index].folded]
        for first, inner in sorted(found):
            if inner == ROOT:
                box = graph.boxes[first]
                add(graph.relative_module(box) or box.operator, [first], level)
                continue
            add(graph.groups[inner].title, inside[inner], level)
            is_part = graph.groups[inner].module == graph.groups[group].module
            if level + 1 < depth and not is_part:
                add_inside(inner, level + 1)

    add_inside(ROOT, 0)
    layers = [box for box in graph.boxes if box.family != "input" and not box.folded]
    weights = sum(box.parameters for box in layers)
    rows.append(("in all", f"{len(layers):,}", f"{weights:,}", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {count:>{widths[1]}}  {size:>{widths[2]}}  {made}".rstrip()
        for name, count, size, made in rows
    )
