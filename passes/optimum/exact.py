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

from heterocc.passes.optimum.problem import Labels, Problem

MOST_VARIABLES = 20_000
"""Size of a programme beyond which it is not worth a try."""

_RESOLUTION = 1 << 42
"""The sum of all costs in the solver's integers."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best labels found, and a lower bound in seconds of what any labels cost."""

    labels: Labels
    bound: float


def solve(problem: Problem, known: Labels, bound: float, work: float) -> Solution | None:
    """The best placement with its partitions; None if the programme is too large.

    `known` are labels at hand and `bound` a lower bound that is known. `work` limits the solver in its deterministic
    seconds, so that equal problems give equal results.
    """
    upper = problem.total(known)
    slots = _slots(problem, upper, bound)
    if len(problem.graph.nodes) * len(slots) + len(problem.sent.producer) * problem.devices**2 > MOST_VARIABLES:
        return None
    return _Programme(problem, slots, upper).solve(known, bound, work)


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


class _Programme:
    def __init__(self, problem: Problem, slots: list[int], upper: float) -> None:
        from ortools.sat.python import cp_model  # here: it takes a second

        self.cp: Any = cp_model
        self.problem, self.slots = problem, slots
        self.model: Any = cp_model.CpModel()
        self.scale = _RESOLUTION / upper
        self.costs: list[Any] = []
        sent = problem.sent
        self.values = [
            (producer, sent.readers[sent.first[i] : sent.first[i + 1]].tolist())
            for i, producer in enumerate(sent.producer.tolist())
        ]
        count = problem.devices
        self.on = [[self._bool() for _ in range(count)] for _ in problem.seconds]
        for row, on in zip(problem.seconds.tolist(), self.on, strict=True):
            self.model.add_exactly_one(on)
            for seconds, variable in zip(row, on, strict=True):
                if math.isinf(seconds):
                    self.model.add(variable == 0)
                else:
                    self._costs(seconds, variable)
        self._add_transfers()
        if problem.is_bounded:
            self._add_memory()
        self.done = [[self._bool() for _ in slots] for _ in problem.seconds] if slots else []
        if slots:
            self._add_slots()
        self.model.minimize(sum(self.costs))

    def _bool(self) -> Any:
        return self.model.new_bool_var("")

    def _costs(self, seconds: float, variable: Any) -> None:
        units = round(seconds * self.scale)
        if units:
            # What costs more than the plan at hand is not bought, whatever it costs.
            self.costs.append(min(units, 2 * _RESOLUTION) * variable)

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
                    self._costs(seconds, sent[0])

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
            self._costs(float(self.problem.overhead[device]), used[slot])
        for producer, readers in self.values:
            for reader in readers:
                for slot in range(last):
                    model.add_implication(done[reader][slot], done[producer][slot])

    def solve(self, known: Labels, bound: float, work: float) -> Solution:
        self._hint(known)
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = work
        status = solver.solve(self.model)
        proven = max(bound, solver.best_objective_bound / self.scale * (1 - 1e-9))
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Solution(known, proven)
        labels = [next(d for d, v in enumerate(on) if solver.boolean_value(v)) for on in self.on]
        return Solution(np.array(labels), proven)

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
