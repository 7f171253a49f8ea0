"""Moves of nodes between the partitions of a plan so that fewer bytes cross their borders."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from heterocc.passes.graph import Graph, Numbers
from heterocc.passes.schedule import grouped


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
    turn_of: list[int] = turns.tolist()

    def crossing(value: str) -> int:
        writer = graph.writers[value]
        crosses = any(turn_of[r] != turn_of[writer] for r in graph.readers[writer] if value in graph.nodes[r].inputs)
        return max(graph.values[value].nbytes, 1) if crosses else 0

    moved = False
    heapq.heapify(late)
    while late:
        index = -heapq.heappop(late)  # the last node first: readers before the nodes that they read
        turn = turn_of[index]
        later = min([turn_of[reader] for reader in graph.readers[index]])
        if later == turn or left[turn] == 1 or device_at[later] != device_at[turn]:
            continue
        node = graph.nodes[index]
        values = [v for v in dict.fromkeys((*node.inputs, *node.outputs)) if graph.writers[v] >= 0]
        before = sum(map(crossing, values))
        turn_of[index] = later
        if sum(map(crossing, values)) < before:
            left[turn] -= 1
            left[later] += 1
            moved = True
            for source in graph.sources[index]:
                heapq.heappush(late, -source)
        else:
            turn_of[index] = turn
    return grouped(np.array(turn_of, np.int64)) if moved else groups


def _read_late(graph: Graph, turns: Numbers, device_at: Sequence[int]) -> list[int]:
    """Negative positions of the nodes that are first read by a later group on their device."""
    sources, readers = graph.edges
    first = np.full(len(turns), len(device_at), np.int64)
    np.minimum.at(first, sources, turns[readers])
    devices = np.array([*device_at, -1])
    found: list[int] = np.flatnonzero((first > turns) & (devices[first] == devices[turns])).tolist()
    return [-index for index in found]
