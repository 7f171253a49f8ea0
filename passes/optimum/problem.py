"""The cost of a placement in numbers: seconds of nodes, transfers and partitions by index of node and device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heterocc.passes.cost import Machine
from heterocc.passes.estimate import node_times
from heterocc.passes.graph import Graph
from heterocc.passes.merging.schedule import EXACT_WORK, grouped
from heterocc.passes.native.calls import cheapest_turns
from heterocc.passes.placement import overfull
from heterocc.passes.sent import Sent
from heterocc.passes.shapes import shape_nodes

Labels = npt.NDArray[np.int64]
"""The number of the device of every node, in graph order."""

Floats = npt.NDArray[np.float64]

SEARCH_WORK = 1_000
"""Limit of the exact search for the turns of a placement that is one of many."""

_MEMORISED = 8
"""Labels whose partitions are kept: the best ones are asked for again."""


@dataclass(frozen=True)
class Problem:
    """A placement to be found.

    `seconds[node, device]` is infinite if the device cannot run the node or may not. `overhead[device]` is the time of
    each partition. A transfer takes `latency[source, target]` seconds, infinite over a link that cannot be used, and
    `per_byte[source, target]` seconds for each byte.
    """

    graph: Graph
    machine: Machine
    seconds: Floats
    sent: Sent
    overhead: Floats
    latency: Floats
    per_byte: Floats

    @classmethod
    def of(cls, graph: Graph, machine: Machine, pins: Mapping[str, str]) -> Problem:
        """The problem of a graph on a machine, bound by refusals, pins, last resorts and nodes that compute shapes."""
        devices = [d.name for d in machine.devices]
        count = len(devices)
        latency, per_byte = np.zeros((count, count)), np.zeros((count, count))
        for a, source in enumerate(devices):
            for b, target in enumerate(devices):
                link = machine.link(source, target)
                if a != b:
                    latency[a, b] = math.inf if link is None else link.latency
                    per_byte[a, b] = 0.0 if link is None else 1 / link.bandwidth
        overhead = np.array([d.overhead for d in machine.devices])
        return cls(graph, machine, _seconds(graph, machine, pins), Sent.of(graph), overhead, latency, per_byte)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.overhead)

    def transfers(self, source: int, target: int) -> Floats:
        """Seconds of a transfer of each value between two devices."""
        found: Floats = self.latency[source, target] + self.sent.nbytes * self.per_byte[source, target]
        return found

    def placed(self, labels: Labels, crossing: float = 0.0) -> float:
        """Seconds of all nodes and transfers, and `crossing` times the target's overhead for every transfer."""
        total = float(self.seconds[np.arange(len(labels)), labels].sum())
        sources, targets = labels[self.sent.producer], labels[self.sent.readers]
        for target in range(self.devices):
            crosses = self.sent.any_reader(targets == target) & (sources != target)
            start, nbytes = sources[crosses], self.sent.nbytes[crosses]
            total += float((self.latency[start, target] + nbytes * self.per_byte[start, target]).sum())
            total += crossing * float(self.overhead[target]) * len(start)
        return total

    def total(self, labels: Labels) -> float:
        """Seconds of a run: nodes, transfers, and the fewest partitions by their overhead."""
        total = self.placed(labels)
        if not self.overhead.any() or math.isinf(total):
            return total
        return total + cheapest_turns(self.edges, labels, self.overhead, SEARCH_WORK)[1]

    @cached_property
    def edges(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """For each node where its entries of the second array begin, and the nodes that it reads from."""
        sources, readers = self.graph.edges
        return np.searchsorted(readers, np.arange(len(self.seconds) + 1)).astype(np.int64), sources

    def planned(self, labels: Labels) -> float:
        """As `total`, with the partitions of `turns`."""
        return self.placed(labels) + math.fsum(self.overhead[labels[turn[0]]] for turn in self.turns(labels))

    def turns(self, labels: Labels) -> list[list[int]]:
        """Partitions in run order as lists of nodes, of least overhead."""
        key = labels.tobytes()
        if key not in self._last_turns:
            positive = self.overhead[self.overhead > 0]
            least = float(positive.min()) * 1e-9 if len(positive) else 1.0  # without any overhead, fewer are better
            weights = np.array([float(o) or least for o in self.overhead])
            # The search with more work is the better one but for chance, if neither has a proof.
            found = [cheapest_turns(self.edges, labels, weights, work) for work in (EXACT_WORK, SEARCH_WORK)]
            turns = grouped(min(found, key=lambda entry: entry[1])[0])
            if len(self._last_turns) >= _MEMORISED:
                self._last_turns.pop(next(iter(self._last_turns)))
            self._last_turns[key] = turns
        return self._last_turns[key]

    @cached_property
    def _last_turns(self) -> dict[bytes, list[list[int]]]:
        return {}

    def used_overhead(self, labels: Labels) -> float:
        """One overhead of each device that is used."""
        return float(self.overhead[np.bincount(labels, minlength=self.devices) > 0].sum())

    def device_of(self, labels: Labels) -> dict[str, str]:
        """The device of every node by name."""
        names = [d.name for d in self.machine.devices]
        return {name: names[label] for name, label in zip(self.graph.names, labels.tolist(), strict=True)}

    def labels_of(self, device_of: Mapping[str, str]) -> Labels:
        """The labels of a placement of all nodes."""
        number = {d.name: i for i, d in enumerate(self.machine.devices)}
        devices = map(device_of.__getitem__, self.graph.names)
        return np.fromiter(map(number.__getitem__, devices), np.int64, len(device_of))

    @property
    def is_bounded(self) -> bool:
        """Return whether a device has a limit on its memory."""
        return any(d.memory is not None for d in self.machine.devices)

    def fits(self, labels: Labels) -> bool:
        """Return whether no device's memory is exceeded."""
        return not self.is_bounded or not overfull(self.graph, self.machine, self.device_of(labels))

    @cached_property
    def memory(self) -> Floats:
        """Bytes that a node adds to each limited device: its outputs, and constants that it is the first to read."""
        seen: set[str] = set()
        held = []
        for node in self.graph.nodes:
            own = [v for v in dict.fromkeys(node.inputs) if v in self.graph.constants and v not in seen]
            seen.update(own)
            held.append(sum(self.graph.values[v].nbytes for v in (*own, *node.outputs)))
        return np.outer(held, [d.memory is not None for d in self.machine.devices]).astype(float)

    def priced(self, price: float) -> Problem:
        """The problem with `price` seconds for every byte on a device with limited memory."""
        return replace(self, seconds=self.seconds + price * self.memory)


def _seconds(graph: Graph, machine: Machine, pins: Mapping[str, str]) -> Floats:
    hosts = [i for i, d in enumerate(machine.devices) if d.kind == "cpu" and not d.last_resort]
    last = [i for i, d in enumerate(machine.devices) if d.last_resort]
    rows = node_times(graph, machine).seconds.copy()
    for column, device in enumerate(machine.devices):
        refusals = machine.refusals.get(device.name)
        if refusals:
            rows[[graph.position[name] for name in refusals if name in graph.position], column] = math.inf
    pinned = [n.name in pins for n in graph.nodes] if pins else np.zeros(len(rows), bool)
    if last:
        _prefer(rows, [d for d in range(len(machine.devices)) if d not in last], ~np.array(pinned))
    shapes = shape_nodes(graph) if hosts else frozenset()
    if shapes:
        _prefer(rows, hosts, np.array([n.name in shapes and n.name not in pins for n in graph.nodes], bool))
    for column, device in enumerate(machine.devices):
        others = [i for i, n in enumerate(graph.nodes) if pins.get(n.name, device.name) != device.name] if pins else []
        rows[others, column] = math.inf
    return rows


def _prefer(rows: Floats, devices: Sequence[int], nodes: npt.NDArray[np.bool_]) -> None:
    """Leave the nodes only `devices`, if one of them can run them."""
    others = [d for d in range(rows.shape[1]) if d not in devices]
    able = nodes & ~np.isinf(rows[:, list(devices)]).all(axis=1)
    for column in others:
        rows[able, column] = math.inf
