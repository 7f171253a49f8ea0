"""Sums of columns that overlap in an image, the reverse of taking windows out of it: vectors along a row.

Places of a row whose indices have one remainder by the stride are sums over the taps that meet them. A vector of places
for each remainder is computed, and stored number by number in a line of memory, which is copied to the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.generate.spans import in_vectors

ELEMENT = 4
"""The work of an element of the columns, in multiply-adds."""

Meets = Callable[[tirx.Expr, tirx.Expr], None]
"""What is written for a tap that meets a place, and the window that has it there."""


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

    def meeting(self, place: tirx.Expr, body: Meets) -> None:
        """Write `body` in a loop over the taps that meet a place.

        Those whose distance from it is a multiple of the stride lie `stride / gcd(stride, dilation)` apart.
        """
        common = math.gcd(self.stride, self.dilation)
        step = self.stride // common
        inverse = pow(self.dilation // common, -1, step) if step > 1 else 0
        before = emit.bound(place + index(self.before))
        first = emit.bound(tirx.floormod(tirx.floordiv(before, index(common)) * index(inverse), index(step)))
        with emit.loop(-(-self.taps // step)) as number:
            tap = emit.bound(first + number * index(step))
            meets = tirx.all(tap < index(self.taps), tirx.EQ(tirx.floormod(before, index(common)), index(0)))
            with build.If(meets), build.Then():
                body(tap, emit.bound(tirx.floordiv(before - tap * index(self.dilation), index(self.stride))))


def write_overlap_add(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(columns, [bias], image)`: float32 columns [batch, channels, *taps, *windows] of one or two axes.

    The options `stride0`, `dilation0`, `before0` … are those of the axes. The bias has a number for each channel, and
    the function is otherwise that of ONNX's Col2Im.
    """
    batch, channels, *inner = request.shapes[0]
    rank = len(inner) // 2
    taps, counts, places = inner[:rank], inner[rank:], request.shapes[-1][2:]

    def axis(n: int) -> OverlapAxis:
        stride, dilation, before = (request.number(f"{name}{n}") for name in ("stride", "dilation", "before"))
        return OverlapAxis(counts[n], taps[n], stride, dilation, before, places[n])

    axes = list(map(axis, range(rank)))
    rows, across = axes if rank == 2 else (OverlapAxis(1, 1, 1, 1, 0, 1), axes[0])
    _Writer(rows, across, channels, request.isa.narrowed(across.groups).lanes, arguments).write(batch * channels)


class _Writer:
    def __init__(
        self, rows: OverlapAxis, across: OverlapAxis, channels: int, lanes: int, arguments: Sequence[tirx.Buffer]
    ) -> None:
        self.columns, *self.bias, self.image = arguments
        self.rows, self.across, self.channels, self.lanes = rows, across, channels, lanes
        self.vectors = -(-across.groups // lanes)

    def write(self, planes: int) -> None:
        """Write the loops over planes and rows."""
        rows, across = self.rows, self.across
        work = planes * rows.taps * across.taps * rows.count * across.count * ELEMENT
        parts = emit.shares(work, planes, rows.places)
        with emit.shared_loop(planes * parts, work) as task:
            plane, part = emit.unpacked(task, (planes, parts))
            line = emit.scratch(self.vectors * self.lanes * across.stride)
            with emit.share_loop(part, parts, rows.places) as row:
                self._row(line, plane, row)

    def _row(self, line: tirx.Buffer, plane: tirx.Expr, row: tirx.Expr) -> None:
        """Write a row."""
        across, lanes = self.across, self.lanes
        with emit.loop(self.vectors) as vector, emit.loop(across.stride) as remainder:
            start = emit.bound(vector * index(lanes * across.stride) + remainder)
            total = self._total(plane, row, start)
            with emit.loop(lanes) as lane:
                build.buffer_store(line, total[lane], [start + lane * index(across.stride)])
        begin = emit.bound((plane * index(self.rows.places) + row) * index(across.places))
        added = [bias[tirx.floormod(plane, index(self.channels))] for bias in self.bias]

        def move(place: tirx.Expr, width: int) -> None:
            more = (emit.broadcast(number, width) for number in added)
            emit.put(self.image, sum(more, start=emit.vector(line, place, width)), begin + place, width)

        in_vectors(across.places, lanes, move)

    def _total(self, plane: tirx.Expr, row: tirx.Expr, start: tirx.Expr) -> tirx.Buffer:
        """The sums of a vector of places of a row, from `start` on and a stride apart."""
        rows, across, lanes = self.rows, self.across, self.lanes
        total = emit.cleared(1, lanes)

        def add_row(tap_row: tirx.Expr, window_row: tirx.Expr) -> None:
            with build.If(tirx.all(window_row >= index(0), window_row < index(rows.count))), build.Then():
                across.meeting(start, lambda tap, window: add(tap_row, window_row, tap, window))

        def add(tap_row: tirx.Expr, window_row: tirx.Expr, tap: tirx.Expr, window: tirx.Expr) -> None:
            number = (plane * index(rows.taps) + tap_row) * index(across.taps) + tap
            first = (number * index(rows.count) + window_row) * index(across.count) + window
            inside = tirx.all(window >= index(0), window <= index(across.count - lanes))
            kept = mask(window, lanes, across.count)
            emit.either(
                inside,
                lambda: plus(emit.vector(self.columns, first, lanes)),
                lambda: plus(masked_vector(self.columns, first, lanes, kept)),
            )

        def plus(value: tirx.Expr) -> None:
            emit.put(total, emit.vector(total, index(0), lanes) + value, index(0), lanes)

        rows.meeting(row, add_row)
        return total
