"""mincut: the best placement by an objective, and how far it may be from the best there is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from heterocc.artifacts.errors import Hint, PinnedDeviceError, UnsupportedOpError
from heterocc.passes.estimate import is_costed
from heterocc.passes.merging.settling import settled
from heterocc.passes.objective import Goal, Objective
from heterocc.passes.optimum.fewest_bytes import find_fewest_bytes
from heterocc.passes.optimum.overlap import find_overlap
from heterocc.passes.optimum.pipeline import find_pipeline
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.room import find_room
from heterocc.passes.optimum.search import find
from heterocc.passes.placement import place
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.spec import SpecPass


@dataclass(frozen=True, slots=True, repr=False)
class MinCut(SpecPass):
    """Place all nodes best by an objective, by default the least estimated time of a run.

    Objectives: `latency`, the time of nodes, transfers, and overhead of partitions, one after the other; `overlap`, the
    time if devices work at the same time; `throughput`, the time of the slowest device for each request; `transfers`,
    the bytes sent between devices; `memory`, a plan that fits in the devices' memory, and of these the one of least
    latency. With two devices without limits on memory and without overhead of partitions `latency` and `transfers` are
    optimal. Otherwise the result is the best that was found, and, except for `overlap`, optimal for small graphs.
    `effort` limits the exact search for these, in units of about a fifth of a second; 0 leaves it out. The plan's
    `bound`, or its `goal` for another objective than `latency`, says how good the result is.

    Keeps: pins, memory budgets, nodes that compute shapes on the CPU, last resorts. The placement before is a candidate
    if it is complete, so the result is never worse. Raises UnsupportedOpError (HC201) for a node that no device can
    run, for memory that is too small, and if nodes need a link that cannot be used.
    """

    effort: float = 4.0
    objective: Objective = "latency"
    name: ClassVar[str] = "mincut"

    def __post_init__(self) -> None:
        if not self.effort >= 0:
            raise ValueError("effort must be 0 or more")

    def run(self, plan: Plan) -> Plan:
        """The plan with every node placed."""
        if not plan.graph.nodes:
            return plan
        problem = Problem.of(plan.graph, plan.machine, plan.pins)
        found = self._find(problem, self._start(plan, problem))
        if math.isinf(problem.placed(found.labels)):
            raise UnsupportedOpError(
                "every placement sends a value between devices that are not linked",
                where=plan.graph.name,
                hint="add the missing links, or let one device run more nodes",
            )
        names, devices = plan.graph.names, [d.name for d in plan.machine.devices]
        groups = found.turns
        if self.objective != "overlap":  # whose partitions are cut on purpose
            groups = settled(plan.graph, found.labels, groups)
        partitions = tuple(
            Partition(devices[found.labels[group[0]]], tuple([names[node] for node in group])) for group in groups
        )
        placed = plan.with_partitions(partitions, bound=found.bound, goal=found.goal)
        return placed if is_costed(placed) else replace(placed, bound=None, goal=None)

    def _start(self, plan: Plan, problem: Problem) -> Labels:
        try:
            return _start(plan, problem)
        except PinnedDeviceError:
            raise
        except UnsupportedOpError as error:
            if not problem.is_bounded or np.isinf(problem.seconds).all(axis=1).any():
                raise
            if self.objective == "memory":
                return find_room(problem, plan.pins, self.effort)
            hint = Hint("`objective='memory'`", "--objective memory") + " searches for a plan that fits"
            raise UnsupportedOpError(error.message, where=error.where, hint=hint) from error

    def _find(self, problem: Problem, start: Labels) -> _Found:
        if self.objective == "throughput":
            piped = find_pipeline(problem, start, self.effort)
            return _Found(piped.labels, piped.turns, None, Goal("throughput", piped.seconds, piped.bound))
        if self.objective == "transfers":
            fewest = find_fewest_bytes(problem, start, self.effort)
            goal = Goal("transfers", fewest.nbytes, fewest.bound)
            return _Found(fewest.labels, problem.turns(fewest.labels), None, goal)
        serial = find(problem, start, self.effort)
        if self.objective == "overlap":
            found = find_overlap(problem, serial.labels)
            return _Found(found.labels, found.turns, serial.bound, Goal("overlap", found.seconds, found.bound))
        fits = Goal("memory", serial.seconds, serial.bound) if self.objective == "memory" else None
        return _Found(serial.labels, problem.turns(serial.labels), serial.bound, fits)


@dataclass(frozen=True, slots=True)
class _Found:
    """Labels and their partitions; a lower bound of the seconds of a run, and the value by another objective."""

    labels: Labels
    turns: list[list[int]]
    bound: float | None
    goal: Goal | None


def _start(plan: Plan, problem: Problem) -> Labels:
    """The placement so far, or that by first fit if it is not complete or may not be kept."""
    labels = plan.labels
    if (labels < problem.devices).all():
        allowed = bool(np.isfinite(problem.seconds[np.arange(len(labels)), labels]).all())
        if allowed and problem.fits(labels):
            return labels
    try:
        placed = place(plan.graph, plan.machine, plan.pins)
    except UnsupportedOpError:
        able = bool(np.isfinite(problem.seconds).any(axis=1).all())
        if plan.machine.is_connected or problem.is_bounded or not able:
            raise
        return np.array(problem.seconds.argmin(axis=1))  # first fit may end at a missing link
    return problem.labels_of(placed)
