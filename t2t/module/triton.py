"""What Triton Inference Server is told of an engine: its config.pbtxt.

Source: https://github.com/triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

from t2t.errors import EngineError
from t2t.io import Signature, TensorSpec

_TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "uint8": "TYPE_UINT8",
    "bool": "TYPE_BOOL",
}


def model_config(
    name: str, signature: Signature, *, batching: bool = False, instances: int = 1
) -> str:
    """Return Triton's config.pbtxt of an engine.

    Args:
        name: the model's name.
        signature: the engine's inputs and outputs.
        batching: let Triton join requests along dimension 0. Without it, Triton hands each request
            to the engine as it is, which is right for every model.
        instances: how many requests each GPU computes at once.

    Raises:
        EngineError: Triton cannot express it; the text says why.
    """
    most = _batch(signature) if batching else 0
    lines = [f"name: {_quoted(name)}", 'platform: "tensorrt_plan"', f"max_batch_size: {most}"]
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        lines += [_tensor(kind, spec, batching) for spec in specs]
    group = f" count: {instances}" if instances > 1 else ""
    if len(signature.profiles) > 1:
        numbers = ", ".join(f'"{number}"' for number in range(len(signature.profiles)))
        group += f" profile: [ {numbers} ]"
    if group:
        lines.append(f"instance_group [ {{ kind: KIND_GPU{group} }} ]")
    if batching:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _tensor(kind: str, spec: TensorSpec, batching: bool) -> str:
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in _TYPES:
        raise EngineError(f"{kind} {spec.name!r} is {dtype}, which Triton does not have")
    dims = spec.shape[1:] if batching else spec.shape
    reshape = ""
    if not dims:
        if not batching:
            raise EngineError(
                f"{kind} {spec.name!r} has no dimensions, which Triton needs: give it one of size 1"
            )
        dims, reshape = (1,), " reshape { shape: [ ] }"
    sizes = ", ".join(map(str, dims))
    return (
        f"{kind} [ {{ name: {_quoted(spec.name)} data_type: {_TYPES[dtype]} "
        f"dims: [ {sizes} ]{reshape} }} ]"
    )


def _batch(signature: Signature) -> int:
    """Return the largest batch, where dimension 0 of all inputs and outputs is one batch size."""
    everywhere = {(index, 0) for index in range(len(signature.inputs))}
    for dimension in signature.dimensions:
        plain = dimension.step == 1 and all(
            (place.factor, place.offset) == (1, 0) for place in dimension.places
        )
        names = [spec.sizes[:1] for spec in signature.outputs]
        if (
            plain
            and dimension.low == 1
            and {(place.input, place.dim) for place in dimension.places} >= everywhere
            and all(name == (dimension.name,) for name in names)
        ):
            return dimension.high
    raise EngineError(
        "--batching: dimension 0 of all inputs and outputs must be one size from 1 on; convert "
        "with --max-batch-size, or a name such as batch:1..8 in each --shape"
    )


def unchecked(signature: Signature, batching: bool) -> list[str]:
    """Return what sizes a converted module refuses, and Triton does not."""
    found = []
    for dimension in signature.dimensions:
        texts = [
            f"dimension {place.dim} of {signature.inputs[place.input].name} is "
            f"{dimension.rule(place)}"
            for place in dimension.places
            if dimension.step * place.factor != 1
        ]
        # Triton makes the batches by itself.
        together = [place for place in dimension.places if not (batching and place.dim == 0)]
        if len(together) > 1:
            places = [f"{p.dim} of {signature.inputs[p.input].name}" for p in together]
            texts.append(f"dimensions {' and '.join(places)} fit together ({dimension.name})")
        found += [f"Triton does not check that {text}; other results are wrong" for text in texts]
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
