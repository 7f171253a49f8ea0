"""Rows beside each other, in vectors across them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Read, register_of
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, offset
from heterocc.compiler.lower.cpu.generate.rows.passes import Pass, is_row
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.compiler.lower.cpu.generate.rows.values import RowWriter, Spot
from heterocc.compiler.lower.cpu.sizes import Size, assumed, at_least, exceeds, is_number, is_one, larger, same, typical

WIDE = 4
"""The number of vectors of neighbouring rows that are processed together."""

CACHED = 1 << 13
"""The preferred limit on float32 values stored for neighbouring rows."""

MOST_BESIDE = 4
"""The most elements of rows that are shuffled: more are combined in a vector of a row with fewer shuffles."""

_START = index(0)


def beside_axis(rows: Rows, lanes: int) -> Axis | None:
    """The axis of rows of a few elements, which lie one after the other in memory; None if they do not.

    Pairs of real and imaginary parts, coordinates and channels are such rows. All outputs are single values of rows.
    """
    count = rows.extents[rows.terms[0]]
    outputs = [n for n, s in enumerate(rows.stages) if rows.argument(s.buffer) is not None]
    few = len(rows.terms) == 1 and is_number(count) and count <= MOST_BESIDE
    if not few or not rows.places or any(is_row(rows, n) for n in outputs):
        return None
    forms = rows.accesses
    axis, terms = rows.last_run(rows.places, forms), rows.axis(rows.terms)
    steps = {(axis.step(f), terms.step(f)) for f in forms}
    known = (count, 1) in steps and steps <= {(count, 1), (1, 0), (0, 0)}
    return axis if known and assumed(at_least(axis.length, lanes)) else None


class Along(RowWriter):
    """A generator with vectors across neighbouring rows: several at a time, over all elements of the rows.

    The elements of a row may lie `beside` each other, so many of them: vectors of these are shuffled to one of each.
    """

    def __init__(self, rows: Rows, lanes: int, axis: Axis, beside: int = 0) -> None:
        super().__init__(rows, lanes, axis)
        self.abreast = self.lanes
        self.beside = beside
        self.line = axis
        """The axis that vectors go along."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        length = prod(self.rows.extents[n] for n in self.terms)
        vectors = -(-self.axis.length // self.lanes)
        self.wide = min(WIDE, typical(vectors))
        if self.plan.stored:
            self.wide = min(self.wide, max(1, CACHED // (typical(length) * self.lanes)))
        self.tiles = -(-vectors // self.wide)
        self.pitch: Size = self.wide * self.lanes
        self.share_rows(self.outer.length * self.tiles, length * self.pitch, lambda tile: self._tile(arguments, tile))

    def _tile(self, arguments: Arguments, task: tirx.Expr) -> None:
        tiles, lanes = self.tiles, self.lanes
        row = tirx.floordiv(task, index(tiles)) if not is_one(tiles) else task
        tile = tirx.floormod(task, index(tiles)) if not is_one(tiles) else index(0)
        outer = self.outer_place(row)
        starts = [(tile * index(self.wide) + index(v)) * index(lanes) for v in range(self.wide)]
        if exceeds(self.axis.length, lanes * self.wide):
            starts = [tirx.min(start, index(self.axis.length - lanes)) for start in starts]
        self.write_passes(arguments, outer, starts)

    def row_place(self, outer: Place, row: tirx.Expr) -> Place:
        """As of others, along the axis of the rows."""
        return [*outer, (self.axis, self.row(row))]

    def kept_at(self, column: int, start: tirx.Expr) -> tirx.Expr:
        """Where the memory for stored rows has a vector that starts there: its place in the tile."""
        del start
        return index(column * self.lanes)

    def row(self, place: tirx.Expr) -> tirx.Expr:
        """The row of a lane, by its place from the start of the first vector."""
        return place

    def over_terms(self, body: Callable[..., None]) -> None:
        """As of others; elements beside each other are written one by one."""
        if not self.beside:
            super().over_terms(body)
        for number in range(self.beside):
            body(self.rows.place([(self.terms[0], index(number))]), index(number))

    def _separated(self, arguments: Arguments, step: Pass, outer: Place, start: tirx.Expr) -> list[list[Read]]:
        """What a pass reads of elements beside each other: for each of them the loads with their vectors."""
        every: list[list[Read]] = [[] for _ in range(self.beside)]
        loads = [node for node in self.computed(step) if isinstance(node, TensorLoad)] if self.beside else []
        for load in loads:
            form = offset(load.indices, load.source, self.rows.loops)
            if self.rows.argument(load.source) is None or form is None or register_of(load, every[0]) is not None:
                continue
            apart = self.axis.step(form)
            if apart is None or not same(apart, self.beside):
                continue
            flat, lanes = arguments.flat(load.source), self.lanes
            first = [*outer, (self.axis, start), *self.rows.place([(self.terms[0], index(0))])]
            where = self.offset(load.indices, load.source, first)
            together = [build.bind(emit.vector(flat, where + index(n * lanes), lanes)) for n in range(self.beside)]
            for term, reads in enumerate(every):
                order = [lane * self.beside + term for lane in range(lanes)]
                reads.append((load, emit.register(tirx.Shuffle(together, order), lanes)))
        return every

    def write_pass(self, arguments: Arguments, step: Pass, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Write a pass over the rows whose vectors have these starts."""
        separated = [self._separated(arguments, step, outer, start) for start in starts]
        totals = {n: [emit.registers(1, self.lanes) for _ in starts] for n in step.reductions}

        def read(column: int, line: tirx.Expr) -> Sequence[Read]:
            return separated[column][int(line)] if self.beside else ()

        for number, registers in totals.items():
            for column, (register, start) in enumerate(zip(registers, starts, strict=True)):
                with emit.loop(self.lanes, "vectorized") as lane:
                    place = self.row_place(outer, start + lane)
                    stored = self.row(self.kept_at(column, start) + lane)
                    spot = Spot(place, lane, column, stored, {}, read=read(column, index(0)))
                    build.buffer_store(register, self.first(arguments, number, spot), [lane])

        def terms(place: Place, line: tirx.Expr, first: tirx.Expr = _START, repeated: Size = 0) -> None:
            for column in range(repeated // self.lanes if is_number(repeated) else 0, len(starts)):
                rooms = self.rooms()
                with emit.loop(self.lanes, "vectorized") as lane:
                    stored = line * index(self.pitch) + first + self.kept_at(column, starts[column]) + lane
                    every = [*outer, *place, (self.line, first + starts[column] + lane)]
                    spot = Spot(every, lane, column, stored, rooms, read=read(column, line))
                    taken = {n: registers[column] for n, registers in totals.items()}
                    left = larger(0, repeated - column * self.lanes)
                    self.write_vector(arguments, step, spot, taken, repeated=left)

        self.over_terms(terms)
        for number, registers in totals.items():
            self.held[number] = self.of_rows(number, registers)
            self.give_rows(arguments, number, outer, starts)

    def of_rows(self, number: int, registers: list[tirx.Buffer]) -> list[tirx.Buffer]:
        """The result of the row of each lane, from the accumulators of reduction `number`."""
        return registers
