"""A graph as one page of HTML that needs nothing else: no network, no other file.

The page holds the graph as JSON, our script and style (``assets/page.*``), and dagre, which places
the boxes. Why dagre, and under which licence, says ``assets/README.md``.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

from t2t.reference.drawing import Box, Graph

DAGRE_VERSION = "3.1.3"
"""Of assets/dagre.min.js."""


def to_html(
    graph: Graph, title: str, heat: Mapping[str, float] | None = None, label: str = ""
) -> str:
    """Return the page.

    Args:
        graph: what is drawn.
        title: the page's title.
        heat: a number for each box that is to be coloured, by its key.
        label: what the numbers are.
    """
    heat = heat or {}
    data = {
        "groups": [
            {"title": group.title, "module": group.module, "parent": group.parent}
            for group in graph.groups
        ],
        "boxes": [_box(graph, box, heat.get(box.key)) for box in graph.boxes],
        "edges": [(edge.source, edge.output, edge.target, edge.input) for edge in graph.edges],
        "heat": {"label": label} if heat else None,
    }
    # In JSON, "<" stands in strings only; escaped, no name can end the script element.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        style=_asset("page.css"),
        data=text,
        dagre_version=DAGRE_VERSION,
        dagre_licence=_asset("dagre.LICENSE"),
        # The map of its source is no part of the page.
        dagre=re.sub(r"//# sourceMappingURL=\S+\s*", "", _asset("dagre.min.js")),
        script=_asset("page.js"),
    )


def to_iframe(page: str, height: int = 640) -> str:
    """Return a page as a frame of its own, which neither styles nor scripts around it reach.

    Args:
        page: the page.
        height: of the frame, in pixels.
    """
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="network" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe>'
    )


def _asset(name: str) -> str:
    return resources.files("t2t.reference").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _box(graph: Graph, box: Box, heat: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": box.key,
        "called": graph.relative_module(box),
        "operator": box.operator,
        "kind": box.kind,
        "module": box.module,
        "family": box.family,
        "brief": box.brief,
        "attributes": box.attributes,
        "weights": box.weights,
        "outputs": box.outputs,
        "line": box.line,
        "parameters": box.parameters,
        "folded": box.folded,
        "group": box.group,
    }
    if heat is not None:
        # JSON has neither NaN nor infinity; JavaScript's Number() reads these words.
        row["heat"] = (
            heat
            if math.isfinite(heat)
            else str(heat).replace("inf", "Infinity").replace("nan", "NaN")
        )
    return row
