"""Moves of the borders between partitions that run one after the other, each by a minimum cut.

A change of nodes of two such partitions to the other one keeps their order if no node runs before one that it reads
from, so the best change is a cut with an arc that cannot be cut for each such pair.
"""

from __future__ import annotations

from heterocc.passes.optimum.cuts import shift
from heterocc.passes.optimum.descent import WORK, descended
from heterocc.passes.optimum.problem import Labels, Problem

_CUT = 2
"""The work of a cut, in that of a cost."""


def improved(problem: Problem, labels: Labels, work: int = WORK) -> tuple[Labels, int]:
    """Labels that neither a descent nor a move of a border between two partitions improves, or as far as the work.

    The second result is the work that is left.
    """
    best, left = descended(problem, labels, work)
    while left > 0:
        found, left = _moved(problem, best, left)
        if found is best:
            break
        best, left = descended(problem, found, left)
    return best, left


def _moved(problem: Problem, labels: Labels, work: int) -> tuple[Labels, int]:
    """The labels after one move of each border, from the first one to the last, that lowers the cost; the work left."""
    best, cost = labels, problem.total(labels)
    turn = 0
    while turn + 1 < len(turns := problem.turns(best)) and work > 0:
        work -= _CUT * len(best)
        found = shift(problem, best, turns[turn], turns[turn + 1])
        lower = problem.total(found)
        if lower < cost * (1 - 1e-12) and problem.fits(found):
            best, cost = found, lower
        turn += 1
    return best, work
