"""torch2trt's TRTModule, which reads its checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import t2t.module
from t2t.errors import CheckpointError
from t2t.io import Signature, Structure
from t2t.module import LayerTimes, PartialModule, read_entries

_log = logging.getLogger("t2t.compat")


class TRTModule(t2t.module.TRTModule):
    """A converted module that takes torch2trt's arguments and reads its checkpoints, too.

        model_trt = TRTModule()
        model_trt.load_state_dict(torch.load("model_trt.pth"))

    torch2trt's checkpoints hold a plain engine, which only the TensorRT and the kind of GPU that it
    was built with load. So reading one needs them; one of t2t's does not.

    Args:
        engine: a plan, its file, or one of TensorRT's ICudaEngine; None makes an empty module.
        input_names: names of the engine's inputs, in the order of the arguments.
        output_names: names of its outputs, in the order of what is returned.

    Attributes:
        layer_times: of the last call after `enable_profiling`.

    Raises:
        EngineError: the engine cannot run here; the text says why.
        CheckpointError: it has not these inputs and outputs.
    """

    def __init__(
        self,
        engine: Any = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.layer_times: LayerTimes | None = None
        if engine is not None:
            plan = engine.serialize() if hasattr(engine, "serialize") else engine
            self._read(plan, input_names, output_names)

    @classmethod
    def of(cls, converted: t2t.module.TRTModule) -> t2t.module.TRTModule:
        """Return a converted module as one of this class; a `PartialModule` stays what it is."""
        if isinstance(converted, PartialModule):
            return converted
        result = cls()
        result._fill(converted._filled(), converted.device)
        return result

    def enable_profiling(self) -> None:
        """Measure the time of each layer in all calls from now on.

        After a call, `layer_times` has them; they are logged under "t2t.compat". A call takes more
        than twice as long, and raises EngineError where the engine does not run.
        """

        def measure(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], __: Any) -> None:
            self.layer_times = self.profile(args, kwargs, runs=1, warmup=0)
            _log.info("%s", self.layer_times)

        if not self._forward_hooks:
            self.register_forward_hook(measure, with_kwargs=True)

    def _read(
        self,
        plan: Any,
        input_names: Sequence[str] | None,
        output_names: Sequence[str] | None,
        structures: tuple[Any, Any] = (None, None),
    ) -> None:
        """Load a plan, with its tensors in the order of names, and structures of torch2trt's."""
        plain = t2t.module.TRTModule.from_engine(plan)
        converted = plain._filled()
        signature = converted.signature
        inputs = _in_order(signature.inputs, input_names, "inputs")
        outputs = _in_order(signature.outputs, output_names, "outputs")
        flat = Signature.flat(inputs, outputs)
        taken, returned = structures
        if taken is not None:
            positional = _structure(taken, len(inputs), constants=False)
            if positional["kind"] not in ("tuple", "list"):
                raise CheckpointError(f"the checkpoint's input_flattener is no tuple: {taken}")
            args = [{**positional, "kind": "tuple"}, flat.input_structure["items"][1]]
            flat = replace(flat, input_structure={"kind": "tuple", "items": args}, parameters=())
        if returned is not None:
            made = _structure(returned, len(outputs), constants=True)
            flat = replace(flat, output_structure=made)
        signature = replace(flat, dimensions=(), profiles=_profiles_in_order(signature, inputs))
        self._fill(replace(converted, signature=signature), plain.device)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *others: Any
    ) -> None:
        entries = {
            name: state_dict[prefix + name] for name in _ENTRIES if prefix + name in state_dict
        }
        if not _is_of_torch2trt(entries):
            super()._load_from_state_dict(state_dict, prefix, *others)
            return
        schemas = tuple(_schema(entries.get(f"{side}_flattener")) for side in ("input", "output"))
        self._read(entries["engine"], entries["input_names"], entries["output_names"], schemas)


def load(
    path: str | os.PathLike[str], model: torch.nn.Module | None = None
) -> t2t.module.TRTModule:
    """Read a checkpoint of torch2trt's or of t2t's.

    Args:
        path: the file, or a folder of `TRTModule.export`.
        model: as in `t2t.load`.

    Raises:
        CheckpointError: it is neither, or damaged.
        EngineError: it is torch2trt's, and its engine cannot run here.
    """
    entries = read_entries(path)
    if not _is_of_torch2trt(entries):
        return TRTModule.of(t2t.module.load(path, model))
    result = TRTModule()
    result.load_state_dict(entries)
    return result


_ENTRIES = ("engine", "input_names", "output_names", "input_flattener", "output_flattener")


def _is_of_torch2trt(entries: Mapping[str, Any]) -> bool:
    return all(name in entries for name in _ENTRIES[:3])


def _in_order(specs: Sequence[Any], names: Sequence[str] | None, what: str) -> tuple[Any, ...]:
    if names is None:
        return tuple(specs)
    known = {spec.name: spec for spec in specs}
    if sorted(names) != sorted(known):
        raise CheckpointError(f"the engine's {what} are {sorted(known)}, not {sorted(names)}")
    return tuple(known[name] for name in names)


def _profiles_in_order(signature: Signature, inputs: Sequence[Any]) -> tuple[Any, ...]:
    places = [signature.inputs.index(spec) for spec in inputs]
    return tuple(tuple(profile[place] for place in places) for profile in signature.profiles)


def _schema(flattener: Any) -> Any:
    """Return a Flattener's schema, which newer checkpoints hold as {"schema", "size"}."""
    if isinstance(flattener, Mapping):
        return flattener.get("schema")
    return getattr(flattener, "schema", None)


def _structure(schema: Any, count: int, *, constants: bool) -> Structure:
    """Return our structure of a schema: the tensors' indices in tuples, lists and dicts."""
    if type(schema) is int and 0 <= schema < count:
        return {"kind": "tensor", "index": schema}
    if schema is None and constants:
        return {"kind": "value", "value": None}
    if isinstance(schema, Mapping):
        keys = sorted(schema)
        items = [_structure(schema[key], count, constants=constants) for key in keys]
        return {"kind": "dict", "keys": keys, "items": items}
    if isinstance(schema, list | tuple):
        items = [_structure(item, count, constants=constants) for item in schema]
        return {"kind": "list" if isinstance(schema, list) else "tuple", "items": items}
    raise CheckpointError(
        f"the checkpoint's inputs or outputs hold {schema!r}, which stands for no tensor of the "
        "engine: what that was, torch2trt has not kept"
    )
