"""What `verify` found, as values, as text, as JSON and as HTML."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from t2t.dtypes import dtype_name
from t2t.module import RanOn
from t2t.verification.tables import WIDTH, html_table, text_table


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


@dataclass(frozen=True, repr=False)
class Report:
    """What `verify` found; prints as a table and is true if all is well.

    Attributes:
        ok: whether everything agrees, and no more is lost by quantization than is allowed.
        outputs: a report for each output.
        runs: how many inputs were tried.
        rtol: the tolerance that was asked for, or the one for the module's precision.
        problem: why there was nothing to measure (the converted module failed, or returned another
            structure or constant), or "".
        ran_on: where the converted module ran, or each converted part of a larger one; () where it
            did not run, or is none of t2t's.
        quantization_error: of a quantized module, the norm of its difference to the original over
            the original's norm; all else is measured against the original with rounded operands.
        metric: mean of the task's own measure, of the original and of the converted module; None
            without ``verify(metric=...)``.
    """

    ok: bool
    outputs: tuple[OutputReport, ...]
    runs: int
    rtol: float
    problem: str = ""
    ran_on: tuple[RanOn, ...] = ()
    quantization_error: float | None = None
    metric: tuple[float, float] | None = None

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        outputs = [{**asdict(o), "dtype": dtype_name(o.dtype)} for o in self.outputs]
        return {
            "ok": self.ok,
            "ran_on": [place.to_dict() for place in self.ran_on],
            "max_abs_error": self.max_abs_error,
            "max_rel_error": self.max_rel_error,
            "min_cosine": self.min_cosine,
            "runs": self.runs,
            "rtol": self.rtol,
            "quantization_error": self.quantization_error,
            "metric": None if self.metric is None else list(self.metric),
            "problem": self.problem,
            "outputs": outputs,
        }

    def to_json(self) -> str:
        """Return the report as JSON; what is infinite is null there."""
        return json.dumps(_finite(self.to_dict()))

    def _head(self) -> list[str]:
        verdict = "same" if self.ok else "DIFFERENT"
        places = list(dict.fromkeys(place.place for place in self.ran_on))
        reasons = dict.fromkeys(place.reason for place in self.ran_on if place.reason)
        where = ", ".join(f"run by the {place}" for place in places)
        text = [
            f"{verdict} on {self.runs} inputs, {where or 'no module of t2t was run'}",
            *(f"no engine ran: {reason}" for reason in reasons),
            f"max_rel_error {self.max_rel_error:.2e} (allowed {self.rtol:.0e}), "
            f"max_abs_error {self.max_abs_error:.2e}, min_cosine {self.min_cosine:.6f}",
            *self._lost(),
            *self.problem.splitlines(),
        ]
        return [line for part in text for line in textwrap.wrap(part, WIDTH)]

    def _lost(self) -> list[str]:
        lines = []
        if self.metric is not None:
            lines.append("metric {:.6g}, of the original {:.6g}".format(*self.metric[::-1]))
        if self.quantization_error is None:
            return lines
        return [
            *lines,
            "compared with the original as it computes with rounded operands; from the original "
            f"itself it is {self.quantization_error:.2e} apart",
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        if self.problem:
            return []
        rows: list[tuple[str, ...]] = [
            ("output", "type", "shape", "max abs", "max rel", "cosine", "ok", "note")
        ]
        return rows + [
            (
                output.name,
                dtype_name(output.dtype),
                "x".join(map(str, output.shape)) or "scalar",
                f"{output.max_abs_error:.2e}",
                f"{output.max_rel_error:.2e}",
                f"{output.min_cosine:.6f}",
                "yes" if output.ok else "NO",
                output.note,
            )
            for output in self.outputs
        ]

    def __str__(self) -> str:
        rows = self._rows()
        return "\n".join([*self._head(), *(text_table(rows) if rows else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        marked = [place for place, output in enumerate(self.outputs, 1) if not output.ok]
        return html_table(self._head(), self._rows(), marked)


def _finite(value: Any) -> Any:
    """Replace what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
