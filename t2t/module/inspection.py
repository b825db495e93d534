"""An engine's layers, traced back to the modules and lines that they come from."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from t2t.errors import EngineError
from t2t.module.checkpoint import Converted
from t2t.reference import Layer, Program
from t2t.reference.drawing import split_name
from t2t.reference.text import short_line

_FULL = (
    "only names: types, formats and tactics are in engines that are built with "
    "configure=lambda config: setattr(config, 'profiling_verbosity', "
    "t2t.backend.trt.ProfilingVerbosity.DETAILED)"
)
# What TensorRT writes between the names of layers that it has joined into one.
_BETWEEN = re.compile(r"\s*\+\s*|\|\||\.\.\.|[\[\](){},\s]+")


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine, which may be made of several of the network.

    Attributes:
        name: TensorRT's name of it.
        kind: TensorRT's LayerType; "" where the engine has names only.
        sources: the network's layers that are named in it.
        module: path of the innermost module that all of these are in; "" for the whole model.
        lines: the user's lines that these come from.
        seconds: mean time of a run, where it was profiled.
        details: everything that TensorRT's inspector says.
    """

    name: str
    kind: str = ""
    sources: tuple[str, ...] = ()
    module: str = ""
    lines: tuple[str, ...] = ()
    seconds: float | None = None
    details: Mapping[str, Any] | None = None

    @property
    def formats(self) -> str:
        """Types and memory formats of its outputs; "" where the engine does not say them."""
        outputs = (self.details or {}).get("Outputs") or ()
        found = [one.get("Format/Datatype") for one in outputs if isinstance(one, Mapping)]
        return ", ".join(dict.fromkeys(str(one) for one in found if one))

    @property
    def place(self) -> str:
        """Module and lines in a few words."""
        lines = ", ".join(map(short_line, self.lines[:2])) + (" ..." if self.lines[2:] else "")
        return f"{self.module or '(model)'} {lines}".strip() if self.sources else ""


def engine_layers(
    raw: Sequence[Mapping[str, Any]], program: Program | None
) -> tuple[EngineLayer, ...]:
    """Trace the layers of an engine back.

    Args:
        raw: what TensorRT's inspector says of each; "Name" is used, "LayerType" and "Metadata",
            which joined layers have of all that they are made of.
        program: the network that the engine was built of; without it there are no lines but those
            in the metadata.
    """
    known = {layer.name: layer for layer in program.layers} if program is not None else {}
    return tuple(_traced(dict(one), known) for one in raw)


def _traced(raw: dict[str, Any], known: Mapping[str, Layer]) -> EngineLayer:
    name = str(raw.get("Name", ""))
    words = [name, *filter(None, _BETWEEN.split(name))]
    sources = tuple(dict.fromkeys(word for word in words if word in known))
    lines = [known[source].metadata for source in sources if known[source].metadata]
    if not sources and raw.get("Metadata"):
        lines = [str(raw["Metadata"])]
    paths = [split_name(known[source])[0].split(".") for source in sources]
    return EngineLayer(
        name,
        str(raw.get("LayerType", "")),
        sources,
        ".".join(_common(paths)),
        tuple(dict.fromkeys(lines)),
        details=raw,
    )


def _common(paths: Sequence[Sequence[str]]) -> list[str]:
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return shared


@dataclass(frozen=True, repr=False)
class Inspection:
    """What a converted module and its engine are; prints as text.

    Attributes:
        text: inputs, outputs, origin and size of the module.
        signature: names, types, shapes, sizes and profiles, as plain data.
        details: backend, version, precision, compute capabilities.
        plan_bytes: size of the engine's file; 0 without an engine.
        engine: what the loaded engine says of itself: bindings, memory; empty where it cannot be
            loaded.
        layers: the engine's layers; empty where it cannot be loaded.
        reason: why it cannot be loaded here, or "".
        program: the network, where it was kept.
    """

    text: str
    signature: Mapping[str, Any]
    details: Mapping[str, Any]
    plan_bytes: int
    engine: Mapping[str, Any]
    layers: tuple[EngineLayer, ...]
    reason: str = ""
    program: Program | None = None

    def diff(self, other: Inspection) -> str:
        """Return what is different in another build; "" where nothing is.

        That is inputs and outputs, sizes, versions and precision, and the engines' layers, each
        with its kind, formats and lines; where one of the engines cannot be loaded, the networks'.
        Lines with "-" are of this build, those with "+" of the other one.
        """
        is_loaded = not (self.reason or other.reason)
        ours, theirs = (
            str(one) if is_loaded else f"{one.text}\n{one.program or ''}" for one in (self, other)
        )
        found = difflib.unified_diff(ours.splitlines(), theirs.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in found if line[:3] not in ("---", "+++", "@@ "))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("inputs", "outputs", "dimensions", "profiles")
        return {
            **{name: self.signature[name] for name in names},
            **self.details,
            "engine_bytes": self.plan_bytes,
            "engine": dict(self.engine) or None,
            "layers": [asdict(layer) for layer in self.layers],
            "not_loaded": self.reason,
        }

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.to_dict())

    def engine_lines(self) -> list[str]:
        """Return what the loaded engine says of itself, or why it is not loaded."""
        if self.reason:
            return [f"the engine's layers are not known: it cannot be loaded here: {self.reason}"]
        if not self.engine:
            return []
        scratch = self.engine["scratch_bytes"] / 1e6
        lines = [
            f"engine of {len(self.layers)} layers, {scratch:.1f} MB of scratch memory a context"
        ]
        for one in self.engine["bindings"]:
            shape = "x".join(map(str, one["shape"])) or "scalar"
            lines.append(
                f"{one['mode']} {one['name']}: {one['dtype']} {shape} ({one['format']}, on the "
                f"{one['location']})"
            )
        if self.layers and not any(layer.kind for layer in self.layers):
            lines.append(_FULL)
        for layer in self.layers:
            kind = " ".join(filter(None, (layer.kind, layer.formats)))
            lines.append(f"  {layer.name}  {kind}  {layer.place}".rstrip())
        return lines

    def __str__(self) -> str:
        return "\n".join([self.text, *self.engine_lines()])

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class LayerTimes:
    """The times of an engine's layers; prints the slowest.

    Attributes:
        layers: each layer with its mean ``seconds``, in the order in which they run.
        runs: how many runs these are means of.
    """

    layers: tuple[EngineLayer, ...]
    runs: int

    @classmethod
    def of(
        cls, times: Sequence[tuple[str, float]], runs: int, layers: Sequence[EngineLayer]
    ) -> LayerTimes:
        """Add up what a profiler was told in several runs, by layer."""
        totals: dict[str, float] = {}
        for name, seconds in times:
            totals[name] = totals.get(name, 0.0) + seconds
        known = {layer.name: layer for layer in layers}
        return cls(
            tuple(
                replace(known.get(name, EngineLayer(name)), seconds=total / runs)
                for name, total in totals.items()
            ),
            runs,
        )

    @property
    def seconds(self) -> float:
        """Mean time of all layers of a run."""
        return sum(layer.seconds or 0.0 for layer in self.layers)

    def modules(self, depth: int | None = None) -> dict[str, float]:
        """Return the seconds of each module, the slowest first; they add up to all.

        Args:
            depth: count deeper modules as those of this depth: 1 is "layer1" for "layer1.0.conv1".
        """
        found: dict[str, float] = {}
        for layer in self.layers:
            path = ".".join(layer.module.split(".")[:depth])
            found[path] = found.get(path, 0.0) + (layer.seconds or 0.0)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "runs": self.runs,
            "seconds": self.seconds,
            "layers": [asdict(layer) for layer in self.layers],
            "modules": self.modules(),
        }

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        slowest = sorted(self.layers, key=lambda layer: -(layer.seconds or 0.0))[:20]
        rows = [
            f"{(layer.seconds or 0) * 1e6:9.1f} us  {layer.name}  {layer.place}".rstrip()
            for layer in slowest
        ]
        head = f"{self.seconds * 1e3:.3f} ms in {len(self.layers)} layers, means of {self.runs}"
        return "\n".join([f"{head} runs; the slowest:", *rows])

    __repr__ = __str__


def inspected(converted: Converted, text: str, device: torch.device) -> Inspection:
    """Describe a converted module, with its engine where that can be loaded on a device.

    Args:
        converted: the module's parts.
        text: inputs, outputs, origin and size of the module.
        device: the GPU to load it on.
    """
    engine, signature = converted.engine, converted.signature.to_data()
    details = dict(converted.details)
    if engine is None:
        return Inspection(text, signature, details, 0, {}, (), "there is none", converted.program)
    size = engine.plan.numel()
    try:
        execution = engine.load(device)
    except EngineError as error:
        return Inspection(text, signature, details, size, {}, (), str(error), converted.program)
    program, described = converted.program, execution.describe()
    layers = engine_layers(execution.layers(), program)
    return Inspection(text, signature, details, size, described, layers, program=program)


def profiled(
    converted: Converted, tensors: Sequence[torch.Tensor], runs: int, warmup: int
) -> LayerTimes:
    """Measure the time of each layer of a converted module's engine.

    Args:
        converted: the module's parts.
        tensors: its inputs, in order.
        runs: how many runs the means are of.
        warmup: how many runs before do not count.

    Raises:
        EngineError: there is no engine, or it does not run where the tensors are.
    """
    if converted.engine is None:
        raise EngineError("this module has no engine to profile, only a program")
    execution = converted.engine.load(tensors[0].device)
    names = [spec.name for spec in converted.signature.inputs]
    times = execution.profile(dict(zip(names, tensors, strict=True)), runs, warmup)
    layers = engine_layers(execution.layers(), converted.program)
    # An engine that was built without names in it reports them all the same.
    known = {layer.name for layer in layers}
    others = [{"Name": name} for name, _ in times if name not in known]
    return LayerTimes.of(times, runs, (*layers, *engine_layers(others, converted.program)))
