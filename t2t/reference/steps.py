"""The steps of a prepared program: one layer, a loop, a conditional."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from t2t.errors import ShapeError, UnsupportedLayerError, add_note
from t2t.reference.layer import Kernel, Layer

Values = dict[str, Tensor]
Watch = Callable[[Layer, tuple[Tensor, ...]], None]


class Step:
    """Something that runs once its inputs are there.

    Attributes:
        reads: names of the tensors that it uses from outside.
        writes: names of the tensors that it leaves for others.
        frees: names of the tensors that nobody needs after it.
    """

    def __init__(self, reads: set[str], writes: set[str]) -> None:
        self.reads = reads
        self.writes = writes
        self.frees: tuple[str, ...] = ()

    def __call__(self, values: Values, watch: Watch | None) -> None:
        """Read from and write to the tensors by name."""
        raise NotImplementedError


def run_steps(steps: Sequence[Step], values: Values, watch: Watch | None) -> None:
    """Run steps in order, dropping tensors after their last use."""
    for step in steps:
        step(values, watch)
        for name in step.frees:
            del values[name]


class LayerStep(Step):
    """One layer."""

    def __init__(
        self, layer: Layer, kernel: Kernel, host: frozenset[int], device: torch.device
    ) -> None:
        """Take the kernel of a layer; inputs at ``host`` positions are left where they are."""
        super().__init__({name for name in layer.inputs if name is not None}, set(layer.outputs))
        self._layer = layer
        self._kernel = kernel
        self._host = host
        self._mixes = device.type != "cpu"
        self._device = device

    def __call__(self, values: Values, watch: Watch | None) -> None:
        """Run the layer; errors of torch are told the layer's name."""
        given = [None if name is None else values[name] for name in self._layer.inputs]
        if self._mixes:
            given = self._moved(given)
        try:
            made = self._kernel(*given)
        except (RuntimeError, IndexError, ValueError) as error:
            add_note(error, f"in layer {self._layer.name!r} ({self._layer.kind})")
            raise
        results = made if isinstance(made, tuple) else (made,)
        values.update(zip(self._layer.outputs, results, strict=True))
        if watch is not None:
            watch(self._layer, results)

    def _moved(self, given: list[Tensor | None]) -> list[Tensor | None]:
        """Bring host tensors to the device where they meet tensors of the device."""
        data = [t for i, t in enumerate(given) if t is not None and i not in self._host]
        if all(tensor.is_cpu for tensor in data):
            return given
        return [
            tensor if tensor is None or i in self._host else tensor.to(self._device)
            for i, tensor in enumerate(given)
        ]


class BranchStep(Step):
    """A conditional: runs one of its sides."""

    def __init__(
        self,
        condition: str,
        results: Sequence[Layer],
        sides: Sequence[Sequence[Step]],
        reads: set[str],
        writes: set[str],
    ) -> None:
        """Take the steps for true and for false, and the layers that take their results."""
        super().__init__(reads, writes)
        self._condition = condition
        self._results = results
        self._sides = sides

    def __call__(self, values: Values, watch: Watch | None) -> None:
        """Run the side that the condition chooses."""
        side = 0 if bool(values[self._condition].item()) else 1
        run_steps(self._sides[side], values, watch)
        for layer in self._results:
            values[layer.outputs[0]] = values[str(layer.inputs[side])]
            if watch is not None:
                watch(layer, (values[layer.outputs[0]],))


class LoopStep(Step):
    """A loop: its body is run as often as its trip limits say."""

    def __init__(
        self,
        boundary: Sequence[Layer],
        head: Sequence[Step],
        rest: Sequence[Step],
        reads: set[str],
        writes: set[str],
    ) -> None:
        """Take the steps that the WHILE condition needs and those that come after it."""
        super().__init__(reads, writes)
        self._head = head
        self._rest = rest
        self._recurrences = [layer for layer in boundary if layer.kind == "RECURRENCE"]
        self._iterators = [layer for layer in boundary if layer.kind == "ITERATOR"]
        self._results = [layer for layer in boundary if layer.kind == "LOOP_OUTPUT"]
        limits = [layer for layer in boundary if layer.kind == "TRIP_LIMIT"]
        if not limits:
            raise UnsupportedLayerError(f"the loop of {boundary[0].name!r} has no trip limit")
        self._counts, self._whiles = (
            [str(limit.inputs[0]) for limit in limits if limit.attributes["kind"] == kind]
            for kind in ("COUNT", "WHILE")
        )

    def __call__(self, values: Values, watch: Watch | None) -> None:
        """Iterate; a recurrence's output holds its last value when the loop has ended."""
        inside = dict(values)
        counts = [int(inside[name].item()) for name in self._counts]
        trips = min(counts) if counts else None
        collected: dict[str, list[Tensor]] = {layer.outputs[0]: [] for layer in self._results}
        state = [inside[str(layer.inputs[0])] for layer in self._recurrences]
        done = 0
        while True:
            for layer, value in zip(self._recurrences, state, strict=True):
                inside[layer.outputs[0]] = value
            if trips is not None and done >= trips:
                break
            self._iterate(inside, done, trips)
            run_steps(self._head, inside, watch)
            if not all(bool(inside[name].item()) for name in self._whiles):
                break
            run_steps(self._rest, inside, watch)
            for layer in self._results:
                _collect(layer, inside, collected[layer.outputs[0]])
            state = [inside[str(layer.inputs[1])] for layer in self._recurrences]
            done += 1
        for layer in self._results:
            values[layer.outputs[0]] = self._result(layer, inside, collected[layer.outputs[0]])
            if watch is not None:
                watch(layer, (values[layer.outputs[0]],))

    def _iterate(self, inside: Values, trip: int, trips: int | None) -> None:
        for layer in self._iterators:
            data = inside[str(layer.inputs[0])]
            axis = layer.attributes["axis"]
            last = (data.shape[axis] if trips is None else trips) - 1
            index = last - trip if layer.attributes["reverse"] else trip
            # Past the end only the WHILE condition, which ends the loop, may still run.
            inside[layer.outputs[0]] = data.select(axis, min(index, data.shape[axis] - 1))

    def _result(self, layer: Layer, inside: Values, collected: list[Tensor]) -> Tensor:
        kind = layer.attributes["kind"]
        if kind == "LAST_VALUE":
            changing = {name for rec in self._recurrences for name in rec.outputs}
            if layer.inputs[0] in changing:
                return inside[str(layer.inputs[0])]
            if not collected:
                raise ShapeError(f"{layer.name!r} has no last value: its loop never ran")
            return collected[-1]
        if not layer.has_input(1):
            length = len(collected)
        else:
            length = int(inside[str(layer.inputs[1])].item())
        parts = collected if kind == "CONCATENATE" else collected[::-1]
        axis = layer.attributes["axis"]
        if not parts:
            shape = [max(size, 0) for size in layer.shapes[0] or ()]
            shape[axis] = length
            return torch.zeros(shape, dtype=layer.dtype)
        filler = [torch.zeros_like(parts[0])] * (length - len(parts))
        return torch.stack([*parts[:length], *filler], axis)


def _collect(layer: Layer, inside: Values, collected: list[Tensor]) -> None:
    if layer.attributes["kind"] == "LAST_VALUE":
        collected.clear()
    collected.append(inside[str(layer.inputs[0])])
