"""Moves of nodes between the partitions of a plan so that fewer bytes cross their borders."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from heterocc.passes.graph import Graph, Numbers
from heterocc.passes.merging.schedule import grouped
from heterocc.passes.sent import Sent


def settled(graph: Graph, labels: Numbers, groups: list[list[int]]) -> list[list[int]]:
    """The groups after moves of nodes to the group of their first reader on the same device, if fewer bytes cross then.

    `labels` has the device of each node; groups are as of `schedule.fewest_turns`, which runs every node as early as
    possible: a node that only a later group reads should run there.
    """
    if len(groups) <= 1:
        return groups
    left = [len(group) for group in groups]
    turns = np.empty(len(labels), np.int64)
    turns[[node for group in groups for node in group]] = np.repeat(np.arange(len(groups)), left)
    device_at = labels[[group[0] for group in groups]].tolist()
    late = _read_late(graph, turns, device_at)
    if not late:
        return groups
    moves = _Moves(graph, turns)
    turn_of = moves.turn_of
    moved = False
    heapq.heapify(late)
    while late:
        index = -heapq.heappop(late)  # the last node first: readers before the nodes that they read
        turn = turn_of[index]
        later = moves.first_read(index)
        if later == turn or left[turn] == 1 or device_at[later] != device_at[turn]:
            continue
        if moves.try_move(index, later):
            left[turn] -= 1
            left[later] += 1
            moved = True
            for source in graph.sources[index]:
                heapq.heappush(late, -source)
    return grouped(np.array(turn_of, np.int64)) if moved else groups


class _Moves:
    """The group of each node in `turn_of`, and the values that cross borders of groups, kept up to date."""

    def __init__(self, graph: Graph, turns: Numbers) -> None:
        sent = Sent.of(graph)
        self.turn_of: list[int] = turns.tolist()
        self._nbytes = np.maximum(sent.nbytes, 1).tolist()
        self._producer: list[int] = sent.producer.tolist()
        # For each value how many of its readers are in another group than the node that writes it.
        away = turns[sent.readers] != turns[sent.producer][sent.value]
        self._away: list[int] = sent.count_readers(away).tolist()
        self._readers: list[int] = sent.readers.tolist()
        self._first: list[int] = sent.first.tolist()
        count = len(turns) + 1
        by_reader = np.argsort(sent.readers, kind="stable")
        self._read: list[int] = sent.value[by_reader].tolist()
        self._first_read: list[int] = np.searchsorted(sent.readers[by_reader], np.arange(count)).tolist()
        by_writer = np.argsort(sent.producer, kind="stable")
        self._written: list[int] = by_writer.tolist()
        self._first_written: list[int] = np.searchsorted(sent.producer[by_writer], np.arange(count)).tolist()

    def first_read(self, node: int) -> int:
        """The first group that reads a value of the node, which is read."""
        readers, first = self._readers, self._first
        written = self._written[self._first_written[node] : self._first_written[node + 1]]
        return min([self.turn_of[r] for value in written for r in readers[first[value] : first[value + 1]]])

    def try_move(self, node: int, later: int) -> bool:
        """Move a node to another group if fewer bytes cross borders then, and return whether it was moved."""
        turn_of, turn = self.turn_of, self.turn_of[node]
        changes: list[tuple[int, int]] = []
        saved = 0
        for value in self._read[self._first_read[node] : self._first_read[node + 1]]:
            before, writer = self._away[value], turn_of[self._producer[value]]
            after = before - (writer != turn) + (writer != later)
            changes.append((value, after))
            saved += ((before > 0) - (after > 0)) * self._nbytes[value]
        for value in self._written[self._first_written[node] : self._first_written[node + 1]]:
            readers = self._readers[self._first[value] : self._first[value + 1]]
            after = sum([turn_of[reader] != later for reader in readers])
            changes.append((value, after))
            saved += ((self._away[value] > 0) - (after > 0)) * self._nbytes[value]
        if saved <= 0:
            return False
        turn_of[node] = later
        for value, after in changes:
            self._away[value] = after
        return True


def _read_late(graph: Graph, turns: Numbers, device_at: Sequence[int]) -> list[int]:
    """Negative positions of the nodes that are first read by a later group on their device."""
    sources, readers = graph.edges
    first = np.full(len(turns), len(device_at), np.int64)
    np.minimum.at(first, sources, turns[readers])
    devices = np.array([*device_at, -1])
    found: list[int] = np.flatnonzero((first > turns) & (devices[first] == devices[turns])).tolist()
    return [-index for index in found]
