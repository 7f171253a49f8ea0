"""Runs of several plans in turns, and the time of a plan from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

BUDGET = 0.5
"""Seconds of timed runs for each plan, unless a run takes longer."""

LEAST, MOST = 5, 40
"""Turns of each plan, after WARM runs that are not counted."""

SETTLE, TURN = 0.002, 0.01
"""Seconds of a turn that are not counted, and that are, one run each at least."""

JUDGED, HOPELESS = 3, 1.5
"""The number of turns after which a plan that is slower than the fastest by this factor has no further ones."""

CLOSE, LONGER = 1.15, 2.0
"""If the second plan takes no more than CLOSE times as long as the fastest, turns go on for LONGER times the limit."""


def undisturbed(times: Sequence[float]) -> float:
    """The time that a tenth of the runs do not exceed: other processes only add time, and may disturb most runs."""
    return sorted(times)[len(times) // 10]


def runs_in_turns(
    runs: Mapping[str, Callable[[], object]],
    budget: float,
    clock: Callable[[], float] = time.perf_counter,
    *,
    limit: float = math.inf,
    between: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """The seconds of runs of each; all take turns, so that slow moments affect all of them.

    Each gets LEAST turns, and more until it has `budget` seconds of counted runs or MOST turns. A turn is a few runs in
    a row, because threads of the one before are still awake, and its data is in the caches: the first are not counted,
    unless a run is longer than a turn. With a `limit` no turn begins after so many seconds of `clock`, except for one
    of each, and plans that are far slower than the fastest, or alone with such, get no further turns; if the two
    fastest are close, the limit is LONGER. `between` is called before each turn.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    start = clock()
    for turn in range(MOST):
        left = [name for name, found in times.items() if turn < LEAST or sum(found) < budget]
        if turn >= JUDGED and limit < math.inf:
            least = min(map(undisturbed, times.values()))
            near = [name for name, found in times.items() if undisturbed(found) < HOPELESS * least]
            left = [name for name in left if name in near] if len(near) > 1 else []
        for name in left:
            if turn and clock() - start > limit * (LONGER if _is_close(times) else 1):
                return times
            between()
            if min(times[name], default=0.0) < TURN:
                _during(runs[name], SETTLE, clock)
            times[name] += _during(runs[name], TURN, clock)
    return times


def _is_close(times: Mapping[str, Sequence[float]]) -> bool:
    """Whether the two fastest plans of those that have times take nearly the same time."""
    first, *others = sorted(undisturbed(found) for found in times.values() if found)
    return bool(others) and others[0] < CLOSE * first


def _during(run: Callable[[], object], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The times of as many runs as fit into so many seconds, at least one."""
    found: list[float] = []
    start = before = clock()
    while not found or before - start < seconds:
        run()
        after = clock()
        found.append(after - before)
        before = after
    return found
