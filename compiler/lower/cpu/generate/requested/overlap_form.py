"""Overlapping columns of an image: what a requested sum of them says."""

from __future__ import annotations

from dataclasses import dataclass

from heterocc.compiler.lower.cpu.generate.requested.request import Request

ELEMENT = 4
"""The work of an element of the columns, in multiply-adds."""


@dataclass(frozen=True, slots=True)
class OverlapAxis:
    """One axis of an image: where the elements of `count` windows are added.

    A window has `taps` elements `dilation` apart, and begins `stride` after the one before; the first one begins
    `before` the first of `places`.
    """

    count: int
    taps: int
    stride: int
    dilation: int
    before: int
    places: int

    @property
    def groups(self) -> int:
        """The groups of `stride` places, the last of which may have fewer."""
        return -(-self.places // self.stride)

    def meeting(self, phase: int) -> list[tuple[int, int]]:
        """The taps that meet the place `phase` of group 0, each with the window that has it there.

        Group n meets the windows n further.
        """
        reached = [(tap, phase + self.before - tap * self.dilation) for tap in range(self.taps)]
        return [(tap, start // self.stride) for tap, start in reached if start % self.stride == 0]


@dataclass(frozen=True, slots=True)
class Overlap:
    """The columns of `planes` images, `channels` in each of a batch; vectors of `lanes` places are computed."""

    planes: int
    channels: int
    rows: OverlapAxis
    across: OverlapAxis
    lanes: int

    @property
    def elements(self) -> int:
        """The columns' elements in a plane."""
        rows, across = self.rows, self.across
        return rows.taps * across.taps * rows.count * across.count


def overlap_of(request: Request) -> Overlap:
    """Read a request whose first array is [batch, channels, *taps, *windows], and whose last one is the image."""
    batch, channels, *inner = request.shapes[0]
    rank = len(inner) // 2
    taps, counts, places = inner[:rank], inner[rank:], request.shapes[-1][2:]

    def axis(n: int) -> OverlapAxis:
        stride, dilation, before = (request.number(f"{name}{n}") for name in ("stride", "dilation", "before"))
        return OverlapAxis(counts[n], taps[n], stride, dilation, before, places[n])

    axes = list(map(axis, range(rank)))
    rows, across = axes if rank == 2 else (OverlapAxis(1, 1, 1, 1, 0, 1), axes[0])
    return Overlap(batch * channels, channels, rows, across, request.lanes(across.count))
