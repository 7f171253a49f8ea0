"""Interleaved timing of kernels by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from heterocc.compiler.lower.backend import Candidate, Run

ALONE = 2
"""Launches of each kernel that are timed one by one, to estimate how many fill a batch."""

ROUNDS = 6
EVEN = 2
"""Rounds in which every kernel is timed, as a single slow measurement is not reliable."""

BATCH = 4e-3
"""The approximate duration of a batch of launches in seconds, long compared with the clock and the final wait."""

MOST_LAUNCHES = 200

HOPELESS = 3.0
"""A kernel slower than the fastest by this factor is not timed further."""

LONG = 0.5
"""If a round takes longer than this, in seconds, there are only EVEN rounds."""


def interleaved(
    candidates: Sequence[Candidate], wait: Run, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The least time of each candidate, in seconds.

    Candidates take turns, so that a temporary slowdown of the machine affects all of them.
    """

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
