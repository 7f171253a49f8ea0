"""The estimated time of a plan, split into nodes, transfers and partitions, and the change by a move of one node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from heterocc.passes.estimate import knows_time, node_seconds, transfer_seconds
from heterocc.passes.graph import Node
from heterocc.passes.plan import Plan, Transfer


@dataclass(frozen=True, slots=True)
class PartitionCost:
    """A partition: its estimated seconds, None if unknown, and the bytes that other devices send it and get from it.

    `start` is the estimated time from the beginning of a run until the partition starts.
    """

    index: int
    device: str
    nodes: tuple[str, ...]
    seconds: float | None
    start: float | None
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class TransferCost:
    """A transfer with its estimated seconds and start; it precedes partition `into`, the first to read it."""

    transfer: Transfer
    seconds: float
    start: float | None
    into: int


@dataclass(frozen=True)
class Costs:
    """Costs of a plan, one thing after the other as in a run without overlap."""

    plan: Plan

    def node(self, node: Node, device: str) -> float | None:
        """Seconds of a node on a device; None if neither its time nor its work is known."""
        machine = self.plan.machine
        return node_seconds(self.plan.graph, machine, device, node) if knows_time(machine, node, device) else None

    @cached_property
    def timeline(self) -> tuple[tuple[PartitionCost, ...], tuple[TransferCost, ...]]:
        """The partitions and transfers in run order."""
        plan, machine = self.plan, self.plan.machine
        waiting = {(t.value, t.target): t for t in plan.transfers}
        sent = Counter(dict.fromkeys(range(len(plan.partitions)), 0))
        owner = {name: i for i, part in enumerate(plan.partitions) for name in part.nodes}
        for transfer in plan.transfers:
            sent[owner[plan.graph.producer[transfer.value]]] += transfer.nbytes
        clock: float | None = 0.0
        partitions, transfers = [], []
        for index, part in enumerate(plan.partitions):
            received = 0
            for value in plan.inputs_of(index):
                found = waiting.pop((value, part.device), None)
                if found is None:
                    continue
                seconds = transfer_seconds(machine, found.source, found.target, found.nbytes)
                transfers.append(TransferCost(found, seconds, clock, index))
                clock = None if clock is None else clock + seconds
                received += found.nbytes
            times = [self.node(n, part.device) for n in plan.nodes_of(index)]
            known = [t for t in times if t is not None]
            spent = machine.device(part.device).overhead + sum(known) if len(known) == len(times) else None
            partitions.append(PartitionCost(index, part.device, part.nodes, spent, clock, received, sent[index]))
            clock = None if clock is None or spent is None else clock + spent
        return tuple(partitions), tuple(transfers)

    @cached_property
    def _readers(self) -> dict[str, Counter[str]]:
        device_of = self.plan.device_of
        return {v: Counter(device_of[r] for r in readers) for v, readers in self.plan.graph.consumers.items()}

    def move(self, node: Node, target: str) -> float | None:
        """Seconds by which a run gets longer if this node alone moves to another device; partitions do not count.

        None if the node's time is unknown; infinite if a link is missing.
        """
        plan, machine, values = self.plan, self.plan.machine, self.plan.graph.values
        own = plan.device_of[node.name]
        before, after = self.node(node, own), self.node(node, target)
        if before is None or after is None:
            return None
        change = after - before
        for value in dict.fromkeys(node.inputs):
            writer = plan.graph.producer.get(value)
            if writer is None:
                continue
            source, nbytes = plan.device_of[writer], values[value].nbytes
            readers = self._readers[value]
            if source != target and not readers[target]:
                change += transfer_seconds(machine, source, target, nbytes)
            if source != own and readers[own] == 1:
                change -= transfer_seconds(machine, source, own, nbytes)
        for value in node.outputs:
            readers = self._readers.get(value, Counter())
            nbytes = values[value].nbytes
            change += sum(transfer_seconds(machine, target, d, nbytes) for d in sorted(readers) if d != target)
            change -= sum(transfer_seconds(machine, own, d, nbytes) for d in sorted(readers) if d != own)
        return change
