"""Plans side by side: the same model placed by each policy, and by each device alone."""

from __future__ import annotations

from collections.abc import Mapping

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.placement.run_passes import run_pipeline
from heterocc.passes.alone import alone
from heterocc.passes.base import policy_pipeline
from heterocc.passes.explain.explanation import OtherPlan
from heterocc.passes.plan import Plan
from heterocc.passes.rules import without_rules

COMPARED = ("greedy", "merge", "optimal")
"""The policies that are compared with any plan."""


def plans_beside(plan: Plan, policy: str, measured: Mapping[str, float] | None = None) -> tuple[OtherPlan, ...]:
    """The figures of the plan that each policy makes and of each device alone; `plan` stands for its own policy.

    `measured` has the seconds of plans that were timed, by name, `plan` first if it is one of these.
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
        found.insert(0, OtherPlan.of(policy, plan, next(iter(times.values()), None), chosen=True))
    for device in plan.machine.devices:
        made = alone(plan, device.name)
        name = f"{device.name} alone"
        found.append(
            OtherPlan.of(name, made, times.get(name)) if isinstance(made, Plan) else OtherPlan(name, why_not=made)
        )
    return tuple(found)


def _initial(plan: Plan) -> Plan:
    """The plan before any pass; pins that no rule gave, such as those of a cost table, are kept."""
    start = Plan.initial(plan.graph, without_rules(plan.machine), plan.affinity)
    return start if plan.affinity.rules else start.with_partitions(start.partitions, plan.pins)
