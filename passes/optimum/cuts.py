"""Minimum cuts: the best placement of nodes on two devices, and on more of them pair after pair.

A node is a vertex; the side of the source is one device, the side of the sink the other. A value that several nodes
read is sent once, so each direction has a vertex of its own, which is cut off with the first reader. With two devices
the cut is the placement of least cost but for the number of partitions: H. S. Stone, "Multiprocessor scheduling with
the aid of network flow algorithms" (1977). With more, the nodes of two devices are placed anew while all others stay,
for each pair until nothing improves, which is alpha-beta swap: Y. Boykov, O. Veksler and R. Zabih, "Fast approximate
energy minimization via graph cuts" (2001).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from heterocc.passes.native.calls import min_cut
from heterocc.passes.optimum.problem import Floats, Labels, Problem

Numbers = npt.NDArray[np.int64]

_RESOLUTION = 1 << 40
"""The sum of all costs in the units of a cut: a solver works with integers."""

_SOURCE, _SINK = 0, 1


def swap_all(problem: Problem, labels: Labels, crossing: float = 0.0) -> Labels:
    """Labels that no exchange between two devices improves; `crossing` as in `swap`."""

    def cost(found: Labels) -> float:
        return problem.placed(found, crossing) + problem.used_overhead(found)

    if problem.devices == 2:
        return swap(problem, labels, 0, 1, crossing)
    best, least = labels, cost(labels)
    improved = True
    while improved:
        improved = False
        for first, second in combinations(range(problem.devices), 2):
            found = swap(problem, best, first, second, crossing)
            lower = cost(found)
            if lower < least * (1 - 1e-12):
                best, least, improved = found, lower, True
    return best


def swap(problem: Problem, labels: Labels, first: int, second: int, crossing: float = 0.0) -> Labels:
    """The best labels in which nodes on either of two devices may change to the other.

    Counts nodes, transfers, one overhead for each of the two devices that is used, and `crossing` times the overhead of
    the receiving device for every transfer: transfers are where partitions end.
    """
    cut = _Cut(problem, labels, first, second, crossing, (labels == first) | (labels == second))
    cut.add_overheads()
    return cut.solved()


def shift(problem: Problem, labels: Labels, earlier: list[int], later: list[int]) -> Labels:
    """The best labels in which nodes of a partition and of the next one, on another device, may change to the other.

    Counts nodes and transfers. No node that then runs in the first one reads from one that runs in the second.
    """
    moves = np.zeros(len(labels), bool)
    moves[earlier] = moves[later] = True
    cut = _Cut(problem, labels, int(labels[earlier[0]]), int(labels[later[0]]), 0.0, moves)
    cut.add_order()
    return cut.solved()


class _Cut:
    """The network of a swap among the nodes that may move: vertices 0 and 1 are the source and the sink."""

    def __init__(
        self,
        problem: Problem,
        labels: Labels,
        first: int,
        second: int,
        crossing: float,
        moves: npt.NDArray[np.bool_],
    ) -> None:
        self.problem, self.labels = problem, labels
        self.first, self.second, self.crossing, self.moves = first, second, crossing, moves
        self.free = self.moves & np.isfinite(problem.seconds[:, [first, second]]).all(axis=1)
        self.vertex = np.full(len(labels), -1, np.int64)
        self.vertex[self.moves] = np.where(np.isinf(problem.seconds[self.moves, first]), _SINK, _SOURCE)
        self.vertex[self.free] = 2 + np.arange(np.count_nonzero(self.free))
        self.vertices = 2 + int(np.count_nonzero(self.free))
        self.arcs: list[tuple[Numbers, Numbers, Floats]] = []
        self._add_values()
        self._add_nodes()

    def solved(self) -> Labels:
        """The labels on both sides of the cut."""
        tails, heads, costs = (np.concatenate(column) for column in zip(*self.arcs, strict=True))
        use = (tails != heads) & (tails != _SINK) & (heads != _SOURCE) & (costs > 0)
        tails, heads, costs = tails[use], heads[use], costs[use]
        if not len(tails):
            return self.labels
        finite = float(costs[np.isfinite(costs)].sum())
        scale = _RESOLUTION / finite if finite > 0 else 1.0
        capacities = np.where(np.isinf(costs), 2.0 * _RESOLUTION, np.round(np.minimum(costs, finite) * scale))
        # Where both sides cost the same, nodes stay on the first device: it has priority.
        on_second = min_cut(self.vertices, tails, heads, capacities.astype(np.int64))
        labels = self.labels.copy()
        labels[self.moves] = np.where(on_second[self.vertex[self.moves]], self.second, self.first)
        return labels

    def _arc(self, tails: Numbers | int, heads: Numbers | int, costs: Floats | float) -> None:
        """Costs of having `tails` on the side of the source and `heads` on that of the sink."""
        shape = np.broadcast(tails, heads, costs).shape or (1,)
        self.arcs.append(
            (np.broadcast_to(tails, shape), np.broadcast_to(heads, shape), np.broadcast_to(costs, shape).astype(float))
        )

    def _new(self, count: int) -> Numbers:
        self.vertices += count
        return np.arange(self.vertices - count, self.vertices)

    def _seconds(self, source: int, target: int) -> Floats:
        return self.problem.transfers(source, target) + self.crossing * float(self.problem.overhead[target])

    def _to(self, target: int, other: int) -> Floats:
        """Seconds of sending each value to `target`, from `other` or the device that its node stays on."""
        found = self._seconds(other, target)
        stays = self.vertex[self.problem.sent.producer] < 0
        sources = self.labels[self.problem.sent.producer]
        for source in _distinct(sources[stays]):
            chosen = stays & (sources == source)
            found[chosen] = self._seconds(source, target)[chosen]
        return found

    def _add_values(self) -> None:
        sent = self.problem.sent
        producer = self.vertex[sent.producer]
        reader = self.vertex[sent.readers]
        moving = sent.count_readers(reader >= 0)
        single = (moving == 1)[sent.value] & (reader >= 0)
        several = (moving > 1)[sent.value] & (reader >= 0)
        middle = np.zeros(len(producer), np.int64)
        for target, other, end in ((self.second, self.first, _SOURCE), (self.first, self.second, _SINK)):
            costs = self._to(target, other)
            # A reader that stays on the target is counted with the node that writes the value.
            costs[sent.any_reader((reader < 0) & (self.labels[sent.readers] == target))] = 0.0
            start = np.where(producer < 0, end, producer)
            middle[moving > 1] = self._new(int(np.count_nonzero(moving > 1)))
            for near, far, cost in (
                (start[sent.value[single]], reader[single], costs[sent.value[single]]),
                (start[moving > 1], middle[moving > 1], costs[moving > 1]),
                (middle[sent.value[several]], reader[several], costs[sent.value[several]]),
            ):
                tail, head = (near, far) if end == _SOURCE else (far, near)
                self._arc(tail, head, cost)

    def _add_nodes(self) -> None:
        """What a node costs on either device, with transfers to nodes that stay on others."""
        problem, sent = self.problem, self.problem.sent
        costs = {side: problem.seconds[:, side].copy() for side in (self.first, self.second)}
        producer = self.vertex[sent.producer]
        stays = self.vertex[sent.readers] < 0
        for target in _distinct(self.labels[~self.moves]):
            sends = sent.any_reader(stays & (self.labels[sent.readers] == target)) & (producer > _SINK)
            for side, column in costs.items():
                np.add.at(column, sent.producer[sends], self._seconds(side, target)[sends])
        first, second = costs[self.first][self.free], costs[self.second][self.free]
        both = np.where(np.isinf(first) | np.isinf(second), 0.0, np.minimum(first, second))
        self._arc(self.vertex[self.free], _SINK, first - both)
        self._arc(_SOURCE, self.vertex[self.free], second - both)

    def add_order(self) -> None:
        """No node on the first device reads from one on the second."""
        sources, readers = self.problem.graph.edges
        both = (self.vertex[sources] >= 0) & (self.vertex[readers] >= 0)
        self._arc(self.vertex[readers[both]], self.vertex[sources[both]], np.inf)

    def add_overheads(self) -> None:
        """One overhead of each side that any node is on."""
        vertices = np.flatnonzero(np.bincount(self.vertex[self.moves], minlength=1))
        first, second = (float(self.problem.overhead[side]) for side in (self.first, self.second))
        if first:
            middle = self._new(1)
            self._arc(vertices, middle, first)
            self._arc(middle, _SINK, first)
        if second:
            middle = self._new(1)
            self._arc(middle, vertices, second)
            self._arc(_SOURCE, middle, second)


def _distinct(labels: Labels) -> list[int]:
    found: list[int] = np.flatnonzero(np.bincount(labels)).tolist()
    return found
