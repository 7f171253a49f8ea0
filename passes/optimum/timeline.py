"""The schedule of a run in which devices work at the same time, by a simulation of its partitions and transfers.

A device executes its partitions in run order, one at a time. A value is sent when its partition is done; values on one
link follow each other, and links and devices do not wait for one another otherwise. ONNX Runtime as a last resort
computes on the CPU, so these two share their time. Every step begins no later than in a run one step after the other,
so the last one ends no later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterocc.passes.cost import Machine
from heterocc.passes.estimate import node_times
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.plan import Plan


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end in seconds of each partition, in run order; `end` is that of the run."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def end(self) -> float:
        """Seconds from the start of the first partition to the end of the last."""
        return max(self.ends, default=0.0)


class Simulator:
    """Times of a run on a machine, for any labels and partitions."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._engines = engines(problem.machine)
        sent = problem.sent
        self._values: list[list[tuple[int, float, list[int]]]] = [[] for _ in problem.graph.nodes]
        first, readers = sent.first.tolist(), sent.readers.tolist()
        for i, (producer, nbytes) in enumerate(zip(sent.producer.tolist(), sent.nbytes.tolist(), strict=True)):
            self._values[producer].append((i, nbytes, readers[first[i] : first[i + 1]]))
        self._seconds = problem.seconds.tolist()
        self._overhead = problem.overhead.tolist()
        self._latency, self._per_byte = problem.latency.tolist(), problem.per_byte.tolist()

    def engine(self, device: int) -> int:
        """The number of what executes a device's partitions."""
        return self._engines[device]

    def duration(self, nodes: Sequence[int], device: int) -> float:
        """Seconds of a partition."""
        spent: float = self._overhead[device] + sum([self._seconds[n][device] for n in nodes])
        return spent

    def arrivals(
        self, nodes: Sequence[int], owner: Sequence[int], labels: Sequence[int]
    ) -> dict[int, dict[int, float]]:
        """For each device that a partition sends to: the partitions that read there, with seconds after which they can.

        Values to one device follow each other in graph order.
        """
        found: dict[int, dict[int, float]] = {}
        clock: dict[int, float] = {}
        for node in nodes:
            source = labels[node]
            for _, nbytes, readers in self._values[node]:
                for target in dict.fromkeys([labels[r] for r in readers]):
                    if target == source:
                        continue
                    clock[target] = (
                        clock.get(target, 0.0) + self._latency[source][target] + nbytes * self._per_byte[source][target]
                    )
                    waiting = found.setdefault(target, {})
                    for reader in readers:
                        if labels[reader] == target:
                            waiting[owner[reader]] = clock[target]
        return found

    def run(self, labels: Labels, groups: Sequence[Sequence[int]]) -> Timeline:
        """The times of partitions in run order."""
        devices = labels.tolist()
        owner = owners(len(devices), groups)
        ready = [0.0] * len(groups)
        free: dict[int, float] = {}
        links: dict[tuple[int, int], float] = {}
        starts, ends = [], []
        for number, nodes in enumerate(groups):
            device = devices[nodes[0]]
            engine = self._engines[device]
            start = max(ready[number], free.get(engine, 0.0))
            end = start + self.duration(nodes, device)
            free[engine] = end
            starts.append(start)
            ends.append(end)
            for target, waiting in self.arrivals(nodes, owner, devices).items():
                begin = max(end, links.get((device, target), 0.0))
                links[device, target] = begin + max(waiting.values())
                for reader, after in waiting.items():
                    ready[reader] = max(ready[reader], begin + after)
            for node in nodes:
                for reader in self._problem.graph.readers[node]:
                    ready[owner[reader]] = max(ready[owner[reader]], end)
        return Timeline(tuple(starts), tuple(ends))


def owners(nodes: int, groups: Sequence[Sequence[int]]) -> list[int]:
    """The number of the group of each node."""
    owner = [0] * nodes
    for number, group in enumerate(groups):
        for node in group:
            owner[node] = number
    return owner


def engines(machine: Machine) -> list[int]:
    """For each device the number of the first one with which it shares its time."""
    host = next((i for i, d in enumerate(machine.devices) if d.kind == "cpu" and not d.last_resort), None)
    return [host if d.last_resort and host is not None else i for i, d in enumerate(machine.devices)]


def timeline(plan: Plan) -> Timeline:
    """The times of a plan's partitions if its devices work at the same time; every node must be placed."""
    seconds = node_times(plan.graph, plan.machine).seconds
    problem = replace(Problem.of(plan.graph, plan.machine, plan.pins), seconds=seconds)
    position = {n.name: i for i, n in enumerate(plan.graph.nodes)}
    groups = [[position[name] for name in part.nodes] for part in plan.partitions]
    return Simulator(problem).run(problem.labels_of(plan.device_of), groups)
