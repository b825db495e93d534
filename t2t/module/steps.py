"""A module in several parts: engines, and between them operators that PyTorch runs.

Steps are plain data: operators by their names ("aten::sort.stable"), and as arguments numbers,
strings, dtypes, sizes and references to tensors. So a checkpoint holds them without any code, and
only operators that are registered in torch and have no side effects are run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from t2t.errors import CheckpointError, EngineError
from t2t.operator_data import Data, Run, check_size, program, size_of, tensors_read

if TYPE_CHECKING:
    from t2t.module.checkpoint import Converted

RunEngine = Callable[["Converted", Sequence[torch.Tensor]], Sequence[torch.Tensor]]


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


@dataclass(frozen=True)
class CheckStep:
    """What must hold of a size, or of a number that is read from a tensor.

    Attributes:
        value: the size or the condition, as data.
        low: its least value.
        high: its greatest value.
        message: what is raised where it is another one.
    """

    value: Data
    low: int
    high: int
    message: str
    results: Sequence[int | None] = ()


Step = OperatorStep | EngineStep | CheckStep


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
            missing = [number for number in reads_of(step) if number not in known]
            if missing:
                raise CheckpointError(f"{step} reads tensor {missing[0]}, which there is not yet")
            if isinstance(step, EngineStep):
                _check_engine_step(step, self.engines)
            if isinstance(step, CheckStep):
                check_size(step.value)
            results = [number for number in step.results if number is not None]
            if len(set(results)) != len(results) or known & set(results):
                raise CheckpointError(f"{step} gives a tensor that there is already")
            known.update(results)
        if not known.issuperset(self.outputs):
            raise CheckpointError("an output is the result of no step")
        _ = self._programs

    @cached_property
    def _programs(self) -> list[tuple[Step, Run | None, list[int]]]:
        """Each step, what runs it if it is an operator, and the tensors that nobody reads later."""
        last: dict[int, int] = {}
        for place, step in enumerate(self.steps):
            for number in (*reads_of(step), *(n for n in step.results if n is not None)):
                last[number] = place
        ends: list[list[int]] = [[] for _ in self.steps]
        for number, place in last.items():
            if number not in self.outputs and number not in self.constants:
                ends[place].append(number)
        return [(step, _run_of(step), end) for step, end in zip(self.steps, ends, strict=True)]

    @cached_property
    def sources(self) -> dict[int, frozenset[int]]:
        """The inputs that each tensor depends on, by numbers."""
        found = {number: frozenset((number,)) for number in range(self.inputs)}
        found.update({number: frozenset() for number in self.constants})
        for step in self.steps:
            behind = frozenset().union(*(found[number] for number in reads_of(step)))
            found.update({number: behind for number in step.results if number is not None})
        return found

    @cached_property
    def _placed(self) -> dict[torch.device, tuple[dict[int, torch.Tensor], set[int]]]:
        return {}

    def _constants_on(self, device: torch.device) -> tuple[dict[int, torch.Tensor], set[int]]:
        """Return the constants on a device, and the addresses of their memory there."""
        placed = self._placed.get(device)
        if placed is None:
            constants = {n: x.to(device) for n, x in self.constants.items()}
            placed = constants, {x.untyped_storage().data_ptr() for x in constants.values()}
            self._placed[device] = placed
        return placed

    def release(self) -> None:
        """Free the constants' copies on GPUs; the next run makes them."""
        self._placed.clear()

    def run(
        self, inputs: Sequence[torch.Tensor], device: torch.device, run_engine: RunEngine
    ) -> list[torch.Tensor]:
        """Run all steps.

        Args:
            inputs: the input tensors, on one device.
            device: where they are.
            run_engine: runs an engine, for tensors in the order of its signature.

        Returns:
            The outputs. They share no memory with constants.

        Raises:
            RuntimeError: a size is not what the model requires.
        """
        constants, kept = self._constants_on(device)
        values = {**dict(enumerate(inputs)), **constants}
        # Most callers have these as they must be, and setting them takes as long as a step.
        grad = torch.no_grad() if torch.is_grad_enabled() else nullcontext()
        is_cast = torch.is_autocast_enabled(device.type)
        cast = torch.autocast(device.type, enabled=False) if is_cast else nullcontext()
        with grad, cast:
            for step, run, ends in self._programs:
                results: Sequence[torch.Tensor]
                if run is not None:
                    results = run(values, device)
                    if len(results) != len(step.results):
                        raise EngineError(f"{step} gave {len(results)} tensors")
                elif isinstance(step, EngineStep):
                    given = [values[number] for number in step.inputs]
                    results = run_engine(self.engines[step.engine], given)
                elif isinstance(step, CheckStep):
                    results = ()
                    if not step.low <= size_of(step.value, values) <= step.high:
                        raise RuntimeError(step.message)
                for number, result in zip(step.results, results, strict=True):
                    if number is not None:
                        values[number] = result
                for number in ends:
                    del values[number]
        outputs = [values[number] for number in self.outputs]
        if not kept:
            return outputs
        return [x.clone() if x.untyped_storage().data_ptr() in kept else x for x in outputs]

    def to_state(self) -> dict[str, torch.Tensor | str]:
        """Return a JSON text and the constants, each as one dimension; engines not."""
        data = {
            "inputs": self.inputs,
            "steps": [asdict(step) for step in self.steps],
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


def _check_engine_step(step: EngineStep, engines: Sequence[Converted]) -> None:
    if not 0 <= step.engine < len(engines):
        raise CheckpointError(f"{step}: there is no such engine")
    signature = engines[step.engine].signature
    counts = len(signature.inputs), len(signature.outputs)
    if counts != (len(step.inputs), len(step.results)):
        raise CheckpointError(f"{step}: the engine has {counts[0]} inputs and {counts[1]} outputs")


def _run_of(step: Step) -> Run | None:
    if isinstance(step, OperatorStep):
        return program(step.operator, step.args, step.kwargs)
    return None


def _read_step(data: Any) -> Step:
    results = [None if number is None else int(number) for number in data["results"]]
    if "message" in data:
        low, high = int(data["low"]), int(data["high"])
        return CheckStep(data["value"], low, high, str(data["message"]))
    if "engine" in data:
        return EngineStep(int(data["engine"]), [int(n) for n in data["inputs"]], results)
    return OperatorStep(str(data["operator"]), list(data["args"]), dict(data["kwargs"]), results)


# -- arguments -----------------------------------------------------------------------------------


def reads_of(step: Step) -> list[int]:
    """Return the numbers of the tensors that a step reads."""
    if isinstance(step, EngineStep):
        return [*step.inputs]
    if isinstance(step, CheckStep):
        return tensors_read({"size": step.value})
    return tensors_read([*step.args, *step.kwargs.values()])
