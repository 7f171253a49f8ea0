"""A model with all nodes on one device, or the reason why this is not possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heterocc.passes.graph import Node
from heterocc.passes.placement import overfull
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.rules import rules_broken, without_rules
from heterocc.passes.text import one_line


def shown(node: Node) -> str:
    """A node for messages: `LSTM 'encoder/rnn'`."""
    return f"{node.op_type} '{one_line(node.label)}'"


def alone(plan: Plan, device: str) -> Plan | str:
    """The plan with all nodes on one device, or the reason why there is none: a refusal, a pin, memory, a rule."""
    graph, machine = plan.graph, without_rules(plan.machine)
    for node in graph.nodes:
        reason = machine.refusal(device, node.name)
        if reason is not None:
            return f"it cannot run {shown(node)}: {reason}"
        if plan.pins.get(node.name, device) != device:
            return f"{shown(node)} is pinned to {plan.pins[node.name]}"
    everything: Mapping[str, str] = {n.name: device for n in graph.nodes}
    if overfull(graph, machine, everything):
        return "it lacks memory for all nodes"
    nodes = tuple(everything)
    parts = (Partition(device, nodes),) if nodes else ()
    made = replace(plan, machine=machine, partitions=parts, bound=None, goal=None)
    broken = next(iter(rules_broken(made).get(device, {}).items()), None)
    return made if broken is None else f"{shown(graph.node_by_name[broken[0]])}: {broken[1]}"
