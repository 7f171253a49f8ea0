"""The search for the placement of least cost, with a lower bound that says how good it is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from heterocc.passes.optimum import exact
from heterocc.passes.optimum.cuts import swap, swap_all
from heterocc.passes.optimum.descent import descend
from heterocc.passes.optimum.problem import Labels, OneAgainstRest, Problem

CROSSINGS = (0.0, 0.5, 1.0, 2.0)
"""Shares of a partition's overhead that are charged to each transfer, one cut for each."""

MOST_NODES_DESCENT = 2_000
"""Larger graphs are left as the cuts give them."""

MOST_NODES_EXACT = 400
"""Larger graphs get no integer programme."""

_DOUBLINGS = 12
_BISECTIONS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """Labels, their cost in seconds, and a lower bound of the cost of any labels."""

    labels: Labels
    seconds: float
    bound: float


def find(problem: Problem, start: Labels, work: float) -> Placement:
    """The placement of least cost, as far as it was found; never worse than `start`, which must fit.

    Exact with two devices, no limit on memory and no overhead of partitions, by a minimum cut. Otherwise cuts are
    improved by descent, and small graphs by an integer programme, with `work` as its limit.
    """
    if len(problem.devices) == 1 or not start:
        cost = problem.total(start)
        return Placement(start, cost, cost)
    bound = lower_bound(problem, start)
    best = _least(problem, [start, *_candidates(problem, start)])
    if any(problem.overhead) and len(start) <= MOST_NODES_DESCENT:
        best = descend(problem, best)
    cost = problem.total(best)
    if work > 0 and len(start) <= MOST_NODES_EXACT and bound < cost * (1 - 1e-9):
        solution = exact.solve(problem, best, bound, work)
        if solution is not None:
            bound = solution.bound
            best = _least(problem, [best, solution.labels])
            cost = problem.total(best)
    return Placement(best, cost, min(bound, cost))


def lower_bound(problem: Problem, start: Labels) -> float:
    """Seconds that no placement is faster than, if memory is unlimited.

    With two devices the minimum cut, which counts each used device's overhead once. With more, the largest of the
    minimum cuts between one device and the best of all others.
    """
    if len(problem.devices) == 2:
        labels = swap(problem, start, 0, 1)
        return problem.placed(labels) + math.fsum(problem.overhead[label] for label in set(labels))
    sides = [OneAgainstRest.of_device(problem, device) for device in range(len(problem.devices))]
    return max(lower_bound(side, [int(label != side.one) for label in start]) for side in sides)


def _candidates(problem: Problem, start: Labels) -> Iterable[Labels]:
    for device in range(len(problem.devices)):
        yield [device if row[device] < math.inf else label for row, label in zip(problem.seconds, start, strict=True)]
    for crossing in CROSSINGS if any(problem.overhead) else CROSSINGS[:1]:
        found = swap_all(problem, start, crossing)
        yield found
        if not problem.fits(found):
            yield from _within_memory(problem, start, crossing)


def _within_memory(problem: Problem, start: Labels, crossing: float) -> Iterable[Labels]:
    """Placements with a price on the memory of limited devices, found by bisection of the least price that fits."""
    low, high = 0.0, _first_price(problem)
    for _ in range(_DOUBLINGS):
        found = swap_all(problem.priced(high), start, crossing)
        if problem.fits(found):
            yield found
            break
        low, high = high, 4 * high
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        found = swap_all(problem.priced(price), start, crossing)
        if problem.fits(found):
            high = price
            yield found
        else:
            low = price


def _first_price(problem: Problem) -> float:
    """Seconds per byte: small beside what the nodes cost."""
    finite = math.fsum(min(row) for row in problem.seconds)
    nbytes = sum(sum(row) for row in problem.memory)
    return max(finite, 1e-9) / max(nbytes, 1) / 16


def _least(problem: Problem, candidates: Iterable[Labels]) -> Labels:
    """The first of the cheapest labels that fit."""
    best: Labels | None = None
    cost = math.inf
    for labels in candidates:
        found = problem.total(labels)
        if (best is None or found < cost - 1e-12 * cost) and problem.fits(labels):
            best, cost = labels, found
    assert best is not None, "the start fits"
    return best
