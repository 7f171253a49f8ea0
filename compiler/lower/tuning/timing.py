"""Interleaved timing of kernels by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from heterocc.compiler.lower.backend import Candidate, Run

MARGIN = 0.97
"""The time of a kernel, relative to the model's choice, below which it replaces that; smaller gains may be noise."""

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
    runs = [c.run for c in candidates]
    least = [min(_taken(run, 1, wait, clock) for _ in range(ALONE)) for run in runs]
    counts = [_filling(BATCH, seconds) for seconds in least]
    for turn in range(ROUNDS if sum(least) < LONG else EVEN):
        best = min(least)
        for index, run in enumerate(runs):
            if turn < EVEN or least[index] <= HOPELESS * best:
                least[index] = min(least[index], _taken(run, counts[index], wait, clock))
    return least


def _taken(run: Run, count: int, wait: Run, clock: Callable[[], float]) -> float:
    """The seconds of a launch, of `count` ones in a row."""
    start = clock()
    for _ in range(count):
        run()
    wait()
    return (clock() - start) / count


def _filling(batch: float, seconds: float) -> int:
    return max(1, min(MOST_LAUNCHES, int(batch / max(seconds, 1e-9))))
