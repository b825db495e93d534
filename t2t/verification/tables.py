"""Tables as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

WIDTH = 100
"""Characters that a line of a report may have."""

Rows = Sequence[Sequence[str]]


def text_table(rows: Rows, width: int = WIDTH) -> list[str]:
    """Lay out rows as lines of text; the first row is the head.

    Args:
        rows: cells of all columns.
        width: characters to a line; the widest cells lose their beginnings until the lines fit.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    most = width - 2 * (len(widths) - 1)
    while sum(widths) > most and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]  # fmt: skip


def _cut(cell: str, size: int) -> str:
    return cell if len(cell) <= size else "…" + cell[len(cell) - size + 1 :]


def html_table(lines: Sequence[str], rows: Rows, marked: Collection[int] = ()) -> str:
    """Lay out lines of text and a table as HTML, as notebooks show it.

    Args:
        lines: what stands above the table.
        rows: cells of all columns; the first row is the head.
        marked: rows, counted from 1, that stand out.
    """
    text = "<br>".join(html.escape(line) for line in lines)
    parts = [f"<p>{text}</p>"] if lines else []
    for index, row in enumerate(rows):
        style = ' style="font-weight:bold;color:#b00"' if index in marked else ""
        cell = "th" if index == 0 else "td"
        cells = "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row)
        parts.append(f"<tr{style}>{cells}</tr>")
    table = f"<table>{''.join(parts[bool(lines) :])}</table>" if rows else ""
    return "".join(parts[: bool(lines)]) + table
