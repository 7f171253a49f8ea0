"""The explanation of a plan as one HTML page that needs nothing else: the graph, times and tables."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.measured import Measured
from heterocc.passes.explain.other import OtherReport
from heterocc.passes.explain.page_data import report_data

_PAGE = Path(__file__).parent / "page"

STYLES = ("base", "panels")
"""The files of the page's style, in order."""

SCRIPTS = (
    "format",
    "model",
    "query",
    "scopes",
    "layers",
    "layout",
    "colours",
    "drawing",
    "keys",
    "graph",
    "detail",
    "timeline",
    "tables",
    "panels",
    "compare",
    "main",
)
"""The files of the page's script, in order: each uses those before it."""


def report_html(found: Explanation, measured: Measured | None = None, other: OtherReport | None = None) -> str:
    """The page. Measured times replace estimates wherever there are some; `other` is shown beside it.

    It loads nothing: script, style and data are inside, and a policy in its head forbids any request.
    """
    parts = {
        "TITLE": html.escape(f"{found.plan.graph.name}: placement"),
        "STYLE": _joined(STYLES, "css"),
        "SCRIPT": _joined(SCRIPTS, "js"),
        "DATA": _in_script(report_data(found, measured)),
        "OTHER": _in_script(None if other is None else {"name": other.name, "report": other.data}),
    }
    # In one pass: a name of the model may look like a mark.
    return re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], (_PAGE / "page.html").read_text(encoding="utf-8"))


def _in_script(data: Any) -> str:
    """JSON that no HTML in it can end."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _joined(names: tuple[str, ...], suffix: str) -> str:
    return "\n".join((_PAGE / f"{name}.{suffix}").read_text(encoding="utf-8").rstrip() for name in names)
