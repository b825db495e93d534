"""The order in which layers run, with loops and conditionals as nested regions.

TensorRT lists loops flat: only boundary layers name their loop. The body of a loop is what
depends on its recurrences and iterators; everything else is computed once, outside.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from t2t.errors import UnsupportedLayerError
from t2t.reference.layer import Layer

_LOOP_SOURCES = ("RECURRENCE", "ITERATOR")
_LOOP_KINDS = (*_LOOP_SOURCES, "TRIP_LIMIT", "LOOP_OUTPUT")


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop: its boundary layers and the nodes of one iteration, in order."""

    boundary: tuple[Layer, ...]
    body: tuple[Node, ...]

    def of(self, kind: str) -> list[Layer]:
        """Return the boundary layers of one kind."""
        return [layer for layer in self.boundary if layer.kind == kind]


@dataclass(frozen=True, eq=False)
class Branch:
    """A conditional: its output layers and the nodes of either side, of which one runs."""

    condition: str
    results: tuple[Layer, ...]
    then: tuple[Node, ...]
    otherwise: tuple[Node, ...]


Node = Layer | Loop | Branch


def schedule(layers: Sequence[Layer], needed: Iterable[str]) -> tuple[Node, ...]:
    """Order the layers of a network so that every tensor is made before it is used.

    Args:
        layers: the layers in TensorRT's order, which is kept where it can be.
        needed: names of the tensors that are used outside.
    """
    conditions = {
        str(layer.attributes["conditional"]): str(layer.inputs[0])
        for layer in layers
        if layer.kind == "CONDITION"
    }
    return _region(
        [_conditioned(layer, conditions) for layer in layers if layer.kind != "CONDITION"],
        set(needed),
    )


def _conditioned(layer: Layer, conditions: dict[str, str]) -> Layer:
    """Make the condition an input of the layers that choose by it."""
    if layer.kind != "CONDITIONAL_OUTPUT":
        return layer
    return replace(layer, inputs=(*layer.inputs, conditions[layer.attributes["conditional"]]))


def _region(layers: Sequence[Layer], needed: set[str]) -> tuple[Node, ...]:
    """Order the layers of a network, of a loop's body or of one side of a conditional."""
    rank = {layer.name: position for position, layer in enumerate(layers)}
    nodes = _sorted(_with_loops(layers), rank)
    while True:
        name = _last_conditional(nodes)
        if name is None:
            return nodes
        nodes = _with_branch(nodes, name, needed, rank)


def layers_of(node: Node) -> list[Layer]:
    """Return every layer inside a node."""
    if isinstance(node, Layer):
        return [node]
    if isinstance(node, Loop):
        return [*node.boundary, *(layer for part in node.body for layer in layers_of(part))]
    inner = [layer for part in (*node.then, *node.otherwise) for layer in layers_of(part)]
    return [*node.results, *inner]


def reads(node: Node) -> set[str]:
    """Return the tensors that a node uses and does not make itself."""
    layers = layers_of(node)
    made = {name for layer in layers for name in layer.outputs}
    used = {name for layer in layers for name in layer.inputs if name is not None}
    return used - made


def writes(node: Node) -> set[str]:
    """Return the tensors of a node that other nodes may use."""
    if isinstance(node, Layer):
        return set(node.outputs)
    ends = node.of("LOOP_OUTPUT") if isinstance(node, Loop) else node.results
    return {name for layer in ends for name in layer.outputs}


def _with_loops(layers: Sequence[Layer]) -> list[Node]:
    boundaries: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        if layer.kind in _LOOP_KINDS:
            boundaries[layer.attributes["loop"]].append(layer)
    if not boundaries:
        return list(layers)
    users = readers_of(layers)
    bodies = {loop: _body(loop, boundaries, users) for loop in boundaries}
    outer = [
        loop
        for loop, boundary in boundaries.items()
        if not any(boundary[0] in bodies[other] for other in bodies if other != loop)
    ]
    nodes: list[Node] = []
    inside: set[Layer] = set()
    for loop in outer:
        boundary = boundaries[loop]
        body = [layer for layer in layers if layer in bodies[loop]]
        inside.update(boundary, body)
        ends = {name for layer in boundary for name in layer.inputs if name is not None}
        nodes.append(Loop(tuple(boundary), _region(body, ends)))
    return [*nodes, *(layer for layer in layers if layer not in inside)]


def readers_of(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Return the layers that read a tensor, by its name."""
    users: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        for name in layer.inputs:
            if name is not None:
                users[name].append(layer)
    return users


def _body(
    loop: str, boundaries: dict[str, list[Layer]], users: dict[str, list[Layer]]
) -> set[Layer]:
    """Find what changes from one iteration of a loop to the next; inner loops as a whole."""
    own = set(boundaries[loop])
    body: set[Layer] = set()
    pending = [layer for layer in boundaries[loop] if layer.kind in _LOOP_SOURCES]
    while pending:
        layer = pending.pop()
        for name in layer.outputs:
            for user in users[name]:
                if user in own or user in body:
                    continue
                inner = boundaries[user.attributes["loop"]] if user.kind in _LOOP_KINDS else [user]
                pending.extend(inner)
                body.update(inner)
    return body


def _sorted(nodes: Sequence[Node], rank: dict[str, int]) -> tuple[Node, ...]:
    """Sort by dependency; among nodes that are free to run, TensorRT's order decides."""
    maker = {name: index for index, node in enumerate(nodes) for name in writes(node)}
    waits: list[set[int]] = []
    follows: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        waits.append({maker[name] for name in reads(node) if name in maker} - {index})
        for before in waits[index]:
            follows[before].append(index)
    place = [min(rank[layer.name] for layer in layers_of(node)) for node in nodes]
    free = [(place[index], index) for index in range(len(nodes)) if not waits[index]]
    heapq.heapify(free)
    done: list[Node] = []
    while free:
        _, index = heapq.heappop(free)
        done.append(nodes[index])
        for after in follows[index]:
            waits[after].discard(index)
            if not waits[after]:
                heapq.heappush(free, (place[after], after))
    if len(done) < len(nodes):
        stuck = [layers_of(node)[0].name for i, node in enumerate(nodes) if waits[i]]
        raise UnsupportedLayerError(f"the network has a cycle through the layers {stuck[:5]}")
    return tuple(done)


def _last_conditional(nodes: Sequence[Node]) -> str | None:
    for node in reversed(nodes):
        if isinstance(node, Layer) and node.kind == "CONDITIONAL_OUTPUT":
            return str(node.attributes["conditional"])
    return None


def _with_branch(
    nodes: Sequence[Node], name: str, needed: set[str], rank: dict[str, int]
) -> tuple[Node, ...]:
    """Move what only one side of a conditional uses into that side."""
    results = [
        node
        for node in nodes
        if isinstance(node, Layer)
        and node.kind == "CONDITIONAL_OUTPUT"
        and node.attributes["conditional"] == name
    ]
    others = [node for node in nodes if node not in results]
    condition = str(results[0].inputs[2])
    ends = [{str(layer.inputs[side]) for layer in results} for side in (0, 1)]
    always = needed | {condition}
    owned = [_only_for(others, ends[side], always | ends[1 - side]) for side in (0, 1)]
    sides = [
        _region([layer for node in own for layer in layers_of(node)], end)
        for own, end in zip(owned, ends, strict=True)
    ]
    branch = Branch(condition, tuple(results), sides[0], sides[1])
    left = [node for node in others if node not in owned[0] and node not in owned[1]]
    return _sorted([*left, branch], rank)


def _only_for(nodes: Sequence[Node], wanted: set[str], elsewhere: set[str]) -> list[Node]:
    """Find the nodes that nothing but one side of a conditional needs, in order."""
    wanted, elsewhere = set(wanted), set(elsewhere)
    found: list[Node] = []
    for node in reversed(nodes):
        made = writes(node)
        if made & wanted and not made & elsewhere:
            found.append(node)
            wanted |= reads(node)
        else:
            elsewhere |= reads(node)
    return found[::-1]
