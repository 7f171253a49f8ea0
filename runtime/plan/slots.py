"""Sharing of memory by buffers, planned by a pure function of sizes and lifetimes.

Shared objects, largest first: each buffer gets the smallest slot that is free for its whole lifetime, or a new one.
Source of the algorithm: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy
by size. Slots rather than offsets, because a device buffer cannot be addressed in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    def meets(self, other: Lifetime) -> bool:
        """Return whether both are live in a common step."""
        return self.first <= other.last and other.first <= self.last


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
