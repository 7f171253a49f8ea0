"""Plans which buffers may share memory: a pure function of sizes and lifetimes.

Shared objects, largest first: each buffer takes the smallest slot that is free for its whole life, or opens a new one.
Source of the algorithm: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy
by size. Slots rather than offsets, because a device buffer cannot be addressed in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes. What TVM and ONNX Runtime want of a tensor's address to use it without a copy."""


@dataclass(frozen=True, slots=True)
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

    def meets(self, other: Lifetime) -> bool:
        """Whether both are alive in some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Slots:
    """Where each buffer lies: `slot[i]` is buffer i's index into `sizes` (bytes, multiples of ALIGNMENT)."""

    slot: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return sum(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each slot when they lie one after the other."""
        offsets: list[int] = []
        total = 0
        for size in self.sizes:
            offsets.append(total)
            total += size
        return tuple(offsets)


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to ALIGNMENT; at least ALIGNMENT, so that an empty tensor has an address of its own."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


def plan_slots(buffers: Sequence[Lifetime], *, reuse: bool = True) -> Slots:
    """Assign every buffer a slot; two buffers that are alive in one step never share one.

    With `reuse` off every buffer has a slot of its own, so that all values can be read after a run.
    """
    slot = [-1] * len(buffers)
    sizes: list[int] = []
    tenants: list[list[Lifetime]] = []
    for index in sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].first, i)):
        buffer = buffers[index]
        fits = (s for s in range(len(sizes)) if not any(buffer.meets(t) for t in tenants[s]))
        best = min(fits, key=lambda s: (sizes[s], s), default=None) if reuse else None
        if best is None:
            best = len(sizes)
            sizes.append(aligned(buffer.nbytes))
            tenants.append([])
        tenants[best].append(buffer)
        slot[index] = best
    return Slots(tuple(slot), tuple(sizes))
