"""Sharing of memory by buffers, planned by a pure function of sizes and lifetimes.

Shared objects, largest first: each buffer gets the smallest slot that is free for its whole lifetime, or a new one.
Source of the algorithm: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy
by size. Slots rather than offsets, because a device buffer cannot be addressed in the middle.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.frozen import frozen

Array = np.ndarray[Any, Any]

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
    first, last = np.array([[buffers[i].first, buffers[i].last] for i in order], "int64").reshape(-1, 2).T
    alone = _meets_all(first, last)
    slot = np.full(len(buffers), -1)
    sizes: list[int] = []
    shared: list[int] = []  # the slots of the other buffers, and their sizes
    shared_sizes: list[int] = []
    first, last = first[~alone], last[~alone]
    placed = np.full(len(first), -1)  # the places in `shared` of the buffers in `order`
    place = 0
    for index, is_alone in zip(order, alone.tolist(), strict=True):
        size = aligned(buffers[index].nbytes)
        if is_alone:
            slot[index] = len(sizes)
            sizes.append(size)
            continue
        before = slice(0, place)
        met = (first[before] <= last[place]) & (last[before] >= first[place])
        busy = np.zeros(len(shared), bool)
        busy[placed[before][met]] = True
        fits = np.flatnonzero(~busy)
        if fits.size:  # slots are ordered from the largest to the smallest
            smallest = bisect.bisect_left(shared_sizes, -shared_sizes[fits[-1]], key=operator.neg)
            best = int(fits[np.searchsorted(fits, smallest)])
        else:
            best = len(shared)
            shared.append(len(sizes))
            shared_sizes.append(size)
            sizes.append(size)
        placed[place] = best
        slot[index] = shared[best]
        place += 1
    return Slots(tuple(slot.tolist()), tuple(sizes))


def _meets_all(first: Array, last: Array) -> Array:
    """Which lifetimes have a step in common with every other one, as those of a model's inputs do.

    Such a buffer shares its slot with none, and need not be compared with each.
    """
    earlier = np.searchsorted(np.sort(last), first, "left")
    later = len(first) - np.searchsorted(np.sort(first), last, "right")
    found: Array = (earlier == 0) & (later == 0)
    return found
