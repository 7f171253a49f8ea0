"""The results of a query as JSON, as rows of a table, and as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from heterocc.artifacts.errors import Hint, command_form
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.support.trial import Refusal
from heterocc.passes.graph import Graph

MAX_REASONS = 3
"""Maximum number of reasons shown for an operator type on a device; the JSON has all."""

_GAP = 3
"""Spaces between two columns of the table."""


class Answered(Protocol):
    """The interface of a query's result that reports use."""

    graph: Graph
    devices: tuple[TargetDevice, ...]
    refusals: Mapping[str, Mapping[str, Refusal]]
    notes: tuple[str, ...]

    @property
    def nowhere(self) -> tuple[str, ...]:
        """Names of the nodes that no listed device can run."""
        ...

    @property
    def affinity(self) -> dict[str, str]:
        """The current mapping node → device."""
        ...


def as_json(result: Answered) -> dict[str, object]:
    """Devices, a record for each node with the reasons of refusals, counts and notes."""
    placed = result.affinity
    nodes = [
        {
            "name": node.name,
            "original": list(node.original),
            "op_type": node.op_type,
            "device": placed.get(node.name),
            "refused": {
                d.name: {"rule": r.rule, "reason": r.reason}
                for d in result.devices
                if (r := result.refusals[d.name].get(node.name)) is not None
            },
        }
        for node in result.graph.nodes
    ]
    return {
        "model": result.graph.name,
        "devices": [
            {
                "name": d.name,
                "backend": d.backend,
                "description": d.description,
                "present": d.present,
                "software": d.software,
                "supported": len(result.graph.nodes) - len(result.refusals[d.name]),
            }
            for d in result.devices
        ],
        "nodes": nodes,
        "nowhere": list(result.nowhere),
        "notes": [command_form(note) for note in result.notes],
    }


def columns(result: Answered) -> tuple[str, ...]:
    """The headings of the table's columns: operator, nodes, one for each device, reasons."""
    return ("operator", "nodes", *(d.name for d in result.devices), "why not")


def rows(result: Answered) -> list[tuple[str, ...]]:
    """A row for each operator type: number of nodes, nodes that each device runs ("all", a number, "none"), reasons."""
    by_type: dict[str, list[str]] = {}
    for node in result.graph.nodes:
        by_type.setdefault(node.op_type, []).append(node.name)
    found = []
    for op_type, names in sorted(by_type.items()):
        counts = [sum(n not in result.refusals[d.name] for n in names) for d in result.devices]
        cells = [_count(c, len(names)) for c in counts]
        found.append((op_type, str(len(names)), *cells, "\n".join(_reasons(result, names))))
    return found


def totals(result: Answered) -> tuple[str, ...]:
    """The last row: the number of nodes that each device runs."""
    total = len(result.graph.nodes)
    return ("all", str(total), *(_count(total - len(result.refusals[d.name]), total) for d in result.devices), "")


def remarks(result: Answered) -> list[str]:
    """Lines below the table: descriptions of the devices, and notes."""
    return [
        *(f"{d.name}: {d.description}" for d in result.devices if d.description),
        *("note: " + note for note in result.notes),
    ]


def no_device(result: Answered) -> list[str]:
    """The line that names nodes that no device runs, and a hint; empty if there are none."""
    if not result.nowhere:
        return []
    labels = [result.graph.node_by_name[n].label for n in result.nowhere]
    more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
    lines = [f"no device runs {', '.join(labels[:5])}{more}"]
    if not any(d.last_resort for d in result.devices):
        others = " and ".join(name for name in ("CPU", "ORT") if name not in {d.name for d in result.devices})
        lines.append(
            Hint(f"hint: query again with {others} in `devices`", f"hint: query again with {others} in --devices")
        )
    return lines


def as_text(result: Answered, width: int) -> str:
    """The table as plain text of at most `width` columns, and the lines below it."""
    heads, body, last = columns(result), rows(result), totals(result)
    whole = [heads, *body, last]
    sizes = [max(len(line) for row in whole for line in row[i].split("\n")) for i in range(len(heads))]
    rest = width - sum(sizes[:-1]) - _GAP * (len(sizes) - 1) - 2
    sizes[-1] = max(1, min(sizes[-1], rest))
    wide = sum(sizes) + _GAP * (len(sizes) - 1)
    blank = " " * (wide + 2)
    lines = [blank, *_lines(heads, sizes), f" {'─' * wide} "]
    for row in body:
        lines += _lines(row, sizes)
    lines += [blank, *_lines(last, sizes), blank]
    for text in (*remarks(result), *no_device(result)):
        lines += _wrapped(text, width)
    return "\n".join(lines) + "\n"


def _lines(row: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
    """The lines of a row: counts aligned to the right, the last cell wrapped."""
    *cells, why = row
    first = [cells[0].ljust(sizes[0]), *(c.rjust(size) for c, size in zip(cells[1:], sizes[1:-1], strict=True))]
    gap = " " * _GAP
    for number, text in enumerate(_wrapped(why, sizes[-1])):
        shown = first if number == 0 else [" " * size for size in sizes[:-1]]
        yield f" {gap.join([*shown, text.ljust(sizes[-1])])} "


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, broken between words, or within a word that is longer than a line."""
    lines: list[str] = []
    for part in text.split("\n"):
        line = ""
        for word in re.findall(r"\s*\S+\s*", part):
            if len(line) + len(word.rstrip()) <= width:
                line += word
                continue
            if line:
                lines.append(line[:width])
            while len(word.rstrip()) > width:
                lines.append(word[:width])
                word = word[width:]
            line = word
        lines.append(line[:width])
    return lines


def _count(supported: int, total: int) -> str:
    return "all" if supported == total else str(supported) if supported else "none"


def _reasons(result: Answered, names: list[str]) -> list[str]:
    lines: list[str] = []
    for device in result.devices:
        found = result.refusals[device.name]
        by_reason: dict[str, list[str]] = {}
        for name in names:
            if name in found:
                by_reason.setdefault(found[name].reason, []).append(name)
        shown = sorted(by_reason.items(), key=lambda item: -len(item[1]))
        for reason, nodes in shown[:MAX_REASONS]:
            lines.append(f"{device.name}: {_who(result, nodes)}{reason}")
        if len(shown) > MAX_REASONS:
            lines.append(f"{device.name}: {len(shown) - MAX_REASONS} more reasons (see --json)")
    return lines


def _who(result: Answered, nodes: list[str]) -> str:
    labels: Mapping[str, str] = {n: result.graph.node_by_name[n].label for n in nodes}
    return f"{labels[nodes[0]]}: " if len(nodes) == 1 else f"{len(nodes)} nodes: "
