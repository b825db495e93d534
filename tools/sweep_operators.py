"""Judge every converter by PyTorch's own samples and write docs/opinfo.md.

Usage: python tools/sweep_operators.py [--only PATTERN,...] [--limit SECONDS]
                                       [--fresh | --redo | --document] [--partial]

Each operator runs in a process of its own with a time limit; what it gave is kept in
out/opinfo.jsonl, so that a sweep that was interrupted goes on where it stopped. `--fresh` starts
anew (with --only: those operators), `--redo` judges again what is not ok, `--document` only writes
the document, in which a part stays that no records are kept of. `--partial` judges fewer samples,
converted with partial=True, also of operators that TensorRT cannot have
(out/opinfo-partial.jsonl, the last part of the document). It ends with an error where an operator
is wrong, crashes or is not built.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.progress import track

from t2t import backend
from tools.operator_samples import DTYPES, FORMS, Outcome, judged

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "out" / "opinfo.jsonl"
PARTIAL = ROOT / "out" / "opinfo-partial.jsonl"
TARGET = ROOT / "docs" / "opinfo.md"
FAILURES = ("WRONG", "CRASH", "BUILD")
CONVERSIONS = ("dynamic", "fp16")

# What TensorRT cannot have, by name: random numbers, uninitialized memory, decompositions of
# linear algebra, sparse tensors, other devices' kernels, complex numbers.
LEFT_OUT = {
    reason: names.split()
    for reason, names in {
        "random numbers": "*rand* *normal normal* bernoulli cauchy exponential geometric uniform "
        "multinomial *dropout* poisson* *rrelu",
        "uninitialized memory": "empty* new_empty* resize*",
        "linear algebra": "cholesky* eig* geqrf lu* ormqr qr svd* pca_lowrank triangular_solve "
        "pinverse logdet matrix_exp linalg.*",
        "sparse tensors": "*sparse*",
        "nested tensors": "*jagged*",
        "kernels of other devices": "torch._scaled_mm* *_flash_attention* *_efficient_attention*",
        "complex numbers": "fft.* stft istft *complex* imag polar chalf cfloat cdouble",
    }.items()
}
# With partial=True these stay in PyTorch.
IN_PYTORCH = ("linear algebra", "complex numbers")
FEW = 4
"""Samples of each dtype with partial=True, where each is built."""

# What these patterns catch too, and TensorRT can have.
TAKEN = [
    "__rand__",
    *(f"linalg.{name}" for name in ("norm", "vector_norm", "matrix_norm", "matrix_power")),
    *(f"linalg.{name}" for name in ("cross", "diagonal", "vecdot", "vander", "multi_dot")),
    *(f"linalg.{name}" for name in ("inv", "inv_ex", "det", "slogdet", "solve", "solve_ex")),
    *(f"linalg.{name}" for name in ("solve_triangular", "cholesky")),
    *("linalg.cholesky_ex", "logdet", "cholesky", "cholesky_solve"),
]

_HEAD = """# Converters, judged by PyTorch's own samples

Written by `make sweep-operators` ({backend} {version}, torch {torch}); do not edit.

PyTorch tests its operators with samples of its own (`op_db`). Here each sample's tensors are the
inputs of a network of one call, everything else is constant; the reference executor runs it on the
sample and on the same numbers in another order (integers stay), and must give PyTorch's dtypes,
shapes and values (relative tolerance 1e-4, half 1e-2). One network of each operator and dtype is
built by the real builder in each form. Samples of each operator, spread over all that there are:
up to {counts}.

A few of them are not only spelt as functions, looked up by name, but also as functions that were
captured before the conversion (as `from torch import ...` does), as methods, in place, and with
`out=`; converted with every size above 1 dynamic (*dynamic*: run with larger ones too, the ranges
narrowed to where the trace holds); and with `fp16=True` (*fp16*: compared with float32 at 2e-2).

| | operators | {forms} |
|-|-|{dashes}|
{totals}

An operator counts under the worst that happened to one of its samples. *refused* means that the
conversion raises an error that names the operator, the reason and the line; those of dynamic sizes
and fp16 count in their columns only. {checks} of the refusals are not a converter's own but come
from a check of its layers. {skipped} samples were left out because PyTorch gives no tensor, or
another one in each call.
"""


_PARTIAL_HEAD = """## With partial=True

{operators} operators, up to {few} samples of each dtype, also linear algebra and complex numbers,
each between calls that are engines and converted with `partial=True`: what TensorRT cannot have is
to stay in PyTorch. The module that is returned runs on the sample and on its numbers in another
order. Random numbers are left out, but where PyTorch's samples set a seed of their own, which
steps of a converted module do not do. *untraceable* means that `torch.export` refuses the call,
too, for the reason that stands there; a model that makes it has its submodules converted instead.

| | samples |
|-|-|
{totals}
"""


def main(arguments: Sequence[str]) -> int:
    """Run the sweep, write the document, and give the process's exit status."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="*", help="operators to judge, as shell patterns")
    options.add_argument("--limit", type=float, default=120, help="seconds for one operator")
    options.add_argument("--fresh", action="store_true", help="forget earlier results")
    options.add_argument("--redo", action="store_true", help="judge again what is not ok")
    options.add_argument("--partial", action="store_true", help="convert with partial=True")
    options.add_argument("--document", action="store_true", help="only write the document")
    given = options.parse_args(arguments)
    if not given.document:
        _sweep(given, lambda outcomes: _is_done(outcomes, given))
    records = _read(PARTIAL if given.partial else RECORDS)
    before = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    TARGET.write_text(document(_read(RECORDS), _read(PARTIAL), before), encoding="utf-8")
    failed = [name for name, outcomes in records.items() if _worst(outcomes) in FAILURES]
    for name in failed:
        sys.stderr.write(f"{name}: {_worst(records[name])}\n")
    return 1 if failed else 0


def _is_done(outcomes: list[dict[str, str]], given: argparse.Namespace) -> bool:
    """Return whether what is known of an operator is to be kept."""
    return not given.fresh and not (given.redo and _worst(outcomes) != "ok")


def _sweep(given: argparse.Namespace, is_done: Callable[[list[dict[str, str]]], bool]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Here and not above, as it takes ten seconds that --document need not wait.
    from torch.testing._internal.common_methods_invocations import op_db

    path = PARTIAL if given.partial else RECORDS
    known = _read(path)
    taken = ("", *IN_PYTORCH) if given.partial else ("",)
    patterns = given.only.split(",")
    ops = [op for op in op_db if any(fnmatch.fnmatchcase(_name(op), p) for p in patterns)]
    ops = [op for op in ops if left_out(op.name) in taken]
    ops = [op for op in ops if _name(op) not in known or not is_done(known[_name(op)])]
    for op in ops:
        known.pop(_name(op), None)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(_line(n, o) for n, o in known.items()), encoding="utf-8")
    for op in track(ops, "Judging operators", disable=not sys.stdout.isatty()):
        outcomes = _apart(op, given.limit, given.partial)
        with path.open("a", encoding="utf-8") as file:
            file.write(_line(_name(op), outcomes))


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def left_out(name: str) -> str:
    """Return why an operator is left out; empty where it is not."""
    for reason, patterns in LEFT_OUT.items():
        if name not in TAKEN and any(fnmatch.fnmatchcase(name, p) for p in patterns):
            return reason
    return ""


def _apart(op: Any, limit: float, partial: bool) -> list[dict[str, str]]:
    """Judge an operator in a process of its own: it may hang, crash, or eat memory."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_judge_all, args=(op, sender, partial))
    process.start()
    sender.close()
    outcomes = []
    try:
        while receiver.poll(limit):
            outcomes.append(receiver.recv())
        outcomes.append(Outcome("", "", "", "CRASH", f"no result within {limit} s").to_dict())
        process.kill()
    except EOFError:
        process.join()
    if process.exitcode:
        text = f"the process ended with {process.exitcode}"
        outcomes.append(Outcome("", "", "", "CRASH", text).to_dict())
    return outcomes


def _judge_all(op: Any, sender: Any, partial: bool) -> None:
    for dtype, count, variants in DTYPES:
        if dtype in op.dtypes:
            count = min(count, FEW) if partial else count
            for outcome in judged(op, dtype, count, variants, partial=partial):
                sender.send(outcome.to_dict())
    sender.close()


def _line(name: str, outcomes: Iterable[dict[str, str]]) -> str:
    return json.dumps({"op": name, "outcomes": list(outcomes)}) + "\n"


def _read(path: Path) -> dict[str, list[dict[str, str]]]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {entry["op"]: entry["outcomes"] for entry in map(json.loads, lines)}


def _worst(outcomes: Iterable[dict[str, str]]) -> str:
    verdicts = {
        outcome["verdict"]
        for outcome in outcomes
        if outcome["verdict"] in FAILURES or outcome["form"] not in CONVERSIONS
    }
    if "ok" in verdicts and "refused" in verdicts and not verdicts & set(FAILURES):
        return "partly refused"
    order = (*FAILURES, "refused", "untraceable", "ok")
    return next((verdict for verdict in order if verdict in verdicts), "skipped")


def document(
    records: dict[str, list[dict[str, str]]],
    partial: dict[str, list[dict[str, str]]],
    before: str = "",
) -> str:
    """Write the whole document: of whole conversions and of partial ones.

    A part of which no records are kept here stays as it was ``before``.
    """
    title = _PARTIAL_HEAD.partition("\n")[0]
    first, _, second = before.partition(title)
    first = _whole_part(records) if records else first
    return first + ("\n".join(_partial_part(partial)) if partial else title + second)


def _whole_part(records: dict[str, list[dict[str, str]]]) -> str:
    """Write what whole conversions gave: a summary, and a row for each operator."""
    classes = Counter(_worst(outcomes) for outcomes in records.values())
    everything = [o for outcomes in records.values() for o in outcomes]
    counts = Counter((o["verdict"], o["form"] or "function") for o in everything)
    kinds = ("ok", "partly refused", "refused", *FAILURES)
    totals = [
        f"| {kind} | {classes[kind]} | "
        + " | ".join(str(counts[kind, form] or "") for form in FORMS)
        + " |"
        for kind in kinds
    ]
    head = _HEAD.format(
        backend=backend.name(),
        version=backend.version(),
        torch=torch.__version__,
        counts=", ".join(f"{n} {str(d).removeprefix('torch.')}" for d, n, _ in DTYPES),
        totals="\n".join(totals),
        forms=" | ".join(FORMS),
        dashes="|".join("-" for _ in FORMS),
        checks=sum("[check]" in o["text"] for o in everything),
        skipped=sum(o["verdict"] == "skipped" for o in everything),
    )
    reasons = ", ".join(f"{reason} ({_listed(LEFT_OUT[reason])})" for reason in LEFT_OUT)
    rows = [_row(name, outcomes) for name, outcomes in sorted(records.items())]
    table = ["| operator | worst | ok | of | what is not |", "|-|-|-|-|-|", *rows]
    return "\n".join([head, f"Left out: {reasons}.", "", "## By operator", "", *table, "", ""])


def _partial_part(records: dict[str, list[dict[str, str]]]) -> list[str]:
    """Write what partial conversions gave: a summary, and why samples are not right."""
    kinds = ("ok", "untraceable", "refused", *FAILURES)
    found = {
        kind: [
            (name, outcome)
            for name, outcomes in sorted(records.items())
            for outcome in outcomes
            if outcome["verdict"] == kind
        ]
        for kind in kinds
    }
    totals = [f"| {kind} | {len(found[kind])} |" for kind in kinds]
    rows: dict[tuple[str, str, str], int] = Counter(
        (name, kind, _reason(outcome)) for kind in kinds[1:] for name, outcome in found[kind]
    )
    table = [
        f"| {name} | {kind} | {count} | {reason.replace('|', chr(92) + '|')} |"
        for (name, kind, reason), count in rows.items()
    ]
    head = _PARTIAL_HEAD.format(operators=len(records), few=FEW, totals="\n".join(totals))
    return [head, "| operator | verdict | samples | why |", "|-|-|-|-|", *table, ""]


def _listed(patterns: Sequence[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def _row(name: str, outcomes: list[dict[str, str]]) -> str:
    static = [o for o in outcomes if o["form"] not in CONVERSIONS or o["verdict"] in FAILURES]
    counted = [outcome for outcome in static if outcome["verdict"] != "skipped"]
    good = sum(outcome["verdict"] == "ok" for outcome in counted)
    reasons: dict[str, set[str]] = defaultdict(set)
    for outcome in counted:
        if outcome["verdict"] != "ok":
            reasons[_reason(outcome)].add(outcome["dtype"])
    texts = [f"{', '.join(sorted(dtypes))}: {text}" for text, dtypes in reasons.items()]
    cell = "; ".join(texts[:3]).replace("|", "\\|")
    return f"| {name} | {_worst(outcomes)} | {good} | {len(counted)} | {cell} |"


def _reason(outcome: dict[str, str]) -> str:
    """Return the reason without the place, which is in this tool."""
    text = re.sub(r"(,? called| \(called)? at \S*operator_samples\.py.*", "", outcome["text"])
    if outcome["verdict"] == "untraceable":
        return text[:160]
    text = text.removeprefix("[check] ").partition(": ")[2] or text
    return (text if outcome["verdict"] == "refused" else f"{outcome['verdict']} {text}")[:160]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
