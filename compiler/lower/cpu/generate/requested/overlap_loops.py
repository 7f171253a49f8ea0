"""Sums of columns that overlap in an image by so many taps that code for each of them would be too long.

As `overlap_add`, with loops over the remainders by the strides and over the taps that meet them. The taps whose
distance from a place is a multiple of the stride lie `stride / gcd(stride, dilation)` apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.overlap_form import ELEMENT, Overlap, OverlapAxis
from heterocc.compiler.lower.cpu.generate.spans import in_vectors


def write_loops(overlap: Overlap, isa: Isa, arguments: Sequence[tirx.Buffer]) -> None:
    """Write the kernel's body."""
    _LoopWriter(overlap, isa, arguments).write()


class _LoopWriter:
    def __init__(self, overlap: Overlap, isa: Isa, arguments: Sequence[tirx.Buffer]) -> None:
        self.columns, *bias, self.image = arguments
        self.bias = bias[0] if bias else None
        self.overlap = overlap
        # Of vectors that are read by masks, some lanes may be no window.
        self.masks = isa.has_masks
        self.lanes = isa.lanes if self.masks else overlap.lanes
        self.vectors = -(-overlap.across.groups // self.lanes)

    def write(self) -> None:
        """Write the loops over planes and rows: each row is summed in a line of memory, and copied to the image.

        Rows that the same taps meet follow one another: these read neighbouring numbers.
        """
        overlap, rows, across = self.overlap, self.overlap.rows, self.overlap.across
        work = overlap.planes * overlap.elements * ELEMENT
        every = rows.groups * rows.stride
        parts = emit.shares(work, overlap.planes, every)
        with emit.shared_loop(overlap.planes * parts, work) as task:
            plane, part = emit.unpacked(task, (overlap.planes, parts))
            line = emit.scratch(self.vectors * self.lanes * across.stride)
            with emit.share_loop(part, parts, every) as number:
                phase, group = emit.unpacked(number, (rows.stride, rows.groups))
                row = emit.bound(group * index(rows.stride) + phase)
                if every == rows.places:
                    self._row(line, plane, row)
                else:
                    with build.If(row < index(rows.places)), build.Then():
                        self._row(line, plane, row)

    def _row(self, line: tirx.Buffer, plane: tirx.Expr, row: tirx.Expr) -> None:
        rows, across = self.overlap.rows, self.overlap.across
        with emit.loop(across.stride) as remainder:
            self._remainder(line, plane, row, remainder)
        begin = (plane * index(rows.places) + row) * index(across.places)
        added = None if self.bias is None else self.bias[tirx.floormod(plane, index(self.overlap.channels))]

        def move(place: tirx.Expr, width: int) -> None:
            value = emit.vector(line, place, width)
            value = value if added is None else value + emit.broadcast(added, width)
            emit.put(self.image, value, begin + place, width)

        in_vectors(across.places, self.lanes, move)

    def _remainder(self, line: tirx.Buffer, plane: tirx.Expr, row: tirx.Expr, remainder: tirx.Expr) -> None:
        """Sum the places of a row that have one remainder by the stride, to a line of places."""
        rows, across, lanes = self.overlap.rows, self.overlap.across, self.lanes
        with emit.loop(self.vectors) as vector:
            start = vector * index(lanes)
            total = emit.registers(1, lanes)
            emit.put(total, emit.zeros(lanes), index(0), lanes)

            def add(tap_row: tirx.Expr, from_row: tirx.Expr) -> None:
                inside = tirx.all(from_row >= index(0), from_row < index(rows.count))
                with build.If(inside), build.Then():
                    self._meeting(across, remainder, lambda tap, first: take(tap_row, from_row, tap, first))

            def take(tap_row: tirx.Expr, from_row: tirx.Expr, tap: tirx.Expr, first: tirx.Expr) -> None:
                number = (plane * index(rows.taps) + tap_row) * index(across.taps) + tap
                begin = emit.bound((number * index(rows.count) + from_row) * index(across.count))
                first = emit.bound(start + first)
                emit.either(
                    tirx.all(first >= index(0), first <= index(across.count - lanes)),
                    lambda: self._add(total, begin + first),
                    lambda: self._add_windows(total, begin, first),
                )

            self._meeting(rows, row, add)
            with emit.loop(lanes) as lane:
                build.buffer_store(line, total[lane], [(start + lane) * index(across.stride) + remainder])

    @staticmethod
    def _meeting(axis: OverlapAxis, place: tirx.Expr, body: Callable[[tirx.Expr, tirx.Expr], None]) -> None:
        """Write `body(tap, window)` for the taps that meet a place, each with its window."""
        common = math.gcd(axis.stride, axis.dilation)
        step = axis.stride // common
        inverse = pow(axis.dilation // common, -1, step) if step > 1 else 0
        before = emit.bound(place + index(axis.before))
        first = emit.bound(tirx.floormod(tirx.floordiv(before, index(common)) * index(inverse), index(step)))
        with emit.loop(-(-axis.taps // step)) as number:
            tap = emit.bound(first + number * index(step))
            meets = tap < index(axis.taps)
            if common > 1:
                meets = tirx.all(meets, tirx.EQ(tirx.floormod(before, index(common)), index(0)))
            with build.If(meets), build.Then():
                body(tap, emit.bound(tirx.floordiv(before - tap * index(axis.dilation), index(axis.stride))))

    def _add(self, total: tirx.Buffer, start: tirx.Expr) -> None:
        read = emit.vector(self.columns, start, self.lanes)
        emit.put(total, emit.vector(total, index(0), self.lanes) + read, index(0), self.lanes)

    def _add_windows(self, total: tirx.Buffer, begin: tirx.Expr, first: tirx.Expr) -> None:
        """Add the numbers of the windows that exist of those from `first` on."""
        lanes, count = self.lanes, self.overlap.across.count
        if self.masks:
            read = masked_vector(self.columns, begin + first, lanes, mask(first, lanes, count))
            emit.put(total, emit.vector(total, index(0), lanes) + read, index(0), lanes)
            return
        with emit.loop(lanes) as lane:
            there = first + lane
            with build.If(tirx.all(there >= index(0), there < index(count))), build.Then():
                build.buffer_store(total, total[lane] + self.columns[begin + there], [lane])
