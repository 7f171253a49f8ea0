"""Partitions of a CPU beside a last resort, such as ONNX Runtime, that cost more than they save."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heterocc.passes.estimate import node_times, plan_seconds
from heterocc.passes.graph import Numbers
from heterocc.passes.plan import Plan

WORTH = 1e-9
"""Minimum seconds that a move must save, so that rounding has no influence."""

MOST_TRIED = 64
"""The most numbers of partitions for which a sweep estimates the plan without them."""


def without_crumbs(plan: Plan, joined: Callable[[Numbers], Plan]) -> Plan:
    """The plan with the partitions on CPUs moved to a last resort beside them that a run is faster without.

    Each partition of the last resort takes a call, and each value that it exchanges a conversion. The partitions that
    work least are moved first, as many of them as lowers the estimated time most; `joined` makes the plan for the
    devices of nodes. Stays: pinned nodes, and those that the last resort refuses, with their partitions. The plan
    itself where the last resort has only nodes that are pinned there, or its time cannot be estimated.
    """
    machine, graph = plan.machine, plan.graph
    last = next((n for n, d in enumerate(machine.devices) if d.last_resort and machine.is_connected), None)
    if last is None or all(graph.names[node] in plan.pins for node in np.flatnonzero(plan.labels == last).tolist()):
        return plan
    cpus = [d.name for d in machine.devices if d.kind == "cpu" and not d.last_resort]
    resort = machine.devices[last].name
    stays = {name for name, device in plan.pins.items() if device != resort} | set(machine.refusals.get(resort, {}))
    times = node_times(graph, machine).seconds
    best, least = plan, plan_seconds(plan)
    while least is not None:
        movable = [
            np.array([graph.position[name] for name in part.nodes])
            for part in best.partitions
            if part.device in cpus and stays.isdisjoint(part.nodes)
        ]
        labels = best.labels
        movable.sort(key=lambda nodes: float(times[nodes, labels[nodes]].sum()))
        found = None
        step = -(-len(movable) // MOST_TRIED)
        for number, nodes in enumerate(movable, start=1):
            labels = labels.copy()
            labels[nodes] = last
            if number % step and number < len(movable):
                continue
            made = joined(labels)
            seconds = plan_seconds(made)
            if seconds is not None and seconds < least - WORTH:
                found, least = made, seconds
        if found is None:
            break
        best = found
    return best
