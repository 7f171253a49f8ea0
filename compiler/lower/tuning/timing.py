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

SHORT_LIMIT = 0.04
"""The time in seconds of all rounds of `brief`, unless single launches take longer."""

SHORT_BATCH = 2e-4
MOST_SHORT_ROUNDS = 60
"""The approximate duration of a batch of `brief`, and the limit on its rounds."""


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


def brief(candidates: Sequence[Candidate], wait: Run, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """As `interleaved`, within SHORT_LIMIT: many short batches instead of few long ones, as some find the machine idle.

    If there is not enough time for EVEN rounds, the result has the first candidate's time for all, and none is faster.
    """
    end = clock() + SHORT_LIMIT
    runs = [c.run for c in candidates]
    least = [min(_taken(run, 1, wait, clock) for _ in range(ALONE)) for run in runs]
    counts = [_filling(SHORT_BATCH, seconds) for seconds in least]
    rounds = 0
    spent = sum(seconds * count for seconds, count in zip(least, counts, strict=True))
    while rounds < MOST_SHORT_ROUNDS and clock() + spent <= end:
        rounds += 1
        for index, run in enumerate(runs):
            least[index] = min(least[index], _taken(run, counts[index], wait, clock))
    return least if rounds >= EVEN else [least[0]] * len(least)


def _taken(run: Run, count: int, wait: Run, clock: Callable[[], float]) -> float:
    """The seconds of a launch, of `count` ones in a row."""
    start = clock()
    for _ in range(count):
        run()
    wait()
    return (clock() - start) / count


def _filling(batch: float, seconds: float) -> int:
    return max(1, min(MOST_LAUNCHES, int(batch / max(seconds, 1e-9))))
