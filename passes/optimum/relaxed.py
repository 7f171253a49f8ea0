"""Lower bounds of a placement's cost by messages, with launches counted along paths.

A plan has at least as many partitions of each device as a path through the graph enters the device, so launches on one
path, or on several with weights that sum to 1, are a lower bound of all launches; and a launch at an edge is part of
the cost of two neighbouring nodes. The weights are moved towards the path on which the labels change most (the
subgradient of the bound), and the messages are kept, so each step begins where the last one ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heterocc.passes.native.calls import Factored
from heterocc.passes.optimum.problem import Floats, Labels, Problem

MOST_READERS = 8
"""Readers of a value that messages consider together; the cost of more is divided among parts of them."""

MOST_DEVICES = 6
"""With more devices, readers are considered one by one: the work grows with the number of sets of devices."""

ROUNDS = 12
"""Changes of the weights of paths."""

WORK = 120_000_000
"""Operations of the sweeps, about; counted, so that results are reproducible."""

MOST_SWEEPS = 60

CROSSING_SWEEPS = 4
"""Sweeps for labels at a price of transfers."""


@dataclass(frozen=True)
class Relaxed:
    """A lower bound of the seconds of a run, the problem and the messages that it follows from, and labels found."""

    bound: float
    factored: Factored
    messages: Floats
    labels: list[Labels]


def relaxed(problem: Problem, start: Labels, *, launches: bool = True, share: float = 1.0) -> Relaxed:
    """The relaxation of a problem, with launches or, for enumerations that count them otherwise, without.

    `share` is that of the usual work.
    """
    factors = factored(problem)
    costly = launches and bool(problem.overhead.any())
    rounds = ROUNDS if costly else 1
    sweeps = int(np.clip(share * WORK // max(_sweep_work(factors), 1), 2, share * MOST_SWEEPS))
    rounds = min(rounds, sweeps)
    messages = factors.new_messages()
    best = Relaxed(-np.inf, factors, messages, [])
    labels, found = start, []
    entries = _entries(problem, factors) if costly else np.zeros(0, np.int64)
    for number in range(rounds):
        if costly:
            step = 2 / (number + 2)
            launch, first = _path(problem, entries, factors, labels)
            factors = replace(
                factors,
                launch=(1 - step) * factors.launch + step * launch,
                start=(1 - step) * factors.start + step * first,
            )
        bound, labels = factors.relax(messages, sweeps // rounds)
        found.append(labels)
        if bound > best.bound:
            best = Relaxed(bound, factors, messages.copy(), found)
    return best


def labels_at(problem: Problem, crossing: float) -> Labels:
    """Labels for which `crossing` times the receiving device's overhead is charged to every transfer."""
    factors = factored(problem, crossing)
    return factors.relax(factors.new_messages(), CROSSING_SWEEPS)[1]


def factored(problem: Problem, crossing: float = 0.0, *, whole: bool = False) -> Factored:
    """The problem for the solver without launches; `whole` keeps each value in one factor and missing links infinite.

    `crossing` times the overhead of the receiving device is added to every transfer.
    """
    sent = problem.sent
    counts = np.diff(sent.first)
    width = MOST_READERS if problem.devices <= MOST_DEVICES else 1
    if whole:
        first, value = sent.first, np.arange(len(counts))
    else:
        parts = -(-counts // width)
        value = np.repeat(np.arange(len(counts)), parts)
        number = np.arange(len(value)) - np.repeat(np.cumsum(parts) - parts, parts)
        first = np.append(sent.first[value] + number * width, sent.first[-1:] if len(counts) else [0])
    latency = problem.latency + crossing * problem.overhead
    np.fill_diagonal(latency, 0.0)
    if not whole:
        latency = np.where(np.isinf(latency), _more_than_any(problem), latency)
    share = np.diff(first) / np.maximum(counts[value], 1)
    return Factored(
        seconds=np.ascontiguousarray(problem.seconds, float),
        producer=np.ascontiguousarray(sent.producer[value]),
        first=np.ascontiguousarray(first, np.int64),
        readers=np.ascontiguousarray(sent.readers),
        launch=np.zeros(len(sent.readers)),
        share=share.astype(float),
        nbytes=np.ascontiguousarray(sent.nbytes[value], float),
        start=np.zeros(len(problem.seconds)),
        latency=np.ascontiguousarray(latency, float),
        per_byte=np.ascontiguousarray(problem.per_byte, float),
        overhead=np.ascontiguousarray(problem.overhead, float),
        first_source=problem.edges[0],
        sources=problem.edges[1],
    )


def _more_than_any(problem: Problem) -> float:
    """Seconds of a transfer over a link that is missing: more than a plan without it takes."""
    finite = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0).max(axis=1).sum()
    links = np.where(np.isfinite(problem.latency), problem.latency, 0.0).max()
    sent = len(problem.sent.producer) * links + problem.sent.nbytes.sum() * problem.per_byte.max()
    return float(finite + problem.devices * sent + problem.overhead.max() * len(problem.seconds)) or 1.0


def _sweep_work(factors: Factored) -> int:
    devices = len(factors.overhead)
    readers = np.diff(factors.first)
    each = np.where(readers == 1, devices**2, devices**2 * 2 ** (devices - 1) * readers)
    return int(((readers + 1) * each).sum()) * 2


def _entries(problem: Problem, factors: Factored) -> Labels:
    """For each edge of the graph an entry of `readers` that stands for it."""
    count = len(problem.seconds)
    of_reader = np.repeat(factors.producer, np.diff(factors.first)) * count + factors.readers
    order = np.argsort(of_reader, kind="stable")
    sources, readers = problem.graph.edges
    found: Labels = order[np.searchsorted(of_reader[order], sources * count + readers)]
    return found


def _path(problem: Problem, entries: Labels, factors: Factored, labels: Labels) -> tuple[Floats, Floats]:
    """The path with the most overhead of devices that it enters, as ones at its edges and at its first node."""
    own = problem.overhead[labels].tolist()
    device = labels.tolist()
    spent: list[float] = []
    came: list[int] = []
    first, sources = problem.edges[0].tolist(), problem.edges[1].tolist()
    for node, overhead in enumerate(own):
        most, edge = overhead, -1
        for e in range(first[node], first[node + 1]):
            source = sources[e]
            cost = spent[source] + (overhead if device[source] != device[node] else 0.0)
            if cost > most or edge < 0:
                most, edge = cost, e
        spent.append(most)
        came.append(edge)
    node = len(spent) - 1 - int(np.argmax(spent[::-1]))  # of equal ones the longest
    launch, start = np.zeros(len(factors.readers)), np.zeros(len(own))
    while came[node] >= 0:
        launch[entries[came[node]]] = 1.0
        node = sources[came[node]]
    start[node] = 1.0
    return launch, start
