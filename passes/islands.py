"""Pulling of islands: moves of connected nodes to a neighbouring device if saved transfers outweigh slower compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heterocc.passes.blocks import Blocks, contract
from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.estimate import node_times
from heterocc.passes.graph import Graph, Numbers
from heterocc.passes.placement import Budget
from heterocc.passes.plan import UNPLACED
from heterocc.passes.schedule import turn_numbers
from heterocc.passes.sent import Sent
from heterocc.passes.shapes import shape_nodes

WORTH = 1e-9
"""Minimum seconds that a move must save, so that rounding has no influence."""


def pull_islands(graph: Graph, machine: Machine, pins: Mapping[str, str], labels: Numbers) -> Numbers:
    """The device of each node, as its number in the machine's list, after all profitable moves.

    An island is a connected part of a partition of `fewest_turns`. It is moved as a whole to a device with which it
    exchanges values, if that lowers the estimated time of the plan without more transfers or partitions, and the device
    can run it: no refusal, no pin to another device, not a last resort, enough memory, and known work of every node.
    Nodes that compute shapes stay on the CPU. Sweeps are repeated until nothing moves; within a sweep, the move that
    saves most comes first. The number after those of the devices is that of UNPLACED, which nothing is moved from.
    """
    if not len(labels) or (labels == labels[0]).all():
        return labels
    search = _Search(graph, machine, pins, labels)
    while search.sweep():
        pass
    found: Numbers = np.array(search.labels, np.int64)[search.blocks.block_of]
    return found


@dataclass(frozen=True, slots=True)
class _Groups:
    """The number of blocks and the device of each group."""

    sizes: list[int]
    devices: list[int]

    @classmethod
    def of(cls, turn_of: Sequence[int], labels: Sequence[int]) -> _Groups:
        devices = [0] * (max(turn_of) + 1)
        for turn, label in zip(turn_of, labels, strict=True):
            devices[turn] = label
        return cls(np.bincount(turn_of).tolist(), devices)


def _sent(graph: Graph, blocks: Blocks) -> Sent:
    """The values that blocks exchange, with blocks in place of nodes."""
    reads = graph.reads
    enters = blocks.firsts[blocks.block_of[reads.readers]] == reads.readers
    values, readers = reads.values[enters], blocks.block_of[reads.readers[enters]]
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    order = np.argsort(readers[starts], kind="stable")  # by first reader
    found = values[starts[order]]
    number = np.empty(len(reads.names), np.int64)
    number[found] = np.arange(len(found))
    entries = np.argsort(number[values], kind="stable")
    return Sent.between(
        graph,
        [reads.names[value] for value in found.tolist()],
        blocks.block_of[reads.producers[found]],
        readers[entries],
        number[values][entries],
    )


@dataclass(frozen=True, slots=True)
class _Island:
    """Connected blocks of a group, and the numbers of the values that they exchange with others."""

    turn: int
    blocks: list[int]
    border: list[int]


@dataclass(frozen=True, slots=True)
class _Move:
    saving: float
    target: int
    into: int
    island: _Island


class _Search:
    """Devices are numbers, those of the machine's list and one for UNPLACED; `labels` has that of each block."""

    def __init__(self, graph: Graph, machine: Machine, pins: Mapping[str, str], labels: Numbers) -> None:
        self._graph, self._machine = graph, machine
        self.names = [*(d.name for d in machine.devices), UNPLACED]
        self._unplaced = len(machine.devices)
        self.blocks = contract(graph, labels)
        self.labels = list(self.blocks.labels)
        self._bounded = any(d.memory is not None for d in machine.devices)
        block_of = self.blocks.block_of
        times = node_times(graph, machine)
        self._seconds: list[list[float]] = [np.bincount(block_of, column).tolist() for column in times.seconds.T]
        able = np.ones((len(machine.devices), len(self.labels)), bool)
        for row, known, device in zip(able, times.known.T, machine.devices, strict=True):
            row[block_of[~self._may_move(known, device, pins)]] = False
        self._able: list[list[bool]] = able.tolist()
        self._options: dict[tuple[int, ...], dict[int, float | None]] = {}
        self._touched: set[int] = set()
        links = [[machine.link(a, b) for b in self.names] for a in self.names]
        self._links = [[(math.inf, 1.0) if k is None else (k.latency, k.bandwidth) for k in row] for row in links]
        self._sent = _sent(graph, self.blocks)
        readers, first = self._sent.readers.tolist(), self._sent.first.tolist()
        self._ends = [
            (source, nbytes, readers[start:end])
            for source, nbytes, start, end in zip(
                self._sent.producer.tolist(), self._sent.nbytes.tolist(), first, first[1:], strict=False
            )
        ]

    def _may_move(
        self, known: npt.NDArray[np.bool_], device: PlacementDevice, pins: Mapping[str, str]
    ) -> npt.NDArray[np.bool_]:
        """For each node whether an island with it may move to a device; `known` says for which its time is."""
        name = device.name
        if device.last_resort:
            return np.zeros(len(known), bool)
        able, position = known.copy(), self._graph.position
        bound = [node for node, pinned in pins.items() if pinned != name]
        shapes = self._shapes if device.kind != "cpu" else frozenset()
        left = (*self._machine.refusals.get(name, {}), *shapes, *bound)
        able[[position[node] for node in left if node in position]] = False
        return able

    @cached_property
    def _shapes(self) -> frozenset[str]:
        return shape_nodes(self._graph)

    def sweep(self) -> bool:
        """Make the profitable moves while groups stay valid, and return whether there was one."""
        turn_of = turn_numbers(self.blocks.sources, self.labels, [1] * len(self.names))
        groups = _Groups.of(turn_of, self.labels)
        moves = sorted(
            self._moves(groups, self._islands(turn_of)),
            key=lambda m: (-m.saving, m.island.blocks[0], self.names[m.target]),
        )
        gave: set[int] = set()
        received: set[int] = set()
        moved = False
        self._touched = set()
        for move in moves:
            # Groups that lose and gain nodes could form a cycle; a group that only changes its device cannot.
            if move.island.turn in received or move.into in gave:
                continue
            if not self._touched.isdisjoint(move.island.border) and self._saving(move.island, move.target) < WORTH:
                continue
            if not self._has_room(move.island, move.target):
                continue
            self._touched.update(move.island.border)
            for block in move.island.blocks:
                self.labels[block] = move.target
            gave.add(move.island.turn)
            received.add(move.into)
            moved = True
        return moved

    def _islands(self, turn_of: Sequence[int]) -> list[_Island]:
        """The connected components of all groups, ordered by group and first node; those with a border only."""
        # Sets of our own: networkx takes ten times as long, which is most of the time on a large graph.
        parent: list[int] = []
        piece_of: list[int] = []
        for node, sources in enumerate(self.blocks.sources):
            turn, piece = turn_of[node], -1
            for source in sources:
                if turn_of[source] == turn:
                    if piece < 0:
                        piece = piece_of[source]
                    elif piece_of[source] != piece:
                        parent[_root(parent, piece)] = _root(parent, piece_of[source])
            if piece < 0:
                piece = len(parent)
                parent.append(piece)
            piece_of.append(piece)
        roots = np.array([_root(parent, piece) for piece in range(len(parent))], np.int64)[np.array(piece_of)]
        order = np.argsort(roots, kind="stable")
        starts = np.flatnonzero(np.append(True, roots[order][1:] != roots[order][:-1]))
        members = np.split(order, starts[1:])
        island_of = np.empty(len(roots), np.int64)
        island_of[order] = np.repeat(np.arange(len(members)), np.diff(np.append(starts, len(roots))))
        sent = self._sent
        turns = np.array(turn_of)
        crosses = sent.any_reader(turns[sent.readers] != turns[sent.producer][sent.value])
        number = island_of.tolist()
        border: dict[int, list[int]] = {}
        for value in np.flatnonzero(crosses).tolist():
            source, _, readers = self._ends[value]
            for island in dict.fromkeys([number[source], *(number[r] for r in readers)]):
                border.setdefault(island, []).append(value)
        found = [_Island(turn_of[members[i][0]], members[i].tolist(), values) for i, values in border.items()]
        return sorted(found, key=lambda island: (island.turn, island.blocks[0]))

    def _moves(self, groups: _Groups, islands: Sequence[_Island]) -> Iterable[_Move]:
        if len(groups.sizes) == 1:
            return
        known, self._options = self._options, {}
        for island in islands:
            own = self.labels[island.blocks[0]]
            if own == self._unplaced:
                continue
            # The savings of an island are as before if no island beside it moved.
            key = tuple(island.blocks)
            options = known.get(key) if self._touched.isdisjoint(island.border) else None
            if options is None:
                options = dict.fromkeys(self._neighbours(island) - {own, self._unplaced})
            self._options[key] = options
            for target, saving in options.items():
                into = self._joins(groups, island, target)
                if into is None:
                    continue
                if saving is None:
                    able = all(map(self._able[target].__getitem__, island.blocks))
                    saving = options[target] = self._saving(island, target) if able else -1.0
                if saving >= WORTH:
                    yield _Move(saving, target, into, island)

    def _neighbours(self, island: _Island) -> set[int]:
        """The devices with which the island exchanges values."""
        inside = set(island.blocks)
        found: set[int] = set()
        for source, _, readers in (self._ends[value] for value in island.border):
            found.update(self.labels[n] for n in (readers if source in inside else (source,)))
        return found

    @staticmethod
    def _joins(groups: _Groups, island: _Island, target: int) -> int | None:
        """The group that the island can join without an additional partition; None if there is no such group.

        If the island is a whole group, the group changes its device. Otherwise it has no edge to the rest of its group,
        so it can run just before or after it, and joins the neighbouring group if that is on the target.
        """
        if len(island.blocks) == groups.sizes[island.turn]:
            return island.turn
        beside = (t for t in (island.turn - 1, island.turn + 1) if 0 <= t < len(groups.sizes))
        return next((t for t in beside if groups.devices[t] == target), None)

    def _saving(self, island: _Island, target: int) -> float:
        """Seconds that the move saves; also negative if it adds a transfer."""
        inside, labels = set(island.blocks), self.labels
        own = labels[island.blocks[0]]
        saved = 0.0
        count = 0
        for source, nbytes, readers in (self._ends[value] for value in island.border):
            for sign, moved in ((1, own), (-1, target)):
                start = moved if source in inside else labels[source]
                ends = {moved if r in inside else labels[r] for r in readers} - {start, self._unplaced}
                count += sign * len(ends)
                for end in ends:
                    latency, bandwidth = self._links[start][end]
                    saved += sign * (latency + nbytes / bandwidth)
        if count < 0:
            return -1.0
        here, there = self._seconds[own], self._seconds[target]
        return saved + sum([here[block] - there[block] for block in island.blocks])

    def _has_room(self, island: _Island, target: int) -> bool:
        if not self._bounded:
            return True
        budget = Budget(self._graph, self._machine)
        moving = set(island.blocks)
        block_of = self.blocks.block_of.tolist()
        for block, node in zip(block_of, self._graph.nodes, strict=True):
            if self.labels[block] == target:
                budget.add(self.names[target], node)
        own = [n for b, n in zip(block_of, self._graph.nodes, strict=True) if b in moving]
        return budget.fits(self.names[target], *own)


def _root(parent: list[int], piece: int) -> int:
    """The piece that stands for a set of joined pieces; shortens the path to it."""
    while parent[piece] != piece:
        parent[piece] = parent[parent[piece]]
        piece = parent[piece]
    return piece
