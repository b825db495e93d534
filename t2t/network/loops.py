"""Loops and conditionals: layers that run once for each step, or for one value of a condition."""

from __future__ import annotations

from typing import Any

import torch

from t2t import backend
from t2t.backend import trt
from t2t.errors import ConversionError
from t2t.network.core import NetworkCore
from t2t.network.tensors import NetworkTensor, TensorLike, shape


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
        count: how many times the body runs: int32, 0-D; None where `add_condition` says it.
    """

    def __init__(self, net: NetworkCore, raw: Any, count: NetworkTensor | None) -> None:
        self._net = net
        self._raw = raw
        self._count = count
        self._recurrences: dict[str, Any] = {}
        if count is not None:
            net.add_to(raw, "add_trip_limit", count, trt.TripLimit.COUNT)

    def add_condition(self, condition: TensorLike) -> None:
        """Let the body run while a 0-D bool of the body is true, which is asked before each step.

        The number of steps is known to nobody before, so that nothing can be concatenated.
        """
        tensor = self._net.tensor(condition)
        self._net.add_to(self._raw, "add_trip_limit", tensor, trt.TripLimit.WHILE)

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


class Conditional:
    """An IIfConditional under construction; `Loops.add_conditional` makes it.

    Of the layers between `add_input` and `add_output`, those of one branch run::

        conditional = net.add_conditional(x_is_large)
        inside = conditional.add_input(x)
        conditional.add_output(net.add_unary(inside, "EXP"), net.add_unary(inside, "NEG"))

    Args:
        net: the network that the conditional belongs to.
        raw: the IIfConditional.
    """

    def __init__(self, net: NetworkCore, raw: Any) -> None:
        self._net = net
        self._raw = raw

    def add_input(self, tensor: NetworkTensor) -> NetworkTensor:
        """Add an IIfConditionalInputLayer: a tensor from outside as the branches read it."""
        return self._net.result(self._net.add_to(self._raw, "add_input", tensor))

    def add_output(self, then: NetworkTensor, otherwise: NetworkTensor) -> NetworkTensor:
        """Add an IIfConditionalOutputLayer: the first where the condition is true, or the second.

        Both have the same type and shape.
        """
        return self._net.result(self._net.add_to(self._raw, "add_output", then, otherwise))


class Loops(NetworkCore):
    """Adds loops and conditionals."""

    def add_loop(self, count: TensorLike | None = None) -> Loop:
        """Add an ILoop.

        Args:
            count: how often its body runs: a number, perhaps symbolic, or 0-D; None where
                `Loop.add_condition` says it.
        """
        raw = self._add_construct("loop")
        return Loop(self, raw, None if count is None else self.tensor(count, torch.int32))

    def add_conditional(self, condition: TensorLike) -> Conditional:
        """Add an IIfConditional on a 0-D bool."""
        raw = self._add_construct("if_conditional")
        self.add_to(raw, "set_condition", self.tensor(condition))
        return Conditional(self, raw)

    def _add_construct(self, kind: str) -> Any:
        """Add what is no layer, but has layers of its own."""
        backend.forget_errors()
        raw = getattr(self.raw, f"add_{kind}")()
        if raw is None:
            raise ConversionError(f"TensorRT refuses add_{kind}: {backend.error_text()}")
        raw.name = self.unique_name(f"{self._operation.path}/{kind}")
        return raw
