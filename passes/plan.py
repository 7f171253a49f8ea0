"""The plan: a cover of the graph by partitions, each on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from types import MappingProxyType

import numpy as np

from heterocc.passes.affinity import Affinity
from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph, Node, Numbers
from heterocc.passes.objective import Goal

UNPLACED = "?"
"""Device of a partition that no pass has placed yet."""


_FEW_NODES = 64
"""Smaller plans are not worth arrays."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that are compiled together for one device; `nodes` are in graph order."""

    device: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that crosses from one device to another, once per target device."""

    value: str
    source: str
    target: str
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """A cover of the graph by partitions.

    Invariants, checked on construction:
      * every node is in exactly one partition, and none is empty;
      * nodes of a partition are in graph order;
      * partitions are in run order: each reads only values written by earlier ones or itself;
      * nothing is transferred over a link that cannot be used;
      * every device is one of the machine's (or UNPLACED) and does not refuse a node placed on it;
      * `pins` are devices of nodes, set by the user, and every placed node is on the device of its pin.

    `affinity` has the user's rules, which the pass `manual` turns into pins. `bound` is a lower bound, in seconds, of
    the estimated time of any plan for the graph, if the pass that made this one proved one. `goal` has the objective
    that the plan was made for, if this is not the time of a run one step after the other.
    """

    graph: Graph
    machine: Machine
    partitions: tuple[Partition, ...]
    pins: Mapping[str, str] = field(default_factory=dict)
    affinity: Affinity = field(default_factory=Affinity)
    bound: float | None = None
    goal: Goal | None = None

    def __repr__(self) -> str:
        """One short line; `print_plan` prints the whole plan."""
        placed = ", ".join(f"p{i} {p.device} {len(p.nodes)}" for i, p in enumerate(self.partitions[:8]))
        more = ", …" if len(self.partitions) > 8 else ""
        return f"<Plan {self.graph.name}: {len(self.graph.nodes)} nodes: {placed}{more}>"

    def __post_init__(self) -> None:
        object.__setattr__(self, "pins", MappingProxyType(dict(self.pins)))
        if not self._is_plain():
            self._check()

    def _is_plain(self) -> bool:
        """Return True if arrays show that the invariants hold; False if `_check` must decide.

        It must for small plans, plans with pins, and machines with missing links. Passes build several large plans, for
        which `_check` takes several times as long.
        """
        graph, parts = self.graph, self.partitions
        if len(graph.nodes) < _FEW_NODES or self.pins or not self.machine.is_connected:
            return False
        devices = {d.name for d in self.machine.devices} | {UNPLACED}
        refusals = self.machine.refusals
        for part in parts:
            refused = refusals.get(part.device)
            if part.device not in devices or (refused and not refused.keys().isdisjoint(part.nodes)):
                return False
        counts = [len(part.nodes) for part in parts]
        position = graph.position
        if sum(counts) != len(position) or not min(counts):
            return False
        named = tuple(chain.from_iterable([part.nodes for part in parts]))
        if named == graph.names:  # partitions of consecutive nodes
            places = np.arange(len(named))
        else:
            try:
                places = np.fromiter(map(position.__getitem__, named), np.int64, len(named))
            except KeyError:
                return False
        index = np.repeat(np.arange(len(parts)), counts)
        owner = np.full(len(position), -1, np.int64)
        owner[places] = index
        if (owner < 0).any() or ((places[1:] < places[:-1]) & (index[1:] == index[:-1])).any():
            return False
        sources, readers = graph.edges
        self.__dict__["owners"] = owner
        return bool((owner[sources] <= owner[readers]).all())

    def _check(self) -> None:
        """Raise ValueError for an invariant that does not hold."""
        order = self.graph.position
        devices = {d.name for d in self.machine.devices} | {UNPLACED}
        owner = [-1] * len(order)
        for index, part in enumerate(self.partitions):
            if not part.nodes:
                raise ValueError(f"p{index} is empty")
            if part.device not in devices:
                raise ValueError(f"p{index} is on unknown device '{part.device}'")
            refusals = self.machine.refusals.get(part.device, {})
            last = -1
            for name in part.nodes:
                position = order.get(name)
                if position is None:
                    raise ValueError(f"p{index} names unknown node '{name}'")
                if owner[position] >= 0:
                    raise ValueError(f"node '{name}' is in p{owner[position]} and p{index}")
                if position < last:
                    raise ValueError(f"nodes of p{index} are not in graph order")
                last = position
                owner[position] = index
                if name in refusals:
                    raise ValueError(f"'{part.device}' cannot run node '{name}': {refusals[name]}")
        for name, device in self.pins.items():
            if name not in order:
                raise ValueError(f"unknown node '{name}' is pinned")
            placed = self.partitions[owner[order[name]]].device if owner[order[name]] >= 0 else UNPLACED
            if placed not in (UNPLACED, device):
                raise ValueError(f"node '{name}' is pinned to {device} but placed on {placed}")
        if -1 in owner:
            raise ValueError(f"node '{self.graph.nodes[owner.index(-1)].name}' is in no partition")
        if len(self.partitions) > 1:
            for position, sources in enumerate(self.graph.sources):
                own = owner[position]
                for source in sources:
                    if owner[source] > own:
                        raise ValueError(self._late(source, position, owner))
        if not self.machine.is_connected:
            for sent in self.transfers:
                if UNPLACED not in (sent.source, sent.target) and self.machine.link(sent.source, sent.target) is None:
                    raise ValueError(f"'{sent.value}' cannot be sent from {sent.source} to {sent.target}")

    def _late(self, source: int, reader: int, owner: Sequence[int]) -> str:
        node = self.graph.nodes[reader]
        value = next(v for v in node.inputs if v in self.graph.nodes[source].outputs)
        return f"p{owner[reader]} reads '{value}' from the later p{owner[source]}"

    @classmethod
    def initial(cls, graph: Graph, machine: Machine, affinity: Affinity | None = None) -> Plan:
        """The initial plan of a pipeline: no node is placed, and all are in one partition."""
        nodes = tuple(n.name for n in graph.nodes)
        return cls(graph, machine, (Partition(UNPLACED, nodes),) if nodes else (), affinity=affinity or Affinity())

    def with_partitions(
        self,
        partitions: tuple[Partition, ...],
        pins: Mapping[str, str] | None = None,
        bound: float | None = None,
        goal: Goal | None = None,
    ) -> Plan:
        """A plan with the same graph, machine and affinity but other partitions, and other pins if given."""
        return replace(self, partitions=partitions, pins=self.pins if pins is None else pins, bound=bound, goal=goal)

    @cached_property
    def device_of(self) -> Mapping[str, str]:
        """The device of every node."""
        return MappingProxyType({n: p.device for p in self.partitions for n in p.nodes})

    @cached_property
    def owners(self) -> Numbers:
        """The number of the partition of every node, in graph order."""
        found = np.empty(len(self.graph.nodes), np.int64)
        for index, part in enumerate(self.partitions):
            found[[self.graph.position[name] for name in part.nodes]] = index
        return found

    @cached_property
    def labels(self) -> Numbers:
        """The number of the device of every node, in graph order; that of UNPLACED follows those of the machine."""
        number = {name: i for i, name in enumerate((*(d.name for d in self.machine.devices), UNPLACED))}
        return np.array([number[part.device] for part in self.partitions], np.int64)[self.owners]

    def nodes_of(self, index: int) -> tuple[Node, ...]:
        """The nodes of partition `index`."""
        return tuple(self.graph.node_by_name[n] for n in self.partitions[index].nodes)

    def inputs_of(self, index: int) -> tuple[str, ...]:
        """Values, without constants, that partition `index` reads from outside, in order of first use."""
        own = set(self.partitions[index].nodes)
        reads = (v for n in self.nodes_of(index) for v in n.inputs)
        return tuple(
            v for v in dict.fromkeys(reads) if v not in self.graph.constants and self.graph.producer.get(v) not in own
        )

    def outputs_of(self, index: int) -> tuple[str, ...]:
        """Values of partition `index` that another partition or the caller reads, in order of writing."""
        own = set(self.partitions[index].nodes)
        wanted = set(self.graph.outputs)
        written = (v for n in self.nodes_of(index) for v in n.outputs)
        return tuple(v for v in written if v in wanted or not own.issuperset(self.graph.consumers.get(v, ())))

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Values that cross devices, each once per target device; graph inputs and outputs do not count."""
        found: dict[tuple[str, str], Transfer] = {}
        if len({part.device for part in self.partitions}) < 2:
            return ()
        graph, labels, owners = self.graph, self.labels, self.owners
        sources, readers = graph.edges
        crossing = np.unique(readers[labels[sources] != labels[readers]])
        for place in crossing[np.argsort(owners[crossing], kind="stable")].tolist():
            target = self.partitions[owners[place]].device
            for value in graph.nodes[place].inputs:
                writer = graph.writers[value]
                if writer < 0 or labels[writer] == labels[place] or (value, target) in found:
                    continue
                source = self.partitions[owners[writer]].device
                found[value, target] = Transfer(value, source, target, graph.values[value].nbytes)
        return tuple(found.values())


def consecutive(graph: Graph, device_of: Mapping[str, str]) -> tuple[Partition, ...]:
    """Partitions of consecutive nodes (graph order) on one device: acyclic, because graph order is a run order."""
    names = graph.names
    devices = [device_of[name] for name in names]
    ends = [place for place, pair in enumerate(pairwise(devices), 1) if pair[0] != pair[1]]
    runs = zip([0, *ends], [*ends, len(names)], strict=True) if names else ()
    return tuple([Partition(devices[start], names[start:end]) for start, end in runs])
