"""The search for the placement of least cost, with a lower bound that says how good it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from heterocc.passes.optimum import exact
from heterocc.passes.optimum.borders import improved
from heterocc.passes.optimum.cuts import swap, swap_all
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.restarts import restarted

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
    improved by descent and moved borders, and small graphs by an integer programme, with `work` as its limit; if it
    ends without a proof, by further descents.
    """
    if problem.devices == 1:
        cost = problem.total(start)
        return Placement(start, cost, cost)
    bound, cut = lower_bound(problem, start)
    best = _least(problem, start, _candidates(problem, start, cut))
    if problem.overhead.any() and len(start) <= MOST_NODES_DESCENT:
        best = improved(problem, best)
    cost = problem.total(best)
    if work > 0 and len(start) <= MOST_NODES_EXACT and bound < cost * (1 - 1e-9):
        solution = exact.solve(problem, best, bound, work)
        if solution is not None:
            bound = solution.bound
            best = _least(problem, best, [solution.labels])
            cost = problem.total(best)
        if problem.overhead.any() and bound < cost * (1 - 1e-9) < np.inf:
            best = restarted(problem, start, best)
            cost = problem.total(best)
    return Placement(best, cost, min(bound, cost))


def lower_bound(problem: Problem, start: Labels) -> tuple[float, Labels | None]:
    """Seconds that no placement is faster than if memory is unlimited, and the labels of the cut that has that cost.

    With two devices the minimum cut, which counts each used device's overhead once. With more, the largest of the
    minimum cuts between one device and the best of all others, without labels.
    """
    if problem.devices == 2:
        labels = swap(problem, start, 0, 1)
        return problem.placed(labels) + problem.used_overhead(labels), labels
    sides = [problem.against_rest(device) for device in range(problem.devices)]
    return max(lower_bound(p, (start != device).astype(np.int64))[0] for device, p in enumerate(sides)), None


def _candidates(problem: Problem, start: Labels, cut: Labels | None) -> Iterable[Labels]:
    crossings: tuple[float, ...] = CROSSINGS if problem.overhead.any() else CROSSINGS[:1]
    if len(start) > MOST_NODES_DESCENT:
        crossings = crossings[:: len(CROSSINGS) - 2]
    for crossing in crossings:
        found = cut if cut is not None and not crossing else swap_all(problem, start, crossing)
        yield found
        if not problem.fits(found):
            yield from least_within_memory(problem, start, crossing)
    for device in range(problem.devices):
        yield np.where(np.isinf(problem.seconds[:, device]), start, device)


def least_within_memory(problem: Problem, start: Labels, crossing: float = 0.0) -> Iterable[Labels]:
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
    seconds, nbytes = float(problem.seconds.min(axis=1).sum()), float(problem.memory.sum())
    return max(seconds, 1e-9) / max(nbytes, 1.0) / 16


def _least(problem: Problem, first: Labels, others: Iterable[Labels]) -> Labels:
    """The cheapest labels that fit; `first` if others cost the same."""
    ranked = [(problem.placed(labels) + problem.used_overhead(labels), labels) for labels in (first, *others)]
    fitting = [(least, labels) for least, labels in ranked if labels is first or problem.fits(labels)]
    best, cost = first, np.inf
    for least, labels in sorted(fitting, key=lambda pair: pair[0]):
        if least >= cost * (1 - 1e-12):
            break  # partitions only add to it
        found = problem.total(labels)
        if found < cost * (1 - 1e-12):
            best, cost = labels, found
    return best
