"""An explanation as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterocc.passes.explain.explanation import Explanation, OtherPlan
from heterocc.passes.explain.reasons import Alternative, NodeReason
from heterocc.passes.show.printer import count, human_bytes, human_seconds, summary
from heterocc.passes.text import escaped, one_line

NAMED = 3
"""Names shown of nodes with the same reason."""


def explanation_text(found: Explanation, *, notes: bool = True) -> str:
    """Summary, `notes`, plans side by side, partitions, transfers, and nodes grouped by their reason."""
    lines = [f"{one_line(found.plan.graph.name)}, policy {found.policy}: {summary(found.plan)}"]
    lines += [f"note: {note}" for note in found.notes if notes]
    if found.others:
        lines += ["", *_table(("plans", "nodes", "partitions", "transfers", "bytes", "estimated", "measured"),
                              [_plan_row(o) for o in found.others])]  # fmt: skip
        lines += [f"{o.name}: not possible: {o.why_not}" for o in found.others if o.why_not is not None]
    rows = [
        (
            f"p{p.index}",
            p.device,
            str(len(p.nodes)),
            _time(p.seconds),
            f"{human_bytes(p.bytes_in)} in",
            f"{human_bytes(p.bytes_out)} out",
        )
        for p in found.partitions
    ]
    lines += ["", *_table(("partitions", "device", "nodes", "estimated", "transfers", ""), rows)]
    if found.transfers:
        lines += ["", "transfers"]
    for t in found.transfers:
        lines.append(f"  {t.value}: {t.source} -> {t.target}, {human_bytes(t.nbytes)}, {_time(t.seconds)}")
        lines.append(f"    {t.sentence}")
    lines += ["", "nodes"]
    groups: dict[tuple[str, str], list[NodeReason]] = {}
    for reason in found.nodes:
        groups.setdefault((reason.device, reason.sentence), []).append(reason)
    for (device, sentence), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        names = ", ".join(f"{m.op_type} '{one_line(m.label)}'" for m in members[:NAMED])
        more = f" and {len(members) - NAMED} more" if len(members) > NAMED else ""
        lines.append(f"  {device}, {count(len(members), 'node')}: {names}{more}")
        lines.append(f"    {sentence}")
    return "\n".join(map(escaped, lines)) + "\n"


def nodes_text(nodes: Sequence[NodeReason]) -> str:
    """Every node with its device, reason, time, and what other devices would cost."""
    lines = []
    for reason in nodes:
        place = f"{reason.device}, p{reason.partition}, {_time(reason.seconds)}"
        lines.append(f"{reason.op_type} '{one_line(reason.label)}': {place}")
        lines.append(f"  why: {reason.sentence}")
        lines += [f"  {o.device}: {_alternative(o)}" for o in reason.others]
    return "\n".join(map(escaped, lines)) + "\n"


def _alternative(other: Alternative) -> str:
    if other.reason is not None:
        return f"not possible: {other.reason}"
    if other.seconds is None:
        return "possible"
    if math.isinf(other.seconds):
        return "not possible: it is not linked to the devices of its neighbours"
    less = "less" if other.seconds < 0 else "more"
    return f"a run would take {human_seconds(abs(other.seconds))} {less}, with this node alone moved"


def _plan_row(other: OtherPlan) -> tuple[str, ...]:
    if other.why_not is not None:
        return (other.name, "-", "-", "-", "-", "-", "-")
    nodes = ", ".join(f"{device} {number}" for device, number in other.devices)
    return (
        f"{other.name} (this plan)" if other.chosen else other.name,
        nodes,
        str(other.partitions),
        str(other.transfers),
        human_bytes(other.nbytes),
        _time(other.seconds),
        "-" if other.measured is None else human_seconds(other.measured),
    )


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else human_seconds(seconds)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [list(heads), *map(list, rows)]
    keep = [i for i in range(len(heads)) if any(row[i] not in ("", "-") for row in cells[1:])]
    widths = {i: max(len(row[i]) for row in cells) for i in keep}
    return ["  ".join(row[i].ljust(widths[i]) for i in keep).rstrip() for row in cells]
