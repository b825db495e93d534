"""A model of which parts are engines; what lies between them runs in PyTorch."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import torch

from t2t.errors import CheckpointError, ConversionError, EngineError
from t2t.files import written_whole
from t2t.module.bundle import read_entries
from t2t.module.parts import Part, Parts, read_parts
from t2t.module.trt_module import TRTModule

_STATE = "parts"


def _of_engines(name: str) -> Any:
    """Return a property: a setting of all engines. Where theirs differ, it reads as not set."""

    def read(module: PartialModule) -> Any:
        values = {getattr(engine, name) for engine in module.engines.values()}
        return values.pop() if len(values) == 1 else None

    def write(module: PartialModule, value: Any) -> None:
        # nn.Module's own __init__ comes before there is a model.
        for engine in module.engines.values() if "model" in module._modules else ():
            setattr(engine, name, value)

    return property(read, write)


class PartialModule(TRTModule):
    """A copy of a model in which parts are engines; takes and returns what the original did.

    The copy has the original's class and shares the memory of its parameters. Each engine is a
    `TRTModule` in the place of a submodule. ``module.save(path)`` writes all engines and the
    parameters that are left; ``t2t.load(path, model)`` puts them into a model of the same class,
    whose code no checkpoint holds.

    Args:
        model: the copy of the model, with `TRTModule`s in it.
        parts: what runs where.

    Attributes:
        model: the copy of the model.
        cuda_graph: of all `engines`, as are the following two; they may also be set one by one.
        require_engine: raise EngineError where an engine cannot run.
        weight_streaming_budget: of each engine.
    """

    cuda_graph = _of_engines("cuda_graph")
    require_engine = _of_engines("require_engine")
    weight_streaming_budget = _of_engines("weight_streaming_budget")

    def __init__(self, model: torch.nn.Module, parts: Sequence[Part]) -> None:
        super().__init__()
        self.model = model
        self._parts = Parts(parts)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model: engines where there are some, PyTorch elsewhere.

        Raises:
            ShapeError: a part gets an input of a size that it was not converted for; more example
                inputs (``shape_examples``) make its ranges larger.
        """
        with torch.no_grad():
            return self.model(*args, **kwargs)

    @property
    def parts(self) -> Parts:
        """What runs where, and why."""
        return self._parts

    @property
    def engines(self) -> dict[str, TRTModule]:
        """The converted parts, by their paths in the model."""
        return {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, TRTModule)
        }

    @property
    def precision(self) -> str | None:
        """What the engines compute in: "fp32", or the half precision that any of them has."""
        found = {engine.precision for engine in self.engines.values()}
        return next((name for name in ("bf16", "fp16") if name in found), "fp32")

    def extra_repr(self) -> str:
        """Return the table of parts."""
        return str(self.parts)

    def __repr__(self) -> str:
        lines = "\n".join("  " + line for line in self.extra_repr().splitlines())
        return f"{type(self).__name__}(\n{lines}\n)"

    def _filled(self) -> NoReturn:
        names = ", ".join(self.engines) or "none"
        raise EngineError(
            f"only parts of this model are engines ({names}): module.engines[name] has them, "
            "module.parts says what runs where"
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's first parameter."""
        return next((x.dtype for x in self.model.parameters()), torch.float32)

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter is."""
        return next((x.device for x in self.model.parameters()), torch.device("cpu"))

    def release(self) -> None:
        """Free what all engines have taken; the next call loads again."""
        for engine in self.engines.values():
            engine.release()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint, which ``t2t.load(path, model)`` reads; whole, or not at all."""
        with written_whole(path) as file:
            torch.save(self.state_dict(), file)

    def _apply(self, fn: Any, recurse: bool = True) -> PartialModule:
        torch.nn.Module._apply(self, fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        del keep_vars
        destination[prefix + _STATE] = json.dumps([asdict(part) for part in self.parts])

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],  # noqa: ARG002  the entries of the parts have versions
        strict: bool,  # noqa: ARG002  what else there is belongs to the parts
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],  # noqa: ARG002  errors are raised before anything changes
    ) -> None:
        text = state_dict.get(prefix + _STATE)
        if text is None:
            missing_keys.append(prefix + _STATE)
        else:
            self._parts = Parts(read_parts(text))
        unexpected_keys.extend(
            name
            for name in state_dict
            if name.startswith(prefix)
            and name != prefix + _STATE
            and not name.startswith(prefix + "model.")
        )


def with_parts(
    model: torch.nn.Module,
    parts: Mapping[str, torch.nn.Module],
) -> torch.nn.Module:
    """Return a copy of a model with other modules in the place of some.

    Whatever refers to a replaced module refers to the new one in the copy, also lists and bound
    methods. Parameters share their memory with the original's, but are parameters of their own:
    moving the copy does not move the original.

    Raises:
        ConversionError: the model does not let itself be copied.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
    for name, part in parts.items():
        memo[id(model.get_submodule(name))] = part
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ConversionError(
            f"{type(model).__name__} cannot be copied, so its parts cannot be replaced: {error}"
        ) from error


def load(path: str | os.PathLike[str], model: torch.nn.Module | None = None) -> TRTModule:
    """Read a converted module that ``save`` wrote; needs neither a GPU nor TensorRT.

    Args:
        path: the file, or a folder of `TRTModule.export`.
        model: for a `PartialModule`, a model like the one that was converted: what runs in PyTorch
            is its code. Its parameters are replaced by the checkpoint's in a copy.

    Raises:
        CheckpointError: the file is damaged, is not one of t2t's, or a newer t2t wrote it; or it
            does not fit the model.
        OSError: it cannot be read.
    """
    entries = read_entries(path)
    if _STATE in entries:
        return _load_partial(path, entries, model)
    parts = [name for name in entries if str(name).endswith(".metadata")]
    if "metadata" not in entries and parts:
        raise CheckpointError(
            f"{os.fspath(path)} holds a larger model with a converted part "
            f"{parts[0].removesuffix('.metadata')!r}: make that model, with a TRTModule() there, "
            "and use its load_state_dict"
        )
    if model is not None:
        raise CheckpointError(f"{os.fspath(path)} was converted whole: it needs no model")
    module = TRTModule()
    module.load_state_dict(entries)
    return module


def _load_partial(
    path: str | os.PathLike[str], entries: Mapping[str, Any], model: torch.nn.Module | None
) -> PartialModule:
    if model is None:
        raise CheckpointError(
            f"{os.fspath(path)} holds the engines of a model's parts; the rest is the model's own "
            "code: t2t.load(path, model) with a model of the same class"
        )
    parts = read_parts(entries[_STATE])
    try:
        copied = with_parts(model, {part.name: TRTModule() for part in parts if part.in_engine})
        # Parameters of their own: the given model keeps its values.
        for parameter in copied.parameters():
            parameter.data = parameter.data.clone()
        module = PartialModule(copied, parts)
        module.load_state_dict(entries)
    except (AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{os.fspath(path)} does not fit the model, a {type(model).__name__}: {error}"
        ) from error
    return module
