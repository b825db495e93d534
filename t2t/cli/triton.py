"""``t2t triton``: a model repository for NVIDIA's Triton Inference Server."""

from __future__ import annotations

from pathlib import Path

import click

from t2t.cli.options import CHECKPOINT
from t2t.cli.running import Refusal, Result, reporting


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
@click.option(
    "--instances",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many requests each GPU computes at once.",
)
@click.option(
    "--version",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="The version's number; another one may be there already.",
)
@reporting
def triton(
    *,
    checkpoint: Path,
    output: Path,
    name: str | None,
    batching: bool,
    instances: int,
    version: int,
) -> Result:
    """Write CHECKPOINT into a model repository of Triton; its engine must be TensorRT's."""
    from t2t.files import folder_written_whole
    from t2t.module import load
    from t2t.module.triton import model_config, unchecked

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
    config = model_config(name, converted.signature, batching=batching, instances=instances)
    notes = unchecked(converted.signature, batching)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    text = "".join(f"# {note}\n" for note in notes) + config
    output.mkdir(parents=True, exist_ok=True)
    model, file = output / name, f"{version}/model.plan"
    known = model / "config.pbtxt"
    if version > 1 and known.is_file():
        if known.read_text(encoding="utf-8") != text:
            raise Refusal(
                f"{known} is of a model with other inputs, outputs or options, and all versions "
                "share it: give another --name"
            )
        with folder_written_whole(model / str(version)) as folder:
            (folder / "model.plan").write_bytes(engine.plan.numpy().data)
    else:
        with folder_written_whole(model) as folder:
            (folder / str(version)).mkdir()
            (folder / "config.pbtxt").write_text(text, encoding="utf-8")
            (folder / file).write_bytes(engine.plan.numpy().data)
    needs = f"Triton must have the TensorRT that built it: {engine.origin.version}"
    data = {"output": str(output / name), "tensorrt": engine.origin.version, "notes": notes}
    return Result(data, [f"{model}: config.pbtxt, {file}\n{needs}"])
