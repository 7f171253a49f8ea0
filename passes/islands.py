"""Pulling of islands: moves of connected nodes to a neighbouring device if saved transfers outweigh slower compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heterocc.passes.cost import Machine
from heterocc.passes.estimate import knows_time, node_seconds, transfer_seconds
from heterocc.passes.graph import Graph, Node
from heterocc.passes.placement import Budget
from heterocc.passes.plan import UNPLACED
from heterocc.passes.schedule import fewest_runs
from heterocc.passes.shapes import shape_nodes

WORTH = 1e-9
"""Minimum seconds that a move must save, so that rounding has no influence."""


def pull_islands(
    graph: Graph, machine: Machine, pins: Mapping[str, str], device_of: Mapping[str, str]
) -> dict[str, str]:
    """The device of each node after all profitable moves.

    An island is a connected part of a partition of `fewest_runs`. It is moved as a whole to a device with which it
    exchanges values, if that lowers the estimated time of the plan without more transfers or partitions, and the device
    can run it: no refusal, no pin to another device, not a last resort, enough memory, and known work of every node.
    Nodes that compute shapes stay on the CPU. Sweeps are repeated until nothing moves; within a sweep, the move that
    saves most comes first.
    """
    current = dict(device_of)
    search = _Search(graph, machine, pins)
    while search.sweep(current, [list(g) for g in fewest_runs(graph, current)]):
        pass
    return current


@dataclass(frozen=True, slots=True)
class _Move:
    saving: float
    target: str
    turn: int
    into: int
    nodes: tuple[Node, ...]


class _Search:
    def __init__(self, graph: Graph, machine: Machine, pins: Mapping[str, str]) -> None:
        self._graph, self._machine, self._pins = graph, machine, pins
        self._shapes = shape_nodes(graph)
        self._position = {n.name: i for i, n in enumerate(graph.nodes)}
        self._bounded = any(d.memory is not None for d in machine.devices)
        self._eligible = {
            d.name: {n.name for n in graph.nodes if self._may_run(d.name, n)}
            for d in machine.devices
            if not d.last_resort
        }

    def _may_run(self, device: str, node: Node) -> bool:
        return (
            knows_time(self._machine, node, device)
            and self._machine.refusal(device, node.name) is None
            and self._pins.get(node.name, device) == device
            and (node.name not in self._shapes or self._machine.device(device).kind == "cpu")
        )

    def sweep(self, device_of: dict[str, str], groups: list[list[str]]) -> bool:
        """Make the profitable moves while groups stay valid, and return whether there was one."""
        moves = [m for turn in range(len(groups)) for m in self._moves(device_of, groups, turn)]
        moves.sort(key=lambda m: (-m.saving, self._position[m.nodes[0].name], m.target))
        gave: set[int] = set()
        received: set[int] = set()
        moved = False
        for move in moves:
            # Groups that lose and gain nodes could form a cycle; a group that only changes its device cannot.
            if move.turn in received or move.into in gave:
                continue
            if self._saving(device_of, move.nodes, move.target) < WORTH:
                continue
            if not self._has_room(device_of, move.nodes, move.target):
                continue
            device_of.update((n.name, move.target) for n in move.nodes)
            gave.add(move.turn)
            received.add(move.into)
            moved = True
        return moved

    def _moves(self, device_of: Mapping[str, str], groups: Sequence[Sequence[str]], turn: int) -> Iterable[_Move]:
        own = device_of[groups[turn][0]]
        if own == UNPLACED or len(groups) == 1:
            return
        for island in self._islands(groups[turn]):
            for target in self._neighbours(device_of, island):
                if target == own or not self._eligible.get(target, set()).issuperset(n.name for n in island):
                    continue
                into = self._joins(device_of, groups, turn, target, len(island))
                if into is None:
                    continue
                saving = self._saving(device_of, island, target)
                if saving >= WORTH:
                    yield _Move(saving, target, turn, into, island)

    def _joins(
        self, device_of: Mapping[str, str], groups: Sequence[Sequence[str]], turn: int, target: str, size: int
    ) -> int | None:
        """The group that the island can join without an additional partition; None if there is no such group.

        If the island is a whole group, the group changes its device. Otherwise it has no edge to the rest of its group,
        so it can run just before or after it, and joins the neighbouring group if that is on the target.
        """
        if size == len(groups[turn]):
            return turn
        beside = (t for t in (turn - 1, turn + 1) if 0 <= t < len(groups))
        return next((t for t in beside if device_of[groups[t][0]] == target), None)

    def _islands(self, group: Sequence[str]) -> list[tuple[Node, ...]]:
        """The connected components of a group, ordered by first node."""
        import networkx as nx  # here: it takes 0.1 s, and a plan on one device has no islands

        inside = set(group)
        links = nx.Graph()
        links.add_nodes_from(group)
        for name in group:
            sources = (self._graph.producer.get(v) for v in self._graph.node_by_name[name].inputs)
            links.add_edges_from((source, name) for source in sources if source in inside)
        pieces = (sorted(piece, key=self._position.__getitem__) for piece in nx.connected_components(links))
        return [tuple(self._graph.node_by_name[name] for name in piece) for piece in pieces]

    def _neighbours(self, device_of: Mapping[str, str], island: Sequence[Node]) -> list[str]:
        """The devices with which the island exchanges values, in order of the device list."""
        found: set[str] = set()
        for node in island:
            found.update(device_of[self._graph.producer[v]] for v in node.inputs if v in self._graph.producer)
            found.update(device_of[c] for v in node.outputs for c in self._graph.consumers.get(v, ()))
        return [d.name for d in self._machine.devices if d.name in found]

    def _saving(self, device_of: Mapping[str, str], island: Sequence[Node], target: str) -> float:
        """Seconds that the move saves; also negative if it adds a transfer."""
        inside = {n.name for n in island}
        saved = 0.0
        count = 0
        for value in dict.fromkeys(v for n in island for v in (*n.inputs, *n.outputs)):
            source = self._graph.producer.get(value)
            if source is None:
                continue
            readers = self._graph.consumers.get(value, ())
            nbytes = self._graph.values[value].nbytes
            for sign, moved in ((1, False), (-1, True)):
                start = target if moved and source in inside else device_of[source]
                ends = {target if moved and r in inside else device_of[r] for r in readers} - {start, UNPLACED}
                count += sign * len(ends)
                saved += sign * sum(transfer_seconds(self._machine, start, end, nbytes) for end in sorted(ends))
        if count < 0:
            return -1.0
        for node in island:
            saved += node_seconds(self._graph, self._machine, device_of[node.name], node)
            saved -= node_seconds(self._graph, self._machine, target, node)
        return saved

    def _has_room(self, device_of: Mapping[str, str], island: Sequence[Node], target: str) -> bool:
        if not self._bounded:
            return True
        budget = Budget(self._graph, self._machine)
        for node in self._graph.nodes:
            if device_of[node.name] == target:
                budget.add(target, node)
        return budget.fits(target, *island)
