"""Descent: changes of connected nodes' device that lower the cost of a plan, partitions included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from heterocc.passes.optimum.problem import Labels, Problem

WORK = 400_000
"""Nodes that are looked at before the descent stops; counted, not timed, so that results are reproducible."""


def descend(
    problem: Problem, labels: Labels, work: int = WORK, cost_of: Callable[[Labels], float] | None = None
) -> Labels:
    """Labels that no change of one partition, island or node to a neighbouring device improves, or as far as `work`.

    `cost_of` is what is improved, by default the seconds of a run.
    """
    return descended(problem, labels, work, cost_of)[0]


def descended(
    problem: Problem, labels: Labels, work: int, cost_of: Callable[[Labels], float] | None = None
) -> tuple[Labels, int]:
    """As `descend`, with the work that is left."""
    judge = cost_of or problem.total
    best, cost = labels, judge(labels)
    left = work
    improved = True
    while improved and left > 0:
        improved = False
        for nodes, target in _changes(problem, best):
            changed = best.copy()
            changed[nodes] = target
            left -= len(best)
            lower = judge(changed)
            if lower < cost * (1 - 1e-12) and problem.fits(changed):
                best, cost, improved = changed, lower, True
                break
            if left <= 0:
                break
    return best, left


def _changes(problem: Problem, labels: Labels) -> Iterator[tuple[list[int], int]]:
    """Partitions, their islands, and nodes, each with a device that it exchanges values with and that can run it."""
    seen: set[tuple[tuple[int, ...], int]] = set()
    near = _neighbours(problem)
    groups = problem.turns(labels)
    found = labels.tolist()
    islands = [island for group in groups for island in _islands(group, near)]
    single = [[n] for group in groups for n in group if any(found[o] != found[n] for o in near[n])]
    for nodes in (*groups, *islands, *single):
        targets = {found[o] for n in nodes for o in near[n]} - {found[nodes[0]]}
        for target in sorted(targets):
            key = (tuple(nodes), target)
            if key not in seen and np.isfinite(problem.seconds[nodes, target]).all():
                seen.add(key)
                yield nodes, target


def _neighbours(problem: Problem) -> list[set[int]]:
    near: list[set[int]] = [set() for _ in problem.graph.nodes]
    for reader, sources in enumerate(problem.graph.sources):
        near[reader].update(sources)
        for source in sources:
            near[source].add(reader)
    return near


def _islands(group: list[int], near: list[set[int]]) -> Iterator[list[int]]:
    """The connected parts of a group."""
    left = set(group)
    for node in group:
        if node not in left:
            continue
        island, work = [], [node]
        left.discard(node)
        while work:
            current = work.pop()
            island.append(current)
            following = near[current] & left
            left -= following
            work.extend(following)
        yield sorted(island)
