"""The fewest acyclic partitions of a placed graph, found as the shortest sequence of device turns that covers it.

A cover by acyclic partitions on one device each, in run order, is a sequence of devices in which each node runs after
its inputs; conversely, such a sequence is a cover. So the fewest partitions correspond to the shortest sequence of
devices that executes the graph, in which each device in its turn runs everything that is ready or becomes ready;
running more never makes the rest harder. With two devices turns alternate, so only the first is a choice, and both are
tried. With more devices the problem is a shortest common supersequence, NP-hard in general: `native/turns.cc` solves it
within a fixed amount of work, or searches on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from heterocc.passes.graph import Graph, Numbers
from heterocc.passes.merging.blocks import contract
from heterocc.passes.native.calls import cheapest_turns

EXACT_WORK = 400_000
"""Maximum block visits of the exact search, after which a beam search is used."""


_FEW_NODES = 2_000
"""Nodes of a graph that is not worth arrays: `optimum.descent` looks at many plans of such graphs."""


def fewest_turns(graph: Graph, labels: Numbers, weights: Sequence[float]) -> list[list[int]]:
    """Nodes by position in groups, each on one device, in run order, and as few as found.

    `labels` has the device of each node, as a number. The number of groups is minimal with up to two devices, and if
    the exact search ends within its limit. Nodes of a group are in graph order. `weights` are positive costs of a group
    by its device: their sum is minimised, so equal ones lead to the fewest groups.
    """
    if len(labels) <= _FEW_NODES:
        return grouped(np.array(turn_numbers(graph.sources, labels.tolist(), weights), np.int64))
    blocks = contract(graph, labels)
    return grouped(np.array(turn_numbers(blocks.sources, blocks.labels, weights), np.int64)[blocks.block_of])


def grouped(turn_of: Numbers) -> list[list[int]]:
    """The nodes of each group, by the group of each node; no group is empty."""
    order = np.argsort(turn_of, kind="stable").tolist()
    ends = np.cumsum(np.bincount(turn_of)).tolist()
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def turn_numbers(sources: Sequence[Sequence[int]], labels: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The group of each node in `fewest_turns`, by the nodes that each reads from; no group is empty."""
    devices = sorted(set(labels))
    if len(devices) <= 1:
        return [0] * len(labels)
    if len(devices) == 2:
        return _alternating(sources, labels, weights, *devices)
    counts = np.fromiter(map(len, sources), np.int64, len(sources))
    flat = np.fromiter(chain.from_iterable(sources), np.int64, int(counts.sum()))
    edges = np.concatenate([[0], np.cumsum(counts)]), flat
    found: list[int] = cheapest_turns(edges, np.array(labels), np.array(weights, float), EXACT_WORK)[0].tolist()
    return found


_CHANGE = (1 << 32) + 1
_LOW = (1 << 32) - 1


def _alternating(
    sources: Sequence[Sequence[int]], labels: Sequence[int], weights: Sequence[float], first: int, other: int
) -> list[int]:
    """The turns of two devices, begun by the one with which they cost less, each node as early as possible.

    Turns alternate, so a node runs one turn after a source on the other device, and with one on its own.
    """
    # The turn of each node if `first` begins in the upper half of an integer, and if `other` does in the lower one.
    both: list[int] = []
    starts = {first: 1, other: 1 << 32}
    for device, reads in zip(labels, sources, strict=True):
        if len(reads) == 1:  # most nodes
            source = reads[0]
            both.append(both[source] if labels[source] == device else both[source] + _CHANGE)
            continue
        found = starts[device]
        for source in reads:
            turns = both[source] if labels[source] == device else both[source] + _CHANGE
            if turns != found:
                found = max(turns >> 32, found >> 32) << 32 | max(turns & _LOW, found & _LOW)
        both.append(found)
    halves = np.array(both, np.int64)
    cost, best = math.inf, halves
    for turn_of, begins, follows in ((halves >> 32, first, other), (halves & _LOW, other, first)):
        if turn_of.min():
            continue  # this is the other one, a turn later
        last = int(turn_of.max())
        spent = (last // 2 + 1) * weights[begins] + ((last + 1) // 2) * weights[follows]
        if spent < cost:
            cost, best = spent, turn_of
    found_turns: list[int] = best.tolist()
    return found_turns
