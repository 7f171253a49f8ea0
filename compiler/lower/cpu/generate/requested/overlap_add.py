"""Sums of columns that overlap in an image, the reverse of taking windows out of it: vectors along a row.

Places of a row whose indices have one remainder by the stride are sums over the taps that meet them. A vector of places
for each remainder is computed, and these are put together element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.shifted import Plane, Row
from heterocc.compiler.lower.cpu.generate.maps.interleaves import interleaved
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.overlap_form import ELEMENT, Overlap, overlap_of
from heterocc.compiler.lower.cpu.generate.requested.overlap_loops import write_loops
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.generate.spans import in_vectors

MOST_SHUFFLED = 4
"""The limit on vectors that are put together by shuffles; of more, every element is stored on its own."""

MOST_TAPS = 400
"""The limit on taps that have code of their own: LLVM takes a quarter of a second for 256, and a minute for 4096."""

Start: TypeAlias = "tirx.Expr | int"
"""A first group of places: an int if code is written for this one only."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the image: place `phase` of a group of rows of a plane, which begins at `begin`."""

    plane: tirx.Expr
    group: tirx.Expr
    phase: int
    begin: tirx.Expr
    bias: tirx.Expr | None


def write_overlap_add(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(columns, [bias], image)`: float32 columns [batch, channels, *taps, *windows] of one or two axes.

    The options `stride0`, `dilation0`, `before0` … are those of the axes. The bias has a number for each channel, and
    the function is otherwise that of ONNX's Col2Im.
    """
    overlap = overlap_of(request)
    if overlap.rows.taps * overlap.across.taps > MOST_TAPS:
        write_loops(overlap, request.isa, arguments)
    else:
        _Writer(overlap, arguments).write()


class _Writer:
    def __init__(self, overlap: Overlap, arguments: Sequence[tirx.Buffer]) -> None:
        self.columns, *bias, self.image = arguments
        self.bias = bias[0] if bias else None
        self.overlap = overlap
        self.rows, self.across, self.lanes = overlap.rows, overlap.across, overlap.lanes
        self.step = self.lanes * self.across.stride

    def write(self) -> None:
        """Write the kernel's body."""
        rows, across, planes = self.rows, self.across, self.overlap.planes
        with emit.shared_loop(planes, planes * self.overlap.elements * ELEMENT) as plane:
            channel = tirx.floormod(plane, index(self.overlap.channels))
            bias = None if self.bias is None else build.bind(self.bias[channel])
            with emit.loop(rows.groups) as group:
                for phase in range(rows.stride):
                    number = emit.bound(group * index(rows.stride) + index(phase))
                    begin = (plane * index(rows.places) + number) * index(across.places)
                    if (rows.groups - 1) * rows.stride + phase < rows.places:
                        self._row(_Row(plane, group, phase, build.bind(begin), bias))
                    else:
                        with build.If(number < index(rows.places)), build.Then():
                            self._row(_Row(plane, group, phase, build.bind(begin), bias))

    def _row(self, row: _Row) -> None:
        """Write a row: vectors of each remainder in a loop where they read inside the columns, the others one by one.

        The last vectors overlap others if all groups are whole.
        """
        across, lanes = self.across, self.lanes
        windows = [window for phase in range(across.stride) for _, window in across.meeting(phase)] or [0]
        whole = across.places // self.step
        low = min(whole, max(0, -(min(windows) // lanes)))
        high = max(low, min(whole, (across.count - max(windows)) // lanes))
        for vector in range(low):
            self._vectors(row, vector * lanes, self.step)
        if high > low:
            with emit.loop(high - low) as number:
                self._vectors(row, emit.bound((number + index(low)) * index(lanes)), self.step)
        for vector in range(high, whole):
            self._vectors(row, vector * lanes, self.step)
        left = across.places - whole * self.step
        if left and whole and across.places % across.stride == 0:
            self._vectors(row, across.groups - lanes, self.step)
        elif left:
            self._vectors(row, whole * lanes, left)

    def _vectors(self, row: _Row, start: Start, count: int) -> None:
        """Write `count` places of a row from group `start` on."""
        sums = self._sums(row, start)
        stride, lanes = self.across.stride, self.lanes
        begin = index(start * stride) if isinstance(start, int) else emit.bound(start * index(stride))
        if count == self.step and stride <= MOST_SHUFFLED:
            whole = [emit.vector(total, index(0), lanes) for total in sums]
            for part in range(stride):
                value = interleaved(whole, lanes, part) if stride > 1 and lanes > 1 else whole[part]
                self._put(row, value, begin + index(part * lanes), lanes)
            return
        line = emit.scratch(self.step)
        for remainder, total in enumerate(sums):
            with emit.loop(lanes) as lane:
                build.buffer_store(line, total[lane], [lane * index(stride) + index(remainder)])

        def move(place: tirx.Expr, width: int) -> None:
            self._put(row, emit.vector(line, place, width), begin + place, width)

        in_vectors(count, min(lanes, 1 << count.bit_length() - 1), move)

    def _put(self, row: _Row, value: tirx.Expr, place: tirx.Expr, lanes: int) -> None:
        if row.bias is not None:
            value = value + emit.broadcast(row.bias, lanes)
        emit.put(self.image, value, row.begin + place, lanes)

    def _sums(self, row: _Row, start: Start) -> list[tirx.Buffer]:
        """The sums of a vector of places for each remainder by the stride: those from group `start` on."""
        rows, across, lanes = self.rows, self.across, self.lanes
        sums = [emit.registers(1, lanes) for _ in range(across.stride)]
        for total in sums:
            emit.put(total, emit.zeros(lanes), index(0), lanes)
        line = Window(across.count, 0, 1, 1, 1, across.groups)
        for tap_row, first in rows.meeting(row.phase):
            source = emit.bound(row.group + index(first))
            with build.If(tirx.all(source >= index(0), source < index(rows.count))), build.Then():
                for remainder, total in enumerate(sums):
                    for tap, window in across.meeting(remainder):
                        number = (row.plane * index(rows.taps) + index(tap_row)) * index(across.taps) + index(tap)
                        begin = build.bind((number * index(rows.count) + source) * index(across.count))
                        read = Row(Plane(self.columns, begin, 1, line, lanes), begin, across.count)
                        value = read.vector(start, window)
                        if value is not None:
                            emit.put(total, emit.vector(total, index(0), lanes) + value, index(0), lanes)
        return sums
