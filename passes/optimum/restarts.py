"""Restarts of the descent: from cuts at other prices of transfers, and from the best plan with a part on one device.

The second is iterated local search: H. R. Lourenço, O. C. Martin and T. Stützle, "Iterated local search" (2003).
"""

from __future__ import annotations

import numpy as np

from heterocc.passes.optimum.borders import improved
from heterocc.passes.optimum.cuts import swap_all
from heterocc.passes.optimum.problem import Labels, Problem

CROSSINGS = (0.1, 0.2, 0.3)
"""Shares of a partition's overhead that are charged to each transfer, beside those of `search`."""

CHANGES = 16
"""Parts of the best plan that are put on one device, one after the other."""

WORK = 600_000
"""Nodes that all descents look at."""

LONGEST = 24
"""Nodes, consecutive in graph order, of such a part."""


def restarted(problem: Problem, start: Labels, best: Labels) -> Labels:
    """The best labels of all descents; `best` if none is better. Equal problems give equal labels."""
    descents = _Descents(problem, best)
    for crossing in CROSSINGS:
        descents.go_on_from(swap_all(problem, start, crossing))
    rng = np.random.default_rng(0)
    for _ in range(CHANGES):
        first = int(rng.integers(len(best)))
        nodes, device = slice(first, first + int(rng.integers(2, LONGEST))), int(rng.integers(problem.devices))
        changed = descents.best.copy()
        changed[nodes] = np.where(np.isfinite(problem.seconds[nodes, device]), device, changed[nodes])
        descents.go_on_from(changed)
    return descents.best


class _Descents:
    """The best labels of descents, and the work that is left for more."""

    def __init__(self, problem: Problem, best: Labels) -> None:
        self.best = best
        self._problem, self._least, self._left = problem, problem.total(best), WORK

    def go_on_from(self, labels: Labels) -> None:
        """Improve labels, and keep them if they are the best."""
        if self._left <= 0 or np.array_equal(labels, self.best) or not self._problem.fits(labels):
            return
        found, self._left = improved(self._problem, labels, self._left - len(labels))
        cost = self._problem.total(found)
        if cost < self._least * (1 - 1e-12):
            self.best, self._least = found, cost
