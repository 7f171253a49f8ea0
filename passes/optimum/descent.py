"""Descent: changes of connected nodes' device that lower the cost of a plan, partitions included."""

from __future__ import annotations

from collections.abc import Iterator

from heterocc.passes.optimum.problem import Labels, Problem

WORK = 400_000
"""Nodes that are looked at before the descent stops; counted, not timed, so that results are reproducible."""


def descend(problem: Problem, labels: Labels, work: int = WORK) -> Labels:
    """Labels that no change of one partition, island or node to a neighbouring device improves, or as far as `work`."""
    best, cost = labels, problem.total(labels)
    left = work
    improved = True
    while improved and left > 0:
        improved = False
        for nodes, target in _changes(problem, best):
            changed = list(best)
            for node in nodes:
                changed[node] = target
            left -= len(best)
            lower = problem.total(changed)
            if lower < cost - 1e-12 * cost and problem.fits(changed):
                best, cost, improved = changed, lower, True
                break
            if left <= 0:
                break
    return best


def _changes(problem: Problem, labels: Labels) -> Iterator[tuple[list[int], int]]:
    """Partitions, their islands, and nodes, each with a device that it exchanges values with and that can run it."""
    seen: set[tuple[tuple[int, ...], int]] = set()
    near = _neighbours(problem)
    groups = problem.turns(labels)
    islands = [island for group in groups for island in _islands(group, near)]
    single = [[n] for group in groups for n in group if any(labels[o] != labels[n] for o in near[n])]
    for nodes in (*groups, *islands, *single):
        targets = {labels[o] for n in nodes for o in near[n]} - {labels[nodes[0]]}
        for target in sorted(targets):
            key = (tuple(nodes), target)
            if key not in seen and all(problem.seconds[n][target] < float("inf") for n in nodes):
                seen.add(key)
                yield nodes, target


def _neighbours(problem: Problem) -> list[set[int]]:
    near: list[set[int]] = [set() for _ in problem.seconds]
    for value in problem.values:
        for reader in value.readers:
            near[reader].add(value.producer)
            near[value.producer].add(reader)
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
