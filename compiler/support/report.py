"""A query's answers as JSON, as a table, as text."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from heterocc.compiler.support.query import QueryResult

MAX_REASONS = 3
"""Different reasons shown for one operator type on one device; the JSON has all."""


def as_json(result: QueryResult) -> dict[str, object]:
    """Devices, one record for each node with the reason of every no, counts and notes."""
    nodes = [
        {
            "name": node.name,
            "original": list(node.original),
            "op_type": node.op_type,
            "device": result.get(node.name),
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
        "notes": list(result.notes),
    }


def as_table(result: QueryResult) -> Group:
    """One row for each operator type: how many nodes, how many each device runs, and why not the others."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("operator", no_wrap=True)
    table.add_column("nodes", justify="right")
    for device in result.devices:
        table.add_column(device.name, justify="right", no_wrap=True)
    table.add_column("why not", overflow="fold")
    rows: dict[str, list[str]] = {}
    for node in result.graph.nodes:
        rows.setdefault(node.op_type, []).append(node.name)
    for op_type, names in sorted(rows.items()):
        counts = [sum(n not in result.refusals[d.name] for n in names) for d in result.devices]
        cells = [Text(_count(c, len(names)), style="" if c == len(names) else "red") for c in counts]
        table.add_row(Text(op_type), str(len(names)), *cells, Text("\n".join(_reasons(result, names))))
    total = len(result.graph.nodes)
    supported = [total - len(result.refusals[d.name]) for d in result.devices]
    table.add_section()
    table.add_row("all", str(total), *(_count(c, total) for c in supported), "")
    lines = [Text(f"{d.name}: {d.description}") for d in result.devices if d.description]
    lines.extend(Text(f"note: {note}") for note in result.notes)
    nowhere = result.nowhere
    if nowhere:
        labels = [result.graph.node_by_name[n].label for n in nowhere]
        more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
        lines.append(Text(f"no device runs {', '.join(labels[:5])}{more}", style="red"))
        if not any(d.last_resort for d in result.devices):
            others = " and ".join(name for name in ("CPU", "ORT") if name not in {d.name for d in result.devices})
            lines.append(Text(f"hint: query again with {others} in --devices"))
    return Group(table, *lines)


def as_text(result: QueryResult, width: int) -> str:
    """The table without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(as_table(result))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def _count(supported: int, total: int) -> str:
    return "all" if supported == total else str(supported) if supported else "none"


def _reasons(result: QueryResult, names: list[str]) -> list[str]:
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


def _who(result: QueryResult, nodes: list[str]) -> str:
    labels: Mapping[str, str] = {n: result.graph.node_by_name[n].label for n in nodes}
    return f"{labels[nodes[0]]}: " if len(nodes) == 1 else f"{len(nodes)} nodes: "
