"""The commands that work on modules and checkpoints.

torch and t2t's parts are imported inside of the commands: they take seconds, and ``--help`` and
wrong usage need none of them.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2t.cli.options import (
    CHECKPOINT,
    NEW_FILE,
    Given,
    device_option,
    drawing_options,
    engine_option,
    gathered,
    input_options,
    model_options,
    rtol_option,
    source_options,
)
from t2t.cli.running import DISAGREES, Refusal, Result, check_target, reporting, table

if TYPE_CHECKING:
    pass


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
@click.option("--diff", type=CHECKPOINT, help="Another build: show what is different in it.")
@reporting
def inspect(*, file: Path, diff: Path | None) -> Result:
    """Show what FILE takes, returns and was built for: a checkpoint, a bundle or an engine.

    With --diff, exit code 1 where the other one differs.
    """
    import torch

    from t2t.cli import converted as parts
    from t2t.errors import EngineError
    from t2t.files import read_tensors
    from t2t.module import TRTModule, load

    if diff is not None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        first, second = (parts.load_converted(path, device).inspect() for path in (file, diff))
        text = first.diff(second)
        lines = [text or f"{file} and {diff} are the same build"]
        return Result({"diff": text.splitlines()}, lines, DISAGREES if text else 0)
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
@click.option("--cuda-graph", is_flag=True, help="Time the engine with CUDA graphs, too.")
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
    cuda_graph: bool,
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
        cuda_graph=cuda_graph,
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

    check_target(output)
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
