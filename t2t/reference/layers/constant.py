"""Constants and filled tensors, assertions, plugins, and the boundaries of loops and branches."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t.errors import EngineError, ShapeError, UnsupportedLayerError
from t2t.operator_data import program
from t2t.reference.layer import Kernel, Ready, ints, layer


@layer("CONSTANT", "shape", weights=("weights",))
def constant(ready: Ready) -> Kernel:
    """The layer's weights in its shape."""
    shape = ready.attributes["shape"]
    value = ready.weights.get("weights", torch.empty(0, dtype=ready.dtype))
    if value.numel() != math.prod(shape):
        raise ShapeError(f"constant {ready.name!r}: {value.numel()} values for shape {shape}")
    shaped = value.reshape(shape).contiguous()
    return lambda: shaped


@layer("IDENTITY")
def identity(ready: Ready) -> Kernel:
    """The input, in the output's type."""
    dtype = ready.dtype
    return lambda x: x.to(dtype)


@layer("ASSERTION", "message")
def assertion(ready: Ready) -> Kernel:
    """Raise ShapeError with the layer's message unless every element is true."""
    message = ready.attributes["message"]

    def kernel(condition: Tensor) -> tuple[()]:
        if not bool(condition.all()):
            raise ShapeError(f"assertion {ready.name!r} does not hold: {message}")
        return ()

    return kernel


# -- filled tensors --------------------------------------------------------------------------------


@layer("FILL", "operation", "shape", "alpha", "beta", "to_type", host=(0,))
def fill(ready: Ready) -> Kernel:
    """LINSPACE: alpha + sum of beta[d] * index[d]. RANDOM_UNIFORM: [alpha, beta).

    RANDOM_NORMAL has mean alpha and standard deviation beta. Alpha (0-D) and beta may come as
    inputs 1 and 2.
    """
    a, dtype = ready.attributes, ready.dtype

    def kernel(
        shape_in: Tensor | None = None,
        alpha_in: Tensor | None = None,
        beta_in: Tensor | None = None,
    ) -> Tensor:
        shape = ints(shape_in, a["shape"])
        device = next((t.device for t in (alpha_in, beta_in) if t is not None), None)
        alpha = torch.tensor(a["alpha"]) if alpha_in is None else alpha_in
        beta = torch.tensor(a["beta"]) if beta_in is None else beta_in
        if a["operation"] == "LINSPACE":
            return _linspace(shape, alpha, beta, dtype, device)
        draw = torch.rand if a["operation"] == "RANDOM_UNIFORM" else torch.randn
        unit = draw(shape, device=device)
        scale = beta - alpha if a["operation"] == "RANDOM_UNIFORM" else beta
        return (unit * scale + alpha).to(dtype)

    return kernel


def _linspace(
    shape: list[int],
    alpha: Tensor,
    beta: Tensor,
    dtype: torch.dtype,
    device: torch.device | None,
) -> Tensor:
    result = alpha.to(dtype).reshape(()).expand(shape)
    for axis, delta in enumerate(beta.to(dtype).reshape(-1)):
        index = torch.arange(shape[axis], dtype=dtype, device=device)
        result = result + (index * delta).reshape([-1] + [1] * (len(shape) - axis - 1))
    return result


@layer("ONE_HOT", "axis", host=(2,))
def one_hot(ready: Ready) -> Kernel:
    """Insert an axis of size depth: values[1] at the index, values[0] elsewhere.

    A negative index counts from the end, as in ONNX, whose parser relies on it.
    """
    axis = ready.attributes["axis"]

    def kernel(indices: Tensor, values: Tensor, depth_in: Tensor) -> Tensor:
        (depth,) = ints(depth_in)
        place = axis % (indices.dim() + 1)
        classes = torch.arange(depth, device=indices.device)
        classes = classes.reshape([-1] + [1] * (indices.dim() - place))
        index = torch.where(indices < 0, indices + depth, indices).unsqueeze(place)
        return torch.where(index == classes, values[1], values[0])

    return kernel


# -- boundaries of loops and branches --------------------------------------------------------------


@layer("CONDITIONAL_INPUT")
@layer("RECURRENCE")
@layer("ITERATOR", "axis", "reverse")
@layer("LOOP_OUTPUT", "kind", "axis")
@layer("CONDITIONAL_OUTPUT")
def boundary(ready: Ready) -> Kernel:
    """Return the first input as it is; only a conditional's input is run as a layer."""
    if ready.kind != "CONDITIONAL_INPUT":
        raise AssertionError(f"{ready.kind} is run by its loop or conditional")
    return lambda x: x


@layer("CONDITION")
@layer("TRIP_LIMIT", "kind")
def condition(ready: Ready) -> Kernel:
    """Read by its loop or conditional; has no output of its own."""
    del ready

    def kernel(value: Tensor) -> tuple[Any, ...]:
        del value
        return ()

    return kernel


# -- plugins ---------------------------------------------------------------------------------------


def _read(raw: Any) -> dict[str, Any]:
    """Return what the plugin says that a plan is to hold of it."""
    read = getattr(raw.plugin, "get_fields_to_serialize", lambda: ())
    found = [field for field in read() if field.name == "call"]
    if len(found) != 1:
        raise UnsupportedLayerError(f"layer {raw.name!r} is a plugin of somebody else's")
    return {"call": json.loads(np.asarray(found[0].data).tobytes())}


@layer("PLUGIN_V3", read=_read)
def plugin(ready: Ready) -> Kernel:
    """Run the operator itself, not a function that an engine has in its place."""
    call = ready.attributes["call"]
    compute = program(call["operator"], call["args"], call["kwargs"])
    wanted = ready.dtypes

    def kernel(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(enumerate(x.contiguous() for x in inputs))
        results = tuple(compute(given, inputs[0].device))
        if tuple(x.dtype for x in results) != wanted:
            types = [x.dtype for x in results]
            raise EngineError(f"{call['operator']} gives {types}, the network has {list(wanted)}")
        return results

    return kernel
