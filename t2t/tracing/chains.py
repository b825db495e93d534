"""Calls that only move elements, one behind the other, become one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from t2t.converters._chains import CHAIN, Step, step_of
from t2t.network.tensors import MAX_RANK
from t2t.tracing.graph import Call, Value


def join_chains(calls: Sequence[Call], outputs: Sequence[Value], respect_casts: bool) -> list[Call]:
    """Join ``view``, ``transpose`` and their like where nobody else reads what is between them.

    Args:
        calls: the calls that are to become layers, in order.
        outputs: the values that the module returns.
        respect_casts: keep what the model says of precision where it was said.
    """
    readers = Counter(id(value.tensor) for value in outputs)
    for call in calls:
        readers.update(id(value.tensor) for value in call.inputs())
    # The last call of each chain: its first value and its steps.
    chains: dict[int, tuple[Value, list[Step], Call]] = {}
    result: list[Call] = []
    dropped: set[int] = set()
    for call in calls:
        step = None
        if not call.problem and not (call.cast and respect_casts):
            step = step_of(call.converter, call.args, call.output)
        if step is None or not isinstance(source := call.args[0], Value):
            result.append(call)
            continue
        joined = call
        earlier = chains.get(id(source.tensor))
        # What has more dimensions than a network can have is moved anew for each reader.
        if earlier is not None and (
            readers[id(source.tensor)] == 1 or source.tensor.ndim > MAX_RANK
        ):
            readers[id(source.tensor)] -= 1
            if not readers[id(source.tensor)]:
                dropped.add(id(earlier[2]))
            source, steps, _ = earlier
            steps = [*steps, step]
            joined = replace(call, converter=CHAIN, args=(source, steps), kwargs={}, function=None)
        else:
            steps = [step]
        assert isinstance(call.output, torch.Tensor)
        chains[id(call.output)] = (source, steps, joined)
        result.append(joined)
    return [call for call in result if id(call) not in dropped]
