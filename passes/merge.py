"""merge: reduce partitions and transfers to the minimum for a placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from heterocc.passes.estimate import plan_seconds
from heterocc.passes.graph import Numbers
from heterocc.passes.merging.crumbs import without_crumbs
from heterocc.passes.merging.islands import WORTH, pull_islands
from heterocc.passes.merging.schedule import fewest_turns
from heterocc.passes.merging.settling import settled
from heterocc.passes.plan import UNPLACED, Partition, Plan
from heterocc.passes.spec import SpecPass


@dataclass(frozen=True, slots=True, repr=False)
class Merge(SpecPass):
    """Move islands to their neighbours' device if that is profitable, then join partitions of the same device.

    The join gives the fewest acyclic partitions for the nodes' devices (see `schedule`), connected or not, and does not
    depend on the partitions before. Fewer partitions mean fewer launches and larger units for the back ends. Among
    equally few, nodes are assigned so that the fewest bytes cross borders of partitions.

    Partitions of a CPU go to a last resort beside them, such as ONNX Runtime, if they cost more than they save (see
    `crumbs`).

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
        merged = self._merged(plan)
        while self.islands:
            found = without_crumbs(merged, partial(self._joined, merged))
            if found is merged:
                break
            merged = self._merged(found)  # without the crumbs there may be other islands
        return merged

    def _merged(self, plan: Plan) -> Plan:
        before = plan_seconds(plan)
        moved = placed = plan.labels
        if self.islands:
            moved = pull_islands(plan.graph, plan.machine, plan.pins, placed)
        joined = self._joined(plan, moved)
        after = plan_seconds(joined)
        stays = np.array_equal(moved, placed)
        if before is not None and after is not None and after > before + WORTH and not stays:
            stays = True
            joined = self._joined(plan, placed)  # islands count no overhead of partitions
            after = plan_seconds(joined)
        if stays:
            longer = len(joined.partitions) > len(plan.partitions)
            if self._allows(plan) and (longer or (before or 0.0) + WORTH < (after or 0.0)):
                return plan
        return joined

    def _joined(self, plan: Plan, labels: Numbers) -> Plan:
        graph, names = plan.graph, plan.graph.names
        devices = [*(d.name for d in plan.machine.devices), UNPLACED]
        used, first = np.unique(labels, return_index=True)
        order = used[np.argsort(first)]  # devices in order of first use: of equally good beginnings the first one
        number = np.empty(len(devices), np.int64)
        number[order] = np.arange(len(order))
        weights = _weights(plan)
        turns = fewest_turns(graph, number[labels], [weights.get(devices[d], 1) for d in order.tolist()])
        partitions = [
            Partition(devices[labels[turn[0]]], part)
            for turn in settled(graph, labels, turns)
            for part in self._cut(tuple([names[node] for node in turn]))
        ]
        return plan.with_partitions(tuple(partitions))

    def _cut(self, group: tuple[str, ...]) -> list[tuple[str, ...]]:
        size = self.max_nodes or len(group)
        return [group] if len(group) <= size else [group[i : i + size] for i in range(0, len(group), size)]

    def _allows(self, plan: Plan) -> bool:
        return self.max_nodes is None or all(len(p.nodes) <= self.max_nodes for p in plan.partitions)


def _weights(plan: Plan) -> Mapping[str, float]:
    """Costs of a partition by which fewer ones are better first, then those of less overhead."""
    devices = plan.machine.devices
    most = max(d.overhead for d in devices)
    if not most:
        return {}
    return {d.name: 1 + d.overhead / most / (2 * len(plan.graph.nodes) + 2) for d in devices}
