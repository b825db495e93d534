"""Converted modules on the command line: loaded, compared, and described."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from t2t.cli.inputs import Call, calls, to_device
from t2t.cli.options import Given
from t2t.cli.running import Result, table
from t2t.cli.sources import Source
from t2t.io import Signature
from t2t.module import ReferenceExecutionWarning, TRTModule, load
from t2t.runtime.plans import Origin, as_plan, origin_of
from t2t.verification import Report, verify


def origin_of_file(file: Path) -> Origin | None:
    """Say who built a plain engine; None for other files, and for folders."""
    if file.is_dir():
        return None
    with file.open("rb") as opened:
        return origin_of(as_plan(opened.read(64) or b"\0"))


def load_converted(file: Path, device: torch.device) -> TRTModule:
    """Load a checkpoint or a bundle, or a plain engine where it can run."""
    if origin_of_file(file) is None:
        return load(file)
    return TRTModule.from_engine(file, device=device)


@contextmanager
def reference_allowed() -> Iterator[None]:
    """Silence the warning about the reference executor, where the command itself says it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceExecutionWarning)
        yield


def compare(
    source: Source,
    converted: TRTModule,
    call: Call | None,
    given: Given,
    *,
    rtol: float | None,
    require_engine: bool,
    random_inputs: int = 1,
    all_sizes: bool = True,
) -> list[tuple[str, Report]]:
    """Compare a converted module with the original.

    Args:
        source: the original.
        converted: the converted module.
        call: the example, on its device; None takes random inputs of the usual sizes.
        given: the device, and the values of random inputs.
        rtol: as in `t2t.verify`.
        require_engine: as in `t2t.verify`.
        random_inputs: how many inputs like the example to try.
        all_sizes: compare on random inputs of the smallest and the largest sizes too.

    Returns:
        What the inputs were, and the report, for each of them.
    """
    todo = [] if call is None else [("the example", call, random_inputs)]
    if all_sizes:
        for number, (shapes, drawn) in enumerate(calls(converted.signature, given.drawer)):
            if number > 0 or call is None:  # The example has the usual sizes.
                more = 0 if number else random_inputs
                todo.append((", ".join(map(sizes_text, shapes)), drawn, more))
    reports = []
    with reference_allowed():
        for name, inputs, more in todo:
            args, kwargs = to_device(inputs, given.place)
            report = verify(
                source.module,
                converted,
                args,
                kwargs,
                random_inputs=more,
                rtol=rtol,
                require_engine=require_engine,
                seed=given.seed,
            )
            reports.append((name, report))
    return reports


def reports_data(reports: Sequence[tuple[str, Report]]) -> dict[str, Any]:
    """Return all reports as plain data."""
    return {
        "ok": all(report.ok for _, report in reports),
        "reports": [{"inputs": name, **json.loads(r.to_json())} for name, r in reports],
    }


def reports_shown(reports: Sequence[tuple[str, Report]]) -> list[Any]:
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
            sizes_text(output.shape),
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


def signature_data(signature: Signature) -> dict[str, Any]:
    """Return inputs, outputs and sizes as plain data."""
    data = signature.to_data()
    return {
        "inputs": data["inputs"],
        "outputs": data["outputs"],
        "dimensions": data["dimensions"],
        "profiles": data["profiles"],
        "notes": list(data["notes"]),
    }


def details_data(converted: TRTModule) -> dict[str, Any]:
    """Return what is known of the conversion as plain data."""
    engine, program = converted.engine, converted.program
    return {
        **converted.details,
        "engine_bytes": None if engine is None else engine.plan.numel(),
        "program_layers": None if program is None else len(program.layers),
    }


def facts_shown(converted: TRTModule) -> list[tuple[str, str]]:
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
        texts = (
            f"{n} {' .. '.join(map(sizes_text, t))}" for n, t in zip(names, profile, strict=True)
        )
        facts.append((f"profile {number}", ", ".join(texts)))
    for spec in signature.inputs:
        if spec.opt_shape is not None:
            facts.append(("tuned for", f"{spec.name} {sizes_text(spec.opt_shape)}"))
    facts += [("note", note) for note in signature.notes]
    if engine is not None:
        gpus = ", ".join(details.get("compute_capabilities") or ())
        facts += [
            ("precision", str(details.get("precision") or "not known")),
            ("engine", f"{megabytes(engine.plan.numel())}, built by {engine.origin}"),
            *([("built for", f"compute capability {gpus}")] if gpus else []),
            *(("another", str(other)) for other in engine.others),
        ]
    if (why := details.get("refittable")) is not None:
        facts.append(("new weights", f"by t2t.refit only: {why}" if why else "by names"))
    if parts := converted.parts:
        return [
            *facts,
            *((part.name, part.reason or f"{part.share:.1%} of the work") for part in parts),
        ]
    layers = f"{len(program.layers)} layers, run in PyTorch without the engine" if program else "no"
    tuning = converted.tuning
    kept = ", ".join([*tuning.fp32_modules, *tuning.fp32_ops])
    facts += [("in float32", kept)] if kept else []
    if tuning.error is not None:
        facts.append(("relative error", f"{tuning.error:.2e}, allowed {tuning.tolerance:.2e}"))
    return [*facts, ("program", layers)]


def sizes_text(shape: Sequence[int]) -> str:
    """Write a shape as on the command line: "1x3x224x224"."""
    return "x".join(map(str, shape)) or "scalar"


def megabytes(size: int) -> str:
    """Write a number of bytes."""
    return f"{size / 1e6:.1f} MB"


def written(
    converted: TRTModule,
    call: Call | None,
    targets: Mapping[str, Path | None],
    seconds: float,
    reports: Sequence[Any],
) -> Result:
    """Write the files, and return what was converted.

    Args:
        converted: the module.
        call: the example, which becomes the bundle's sample; None writes none.
        targets: "output", "engine" and "bundle".
        seconds: what the conversion took.
        reports: of the comparison with the original.
    """
    output = targets["output"]
    assert output is not None
    rows = _write(converted, call, output, targets["engine"], targets["bundle"])
    data = converted_data(converted, targets, seconds, reports)
    data["bytes"] = output.stat().st_size
    facts = [*rows, ("took", f"{seconds:.1f} s"), *facts_shown(converted)]
    return Result(data, [table(["", ""], facts), *reports_shown(reports)])


def converted_data(
    converted: TRTModule,
    targets: Mapping[str, Path | None],
    seconds: float,
    reports: Sequence[Any],
) -> dict[str, Any]:
    """Return what was converted, and where it was written, as plain data."""
    return {
        **{what: str(path) if path else None for what, path in targets.items()},
        "seconds": seconds,
        **signature_data(converted.signature),
        **details_data(converted),
        "verified": reports_data(reports) if reports else None,
    }


def _write(
    converted: TRTModule, call: Call | None, output: Path, engine: Path | None, bundle: Path | None
) -> list[tuple[str, str]]:
    """Write the files, and return rows that say so."""
    from t2t.verification.trials import at_edges

    converted.save(output)
    rows = [("checkpoint", f"{output} ({megabytes(output.stat().st_size)})")]
    if engine is not None:
        converted.save_engine(engine)
        rows.append(("engine file", f"{engine} ({megabytes(engine.stat().st_size)})"))
    if bundle is not None:
        with reference_allowed():
            converted.export(bundle, *(at_edges(converted, call) if call else ()))
        rows.append(("bundle", str(bundle)))
    return rows
