"""A plan as JSON-compatible data, for `--json`."""

from __future__ import annotations

from dataclasses import asdict

from heterocc.passes.estimate import plan_seconds
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import summary


def plan_report(plan: Plan) -> dict[str, object]:
    """The plan as JSON-compatible data: partitions, transfers, bytes, estimates in seconds or None if unknown."""
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
        **({} if plan.goal is None else {"goal": asdict(plan.goal)}),
        "summary": summary(plan),
    }
