"""What a converted module consists of, as entries of a state_dict.

    engine       the plan: uint8, one dimension; absent where the module has none
    plans.<n>    more plans of the same network, for other GPUs
    program.*    the reference executor's program, where one is kept: a JSON text, and those of its
                 weights that do not stand in the plan byte for byte
    steps, constant.*, engines.<n>.*
                 of a module in several parts: a JSON text of what runs in which order, the tensors
                 that PyTorch's operators read, and each engine's entries, which are these again
    refit, refit.*   how the weights come from those of the original, where they may be replaced
    metadata     JSON: format, who wrote it, the signature, backend and version, compute
                 capabilities, precision, and type, size and checksum of every other entry
    checksum     CRC-32 of the metadata

Nothing else, so `torch.load(..., weights_only=True)` reads it, and neither a GPU nor TensorRT is
needed to load it. Everything is checked before anything of it is used.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xxhash

from t2t.dtypes import dtype_name
from t2t.errors import CheckpointError, ConversionError, EngineError
from t2t.io import Signature
from t2t.module.attributes import attribute_data, read_attributes
from t2t.module.parts import Part
from t2t.module.steps import Partition
from t2t.module.weight_map import WeightMap
from t2t.operator_data import find_operator
from t2t.precision import Tuning
from t2t.quantization.scales import Quantization
from t2t.reference import Program
from t2t.runtime import Engine
from t2t.runtime.refitting import changed_weights
from t2t.version import __version__

FORMAT = 5
"""Version of the checkpoint; a reader refuses newer ones."""

_PROGRAM = "program."
_INITIAL = "initial."
_REFIT = "refit"
_CONVERT_AGAIN = "convert the module again, or load a checkpoint of a t2t.TRTModule"
_PIECE = 1 << 20  # bytes

Entry = torch.Tensor | str


@dataclass(frozen=True, eq=False)
class Converted:
    """A converted module's parts. They never change, so copies share them.

    Attributes:
        signature: names, dtypes, shapes and structure of inputs and outputs.
        engine: the plan, or None.
        program: the network for the reference executor, or None.
        details: plain data about the conversion: "backend", "backend_version",
            "compute_capabilities", "precision", "parameter_dtype", "original", "quantization",
            "tuning", "low_precision_io", "parts" of a module in several parts, "plugins", the
            operators that an engine runs in PyTorch, "refittable": "" where it is by names, else
            why not, and "plans": of each further plan its "compute_capabilities" and "dla_core".
        attributes: settings of the original module; a checkpoint keeps those that are plain data.
        partition: the engines and steps of a module in several parts, which has no engine and no
            program of its own; else None.
        state: what the module keeps between calls, by path, as it is before the first one.
        weights: how the weights come from the original's, where that is known.
    """

    signature: Signature
    engine: Engine | None
    program: Program | None
    details: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    partition: Partition | None = None
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: WeightMap | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Converted:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Converted.from_state, (self.to_state(),)

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        entries = self.to_state()
        tensors = {name: x for name, x in entries.items() if isinstance(x, torch.Tensor)}
        texts = {name: x for name, x in entries.items() if isinstance(x, str)}
        index = json.dumps({"texts": texts, "tensors": [*tensors]}).encode()
        return [torch.frombuffer(bytearray(index), dtype=torch.uint8), *tensors.values()]

    def to_tensors(self) -> list[torch.Tensor]:
        """Return the entries of the checkpoint as tensors, always the same ones.

        The first holds the texts, and the names of the others.
        """
        return list(self._tensors)

    @classmethod
    def from_tensors(cls, tensors: Sequence[torch.Tensor]) -> Converted:
        """Read what `to_tensors` returned, checking everything.

        Raises:
            CheckpointError: as `from_state`.
        """
        try:
            index = json.loads(tensors[0].numpy().tobytes())
            entries = dict(zip(index["tensors"], tensors[1:], strict=True))
            entries.update(index["texts"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the engine of the program is damaged: {error!r}") from error
        return cls.from_state(entries)

    def run_program(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program; inputs and outputs are in the signature's order."""
        assert self.program is not None
        inputs, outputs = self.signature.names
        results = self.program.run(dict(zip(inputs, tensors, strict=True)))
        return [results[name] for name in outputs]

    def networks(self) -> Sequence[Converted]:
        """Return all that may have an engine and a program: itself, or the parts of a partition."""
        return (self,) if self.partition is None else self.partition.engines

    def with_plan(self, other: Converted) -> Converted:
        """Return this with the plans of another one beside its own; see `TRTModule.add_plan`."""
        if self.engine is None or other.engine is None:
            raise EngineError("both modules must be one engine each, neither partial nor empty")
        if self.program is None or other.program is None:
            raise EngineError(
                "without their programs it is not known whether both are the same network: "
                "convert them with keep_program=True"
            )
        if json.dumps(self.signature.to_data()) != json.dumps(other.signature.to_data()):
            raise ConversionError(f"{self.signature} and {other.signature} are not the same")
        try:
            changed = list(changed_weights(self.program, other.program))
        except ConversionError as error:
            raise ConversionError(f"the networks are not the same: {error}") from error
        if changed:
            layer, name = changed[0]
            raise ConversionError(f"the weights {name!r} of {layer.name!r} are not the same")
        added = [other.engine, *other.engine.others]
        engines = [self.engine, *self.engine.others]
        for engine in added:
            if any(torch.equal(engine.plan, own.plan) for own in engines):
                raise EngineError(f"the plan of {engine.origin} is there already")
        first, *others = (*engines, *added)
        engine = Engine(first.plan, first.dla_core, first.compute_capabilities, others)
        plans = [
            {"compute_capabilities": [*x.compute_capabilities], "dla_core": x.dla_core}
            for x in others
        ]
        return replace(self, engine=engine, details={**self.details, "plans": plans})

    def to_state(self) -> dict[str, Entry]:
        """Return the entries of the checkpoint; no tensor is copied."""
        return dict(self._entries)

    @cached_property
    def signature_text(self) -> str:
        """The signature as JSON."""
        return json.dumps(self.signature.to_data())

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        if self.engine is not None:
            entries["engine"] = self.engine.plan
            entries.update({_plan(i): x.plan for i, x in enumerate(self.engine.others, 1)})
        if self.program is not None:
            state = self.program.to_state(entries.get("engine"))  # type: ignore[arg-type]
            entries.update({_PROGRAM + name: value for name, value in state.items()})
        if self.partition is not None:
            entries.update(self.partition.to_state())
            for index, part in enumerate(self.partition.engines):
                state = part.to_state()
                entries.update({_engine(index) + name: value for name, value in state.items()})
        entries.update({_INITIAL + path: x.reshape(-1) for path, x in self.state.items()})
        if self.weights is not None:
            entries.update({_REFIT + name: x for name, x in self.weights.to_state().items()})
        metadata = json.dumps(
            {
                "format": FORMAT,
                "writer": f"t2t {__version__}",
                "signature": self.signature.to_data(),
                "entries": {name: _summary(value) for name, value in entries.items()},
                "program": self.program is not None,
                "details": dict(self.details),
                "attributes": attribute_data(self.attributes),
            }
        )
        return {**entries, "metadata": metadata, "checksum": _text_checksum(metadata)}

    @classmethod
    def from_state(cls, entries: Mapping[str, Any]) -> Converted:
        """Read what `to_state` returned, checking everything.

        Raises:
            CheckpointError: it is damaged, is not one of t2t's, or a newer t2t wrote it; or an
                operator that it runs is not registered in torch, or must not run.
        """
        data = _read_metadata(entries)
        try:
            _check_entries(data, entries)
            signature = Signature.from_data(data["signature"])
            details = _read_details(data["details"])
            has_engine = "engine" in data["entries"]
            engine = _read_engine(entries, details) if has_engine else None
            program = _read_program(entries, engine) if data["program"] else None
            attributes = read_attributes(data.get("attributes", {}))
            partition = _read_partition(entries) if "steps" in data["entries"] else None
            state = _read_state(entries, signature)
            weights = _read_weights(entries, program) if _REFIT in data["entries"] else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint's metadata are damaged: {error!r}") from error
        if program is not None:
            _check_program(program, signature)
        if partition is not None:
            _check_partition(partition, signature)
        return cls(signature, engine, program, details, attributes, partition, state, weights)


def is_entry(name: str) -> bool:
    """Return whether `Converted.to_state` makes entries of this name."""
    return name in ("engine", "steps", "metadata", "checksum", _REFIT) or name.startswith(
        (_PROGRAM, _INITIAL, f"{_REFIT}.", "constant.", "engines.", "plans.")
    )


def _read_state(entries: Mapping[str, Any], signature: Signature) -> dict[str, torch.Tensor]:
    state = {}
    for path, (spec, _) in zip(signature.state, signature.kept(), strict=True):
        flat = entries[_INITIAL + path]
        if flat.dtype != spec.dtype or flat.numel() != math.prod(spec.shape):
            raise CheckpointError(f"the checkpoint is damaged: its state {path!r} is not {spec}")
        state[path] = flat.reshape(spec.shape)
    return state


def _plan(index: int) -> str:
    return f"plans.{index}"


def _engine(index: int) -> str:
    return f"engines.{index}."


def _read_metadata(entries: Mapping[str, Any]) -> dict[str, Any]:
    text = entries.get("metadata")
    if not isinstance(text, str):
        what = f"it has the entries {list(entries)[:5]}"
        if {"engine", "input_names"} <= set(entries):
            what = "it looks like one of torch2trt, which t2t.compat.load reads"
        raise CheckpointError(
            f"this is no checkpoint of a converted module: {what}; {_CONVERT_AGAIN}"
        )
    try:
        data = json.loads(text)
        found = data["format"]
        writer = data["writer"]
        newer = found > FORMAT
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint's metadata are damaged: {error!r}") from error
    if newer:
        raise CheckpointError(
            f"the checkpoint has format {found}, written by {writer}; this is t2t {__version__}, "
            f"which reads formats up to {FORMAT}: update t2t"
        )
    if found > 1 and entries.get("checksum") != _text_checksum(text):
        raise CheckpointError("the checkpoint's metadata are damaged: their checksum differs")
    checked: dict[str, Any] = data
    return checked


def _check_entries(data: dict[str, Any], entries: Mapping[str, Any]) -> None:
    """Compare type, size and checksum of every entry with what was saved."""
    if data["format"] == 1:
        # Only the plan was summed up then, in one piece.
        plan = data["plan"]
        data["entries"] = {"engine": ["uint8", plan["bytes"], plan["crc32"]]} if plan else {}
    for name, wanted in data["entries"].items():
        found = _summary(entries.get(name), data["format"])
        if found != wanted:
            raise CheckpointError(
                f"the checkpoint is damaged: its entry {name!r} is {_summary_text(found)}, "
                f"but {_summary_text(wanted)} was saved"
            )


def _summary(value: Any, version: int = FORMAT) -> list[Any]:
    """Return type, size (elements or characters) and checksum of an entry."""
    if isinstance(value, str):
        return ["str", len(value), zlib.crc32(value.encode("utf-8", "surrogatepass"))]
    flat = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() == 1
    if not flat or value.is_meta:
        return ["missing" if value is None else type(value).__name__, 0, 0]
    data = value.detach().cpu().contiguous().view(torch.uint8).numpy()
    return [dtype_name(value.dtype), value.numel(), _checksum(data, version)]


def _summary_text(summary: list[Any]) -> str:
    kind, size, checksum = summary
    return kind if not size else f"{kind} of {size} (checksum {checksum:08x})"


def _checksum(data: Any, version: int) -> int:
    """Return CRC-32 for up to a MiB; XXH3 of more, which takes a tenth of reading the file."""
    if version == 1 or len(data) <= _PIECE:
        return zlib.crc32(data.data)
    if version < 5:  # CRC-32 of the pieces' CRC-32
        pieces = [zlib.crc32(data[i : i + _PIECE].data) for i in range(0, len(data), _PIECE)]
        return zlib.crc32(np.array(pieces, "<u4").data)
    return xxhash.xxh3_64_intdigest(data.data)


def _text_checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def _read_engine(entries: Mapping[str, Any], details: Mapping[str, Any]) -> Engine:
    def read(name: str, facts: Mapping[str, Any], others: Sequence[Engine] = ()) -> Engine:
        core = facts.get("dla_core")
        if not isinstance(core, int | None):
            raise ValueError(f"dla_core={core!r}")
        capabilities = list(map(str, facts.get("compute_capabilities") or ()))
        return Engine(entries[name], core, capabilities, others)

    try:
        more = enumerate(details.get("plans") or (), 1)
        return read("engine", details, [read(_plan(i), facts) for i, facts in more])
    except EngineError as error:
        raise CheckpointError(f"the checkpoint is damaged: {error}") from error


def _read_program(entries: Mapping[str, Any], engine: Engine | None) -> Program:
    own = {
        name.removeprefix(_PROGRAM): value
        for name, value in entries.items()
        if name.startswith(_PROGRAM)
    }
    return Program.from_state(own, None if engine is None else engine.plan)


def _read_partition(entries: Mapping[str, Any]) -> Partition:
    def read_engine(index: int) -> Converted:
        prefix = _engine(index)
        own = {n.removeprefix(prefix): x for n, x in entries.items() if n.startswith(prefix)}
        return Converted.from_state(own)

    return Partition.from_state(entries, read_engine)


def _read_weights(entries: Mapping[str, Any], program: Program | None) -> WeightMap:
    if program is None:
        raise CheckpointError("the checkpoint is damaged: it has a refit map and no program")
    prefixed = (name for name in entries if name == _REFIT or name.startswith(f"{_REFIT}."))
    own = {name.removeprefix(_REFIT): entries[name] for name in prefixed}
    return WeightMap.from_state(own, program)


def _check_partition(partition: Partition, signature: Signature) -> None:
    have = (partition.inputs, len(partition.outputs))
    want = (len(signature.inputs), len(signature.outputs))
    if have != want:
        raise CheckpointError(f"the steps have {have} inputs and outputs, the signature {want}")


def _read_details(data: Any) -> dict[str, Any]:
    details = dict(data)
    if not isinstance(getattr(torch, details.get("parameter_dtype", "float32")), torch.dtype):
        raise ValueError(f"parameter_dtype={details['parameter_dtype']!r}")
    Quantization.from_data(details.get("quantization") or ())
    if details.get("low_precision_io") not in (None, "float16", "bfloat16"):
        raise ValueError(f"low_precision_io={details['low_precision_io']!r}")
    if details.get("tuning") is not None:
        Tuning.from_data(details["tuning"])
    [Part(**part) for part in details.get("parts") or ()]
    for name in details.get("plugins") or ():
        find_operator(name)
    return details


def _check_program(program: Program, signature: Signature) -> None:
    for infos, specs in (
        (program.inputs, signature.inputs),
        (program.outputs, signature.outputs),
    ):
        have = {info.name: (info.dtype, info.shape) for info in infos}
        want = {spec.name: (spec.dtype, spec.shape) for spec in specs}
        if have != want:
            raise CheckpointError(f"the program has {have}, but the signature {want}")
