"""New weights for an engine that is built already, by TensorRT's IRefitter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from t2t import backend
from t2t.backend import trt
from t2t.dtypes import to_trt
from t2t.errors import ConversionError, EngineError
from t2t.reference import Program
from t2t.reference.layer import Layer
from t2t.runtime.plans import PlanData, deserialize, origin_of

_AGAIN = "convert the module again"
# By the executor's names of weights; TensorRT has no role for a scale layer's power.
_ROLES = {
    "kernel": "KERNEL",
    "bias": "BIAS",
    "shift": "SHIFT",
    "scale": "SCALE",
    "weights": "CONSTANT",
}

Key = tuple[str, str]
"""A layer's name and TensorRT's name of the weights' role."""


def refitted_plan(plan: torch.Tensor, before: Program, after: Program) -> PlanData:
    """Return a plan with the weights of another program, which is the same but for these.

    The plan that is given stays as it is, as do engines that are loaded from it. The current GPU
    must run it.

    Args:
        plan: a refittable engine.
        before: the network that it was built from.
        after: the network whose weights it gets.

    Raises:
        ConversionError: the networks differ in more than weights.
        EngineError: the plan cannot run there, is not refittable, or TensorRT does not take a
            weight that has changed.
    """
    if before.version != after.version:
        raise ConversionError(
            f"the network was made by {before.version}, and here is {after.version}: {_AGAIN}"
        )
    changed = list(changed_weights(before, after))
    if not changed:
        return plan
    origin = origin_of(plan)
    device = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    with backend.use(origin.backend if origin else None):
        engine = deserialize(plan, device)
        if not engine.refittable:
            raise EngineError(
                "the engine is not refittable: convert(..., refittable=True) makes one that is"
            )
        _refit(engine, changed, after)
        return _serialized(engine)


def changed_weights(before: Program, after: Program) -> Iterator[tuple[Layer, str]]:
    """Yield the weights that differ: the layer of the second program, and the weight's name.

    Raises:
        ConversionError: the networks differ in more than weights.
    """
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        raise ConversionError(f"the network has other inputs or outputs: {_AGAIN}")
    for old, new in zip(before.layers, after.layers, strict=False):
        if _structure(old) != _structure(new):
            raise ConversionError(
                f"more than weights has changed: the layer {old.kind} {old.name!r} is now "
                f"{new.kind} {new.name!r}, or has other attributes. Give the options that it was "
                f"converted with, or {_AGAIN}"
            )
        for name, weight in new.weights.items():
            if not torch.equal(_bits(old.weights[name]), _bits(weight)):
                yield new, name
    if len(before.layers) != len(after.layers):
        count = f"{len(before.layers)} layers before and {len(after.layers)} now"
        raise ConversionError(
            f"more than weights has changed: {count}. Give the options that it was converted "
            f"with, or {_AGAIN}"
        )


def _structure(layer: Layer) -> str:
    """Return all but the values of the weights; a checkpoint makes lists of tuples."""
    sizes = {name: (str(w.dtype), w.numel()) for name, w in sorted(layer.weights.items())}
    flow = (layer.inputs, layer.outputs, layer.types, layer.shapes)
    return json.dumps([layer.kind, layer.name, layer.attributes, flow, sizes])


def _bits(weight: torch.Tensor) -> torch.Tensor:
    # Not values: a NaN equals nothing, and -0.0 equals 0.0.
    return weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _refit(engine: Any, changed: list[tuple[Layer, str]], after: Program) -> None:
    backend.forget_errors()
    refitter = trt.Refitter(engine, backend.logger())
    known = {
        (layer.name, _ROLES[name]): (layer, name)
        for layer in after.layers
        for name in layer.weights
        if name in _ROLES
    }
    names = Counter(layer.name for layer in after.layers if layer.weights)
    takes = set(_keys(*refitter.get_all()))
    held = []  # TensorRT reads them until it has refitted

    def supply(key: Key) -> None:
        layer, name = known[key]
        if names[layer.name] > 1:  # as a parser may have called them
            raise EngineError(f"several layers are called {layer.name!r}: {_AGAIN}")
        data = layer.weights[name].detach().cpu().contiguous()
        held.append(data)
        given = trt.Weights(to_trt(data.dtype), data.data_ptr(), data.numel())
        if not refitter.set_weights(layer.name, getattr(trt.WeightsRole, key[1]), given):
            raise EngineError(
                f"TensorRT refuses new weights for {layer.name!r}: {backend.error_text()}"
            )

    supplied = set()
    for layer, name in changed:
        key = (layer.name, _ROLES.get(name, name))
        # Four-bit weights are packed in TensorRT, and not in the executor.
        if key not in takes or key not in known or layer.types[0] in ("INT4", "FP4"):
            raise EngineError(
                f"the weights {name!r} of {layer.kind} {layer.name!r} have changed, and the engine "
                f"takes no new ones for them: {_AGAIN}"
            )
        supply(key)
        supplied.add(key)
    # What TensorRT has combined with these it wants as well.
    while missing := [key for key in _keys(*refitter.get_missing()) if key not in supplied]:
        for key in missing:
            if key not in known:
                raise EngineError(f"TensorRT wants the weights of {key}, which are not known")
            supply(key)
            supplied.add(key)
    if not refitter.refit_cuda_engine():
        raise EngineError(f"TensorRT does not refit the engine: {backend.error_text()}")


def _keys(names: list[str], roles: list[Any]) -> Iterator[Key]:
    return ((name, role.name) for name, role in zip(names, roles, strict=True))


def _serialized(engine: Any) -> bytes:
    config = engine.create_serialization_config()
    config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    if hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):
        config.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
    serialized = engine.serialize_with_config(config)
    plan = b"" if serialized is None else bytes(serialized)
    if not plan:
        raise EngineError(f"TensorRT does not write the engine: {backend.error_text()}")
    return plan
