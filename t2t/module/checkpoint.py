"""What a converted module consists of, as entries of a state_dict.

    engine       the plan: uint8, one dimension; absent where the module has none
    metadata     JSON: format, who wrote it, the signature, the plan's size and CRC-32, backend and
                 version, compute capabilities, precision
    program.*    the reference executor's program, where one is kept

Nothing else, so `torch.load(..., weights_only=True)` reads it, and neither a GPU nor TensorRT is
needed to load it.
"""

from __future__ import annotations

import importlib.metadata
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from t2t.errors import CheckpointError, EngineError
from t2t.io import Signature
from t2t.reference import Program
from t2t.runtime import Engine

__all__ = ["FORMAT", "Converted", "is_entry"]

FORMAT = 1
"""Version of the checkpoint; a reader refuses newer ones."""

_PROGRAM = "program."
_CONVERT_AGAIN = "convert the module again, or load a checkpoint of a t2t.TRTModule"


@dataclass(frozen=True, eq=False)
class Converted:
    """A converted module's parts. They never change, so copies share them.

    Attributes:
        signature: names, dtypes, shapes and structure of inputs and outputs.
        engine: the plan, or None.
        program: the network for the reference executor, or None.
        details: plain data about the conversion: "backend", "backend_version",
            "compute_capabilities", "precision".
    """

    signature: Signature
    engine: Engine | None
    program: Program | None
    details: Mapping[str, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> Converted:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Converted.from_state, (self.to_state(),)

    def to_state(self) -> dict[str, torch.Tensor | str]:
        """Give the entries of the checkpoint; no tensor is copied."""
        entries: dict[str, torch.Tensor | str] = {}
        if self.engine is not None:
            entries["engine"] = self.engine.plan
        entries["metadata"] = self._metadata
        if self.program is not None:
            state = self.program.to_state()
            entries.update({_PROGRAM + name: value for name, value in state.items()})
        return entries

    @cached_property
    def _metadata(self) -> str:
        plan = None if self.engine is None else self.engine.plan
        return json.dumps(
            {
                "format": FORMAT,
                "writer": f"t2t {_version()}",
                "signature": self.signature.to_data(),
                "plan": None if plan is None else {"bytes": plan.numel(), "crc32": _crc(plan)},
                "program": self.program is not None,
                "details": dict(self.details),
            }
        )

    @classmethod
    def from_state(cls, entries: Mapping[str, Any]) -> Converted:
        """Read what `to_state` gave.

        Raises:
            CheckpointError: it is damaged, is not one of t2t's, or a newer t2t wrote it.
        """
        data = _read_metadata(entries)
        try:
            signature = Signature.from_data(data["signature"])
            engine = _read_engine(entries.get("engine"), data["plan"])
            program = _read_program(entries) if data["program"] else None
            details = dict(data["details"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's metadata are damaged: {error!r}") from error
        if program is not None:
            _check_program(program, signature)
        return cls(signature, engine, program, details)


def is_entry(name: str) -> bool:
    """Say whether `Converted.to_state` makes entries of this name."""
    return name in ("engine", "metadata") or name.startswith(_PROGRAM)


def _read_metadata(entries: Mapping[str, Any]) -> dict[str, Any]:
    text = entries.get("metadata")
    if not isinstance(text, str):
        what = f"it has the entries {list(entries)[:5]}"
        if {"engine", "input_names"} <= set(entries):
            what = "it looks like one of torch2trt, whose engines current TensorRT cannot load"
        raise CheckpointError(
            f"this is no checkpoint of a converted module: {what}; {_CONVERT_AGAIN}"
        )
    try:
        data = json.loads(text)
        found = data["format"]
        writer = data["writer"]
        newer = found > FORMAT
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"the checkpoint's metadata are damaged: {error!r}") from error
    if newer:
        raise CheckpointError(
            f"the checkpoint has format {found}, written by {writer}; this is t2t {_version()}, "
            f"which reads formats up to {FORMAT}: update t2t"
        )
    checked: dict[str, Any] = data
    return checked


def _read_engine(plan: Any, wanted: Mapping[str, int] | None) -> Engine | None:
    if wanted is None:
        return None
    if not isinstance(plan, torch.Tensor):
        raise CheckpointError('the checkpoint is damaged: it has no tensor under "engine"')
    try:
        engine = Engine(plan)
    except EngineError as error:
        raise CheckpointError(f"the checkpoint is damaged: {error}") from error
    if engine.plan.numel() != wanted["bytes"] or _crc(engine.plan) != wanted["crc32"]:
        raise CheckpointError(
            f"the checkpoint is damaged: its engine has {engine.plan.numel()} bytes (CRC-32 "
            f"{_crc(engine.plan):08x}), but {wanted['bytes']} ({wanted['crc32']:08x}) were saved"
        )
    return engine


def _read_program(entries: Mapping[str, Any]) -> Program:
    # Where torch.load put the weights (map_location) does not matter: runs move them themselves.
    return Program.from_state(
        {
            name.removeprefix(_PROGRAM): value.cpu() if isinstance(value, torch.Tensor) else value
            for name, value in entries.items()
            if name.startswith(_PROGRAM)
        }
    )


def _check_program(program: Program, signature: Signature) -> None:
    for infos, specs in (
        (program.inputs, signature.inputs),
        (program.outputs, signature.outputs),
    ):
        have = {info.name: info.dtype for info in infos}
        want = {spec.name: spec.dtype for spec in specs}
        if have != want:
            raise CheckpointError(f"the program has {have}, but the signature {want}")


def _crc(plan: torch.Tensor) -> int:
    return zlib.crc32(plan.numpy().data)


def _version() -> str:
    try:
        return importlib.metadata.version("t2t")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "(not installed)"
