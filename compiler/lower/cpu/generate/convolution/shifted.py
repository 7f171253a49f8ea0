"""Vectors of every `stride`th input of a row, loaded where the inputs are, with zeros outside the row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as build

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

    def row(self, number: tirx.Expr | int) -> Row:
        """A row of inputs; a `number` that is not an int is one for which all that is read is inside the plane."""
        line = index(number) if isinstance(number, int) else number
        left = None
        if isinstance(number, int):
            left = (self.height - number) * self.columns.size
        return Row(self, emit.bound(self.first + line * index(self.columns.size)), left)


@dataclass(frozen=True)
class Row:
    """The inputs of a row, which begins at `first`; `left` numbers of its plane follow from there, None if enough.

    What several taps or rows of outputs read is written once, as a variable: TVM's passes visit each occurrence.
    """

    plane: Plane
    first: tirx.Expr
    left: int | None
    _known: dict[tuple[Any, ...], tirx.Expr] = field(default_factory=dict)

    def vector(self, start: tirx.Expr | int, tap: int) -> tirx.Expr | None:
        """The inputs that the outputs from column `start` read at a tap of the row; None if they are all zeros.

        An input outside the row is zero. Lanes after the last output are undefined. A `start` that is not an int is
        one for which all that is read is inside the row.
        """
        columns, lanes, stride = self.plane.columns, self.plane.lanes, self.plane.columns.stride
        shift = tap * columns.dilation - columns.before
        if not isinstance(start, int):
            return self._every(start, shift - shift % stride, shift % stride)
        needed = [(start + lane) * stride + shift for lane in range(min(lanes, columns.places - start))]
        inside = [0 <= column < columns.size for column in needed]
        if not any(inside):
            return None
        reads = lanes * stride
        begin = start * stride + shift - shift % stride
        if not all(inside):
            # The place from which other taps load, too.
            last = -(-(columns.size - reads) // stride) * stride
            begin = min(max(begin, 0), max(last, 0))
        before = 0 if self.left is None else max(0, begin + reads - self.left)
        distance = needed[0] - begin + before
        taken = self._every(None, begin - before, distance % stride)
        steps = distance // stride
        order = [
            lane + steps if 0 <= lane + steps < lanes and (lane >= len(inside) or inside[lane]) else lanes + lane
            for lane in range(lanes)
        ]
        if order == list(range(lanes)):
            return taken
        return self._once((begin - before, distance % stride, *order), tirx.Shuffle([taken, emit.zeros(lanes)], order))

    def _every(self, start: tirx.Expr | None, shift: int, phase: int) -> tirx.Expr:
        """Every `stride`th number that outputs from `start` on read, `shift` and `phase` further."""
        lanes = self.plane.lanes
        if self.plane.columns.stride == 1:
            return self._loaded(start, shift)
        pair = [self._loaded(start, shift), self._loaded(start, shift + lanes)]
        return self._once((start, shift, phase), tirx.Shuffle(pair, list(range(phase, 2 * lanes, 2))))

    def _loaded(self, start: tirx.Expr | None, shift: int) -> tirx.Expr:
        place = self.first if start is None else self.first + start * index(self.plane.columns.stride)
        return self._once((start, shift), emit.vector(self.plane.flat, place + index(shift), self.plane.lanes))

    def _once(self, key: tuple[Any, ...], value: tirx.Expr) -> tirx.Expr:
        """The variable of a value, which is bound when it is first needed."""
        if key not in self._known:
            self._known[key] = build.bind(value)
        return self._known[key]
