"""How an engine's weights come from the entries of the original module's ``state_dict``.

In a checkpoint:

refit              JSON: the entries' names, types and shapes, which weights of which layers
                   come from them, and what must stay as it is
refit.steps, refit.constant.*   what computes the weights, as the steps of module.steps
refit.value.*      entries that a weight needs beside others, such as those of a batch norm
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from t2t.dtypes import dtype_name, named_dtype
from t2t.errors import CheckpointError, ConversionError, EngineError
from t2t.module.steps import OperatorStep, Partition
from t2t.operator_data import tensors_read
from t2t.quantization.scales import Quantization
from t2t.reference import Program
from t2t.runtime import Engine
from t2t.runtime.refitting import changed_weights, refitted_plan

if TYPE_CHECKING:
    from t2t.module.checkpoint import Converted
    from t2t.tracing.weights import WeightRecorder

_ADVICE = "t2t.refit(model_trt, module, inputs) takes the weights of the module itself"


@dataclass(frozen=True)
class _Entry:
    """One tensor of the ``state_dict``, by all its names there, that weights are computed of."""

    names: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_finite: bool


@dataclass(frozen=True, eq=False)
class WeightMap:
    """What makes an engine's weights, for `TRTModule.refit`.

    Attributes:
        entries: the tensors that weights are computed of, in the order of the steps' inputs.
        steps: what computes them: a partition without engines, whose outputs are the weights.
        places: of each output, the layer and the name of its weight there.
        fixed: entries that must stay as they are: why, and the checksum of their values.
        unused: the names of all others.
        values: entries that a weight needs beside others, by their place in `entries`.
    """

    entries: Sequence[_Entry]
    steps: Partition
    places: Sequence[tuple[str, str]]
    fixed: Mapping[str, tuple[str, int]]
    unused: Sequence[str]
    values: Mapping[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, recorder: WeightRecorder, program: Program) -> WeightMap:
        """Return the map of a network whose weights a recorder has seen."""
        state = recorder.state
        fixed = {name: (reason, _checksum(state[name])) for name, reason in recorder.fixed.items()}
        entries = [
            _Entry(tuple(names), x.dtype, tuple(x.shape), bool(x.isfinite().all()))
            for names in recorder.inputs
            for x in [state[names[0]]]
        ]
        calls = [
            OperatorStep(call.operator, call.args, call.kwargs, call.results)
            for call in recorder.calls
        ]
        found = {
            (layer.name, name): number
            for layer in program.layers
            for name, weight in layer.weights.items()
            if (number := recorder.number_of(weight)) is not None
        }
        needed, steps = _needed(calls, found.values())
        constants = {n: x.cpu() for n, x in recorder.constants.items() if n in needed}
        # Constants alone make no weight that changes.
        kept = {place: number for place, number in found.items() if number not in constants}
        partition = Partition(len(entries), steps, [*kept.values()], (), constants)
        used = {n for entry in needed if entry < len(entries) for n in entries[entry].names}
        unused = [name for name in state if name not in used and name not in fixed]
        values = {
            index: state[entries[index].names[0]].detach().cpu().clone()
            for number in kept.values()
            if len(group := partition.sources[number]) > 1
            for index in group
        }
        return cls(entries, partition, [*kept], fixed, unused, values)

    def updated(
        self, program: Program, state_dict: Mapping[str, Any], strict: bool
    ) -> tuple[Program, WeightMap]:
        """Return a program with the weights that entries make, and the map with their values.

        Args:
            program: the network with its weights so far.
            state_dict: new entries.
            strict: all must be there.

        Raises:
            ConversionError: an entry is missing, unknown, of another shape, or must stay as it is.
        """
        self._check(state_dict, strict)
        given = self._given(state_dict)
        outputs = [
            place
            for place, number in enumerate(self.steps.outputs)
            if given.keys() & self.steps.sources[number]
        ]
        known = {**self.values, **given}
        needed, steps = _needed(self.steps.steps, [self.steps.outputs[i] for i in outputs])
        # Those that are not known make nothing of what is computed.
        inputs = [known.get(i, torch.empty(0)) for i in range(len(self.entries))]
        partition = Partition(
            len(inputs),
            steps,
            [self.steps.outputs[i] for i in outputs],
            (),
            {n: x for n, x in self.steps.constants.items() if n in needed},
        )
        weights = partition.run(inputs, torch.device("cpu"), _no_engine)
        new = {self.places[place]: x for place, x in zip(outputs, weights, strict=True)}
        values = {i: known[i] for i in self.values}
        return _with_weights(program, new), replace(self, values=values)

    def check_against(self, program: Program, other: Program, state: Mapping[str, Any]) -> None:
        """Check on other numbers that the steps make what a conversion makes.

        Args:
            program: the network of the map.
            other: the network that a conversion makes of the same module with another state.
            state: that state.

        Raises:
            ConversionError: the network or a weight differs, so not all that makes it is known.
        """
        made, _ = self.updated(program, state, strict=False)
        weights = {layer.name: layer.weights for layer in made.layers}
        for layer, name in changed_weights(made, other):
            if not _close(weights[layer.name][name].reshape(-1), layer.weights[name].reshape(-1)):
                raise ConversionError(
                    f"not all that computes {name!r} of {layer.kind} {layer.name!r} was seen"
                )

    def _check(self, state_dict: Mapping[str, Any], strict: bool) -> None:
        names = [name for entry in self.entries for name in entry.names]
        known = {*names, *self.fixed, *self.unused}
        unknown = [name for name in state_dict if name not in known]
        missing = [name for name in known if name not in state_dict] if strict else []
        if unknown or missing:
            raise ConversionError(
                f"the state_dict is not one of the module that was converted: {_some(unknown)} "
                f"unknown, {_some(missing)} missing (strict=False takes a part of the entries)"
            )
        for name, x in state_dict.items():
            if not isinstance(x, torch.Tensor):
                raise ConversionError(f"{name!r} is a {type(x).__name__} and no tensor")
            if name in self.fixed and _checksum(x) != self.fixed[name][1]:
                raise ConversionError(
                    f"{name!r} has changed, and must not in a refit by names: "
                    f"{self.fixed[name][0]}; {_ADVICE}"
                )

    def _given(self, state_dict: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        given: dict[int, torch.Tensor] = {}
        for index, entry in enumerate(self.entries):
            for name in entry.names:
                if name not in state_dict or name in self.fixed:
                    continue
                x = state_dict[name].detach()
                if tuple(x.shape) != entry.shape or not x.is_floating_point():
                    raise ConversionError(
                        f"{name!r} is {x.dtype} {tuple(x.shape)}, and was {entry.dtype} "
                        f"{entry.shape}"
                    )
                if entry.is_finite and not x.isfinite().all():
                    raise ConversionError(f"{name!r} has NaN or infinite elements, and had none")
                x = x.to("cpu", entry.dtype)
                if index in given and not torch.equal(given[index], x):
                    raise ConversionError(
                        f"{name!r} and {entry.names[0]!r} are one tensor in the module, and have "
                        "different values here"
                    )
                given[index] = x
        return given

    def to_state(self) -> dict[str, torch.Tensor | str]:
        """Return the entries of a checkpoint, without the prefix "refit"."""
        data = {
            "entries": [
                [
                    entry.names,
                    dtype_name(entry.dtype),
                    entry.shape,
                    entry.is_finite,
                ]
                for entry in self.entries
            ],
            "places": [*self.places],
            "fixed": self.fixed,
            "unused": [*self.unused],
            "values": [*self.values],
        }
        steps = {f".{name}": x for name, x in self.steps.to_state().items()}
        values = {f".value.{i}": x.reshape(-1) for i, x in self.values.items()}
        return {"": json.dumps(data), **steps, **values}

    @classmethod
    def from_state(cls, entries: Mapping[str, Any], program: Program) -> WeightMap:
        """Read what `to_state` returned.

        Raises:
            CheckpointError: it is damaged, or not of this program.
        """
        try:
            data = json.loads(entries[""])
            own = [
                _Entry(tuple(map(str, names)), named_dtype(dtype), tuple(map(int, shape)), finite)
                for names, dtype, shape, finite in data["entries"]
            ]
            steps = Partition.from_state(
                {name[1:]: x for name, x in entries.items() if name}, _no_engine
            )
            values = {int(i): entries[f".value.{i}"].reshape(own[i].shape) for i in data["values"]}
            fixed = {str(n): (str(reason), int(crc)) for n, (reason, crc) in data["fixed"].items()}
            places = [(str(layer), str(name)) for layer, name in data["places"]]
            if (steps.inputs, len(steps.outputs)) != (len(own), len(places)):
                raise CheckpointError("the checkpoint's refit map is of other steps")
            weights = {(layer.name, name) for layer in program.layers for name in layer.weights}
            if not weights.issuperset(places):
                raise CheckpointError("the checkpoint's refit map is of another program")
            return cls(own, steps, places, fixed, list(map(str, data["unused"])), values)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"the checkpoint's refit map is damaged: {error!r}") from error


def refitted(
    converted: Converted, state_dict: Mapping[str, Any], strict: bool, keep_scales: bool
) -> Converted:
    """Return a converted module's parts with new weights and state; see `TRTModule.refit`."""
    engine, program, weights = converted.engine, converted.program, converted.weights
    if engine is None or program is None or weights is None:
        why = converted.details.get("refittable")
        raise EngineError(
            f"its weights are not known by the original's names: {why}"
            + (f". {_ADVICE}" if converted.details.get("original") else "")
            if why
            else "only one engine with its program can be refitted: convert(..., "
            "refittable=True), neither partial nor with keep_program=False"
        )
    if not isinstance(state_dict, Mapping):
        raise ConversionError(
            f"a state_dict is a mapping of names to tensors, not a {type(state_dict).__name__}; "
            f"{_ADVICE}"
        )
    if engine.others:
        raise EngineError("it has several plans, and one GPU refits one: refit each, then add_plan")
    after, weights = weights.updated(program, state_dict, strict)
    if not keep_scales and next(changed_weights(program, after), None) is not None:
        _check_scales(converted)
    state = dict(converted.state)
    for path in state.keys() & state_dict.keys():
        x = state_dict[path].detach().cpu()
        if x.shape != state[path].shape:
            raise ConversionError(f"{path!r} is {x.shape}, and was {state[path].shape}")
        state[path] = x.to(state[path].dtype, copy=True)
    plan = refitted_plan(engine.plan, program, after)
    engine = Engine(plan, engine.dla_core, engine.compute_capabilities)
    return replace(converted, engine=engine, program=after, state=state, weights=weights)


def _check_scales(converted: Converted) -> None:
    """Refuse other weights where activations have scales that were measured with the old ones."""
    known = Quantization.from_data(converted.details.get("quantization") or ())
    if any(one is not None and one.scale is not None for x in known.calls for one in x.roundings):
        raise ConversionError(
            "the scales of the module's activations were measured with its old weights, and larger "
            "ones would be cut off: keep_scales=True keeps them, for weights that change little "
            "(compare with t2t.verify); t2t.refit(model_trt, module, inputs, ..., calibration=...) "
            "or another conversion measures them again"
        )


def with_other_weights(module: torch.nn.Module, fixed: Collection[str]) -> torch.nn.Module:
    """Return a copy of a module with other numbers in all floats but the fixed ones.

    No number has another sign, as variances must not, and none is zero.
    """
    other = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    state = dict(other.state_dict())
    for name, x in state.items():
        if isinstance(x, torch.Tensor) and x.is_floating_point() and name not in fixed:
            size = torch.rand(x.shape, generator=generator).to(x.device) * (x.float().abs() + 0.1)
            state[name] = torch.where(x < 0, x - size / 2, x + size / 2).to(x.dtype)
    other.load_state_dict(state)
    return other


def _needed(steps: Sequence[Any], outputs: Iterable[int]) -> tuple[set[int], list[OperatorStep]]:
    """Return the numbers of the tensors behind some others, and the steps that make them."""
    needed, kept = set(outputs), []
    for step in reversed(steps):
        if needed.intersection(step.results):
            kept.append(step)
            needed.update(tensors_read([*step.args, *step.kwargs.values()]))
    return needed, kept[::-1]


def _with_weights(program: Program, new: Mapping[tuple[str, str], torch.Tensor]) -> Program:
    kinds = {kind for layer in program.layers for kind in layer.types}
    layers = []
    for layer in program.layers:
        weights = dict(layer.weights)
        for name, old in layer.weights.items():
            if (x := new.get((layer.name, name))) is None:
                continue
            if (x.dtype, x.numel()) != (old.dtype, old.numel()):
                raise CheckpointError(f"the refit map makes {x.dtype} of {layer.name!r}")
            _check_size(f"{name!r} of {layer.kind} {layer.name!r}", old, x, kinds)
            weights[name] = x.contiguous().reshape(old.shape)
        layers.append(replace(layer, weights=weights))
    return Program(program.inputs, program.outputs, layers, program.version, sizes=program.sizes)


def _check_size(what: str, old: torch.Tensor, new: torch.Tensor, kinds: set[str]) -> None:
    """Refuse numbers of a size for which a conversion would have chosen other types."""
    limits = [torch.finfo(torch.float32).max]
    limits += [2048.0, torch.finfo(torch.float16).max] if "HALF" in kinds else []
    limits += [256.0] if "BF16" in kinds else []
    before, after = (float(x.float().abs().max()) for x in (old, new))
    if any(before <= limit < after for limit in limits):
        raise ConversionError(
            f"{what} would be as large as {after:g}, and was {before:g}: a conversion computes "
            f"with such numbers in other types; {_ADVICE}, or convert the module again"
        )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare what the CPU has computed with what a GPU may have computed."""
    if not b.is_floating_point():
        return False
    tolerance = max(1e-5, 4 * torch.finfo(b.dtype).eps)
    a, b = a.double(), b.cpu().double()
    return bool(torch.linalg.norm(a - b) <= tolerance * torch.linalg.norm(b))


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, sorted(names)[:5]))
    return f"{listed} and {len(names) - 5} more" if len(names) > 5 else listed or "nothing"


def _checksum(x: torch.Tensor) -> int:
    data = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(data.numpy().data)


def _no_engine(*_: Any) -> Any:
    raise EngineError("a refit map has no engines")
