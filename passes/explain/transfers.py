"""Why a value is transferred: what keeps its writer and its readers on different devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heterocc.passes.alone import shown
from heterocc.passes.explain.costs import TransferCost
from heterocc.passes.explain.reasons import Reasons
from heterocc.passes.graph import Node
from heterocc.passes.show.printer import human_seconds


@dataclass(frozen=True, slots=True)
class TransferReason:
    """A transfer and why it cannot be avoided; `writer` and `readers` are names of nodes, `start` is as in its cost."""

    value: str
    source: str
    target: str
    nbytes: int
    seconds: float
    start: float | None
    into: int
    writer: str
    readers: tuple[str, ...]
    sentence: str


def transfer_reason(reasons: Reasons, cost: TransferCost) -> TransferReason:
    """The reason of one transfer: refusals of the writer and the readers, else what a move would cost."""
    graph, sent = reasons.plan.graph, cost.transfer
    writer = graph.node_by_name[graph.producer[sent.value]]
    names = [r for r in graph.consumers[sent.value] if reasons.plan.device_of[r] == sent.target]
    readers = [graph.node_by_name[name] for name in names]
    bound = next((r for r in readers if reasons.refused(r, sent.source) is not None), readers[0])
    sentence = f"{_clause(reasons, writer, sent.target)}, and {_clause(reasons, bound, sent.source)}"
    return TransferReason(
        sent.value,
        sent.source,
        sent.target,
        sent.nbytes,
        cost.seconds,
        cost.start,
        cost.into,
        writer.name,
        tuple(names),
        sentence,
    )


def _clause(reasons: Reasons, node: Node, device: str) -> str:
    reason = reasons.refused(node, device)
    if reason is not None:
        return f"{shown(node)} cannot be on {device} ({reason})"
    change = reasons.costs.move(node, device)
    if change is None or math.isinf(change):
        return f"{shown(node)} stays on {reasons.plan.device_of[node.name]}"
    if change < 0:
        return f"with {shown(node)} on {device} a run would take {human_seconds(-change)} less"
    return f"with {shown(node)} on {device} a run would take {human_seconds(change)} more"
