"""Throughput: the placement whose slowest device takes least time for each request.

Requests pass through the partitions one behind the other, so that each device works on another request, and the device
with most work determines how many are done in a second. A device's work is its nodes, its partitions' overhead, and the
transfers to it. Weights of the devices' work that sum to 1 make the problem one of least cost, whose optimum is a lower
bound; the weights are changed until devices are about equally busy (the Lagrangian dual, by subgradients).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from heterocc.passes.merging.schedule import EXACT_WORK, grouped
from heterocc.passes.native.calls import cheapest_turns
from heterocc.passes.optimum import exact
from heterocc.passes.optimum.descent import descend
from heterocc.passes.optimum.problem import SEARCH_WORK, Floats, Labels, Problem
from heterocc.passes.optimum.relaxed import Relaxed
from heterocc.passes.optimum.search import MOST_NODES_DESCENT, MOST_NODES_EXACT, least_within_memory, lower_bound

ROUNDS = 16
"""Changes of the weights; a quarter of them for large graphs."""

_SHARE = 0.15
"""The work of a lower bound in a round, as a share of that of a bound that is the only one."""

_TIE = 1e-6
"""The weight of all devices' work together: it decides between plans that are equally good."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Labels with their partitions in run order, the seconds of the slowest device, and a lower bound of these."""

    labels: Labels
    turns: list[list[int]]
    seconds: float
    bound: float


def find_pipeline(problem: Problem, start: Labels, work: float) -> Pipeline:
    """The placement of least time of the slowest device, as far as it was found; `start` must fit.

    Exact for small graphs, by branch and bound with `work` as its limit.
    """
    found = balanced(problem, start)
    bound, best = found.bound, found.labels

    def cost(labels: Labels) -> float:
        return _judged(problem, labels, stages(problem, labels))

    if problem.devices > 1 and len(start) <= MOST_NODES_DESCENT:
        best = descend(problem, best, cost_of=cost)
    turns = stages(problem, best)
    slowest = float(loads(problem, best, turns).max())
    if work > 0 and len(start) <= MOST_NODES_EXACT and bound < slowest * (1 - 1e-9):
        solution = exact.solve_slowest(problem, best, slowest, bound, work, found.guides)
        bound, best = solution.bound, solution.labels
        turns = stages(problem, best)
        slowest = float(loads(problem, best, turns).max())
    return Pipeline(best, turns, slowest, min(bound, slowest))


def loads(problem: Problem, labels: Labels, turns: Sequence[Sequence[int]]) -> Floats:
    """Seconds of work of each device for one request: nodes, overhead of partitions, transfers to it."""
    spent = problem.seconds[np.arange(len(labels)), labels]
    found = np.bincount(labels, spent, problem.devices).astype(float)
    sources, targets = labels[problem.sent.producer], labels[problem.sent.readers]
    for target in range(problem.devices):
        crosses = problem.sent.any_reader(targets == target) & (sources != target)
        start = sources[crosses]
        found[target] += float(
            (problem.latency[start, target] + problem.sent.nbytes[crosses] * problem.per_byte[start, target]).sum()
        )
    for turn in turns:
        found[labels[turn[0]]] += problem.overhead[labels[turn[0]]]
    return found


def stages(problem: Problem, labels: Labels) -> list[list[int]]:
    """The partitions that leave the slowest device least overhead, as far as they were found."""
    if not problem.overhead.any() or len(set(labels.tolist())) == 1:
        return problem.turns(labels)
    work = EXACT_WORK if len(labels) <= MOST_NODES_EXACT else SEARCH_WORK
    return grouped(cheapest_turns(problem.edges, labels, problem.overhead, work, loads(problem, labels, []))[0])


def _judged(problem: Problem, labels: Labels, turns: Sequence[Sequence[int]]) -> float:
    found = loads(problem, labels, turns)
    return float(found.max() + _TIE * found.sum())


@dataclass(frozen=True, slots=True)
class Balanced:
    """A lower bound of the slowest device's work, labels, and the relaxation with the weights of the best bound."""

    bound: float
    labels: Labels
    guides: list[Relaxed]


def balanced(problem: Problem, start: Labels) -> Balanced:
    """Labels by cuts and messages with weights of devices, by single devices and by split chains."""
    count = problem.devices
    if count == 1:
        return Balanced(problem.total(start), start, [])
    able = np.isfinite(problem.seconds).any(axis=0)
    weights = np.where(able, 1.0, 1e-6)
    weights /= weights.sum()
    best, least = start, _judged(problem, start, stages(problem, start))
    bound = 0.0
    guides: list[Relaxed] = []

    def consider(labels: Labels) -> None:
        nonlocal best, least
        cost = _judged(problem, labels, stages(problem, labels))
        if cost < least * (1 - 1e-12) and problem.fits(labels):
            best, least = labels, cost

    for labels in _simple(problem, start):
        consider(labels)
    rounds = ROUNDS if len(start) <= MOST_NODES_DESCENT else ROUNDS // 4
    for number in range(rounds):
        scaled = weighed(problem, weights)
        low = lower_bound(scaled, best, share=_SHARE)
        if low.seconds > bound:
            bound = low.seconds
            guides = [low.relaxed] if low.relaxed is not None else []
        labels = min(low.labels, key=scaled.placed)
        consider(labels)
        if not problem.fits(labels):
            for found in least_within_memory(scaled, best):
                consider(found)
        busy = loads(problem, labels, stages(problem, labels))
        if not np.isfinite(busy).all() or bound >= least * (1 - 1e-9):
            break
        mean = float(busy.mean()) or 1.0
        weights *= np.exp((busy / mean - 1) / (1 + 0.3 * number))
        weights = np.maximum(weights / weights.sum(), 1e-6)
        weights /= weights.sum()
    return Balanced(bound, best, guides)


def weighed(problem: Problem, weights: Floats) -> Problem:
    """The problem with each device's work times its weight."""
    return replace(
        problem,
        seconds=problem.seconds * weights,
        overhead=problem.overhead * weights,
        latency=problem.latency * weights,
        per_byte=problem.per_byte * weights,
    )


def _simple(problem: Problem, start: Labels) -> Iterator[Labels]:
    """Each device for all that it can run, and the graph's order cut in two where two devices would be equally busy."""
    able = np.isfinite(problem.seconds)
    for device in range(problem.devices):
        yield np.where(able[:, device], device, start)
    for first, second in permutations(range(problem.devices), 2):
        before = np.cumsum(np.where(able[:, first], problem.seconds[:, first], 0.0))
        after = np.cumsum(np.where(able[:, second], problem.seconds[:, second], 0.0)[::-1])[::-1]
        place = int(np.argmin(np.maximum(before, np.append(after[1:], 0.0))))
        split = np.where(np.arange(len(start)) <= place, first, second)
        yield np.where(able[np.arange(len(start)), split], split, start)
