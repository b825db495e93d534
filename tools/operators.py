"""Write docs/operators.md: every operator that has a converter or a formula.

python tools/operators.py          writes the file
python tools/operators.py --check  exits with 1 where it is out of date
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2t import registry

# Fills the registry.
importlib.import_module("t2t.lowering")

TARGET = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
HEAD = """# Operators

Written by `python tools/operators.py` from the registry; do not edit.

The torch functions listed here are converted as they are called; every other call arrives as an
ATen operator. In-place forms (`aten::add_`, `x[...] = y`) go through the functional operator. The
next part lists operators that t2t computes by other ones, with a formula. An operator that is not
listed is decomposed by PyTorch's own formulas into ones that are; only what remains is unsupported,
and `t2t.missing_operators(model, inputs)` lists that. The last part is for calls that take or give
complex numbers, which are pairs of real ones inside of a network; all other such calls are refused.

"fp16" says what `fp16=True` makes of an operator: *half* computes in half precision (products of
fewer than eight columns follow), *fp32* stays in float32, *follows* promotes as torch does: half
and float32 give float32. [Precision](precision.md) says more.
"""
PRECISION = {"compute": "half", "sensitive": "fp32", "follow": "follows"}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD, *_tables(registry.converters.own, "")]
    parts += _tables(registry.formulas.own, "formulas: ")
    parts += _tables(registry.complex_formulas.own, "formulas of complex numbers: ")
    return "\n".join(parts)


def _tables(entries: Mapping[str, Any], prefix: str) -> list[str]:
    families: dict[str, list[str]] = defaultdict(list)
    seen = set()
    for entry in entries.values():
        if entry.function in seen:
            continue
        seen.add(entry.function)
        same = sorted(n for n, other in entries.items() if other.function is entry.function)
        names = ", ".join(f"`{n}`" for n in same)
        doc = (inspect.getdoc(entry.function) or "").partition("\n")[0].replace("|", "\\|")
        family = entry.function.__module__.rpartition(".")[2]
        families[family].append(f"| {names} | {_precision(entry)} | {doc} |")
    parts = []
    for family, rows in sorted(families.items()):
        table = ["| operators | fp16 | conversion |", "|---|---|---|", *sorted(rows)]
        parts.append("\n".join([f"## {prefix}{family}", "", *table]) + "\n")
    return parts


def _precision(entry: Any) -> str:
    # Where it depends on the call, that is on the size of a product.
    return PRECISION["compute" if callable(entry.precision) else entry.precision]


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
        return 0
    fresh = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
    if not fresh:
        sys.stdout.write("docs/operators.md is out of date: run python tools/operators.py\n")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
