"""The cost of a placement in numbers: seconds of nodes, transfers and partitions by index of node and device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from heterocc.passes.cost import Machine
from heterocc.passes.estimate import node_seconds
from heterocc.passes.graph import Graph
from heterocc.passes.placement import overfull
from heterocc.passes.schedule import fewest_runs
from heterocc.passes.shapes import shape_nodes

Labels = list[int]
"""The number of the device of every node, in graph order."""


@dataclass(frozen=True, slots=True)
class SentValue:
    """A value that may be transferred: the node that writes it, the other nodes that read it, and its size."""

    producer: int
    readers: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Problem:
    """A placement to be found.

    `seconds[node][device]` is infinite if the device cannot run the node or may not. `overhead[device]` is the time of
    each partition.
    """

    graph: Graph
    machine: Machine
    devices: tuple[str, ...]
    seconds: Sequence[Sequence[float]]
    values: Sequence[SentValue]
    overhead: Sequence[float]

    @classmethod
    def of(cls, graph: Graph, machine: Machine, pins: Mapping[str, str]) -> Problem:
        """The problem of a graph on a machine, bound by refusals, pins, last resorts and nodes that compute shapes."""
        devices = tuple(d.name for d in machine.devices)
        position = {n.name: i for i, n in enumerate(graph.nodes)}
        hosts = [d.name for d in machine.devices if d.kind == "cpu" and not d.last_resort]
        shapes = shape_nodes(graph) if hosts else frozenset()
        last = {d.name for d in machine.devices if d.last_resort}
        rows: list[list[float]] = []
        for node in graph.nodes:
            able = [d for d in devices if machine.refusal(d, node.name) is None]
            if node.name in pins:
                able = [d for d in able if d == pins[node.name]]
            else:
                able = [d for d in able if d not in last] or able
                if node.name in shapes:
                    able = [d for d in able if d in hosts] or able
            rows.append([node_seconds(graph, machine, d, node) if d in able else math.inf for d in devices])
        values = []
        for value, consumers in graph.consumers.items():
            source = graph.producer.get(value)
            readers = tuple(position[c] for c in consumers if c != source)
            if source is not None and readers:
                values.append(SentValue(position[source], readers, graph.values[value].nbytes))
        return cls(graph, machine, devices, rows, values, [d.overhead for d in machine.devices])

    def transfer(self, nbytes: int, source: int, target: int) -> float:
        """Seconds of a transfer between two devices, infinite over a link that cannot be used."""
        link = self.machine.link(self.devices[source], self.devices[target])
        return math.inf if link is None else link.latency + nbytes / link.bandwidth

    @cached_property
    def memory(self) -> list[list[int]]:
        """Bytes that a node adds to each limited device: its outputs, and constants that it is the first to read."""
        limited = [d.memory is not None for d in self.machine.devices]
        seen: set[str] = set()
        rows = []
        for node in self.graph.nodes:
            held = [v for v in dict.fromkeys(node.inputs) if v in self.graph.constants and v not in seen]
            seen.update(held)
            nbytes = sum(self.graph.values[v].nbytes for v in (*held, *node.outputs))
            rows.append([nbytes if is_limited else 0 for is_limited in limited])
        return rows

    def priced(self, price: float) -> Problem:
        """The problem with `price` seconds for every byte on a device with limited memory."""
        rows = [
            [seconds + price * nbytes for seconds, nbytes in zip(row, used, strict=True)]
            for row, used in zip(self.seconds, self.memory, strict=True)
        ]
        return replace(self, seconds=rows)

    def device_of(self, labels: Labels) -> dict[str, str]:
        """The device of every node by name."""
        return {n.name: self.devices[label] for n, label in zip(self.graph.nodes, labels, strict=True)}

    def placed(self, labels: Labels) -> float:
        """Seconds of all nodes and transfers."""
        total = math.fsum(row[label] for row, label in zip(self.seconds, labels, strict=True))
        sent = []
        for value in self.values:
            source = labels[value.producer]
            for target in {labels[r] for r in value.readers} - {source}:
                sent.append(self.transfer(value.nbytes, source, target))
        return total + math.fsum(sent)

    def total(self, labels: Labels) -> float:
        """Seconds of a run: nodes, transfers, and the fewest partitions by their overhead."""
        total = self.placed(labels)
        if not any(self.overhead) or math.isinf(total):
            return total
        return total + math.fsum(self.overhead[labels[group[0]]] for group in self.turns(labels))

    def turns(self, labels: Labels) -> list[list[int]]:
        """Partitions in run order as lists of nodes, of least overhead."""
        position = {n.name: i for i, n in enumerate(self.graph.nodes)}
        groups = fewest_runs(self.graph, self.device_of(labels), self.weights)
        return [[position[name] for name in group] for group in groups]

    @property
    def weights(self) -> dict[str, float]:
        """The cost of a partition by device for `fewest_runs`: without any overhead, fewer are still better."""
        least = min((o for o in self.overhead if o > 0), default=1.0) * 1e-9
        return {d: o or least for d, o in zip(self.devices, self.overhead, strict=True)}

    @property
    def is_bounded(self) -> bool:
        """Return whether a device has a limit on its memory."""
        return any(d.memory is not None for d in self.machine.devices)

    def fits(self, labels: Labels) -> bool:
        """Return whether no device's memory is exceeded."""
        return not self.is_bounded or not overfull(self.graph, self.machine, self.device_of(labels))


@dataclass(frozen=True)
class OneAgainstRest(Problem):
    """A problem with device `one` as number 0 and all others as a single device, which is as good as each of them."""

    one: int = 0
    whole: Problem | None = None

    @classmethod
    def of_device(cls, problem: Problem, one: int) -> OneAgainstRest:
        """The problem in which `one` stands against the rest."""
        others = [d for d in range(len(problem.devices)) if d != one]
        rows = [[row[one], min(row[d] for d in others)] for row in problem.seconds]
        overhead = [problem.overhead[one], min(problem.overhead[d] for d in others)]
        names = (problem.devices[one], "rest")
        return cls(problem.graph, problem.machine, names, rows, problem.values, overhead, one, problem)

    def transfer(self, nbytes: int, source: int, target: int) -> float:
        """Seconds of the fastest transfer between the one device and any of the rest."""
        assert self.whole is not None
        others = [d for d in range(len(self.whole.devices)) if d != self.one]
        pairs = [(self.one, d) if source == 0 else (d, self.one) for d in others]
        return min(self.whole.transfer(nbytes, a, b) for a, b in pairs)
