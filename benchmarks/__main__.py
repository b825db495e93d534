"""Run the benchmarks: ``python -m benchmarks [conversion recurrent memory command_line ...]``.

Without names it runs all of them and writes docs/benchmarks.md. The exit status is 1 when a figure
is not what it should be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    command_line,
    conversion,
    deployment,
    dynamic,
    engine_cache,
    execution,
    memory,
    partial,
    quantization,
    recurrent,
    tuning,
)
from benchmarks.measure import Figures, machine

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
FAMILIES: dict[str, Callable[[], list[Figures]]] = {
    "conversion": conversion.figures,
    "dynamic": dynamic.figures,
    "engine_cache": engine_cache.figures,
    "recurrent": recurrent.figures,
    "memory": memory.figures,
    "partial": partial.figures,
    "execution": execution.figures,
    "command_line": command_line.figures,
    "deployment": deployment.figures,
    "quantization": quantization.figures,
    "tuning": tuning.figures,
}


def headings(figures: Figures) -> list[str]:
    return ["", figures.ours, figures.theirs, "ratio", "should be", "holds"]


def cells(figures: Figures) -> list[list[str]]:
    return [
        [r.what, r.ours, r.theirs, f"{r.ratio:.2f}", r.wanted, "yes" if r.good else "NO"]
        for r in figures.rows
    ]


def show(figures: Figures, console: Console) -> None:
    table = Table(*headings(figures), title=figures.title, title_justify="left")
    for row in cells(figures):
        table.add_row(*row)
    console.print(table)


def page(all_figures: list[Figures]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    text = [
        "# Benchmarks",
        "Written by `make bench`; do not edit. All figures of a row come from one run, "
        "measured in turn, and are medians of five or more. Times are of the processor, in all "
        "threads of the process, so that other programs on the machine do not change them much.",
        f"Machine: {facts}.",
    ]
    for figures in all_figures:
        rows = [headings(figures), ["---"] * 6, *cells(figures)]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        text += [f"## {figures.title}", figures.about, table]
    return "\n\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(FAMILIES)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    console = Console(width=110)
    all_figures = []
    for name in names or FAMILIES:
        for figures in FAMILIES[name]():
            show(figures, console)
            all_figures.append(figures)
    if not names:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(all_figures), encoding="utf-8")
        console.print(f"Written to {PAGE.name}")
    return 0 if all(row.good for figures in all_figures for row in figures.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
