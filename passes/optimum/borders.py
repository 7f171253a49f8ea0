"""Moves of the borders between partitions that run one after the other, each by a minimum cut.

A change of nodes of two such partitions to the other one keeps their order if no node runs before one that it reads
from, so the best change is a cut with an arc that cannot be cut for each such pair.
"""

from __future__ import annotations

from heterocc.passes.optimum.cuts import shift
from heterocc.passes.optimum.descent import descend
from heterocc.passes.optimum.problem import Labels, Problem


def improved(problem: Problem, labels: Labels) -> Labels:
    """Labels that neither a descent nor a move of a border between two partitions improves."""
    best = descend(problem, labels)
    while True:
        found = _moved(problem, best)
        if found is best:
            return best
        best = descend(problem, found)


def _moved(problem: Problem, labels: Labels) -> Labels:
    """The labels after one move of each border, from the first one to the last, that lowers the cost."""
    best, cost = labels, problem.total(labels)
    turn = 0
    while turn + 1 < len(turns := problem.turns(best)):
        found = shift(problem, best, turns[turn], turns[turn + 1])
        lower = problem.total(found)
        if lower < cost * (1 - 1e-12) and problem.fits(found):
            best, cost = found, lower
        turn += 1
    return best
