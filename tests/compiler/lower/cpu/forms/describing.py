"""A form in one line: its writer, and the numbers of its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import Filter
from heterocc.compiler.lower.cpu.generate.convolution.filtering.model import Blocks
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import is_number

FIELDS = {
    "isa": "lanes",
    "channel_runs": "channels",
    "row_runs": "rows",
    "tiles": "pixels",
    "pixel_runs": "pixels",
    "vector_runs": "vectors",
    "column_runs": "vectors",
    "rows": "lines",
    "chunks": "chunks",
    "blocks": "blocks",
    "parts": "parts",
    "height": "height",
    "planes": "planes",
    "strip": "strip",
    "filter": "filter",
    "copies": "copies",
    "in_turn": "block",
}
"""The attributes of writers that the table shows, where a writer has them, with their names in it."""


def described(writer: Any) -> str:
    """The form that a writer writes: its module, its class if that is named, and what it has of FIELDS.

    Tiles are runs of count times size. A number that is known only at run time is "any".
    """
    form = type(writer).__module__.rpartition("generate.")[2]
    name = type(writer).__name__
    form += "" if name.startswith("_") else f".{name}"
    blocks = getattr(writer, "blocks", None)  # of minimal filtering, they have the tiles
    texts = [(label, _text(getattr(writer, field, getattr(blocks, field, None)))) for field, label in FIELDS.items()]
    return " ".join([form, *(f"{label}={text}" for label, text in texts if text)])


def _text(value: object) -> str:
    """A field's value; empty for one that says nothing: none, no, and one of something."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return "" if value in (0, 1) else str(value)
    if hasattr(value, "expr"):
        return "any"
    if isinstance(value, Isa):
        return str(value.lanes)
    if isinstance(value, Filter):
        return f"{value.outputs}x{value.outputs}"
    if isinstance(value, Blocks):
        return _without_spaces(str(value)) if is_number(value.count) else "any"
    if isinstance(value, tuple | list):
        return "+".join(filter(None, map(_run_text, value)))
    if value is None:
        return ""
    has_text = isinstance(value, str) or "__str__" in vars(type(value))
    return _without_spaces(str(value) if has_text else type(value).__name__)


def _without_spaces(text: str) -> str:
    return text.replace(", ", ",").replace(" ", "_")


def _run_text(run: Any) -> str:
    """A run of tiles. Of the pixels of a part of a row, those of the run alone."""
    if isinstance(run, Sequence):
        return _run_text(run[-1]) if run and isinstance(run[-1], Run) else ""
    if not hasattr(run, "count"):
        return ""
    count, size = (str(n) if is_number(n) else "any" for n in (run.count, run.size))
    return f"{count}*{size}"
