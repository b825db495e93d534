"""The commands that work on modules and checkpoints.

torch and t2t's parts are imported inside of the commands: they take seconds, and ``--help`` and
wrong usage need none of them.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2t.cli.running import DISAGREES, Refusal, Result, reporting, stage, table
from t2t.cli.shapes import InputShape, Named, ShapeNotationError, parse, parse_values

if TYPE_CHECKING:
    import torch

    from t2t.cli.inputs import Call, Drawer, Example
    from t2t.cli.sources import Source
    from t2t.io import Signature
    from t2t.module import TRTModule
    from t2t.verification import Report

__all__ = ["bench", "convert", "draw", "inspect", "missing", "operators", "verify"]

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)
_INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _read(read: Callable[[str], Any]) -> Callable[..., Any]:
    """Make an option's callback of a function that reads text, and raises ValueError."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(map(read, value))
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return callback


def _setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or "=" not in text:
        raise ValueError(f"{text!r}: write NAME=VALUE")
    return name, value


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r}: write a number of bytes, such as 1G, 512M or 65536")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_source = _options(
    click.argument("source"),
    click.option(
        "--set",
        "settings",
        callback=_read(_setting),
        multiple=True,
        metavar="NAME=VALUE",
        help="An argument of the factory, or a setting of the configuration.",
    ),
    click.option("--weights", type=_INPUT_FILE, help="A state_dict for the module."),
)
_inputs = _options(
    click.option(
        "--shape",
        "shapes",
        callback=_read(parse),
        multiple=True,
        metavar="[NAME[:DTYPE]=]SIZES",
        help="An input: image:float32=batch:1..8x3x224x224 (docs/cli.md).",
    ),
    click.option(
        "--example",
        "examples",
        type=_INPUT_FILE,
        multiple=True,
        help="Inputs that torch.save wrote; the sizes of several are the ranges.",
    ),
    click.option(
        "--constant",
        "constants",
        callback=_read(_setting),
        multiple=True,
        metavar="NAME=VALUE",
        help="A keyword argument that is no tensor.",
    ),
)
_drawn = _options(
    click.option(
        "--values",
        callback=_read(parse_values),
        multiple=True,
        metavar="NAME=LOW..HIGH",
        help="Where an input's random values lie; integers are 0 or 1 without it.",
    ),
    click.option("--seed", default=0, show_default=True, help="Of weights and inputs."),
)
_device = click.option("--device", help="cuda, cuda:1 or cpu; cuda where there is a GPU.")
_requires = click.option(
    "--require-engine", is_flag=True, help="Refuse to run in PyTorch where the engine cannot run."
)
_rtol = click.option("--rtol", type=click.FloatRange(min=0), help="Allowed relative error.")


@click.command()
@_source
@click.option("-o", "--output", required=True, type=_FILE, help="The checkpoint to write.")
@click.option("--engine", type=_FILE, help="Write the plain engine too, for C++ and trtexec.")
@_inputs
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
@click.option("--float64-as-float32", is_flag=True, help="Compute in float32 what is float64.")
@click.option("--tf32", is_flag=True, help="Let float32 matrix products round to 10 bits.")
@click.option("--ignore-dropout", is_flag=True, help="Convert as if dropout were off.")
@click.option("--input-name", "input_names", multiple=True, metavar="NAME", help="In order.")
@click.option("--output-name", "output_names", multiple=True, metavar="NAME", help="In order.")
@click.option("--backend", type=click.Choice(["tensorrt", "tensorrt_rtx"]), help="Which TensorRT.")
@click.option(
    "--workspace",
    callback=_read(_bytes),
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
@click.option("--timing-cache", type=_FILE, help="Kernel timings, read and written.")
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
@_rtol
@_requires
@_drawn
@_device
@reporting
def convert(
    *,
    source: str,
    settings: Sequence[tuple[str, str]],
    weights: Path | None,
    output: Path,
    engine: Path | None,
    shapes: Sequence[InputShape],
    examples: Sequence[Path],
    constants: Sequence[tuple[str, str]],
    values: Sequence[Named],
    seed: int,
    device: str | None,
    verifying: bool,
    rtol: float | None,
    require_engine: bool,
    configure: str | None,
    input_names: Sequence[str],
    output_names: Sequence[str],
    **options: Any,
) -> Result:
    r"""Convert SOURCE and write a checkpoint for t2t.load.

    SOURCE is package.module:factory, torchvision:NAME, timm:NAME, transformers:NAME or a .pt2
    file.

    \b
    t2t convert torchvision:resnet50 --shape batch:1..8x3x224x224 --fp16 -o resnet50.pt
    t2t convert mypackage.models:make --shape x=1x3x320x320 -o model.pt
    """
    _check_target(output)
    if output.suffix in (".engine", ".plan", ".trt"):
        raise Refusal(f"-o writes a checkpoint for t2t.load; --engine {output} writes the engine")
    if engine is not None:
        _check_target(engine)
    opened = _open(source, settings, weights, seed)
    from t2t.cli.sources import imported
    from t2t.conversion import convert as convert_module

    place, drawer = _torch_device(device), _drawer(values, seed)
    example = _example(opened, shapes, examples, constants, drawer, place)
    stage(f"converting {source}")
    started = time.perf_counter()
    args, kwargs = example.call
    converted = convert_module(
        _moved(opened, place),
        args,
        kwargs,
        **example.options,
        **options,
        configure=None if configure is None else imported(configure, "--configure"),
        input_names=input_names or None,
        output_names=output_names or None,
    )
    seconds = time.perf_counter() - started
    reports = []
    if verifying:
        stage("comparing it with the module")
        reports = _compare(opened, converted, example.call, drawer, place, rtol, require_engine)
    good = all(report.ok for _, report in reports)
    data = {
        "output": str(output) if good else None,
        "engine": str(engine) if engine and good else None,
        "seconds": seconds,
        **_signature_data(converted.signature),
        **_details(converted),
        "verified": _reports_data(reports) if verifying else None,
    }
    if not good:
        click.echo(
            "Error: the converted module disagrees with the original; nothing was written "
            "(--rtol allows more, --no-verify writes without comparing)",
            err=True,
        )
        return Result(data, _reports_shown(reports), DISAGREES)
    converted.save(output)
    if engine is not None:
        converted.save_engine(engine)
    data["bytes"] = output.stat().st_size
    facts = [
        ("written", f"{output} ({_megabytes(data['bytes'])}) after {seconds:.1f} s"),
        *([("engine", f"{engine} ({_megabytes(engine.stat().st_size)})")] if engine else []),
        *_facts(converted),
    ]
    return Result(data, [table(["", ""], facts), *_reports_shown(reports)])


@click.command()
@click.argument("checkpoint", type=_INPUT_FILE)
@_source
@_inputs
@click.option(
    "--random-inputs",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Besides the inputs of --example.",
)
@_rtol
@_requires
@_drawn
@_device
@reporting
def verify(
    *,
    checkpoint: Path,
    source: str,
    settings: Sequence[tuple[str, str]],
    weights: Path | None,
    shapes: Sequence[InputShape],
    examples: Sequence[Path],
    constants: Sequence[tuple[str, str]],
    random_inputs: int,
    rtol: float | None,
    require_engine: bool,
    values: Sequence[Named],
    seed: int,
    device: str | None,
) -> Result:
    """Compare CHECKPOINT with SOURCE; exit code 1 where they disagree.

    Without --shape and --example, the inputs are random, of the usual, the smallest and the largest
    sizes of the checkpoint.
    """
    place, drawer = _torch_device(device), _drawer(values, seed)
    converted = _load(checkpoint, place)
    opened = _open(source, settings, weights, seed)
    call = None
    if shapes or examples:
        call = _example(opened, shapes, examples, constants, drawer, place).call
    elif constants:
        raise Refusal("--constant goes with --shape or --example; the checkpoint knows its own")
    reports = _compare(
        opened, converted, call, drawer, place, rtol, require_engine, random_inputs, sizes=not call
    )
    data = _reports_data(reports)
    return Result(data, _reports_shown(reports), 0 if data["ok"] else DISAGREES)


@click.command()
@click.argument("file", type=_INPUT_FILE)
@reporting
def inspect(*, file: Path) -> Result:
    """Show what FILE takes, returns and was built for: a checkpoint or a plain engine."""
    import torch

    from t2t.errors import EngineError
    from t2t.module import TRTModule, load

    data: dict[str, Any] = {"file": str(file), "bytes": file.stat().st_size}
    origin = _origin(file)
    if origin is None:
        converted = load(file)
        # `load` has checked the metadata.
        metadata = json.loads(torch.load(file, weights_only=True, mmap=True)["metadata"])
        data |= {"kind": "checkpoint", "format": metadata["format"], "writer": metadata["writer"]}
    else:
        data |= {"kind": "engine", "backend": origin.backend, "backend_version": origin.version}
        try:
            converted = TRTModule.from_engine(file)
        except EngineError as error:
            data["unreadable"] = str(error)
            return Result(
                data,
                [
                    table(
                        ["", ""],
                        [
                            ("engine", f"{file} ({_megabytes(data['bytes'])})"),
                            ("built by", str(origin)),
                            (
                                "inputs, outputs",
                                f"only the TensorRT that runs it can read them: {error}",
                            ),
                        ],
                    )
                ],
            )
    data |= {**_signature_data(converted.signature), **_details(converted)}
    facts = [(data["kind"], f"{file} ({_megabytes(data['bytes'])})"), *_facts(converted)]
    if "writer" in data:
        facts.append(("written by", f"{data['writer']}, format {data['format']}"))
    return Result(data, [table(["", ""], facts)])


@click.command()
@_source
@_inputs
@click.option("--max-batch-size", type=click.IntRange(min=1), help="As for convert.")
@_drawn
@reporting
def missing(
    *,
    source: str,
    settings: Sequence[tuple[str, str]],
    weights: Path | None,
    shapes: Sequence[InputShape],
    examples: Sequence[Path],
    constants: Sequence[tuple[str, str]],
    max_batch_size: int | None,
    values: Sequence[Named],
    seed: int,
) -> Result:
    """List what keeps SOURCE from being converted; exit code 1 where there is something."""
    opened = _open(source, settings, weights, seed)
    from t2t.lowering import missing_operators

    place = _torch_device("cpu")
    example = _example(opened, shapes, examples, constants, _drawer(values, seed), place)
    found = missing_operators(
        opened.module, *example.call, **example.options, max_batch_size=max_batch_size
    )
    shown = found or [f"Nothing is missing: {source} can be converted."]
    return Result({"missing": found}, shown, DISAGREES if found else 0)


@click.command()
@click.argument("checkpoint", type=_INPUT_FILE)
@click.option(
    "--sizes",
    type=click.Choice(["usual", "min", "max"]),
    default="usual",
    show_default=True,
    help="Which of the sizes that it was built for.",
)
@click.option("--runs", default=50, show_default=True, type=click.IntRange(min=1))
@click.option("--warmup", default=5, show_default=True, type=click.IntRange(min=0))
@_requires
@_drawn
@_device
@reporting
def bench(
    *,
    checkpoint: Path,
    sizes: str,
    runs: int,
    warmup: int,
    require_engine: bool,
    values: Sequence[Named],
    seed: int,
    device: str | None,
) -> Result:
    """Time CHECKPOINT on this machine: from the call until the result is there."""
    from t2t.cli.inputs import calls, to_device

    place, drawer = _torch_device(device), _drawer(values, seed)
    converted = _load(checkpoint, place)
    converted.require_engine = require_engine
    drawn = list(calls(converted.signature, drawer))
    shapes, call = drawn[{"usual": 0, "min": min(1, len(drawn) - 1), "max": -1}[sizes]]
    args, kwargs = to_device(call, place)
    with _reference_allowed():
        times = _times(lambda: converted(*args, **kwargs), place, runs, warmup)
    ran = converted.ran_on
    assert ran is not None
    deciles = statistics.quantiles(times, n=10) if len(times) > 1 else times * 9
    data: dict[str, Any] = {
        "ran_on": ran.to_dict(),
        "shapes": dict(zip(converted.input_names, shapes, strict=True)),
        "runs": runs,
        "median_seconds": statistics.median(times),
        "min_seconds": min(times),
        "p90_seconds": deciles[8],
    }
    facts = [
        ("ran on", ran.place),
        ("inputs", ", ".join(f"{name} {_sizes(shape)}" for name, shape in data["shapes"].items())),
        *((name, f"{data[f'{name}_seconds'] * 1e3:.3f} ms") for name in ("median", "min", "p90")),
    ]
    shown: list[Any] = [table(["", ""], facts)]
    if not ran.is_engine:
        shown.append(
            f"No engine ran: {ran.reason}.\nThese are times of PyTorch's reference executor, which "
            "checks results; they say nothing of TensorRT's speed."
        )
    return Result(data, shown)


@click.command()
@click.argument("checkpoint", type=_INPUT_FILE)
@click.option("-o", "--output", required=True, type=_FILE, help="net.html or net.dot")
@reporting
def draw(*, checkpoint: Path, output: Path) -> Result:
    """Draw the network of CHECKPOINT: a page for the browser (.html), or Graphviz's language."""
    from t2t.files import written_whole
    from t2t.module import load

    _check_target(output)
    program = load(checkpoint).program
    if program is None:
        raise Refusal(f"{checkpoint} has no program: convert the module without --no-program")
    ways = {".html": program.to_html, ".dot": program.to_dot}
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
    import fnmatch
    import importlib

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


def _open(
    text: str, settings: Sequence[tuple[str, str]], weights: Path | None, seed: int
) -> Source:
    from t2t.cli.sources import open_source, plain_value

    stage(f"loading {text}")
    plain = {name: plain_value(value) for name, value in settings}
    source = open_source(text, settings=plain, weights=weights, seed=seed)
    for note in source.notes:
        click.echo(f"Note: {note}", err=True)
    return source


def _torch_device(text: str | None) -> torch.device:
    import torch

    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise Refusal(f"--device {text!r}: say cuda, cuda:1 or cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refusal(f"--device {text}: torch finds no GPU here (t2t doctor says more)")
    return device


def _drawer(values: Sequence[Named], seed: int) -> Drawer:
    from t2t.cli.inputs import Drawer

    return Drawer(dict(values), seed)


def _example(
    source: Source,
    shapes: Sequence[InputShape],
    files: Sequence[Path],
    constants: Sequence[tuple[str, str]],
    drawer: Drawer,
    device: torch.device,
) -> Example:
    from t2t.cli.inputs import Example, example_of, to_device
    from t2t.cli.sources import plain_value

    plain = {name: plain_value(value) for name, value in constants}
    try:
        example = example_of(source, shapes, files, plain, drawer)
    except ShapeNotationError as error:
        raise Refusal(f"--shape: {error}") from error
    return Example(to_device(example.call, device), example.options)


def _moved(source: Source, device: torch.device) -> Callable[..., Any]:
    import torch

    module = source.module
    return module.to(device) if isinstance(module, torch.nn.Module) else module


def _origin(file: Path) -> Any:
    """Say who built a plain engine; None for other files."""
    from t2t.runtime.plans import as_plan, origin_of

    with file.open("rb") as opened:
        return origin_of(as_plan(opened.read(64) or b"\0"))


def _load(file: Path, device: torch.device) -> TRTModule:
    from t2t.module import TRTModule, load

    return load(file) if _origin(file) is None else TRTModule.from_engine(file, device=device)


@contextmanager
def _reference_allowed() -> Iterator[None]:
    """Silence the warning about the reference executor, where the command itself says it."""
    from t2t.module import ReferenceExecutionWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceExecutionWarning)
        yield


def _compare(
    source: Source,
    converted: TRTModule,
    call: Call | None,
    drawer: Drawer,
    device: torch.device,
    rtol: float | None,
    require_engine: bool,
    random_inputs: int = 1,
    sizes: bool = True,
) -> list[tuple[str, Report]]:
    """Compare on the example, and on random inputs of the usual, smallest and largest sizes."""
    from t2t.cli.inputs import calls, to_device
    from t2t.verification import verify as compare

    todo = [] if call is None else [("the example", call, random_inputs)]
    if sizes:
        shaped = list(calls(converted.signature, drawer))
        # The example has the usual sizes.
        todo += [
            (", ".join(map(_sizes, shapes)), drawn, 0 if todo or number else random_inputs)
            for number, (shapes, drawn) in enumerate(shaped)
            if not (todo and number == 0)
        ]
    module = _moved(source, device)
    reports = []
    with _reference_allowed():
        for name, (args, kwargs), more in todo:
            report = compare(
                module,
                converted,
                *to_device((args, kwargs), device),
                random_inputs=more,
                rtol=rtol,
                require_engine=require_engine,
            )
            reports.append((name, report))
    return reports


def _reports_data(reports: Sequence[tuple[str, Report]]) -> dict[str, Any]:
    return {
        "ok": all(report.ok for _, report in reports),
        "reports": [{"inputs": name, **json.loads(r.to_json())} for name, r in reports],
    }


def _reports_shown(reports: Sequence[tuple[str, Report]]) -> list[Any]:
    """Lay out all reports as one table, under what is the same for all."""
    if not reports:
        return []
    ran_on = dict.fromkeys(place for _, report in reports for place in report.ran_on)
    runs = sum(report.runs for _, report in reports)
    verdict = "same as" if all(report.ok for _, report in reports) else "DIFFERENT from"
    tolerance = max(report.rtol for _, report in reports)
    lines = [
        f"\n{verdict} the original on {runs} inputs (relative error up to {tolerance:.0e} allowed)",
        *(f"run by the {place}" for place in ran_on),
        *(f"on {name}: {report.problem}" for name, report in reports if report.problem),
    ]
    rows = [
        (
            name,
            output.name,
            str(output.dtype).removeprefix("torch."),
            _sizes(output.shape),
            f"{output.max_abs_error:.2e}",
            f"{output.max_rel_error:.2e}",
            f"{output.min_cosine:.6f}",
            "yes" if output.ok else "NO",
            output.note,
        )
        for name, report in reports
        for output in report.outputs
    ]
    head = ["inputs", "output", "type", "shape", "max abs", "max rel", "cosine", "same", ""]
    return [*lines, *([table(head, rows)] if rows else [])]


def _times(run: Callable[[], Any], device: torch.device, runs: int, warmup: int) -> list[float]:
    import torch

    def finished() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(warmup):
        finished()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        finished()
        times.append(time.perf_counter() - started)
    return times


def _signature_data(signature: Signature) -> dict[str, Any]:
    data = signature.to_data()
    return {
        "inputs": data["inputs"],
        "outputs": data["outputs"],
        "dimensions": data["dimensions"],
        "profiles": data["profiles"],
        "notes": list(data["notes"]),
    }


def _details(converted: TRTModule) -> dict[str, Any]:
    engine, program = converted.engine, converted.program
    return {
        **converted.details,
        "engine_bytes": None if engine is None else engine.plan.numel(),
        "program_layers": None if program is None else len(program.layers),
    }


def _facts(converted: TRTModule) -> list[tuple[str, str]]:
    """Describe a converted module, a line each."""
    signature, details = converted.signature, converted.details
    engine, program = converted.engine, converted.program
    facts = [("converted from", str(details["original"]))] if details.get("original") else []
    for name, specs in (("input", signature.inputs), ("output", signature.outputs)):
        facts += [(name, str(spec)) for spec in specs]
    names = [spec.name for spec in signature.inputs]
    for dimension in signature.dimensions:
        places = ", ".join(f"dimension {p.dim} of {names[p.input]}" for p in dimension.places)
        facts.append(("size", f"{dimension.rule(dimension.places[0])}: {places}"))
    for number, profile in enumerate(signature.profiles):
        texts = (f"{n} {' .. '.join(map(_sizes, t))}" for n, t in zip(names, profile, strict=True))
        facts.append((f"profile {number}", ", ".join(texts)))
    for spec in signature.inputs:
        if spec.opt_shape is not None:
            facts.append(("tuned for", f"{spec.name} {_sizes(spec.opt_shape)}"))
    facts += [("note", note) for note in signature.notes]
    if engine is not None:
        gpus = ", ".join(details.get("compute_capabilities") or ())
        facts += [
            ("precision", str(details.get("precision") or "not known")),
            ("engine", f"{_megabytes(engine.plan.numel())}, built by {engine.origin}"),
            *([("built for", f"compute capability {gpus}")] if gpus else []),
        ]
    layers = f"{len(program.layers)} layers, run in PyTorch without the engine" if program else "no"
    return [*facts, ("program", layers)]


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
