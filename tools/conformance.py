"""Judge the reference executor by ONNX's node cases and write docs/conformance.md.

Usage: python tools/conformance.py [--output FILE]. It ends with an error where a case neither
agrees nor has a reason.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402  the checkout must be importable first
from rich.progress import track  # noqa: E402

from t2t import backend  # noqa: E402
from tools.onnx_cases import Case, Outcome, fixed, load_cases, operators, run_case  # noqa: E402
from tools.onnx_reasons import explain  # noqa: E402

_HEAD = """# Conformance of the reference executor

Written by `make conformance` ({made_by}); do not edit.

Each of ONNX's node test cases goes through NVIDIA's own `OnnxParser` into a network, which the
reference executor runs; ONNX's own test runner compares the outputs with ONNX's expected ones at
its own tolerances. Nothing of t2t's converters takes part.

| | as they are | with inputs fixed |
|-|-|-|
| cases | {total} | {left} |
| taken by the parser | {parsed} | {more} |
| agree | {agree} ({share:.1%}) | {more_agree} ({more_share:.1%}) |
| agree once ONNX's defaults are written out | {defaulted} ({both:.1%} together) | |
| do not agree, each for a reason below | {rest} | {more_rest} |
| neither agree nor have a reason | {unknown} | {more_unknown} |

"With inputs fixed": a case that the parser does not take is tried again with all inputs but the
first, else with all inputs, as initializers, because TensorRT wants sizes, axes and scales when
the engine is built.

In {changed} of the cases that agree, the network gives an output another type than ONNX; it is
converted before it is compared:
{types}.
"""


def main(arguments: Sequence[str]) -> int:
    """Run every case, write the document, and give the process's exit status."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--output", type=Path, default=ROOT / "docs" / "conformance.md")
    output = options.parse_args(arguments).output
    cases = load_cases()
    kinds = operators(cases)
    plain: list[Outcome] = []
    frozen: list[Outcome] = []
    for case in track(cases, "Running ONNX's cases", disable=not sys.stdout.isatty()):
        plain.append(_judged(case, kinds[case.name]))
        other = None if plain[-1].parsed else fixed(case)
        if other is not None:
            frozen.append(_judged(other, kinds[case.name]))
    output.parent.mkdir(exist_ok=True)
    output.write_text(document(plain, frozen), encoding="utf-8")
    unknown = [outcome for outcome in (*plain, *frozen) if outcome.problem and not outcome.reason]
    for outcome in unknown:
        sys.stderr.write(f"{outcome.name}: {outcome.problem}\n")
    parsed = sum(outcome.parsed for outcome in plain)
    agree = sum(outcome.agrees for outcome in plain)
    sys.stdout.write(f"{agree} of {parsed} parsed cases agree; see {output}\n")
    return 1 if unknown else 0


def _judged(case: Case, operator: str) -> Outcome:
    outcome = run_case(case, operator)
    if outcome.problem:
        outcome.reason, outcome.evidence = explain(case)
    return outcome


def document(plain: Sequence[Outcome], frozen: Sequence[Outcome]) -> str:
    """Write the whole document."""
    parsed = [outcome for outcome in plain if outcome.parsed]
    agree = [outcome for outcome in parsed if outcome.agrees]
    defaulted = [outcome for outcome in parsed if "another default" in outcome.reason]
    more_agree = [outcome for outcome in frozen if outcome.agrees]
    changed = [outcome for outcome in (*agree, *more_agree) if outcome.changed]
    types = Counter(text.split(": ")[1] for outcome in changed for text in outcome.changed)
    head = _HEAD.format(
        made_by=f"{backend.name()} {backend.version()}, onnx {onnx.__version__}",
        total=len(plain),
        left=len(plain) - len(parsed),
        parsed=len(parsed),
        more=len(frozen),
        agree=len(agree),
        share=len(agree) / len(parsed),
        more_agree=len(more_agree),
        more_share=len(more_agree) / len(frozen),
        defaulted=len(defaulted),
        both=(len(agree) + len(defaulted)) / len(parsed),
        rest=len(parsed) - len(agree) - len(defaulted),
        more_rest=len(frozen) - len(more_agree),
        unknown=sum(not outcome.reason for outcome in parsed if outcome.problem),
        more_unknown=sum(not outcome.reason for outcome in frozen if outcome.problem),
        changed=len(changed),
        types=", ".join(f"{text} ({count})" for text, count in types.most_common()),
    )
    return "\n".join([head, *_reasons([*parsed, *frozen]), "", *_operators(plain, frozen), ""])


def _reasons(parsed: Sequence[Outcome]) -> list[str]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in parsed:
        if outcome.problem:
            groups[outcome.reason or "no reason found"].append(outcome)
    lines = ["## Cases that do not agree", "", "Each reason was found by an experiment."]
    for reason, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines += ["", f"### {reason[0].upper()}{reason[1:]} ({len(members)})", ""]
        by_evidence: dict[str, list[str]] = defaultdict(list)
        for outcome in members:
            by_evidence[outcome.evidence or outcome.problem].append(f"`{outcome.name}`")
        for text, names in by_evidence.items():
            lines += [f"- {text}:", *(f"  - {name}" for name in names)]
    return lines


def _operators(plain: Sequence[Outcome], frozen: Sequence[Outcome]) -> list[str]:
    rows: dict[str, list[Outcome]] = defaultdict(list)
    more: dict[str, list[Outcome]] = defaultdict(list)
    for outcomes, table in ((plain, rows), (frozen, more)):
        for outcome in outcomes:
            table[outcome.operator].append(outcome)
    lines = ["## By operator", "", "The last two columns count cases with inputs fixed.", ""]
    lines += ["| operator | cases | parsed | agree | parsed so | agree so |", "|-|-|-|-|-|-|"]
    for operator, members in sorted(rows.items()):
        counts = [
            len(members),
            sum(outcome.parsed for outcome in members),
            sum(outcome.agrees for outcome in members),
            len(more[operator]),
            sum(outcome.agrees for outcome in more[operator]),
        ]
        lines.append(f"| {operator} | {' | '.join(map(str, counts))} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
