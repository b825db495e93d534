"""A call of an operator as data: what a plugin keeps, and what a plan holds of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from t2t.dtypes import dtype_name, named_dtype
from t2t.errors import CheckpointError, EngineError
from t2t.operator_data import Data, check_size, find_operator, program, tensors_read
from t2t.registry import find_plugin
from t2t.torch_internals import OpOverload, schema_of

Run = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
"""Computes outputs, the second argument, of inputs, the first one."""


@dataclass(frozen=True)
class Output:
    """One result of a plugin.

    Attributes:
        dtype: its type.
        sizes: its sizes, as `t2t.plugins.sizes.to_dimension` takes them.
    """

    dtype: torch.dtype
    sizes: Sequence[Data]


@dataclass(frozen=True)
class PluginCall:
    """An operator with its arguments; tensors have the numbers of the plugin's inputs.

    Attributes:
        operator: its name with the overload: "aten::sort.stable".
        args: its arguments, as data.
        kwargs: its keyword arguments.
        inputs: the types of the plugin's inputs; those that no argument refers to are there for
            their sizes.
        outputs: the results.
    """

    operator: str
    args: Sequence[Data]
    kwargs: Mapping[str, Data]
    inputs: Sequence[torch.dtype]
    outputs: Sequence[Output]

    def to_text(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            {
                "operator": self.operator,
                "args": [*self.args],
                "kwargs": dict(self.kwargs),
                "inputs": [dtype_name(dtype) for dtype in self.inputs],
                "outputs": [[dtype_name(x.dtype), [*x.sizes]] for x in self.outputs],
            }
        )

    @classmethod
    def from_text(cls, text: str) -> PluginCall:
        """Read what `to_text` returned, checking everything.

        Raises:
            CheckpointError: it is damaged, or names an operator that is not registered in torch or
                must not run.
        """
        try:
            data = json.loads(text)
            outputs = [Output(named_dtype(name), list(sizes)) for name, sizes in data["outputs"]]
            call = cls(
                str(data["operator"]),
                list(data["args"]),
                dict(data["kwargs"]),
                [named_dtype(name) for name in data["inputs"]],
                outputs,
            )
            for output in outputs:
                for size in output.sizes:
                    check_size(size)
            numbers = tensors_read([*call.args, *call.kwargs.values()])
            numbers += tensors_read([list(output.sizes) for output in outputs])
            if not outputs or not all(0 <= number < len(call.inputs) for number in numbers):
                raise ValueError("it has no outputs, or reads an input that it does not have")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"a plugin's call is damaged: {error!r}") from error
        call.runner()
        return call

    def runner(self) -> Run:
        """Return what computes the outputs into given memory.

        That is the function that was registered with `t2t.plugin`, else the operator. Results are
        written where they belong if it takes ``out``, and else copied there.

        Raises:
            CheckpointError: the operator is not registered in torch, or must not run.
        """
        operator = find_operator(self.operator)
        plugin = find_plugin(operator)
        function = None if plugin is None else plugin.implementation
        count, first = len(self.outputs), len(self.inputs)
        slots = [{"tensor": first + index} for index in range(count)]
        taken: dict[str, Data] = {}
        if function is None:
            function, names = _writing(operator)
            taken = dict(zip(names, slots, strict=False)) if len(names) == count else {}
            function = function if taken else None
        elif _takes_out(function):
            taken = {"out": slots[0] if count == 1 else slots}
        compute = program(self.operator, self.args, {**self.kwargs, **taken}, function)

        def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
            values = dict(enumerate([*inputs, *outputs]))
            device = outputs[0].device
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if torch.is_autocast_enabled(device.type):
                    stack.enter_context(torch.autocast(device.type, enabled=False))
                before = _kinds(outputs)
                results = compute(values, device)
                # PyTorch changes the shape of what it is to write to, where it can.
                _check(self.operator, _kinds(outputs if taken else results), before)
                if not taken:
                    for result, output in zip(results, outputs, strict=True):
                        output.copy_(result)

        return run


def _kinds(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    return [(x.dtype, tuple(x.shape)) for x in tensors]


def _check(name: str, found: Sequence[object], wanted: Sequence[object]) -> None:
    if found != wanted:
        raise EngineError(
            f"{name} gives {found}, and by its fake implementation {wanted}: these must agree"
        )


def _takes_out(function: Callable[..., Any]) -> bool:
    return "out" in inspect.signature(function).parameters


def _writing(operator: OpOverload) -> tuple[OpOverload | None, list[str]]:
    """Return the overload that computes the same into given tensors, and their names."""
    wanted = [(x.name, str(x.type)) for x in schema_of(operator).arguments]
    packet = operator.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        written = [x for x in schema_of(candidate).arguments if x.is_out]
        others = [(x.name, str(x.type)) for x in schema_of(candidate).arguments if not x.is_out]
        if written and others == wanted and all(str(x.type) == "Tensor" for x in written):
            return candidate, [x.name for x in written]
    return None, []
