"""Vectors of every `stride`th input of a row, loaded where the inputs are, with zeros outside the row."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index


@dataclass(frozen=True)
class Plane:
    """`height` rows of inputs in `flat`, the first of which begins at `first`; `columns` is the window along a row."""

    flat: tirx.Buffer
    first: tirx.Expr
    height: int
    columns: Window
    lanes: int

    @property
    def reads(self) -> int:
        """The number of consecutive inputs that a vector is taken from."""
        return self.lanes * self.columns.stride

    def vector(self, row: tirx.Expr | int, start: tirx.Expr | int, tap: int) -> tirx.Expr | None:
        """The inputs that the outputs from column `start` read at a tap of the row; None if they are all zeros.

        An input outside the row is zero. Lanes after the last output are undefined. A `row` or a `start` that is not
        an int is one for which all that is read is inside the plane, or inside the row.
        """
        columns, lanes, stride = self.columns, self.lanes, self.columns.stride
        shift = tap * columns.dilation - columns.before
        if not isinstance(start, int):
            begin = start * index(stride) + index(shift - shift % stride)
            return self._every(self._line(row) + begin, shift % stride)
        needed = [(start + lane) * stride + shift for lane in range(min(lanes, columns.places - start))]
        inside = [0 <= column < columns.size for column in needed]
        if not any(inside):
            return None
        begin = start * stride + shift - shift % stride
        if not all(inside):
            # The place from which other taps load, too.
            last = -(-(columns.size - self.reads) // stride) * stride
            begin = min(max(begin, 0), max(last, 0))
        before = 0
        if isinstance(row, int):
            before = max(0, row * columns.size + begin + self.reads - self.height * columns.size)
        distance = needed[0] - begin + before
        taken = self._every(self._line(row) + index(begin - before), distance % stride)
        steps = distance // stride
        order = [
            lane + steps if 0 <= lane + steps < lanes and (lane >= len(inside) or inside[lane]) else lanes + lane
            for lane in range(lanes)
        ]
        if order == list(range(lanes)):
            return taken
        return tirx.Shuffle([taken, emit.zeros(lanes)], order)

    def _line(self, row: tirx.Expr | int) -> tirx.Expr:
        number = index(row) if isinstance(row, int) else row
        return self.first + number * index(self.columns.size)

    def _every(self, begin: tirx.Expr, phase: int) -> tirx.Expr:
        """Every `stride`th number from `begin`, `phase` further."""
        lanes = self.lanes
        if self.columns.stride == 1:
            return emit.vector(self.flat, begin, lanes)
        pair = [emit.vector(self.flat, begin, lanes), emit.vector(self.flat, begin + index(lanes), lanes)]
        return tirx.Shuffle(pair, list(range(phase, 2 * lanes, 2)))
