"""The placement and its partitions as an integer programme, solved by CP-SAT: exact, with a bound if it must stop.

Partitions are slots in run order whose devices repeat in a fixed order; a plan leaves slots empty. A node is finished
by a slot only if all nodes that it reads from are. There are as many slots as any plan can use that is no worse than
the one at hand, so nothing better is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from heterocc.passes.optimum.problem import Floats, Labels, Problem

MOST_VARIABLES = 20_000
"""Size of a programme beyond which it is not worth a try."""

_RESOLUTION = 1 << 42
"""The sum of all costs in the solver's integers."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best labels found, and a lower bound in seconds of what any labels cost.

    `turns` are their partitions in run order, if partitions have an overhead.
    """

    labels: Labels
    bound: float
    turns: list[list[int]] | None = None


def solve(
    problem: Problem, known: Labels, bound: float, work: float, *, slowest: float | None = None
) -> Solution | None:
    """The best placement with its partitions; None if the programme is too large.

    `known` are labels at hand and `bound` a lower bound that is known. `work` limits the solver in its deterministic
    seconds, so that equal problems give equal results. If `slowest` is given, the seconds of the slowest device with
    `known`, these are minimised, and `bound` is one of them, in place of the seconds of a run.
    """
    upper = problem.total(known) if slowest is None else slowest
    if math.isinf(upper):  # a value of the labels at hand has no link
        upper = _most(problem)
    slots = _slots(problem, upper, bound) if slowest is None else _slots_of_each(problem, upper)
    if len(problem.graph.nodes) * len(slots) + len(problem.sent.producer) * problem.devices**2 > MOST_VARIABLES:
        return None
    return _Programme(problem, slots, upper, slowest=slowest is not None).solve(known, bound, work)


def fitting(problem: Problem, work: float) -> tuple[Labels | None, bool]:
    """Labels that no device lacks memory for, without regard to their cost, and whether this answer is certain.

    None with certainty means that there are none. The programme is as large as the graph: a limit is the caller's part.
    """
    return _Programme(problem, [], 1.0, free=True).fitting(work)


def _most(problem: Problem) -> float:
    """Seconds that no plan exceeds which needs no missing link, and more than 0."""

    def largest(costs: Floats) -> float:
        return float(np.where(np.isfinite(costs), costs, 0.0).max(initial=0.0))

    pairs = permutations(range(problem.devices), 2)
    sent = sum(largest(problem.transfers(source, target)) for source, target in pairs) * len(problem.sent.producer)
    nodes = sum(largest(row) for row in problem.seconds)
    return max(nodes + sent + largest(problem.overhead) * len(problem.seconds), 1e-12) * 2


def _slots(problem: Problem, upper: float, bound: float) -> list[int]:
    """The devices of the slots."""
    devices = range(problem.devices)
    nodes = len(problem.graph.nodes)
    paying = [float(o) for o in problem.overhead if o > 0]
    if not paying:
        return []
    free = len(problem.overhead) - len(paying)
    # `bound` may contain one overhead of each paying device. Two partitions in a row are on different devices.
    paid = math.floor((upper - bound) / min(paying) * (1 + 1e-9)) + len(paying)
    most = min(nodes, nodes if free > 1 else 2 * paid + 1 if free else paid)
    return [d for _ in range(most) for d in devices][: (len(devices) - 1) * (most - 1) + len(devices)]


def _slots_of_each(problem: Problem, slowest: float) -> list[int]:
    """The devices of the slots if no device may have more overhead than the slowest one has work."""
    overheads = problem.overhead.tolist()
    if not any(overheads):
        return []
    nodes, free = len(problem.graph.nodes), sum(not o for o in overheads)
    paid = sum(math.floor(slowest / o * (1 + 1e-9)) for o in overheads if o)
    most = min(nodes, nodes if free > 1 else 2 * paid + 1 if free else paid)
    return [d for _ in range(most) for d in range(len(overheads))][: (len(overheads) - 1) * (most - 1) + len(overheads)]


class _Programme:
    """`slowest` minimises the seconds of the slowest device in place of their sum; `free` minimises nothing."""

    def __init__(
        self, problem: Problem, slots: list[int], upper: float, *, slowest: bool = False, free: bool = False
    ) -> None:
        from ortools.sat.python import cp_model  # here: it takes a second

        self.cp: Any = cp_model
        self.problem, self.slots = problem, slots
        self.model: Any = cp_model.CpModel()
        self.scale = _RESOLUTION / upper
        self.costs: list[list[Any]] = [[] for _ in range(problem.devices)]
        sent = problem.sent
        self.values = [
            (producer, sent.readers[sent.first[i] : sent.first[i + 1]].tolist())
            for i, producer in enumerate(sent.producer.tolist())
        ]
        count = problem.devices
        self.on = [[self._bool() for _ in range(count)] for _ in problem.seconds]
        for row, on in zip(problem.seconds.tolist(), self.on, strict=True):
            self.model.add_exactly_one(on)
            for device, (seconds, variable) in enumerate(zip(row, on, strict=True)):
                if math.isinf(seconds):
                    self.model.add(variable == 0)
                else:
                    self._costs(device, seconds, variable)
        self._add_transfers()
        if problem.is_bounded:
            self._add_memory()
        self.done = [[self._bool() for _ in slots] for _ in problem.seconds] if slots else []
        if slots:
            self._add_slots()
        self.most: Any = None
        if slowest:
            self.most = self.model.new_int_var(0, 2 * _RESOLUTION, "")
            for terms in self.costs:
                self.model.add(sum(terms) <= self.most)
            self.model.minimize(self.most)
        elif not free:
            self._minimise_sum()

    def _minimise_sum(self) -> None:
        self.model.minimize(sum(term for terms in self.costs for term in terms))

    def _bool(self) -> Any:
        return self.model.new_bool_var("")

    def _costs(self, device: int, seconds: float, variable: Any) -> None:
        """Add seconds of a device, which executes a node or a partition or receives a value."""
        units = round(seconds * self.scale)
        if units:
            # What costs more than the plan at hand is not bought, whatever it costs.
            self.costs[device].append(min(units, 2 * _RESOLUTION) * variable)

    def _add_transfers(self) -> None:
        for source, target in permutations(range(self.problem.devices), 2):
            for (producer, readers), seconds in zip(
                self.values, self.problem.transfers(source, target).tolist(), strict=True
            ):
                start = self.on[producer][source].negated()
                sent = [] if math.isinf(seconds) else [self._bool()]
                for reader in readers:
                    self.model.add_bool_or(start, self.on[reader][target].negated(), *sent)
                if sent:
                    self._costs(target, seconds, sent[0])

    def _add_memory(self) -> None:
        graph = self.problem.graph
        for number, device in enumerate(self.problem.machine.devices):
            if device.memory is None:
                continue
            used = []
            held: dict[str, Any] = {}
            for node, on in zip(graph.nodes, self.on, strict=True):
                used.append(sum(graph.values[v].nbytes for v in node.outputs) * on[number])
                for value in node.inputs:
                    if value in graph.constants:
                        self.model.add_implication(on[number], held.setdefault(value, self._bool()))
            used += [graph.values[value].nbytes * variable for value, variable in held.items()]
            self.model.add(sum(used) <= device.memory)

    def _add_slots(self) -> None:
        model, slots, done = self.model, self.slots, self.done
        last = len(slots) - 1
        starts: list[list[Any]] = []
        for row in done:
            model.add(row[last] == 1)
            for slot in range(last):
                model.add_implication(row[slot], row[slot + 1])
            starts.append([row[0], *(row[s] - row[s - 1] for s in range(1, len(slots)))])
        used = [self._bool() for _ in slots]
        for node, steps in enumerate(starts):
            for device, on in enumerate(self.on[node]):
                model.add(sum(steps[s] for s, d in enumerate(slots) if d == device) == on)
            for slot, step in enumerate(steps):
                model.add(step <= used[slot])
        for slot, device in enumerate(slots):
            self._costs(device, float(self.problem.overhead[device]), used[slot])
        for producer, readers in self.values:
            for reader in readers:
                for slot in range(last):
                    model.add_implication(done[reader][slot], done[producer][slot])

    def solve(self, known: Labels, bound: float, work: float) -> Solution:
        self._hint(known)
        solver, status = self._solved(work)
        proven = max(bound, solver.best_objective_bound / self.scale * (1 - 1e-9))
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Solution(known, proven)
        if self.most is not None:
            # Of the placements that are as good, one that costs least in all; the solver goes on from the one it has.
            self.model.add(self.most <= solver.value(self.most))
            self.model.clear_hints()
            for variable in (v for rows in (self.on, self.done) for row in rows for v in row):
                self.model.add_hint(variable, solver.boolean_value(variable))
            self._minimise_sum()
            again, status = self._solved(work / 4)
            solver = again if status in (self.cp.OPTIMAL, self.cp.FEASIBLE) else solver
        return Solution(self._labels(solver), proven, self._turns(solver) if self.slots else None)

    def fitting(self, work: float) -> tuple[Labels | None, bool]:
        solver, status = self._solved(work)
        if status in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return self._labels(solver), True
        return None, bool(status == self.cp.INFEASIBLE)

    def _solved(self, work: float) -> tuple[Any, Any]:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = work
        # OR-Tools 9.15 adds coefficients in 32 bits in a step of its presolve, which this leaves out, and then reports
        # wrong optima (google/or-tools, issue 5293).
        solver.parameters.presolve_inclusion_work_limit = 0
        return solver, solver.solve(self.model)

    def _labels(self, solver: Any) -> Labels:
        return np.array([next(d for d, v in enumerate(on) if solver.boolean_value(v)) for on in self.on])

    def _turns(self, solver: Any) -> list[list[int]]:
        turns: list[list[int]] = [[] for _ in self.slots]
        for node, row in enumerate(self.done):
            turns[next(slot for slot, variable in enumerate(row) if solver.boolean_value(variable))].append(node)
        return [turn for turn in turns if turn]

    def _hint(self, known: Labels) -> None:
        for label, on in zip(known.tolist(), self.on, strict=True):
            for device, variable in enumerate(on):
                self.model.add_hint(variable, int(device == label))
        if not self.slots:
            return
        slot = -1
        finished: dict[int, int] = {}
        for turn in self.problem.turns(known):
            slot = next((s for s in range(slot + 1, len(self.slots)) if self.slots[s] == known[turn[0]]), slot)
            finished.update(dict.fromkeys(turn, slot))
        for node, row in enumerate(self.done):
            for number, variable in enumerate(row):
                self.model.add_hint(variable, int(number >= finished[node]))
