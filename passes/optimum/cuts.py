"""Minimum cuts: the best placement of nodes on two devices, and on more of them pair after pair.

A node is a vertex; the side of the source is one device, the side of the sink the other. A value that several nodes
read is sent once, so each direction has a vertex of its own, which is cut off with the first reader. With two devices
the cut is the placement of least cost but for the number of partitions: H. S. Stone, "Multiprocessor scheduling with
the aid of network flow algorithms" (1977). With more, the nodes of two devices are placed anew while all others stay,
for each pair until nothing improves, which is alpha-beta swap: Y. Boykov, O. Veksler and R. Zabih, "Fast approximate
energy minimization via graph cuts" (2001).
"""

from __future__ import annotations

import math
from itertools import combinations

from heterocc.passes.optimum.problem import Labels, Problem

_RESOLUTION = 1 << 40
"""The sum of all costs in the units of a cut: a solver works with integers."""

_SOURCE, _SINK = 0, 1


def swap_all(problem: Problem, labels: Labels, crossing: float = 0.0) -> Labels:
    """Labels that no exchange between two devices improves; `crossing` as in `swap`."""
    best = labels
    cost = _cost(problem, best, crossing)
    improved = True
    while improved:
        improved = False
        for first, second in combinations(range(len(problem.devices)), 2):
            found = swap(problem, best, first, second, crossing)
            lower = _cost(problem, found, crossing)
            if lower < cost - 1e-12 * abs(cost) or (math.isinf(cost) and lower < cost):
                best, cost, improved = found, lower, len(problem.devices) > 2
    return best


def swap(problem: Problem, labels: Labels, first: int, second: int, crossing: float = 0.0) -> Labels:
    """The best labels in which nodes on either of two devices may change to the other.

    Counts nodes, transfers, one overhead for each of the two devices that is used, and `crossing` times the overhead of
    the receiving device for every transfer: transfers are where partitions end.
    """
    return _Cut(problem, labels, first, second, crossing).solved()


def _cost(problem: Problem, labels: Labels, crossing: float) -> float:
    total = problem.placed(labels) + sum(problem.overhead[label] for label in set(labels))
    if crossing:
        for value in problem.values:
            targets = {labels[r] for r in value.readers} - {labels[value.producer]}
            total += crossing * sum(problem.overhead[t] for t in targets)
    return total


class _Cut:
    def __init__(self, problem: Problem, labels: Labels, first: int, second: int, crossing: float) -> None:
        self.problem, self.labels = problem, labels
        self.first, self.second, self.crossing = first, second, crossing
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.costs: list[float] = []
        self.vertices = 2
        self.vertex = [self._vertex_of(node) for node in range(len(labels))]
        # What a node costs more on the first device than on the second.
        self.bias = [0.0] * len(labels)
        for node, row in enumerate(problem.seconds):
            if self._is_free(node):
                self.bias[node] += row[first] - row[second]
        for value in problem.values:
            self._add_value(value.producer, value.readers, value.nbytes)
        for node, bias in enumerate(self.bias):
            if bias > 0:
                self._arc(self.vertex[node], _SINK, bias)
            elif bias < 0:
                self._arc(_SOURCE, self.vertex[node], -bias)
        self._add_overheads()

    def solved(self) -> Labels:
        """The labels on both sides of the cut."""
        if not self.tails:
            return self.labels
        from ortools.graph.python.max_flow import SimpleMaxFlow  # here: it takes 0.1 s

        finite = math.fsum(c for c in self.costs if not math.isinf(c))
        scale = _RESOLUTION / finite if finite > 0 else 1.0
        flow = SimpleMaxFlow()
        capacities = [2 * _RESOLUTION if math.isinf(c) else round(c * scale) for c in self.costs]
        flow.add_arcs_with_capacity(self.tails, self.heads, capacities)
        status = flow.solve(_SOURCE, _SINK)
        if status != flow.OPTIMAL:
            raise ArithmeticError(f"the minimum cut was not found: {status}")
        # Where both sides cost the same, nodes stay on the first device: it has priority.
        sink = set(flow.get_sink_side_min_cut())
        return [
            label if not self._moves(label) else self.second if vertex == _SINK or vertex in sink else self.first
            for label, vertex in zip(self.labels, self.vertex, strict=True)
        ]

    def _moves(self, label: int) -> bool:
        return label in (self.first, self.second)

    def _is_free(self, node: int) -> bool:
        return self.vertex[node] > _SINK

    def _vertex_of(self, node: int) -> int:
        """The vertex of a node: a terminal if it can be on one device only, -1 if it is on a third one."""
        if not self._moves(self.labels[node]):
            return -1
        row = self.problem.seconds[node]
        if math.isinf(row[self.second]):
            return _SOURCE
        if math.isinf(row[self.first]):
            return _SINK
        return self._new()

    def _new(self) -> int:
        self.vertices += 1
        return self.vertices - 1

    def _arc(self, tail: int, head: int, cost: float) -> None:
        """Costs if `tail` is on the side of the source and `head` on that of the sink."""
        if tail != head and head != _SOURCE and tail != _SINK and cost > 0:
            self.tails.append(tail)
            self.heads.append(head)
            self.costs.append(cost)

    def _sent(self, nbytes: int, source: int, target: int) -> float:
        return self.problem.transfer(nbytes, source, target) + self.crossing * self.problem.overhead[target]

    def _add_value(self, producer: int, readers: tuple[int, ...], nbytes: int) -> None:
        moving = list(dict.fromkeys(self.vertex[r] for r in readers if self.vertex[r] >= 0))
        source = self.vertex[producer]
        if source < 0:
            label = self.labels[producer]
            self._any_on_first(moving, _SINK, self._sent(nbytes, label, self.first))
            self._any_on_second(_SOURCE, moving, self._sent(nbytes, label, self.second))
            return
        if self._is_free(producer):
            for label in {self.labels[r] for r in readers if self.vertex[r] < 0}:
                first, second = self._sent(nbytes, self.first, label), self._sent(nbytes, self.second, label)
                if math.isinf(first) or math.isinf(second):
                    self._arc(source, _SINK, first)
                    self._arc(_SOURCE, source, second)
                else:
                    self.bias[producer] += first - second
        self._any_on_second(source, moving, self._sent(nbytes, self.first, self.second))
        self._any_on_first(moving, source, self._sent(nbytes, self.second, self.first))

    def _any_on_second(self, source: int, readers: list[int], cost: float) -> None:
        """Costs once if `source` is on the first device and any reader on the second."""
        if _SINK in readers or len(readers) == 1:
            self._arc(source, _SINK if _SINK in readers else readers[0], cost)
            return
        readers = [r for r in readers if r not in (_SOURCE, source)]
        if readers and source != _SINK:
            middle = self._new()
            self._arc(source, middle, cost)
            for reader in readers:
                self._arc(middle, reader, cost)

    def _any_on_first(self, readers: list[int], source: int, cost: float) -> None:
        """Costs once if `source` is on the second device and any reader on the first."""
        if _SOURCE in readers or len(readers) == 1:
            self._arc(_SOURCE if _SOURCE in readers else readers[0], source, cost)
            return
        readers = [r for r in readers if r not in (_SINK, source)]
        if readers and source != _SOURCE:
            middle = self._new()
            self._arc(middle, source, cost)
            for reader in readers:
                self._arc(reader, middle, cost)

    def _add_overheads(self) -> None:
        moving = list(dict.fromkeys(v for v in self.vertex if v >= 0))
        self._any_on_first(moving, _SINK, self.problem.overhead[self.first])
        self._any_on_second(_SOURCE, moving, self.problem.overhead[self.second])
