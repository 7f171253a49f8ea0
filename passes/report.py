"""What a plan comes to: the one-line summary after every compile, and the same facts for `--json`."""

from __future__ import annotations

from dataclasses import asdict

from heterocc.passes.cost import DeviceModel
from heterocc.passes.estimate import alone_seconds, plan_seconds
from heterocc.passes.plan import UNPLACED, Plan
from heterocc.passes.text import count, show_bytes


def summary(plan: Plan) -> str:
    """One line: nodes and partitions per device, transfers, and the estimated time where the work is known.

    `412 nodes: GPU 398 (2 partitions), CPU 14 (2); 3 transfers, 1.2 MB; est. 4.1 ms (GPU alone: not possible)`
    """
    shown: list[str] = []
    for device in [*(d.name for d in plan.machine.devices), UNPLACED]:
        parts = [p for p in plan.partitions if p.device == device]
        if parts:
            unit = "" if shown else " partition" if len(parts) == 1 else " partitions"
            label = "not placed" if device == UNPLACED else device
            shown.append(f"{label} {sum(len(p.nodes) for p in parts)} ({len(parts)}{unit})")
    transfers = count(len(plan.transfers), "transfer") + (f", {show_bytes(plan.transfers)}" if plan.transfers else "")
    line = f"{count(len(plan.graph.nodes), 'node')}: {', '.join(shown) or 'nothing to run'}; {transfers}"
    seconds = plan_seconds(plan)
    if seconds is not None:
        line += f"; est. {human_seconds(seconds)}{_alone(plan)}"
    return line


def plan_report(plan: Plan) -> dict[str, object]:
    """The plan's facts as JSON-ready data: partitions, transfers, bytes, estimates (seconds, None when unknown)."""
    partitions = [
        {
            "name": f"p{index}",
            "device": part.device,
            "nodes": list(part.nodes),
            "original_nodes": [o for n in plan.nodes_of(index) for o in (n.original or (n.name,))],
            "inputs": list(plan.inputs_of(index)),
            "outputs": list(plan.outputs_of(index)),
        }
        for index, part in enumerate(plan.partitions)
    ]
    return {
        "model": plan.graph.name,
        "nodes": len(plan.graph.nodes),
        "partitions": partitions,
        "transfers": [asdict(t) for t in plan.transfers],
        "transfer_bytes": sum(t.nbytes for t in plan.transfers),
        "pins": dict(plan.pins),
        "estimated_seconds": plan_seconds(plan),
        "summary": summary(plan),
    }


def human_seconds(seconds: float) -> str:
    """`12.3 us`, `4.1 ms`, `1.2 s`."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.95:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.1f} s"


def _alone(plan: Plan) -> str:
    """What the first device would take without the others; nothing to say when it is alone."""
    used = {p.device for p in plan.partitions}
    first: DeviceModel = plan.machine.devices[0]
    if used == {first.name}:
        return ""
    seconds = alone_seconds(plan, first.name)
    return f" ({first.name} alone: {'not possible' if seconds is None else human_seconds(seconds)})"
