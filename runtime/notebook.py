"""A session as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.feeds import TensorInfo

MOST_ROWS = 100
"""Rows of a table: a notebook keeps what it shows in its file."""


def session_html(title: str, inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo], variant: Variant) -> str:
    """The tensors, and the plan: a row for each partition, in run order.

    All text is escaped, because names come from models.
    """
    tensors = [(kind, t.name, t.dtype, t.shape_text()) for kind, of_it in _kinds(inputs, outputs) for t in of_it]
    values = variant.values
    parts = [
        (
            part.name,
            variant.devices[part.device].name,
            str(len(part.nodes)),
            ", ".join(values[v].name for v in part.inputs),
            ", ".join(values[v].name for v in part.outputs),
        )
        for part in variant.partitions
    ]
    return (
        f"<p>{escape(title.strip('<>'))}</p>"
        + _table(("", "name", "type", "shape"), tensors)
        + _table(("partition", "device", "nodes", "reads", "writes"), parts)
    )


def _kinds(inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo]) -> tuple[tuple[str, Iterable[TensorInfo]], ...]:
    return (("input", inputs), ("output", outputs))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [list(row) for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        shown.append([f"… {len(rows) - MOST_ROWS} more", *[""] * (len(titles) - 1)])
    lines = [("th", titles), *(("td", row) for row in shown)]
    return "<table>" + "".join(_row(tag, cells) for tag, cells in lines) + "</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell[:200])}</{tag}>" for cell in cells) + "</tr>"
