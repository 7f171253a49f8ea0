"""The fewest acyclic partitions of a placed graph, found as the shortest sequence of device turns that covers it.

A cover by acyclic partitions on one device each, in run order, is a sequence of devices in which each node runs after
its inputs; conversely, such a sequence is a cover. So the fewest partitions correspond to the shortest sequence of
devices that executes the graph, in which each device in its turn runs everything that is ready or becomes ready;
running more never makes the rest harder. With two devices turns alternate, so only the first is a choice, and both are
tried. With more devices the problem is a shortest common supersequence, NP-hard in general. A* with an exact bound
solves it within a fixed amount of work (all small graphs, and most large ones after contraction of nodes that always
run together); beyond that a beam search is used. Work is counted, not timed, so the result is reproducible.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterocc.passes.blocks import contract
from heterocc.passes.graph import Graph, Numbers

EXACT_WORK = 400_000
"""Maximum block visits of the exact search, after which the beam search is used."""

BEAM_WIDTH = 48
"""States that the beam search keeps after each turn."""


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
    blocks = _contract(sources, labels, weights)
    turn_of = _play(blocks, _shortest(blocks))
    found = [turn_of[block] for block in blocks.block_of]
    number = {turn: i for i, turn in enumerate(sorted(set(found)))}
    return [number[turn] for turn in found]


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


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The graph after contraction of nodes that run in one turn in every sequence; colours are device numbers."""

    block_of: list[int]
    colour: list[int]
    successors: list[list[int]]
    waits: list[int]
    weights: list[float]


def _contract(reads_of: Sequence[Sequence[int]], labels: Sequence[int], weights: Sequence[float]) -> _Blocks:
    by_key: dict[tuple[int, frozenset[int]], int] = {}
    colour: list[int] = []
    sources: list[frozenset[int]] = []
    block_of: list[int] = []
    for device, reads in zip(labels, reads_of, strict=True):
        if len(reads) == 1:
            (only,) = reads
            block = block_of[only]
            if colour[block] == device:
                block_of.append(block)
                continue
        before = _without_implied(frozenset([block_of[i] for i in reads]), sources)
        if len(before) == 1:
            (block,) = before
            if colour[block] == device:
                block_of.append(block)
                continue
        key = (device, before)
        if key not in by_key:
            by_key[key] = len(colour)
            colour.append(device)
            sources.append(before)
        block_of.append(by_key[key])
    successors: list[list[int]] = [[] for _ in colour]
    for block, earlier in enumerate(sources):
        for other in sorted(earlier):
            successors[other].append(block)
    return _Blocks(block_of, colour, successors, [len(s) for s in sources], list(weights))


def _without_implied(before: frozenset[int], sources: list[frozenset[int]]) -> frozenset[int]:
    """The blocks that are not direct predecessors of another one of them; longer paths are not considered."""
    if len(before) < 2:
        return before
    return before.difference(*(sources[block] for block in before))


class _State:
    """A state of the search: blocks that have run, ready blocks per colour, the cost of turns, the previous state."""

    __slots__ = ("cost", "done", "last", "parent", "ready", "waits")

    def __init__(
        self, done: int, ready: list[list[int]], waits: dict[int, int], cost: float, last: int, parent: _State | None
    ) -> None:
        self.done, self.ready, self.waits = done, ready, waits
        self.cost, self.last, self.parent = cost, last, parent

    def sequence(self) -> list[int]:
        """The colours in order of turns."""
        found: list[int] = []
        state: _State | None = self
        while state is not None and state.parent is not None:
            found.append(state.last)
            state = state.parent
        return found[::-1]


def _start(blocks: _Blocks) -> _State:
    ready: list[list[int]] = [[] for _ in range(len(blocks.weights))]
    for block, count in enumerate(blocks.waits):
        if not count:
            ready[blocks.colour[block]].append(block)
    return _State(0, ready, {}, 0, -1, None)


def _turn(blocks: _Blocks, state: _State, colour: int) -> _State:
    """The state after a turn of `colour`, which runs all blocks that it can."""
    ready = list(state.ready)
    work = list(ready[colour])
    ready[colour] = []
    done = state.done
    waits = dict(state.waits)
    opened: dict[int, list[int]] = {}
    while work:
        block = work.pop()
        done |= 1 << block
        for successor in blocks.successors[block]:
            left = waits.get(successor, blocks.waits[successor]) - 1
            waits[successor] = left
            if left:
                continue
            del waits[successor]
            if blocks.colour[successor] == colour:
                work.append(successor)
            else:
                opened.setdefault(blocks.colour[successor], []).append(successor)
    for other, found in opened.items():
        ready[other] = ready[other] + found
    return _State(done, ready, waits, state.cost + blocks.weights[colour], colour, state)


def _tails(blocks: _Blocks) -> list[list[int]]:
    """For each block and colour, the maximum number of runs of that colour on a path that starts at the block."""
    tails: list[list[int]] = [[] for _ in blocks.colour]
    for block in reversed(range(len(blocks.colour))):
        own = blocks.colour[block]
        best = [0] * len(blocks.weights)
        best[own] = 1
        for successor in blocks.successors[block]:
            for colour, runs in enumerate(tails[successor]):
                new_run = colour == own and blocks.colour[successor] != own
                best[colour] = max(best[colour], runs + new_run)
        tails[block] = best
    return tails


def _bound(state: _State, tails: list[list[int]], weights: list[float]) -> float:
    """A lower bound of the cost of turns still needed: the sum over colours of the longest chain of runs.

    Two nodes of a colour with another colour between them on a path never share a turn, and turns of different
    colours are different.
    """
    best = [0] * len(weights)
    for ready in state.ready:
        for block in ready:
            for colour, runs in enumerate(tails[block]):
                if runs > best[colour]:
                    best[colour] = runs
    return sum(runs * weight for runs, weight in zip(best, weights, strict=True))


def _shortest(blocks: _Blocks) -> list[int]:
    """The shortest sequence of colours that executes the whole graph, as far as the limit on work allows."""
    tails = _tails(blocks)
    start = _start(blocks)
    open_: list[tuple[float, float, int, _State]] = [(_bound(start, tails, blocks.weights), 0, 0, start)]
    reached: dict[int, float] = {0: 0}
    count = work = 0
    whole = (1 << len(blocks.colour)) - 1
    while open_:
        _, _, _, state = heapq.heappop(open_)
        if state.done == whole:
            return state.sequence()
        if reached[state.done] < state.cost:
            continue
        for colour in range(len(blocks.weights)):
            if not state.ready[colour]:
                continue
            following = _turn(blocks, state, colour)
            work += 2 + (following.done & ~state.done).bit_count() + sum(map(len, following.ready))
            if reached.get(following.done, math.inf) <= following.cost:
                continue
            reached[following.done] = following.cost
            count += 1
            bound = following.cost + _bound(following, tails, blocks.weights)
            heapq.heappush(open_, (bound, -following.cost, count, following))
        if work > EXACT_WORK:
            return _beam(blocks, tails)
    raise AssertionError("a graph without cycles can always be played")


def _beam(blocks: _Blocks, tails: list[list[int]]) -> list[int]:
    states = [_start(blocks)]
    whole = (1 << len(blocks.colour)) - 1
    while True:
        found: dict[int, tuple[float, int, _State]] = {}
        for state in states:
            for colour in range(len(blocks.weights)):
                if not state.ready[colour]:
                    continue
                following = _turn(blocks, state, colour)
                if following.done == whole:
                    return following.sequence()
                rank = (
                    following.cost + _bound(following, tails, blocks.weights),
                    -following.done.bit_count(),
                    following,
                )
                found.setdefault(following.done, rank)
        states = [rank[2] for rank in sorted(found.values(), key=lambda r: r[:2])[:BEAM_WIDTH]]


def _play(blocks: _Blocks, sequence: list[int]) -> list[int]:
    """The number of the turn in which each block runs."""
    turn_of = [0] * len(blocks.colour)
    state = _start(blocks)
    for number, colour in enumerate(sequence):
        following = _turn(blocks, state, colour)
        fresh = following.done & ~state.done
        while fresh:
            lowest = fresh & -fresh
            turn_of[lowest.bit_length() - 1] = number
            fresh ^= lowest
        state = following
    return turn_of
