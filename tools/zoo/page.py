"""The page that the sweep writes: docs/models.md."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

__all__ = ["TARGET", "Result", "versions", "write"]

TARGET = Path(__file__).resolve().parents[2] / "docs" / "models.md"
PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "segmentation-models-pytorch",
    "facenet-pytorch",
    "tensorrt-rtx-cu13",
)
HEAD = """# Models

Written by `make sweep` ({packages}); do not edit.

Every model has random weights unless its row is of `sentence/` or of MTCNN, and small inputs. Its
finished network runs in the reference executor on two different inputs and is compared with
PyTorch: the relative error is the norm of the difference over the norm of PyTorch's output, the
largest over all outputs; up to 1e-4 is right, with fp16 up to 2e-2. Then the real builder makes an
engine of it. Calls are the operators that the trace recorded and that the outputs need; seconds
are those of tracing and emitting, and of building, on one core.

{summary}

| model | calls | layers | converted (s) | built (s) | error | result |
|---|---|---|---|---|---|---|
"""


@dataclass
class Result:
    """One row of the table."""

    name: str
    calls: int = 0
    layers: int = 0
    converted: float = 0.0
    built: float = 0.0
    error: float | None = None
    result: str = "ok"

    def row(self) -> str:
        """Return the row as Markdown."""
        error = "" if self.error is None else f"{self.error:.1e}"
        seconds = [f"{n:.1f}" if n else "" for n in (self.converted, self.built)]
        cells = [self.name, self.calls or "", self.layers or "", *seconds, error, self.result]
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def versions() -> str:
    """Return the packages that models come from and their versions."""
    return ", ".join(f"{package} {version(package)}" for package in PACKAGES)


def write(results: Sequence[Result], known: Collection[str]) -> None:
    """Put the new rows into the page, in the place of older ones of the same names.

    Args:
        results: the new rows.
        known: names of all cases; rows of others are dropped.
    """
    rows: dict[str, str] = {}
    if TARGET.exists():
        for line in TARGET.read_text(encoding="utf-8").splitlines():
            if re.match(r"\| [a-z]+/", line):
                rows[line.split(" | ")[0][2:]] = line
    rows.update({result.name: result.row() for result in results})
    rows = {name: row for name, row in rows.items() if name in known}
    kinds = [row.rsplit(" | ", 1)[1].partition(":")[0].rstrip(" |") for row in rows.values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    head = HEAD.format(packages=versions(), summary=f"{len(rows)} rows: {counts}.")
    TARGET.write_text(head + "\n".join(rows[name] for name in sorted(rows)) + "\n", "utf-8")
