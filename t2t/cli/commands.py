"""The commands that work on modules and checkpoints.

torch and t2t's parts are imported inside of the commands: they take seconds, and ``--help`` and
wrong usage need none of them.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
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
    model_options,
    read_by,
    read_bytes,
    rtol_option,
    source_options,
)
from t2t.cli.running import DISAGREES, Refusal, Result, reporting, stage, table

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

__all__ = ["bench", "convert", "draw", "inspect", "missing", "operators", "verify"]


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
@click.option(
    "--fp32-module",
    "fp32_modules",
    multiple=True,
    metavar="NAME",
    help="A submodule to keep in float32; shell patterns work.",
)
@click.option(
    "--fp32-op",
    "fp32_ops",
    multiple=True,
    metavar="NAME",
    help="An operator to keep in float32, such as aten::softmax.",
)
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
    type=EXISTING_FILE,
    help="For --int8 and --fp8: inputs saved by torch.save (repeatable), or scales (.json).",
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
@click.option(
    "--torch-executed-op",
    "torch_executed_ops",
    multiple=True,
    metavar="NAME",
    help="With --partial, an operator that stays in PyTorch: aten::sort.",
)
@click.option(
    "--torch-executed-module",
    "torch_executed_modules",
    multiple=True,
    metavar="NAME",
    help="With --partial, a submodule that stays in PyTorch; shell patterns work.",
)
@click.option(
    "--min-block-size",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="With --partial, how many operators an engine must have.",
)
@click.option("--input-name", "input_names", multiple=True, metavar="NAME", help="In order.")
@click.option("--output-name", "output_names", multiple=True, metavar="NAME", help="In order.")
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
@click.option(
    "--dla-module",
    "dla_modules",
    multiple=True,
    metavar="NAME",
    help="With --dla-core, a submodule to compute there; shell patterns work.",
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
    r"""Convert SOURCE and write a checkpoint for t2t.load.

    SOURCE is package.module:factory, torchvision:NAME, timm:NAME, transformers:NAME, or a .pt2 or
    .onnx file.

    \b
    t2t convert torchvision:resnet50 --shape batch:1..8x3x224x224 --fp16 -o resnet50.pt
    t2t convert mypackage.models:make --shape x=1x3x320x320 -o model.pt
    """
    targets = {"output": output, "engine": engine, "bundle": bundle}
    _check_targets(output, engine, bundle)
    from t2t.cli import converted as parts
    from t2t.cli.sources import imported
    from t2t.conversion import convert as convert_module
    from t2t.module import PartialModule

    if Path(given.source).suffix == ".onnx":
        from t2t.cli.onnx import convert_onnx

        names = {"input_names": input_names, "output_names": output_names}
        started = time.perf_counter()
        converted = convert_onnx(
            given,
            {**options, **names, "calibration": calibration, "require_engine": require_engine},
            configure=None if configure is None else imported(configure, "--configure"),
            verify=verifying,
            rtol=rtol,
        )
        seconds = time.perf_counter() - started
        return parts.written(converted, None, targets, seconds, [])
    source = given.open()
    example = given.example(source)
    if verifying and not options["keep_program"] and given.place.type == "cpu":
        raise Refusal(_NOTHING_TO_COMPARE.format("no engine runs on a CPU"))
    stage(f"converting {given.source}")
    started = time.perf_counter()
    args, kwargs = example.call
    converted = convert_module(
        source.module,
        args,
        kwargs,
        **example.options,
        **options,
        calibration=_calibration(calibration, given.place),
        tuning_inputs=_inputs(tuning_inputs, given.place),
        configure=None if configure is None else imported(configure, "--configure"),
        input_names=input_names or None,
        output_names=output_names or None,
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

    return [read_tensors(path, "file of inputs", device) for path in paths] or None


def _check_targets(output: Path, engine: Path | None, bundle: Path | None) -> None:
    """Refuse files that could not be written, before work begins."""
    if output.suffix in (".engine", ".plan", ".trt"):
        raise Refusal(f"-o writes a checkpoint for t2t.load; --engine {output} writes the engine")
    targets = [path for path in (output, engine, bundle) if path is not None]
    for path in targets:
        _check_target(path)
        if targets.count(path) > 1:
            raise Refusal(f"{path} is given twice: the files need different names")
    if bundle is not None and bundle.exists():
        raise Refusal(f"--bundle {bundle} exists already: give another name")


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@source_options
@input_options
@click.option(
    "--random-inputs",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many more inputs like these to try.",
)
@rtol_option
@engine_option
@drawing_options
@device_option
@reporting
@gathered
def verify(
    *,
    given: Given,
    checkpoint: Path,
    random_inputs: int,
    rtol: float | None,
    require_engine: bool,
) -> Result:
    """Compare CHECKPOINT with SOURCE; exit code 1 where they disagree.

    Without --shape and --example, the inputs are random, of the usual, the smallest and the largest
    sizes of the checkpoint.
    """
    from t2t.cli import converted as parts

    converted = parts.load_converted(checkpoint, given.place)
    source = given.open()
    call = None
    if given.shapes or given.examples:
        call = given.example(source).call
    elif given.constants:
        raise Refusal("--constant goes with --shape or --example; the checkpoint knows its own")
    reports = parts.compare(
        source,
        converted,
        call,
        given,
        rtol=rtol,
        require_engine=require_engine,
        random_inputs=random_inputs,
        all_sizes=call is None,
    )
    data = parts.reports_data(reports)
    return Result(data, parts.reports_shown(reports), 0 if data["ok"] else DISAGREES)


@click.command()
@click.argument("file", type=CHECKPOINT)
@reporting
def inspect(*, file: Path) -> Result:
    """Show what FILE takes, returns and was built for: a checkpoint, a bundle or an engine."""
    from t2t.cli import converted as parts
    from t2t.errors import EngineError
    from t2t.files import read_tensors
    from t2t.module import TRTModule, load

    files = [path for path in file.rglob("*") if path.is_file()] if file.is_dir() else [file]
    data: dict[str, Any] = {
        "file": str(file),
        "bytes": sum(path.stat().st_size for path in files),
    }
    head = f"{file} ({parts.megabytes(data['bytes'])})"
    origin = parts.origin_of_file(file)
    if origin is None:
        converted = load(file)
        # `load` has checked the metadata.
        entries = file / "module.pt" if file.is_dir() else file
        metadata = json.loads(read_tensors(entries, "checkpoint", mmap=True)["metadata"])
        kind = "bundle" if file.is_dir() else "checkpoint"
        data |= {"kind": kind, "format": metadata["format"], "writer": metadata["writer"]}
        facts = [(kind, head), ("written by", f"{data['writer']}, format {data['format']}")]
    else:
        data |= {"kind": "engine", "backend": origin.backend, "backend_version": origin.version}
        facts = [("engine", head), ("built by", str(origin))]
        try:
            converted = TRTModule.from_engine(file)
        except EngineError as error:
            data["unreadable"] = str(error)
            facts.append(("inputs, outputs", f"only a TensorRT that runs it reads them: {error}"))
            return Result(data, [table(["", ""], facts)])
    inspection = converted.inspect()
    data |= {**parts.signature_data(converted.signature), **parts.details_data(converted)}
    data |= {name: inspection.to_dict()[name] for name in ("engine", "layers", "not_loaded")}
    shown = table(["", ""], [*facts, *parts.facts_shown(converted)])
    return Result(data, [shown, *inspection.engine_lines()])


@click.command()
@source_options
@input_options
@click.option("--max-batch-size", type=click.IntRange(min=1), help="As for convert.")
@drawing_options
@reporting
@gathered
def missing(*, given: Given, max_batch_size: int | None) -> Result:
    """List what keeps SOURCE from being converted; exit code 1 where there is something."""
    from t2t.lowering import missing_operators

    source = given.open()
    example = given.example(source)
    args, kwargs = example.call
    found = missing_operators(
        source.module, args, kwargs, **example.options, max_batch_size=max_batch_size
    )
    shown = found or [f"Nothing is missing: {given.source} can be converted."]
    return Result({"missing": found}, shown, DISAGREES if found else 0)


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@click.option(
    "--sizes",
    type=click.Choice(["usual", "min", "max"]),
    default="usual",
    show_default=True,
    help="Which of the sizes that it was built for.",
)
@click.option("--runs", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--warmup", default=10, show_default=True, type=click.IntRange(min=0))
@click.option("--baseline", "source", default="", metavar="SOURCE", help="The module, beside it.")
@model_options
@click.option("--torch-compile", is_flag=True, help="Time torch.compile of the module, too.")
@engine_option
@drawing_options
@device_option
@reporting
@gathered
def bench(
    *,
    given: Given,
    checkpoint: Path,
    sizes: str,
    runs: int,
    warmup: int,
    torch_compile: bool,
    require_engine: bool,
) -> Result:
    """Time CHECKPOINT on this machine, and with --baseline the module beside it.

    Where no engine can run, this is the host's overhead only.
    """
    from t2t.benchmarking import benchmark
    from t2t.cli import converted as parts
    from t2t.cli.inputs import drawn, shapes_of, to_device

    if torch_compile and not given.source:
        raise Refusal("--torch-compile compiles the module: give it as --baseline SOURCE")
    converted = parts.load_converted(checkpoint, given.place)
    shapes = shapes_of(converted.signature, sizes)[0]
    args, kwargs = to_device(drawn(converted.signature, shapes, given.drawer), given.place)
    report = benchmark(
        converted,
        args,
        kwargs,
        baseline=given.open().module if given.source else None,
        torch_compile=torch_compile,
        runs=runs,
        warmup=warmup,
        require_engine=require_engine,
    )
    names = converted.input_names
    data = {**report.to_dict(), "shapes": dict(zip(names, shapes, strict=True))}
    head, *rows = report.rows()
    return Result(data, [*report.lines(), table(head, rows)])


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("-o", "--output", required=True, type=NEW_FILE, help="net.html, net.json or net.dot")
@reporting
def draw(*, checkpoint: Path, output: Path) -> Result:
    """Draw the network of CHECKPOINT: a page (.html), or a file for another program.

    .json is for Google's Model Explorer, .dot for Graphviz.
    """
    from t2t.files import written_whole
    from t2t.module import load

    _check_target(output)
    program = load(checkpoint).program
    if program is None:
        raise Refusal(
            f"{checkpoint} has no program: convert the module without --no-program and --partial"
        )
    ways: dict[str, Callable[[], str]] = {
        ".html": program.to_html,
        ".json": program.to_model_explorer,
        ".dot": program.to_dot,
    }
    if output.suffix not in ways:
        raise Refusal(
            f"-o {output}: pictures are {' and '.join(ways)} files; Graphviz makes others: dot "
            "-Tsvg net.dot -o net.svg"
        )
    with written_whole(output) as file:
        file.write(ways[output.suffix]().encode())
    layers = len(program.layers)
    return Result({"output": str(output), "layers": layers}, [f"{output}: {layers} layers"])


@click.command()
@click.argument("pattern", default="")
@reporting
def operators(*, pattern: str) -> Result:
    """List the operators that have a converter, by a part of their names or a shell pattern."""
    from t2t.converters import supported_operators

    importlib.import_module("t2t.formulas")
    found = {
        name: where
        for name, where in supported_operators().items()
        if pattern in name or fnmatch.fnmatchcase(name, pattern)
    }
    if not found:
        text = (
            f"No operator has {pattern!r} in its name. PyTorch decomposes many operators into "
            "others: `t2t missing` tells whether a model can be converted."
        )
        return Result({"operators": {}}, [text], DISAGREES)
    return Result({"operators": found}, [table(["operator", "converter"], list(found.items()))])


def _check_target(path: Path) -> None:
    """Refuse a file that could not be written, before work begins."""
    folder = path.parent
    if not folder.is_dir():
        raise Refusal(f"{path}: there is no folder {str(folder)!r}")
    if not os.access(folder, os.W_OK):
        raise Refusal(f"{path}: {str(folder)!r} cannot be written to")
