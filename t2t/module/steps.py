"""A module in several parts: engines, and between them operators that PyTorch runs.

Steps are plain data: operators by their names ("aten::sort.stable"), and as arguments numbers,
strings, dtypes, sizes and references to tensors. So a checkpoint holds them without any code, and
only operators that are registered in torch and have no side effects are run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from t2t.errors import CheckpointError, EngineError
from t2t.sizes.arithmetic import NUMBERS
from t2t.torch_internals import OpNamespace, OpOverload, OpOverloadPacket, pytree, schema_of

if TYPE_CHECKING:
    from t2t.module.checkpoint import Converted

__all__ = ["EngineStep", "OperatorStep", "Partition", "find_operator"]

Data = Any
"""An argument as JSON has it; a mapping of one key stands for what JSON does not have."""

RunEngine = Callable[["Converted", Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]

# They read or write files.
_FORBIDDEN = ("aten::from_file",)
# What these take strings for are options; for others they may be names of files or of groups.
_TAKE_STRINGS = ("aten", "prims", "torch_nn", "torchvision")
_NAMED = ("dtype", "layout", "memory_format")
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class OperatorStep:
    """One operator that PyTorch runs.

    Attributes:
        operator: its name with the overload: "aten::sort.stable".
        args: its arguments, as data.
        kwargs: its keyword arguments.
        results: the numbers of the tensors that it gives, in order; None for unused ones.
    """

    operator: str
    args: Sequence[Data]
    kwargs: Mapping[str, Data]
    results: Sequence[int | None]


@dataclass(frozen=True)
class EngineStep:
    """One run of an engine.

    Attributes:
        engine: which one.
        inputs: the numbers of its inputs, in order.
        results: the numbers of its outputs, in order.
    """

    engine: int
    inputs: Sequence[int]
    results: Sequence[int | None]


Step = OperatorStep | EngineStep


@dataclass(frozen=True, eq=False)
class Partition:
    """Engines and operators in the order in which they run. It never changes, so copies share it.

    Tensors have numbers: the inputs come first, then constants and results.

    Attributes:
        inputs: how many inputs there are.
        steps: what runs.
        outputs: the numbers of the outputs.
        engines: the converted parts.
        constants: tensors that steps read, by number.

    Raises:
        CheckpointError: a step is none that may run, or reads what there is not yet.
    """

    inputs: int
    steps: Sequence[Step]
    outputs: Sequence[int]
    engines: Sequence[Converted]
    constants: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {*range(self.inputs), *self.constants}
        if len(known) != self.inputs + len(self.constants):
            raise CheckpointError("a constant has the number of an input")
        for step in self.steps:
            missing = [number for number in _reads(step) if number not in known]
            if missing:
                raise CheckpointError(f"{step} reads tensor {missing[0]}, which there is not yet")
            if isinstance(step, EngineStep):
                _check_engine_step(step, self.engines)
            results = [number for number in step.results if number is not None]
            if len(set(results)) != len(results) or known & set(results):
                raise CheckpointError(f"{step} gives a tensor that there is already")
            known.update(results)
        if not known.issuperset(self.outputs):
            raise CheckpointError("an output is the result of no step")
        _ = self._programs

    @cached_property
    def _programs(self) -> list[tuple[Any, tuple[int, ...]]]:
        """What runs each operator step, and the tensors that nobody reads behind each step."""
        last: dict[int, int] = {}
        for place, step in enumerate(self.steps):
            for number in (*_reads(step), *(n for n in step.results if n is not None)):
                last[number] = place
        ends: list[list[int]] = [[] for _ in self.steps]
        for number, place in last.items():
            if number not in self.outputs and number not in self.constants:
                ends[place].append(number)
        return [
            (_program(step) if isinstance(step, OperatorStep) else None, tuple(end))
            for step, end in zip(self.steps, ends, strict=True)
        ]

    @cached_property
    def _placed(self) -> dict[torch.device, dict[int, torch.Tensor]]:
        return {}

    def _constants_on(self, device: torch.device) -> dict[int, torch.Tensor]:
        if device not in self._placed:
            self._placed[device] = {n: x.to(device) for n, x in self.constants.items()}
        return self._placed[device]

    def run(
        self, inputs: Sequence[torch.Tensor], device: torch.device, run_engine: RunEngine
    ) -> list[torch.Tensor]:
        """Run all steps.

        Args:
            inputs: the input tensors, on one device.
            device: where they are.
            run_engine: runs an engine, for tensors by name.

        Returns:
            The outputs. They share no memory with constants.
        """
        constants = self._constants_on(device)
        values = {**dict(enumerate(inputs)), **constants}
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for step, (program, ends) in zip(self.steps, self._programs, strict=True):
                if isinstance(step, EngineStep):
                    results = _run_engine(self.engines[step.engine], step, values, run_engine)
                else:
                    results = program(values, device)
                if len(results) != len(step.results):
                    raise EngineError(f"{step} gave {len(results)} tensors")
                for number, result in zip(step.results, results, strict=True):
                    if number is not None:
                        values[number] = result
                for number in ends:
                    values.pop(number, None)
        kept = {x.untyped_storage().data_ptr() for x in constants.values()}
        outputs = [values[number] for number in self.outputs]
        return [x.clone() if x.untyped_storage().data_ptr() in kept else x for x in outputs]

    def to_state(self) -> dict[str, torch.Tensor | str]:
        """Return a JSON text and the constants, each as one dimension; engines not."""
        steps = [
            {"engine": step.engine, "inputs": [*step.inputs], "results": [*step.results]}
            if isinstance(step, EngineStep)
            else {
                "operator": step.operator,
                "args": [*step.args],
                "kwargs": dict(step.kwargs),
                "results": [*step.results],
            }
            for step in self.steps
        ]
        data = {
            "inputs": self.inputs,
            "steps": steps,
            "outputs": [*self.outputs],
            "engines": len(self.engines),
            "constants": {number: [*x.shape] for number, x in self.constants.items()},
        }
        tensors = {f"constant.{n}": x.reshape(-1) for n, x in self.constants.items()}
        return {"steps": json.dumps(data), **tensors}

    @classmethod
    def from_state(
        cls, entries: Mapping[str, Any], read_engine: Callable[[int], Converted]
    ) -> Partition:
        """Read what `to_state` returned, checking everything.

        Args:
            entries: the entries.
            read_engine: reads an engine by its place.

        Raises:
            CheckpointError: it is damaged, or holds a step that must not run.
        """
        try:
            data = json.loads(entries["steps"])
            constants = {
                int(number): entries[f"constant.{number}"].reshape(shape)
                for number, shape in data["constants"].items()
            }
            engines = [read_engine(index) for index in range(int(data["engines"]))]
            steps = [_read_step(step) for step in data["steps"]]
            outputs = [int(number) for number in data["outputs"]]
            return cls(int(data["inputs"]), steps, outputs, engines, constants)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint's steps are damaged: {error!r}") from error


def find_operator(name: str) -> OpOverload:
    """Return the operator of a name, such as "aten::sort.stable" or "aten::relu".

    Raises:
        CheckpointError: there is none, or it does more than to compute tensors from its arguments.
    """
    found = re.fullmatch(r"(\w+)::(\w+)(?:\.(\w+))?", name)
    space = found and getattr(torch.ops, found[1], None)
    packet = getattr(space, found[2], None) if found and isinstance(space, OpNamespace) else None
    overload = (found and found[3]) or "default"
    if not isinstance(packet, OpOverloadPacket) or overload not in packet.overloads():  # type: ignore[no-untyped-call]
        raise CheckpointError(
            f"torch has no operator {name!r}: import the package that registers it, as torchvision"
        )
    operator: OpOverload = getattr(packet, overload)
    problem = _problem(operator)
    if problem:
        raise CheckpointError(f"{name} must not be a step of a converted module: {problem}")
    return operator


def _problem(operator: OpOverload) -> str:
    schema = schema_of(operator)
    if schema.name in _FORBIDDEN or schema.is_mutable:
        return "it has side effects"
    kinds = [str(returned.type) for returned in schema.returns]
    if not kinds or any(kind not in ("Tensor", "List[Tensor]") for kind in kinds):
        return "it gives something else than tensors"
    strings = any("str" in str(argument.type) for argument in schema.arguments)
    if strings and operator.namespace not in _TAKE_STRINGS:
        return "it takes a string, which may be the name of a file"
    return ""


def _check_engine_step(step: EngineStep, engines: Sequence[Converted]) -> None:
    if not 0 <= step.engine < len(engines):
        raise CheckpointError(f"{step}: there is no such engine")
    signature = engines[step.engine].signature
    counts = len(signature.inputs), len(signature.outputs)
    if counts != (len(step.inputs), len(step.results)):
        raise CheckpointError(f"{step}: the engine has {counts[0]} inputs and {counts[1]} outputs")


def _run_engine(
    engine: Converted, step: EngineStep, values: Mapping[int, torch.Tensor], run_engine: RunEngine
) -> list[torch.Tensor]:
    pairs = zip(engine.signature.inputs, step.inputs, strict=True)
    results = run_engine(engine, {spec.name: values[number] for spec, number in pairs})
    return [results[spec.name] for spec in engine.signature.outputs]


def _read_step(data: Any) -> Step:
    results = [None if number is None else int(number) for number in data["results"]]
    if "engine" in data:
        return EngineStep(int(data["engine"]), [int(n) for n in data["inputs"]], results)
    return OperatorStep(str(data["operator"]), list(data["args"]), dict(data["kwargs"]), results)


# -- arguments -----------------------------------------------------------------------------------


def _reads(step: Step) -> list[int]:
    """Return the numbers of the tensors that a step reads."""
    if isinstance(step, EngineStep):
        return [*step.inputs]
    found: list[int] = []
    pending: list[Any] = [*step.args, *step.kwargs.values()]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            found += [item["tensor"]] if "tensor" in item else []
            pending += [item["size"]] if "size" in item else []
        elif isinstance(item, list):
            pending += item
    return found


@dataclass(frozen=True)
class _Slot:
    """An argument that is known at run time: tensor ``number``, or a device if that is None."""

    number: int | None


@dataclass(frozen=True)
class _Size:
    """A size that is computed of others: a number, a tensor's size, or [function, *arguments]."""

    data: Data


def _program(step: OperatorStep) -> Callable[..., list[torch.Tensor]]:
    """Return what runs an operator step: a function of all tensors and the device."""
    operator = find_operator(step.operator)
    args = [_argument(item) for item in step.args]
    kwargs = {str(name): _argument(item) for name, item in step.kwargs.items()}

    def run(values: Mapping[int, torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        given = [_filled(item, values, device) for item in args]
        named = {name: _filled(item, values, device) for name, item in kwargs.items()}
        result = operator(*given, **named)
        if isinstance(result, torch.Tensor):
            return [result]
        return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]

    return run


def _filled(item: Any, values: Mapping[int, torch.Tensor], device: torch.device) -> Any:
    """Return an argument at run time."""
    if isinstance(item, _Slot):
        return device if item.number is None else values[item.number]
    if isinstance(item, list):
        return [_filled(part, values, device) for part in item]
    return _size(item.data, values) if isinstance(item, _Size) else item


def _size(data: Data, values: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(data, Mapping):
        size = values[data["tensor"]].shape[data["dim"]]
        return (size - data["offset"]) // data["factor"]
    if isinstance(data, list):
        return NUMBERS[data[0]](*(_size(item, values) for item in data[1:]))
    return data


def _argument(data: Data) -> Any:
    """Read an argument.

    Raises:
        CheckpointError: this is none.
    """
    if type(data) in _PLAIN:
        return data
    if isinstance(data, list):
        return [_argument(item) for item in data]
    kind: str = ""
    value: Any = None
    if isinstance(data, Mapping) and len(data) == 1:
        [(kind, value)] = data.items()
    if kind == "tensor":
        return _Slot(int(value))
    if kind == "device":
        return _Slot(None)
    if kind == "size":
        _check_size(value)
        return _Size(value)
    if kind == "float":
        return float(value)
    if kind == "complex":
        return complex(*map(float, value))
    constant = getattr(torch, value, None) if kind in _NAMED and isinstance(value, str) else None
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        raise CheckpointError(f"a step has the argument {data!r}")
    return constant


def _check_size(data: Data) -> None:
    """Raise CheckpointError unless this says how to compute a size."""
    if isinstance(data, Mapping):
        numbers = [data.get(name) for name in ("tensor", "dim", "factor", "offset")]
        fits = all(isinstance(x, int) for x in numbers) and data["factor"] > 0
    elif isinstance(data, list):
        fits = len(data) > 1 and data[0] in NUMBERS
        for item in data[1:]:
            _check_size(item)
    else:
        fits = isinstance(data, int | float)
    if not fits:
        raise CheckpointError(f"a step has the size {data!r}")
