"""Loops: layers that run once for each step of a sequence."""

from __future__ import annotations

from typing import Any

import torch

from t2t import backend
from t2t.backend import trt
from t2t.errors import ConversionError
from t2t.network.core import NetworkCore, NetworkTensor, TensorLike
from t2t.network.tensors import shape

__all__ = ["Loop", "Loops"]


class Loop:
    """An ILoop under construction; `Loops.add_loop` makes it.

    TensorRT takes into the loop's body what depends on its iterators and recurrences; all other
    layers run once, whether they were added before or between these. What leaves the body goes
    through `last_value` or `concatenate`::

        loop = net.add_loop(x.shape[0])
        row = loop.add_iterator(x)
        total = loop.add_recurrence(zeros)
        after = net.add_elementwise(total, row, "SUM")
        loop.set_next(total, after)
        sums, last = loop.concatenate(after), loop.last_value(total)

    Args:
        net: the network that the loop belongs to.
        raw: the ILoop.
        count: how many times the body runs: int32, 0-D.
    """

    def __init__(self, net: NetworkCore, raw: Any, count: NetworkTensor) -> None:
        self._net = net
        self._raw = raw
        self._count = count
        self._recurrences: dict[str, Any] = {}
        net.add_to(raw, "add_trip_limit", count, trt.TripLimit.COUNT)

    def add_iterator(
        self, tensor: TensorLike, axis: int = 0, reverse: bool = False
    ) -> NetworkTensor:
        """Add an IIteratorLayer: in each step the next slice of a tensor, without that axis.

        Args:
            tensor: the tensor; along the axis as long as the loop.
            axis: which of its dimensions the loop walks along.
            reverse: begin with the last slice.
        """
        layer = self._net.add_to(self._raw, "add_iterator", self._net.tensor(tensor), axis, reverse)
        return self._net.result(layer)

    def add_recurrence(self, initial: TensorLike) -> NetworkTensor:
        """Add an IRecurrenceLayer: ``initial`` in the first step, then what `set_next` says."""
        layer = self._net.add_to(self._raw, "add_recurrence", self._net.tensor(initial))
        result = self._net.result(layer)
        self._recurrences[result.name] = layer
        return result

    def set_next(self, recurrence: NetworkTensor, value: NetworkTensor) -> None:
        """Let a recurrence have the value of this step in the next one.

        Args:
            recurrence: what `add_recurrence` returned.
            value: of the same type and shape.

        Raises:
            ConversionError: TensorRT has no recurrence that changes its type or shape.
        """
        layer = self._recurrences[recurrence.name]
        before, after = ((x.dtype, shape(x)) for x in (recurrence, value))
        sizes = zip(before[1], after[1], strict=False)
        fits = before[0] == after[0] and len(before[1]) == len(after[1])
        if not fits or any(-1 not in (old, new) and old != new for old, new in sizes):
            raise ConversionError(
                f"a loop's {recurrence.name} begins as {before[0]} {before[1]}, but its next value "
                f"is {after[0]} {after[1]}"
            )
        layer.set_input(1, value)

    def last_value(self, recurrence: NetworkTensor) -> NetworkTensor:
        """Add an ILoopOutputLayer: a recurrence after the last step; without any, its initial."""
        kind = trt.LoopOutput.LAST_VALUE
        return self._net.result(self._net.add_to(self._raw, "add_loop_output", recurrence, kind))

    def concatenate(
        self, value: NetworkTensor, axis: int = 0, reverse: bool = False
    ) -> NetworkTensor:
        """Add an ILoopOutputLayer: the values of all steps, stacked along a new axis.

        Args:
            value: a tensor of the body.
            axis: where the new dimension stands in the result.
            reverse: put the value of the first step last.
        """
        kind = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
        layer = self._net.add_to(self._raw, "add_loop_output", value, kind, axis)
        layer.set_input(1, self._count)
        return self._net.result(layer)


class Loops(NetworkCore):
    """Adds loops."""

    def add_loop(self, count: TensorLike) -> Loop:
        """Add an ILoop whose body runs ``count`` times: a number, perhaps symbolic, or 0-D."""
        backend.forget_errors()
        raw = self.raw.add_loop()
        if raw is None:
            raise ConversionError(f"TensorRT refuses add_loop: {backend.error_text()}")
        raw.name = self.unique_name(f"{self._operation.path}/loop")
        return Loop(self, raw, self.tensor(count, torch.int32))
