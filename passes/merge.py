"""merge: reduce partitions and transfers to the minimum for a placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from heterocc.passes.graph import Graph
from heterocc.passes.islands import pull_islands
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.schedule import fewest_runs
from heterocc.passes.spec import SpecPass


@dataclass(frozen=True, slots=True, repr=False)
class Merge(SpecPass):
    """Move islands to their neighbours' device if that is profitable, then join partitions of the same device.

    The join gives the fewest acyclic partitions for the nodes' devices (see `schedule`), connected or not, and does not
    depend on the partitions before. Fewer partitions mean fewer launches and larger units for the back ends. Among
    equally few, nodes are assigned so that the fewest bytes cross borders of partitions.

    `max_nodes` limits the nodes of a partition: larger ones are split in graph order. `islands=off` keeps the device of
    every node.

    Keeps: pins, memory budgets. Never adds a transfer, nor a partition unless `max_nodes` requires it. Idempotent.
    """

    max_nodes: int | None = None
    islands: bool = True
    name: ClassVar[str] = "merge"

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 1:
            raise ValueError("max-nodes must be at least 1")

    def run(self, plan: Plan) -> Plan:
        """The plan with fewer partitions."""
        graph = plan.graph
        device_of: Mapping[str, str] = plan.device_of
        if self.islands:
            device_of = pull_islands(graph, plan.machine, plan.pins, device_of)
        groups = _settle(graph, device_of, fewest_runs(graph, device_of))
        partitions = tuple(Partition(device_of[part[0]], part) for g in groups for part in self._cut(g))
        if dict(device_of) == dict(plan.device_of) and len(partitions) > len(plan.partitions) and self._allows(plan):
            return plan
        return plan.with_partitions(partitions)

    def _cut(self, group: Sequence[str]) -> list[tuple[str, ...]]:
        size = self.max_nodes or len(group)
        return [tuple(group[i : i + size]) for i in range(0, len(group), size)]

    def _allows(self, plan: Plan) -> bool:
        return self.max_nodes is None or all(len(p.nodes) <= self.max_nodes for p in plan.partitions)


def _settle(graph: Graph, device_of: Mapping[str, str], groups: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Move nodes to the group of their first reader on the same device if fewer bytes cross borders then.

    `fewest_runs` runs every node as early as possible; a node that only a later group reads should run there.
    """
    turn_of = {name: turn for turn, group in enumerate(groups) for name in group}
    left = [len(g) for g in groups]

    def crossing(value: str) -> int:
        source = turn_of[graph.producer[value]]
        crosses = any(turn_of[c] != source for c in graph.consumers.get(value, ()))
        return max(graph.values[value].nbytes, 1) if crosses else 0

    for node in reversed(graph.nodes):
        turn = turn_of[node.name]
        later = min((turn_of[c] for v in node.outputs for c in graph.consumers.get(v, ())), default=turn)
        if later == turn or left[turn] == 1 or device_of[groups[later][0]] != device_of[node.name]:
            continue
        values = [v for v in dict.fromkeys((*node.inputs, *node.outputs)) if v in graph.producer]
        before = sum(map(crossing, values))
        turn_of[node.name] = later
        if sum(map(crossing, values)) < before:
            left[turn] -= 1
            left[later] += 1
        else:
            turn_of[node.name] = turn
    settled: list[list[str]] = [[] for _ in groups]
    for node in graph.nodes:
        settled[turn_of[node.name]].append(node.name)
    return tuple(tuple(g) for g in settled)
