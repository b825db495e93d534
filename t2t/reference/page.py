"""A graph as one page of HTML: boxes in rows from top to bottom, drawn as SVG."""

from __future__ import annotations

import html
from collections import defaultdict
from dataclasses import dataclass

from t2t.reference.drawing import Box, Graph

__all__ = ["to_html"]

_LINE, _PAD, _GAP, _RISE, _CHAR = 14, 8, 24, 36, 6.6
_BEND = 2.0
_ARROW = (
    '<defs><marker id="a" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
    '<path d="M0 0L7 3L0 6z" fill="#888"/></marker></defs>'
)
_STYLE = (
    "body{margin:0;font:12px Helvetica,Arial,sans-serif;background:#fafafa}"
    "h1{font-size:15px;margin:12px}text{font-size:11px}"
    ".b rect{stroke:#555;stroke-width:1}.b text.t{font-weight:bold}"
    ".e{fill:none;stroke:#888;stroke-width:1.2}"
)


@dataclass
class _Place:
    """Where a box, or the bend of a long edge, is drawn."""

    width: float
    height: float
    x: float = 0.0
    y: float = 0.0


def to_html(graph: Graph, title: str) -> str:
    """Draw a graph on a page of its own, without scripts or other files."""
    rows, joins = _rows(graph)
    _order(rows, joins)
    places, width, height = _placed(graph, rows)
    parts = [_edge(places, source, target) for source, target in joins]
    parts += [_drawn(box, places[box.key]) for box in graph.boxes]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">'
        + _ARROW
        + "".join(parts)
        + "</svg></body></html>\n"
    )


def _rows(graph: Graph) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Give each box the row below its lowest source; long edges bend once in every row between."""
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target, _ in graph.edges:
        sources[target].append(source)
    level: dict[str, int] = {}
    # The boxes come in an order in which sources stand first; an edge back, of a loop, is left out.
    for box in graph.boxes:
        level[box.key] = 1 + max((level.get(source, -1) for source in sources[box.key]), default=-1)
    rows: list[list[str]] = [[] for _ in range(max(level.values(), default=0) + 1)]
    for box in graph.boxes:
        rows[level[box.key]].append(box.key)
    joins: list[tuple[str, str]] = []
    for index, (source, target) in enumerate(dict.fromkeys((s, t) for s, t, _ in graph.edges)):
        last = source
        for row in range(level[source] + 1, level[target]):
            bend = f"bend {index} {row}"
            rows[row].append(bend)
            joins.append((last, bend))
            last = bend
        joins.append((last, target))
    return rows, joins


def _order(rows: list[list[str]], joins: list[tuple[str, str]]) -> None:
    """Sort each row by the middle of what its boxes are joined to, down and up, four times."""
    above: dict[str, list[str]] = defaultdict(list)
    below: dict[str, list[str]] = defaultdict(list)
    for source, target in joins:
        above[target].append(source)
        below[source].append(target)
    for _ in range(4):
        for sweep, joined in ((rows, above), (rows[::-1], below)):
            place = {key: index for row in rows for index, key in enumerate(row)}
            for row in sweep:
                middle = {
                    key: sum(place[other] for other in joined[key]) / len(joined[key])
                    if joined[key]
                    else place[key]
                    for key in row
                }
                row.sort(key=lambda key, middle=middle: middle[key])  # type: ignore[misc]
                place.update({key: index for index, key in enumerate(row)})


def _placed(graph: Graph, rows: list[list[str]]) -> tuple[dict[str, _Place], float, float]:
    """Give every box and bend its size and corner, each row centred."""
    boxes = {box.key for box in graph.boxes}
    places = {
        box.key: _Place(
            max(len(line) for line in _written(box)) * _CHAR + 2 * _PAD,
            len(_written(box)) * _LINE + _PAD,
        )
        for box in graph.boxes
    }
    for row in rows:
        for key in row:
            places.setdefault(key, _Place(_BEND, 0))
    widths = [sum(places[key].width + _GAP for key in row) + _GAP for row in rows]
    full = max(widths, default=0)
    y = float(_GAP)
    for row, width in zip(rows, widths, strict=True):
        x = (full - width) / 2 + _GAP
        tallest = max(places[key].height for key in row)
        for key in row:
            if key not in boxes:
                places[key].height = tallest
            places[key].x = x
            places[key].y = y + (tallest - places[key].height) / 2
            x += places[key].width + _GAP
        y += tallest + _RISE
    return places, full, y


def _written(box: Box) -> tuple[str, ...]:
    return (box.module, *box.lines) if box.module else box.lines


def _drawn(box: Box, place: _Place) -> str:
    lines = []
    for index, line in enumerate(_written(box)):
        style = ' class="t"' if index == bool(box.module) else ""
        x, y = place.x + _PAD, place.y + _LINE * (index + 1)
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}"{style}>{html.escape(line)}</text>')
    return (
        f'<g class="b"><title>{html.escape(box.hint or box.key)}</title>'
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
        f'height="{place.height:.1f}" rx="5" fill="{box.colour}"/>{"".join(lines)}</g>'
    )


def _edge(places: dict[str, _Place], source: str, target: str) -> str:
    start, end = places[source], places[target]
    x0, y0 = start.x + start.width / 2, start.y + start.height
    x1, y1 = end.x + end.width / 2, end.y
    middle = (y0 + y1) / 2
    bends = end.width == _BEND
    last = f"V{y1 + end.height:.1f}" if bends else ""
    arrow = "" if bends else ' marker-end="url(#a)"'
    return (
        f'<path class="e" d="M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} '
        f'{x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}{last}"{arrow}/>'
    )
