"""Times of kernels, taken in turns by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from heterocc.compiler.lower.backend import Candidate, Run

ALONE = 2
"""Launches that are timed one by one, to know how many fill a batch."""

ROUNDS = 6
EVEN = 2
"""Rounds that nothing is left out of: one slow turn says nothing of a kernel."""

BATCH = 4e-3
"""Seconds of launches, about, that are timed together: the clock and the last wait are then a small part."""

MOST_LAUNCHES = 200

HOPELESS = 3.0
"""What takes so many times as long as the fastest is timed no further."""

LONG = 0.5
"""Seconds of a round above which there are two rounds only."""


def interleaved(
    candidates: Sequence[Candidate], wait: Run, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The least time of each, in seconds, taken in turns, so that what slows the machine for a while slows all."""

    def taken(run: Run, count: int) -> float:
        start = clock()
        for _ in range(count):
            run()
        wait()
        return (clock() - start) / count

    runs = [c.run for c in candidates]
    least = [min(taken(run, 1) for _ in range(ALONE)) for run in runs]
    counts = [max(1, min(MOST_LAUNCHES, int(BATCH / max(seconds, 1e-9)))) for seconds in least]
    for turn in range(ROUNDS if sum(least) < LONG else EVEN):
        best = min(least)
        for index, run in enumerate(runs):
            if turn < EVEN or least[index] <= HOPELESS * best:
                least[index] = min(least[index], taken(run, counts[index]))
    return least
