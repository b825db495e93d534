"""What `verify` found, as values and as a table."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

__all__ = ["OutputReport", "Report"]


@dataclass(frozen=True)
class OutputReport:
    """One output, worst of all runs.

    Attributes:
        name: its place in what the module returns: "output['boxes'][0]".
        dtype: of the original's output.
        shape: of the original's output, in the run of the note, else in the last one.
        max_abs_error: largest difference of an element; inf where only one has NaN or infinity.
        max_rel_error: norm of the difference over norm of the original's output.
        min_cosine: cosine between both outputs as vectors.
        ok: whether the relative error is at most rtol; integers and booleans must be equal.
        note: what else there is to say.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    min_cosine: float
    ok: bool
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What `verify` found; prints as a table and is true if all is well.

    Attributes:
        ok: whether everything agrees.
        outputs: a report for each output.
        runs: how many inputs were tried.
        rtol: the tolerance that was asked for, or the one for the module's precision.
        problem: why there was nothing to measure (the converted module failed, or returned another
            structure or constant), or "".
    """

    ok: bool
    outputs: tuple[OutputReport, ...]
    runs: int
    rtol: float
    problem: str = ""

    @property
    def max_abs_error(self) -> float:
        """Largest difference of an element in any output; inf if nothing could be measured."""
        return self._worst(max, [output.max_abs_error for output in self.outputs], math.inf)

    @property
    def max_rel_error(self) -> float:
        """Largest norm of a difference over the norm of the original's output."""
        return self._worst(max, [output.max_rel_error for output in self.outputs], math.inf)

    @property
    def min_cosine(self) -> float:
        """Smallest cosine between an output and the original's; -1 if nothing was measured."""
        return self._worst(min, [output.min_cosine for output in self.outputs], -1.0)

    def _worst(
        self, pick: Callable[[list[float]], float], values: list[float], unknown: float
    ) -> float:
        if self.problem:
            return unknown
        return pick(values) if values else 0.0

    def __bool__(self) -> bool:
        return self.ok

    def __rich__(self) -> Group:
        verdict = "same" if self.ok else "DIFFERENT"
        head = (
            f"{verdict} on {self.runs} inputs: max_rel_error {self.max_rel_error:.2e} "
            f"(allowed {self.rtol:.0e}), max_abs_error {self.max_abs_error:.2e}, "
            f"min_cosine {self.min_cosine:.6f}"
        )
        if self.problem:
            return Group(Text(head), Text(self.problem))
        table = Table("output", "type", "shape", "max abs", "max rel", "cosine", "ok", "note")
        for output in self.outputs:
            table.add_row(
                Text(output.name),
                str(output.dtype).removeprefix("torch."),
                str(output.shape),
                f"{output.max_abs_error:.2e}",
                f"{output.max_rel_error:.2e}",
                f"{output.min_cosine:.6f}",
                "yes" if output.ok else "NO",
                output.note,
            )
        return Group(Text(head), table)

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue().rstrip()
