"""Plugins of t2t: operators that PyTorch computes inside an engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from torch import Tensor

from t2t.errors import EngineError, UnsupportedLayerError
from t2t.operator_data import program
from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


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
