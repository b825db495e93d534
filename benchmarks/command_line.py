"""How long the command line takes to say what it can do, and the import of t2t."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.measure import REPEATS, Figures, Row

TIMES_PYTHON = 6
MOST_SECONDS = 0.3
COMMANDS = (
    ("t2t --help", ("-m", "t2t", "--help")),
    ("t2t convert --help", ("-m", "t2t", "convert", "--help")),
)
# What a service imports, after torch.
TORCH = "import torch"
T2T = "import torch, t2t; t2t.TRTModule; t2t.converter"
MOST_SECONDS_MORE = 0.5


def _seconds(arguments: Sequence[str]) -> float:
    """Return the processor's seconds of a new Python, with those of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def figures() -> list[Figures]:
    found = Figures(
        "The command line",
        "A new process of `python -m t2t`, beside `python -c pass`. Torch, which takes seconds to "
        "import, is imported by the commands that need it alone.",
        "t2t",
        "Python alone",
    )
    limit = Figures(
        "The command line, in seconds", "The same times, against a limit.", "t2t", "limit"
    )
    times: list[list[float]] = [[] for _ in range(len(COMMANDS) + 1)]
    for _ in range(1 + REPEATS):
        for taken, arguments in zip(
            times, (("-c", "pass"), *(arguments for _, arguments in COMMANDS)), strict=True
        ):
            taken.append(_seconds(arguments))
    plain, *ours = (statistics.median(taken[1:]) for taken in times)
    for (what, _), seconds in zip(COMMANDS, ours, strict=True):
        found.rows.append(Row.within(what, seconds, plain, TIMES_PYTHON))
        limit.rows.append(Row.within(what, seconds, MOST_SECONDS, 1))
    return [found, limit, _import()]


def _import() -> Figures:
    result = Figures(
        "The import",
        f"`{T2T}` in a new process, less what `{TORCH}` takes, against a limit.",
        "t2t",
        "limit",
    )
    pairs = [[_seconds(("-c", code)) for code in (TORCH, T2T)] for _ in range(1 + REPEATS)]
    torch_alone, both = (statistics.median(times) for times in zip(*pairs[1:], strict=True))
    result.rows.append(Row.within("import t2t", both - torch_alone, MOST_SECONDS_MORE, 1))
    return result
