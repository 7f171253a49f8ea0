"""The search for the placement of least cost, with a lower bound that says how good it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from heterocc.passes.merging.schedule import EXACT_WORK
from heterocc.passes.native.calls import cheapest_turns
from heterocc.passes.optimum import exact
from heterocc.passes.optimum.borders import improved
from heterocc.passes.optimum.cuts import swap, swap_all
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.relaxed import Relaxed, labels_at, relaxed
from heterocc.passes.optimum.restarts import restarted

CROSSINGS = (0.0, 0.5, 1.0, 2.0)
"""Shares of a partition's overhead that are charged to each transfer, one cut for each."""

MOST_NODES_DESCENT = 2_000
"""Larger graphs are left as cuts and messages give them."""

MOST_NODES_EXACT = 400
"""Larger graphs are not searched exactly."""

CLOSE = 1e-9
"""Costs that differ by this share of them are equal."""

_DOUBLINGS = 12
_BISECTIONS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """Labels, their cost in seconds, and a lower bound of the cost of any labels."""

    labels: Labels
    seconds: float
    bound: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that no placement is faster than if memory is unlimited, labels found on the way, and the relaxation."""

    seconds: float
    labels: list[Labels]
    relaxed: Relaxed | None


def find(problem: Problem, start: Labels, work: float) -> Placement:
    """The placement of least cost, as far as it was found; never worse than `start`, which must fit.

    Exact with two devices, no limit on memory and no overhead of partitions, by a minimum cut. Otherwise the best of
    cuts and labels of the relaxation is improved by descent and moved borders, and for small graphs by branch and
    bound, with `work` as its limit; if it ends without a proof, by further descents.
    """
    low = lower_bound(problem, start)
    bound = low.seconds
    best = _least(problem, start, low.labels)
    cost = problem.total(best)
    if bound < cost * (1 - CLOSE):
        best = _least(problem, best, _candidates(problem, start, best))
        if problem.overhead.any() and len(start) <= MOST_NODES_DESCENT:
            best, _ = improved(problem, best)
        cost = problem.total(best)
    if work > 0 and len(start) <= MOST_NODES_EXACT and bound < cost * (1 - CLOSE):
        guide = low.relaxed or relaxed(problem, best)
        solution = exact.solve(problem, best, bound, work, guide)
        bound = solution.bound
        best = _least(problem, best, [solution.labels])
        cost = problem.total(best)
        if problem.overhead.any() and bound < cost * (1 - CLOSE) < np.inf:
            best = restarted(problem, start, best)
            cost = problem.total(best)
    cost = problem.planned(best)
    return Placement(best, cost, cost if bound >= cost * (1 - CLOSE) else bound)


def lower_bound(problem: Problem, start: Labels, share: float = 1.0) -> Bound:
    """A lower bound of all placements.

    With two devices the minimum cut, which counts each used device's overhead once, or the relaxation if it is higher.
    With more the relaxation; `share` is that of its usual work.
    """
    able = np.isfinite(problem.seconds)
    if (able.sum(axis=1) == 1).all():
        return Bound(_least_of_only_choice(problem, able.argmax(axis=1)), [start], None)
    cut: list[Labels] = []
    seconds = -np.inf
    if problem.devices == 2:
        cut = [swap(problem, start, 0, 1)]
        seconds = problem.placed(cut[0]) + problem.used_overhead(cut[0])
        if not problem.overhead.any():
            return Bound(seconds, cut, None)
    found = relaxed(problem, cut[0] if cut else start, share=share)
    return Bound(max(seconds, found.bound), [*cut, *found.labels], found)


def _least_of_only_choice(problem: Problem, labels: Labels) -> float:
    """A lower bound if each node can run on one device only: the order of the partitions alone is to be found."""
    placed = problem.placed(labels)
    if not problem.overhead.any() or np.isinf(placed):
        return placed
    return placed + cheapest_turns(problem.edges, labels, problem.overhead, EXACT_WORK)[2]


def _candidates(problem: Problem, start: Labels, best: Labels) -> Iterator[Labels]:
    crossings: tuple[float, ...] = CROSSINGS if problem.overhead.any() else CROSSINGS[:1]
    if len(start) > MOST_NODES_DESCENT:
        crossings = crossings[1::2]
    for crossing in crossings:
        found = _cheapest(problem, start, crossing)
        if problem.devices > 2 and len(start) <= MOST_NODES_DESCENT:
            found = swap_all(problem, found, crossing)
        yield found
        if not problem.fits(found):
            yield from least_within_memory(problem, start, crossing)
    if problem.devices > 2 and len(start) <= MOST_NODES_DESCENT:
        yield swap_all(problem, best, CROSSINGS[1])
    for device in range(problem.devices):
        yield np.where(np.isinf(problem.seconds[:, device]), start, device)


def _cheapest(problem: Problem, start: Labels, crossing: float) -> Labels:
    """Labels of low cost with a price of transfers: of least cost with two devices, of messages with more."""
    return swap(problem, start, 0, 1, crossing) if problem.devices == 2 else labels_at(problem, crossing)


def least_within_memory(problem: Problem, start: Labels, crossing: float = 0.0) -> Iterable[Labels]:
    """Placements with a price on the memory of limited devices, found by bisection of the least price that fits."""
    low, high = 0.0, _first_price(problem)
    for _ in range(_DOUBLINGS):
        found = _cheapest(problem.priced(high), start, crossing)
        if problem.fits(found):
            yield found
            break
        low, high = high, 4 * high
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        found = _cheapest(problem.priced(price), start, crossing)
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
