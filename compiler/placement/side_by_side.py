"""Plans side by side: the same model placed by each policy, and by each device alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.placement.run_passes import run_pipeline
from heterocc.passes.base import policy_pipeline
from heterocc.passes.explain.explanation import OtherPlan
from heterocc.passes.explain.reasons import shown
from heterocc.passes.placement import overfull
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.rules import rules_broken, without_rules

COMPARED = ("greedy", "merge", "optimal")
"""The policies that are compared with any plan."""


def plans_beside(plan: Plan, policy: str, measured: Mapping[str, float] | None = None) -> tuple[OtherPlan, ...]:
    """The figures of the plan that each policy makes and of each device alone; `plan` stands for its own policy.

    `measured` has the seconds of plans that were timed, by name.
    """
    found: list[OtherPlan] = []
    times = measured or {}
    for name in COMPARED:
        if name == policy:
            found.append(OtherPlan.of(name, plan, times.get(name), chosen=True))
            continue
        try:
            found.append(OtherPlan.of(name, run_pipeline(_initial(plan), policy_pipeline(name)), times.get(name)))
        except HeteroccError as error:
            found.append(OtherPlan(name, why_not=error.message))
    if policy not in COMPARED:
        # The policy `measured` keeps the fastest of the timed plans.
        found.insert(0, OtherPlan.of(policy, plan, min(times.values(), default=None), chosen=True))
    for device in plan.machine.devices:
        made = alone(plan, device.name)
        name = f"{device.name} alone"
        found.append(
            OtherPlan.of(name, made, times.get(name)) if isinstance(made, Plan) else OtherPlan(name, why_not=made)
        )
    return tuple(found)


def alone(plan: Plan, device: str) -> Plan | str:
    """The plan with all nodes on one device, or the reason why there is none."""
    graph, machine = plan.graph, without_rules(plan.machine)
    for node in graph.nodes:
        reason = machine.refusal(device, node.name)
        if reason is not None:
            return f"it cannot run {shown(node)}: {reason}"
        if plan.pins.get(node.name, device) != device:
            return f"{shown(node)} is pinned to {plan.pins[node.name]}"
    everything: Mapping[str, str] = {n.name: device for n in graph.nodes}
    if overfull(graph, machine, everything):
        return f"{device} lacks memory for all nodes"
    nodes = tuple(everything)
    parts = (Partition(device, nodes),) if nodes else ()
    made = replace(plan, machine=machine, partitions=parts, bound=None, goal=None)
    broken = next(iter(rules_broken(made).get(device, {}).items()), None)
    return made if broken is None else f"{shown(graph.node_by_name[broken[0]])}: {broken[1]}"


def _initial(plan: Plan) -> Plan:
    """The plan before any pass; pins that no rule gave, such as those of a cost table, are kept."""
    start = Plan.initial(plan.graph, without_rules(plan.machine), plan.affinity)
    return start if plan.affinity.rules else start.with_partitions(start.partitions, plan.pins)
