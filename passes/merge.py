"""merge: reduce partitions and transfers to the minimum for a placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from heterocc.passes.estimate import plan_seconds
from heterocc.passes.islands import WORTH, pull_islands
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.schedule import fewest_runs, settled
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
        before = plan_seconds(plan)
        moved = placed = dict(plan.device_of)
        if self.islands:
            moved = pull_islands(plan.graph, plan.machine, plan.pins, placed)
        joined = self._joined(plan, moved)
        after = plan_seconds(joined)
        if before is not None and after is not None and after > before + WORTH and moved != placed:
            moved = placed
            joined = self._joined(plan, placed)  # islands count no overhead of partitions
            after = plan_seconds(joined)
        if moved == placed:
            longer = len(joined.partitions) > len(plan.partitions)
            if self._allows(plan) and (longer or (before or 0.0) + WORTH < (after or 0.0)):
                return plan
        return joined

    def _joined(self, plan: Plan, device_of: Mapping[str, str]) -> Plan:
        graph = plan.graph
        groups = settled(graph, device_of, fewest_runs(graph, device_of, _weights(plan)))
        return plan.with_partitions(tuple(Partition(device_of[part[0]], part) for g in groups for part in self._cut(g)))

    def _cut(self, group: Sequence[str]) -> list[tuple[str, ...]]:
        size = self.max_nodes or len(group)
        return [tuple(group[i : i + size]) for i in range(0, len(group), size)]

    def _allows(self, plan: Plan) -> bool:
        return self.max_nodes is None or all(len(p.nodes) <= self.max_nodes for p in plan.partitions)


def _weights(plan: Plan) -> Mapping[str, float] | None:
    """Costs of a partition by which fewer ones are better first, then those of less overhead."""
    devices = plan.machine.devices
    most = max(d.overhead for d in devices)
    if not most:
        return None
    return {d.name: 1 + d.overhead / most / (2 * len(plan.graph.nodes) + 2) for d in devices}
