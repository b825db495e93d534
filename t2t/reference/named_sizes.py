"""Names of dynamic sizes, carried along the layers that keep them.

A conversion knows the names of what torch's operators return; an operator of several layers has
tensors in between. Only what TensorRT's definition of a layer implies is taken over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from t2t.reference.layer import Layer, TensorInfo, axes_of_mask
from t2t.reference.text import Sizes

_KINDS = (
    "ACTIVATION",
    "CAST",
    "ELEMENTWISE",
    "IDENTITY",
    "MATRIX_MULTIPLY",
    "NORMALIZATION",
    "PARAMETRIC_RELU",
    "REDUCE",
    "SCALE",
    "SELECT",
    "SOFTMAX",
    "UNARY",
)

_Place = tuple[str, int]


def name_sizes(inputs: Sequence[TensorInfo], layers: Sequence[Layer], known: Sizes) -> Sizes:
    """Return the sizes of all tensors whose rank is known; "?" where a size has no name.

    Args:
        inputs: the network's inputs.
        layers: its layers.
        known: names of the sizes of some tensors; the others' follow from them.
    """
    shapes = {info.name: info.shape for info in inputs}
    for layer in layers:
        made = zip(layer.outputs, layer.shapes, strict=True)
        shapes.update((name, shape) for name, shape in made if shape is not None)
    names: dict[_Place, str] = {
        (tensor, axis): str(size)
        for tensor, shape in shapes.items()
        for axis, size in enumerate(shape)
        if size != -1
    }
    for tensor, sizes in known.items():
        names.update(((tensor, axis), size) for axis, size in enumerate(sizes))
    facts = [fact for layer in layers for fact in _facts(layer, shapes)]
    for fact in (*facts, *reversed(facts), *facts):
        found = {names.get(place, "") for place in fact.inputs}
        if len(found) == 1 and "" not in found:
            names.setdefault(fact.output, found.pop())
        elif len(fact.inputs) == 1 and fact.output in names:
            names.setdefault(fact.inputs[0], names[fact.output])
    return {
        tensor: [names.get((tensor, axis), "?") for axis in range(len(shape))]
        for tensor, shape in shapes.items()
    }


class _Fact(NamedTuple):
    """A dimension of an output has the size of these dimensions of inputs, if they are equal."""

    inputs: tuple[_Place, ...]
    output: _Place


def _facts(layer: Layer, shapes: Mapping[str, Sequence[int]]) -> Iterator[_Fact]:
    """Iterate over what the definition of a layer says of its first output's sizes."""
    inputs = [str(name) for name in layer.inputs]
    tensors = [*inputs, *layer.outputs[:1]]
    if layer.kind not in _KINDS or not shapes.keys() >= set(tensors):
        return
    output, rank = tensors[-1], len(shapes[tensors[-1]])
    if any(len(shapes[name]) != rank for name in inputs):
        return  # a vector in a matrix product, a reduced dimension that is gone
    axes = list(range(rank))
    if layer.kind == "REDUCE":
        axes = [axis for axis in axes if axis not in axes_of_mask(layer.attributes["axes"])]
    elif layer.kind == "MATRIX_MULTIPLY":
        a, b = inputs
        row = rank - (1 if layer.attributes["op0"] == "TRANSPOSE" else 2)
        column = rank - (2 if layer.attributes["op1"] == "TRANSPOSE" else 1)
        yield _Fact(((a, row),), (output, rank - 2))
        yield _Fact(((b, column),), (output, rank - 1))
        axes = axes[:-2]
    for axis in axes:
        # An input of size 1 is broadcast; where two are dynamic, either may turn out to be 1.
        wide = tuple((name, axis) for name in inputs if shapes[name][axis] != 1)
        if wide:
            yield _Fact(wide, (output, axis))
