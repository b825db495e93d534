"""``t2t triton``: a model repository for NVIDIA's Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2t.cli.options import CHECKPOINT
from t2t.cli.running import Refusal, Result, reporting

if TYPE_CHECKING:
    from t2t.io import Signature, TensorSpec

__all__ = ["model_config", "triton"]

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


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The repository, a folder; the model becomes a folder in it.",
)
@click.option("--name", help="The model's name; by default that of the checkpoint.")
@click.option(
    "--batching",
    is_flag=True,
    help="Let Triton join requests into batches; rows must not depend on each other.",
)
@reporting
def triton(*, checkpoint: Path, output: Path, name: str | None, batching: bool) -> Result:
    """Write CHECKPOINT into a model repository of Triton; its engine must be TensorRT's."""
    from t2t.files import folder_written_whole
    from t2t.module import load

    name = name or checkpoint.stem
    if "/" in name or name in ("", ".", ".."):
        raise Refusal(f"--name {name!r}: the name becomes a folder in {output}")
    converted = load(checkpoint)
    engine = converted.engine
    if engine is None or engine.origin is None:
        raise Refusal(f"{checkpoint} has no engine")
    if converted.details.get("plugins"):
        operators = ", ".join(converted.details["plugins"])
        raise Refusal(f"PyTorch runs {operators} inside the engine, which Triton cannot")
    if engine.origin.backend != "tensorrt":
        raise Refusal(
            f"{checkpoint} was built by {engine.origin}, and Triton's TensorRT backend loads plans "
            "of TensorRT only: convert with --backend tensorrt on a machine with the server's GPU"
        )
    config = model_config(name, converted.signature, batching=batching)
    notes = _unchecked(converted.signature, batching)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    text = "".join(f"# {note}\n" for note in notes) + config
    output.mkdir(parents=True, exist_ok=True)
    with folder_written_whole(output / name) as folder:
        (folder / "1").mkdir()
        (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        with (folder / "1" / "model.plan").open("wb") as file:
            file.write(engine.plan.numpy().data)
    needs = f"Triton must have the TensorRT that built it: {engine.origin.version}"
    data = {"output": str(output / name), "tensorrt": engine.origin.version, "notes": notes}
    return Result(data, [f"{output / name}: config.pbtxt, 1/model.plan\n{needs}"])


def model_config(name: str, signature: Signature, *, batching: bool = False) -> str:
    """Return Triton's config.pbtxt of an engine.

    Source: https://github.com/triton-inference-server/common, protobuf/model_config.proto.

    Args:
        name: the model's name.
        signature: the engine's inputs and outputs.
        batching: let Triton join requests along dimension 0. Without it, Triton hands each request
            to the engine as it is, which is right for every model.

    Raises:
        Refusal: Triton cannot express it; the text says why.
    """
    most = _batch(signature) if batching else 0
    lines = [f"name: {_quoted(name)}", 'platform: "tensorrt_plan"', f"max_batch_size: {most}"]
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        lines += [_tensor(kind, spec, batching) for spec in specs]
    if len(signature.profiles) > 1:
        numbers = ", ".join(f'"{number}"' for number in range(len(signature.profiles)))
        lines.append(f"instance_group [ {{ kind: KIND_GPU profile: [ {numbers} ] }} ]")
    if batching:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _tensor(kind: str, spec: TensorSpec, batching: bool) -> str:
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in _TYPES:
        raise Refusal(f"{kind} {spec.name!r} is {dtype}, which Triton does not have")
    dims = spec.shape[1:] if batching else spec.shape
    reshape = ""
    if not dims:
        if not batching:
            raise Refusal(
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
    raise Refusal(
        "--batching: dimension 0 of all inputs and outputs must be one size from 1 on; convert "
        "with --max-batch-size, or a name such as batch:1..8 in each --shape"
    )


def _unchecked(signature: Signature, batching: bool) -> list[str]:
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
