"""Rows that lie beside each other and are too few to fill a vector: vectors go over several elements of all of them.

Five rows of 5000 elements, each element beside those of the other rows, are a line of 25000 numbers. Vectors along it
have numbers of all rows, in an order that repeats after some vectors (five, of 16 lanes). There is an accumulator for
each of these; at the end of a pass their lanes of the same row are combined, and the result is put back into all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, is_dense
from heterocc.compiler.lower.cpu.generate.rows.neighbours import Along
from heterocc.compiler.lower.cpu.generate.rows.passes import is_row
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.compiler.lower.cpu.sizes import as_number, is_number

CHAINS = 4
"""The number of accumulators of one period or several, if they fit, so that sums do not wait for each other."""

MOST = 15
"""The limit on accumulators: larger memory would not be on the stack."""

FEWEST_GROUPS = 4
"""The smallest number of times that the accumulators are used for which combining their lanes pays."""

FILLED = 0.8
"""The share of used lanes from which vectors of one element of each row are used."""


def folds(rows: Rows, lanes: int, axis: Axis) -> bool:
    """Whether rows beside each other, along `axis`, are better computed along the line that they form.

    What is read and written of their elements has a number for each place of the line, or one for all.
    """
    if not is_number(axis.length) or not rows.terms:
        return False
    count, terms = as_number(axis.length), rows.extents[rows.terms[-1]]
    narrow = _narrowed(count, lanes)
    if count / (-(-count // narrow) * lanes) >= FILLED or _accumulators(count, lanes) > MOST:
        return False
    if is_number(terms) and terms < _fewest(count, lanes):
        return False
    line = rows.axis((rows.terms[-1], *axis.loops))
    elements = [stage for n, stage in enumerate(rows.stages) if is_row(rows, n)]
    combined = [stage for stage in rows.stages if stage.combined is not None]
    forms = [*rows.reads([*elements, *combined]), *rows.writes(elements)]
    return all(is_dense(line.step(form)) for form in forms)


def _narrowed(count: int, lanes: int) -> int:
    """The lanes of vectors of one element of each row."""
    return min(lanes, 1 << (count.bit_length() - 1))


def _fewest(count: int, lanes: int) -> int:
    """The fewest elements of a row that are better computed along the line."""
    return FEWEST_GROUPS * _accumulators(count, lanes) * lanes // count


def _accumulators(count: int, lanes: int) -> int:
    """The number of vectors of one period of `count` rows, or of several periods."""
    period = count // gcd(count, lanes)
    return period * max(1, CHAINS // period)


class Folded(Along):
    """A generator with vectors along the line of rows beside each other: all of them at a time.

    The last vectors, which would exceed the end of the line, overlap those before; sums exclude repeated elements.
    Rows whose length only the run knows have vectors of one element of each if they are short.
    """

    def __init__(self, rows: Rows, lanes: int, axis: Axis) -> None:
        super().__init__(rows, lanes, axis)
        self.lanes = self.abreast = lanes
        self.number = as_number(axis.length)
        self.vectors = _accumulators(self.number, lanes)
        self.group = self.vectors * lanes // self.number
        """The number of elements of each row in all accumulators together."""
        last = self.terms.pop()
        self.line, self.count = rows.axis((last, *axis.loops)), rows.extents[last]
        self.pitch = self.line.length

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        size = self.pitch * prod(self.rows.extents[n] for n in self.terms)

        def write_row(row: tirx.Expr) -> None:
            outer, lanes = self.outer_place(row), self.lanes

            def along() -> None:
                self.write_passes(arguments, outer, [index(vector * lanes) for vector in range(self.vectors)])

            def short() -> None:
                self.lanes = self.abreast = _narrowed(self.number, lanes)
                self.group = 1
                starts = range(0, self.number, self.lanes)
                self.write_passes(arguments, outer, [index(min(n, self.number - self.lanes)) for n in starts])

            if is_number(self.count):
                along()
            else:
                emit.either(emit.bound(index(self.count)) >= index(_fewest(self.number, lanes)), along, short)

        self.share_rows(self.outer.length, size, write_row)

    def kept_at(self, column: int, start: tirx.Expr) -> tirx.Expr:
        """As in the line: vectors of short rows overlap."""
        del column
        return start

    def row(self, place: tirx.Expr) -> tirx.Expr:
        """The row of a lane: each follows the others again and again."""
        return tirx.floormod(place, index(self.axis.length))

    def give_rows(self, arguments: Arguments, number: int, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Store single values of the rows that are an output: each from the first of its lanes."""
        if self.group == 1:
            super().give_rows(arguments, number, outer, starts)
        elif self.rows.argument(self.rows.stages[number].buffer) is not None:
            for row in range(self.number):
                vector, lane = divmod(row, self.lanes)
                value = self.held[number][vector][index(lane)]
                self.give(arguments, number, value, [*outer, (self.axis, index(row))])

    def over_terms(self, body: Callable[..., None]) -> None:
        """Write `body` for the elements of all accumulators, group by group; the last group repeats some."""
        length, left = self.axis.length, self.count % self.group

        def along(place: Place, line: tirx.Expr) -> None:
            with emit.loop(self.count // self.group) as number:
                body(place, line, number * index(self.group * length))
            if not is_number(left) or left:
                body(place, line, index((self.count - self.group) * length), (self.group - left) * length)

        super().over_terms(along)

    def of_rows(self, number: int, registers: list[tirx.Buffer]) -> list[tirx.Buffer]:
        """The results, of the lanes of each row, in all of these."""
        if self.group == 1:
            return registers
        combined, lanes, count = self.combined(number), self.lanes, self.axis.length
        every = emit.scratch(self.vectors * lanes)
        for vector, register in enumerate(registers):
            emit.put(every, emit.vector(register, index(0), lanes), index(vector * lanes), lanes)
        with emit.loop(count) as row:
            total = emit.register(every[row], 1)
            with emit.loop(self.group - 1) as element:
                other = every[(element + index(1)) * index(count) + row]
                emit.put(total, combined.combine(total[index(0)], other), index(0), 1)
            with emit.loop(self.group) as element:
                build.buffer_store(every, total[index(0)], [element * index(count) + row])
        for vector, register in enumerate(registers):
            emit.put(register, emit.vector(every, index(vector * lanes), lanes), index(0), lanes)
        return registers
