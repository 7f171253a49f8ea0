"""Vectors of every `stride`th input of a row, loaded where the inputs are, with padding outside the row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index

Together = Callable[[Sequence[tirx.Expr]], tirx.Expr]
"""Puts vectors of several rows together."""


@dataclass(frozen=True)
class Plane:
    """`height` rows of inputs in `flat`, the first of which begins at `first`; `columns` is the window along a row.

    The `padding` outside has one value.
    """

    flat: tirx.Buffer
    first: tirx.Expr
    height: int
    columns: Window
    lanes: int
    padding: float = 0.0

    def row(self, numbers: Sequence[tirx.Expr | int], together: Together) -> Row:
        """Rows of inputs put together; a number that is no int is one for which all that is read is in the plane."""
        lines = [index(number) if isinstance(number, int) else number for number in numbers]
        first, *more = (emit.bound(self.first + line * index(self.columns.size)) for line in lines)
        known = [(self.height - number) * self.columns.size for number in numbers if isinstance(number, int)]
        return Row(self, first, min(known, default=None), more, together)


@dataclass(frozen=True)
class Row:
    """The inputs of a row, which begins at `first`; `left` numbers of its plane follow from there, None if enough.

    They are put `together` with those of rows that begin at `more`.

    What several taps or rows of outputs read is written once, as a variable: TVM's passes visit each occurrence.
    """

    plane: Plane
    first: tirx.Expr
    left: int | None
    more: Sequence[tirx.Expr] = ()
    together: Together = itemgetter(0)
    _known: dict[tuple[Any, ...], tirx.Expr] = field(default_factory=dict)

    def vector(self, start: tirx.Expr | int, tap: int) -> tirx.Expr | None:
        """The inputs that the outputs from column `start` read at a tap of the row; None if all are padding.

        Inputs outside the row are padding. Lanes after the last output are undefined. A `start` that is not an int is
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
        outside = emit.broadcast(tirx.const(self.plane.padding, "float32"), lanes)
        return self._once((begin - before, distance % stride, *order), tirx.Shuffle([taken, outside], order))

    def _every(self, start: tirx.Expr | None, shift: int, phase: int) -> tirx.Expr:
        """Every `stride`th number that outputs from `start` on read, `shift` and `phase` further."""
        lanes = self.plane.lanes
        if self.plane.columns.stride == 1:
            return self._loaded(start, shift)
        pair = [self._loaded(start, shift), self._loaded(start, shift + lanes)]
        return self._once((start, shift, phase), tirx.Shuffle(pair, list(range(phase, 2 * lanes, 2))))

    def _loaded(self, start: tirx.Expr | None, shift: int) -> tirx.Expr:
        if (start, shift) in self._known:
            return self._known[start, shift]
        further = index(0) if start is None else start * index(self.plane.columns.stride)
        places = [first + further + index(shift) for first in (self.first, *self.more)]
        values = [emit.vector(self.plane.flat, place, self.plane.lanes) for place in places]
        return self._once((start, shift), self.together(values) if self.more else values[0])

    def _once(self, key: tuple[Any, ...], value: tirx.Expr) -> tirx.Expr:
        """The variable of a value, which is bound when it is first needed."""
        if key not in self._known:
            self._known[key] = build.bind(value)
        return self._known[key]
