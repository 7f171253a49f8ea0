"""Restarts of the descent: from cuts at other prices of transfers, and from the best plan with a part on one device.

The second is iterated local search: H. R. Lourenço, O. C. Martin and T. Stützle, "Iterated local search" (2003).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heterocc.passes.optimum.borders import improved
from heterocc.passes.optimum.cuts import swap_all
from heterocc.passes.optimum.problem import Labels, Problem

CROSSINGS = (0.1, 0.2, 0.3)
"""Shares of a partition's overhead that are charged to each transfer, beside those of `search`."""

CHANGES, WORK = 16, 300_000
"""Parts of the best plan that are put on one device; fewer if the work, nodes by nodes for each, exceeds the limit."""

LONGEST = 24
"""Nodes, consecutive in graph order, of such a part."""


def restarted(problem: Problem, start: Labels, best: Labels) -> Labels:
    """The best labels of all descents; `best` if none is better. Equal problems give equal labels."""
    least = problem.total(best)
    for crossing in CROSSINGS:
        cut = swap_all(problem, start, crossing)
        if problem.fits(cut):
            best, least = _better(problem, cut, best, least)
    for nodes, device in _parts(len(best), problem.devices):
        changed = best.copy()
        changed[nodes] = np.where(np.isfinite(problem.seconds[nodes, device]), device, changed[nodes])
        if not np.array_equal(changed, best) and problem.fits(changed):
            best, least = _better(problem, changed, best, least)
    return best


def _better(problem: Problem, labels: Labels, best: Labels, least: float) -> tuple[Labels, float]:
    found = improved(problem, labels)
    cost = problem.total(found)
    return (found, cost) if cost < least * (1 - 1e-12) else (best, least)


def _parts(count: int, devices: int) -> Iterator[tuple[slice, int]]:
    rng = np.random.default_rng(0)
    for _ in range(min(CHANGES, WORK // count**2)):
        first = int(rng.integers(count))
        yield slice(first, first + int(rng.integers(2, LONGEST))), int(rng.integers(devices))
