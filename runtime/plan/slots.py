"""Sharing of memory by buffers, planned by a pure function of sizes and lifetimes.

Shared objects, largest first: each buffer gets the smallest slot that is free for its whole lifetime, or a new one.
Source of the algorithm: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy
by size. Slots rather than offsets, because a device buffer cannot be addressed in the middle.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence

import numpy as np

from heterocc.artifacts.frozen import frozen

ALIGNMENT = 64
"""The alignment in bytes at which TVM and ONNX Runtime use a tensor without a copy."""


@frozen
class Lifetime:
    """A buffer of `nbytes` that is written in step `first` and read for the last time in step `last`, both included."""

    nbytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"a buffer of {self.nbytes} bytes")
        if self.last < self.first:
            raise ValueError(f"a buffer that is read in step {self.last}, before it is written in step {self.first}")


@frozen
class Slots:
    """The slots of buffers: `slot[i]` is buffer i's index into `sizes` (bytes, multiples of ALIGNMENT)."""

    slot: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The total size of all slots in bytes."""
        return sum(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The byte offset of each slot if they are contiguous."""
        offsets: list[int] = []
        total = 0
        for size in self.sizes:
            offsets.append(total)
            total += size
        return tuple(offsets)


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to ALIGNMENT; at least ALIGNMENT, so that an empty tensor has a distinct address."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


def plan_slots(buffers: Sequence[Lifetime], *, reuse: bool = True) -> Slots:
    """Assign a slot to every buffer; buffers that are live in a common step never share one.

    Without `reuse` no buffers share a slot, so that all values can be read after a run.
    """
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].first, i))
    if not reuse:
        places = {index: place for place, index in enumerate(order)}
        return Slots(tuple(places[i] for i in range(len(buffers))), tuple(aligned(buffers[i].nbytes) for i in order))
    slot = np.full(len(buffers), -1)
    sizes: list[int] = []
    first, last = np.array([[buffers[i].first, buffers[i].last] for i in order], "int64").reshape(-1, 2).T
    placed = np.full(len(buffers), -1)  # the slots of the buffers in `order`
    for place, index in enumerate(order):
        before = slice(0, place)
        met = (first[before] <= last[place]) & (last[before] >= first[place])
        busy = np.zeros(len(sizes), bool)
        busy[placed[before][met]] = True
        fits = np.flatnonzero(~busy)
        if fits.size:  # slots are ordered from the largest to the smallest
            smallest = bisect.bisect_left(sizes, -sizes[fits[-1]], key=operator.neg)
            best = int(fits[np.searchsorted(fits, smallest)])
        else:
            best = len(sizes)
            sizes.append(aligned(buffers[index].nbytes))
        placed[place] = slot[index] = best
    return Slots(tuple(slot.tolist()), tuple(sizes))
