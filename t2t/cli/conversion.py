"""The command `convert`: its options are those of `t2t.convert`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2t.cli.options import (
    CHECKPOINT,
    EXISTING_FILE,
    FOLDER,
    NEW_FILE,
    Given,
    device_option,
    drawing_options,
    engine_option,
    gathered,
    input_options,
    names_option,
    read_by,
    read_bytes,
    rtol_option,
    source_options,
)
from t2t.cli.running import DISAGREES, Refusal, Result, check_target, reporting, stage

if TYPE_CHECKING:
    import torch

_SUBMODULES = (
    "only submodules convert, because Python decides on values between them; a checkpoint of these "
    "is loaded into the model: use t2t.convert(partial=True) and t2t.load(path, model) in Python"
)
_NOTHING_TO_COMPARE = (
    "--no-program leaves nothing that could be compared with the module here ({}): say --no-verify "
    "too, or leave --no-program out"
)

_DISAGREES = (
    "Error: the converted module disagrees with the original; nothing was written (--rtol allows "
    "more, --no-verify writes without comparing)"
)


@click.command()
@source_options
@click.option("-o", "--output", required=True, type=NEW_FILE, help="The checkpoint to write.")
@click.option("--engine", type=NEW_FILE, help="Write the plain engine too, for C++ and trtexec.")
@click.option(
    "--bundle",
    type=FOLDER,
    help="Write a folder too: engine, description, samples.",
)
@input_options
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=1),
    help="Dimension 0 of all inputs is a batch, from 1 to this.",
)
@click.option("--narrow-shapes", is_flag=True, help="Shrink ranges to where the model allows them.")
@click.option("--fp16", is_flag=True, help="Compute in float16 where that is safe.")
@click.option("--bf16", is_flag=True, help="Compute in bfloat16 where that is safe.")
@names_option(
    "--fp32-module", "fp32_modules", "A submodule to keep in float32; shell patterns work."
)
@names_option("--fp32-op", "fp32_ops", "An operator to keep in float32, such as aten::softmax.")
@click.option("--low-precision-io", is_flag=True, help="Half inputs and outputs, too.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    help="Keep the modules in float32 that a relative error up to this needs.",
)
@click.option(
    "--tuning-input",
    "tuning_inputs",
    multiple=True,
    type=EXISTING_FILE,
    help="For --tolerance: inputs saved by torch.save (repeatable), instead of the example.",
)
@click.option("--int8", is_flag=True, help="Compute products in int8; see --calibration.")
@click.option("--fp8", is_flag=True, help="Compute products in 8-bit floats; see --calibration.")
@click.option(
    "--weight-only", type=click.Choice(["int8", "int4"]), help="Store linear weights in few bits."
)
@click.option(
    "--calibration",
    multiple=True,
    type=CHECKPOINT,
    help="For --int8 and --fp8: inputs saved by torch.save, a folder of these, or scales (.json).",
)
@click.option(
    "--calibration-method",
    type=click.Choice(["mse", "minmax", "percentile", "entropy"]),
    default="mse",
    help="How ranges are chosen.",
)
@click.option("--int8-exclude", multiple=True, metavar="NAME", help="A submodule to keep as it is.")
@click.option("--float64-as-float32", is_flag=True, help="Compute in float32 what is float64.")
@click.option("--tf32", is_flag=True, help="Let float32 matrix products round to 10 bits.")
@click.option("--refittable", is_flag=True, help="Let the engine take new weights (on a GPU).")
@click.option("--weight-streaming", is_flag=True, help="Let weights stream from the CPU's memory.")
@click.option("--ignore-dropout", is_flag=True, help="Convert as if dropout were off.")
@click.option("--partial", is_flag=True, help="Leave in PyTorch what does not convert.")
@names_option(
    "--torch-executed-op",
    "torch_executed_ops",
    "With --partial, an operator that stays in PyTorch: aten::sort.",
)
@names_option(
    "--torch-executed-module",
    "torch_executed_modules",
    "With --partial, a submodule that stays in PyTorch; shell patterns work.",
)
@click.option(
    "--min-block-size",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="With --partial, how many operators an engine must have.",
)
@names_option("--input-name", "input_names", "In order.")
@names_option("--output-name", "output_names", "In order.")
@click.option("--backend", type=click.Choice(["tensorrt", "tensorrt_rtx"]), help="Which TensorRT.")
@click.option(
    "--workspace",
    callback=read_by(read_bytes),
    metavar="BYTES",
    help="Most scratch memory of a layer, such as 1G.",
)
@click.option(
    "--optimization-level", type=click.IntRange(0, 5), help="0 is quick to build, 5 quick to run."
)
@click.option(
    "--compute-capability",
    "compute_capabilities",
    multiple=True,
    metavar="X.Y",
    help="A GPU to build for, such as 8.9; TensorRT-RTX only.",
)
@click.option("--dla-core", type=click.IntRange(min=0), help="A Jetson's DLA, with the GPU's help.")
@names_option(
    "--dla-module",
    "dla_modules",
    "With --dla-core, a submodule to compute there; shell patterns work.",
)
@click.option("--timing-cache", type=NEW_FILE, help="Kernel timings, read and written.")
@click.option("--cache-dir", type=FOLDER, help="A folder of engines that are not built again.")
@click.option("--configure", metavar="MODULE:FUNCTION", help="A function of the IBuilderConfig.")
@click.option(
    "--keep-program/--no-program", default=True, help="Keep what runs where the engine cannot."
)
@click.option("--progress/--no-progress", default=None, help="Bars; by default on a terminal.")
@click.option(
    "--verify/--no-verify",
    "verifying",
    default=True,
    help="Compare with the module; what disagrees is not written.",
)
@rtol_option
@engine_option
@drawing_options
@device_option
@reporting
@gathered
def convert(
    *,
    given: Given,
    output: Path,
    engine: Path | None,
    bundle: Path | None,
    verifying: bool,
    rtol: float | None,
    require_engine: bool,
    configure: str | None,
    calibration: Sequence[Path],
    tuning_inputs: Sequence[Path],
    input_names: Sequence[str],
    output_names: Sequence[str],
    **options: Any,
) -> Result:
    """Convert SOURCE and write a checkpoint for t2t.load.

    SOURCE is package.module:factory, torchvision:NAME, timm:NAME, transformers:NAME, or a .pt2 or
    .onnx file.

    \b
    t2t convert torchvision:resnet50 --shape batch:1..8x3x224x224 --fp16 -o resnet50.pt
    t2t convert mypackage.models:make --shape x=1x3x320x320 -o model.pt
    """  # noqa: D301  click looks for the character itself
    targets = {"output": output, "engine": engine, "bundle": bundle}
    _check_targets(output, engine, bundle)
    from t2t.cli import converted as parts
    from t2t.cli.sources import imported
    from t2t.conversion import convert as convert_module
    from t2t.module import PartialModule

    options |= {"input_names": input_names or None, "output_names": output_names or None}
    change = None if configure is None else imported(configure, "--configure")
    started = time.perf_counter()
    if Path(given.source).suffix == ".onnx":
        from t2t.cli.onnx import convert_onnx

        options |= {"calibration": calibration, "require_engine": require_engine}
        converted = convert_onnx(given, options, configure=change, verify=verifying, rtol=rtol)
        return parts.written(converted, None, targets, time.perf_counter() - started, [])
    if (options["int8"] or options["fp8"]) and not calibration:
        raise Refusal(
            "--int8 and --fp8 need --calibration: inputs such as the module will see, or scales"
        )
    source = given.open()
    example = given.example(source)
    if verifying and not options["keep_program"] and given.place.type == "cpu":
        raise Refusal(_NOTHING_TO_COMPARE.format("no engine runs on a CPU"))
    options |= {
        "calibration": _calibration(calibration, given.place),
        "tuning_inputs": _inputs(tuning_inputs, given.place),
    }
    stage(f"converting {given.source}")
    started = time.perf_counter()
    args, kwargs = example.call
    converted = convert_module(
        source.module, args, kwargs, **example.options, **options, configure=change
    )
    seconds = time.perf_counter() - started
    if isinstance(converted, PartialModule):
        raise Refusal(_SUBMODULES)
    reports = []
    if verifying:
        problem = (
            converted.engine and not converted.program and converted.engine.why_not(given.place)
        )
        if problem:
            raise Refusal(_NOTHING_TO_COMPARE.format(problem))
        stage("comparing it with the module")
        reports = parts.compare(
            source, converted, example.call, given, rtol=rtol, require_engine=require_engine
        )
    if not all(report.ok for _, report in reports):
        data = parts.converted_data(converted, dict.fromkeys(targets), seconds, reports)
        click.echo(_DISAGREES, err=True)
        return Result(data, parts.reports_shown(reports), DISAGREES)
    return parts.written(converted, example.call, targets, seconds, reports)


def _calibration(paths: Sequence[Path], device: torch.device) -> Any:
    """Return the scales or the inputs that files hold; None where there are none."""
    from t2t.quantization.scales import Scales

    if len(paths) == 1 and paths[0].suffix == ".json":
        return Scales.from_json(paths[0].read_text(encoding="utf-8"))
    return _inputs(paths, device)


def _inputs(paths: Sequence[Path], device: torch.device) -> list[Any] | None:
    from t2t.files import read_tensors

    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(x for x in path.iterdir() if x.suffix in (".pt", ".pth"))
            if not found:
                raise Refusal(f"{path} holds no .pt or .pth files, which torch.save wrote")
        files += found
    return [read_tensors(path, "file of inputs", device) for path in files] or None


def _check_targets(output: Path, engine: Path | None, bundle: Path | None) -> None:
    """Refuse files that could not be written, before work begins."""
    if output.suffix in (".engine", ".plan", ".trt"):
        raise Refusal(f"-o writes a checkpoint for t2t.load; --engine {output} writes the engine")
    targets = [path for path in (output, engine, bundle) if path is not None]
    for path in targets:
        check_target(path)
        if targets.count(path) > 1:
            raise Refusal(f"{path} is given twice: the files need different names")
    if bundle is not None and bundle.exists():
        raise Refusal(f"--bundle {bundle} exists already: give another name")
