"""Overlap: the placement and partitions whose run ends first if devices work at the same time.

Partitions are cut where another device waits for a value, ordered by a list schedule (the partition that can start
first, then the one with the longest path behind it), and joined again where that does not delay the end. Placements
begin with those of least cost and of most throughput and with earliest finish times (H. Topcuoglu, S. Hariri and
M. Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", 2002), and are improved
by descent. The serial plan is one of the candidates, so the result is never slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterocc.passes.optimum.descent import descend
from heterocc.passes.optimum.pipeline import balanced
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.search import MOST_NODES_DESCENT
from heterocc.passes.optimum.timeline import Simulator, owners

MOST_PARTITIONS_JOINED = 120
"""With more partitions, none are joined one by one."""

MOST_PARTITIONS_DESCENT = 12
"""With more partitions, the descent judges placements without joins."""

WORK = 40_000
"""Nodes that the descent looks at, in a plan of few partitions; fewer with more of them."""


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Labels with their partitions in run order, the seconds of a run, and a lower bound of these."""

    labels: Labels
    turns: list[list[int]]
    seconds: float
    bound: float


def find_overlap(problem: Problem, serial: Labels) -> Overlapped:
    """The placement whose run ends first, as far as it was found; `serial` is the one of least cost."""
    search = _Search(problem)
    candidates = [
        serial,
        balanced(problem, serial).labels,
        *(labels for labels in search.earliest_finish() if problem.fits(labels)),
    ]
    found = [(labels, *search.best_turns(labels)) for labels in candidates]
    best, turns, seconds = min(found, key=lambda entry: entry[2])  # of equals the first: the serial plan
    if len(serial) <= MOST_NODES_DESCENT:
        work = WORK * MOST_PARTITIONS_DESCENT // (MOST_PARTITIONS_DESCENT + len(turns))
        changed = descend(problem, best, work, cost_of=search.seconds)
        other, sooner = search.best_turns(changed)
        if sooner < seconds:
            best, turns, seconds = changed, other, sooner
    least_work = balanced(_without_transfers(problem), serial).bound  # a device computes while values are sent
    return Overlapped(best, turns, seconds, min(seconds, max(least_work, search.critical_path())))


def _without_transfers(problem: Problem) -> Problem:
    nothing = np.zeros_like(problem.latency)
    return replace(problem, latency=nothing, per_byte=nothing)


class _Search:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._simulator = Simulator(problem)
        self._engines = [self._simulator.engine(d) for d in range(problem.devices)]
        self._known: dict[bytes, float] = {}

    def seconds(self, labels: Labels) -> float:
        """Seconds of a run with good partitions, found in less time than the best."""
        key = labels.tobytes()
        if key not in self._known:
            self._known[key] = self.best_turns(labels, MOST_PARTITIONS_DESCENT)[1]
        return self._known[key]

    def best_turns(self, labels: Labels, joined: int = MOST_PARTITIONS_JOINED) -> tuple[list[list[int]], float]:
        """The better of the fewest partitions and of those cut for overlap, with the seconds of a run.

        Up to `joined` partitions are joined one by one.
        """
        if np.isinf(self._problem.placed(labels)):
            return [], np.inf
        few = self._problem.turns(labels)
        least = self._simulator.run(labels, few).end
        if len(few) == 1:
            return few, least
        cut = self._scheduled(labels, self._cut(labels))
        if len(cut) <= joined:
            cut = self._joined(labels, cut)
        seconds = self._simulator.run(labels, cut).end
        return (cut, seconds) if seconds < least * (1 - 1e-12) else (few, least)

    def critical_path(self) -> float:
        """Seconds of the longest path if every node runs where it is fastest, and nothing is sent."""
        fastest = self._problem.seconds.min(axis=1).tolist()
        ends: list[float] = []
        for seconds, sources in zip(fastest, self._problem.graph.sources, strict=True):
            ends.append(seconds + max([ends[s] for s in sources], default=0.0))
        return max(ends, default=0.0) + float(self._problem.overhead.min())

    def _cut(self, labels: Labels) -> list[list[int]]:
        """Connected nodes of a device with the same transfers before them, and the same ones behind them.

        Along an edge the first set never shrinks and the second never grows, and between devices the first grows, so
        the partitions are acyclic. If these are too many, the numbers of changes of the device take the place of sets.
        """
        devices = labels.tolist()
        groups = self._connected([*zip(devices, *self._sets(devices), strict=True)])
        if len(groups) > MOST_PARTITIONS_JOINED:
            groups = self._connected([*zip(devices, *self._changes(devices), strict=True)])
        return groups

    def _sets(self, devices: Sequence[int]) -> tuple[list[int], list[int]]:
        """The edges between devices before and behind each node, as bits."""
        graph = self._problem.graph
        count = 0
        before = [0] * len(devices)
        behind = [0] * len(devices)
        crossing: list[list[tuple[int, int]]] = []
        for node, sources in enumerate(graph.sources):
            bits = []
            for source in sources:
                before[node] |= before[source]
                if devices[source] != devices[node]:
                    bits.append((source, 1 << count))
                    before[node] |= 1 << count
                    count += 1
            crossing.append(bits)
        for node in range(len(devices) - 1, -1, -1):
            for source, bit in crossing[node]:
                behind[source] |= bit
            for source in graph.sources[node]:
                behind[source] |= behind[node]
        return before, behind

    def _changes(self, devices: Sequence[int]) -> tuple[list[int], list[int]]:
        """The numbers of changes of the device before and behind each node, as bits."""
        graph = self._problem.graph
        early, late = [0] * len(devices), [0] * len(devices)
        for node, sources in enumerate(graph.sources):
            early[node] = max([early[s] + (devices[s] != devices[node]) for s in sources], default=0)
        for node in range(len(devices) - 1, -1, -1):
            late[node] = max([late[r] + (devices[r] != devices[node]) for r in graph.readers[node]], default=0)
        return [(1 << n) - 1 for n in early], [(1 << n) - 1 for n in late]

    def _connected(self, keys: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        """Connected nodes of the same key (device, bits before, bits behind), in an order in which they can run."""
        parent: list[int] = []

        def root(node: int) -> int:
            while parent[node] != node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        for node, sources in enumerate(self._problem.graph.sources):
            parent.append(node)
            for source in sources:
                if keys[source] == keys[node]:
                    first, second = sorted((root(source), root(node)))
                    parent[second] = first
        groups: dict[int, list[int]] = {}
        for node in range(len(keys)):
            groups.setdefault(root(node), []).append(node)

        def place(group: list[int]) -> tuple[int, int, int]:
            _, before, behind = keys[group[0]]
            return before.bit_count(), -behind.bit_count(), group[0]

        return sorted(groups.values(), key=place)

    def _scheduled(self, labels: Labels, groups: list[list[int]]) -> list[list[int]]:
        """The groups in the order of a list schedule."""
        if len(groups) > 4 * MOST_PARTITIONS_JOINED:
            return groups
        devices = labels.tolist()
        owner = owners(len(devices), groups)
        sent = [self._simulator.arrivals(group, owner, devices) for group in groups]
        spent = [self._simulator.duration(group, devices[group[0]]) for group in groups]
        before = self._before(groups, owner)
        tails = [0.0] * len(groups)
        for number in range(len(groups) - 1, -1, -1):
            tails[number] += spent[number]
            device = devices[groups[number][0]]
            for source in before[number]:
                delay = sent[source].get(device, {}).get(number, 0.0)
                tails[source] = max(tails[source], tails[number] + delay)
        left = set(range(len(groups)))
        ready = [0.0] * len(groups)
        waits = [len(b) for b in before]
        after: list[list[int]] = [[] for _ in groups]
        for number, sources in enumerate(before):
            for source in sources:
                after[source].append(number)
        free: dict[int, float] = {}
        order: list[int] = []
        while left:
            able = [g for g in left if not waits[g]]
            start = {g: max(ready[g], free.get(self._engines[devices[groups[g][0]]], 0.0)) for g in able}
            chosen = min(able, key=lambda g: (start[g], -tails[g], g))
            left.discard(chosen)
            order.append(chosen)
            end = start[chosen] + spent[chosen]
            free[self._engines[devices[groups[chosen][0]]]] = end
            for waiting in sent[chosen].values():
                for reader, delay in waiting.items():
                    ready[reader] = max(ready[reader], end + delay)
            for reader in after[chosen]:
                ready[reader] = max(ready[reader], end)
                waits[reader] -= 1
        return [groups[g] for g in order]

    def _before(self, groups: Sequence[Sequence[int]], owner: Sequence[int]) -> list[set[int]]:
        sources = self._problem.graph.sources
        return [{owner[s] for n in group for s in sources[n]} - {number} for number, group in enumerate(groups)]

    def _joined(self, labels: Labels, groups: list[list[int]]) -> list[list[int]]:
        """The groups after joins of successive ones on a device that do not delay the end."""
        best = self._simulator.run(labels, groups).end
        number = 0
        while number < len(groups):
            found = self._join(labels, groups, number, best)
            if found is None:
                number += 1
            else:
                groups, best = found
        return groups

    def _join(
        self, labels: Labels, groups: list[list[int]], number: int, best: float
    ) -> tuple[list[list[int]], float] | None:
        """The groups with group `number` and the next one on its device as one, and the end of a run then."""
        device = labels[groups[number][0]]
        other = next((i for i in range(number + 1, len(groups)) if labels[groups[i][0]] == device), None)
        if other is None:
            return None
        before = self._before(groups, owners(len(labels), groups))
        one = sorted((*groups[number], *groups[other]))
        between = range(number + 1, other)
        places = []
        if not before[other].intersection(between):
            places.append([*groups[:number], one, *groups[number + 1 : other], *groups[other + 1 :]])
        if between and not any(number in before[i] for i in between) and self._frees(before, number, other):
            places.append([*groups[:number], *groups[number + 1 : other], one, *groups[other + 1 :]])
        for found in places:
            end = self._simulator.run(labels, found).end
            if end <= best * (1 + 1e-12):
                return found, min(end, best)
        return None

    @staticmethod
    def _frees(before: Sequence[set[int]], number: int, other: int) -> bool:
        """Whether no group between two depends on the first one, directly or not."""
        reached = {number}
        for i in range(number + 1, other):
            if before[i] & reached:
                reached.add(i)
        return len(reached) == 1

    def earliest_finish(self) -> list[Labels]:
        """Placements of nodes by their earliest finish, in graph order and in the order of the paths behind them."""
        problem = self._problem
        if len(problem.graph.nodes) > 20 * MOST_NODES_DESCENT:
            return []
        mean = np.where(np.isfinite(problem.seconds), problem.seconds, np.nan)
        typical = np.nanmean(mean, axis=1)
        rank = [0.0] * len(typical)
        for node in range(len(rank) - 1, -1, -1):
            rank[node] = typical[node] + max([rank[r] for r in problem.graph.readers[node]], default=0.0)
        by_rank = sorted(range(len(rank)), key=lambda n: (-rank[n], n))
        return [labels for order in (range(len(rank)), by_rank) if (labels := self._finish(order)) is not None]

    def _finish(self, order: Sequence[int]) -> Labels | None:
        problem = self._problem
        seconds, latency, per_byte = problem.seconds.tolist(), problem.latency.tolist(), problem.per_byte.tolist()
        sizes = [max([problem.graph.values[v].nbytes for v in n.outputs], default=0) for n in problem.graph.nodes]
        labels = [0] * len(seconds)
        ends = [0.0] * len(seconds)
        free = [0.0] * problem.devices
        for node in order:
            found = []
            for device in range(problem.devices):
                start = free[self._engines[device]]
                for source in problem.graph.sources[node]:
                    at = labels[source]
                    delay = latency[at][device] + sizes[source] * per_byte[at][device] if at != device else 0.0
                    start = max(start, ends[source] + delay)
                found.append(start + seconds[node][device])
            labels[node] = min(range(problem.devices), key=lambda d: found[d])
            ends[node] = found[labels[node]]
            if ends[node] == np.inf:
                return None
            free[self._engines[labels[node]]] = ends[node]
        return np.array(labels, np.int64)
