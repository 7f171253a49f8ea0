"""The plan as text: in full for dumps, golden files and bundles, and as a one-line summary."""

from __future__ import annotations

from collections import Counter

from heterocc.passes.alone import alone
from heterocc.passes.estimate import plan_seconds
from heterocc.passes.graph import Node, Value
from heterocc.passes.objective import Goal
from heterocc.passes.plan import UNPLACED, Plan
from heterocc.passes.text import escaped, one_line, quoted


def print_plan(plan: Plan) -> str:
    """The plan as text that ends with a newline; equal plans give equal text.

    The text has the model's inputs and outputs, then the partitions in run order, each with the values that it reads
    and writes and its nodes in graph order (with the model's own names if those differ, and `pinned` if the user set
    the device), then the transfers.
    """
    values = plan.graph.values
    lines = [
        f"plan {one_line(plan.graph.name)}: {count(len(plan.graph.nodes), 'node')}, "
        f"{count(len(plan.partitions), 'partition')}, "
        f"{count(len(plan.transfers), 'transfer')} ({transferred(plan)})"
    ]
    lines += [f"  input  {show_value(values[v])}" for v in plan.graph.inputs]
    lines += [f"  output {show_value(values[v])}" for v in plan.graph.outputs]
    for index, part in enumerate(plan.partitions):
        lines += ["", f"p{index} {part.device}: {count(len(part.nodes), 'node')}"]
        lines += [f"  reads  {show_value(values[v])}" for v in plan.inputs_of(index)]
        lines += [f"  writes {show_value(values[v])}" for v in plan.outputs_of(index)]
        lines += [f"    {_show_node(n, pinned=n.name in plan.pins)}" for n in plan.nodes_of(index)]
    if plan.transfers:
        lines += ["", "transfers"]
        lines += [f"  {t.value}: {t.source} -> {t.target}, {_size(plan.graph.values[t.value])}" for t in plan.transfers]
    return "\n".join(lines) + "\n"


def partition_table(plan: Plan) -> str:
    """A line for each partition: device, nodes, values sent by other devices, and the most frequent operators.

    A value that several partitions of a device need is sent once, and counts for the first of them.
    """
    rows = [("", "device", "nodes", "transfers", "operators")]
    sent = {(t.value, t.target): t for t in plan.transfers}
    for index, part in enumerate(plan.partitions):
        wanted = [sent.pop((v, part.device)) for v in plan.inputs_of(index) if (v, part.device) in sent]
        sources = ", ".join(dict.fromkeys(t.source for t in wanted))
        size = human_bytes(sum(t.nbytes for t in wanted))
        moved = f"{len(wanted)} from {sources}, {size}" if wanted else "0"
        label = "not placed" if part.device == UNPLACED else part.device
        operators = Counter(n.op_type for n in plan.nodes_of(index)).most_common()
        shown = ", ".join(f"{op_type} {number}" for op_type, number in operators[:4])
        rows.append((f"p{index}", label, str(len(part.nodes)), moved, shown + (", …" if len(operators) > 4 else "")))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def summary(plan: Plan) -> str:
    """One line: nodes and partitions per device, transfers, and the estimated time if the work is known.

    `412 nodes: GPU 398 (2 partitions), CPU 14 (2); 3 transfers, 1.2 MB; est. 4.1 ms (GPU cannot run 2: Loop)`
    """
    shown: list[str] = []
    for device in [*(d.name for d in plan.machine.devices), UNPLACED]:
        parts = [p for p in plan.partitions if p.device == device]
        if parts:
            unit = "" if shown else " partition" if len(parts) == 1 else " partitions"
            label = "not placed" if device == UNPLACED else device
            shown.append(f"{label} {sum(len(p.nodes) for p in parts)} ({len(parts)}{unit})")
    transfers = count(len(plan.transfers), "transfer") + (f", {transferred(plan)}" if plan.transfers else "")
    line = f"{count(len(plan.graph.nodes), 'node')}: {', '.join(shown) or 'nothing to run'}; {transfers}"
    seconds = plan_seconds(plan)
    if seconds is not None:
        line += f"; est. {human_seconds(seconds)}{_at_best(plan, seconds)}{_alone(plan)}"
    return line if plan.goal is None else f"{line}; {goal_text(plan.goal)}"


def _at_best(plan: Plan, seconds: float) -> str:
    """How far the time may be from the least of all plans, where that is known."""
    if plan.bound is None or plan.goal is not None:
        return ""
    if plan.bound >= seconds * (1 - 1e-9):
        return ", the least of all plans"
    return f", at best {human_seconds(plan.bound)}"


def goal_text(goal: Goal) -> str:
    """The value of a plan by its objective, and the best that is possible."""
    if goal.objective == "transfers":
        return f"{human_bytes(int(goal.value))} between devices, at best {human_bytes(int(goal.bound))}"
    value, bound = human_seconds(goal.value), human_seconds(goal.bound)
    if goal.objective == "throughput":
        return f"slowest device {value} for each request, at best {bound}"
    if goal.objective == "overlap":
        return f"{value} with devices at the same time, at best {bound}"
    return f"fits in memory, at best {bound}"


def show_value(value: Value) -> str:
    """Name, dtype and shape of a value: `x: float32[1,3,?]`, with `?` for a dimension known only at run time."""
    shape = "..." if value.shape is None else ",".join("?" if d is None else str(d) for d in value.shape)
    return f"{value.name}: {value.dtype}[{shape}]"


def transferred(plan: Plan) -> str:
    """The total size of all transfers, with the number of values whose size is known only at run time."""
    unknown = sum(not _is_sized(plan.graph.values[t.value]) for t in plan.transfers)
    total = human_bytes(sum(t.nbytes for t in plan.transfers))
    return f"{total} and {unknown} of unknown size" if unknown else total


def human_bytes(nbytes: int) -> str:
    """A number of bytes as text: `999 B`, `1.2 kB`, `3.4 MB`."""
    if nbytes < 1000:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def human_seconds(seconds: float) -> str:
    """A time as text: `12.3 us`, `4.1 ms`, `1.2 s`."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.95:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.1f} s"


def count(number: int, noun: str) -> str:
    """A number with a noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(value: Value) -> str:
    return count(value.nbytes, "byte") if _is_sized(value) else "unknown size"


def _is_sized(value: Value) -> bool:
    return value.is_static and not value.is_opaque


def _show_node(node: Node, *, pinned: bool) -> str:
    text = f"{node.name}: {_plain(node.op_type)}({', '.join(node.inputs)}) -> {', '.join(node.outputs)}"
    originals = [n for n in node.original if n and n != node.name]
    notes = (["pinned"] if pinned else []) + [quoted(n) for n in originals]
    return text + (f"  # {' '.join(notes)}" if notes else "")


def _plain(op_type: str) -> str:
    """An operator type without the sign that begins a comment."""
    return escaped(op_type).replace("#", "\\u0023")


def _alone(plan: Plan) -> str:
    """The estimated time on the first device alone, or the reason why it cannot run alone; empty if it does."""
    used = {p.device for p in plan.partitions}
    first = plan.machine.devices[0]
    if used == {first.name}:
        return ""
    reasons = {n: plan.machine.refusal(first.name, n.name) for n in plan.graph.nodes}
    refused = Counter(n.op_type for n, reason in reasons.items() if reason is not None)
    if not refused:
        made = alone(plan, first.name)
        if not isinstance(made, Plan):
            return f" ({first.name} alone: not possible, {made})"
        seconds = plan_seconds(made)
        return "" if seconds is None else f" ({first.name} alone: {human_seconds(seconds)})"
    named = ", ".join(op_type for op_type, _ in refused.most_common(3)) + (", …" if len(refused) > 3 else "")
    return f" ({first.name} cannot run {sum(refused.values())}: {named})"
