"""Makes a program's layers ready for one device, once, and runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from t2t.reference.layer import Layer, Ready, TensorInfo, spec_of
from t2t.reference.schedule import Branch, Loop, Node, reads, schedule, writes
from t2t.reference.steps import BranchStep, LayerStep, LoopStep, Step, Values, Watch, run_steps

_HOST_SIZE = 64
_NEVER_FOLDED = ("ASSERTION",)
# Kinds whose output is memory of its own, so that the only reader may overwrite it.
_FRESH = (
    "CONVOLUTION",
    "DECONVOLUTION",
    "SCALE",
    "MATRIX_MULTIPLY",
    "NORMALIZATION",
    "ELEMENTWISE",
)


class Executor:
    """A program made ready for a device: constants are folded, weights moved and reshaped."""

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        layers: Sequence[Layer],
        version: str,
        device: torch.device,
    ) -> None:
        """Order and prepare the layers; UnsupportedLayerError names one that is unknown."""
        self._device = device
        self._version = version
        self._inputs = [info.name for info in inputs]
        self._outputs = [info.name for info in outputs]
        self._known: dict[str, Tensor] = {}
        self._folded: set[str] = set()
        self._uses = Counter(
            name for layer in layers for name in layer.inputs if name is not None
        ) + Counter(self._outputs)
        self._makers = {name: layer.kind for layer in layers for name in layer.outputs}
        self._steps = self._compile(schedule(layers, self._outputs), set(self._outputs))
        used = {
            name for layer in layers if layer.name not in self._folded for name in layer.inputs
        }.union(self._outputs)
        self._known = {name: value for name, value in self._known.items() if name in used}
        self._own = {_memory(value) for value in self._known.values()}
        self._own |= {_memory(value) for layer in layers for value in layer.weights.values()}

    def run(self, inputs: Mapping[str, Tensor], watch: Watch | None) -> dict[str, Tensor]:
        """Run the layers in order and give the outputs by name."""
        values: Values = {**self._known, **inputs}
        run_steps(self._steps, values, watch)
        taken = self._own | {_memory(value) for value in inputs.values()}
        results: dict[str, Tensor] = {}
        for name in self._outputs:
            result = values[name].to(self._device)
            if not result.is_contiguous() or _memory(result) in taken:
                result = result.clone(memory_format=torch.contiguous_format)
            taken.add(_memory(result))
            results[name] = result
        return results

    def _compile(self, nodes: Iterable[Node], keep: set[str]) -> list[Step]:
        """Make the steps of one region; tensors that it makes are freed after their last use."""
        steps: list[Step] = []
        for node in nodes:
            step = self._step(node)
            if step is not None:
                steps.append(step)
        kept = keep | self._known.keys()
        made = {name for step in steps for name in step.writes}
        later: set[str] = set()
        for step in reversed(steps):
            touched = step.reads | step.writes
            step.frees = tuple((touched & made) - later - kept)
            later |= touched
        return steps

    def _step(self, node: Node) -> Step | None:
        if isinstance(node, Layer):
            return self._layer_step(node)
        ends = reads(node), writes(node)
        if isinstance(node, Loop):
            return self._loop_step(node, *ends)
        return self._branch_step(node, *ends)

    def _loop_step(self, loop: Loop, read: set[str], written: set[str]) -> Step:
        conditions = {
            str(limit.inputs[0])
            for limit in loop.of("TRIP_LIMIT")
            if limit.attributes["kind"] == "WHILE"
        }
        head, rest = _split(loop.body, conditions)
        needed = {name for layer in loop.boundary for name in layer.inputs if name is not None}
        between = needed.union(*(reads(node) for node in rest))
        return LoopStep(
            loop.boundary,
            self._compile(head, between),
            self._compile(rest, needed),
            read,
            written,
        )

    def _branch_step(self, branch: Branch, read: set[str], written: set[str]) -> Step:
        sides = [
            self._compile(nodes, {str(layer.inputs[side]) for layer in branch.results})
            for side, nodes in enumerate((branch.then, branch.otherwise))
        ]
        return BranchStep(branch.condition, branch.results, sides, read, written)

    def _layer_step(self, layer: Layer) -> Step | None:
        spec = spec_of(layer.kind, layer.name, self._version)
        constants = {
            position: self._known[name]
            for position, name in enumerate(layer.inputs)
            if name in self._known
        }
        kernel = spec.prepare(self._ready(layer, constants))
        step = LayerStep(layer, kernel, spec.host, self._device)
        fixed = len(constants) == sum(name is not None for name in layer.inputs)
        random = str(layer.attributes.get("operation", "")).startswith("RANDOM")
        if not fixed or random or layer.kind in _NEVER_FOLDED:
            return step
        values: Values = dict(self._known)
        with torch.no_grad():
            step(values, None)
        self._folded.add(layer.name)
        self._known.update({name: self._placed(values[name]) for name in layer.outputs})
        return None

    def _ready(self, layer: Layer, constants: Mapping[int, Tensor]) -> Ready:
        parts = {part.name: getattr(layer, part.name) for part in fields(layer)}
        parts["weights"] = {name: self._placed(value) for name, value in layer.weights.items()}
        source = layer.inputs[0] if layer.inputs else None
        alone = source is not None and self._uses[source] == 1
        reusable = alone and self._makers.get(str(source)) in _FRESH and source not in self._known
        return Ready(**parts, constants=constants, may_overwrite=reusable)

    def _placed(self, value: Tensor) -> Tensor:
        """Move to the device; sizes and indices stay on the host, where shapes are computed."""
        small = value.numel() <= _HOST_SIZE and not value.dtype.is_floating_point
        return value if small else value.to(self._device)


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _split(nodes: Sequence[Node], wanted: set[str]) -> tuple[list[Node], list[Node]]:
    """Split a loop's body into what its condition needs and the rest, both in order."""
    head: list[Node] = []
    rest: list[Node] = []
    wanted = set(wanted)
    for node in reversed(nodes):
        if writes(node) & wanted:
            wanted |= reads(node)
            head.append(node)
        else:
            rest.append(node)
    return head[::-1], rest[::-1]
