"""Transfers: the placement that sends the fewest bytes between devices, and among those the one of least cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.search import MOST_NODES_EXACT, find


@dataclass(frozen=True, slots=True)
class Fewest:
    """Labels, the bytes that they send, and a lower bound of the bytes that any labels send."""

    labels: Labels
    nbytes: float
    bound: float


def find_fewest_bytes(problem: Problem, start: Labels, work: float) -> Fewest:
    """The placement of fewest bytes, as far as it was found; never more than `start` sends, which must fit.

    The fewest bytes are a problem of least cost in which only bytes cost anything; then every byte gets a price that
    no seconds outweigh. `work` limits the exact search for each of the two.
    """
    alone = find(_only_bytes(problem), start, work)
    labels, fewest = alone.labels, sent_bytes(problem, alone.labels)
    seconds = max(problem.total(labels), 1e-12)
    sizes = problem.sent.nbytes
    everything = max(float(sizes.sum()), 1.0)
    step = math.gcd(*(int(size) for size in sizes.tolist())) or 1
    for price, effort in ((4 / everything, 0.0), (256 / everything, 0.0), (2 / step, work)):
        if effort == 0.0 and work > 0 and len(start) <= MOST_NODES_EXACT:
            continue  # the last one is exact
        found = find(_priced(problem, price * seconds), labels, effort).labels
        nbytes = sent_bytes(problem, found)
        if (nbytes, problem.total(found)) < (fewest, problem.total(labels)):
            labels, fewest = found, nbytes
    return Fewest(labels, fewest, min(alone.bound, fewest))


def sent_bytes(problem: Problem, labels: Labels) -> float:
    """Bytes of all transfers; infinite if one needs a link that cannot be used."""
    return _only_bytes(problem).placed(labels)


def _only_bytes(problem: Problem) -> Problem:
    return replace(
        problem,
        seconds=np.where(np.isinf(problem.seconds), np.inf, 0.0),
        overhead=np.zeros(problem.devices),
        latency=np.where(np.isinf(problem.latency), np.inf, 0.0),
        per_byte=np.ones_like(problem.per_byte),
    )


def _priced(problem: Problem, price: float) -> Problem:
    return replace(problem, per_byte=problem.per_byte + price)
