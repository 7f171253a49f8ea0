"""Pulling of islands: moves of connected nodes to a neighbouring device if saved transfers outweigh slower compute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.estimate import node_times
from heterocc.passes.graph import Graph, Numbers
from heterocc.passes.merging.blocks import Blocks, contract
from heterocc.passes.merging.connected import Islands
from heterocc.passes.merging.schedule import turn_numbers
from heterocc.passes.placement import Budget
from heterocc.passes.plan import UNPLACED
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
    found: Numbers = search.labels[search.blocks.block_of]
    return found


def _sent(graph: Graph, blocks: Blocks) -> Sent:
    """The values that blocks exchange, with blocks in place of nodes."""
    reads = graph.reads
    enters = blocks.firsts[blocks.block_of[reads.readers]] == reads.readers
    values, readers = reads.values[enters], blocks.block_of[reads.readers[enters]]
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    order = np.argsort(readers[starts], kind="stable")  # by first reader
    found = values[starts[order]]
    number = np.empty(len(reads.nbytes), np.int64)
    number[found] = np.arange(len(found))
    entries = np.argsort(number[values], kind="stable")
    return Sent.between(
        reads.nbytes[found],
        blocks.block_of[reads.producers[found]],
        readers[entries],
        number[values][entries],
    )


@dataclass(frozen=True, slots=True)
class _Move:
    """The move of an island to device `target`, where it joins group `into`."""

    saving: float
    first: int
    target: int
    into: int
    island: int


class _Search:
    """Devices are numbers, those of the machine's list and one for UNPLACED; `labels` has that of each block."""

    def __init__(self, graph: Graph, machine: Machine, pins: Mapping[str, str], labels: Numbers) -> None:
        self._graph, self._machine = graph, machine
        self.names = [*(d.name for d in machine.devices), UNPLACED]
        self._unplaced = len(machine.devices)
        self.blocks = contract(graph, labels)
        self.labels = np.array(self.blocks.labels, np.int64)
        self._bounded = any(d.memory is not None for d in machine.devices)
        block_of = self.blocks.block_of
        times = node_times(graph, machine)
        self._seconds = np.stack([np.bincount(block_of, column) for column in times.seconds.T], axis=1)
        self._able = np.ones((len(self.labels), len(machine.devices)), bool)
        for column, known, device in zip(self._able.T, times.known.T, machine.devices, strict=True):
            column[block_of[~self._may_move(known, device, pins)]] = False
        links = [[machine.link(a, b) for b in self.names] for a in self.names]
        self._latency = np.array([[math.inf if k is None else k.latency for k in row] for row in links])
        self._bandwidth = np.array([[1.0 if k is None else k.bandwidth for k in row] for row in links])
        self._sent = _sent(graph, self.blocks)
        # For each value the number of blocks on each device that read it.
        cells = self._sent.value * len(self.names) + self.labels[self._sent.readers]
        counts = np.bincount(cells, minlength=len(self._sent.producer) * len(self.names))
        self._readers = counts.reshape(-1, len(self.names))

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
        turns = np.array(turn_numbers(self.blocks.sources, self.labels.tolist(), [1] * len(self.names)), np.int64)
        islands = Islands.of(turns, self.blocks.edges, self._sent)
        moves = sorted(self._moves(turns, islands), key=lambda m: (-m.saving, m.first, self.names[m.target]))
        gave: set[int] = set()
        received: set[int] = set()
        touched = np.zeros(len(self._sent.producer), bool)
        moved = False
        for move in moves:
            turn = int(islands.turn[move.island])
            # Groups that lose and gain nodes could form a cycle; a group that only changes its device cannot.
            if turn in received or move.into in gave:
                continue
            island = np.array([move.island])
            border, _ = islands.borders(island)
            values, reads = islands.value[border], islands.reads[border]
            if touched[values].any() and not self._savings(islands, island, move.target)[0] >= WORTH:
                continue
            blocks, _ = islands.members(island)
            if not self._has_room(blocks, move.target):
                continue
            touched[values] = True
            self._readers[values, self.labels[blocks[0]]] -= reads
            self._readers[values, move.target] += reads
            self.labels[blocks] = move.target
            gave.add(turn)
            received.add(move.into)
            moved = True
        return moved

    def _moves(self, turns: Numbers, islands: Islands) -> Iterator[_Move]:
        """Moves to a device that can run the island, exchanges values with it and has a group for it, and that save."""
        sizes = np.bincount(turns)
        if len(sizes) == 1 or not len(islands.turn):
            return
        # A group beyond both ends, on no device.
        devices = np.full(len(sizes) + 2, -1, np.int64)
        devices[turns + 1] = self.labels
        own = devices[islands.turn + 1]
        whole = islands.size == sizes[islands.turn]
        writer = self.labels[self._sent.producer[islands.value]]
        for target in range(self._unplaced):
            # An island that is a whole group changes the group's device. Another one has no edge to the rest of its
            # group, so it can run just before or after it, and joins the neighbouring group if that is on the target.
            before, after = devices[islands.turn] == target, devices[islands.turn + 2] == target
            into = np.where(whole, islands.turn, np.where(before, islands.turn - 1, islands.turn + 1))
            exchanges = np.where(islands.writes, self._readers[islands.value, target] > 0, writer == target)
            may = (own != target) & (own != self._unplaced) & (whole | before | after)
            may &= np.logical_or.reduceat(exchanges, islands.ends[:-1])
            may &= np.logical_and.reduceat(self._able[islands.blocks, target], islands.starts[:-1])
            chosen = np.flatnonzero(may)
            savings = self._savings(islands, chosen, target)
            worth = savings >= WORTH
            for island, saving in zip(chosen[worth].tolist(), savings[worth].tolist(), strict=True):
                yield _Move(saving, int(islands.first[island]), target, int(into[island]), island)

    def _savings(self, islands: Islands, chosen: Numbers, target: int) -> npt.NDArray[np.float64]:
        """Seconds that the move of each of the chosen islands to a device saves; negative if it adds a transfer."""
        own = self.labels[islands.first[chosen]]
        entries, island = islands.borders(chosen)
        value, reads, rows = islands.value[entries], islands.reads[entries], np.arange(len(entries))
        nbytes, start = self._sent.nbytes[value], self.labels[self._sent.producer[value]]
        moved_start = np.where(islands.writes[entries], target, start)
        readers = self._readers[value]
        moved_readers = readers.copy()
        moved_readers[rows, own[island]] -= reads
        moved_readers[:, target] += reads
        saved, count = np.zeros(len(rows)), np.zeros(len(rows))
        with np.errstate(invalid="ignore"):  # no saving, as it is not a number, between links that cannot be used
            for sign, source, counts in ((1, start, readers), (-1, moved_start, moved_readers)):
                sends = counts > 0
                sends[rows, source] = sends[:, self._unplaced] = False
                seconds = self._latency[source] + nbytes[:, None] / self._bandwidth[source]
                saved += sign * np.where(sends, seconds, 0.0).sum(axis=1)
                count += sign * sends.sum(axis=1)
            total = np.bincount(island, saved, len(chosen))
        blocks, island_of = islands.members(chosen)
        total += np.bincount(island_of, self._seconds[blocks, own[island_of]] - self._seconds[blocks, target])
        found: npt.NDArray[np.float64] = np.where(np.bincount(island, count) < 0, -1.0, total)
        return found

    def _has_room(self, blocks: Numbers, target: int) -> bool:
        if not self._bounded:
            return True
        budget = Budget(self._graph, self._machine)
        on_target, moving = np.zeros(len(self.labels), bool), np.zeros(len(self.labels), bool)
        on_target[self.labels == target] = moving[blocks] = True
        nodes, block_of = self._graph.nodes, self.blocks.block_of
        budget.add(self.names[target], *(nodes[place] for place in np.flatnonzero(on_target[block_of]).tolist()))
        return budget.fits(self.names[target], *(nodes[place] for place in np.flatnonzero(moving[block_of]).tolist()))
