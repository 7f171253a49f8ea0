"""Rows that lie beside each other and are too few to fill a vector: vectors go over several elements of all of them.

Five rows of 5000 elements, each element beside those of the other rows, are a line of 25000 numbers. Vectors along it
have numbers of all rows, in an order that repeats after some vectors (five, of 16 lanes). There is an accumulator for
each of these; at the end of a pass their lanes of the same row are combined, and the result is put back into all.
"""

from __future__ import annotations

from math import gcd, prod

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.places import Axis, index, is_dense
from heterocc.compiler.lower.cpu.generate.rows.passes import Pass, is_row
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.compiler.lower.cpu.generate.rows.values import RowWriter, Spot
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import dtype_of

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
    if not all(map(is_number, rows.extents)) or not rows.terms:
        return False
    count, terms = axis.length, rows.extents[rows.terms[-1]]
    narrow = min(lanes, 1 << (count.bit_length() - 1))
    if count / (-(-count // narrow) * lanes) >= FILLED or _accumulators(count, lanes) > MOST:
        return False
    if terms < FEWEST_GROUPS * _accumulators(count, lanes) * lanes // count:
        return False
    line = rows.axis((rows.terms[-1], *axis.loops))
    elements = [stage for n, stage in enumerate(rows.stages) if is_row(rows, n)]
    combined = [stage for stage in rows.stages if stage.combined is not None]
    forms = [*rows.reads([*elements, *combined]), *rows.writes(elements)]
    return all(is_dense(line.step(form)) for form in forms)


def _accumulators(count: int, lanes: int) -> int:
    """The number of vectors of one period of `count` rows, or of several periods."""
    period = count // gcd(count, lanes)
    return period * max(1, CHAINS // period)


class Folded(RowWriter):
    """A generator with vectors along the line of rows beside each other: all of them at a time.

    The last vectors, which would exceed the end of the line, overlap those before; sums exclude repeated elements.
    """

    def __init__(self, rows: Rows, lanes: int, axis: Axis) -> None:
        super().__init__(rows, lanes, axis)
        self.lanes = lanes
        self.vectors = _accumulators(axis.length, lanes)
        self.group = self.vectors * lanes // axis.length
        """The number of elements of each row in all accumulators together."""
        self.last = self.terms.pop()
        self.line = rows.axis((self.last, *axis.loops))

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        size = self.line.length * prod(self.rows.extents[n] for n in self.terms)
        self.share_rows(self.outer.length, size, lambda place: self._rows(arguments, place))

    def _rows(self, arguments: Arguments, number: tirx.Expr) -> None:
        self.held, self.ready = {}, set()
        outer = [self.single(n, value) for n, value in emit.split(self.outer, number)]
        for step in self.plan.passes:
            self._hold(arguments, step.before, outer)
            self._pass(arguments, step, outer)
            self.ready |= set(step.stores)
        self._hold(arguments, self.plan.after, outer)

    def _hold(self, arguments: Arguments, numbers: tuple[int, ...], outer: list[tuple[Axis, tirx.Expr]]) -> None:
        """Compute single values of the rows."""
        for number in numbers:
            dtype = dtype_of(self.rows.stages[number].buffer)
            registers = [emit.registers(1, self.lanes, dtype) for _ in range(self.vectors)]
            for vector, register in enumerate(registers):
                with emit.loop(self.lanes, "vectorized") as lane:
                    row = tirx.floormod(index(vector * self.lanes) + lane, index(self.axis.length))
                    spot = Spot([*outer, (self.axis, row)], lane, vector, index(0), {}, {})
                    build.buffer_store(register, self.value(arguments, number, spot), [lane])
            self.held[number] = registers
            self._give(arguments, number, outer)

    def _give(self, arguments: Arguments, number: int, outer: list[tuple[Axis, tirx.Expr]]) -> None:
        """Store single values of the rows that are an output."""
        if self.rows.argument(self.rows.stages[number].buffer) is None:
            return
        for row in range(self.axis.length):
            vector, lane = divmod(row, self.lanes)
            value = self.held[number][vector][index(lane)]
            self.give(arguments, number, value, [*outer, (self.axis, index(row))])

    def held_value(self, number: int, spot: Spot) -> tirx.Expr:
        """The value of the row that a lane belongs to."""
        return self.held[number][spot.column][spot.lane]

    def _pass(self, arguments: Arguments, step: Pass, outer: list[tuple[Axis, tirx.Expr]]) -> None:
        lanes, count, terms = self.lanes, self.axis.length, self.rows.extents[self.last]
        totals = {n: [emit.registers(1, lanes) for _ in range(self.vectors)] for n in step.reductions}
        for number, registers in totals.items():
            for vector, register in enumerate(registers):
                with emit.loop(lanes, "vectorized") as lane:
                    row = tirx.floormod(index(vector * lanes) + lane, index(count))
                    spot = Spot([*outer, (self.line, row)], lane, vector, row, {}, {})
                    build.buffer_store(register, self.first(arguments, number, spot), [lane])

        def along(place: list[tuple[Axis, tirx.Expr]], before: tirx.Expr) -> None:
            def group(first: tirx.Expr, repeated: int) -> None:
                """The vectors of all accumulators from element `first` of the line; some may be repeated."""
                for vector in range(repeated // lanes, self.vectors):
                    rooms = self.rooms()
                    with emit.loop(lanes, "vectorized") as lane:
                        element = first + index(vector * lanes) + lane
                        every = [*outer, *place, (self.line, element)]
                        spot = Spot(every, lane, vector, before * index(self.line.length) + element, rooms, {})
                        taken = {n: registers[vector] for n, registers in totals.items()}
                        self.write_vector(arguments, step, spot, taken, 0, max(0, repeated - vector * lanes))

            with emit.loop(terms // self.group) as number:
                group(number * index(self.group * count), 0)
            if terms % self.group:
                group(index((terms - self.group) * count), (self.group - terms % self.group) * count)

        self.over_terms(along)
        for number, registers in totals.items():
            self.held[number] = self._combined(number, registers)
            self._give(arguments, number, outer)

    def _combined(self, number: int, registers: list[tirx.Buffer]) -> list[tirx.Buffer]:
        """The accumulators with the result of each row in all its lanes."""
        combined, lanes, count = self.combined(number), self.lanes, self.axis.length
        every = emit.scratch(self.vectors * lanes)
        for vector, register in enumerate(registers):
            emit.put(every, emit.vector(register, index(0), lanes), index(vector * lanes), lanes)
        with emit.loop(count) as row:
            total = emit.registers(1, 1)
            emit.put(total, every[row], index(0), 1)
            with emit.loop(self.group - 1) as element:
                other = every[(element + index(1)) * index(count) + row]
                emit.put(total, combined.combine(total[index(0)], other), index(0), 1)
            with emit.loop(self.group) as element:
                build.buffer_store(every, total[index(0)], [element * index(count) + row])
        for vector, register in enumerate(registers):
            emit.put(register, emit.vector(every, index(vector * lanes), lanes), index(0), lanes)
        return registers
