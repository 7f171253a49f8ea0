"""mincut: the placement of least estimated time, and how far it may be from the best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.passes.estimate import knows_time
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.search import find
from heterocc.passes.placement import overfull, place
from heterocc.passes.plan import UNPLACED, Partition, Plan
from heterocc.passes.schedule import settled
from heterocc.passes.spec import SpecPass


@dataclass(frozen=True, slots=True, repr=False)
class MinCut(SpecPass):
    """Place all nodes so that the estimated time of a run is least: nodes, transfers, and overhead of partitions.

    With two devices without limits on memory and without overhead of partitions the result is optimal. Otherwise it is
    the best that was found, and optimal for small graphs. `effort` limits the exact search for these, in a solver's
    deterministic seconds; 0 leaves it out. The plan's `bound` says how good the result is.

    Keeps: pins, memory budgets, nodes that compute shapes on the CPU, last resorts. The placement before is a candidate
    if it is complete, so the result is never slower. Raises UnsupportedOpError (HC201) for a node that no device can
    run, and if nodes need a link that cannot be used.
    """

    effort: float = 4.0
    name: ClassVar[str] = "mincut"

    def __post_init__(self) -> None:
        if not self.effort >= 0:
            raise ValueError("effort must be 0 or more")

    def run(self, plan: Plan) -> Plan:
        """The plan with every node placed."""
        graph, machine = plan.graph, plan.machine
        if not graph.nodes:
            return plan
        problem = Problem.of(graph, machine, plan.pins)
        placement = find(problem, _start(plan, problem), self.effort)
        if math.isinf(placement.seconds):
            raise UnsupportedOpError(
                "every placement sends a value between devices that are not linked",
                where=graph.name,
                hint="add the missing links, or let one device run more nodes",
            )
        device_of = problem.device_of(placement.labels)
        names = [n.name for n in graph.nodes]
        turns = [[names[node] for node in turn] for turn in problem.turns(placement.labels)]
        groups = settled(graph, device_of, turns)
        known = all(knows_time(machine, n, device_of[n.name]) for n in graph.nodes)
        partitions = tuple(Partition(device_of[group[0]], group) for group in groups)
        return plan.with_partitions(partitions, bound=placement.bound if known else None)


def _start(plan: Plan, problem: Problem) -> Labels:
    """The placement so far, or that by first fit if it is not complete or may not be kept."""
    device_of = plan.device_of
    if UNPLACED not in device_of.values():
        labels = problem.labels_of(device_of)
        allowed = bool(np.isfinite(problem.seconds[np.arange(len(labels)), labels]).all())
        if allowed and not overfull(plan.graph, plan.machine, device_of):
            return labels
    try:
        placed = place(plan.graph, plan.machine, plan.pins)
    except UnsupportedOpError:
        able = bool(np.isfinite(problem.seconds).any(axis=1).all())
        if plan.machine.is_connected or problem.is_bounded or not able:
            raise
        return np.array(problem.seconds.argmin(axis=1))  # first fit may end at a missing link
    return problem.labels_of(placed)
