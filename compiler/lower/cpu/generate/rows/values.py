"""Values of stages in generated kernels of rows: computed, loaded again, or kept in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.extremes import unless_empty
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Read, register_of
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, offset, offset_at
from heterocc.compiler.lower.cpu.generate.read import Combination
from heterocc.compiler.lower.cpu.generate.rows.passes import Pass, is_row, is_slow, plan_passes
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.compiler.lower.cpu.sizes import Size, filled, is_number, smaller, typical, with_guards
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, outside_loads

PARALLEL_ELEMENTS = 1 << 16
"""The smallest number of elements, times passes, that is divided among threads; a function counts as `FUNCTION`."""

FUNCTION = 8
TASKS = 64
"""The limit on parts of the rows; each part allocates its memory once."""

SMALLEST, LARGEST = 2.0**-100, 2.0**100
"""Divisors for which multiplication by the reciprocal differs from division by at most one rounding."""


@dataclass
class Spot:
    """The place of a vector, and its values in registers.

    `place` are the loops' values, `column` the number of the vector among neighbouring rows, `stored` the place in the
    memory for stored rows. `kept` are the values in registers, by stage; `rooms` are free registers. Registers have
    what some loads `read` of memory.
    """

    place: Place
    lane: tirx.Expr
    column: int
    stored: tirx.Expr
    rooms: dict[int, tirx.Buffer]
    kept: dict[int, tirx.Buffer] = field(default_factory=dict)
    read: Sequence[Read] = ()


class RowWriter:
    """The base class of both generators. `held` are values of rows: a register per vector of neighbouring rows."""

    any_length = False
    """Whether the axis may be shorter than a vector, if its length is known only at run time."""

    def __init__(self, rows: Rows, lanes: int, axis: Axis) -> None:
        self.rows, self.axis = rows, axis
        self.plan = plan_passes(rows)
        self.kept = [n for n in self.plan.stored if rows.argument(rows.stages[n].buffer) is None]
        self.lanes = lanes if self.any_length and not is_number(axis.length) else filled(lanes, axis.length)
        calls = sum(isinstance(n, Call) for s in rows.stages for n in outside_loads(s.value))
        self.work = math.prod(rows.extents) * (len(self.plan.passes) + FUNCTION * calls)
        inside = set(axis.loops)
        self.terms = [n for n in rows.terms if n not in inside]
        self.outer = rows.axis([n for n in rows.places if n not in inside])
        self.abreast = 1
        """The rows of a vector: 1 if vectors go along a row."""
        self.held: dict[int, list[tirx.Buffer]] = {}
        self.inverted: list[tirx.Buffer] = []
        """The values of rows whose reciprocals are taken, once for all elements."""
        self.ready: set[int] = set()
        self.scratch: dict[int, tirx.Buffer] = {}
        self.homes: dict[int, int] = {}
        """A stage that is stored for later passes in the memory of an output, and the output."""
        reads = [rows.number(load.source) for s in rows.stages for load in loads(s.value)]
        self.shared = [
            n
            for n in range(len(rows.stages))
            if is_row(rows, n)
            and dtype_of(rows.stages[n].buffer) == "float32"
            and (n in self.plan.stored or (reads.count(n) > 1 and is_slow(rows.stages[n])))
        ]

    def share_rows(self, count: Size, size: Size, body: Callable[[tirx.Expr], None]) -> None:
        """Write `body(row)` for `count` rows, divided among threads.

        Each thread has `size` elements of memory for every stage that is stored, except in outputs.
        """
        parallel = typical(self.work) >= PARALLEL_ELEMENTS
        tasks = smaller(count, TASKS) if parallel else 1
        with emit.loop(tasks, "parallel" if parallel else "serial") as task:
            self.scratch = {number: emit.scratch(size) for number in self.kept if number not in self.homes}
            with emit.share_loop(task, tasks, count) as row:
                body(row)

    def outer_place(self, row: tirx.Expr) -> list[tuple[Axis, tirx.Expr]]:
        """The place of a row, by its number: as such if all that is read and written of rows is equally far apart.

        Then no index is divided, and kernels of different numbers of channels have one function.
        """
        forms, outer = self.rows.accesses, self.outer
        apart, guards = with_guards(lambda: all(outer.step(form) is not None for form in forms) or None)
        if apart and not guards:
            return [(outer, row)]
        return self.rows.place(emit.split(outer, row))

    def write_passes(self, arguments: Arguments, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Write the passes over a row, or over the rows whose vectors have these starts."""
        self.held, self.ready = {}, set()
        for step in self.plan.passes:
            self._hold(arguments, step.before, outer, starts)
            self._write_pass(arguments, step, outer, starts)
            self.ready |= set(step.stores)
        self._hold(arguments, self.plan.after, outer, starts)

    def _write_pass(self, arguments: Arguments, step: Pass, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Write a pass, by reciprocals of the row's divisors unless one is very small or large."""
        divisors = [n.b for n in self.computed(step) if isinstance(n, tirx.Div) and isinstance(n.b, TensorLoad)]
        numbers = {self.rows.number(load.source) for load in divisors if dtype_of(load) == "float32"}
        single = self.abreast == 1 and not step.reductions
        found = [registers[0] for number, registers in self.held.items() if single and number in numbers]

        def write(inverted: list[tirx.Buffer]) -> None:
            self.inverted = inverted
            self.write_pass(arguments, step, outer, starts)

        if found:
            sizes = [tirx.abs(register[index(0)]) for register in found]
            plain = tirx.all(*(c for size in sizes for c in (size >= SMALLEST, size <= LARGEST)))
            emit.either(plain, lambda: write(found), lambda: write([]))
        else:
            write([])

    def _hold(self, arguments: Arguments, numbers: Sequence[int], outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Compute single values of the rows."""
        for number in numbers:
            dtype = dtype_of(self.rows.stages[number].buffer)
            registers = [emit.registers(1, self.abreast, dtype) for _ in starts]
            for column, (register, start) in enumerate(zip(registers, starts, strict=True)):
                with emit.loop(self.abreast, "vectorized") as lane:
                    spot = Spot(self.row_place(outer, start + lane), lane, column, index(0), {})
                    build.buffer_store(register, self.value(arguments, number, spot), [lane])
            self.held[number] = registers
            self.give_rows(arguments, number, outer, starts)

    def give_rows(self, arguments: Arguments, number: int, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Store single values of the rows that are an output."""
        if self.rows.argument(self.rows.stages[number].buffer) is None:
            return
        for register, start in zip(self.held[number], starts, strict=True):
            with emit.loop(self.abreast, "vectorized") as lane:
                self.give(arguments, number, register[lane], self.row_place(outer, start + lane))

    def row_place(self, outer: Place, row: tirx.Expr) -> Place:
        """The place of a single value of a row, by its number among those beside each other."""
        del row
        return outer

    def over_terms(self, body: Callable[[list[tuple[Axis, tirx.Expr]], tirx.Expr], None]) -> None:
        """Write `body(place, number)` in a nest of the row's loops other than the vectors' axis."""
        with ExitStack() as stack:
            place: list[tuple[Axis, tirx.Expr]] = []
            number: tirx.Expr = index(0)
            for n in self.terms:
                place += self.rows.place([(n, stack.enter_context(emit.loop(self.rows.extents[n])))])
                number = number * index(self.rows.extents[n]) + place[-1][1]
            body(place, number)

    def rooms(self, vectors: int = 1) -> dict[int, tirx.Buffer]:
        """Registers for values that `vectors` vectors need several times."""
        return {n: emit.registers(vectors, self.lanes) for n in self.shared}

    def write_vector(
        self,
        arguments: Arguments,
        step: Pass,
        spot: Spot,
        totals: dict[int, tirx.Buffer],
        first: int = 0,
        repeated: Size = 0,
    ) -> None:
        """Write one vector of a pass.

        `totals` are the accumulators of reductions, used from lane `first`, which exclude the first `repeated` lanes of
        the vector.
        """
        for number in step.stores:
            self.to_store(arguments, number, self.keep(arguments, number, spot), spot)
        for number, total in totals.items():
            combined = self.combined(number)
            value = self.value(arguments, number, spot)
            if (not is_number(repeated) or repeated) and not math.isinf(combined.start):
                value = tirx.Select(spot.lane >= index(repeated), value, self.start(number))
            place = spot.lane + index(first) if first else spot.lane
            build.buffer_store(total, combined.combine(total[place], value), [place])
        for number in step.outputs:
            self.to_store(arguments, number, self.value(arguments, number, spot), spot)

    def to_store(self, arguments: Arguments, number: int, value: tirx.Expr, spot: Spot) -> None:
        """Store the value of an element in its output or in the memory for stored rows."""
        if number in self.scratch:
            build.buffer_store(self.scratch[number], value, [spot.stored])
        else:
            self.give(arguments, self.homes.get(number, number), value, spot.place)

    def give(self, arguments: Arguments, number: int, value: tirx.Expr, place: Place) -> None:
        """Store a value of an output."""
        stage = self.rows.stages[number]
        where = self.offset(stage.indices, stage.buffer, place)
        build.buffer_store(arguments.flat(stage.buffer), value, [where])

    def offset(self, indices: Sequence[tirx.Expr], buffer: tirx.Buffer, place: Place) -> tirx.Expr:
        """A place in memory."""
        form = offset(indices, buffer, self.rows.loops)
        assert form is not None
        return offset_at(form, place)

    def keep(self, arguments: Arguments, number: int, spot: Spot) -> tirx.Expr:
        """The value of a stage, computed into a register the first time."""
        if number not in spot.kept:
            build.buffer_store(spot.rooms[number], self.value(arguments, number, spot), [spot.lane])
            spot.kept[number] = spot.rooms[number]
        return spot.kept[number][spot.lane]

    def value(self, arguments: Arguments, number: int, spot: Spot) -> tirx.Expr:
        """The value of a stage, or of the term of a reduction."""
        rows = self.rows

        def load(read: TensorLoad) -> tirx.Expr:
            stage = rows.number(read.source)
            if (register := register_of(read, spot.read)) is not None:
                return register[spot.lane]
            if stage is None:
                return arguments.flat(read.source)[self.offset(read.indices, read.source, spot.place)]
            if stage in self.held:
                return self.held[stage][spot.column][spot.lane if self.abreast > 1 else index(0)]
            if stage in spot.kept:
                return spot.kept[stage][spot.lane]
            if stage in self.ready:
                if stage in self.scratch:
                    return self.scratch[stage][spot.stored]
                home = rows.stages[self.homes.get(stage, stage)]
                return arguments.flat(home.buffer)[self.offset(home.indices, home.buffer, spot.place)]
            return self.keep(arguments, stage, spot) if stage in spot.rooms else self.value(arguments, stage, spot)

        def divide(division: tirx.Div) -> tirx.Expr:
            by = division.b
            inverted = isinstance(by, TensorLoad) and any(by.source.same_as(r) for r in self.inverted)
            return division.a * (tirx.const(1.0, "float32") / by) if inverted else division

        rules = [(TensorLoad, load), (tirx.Div, divide)]
        return tvm_ffi.structural_map(rows.stages[number].value, rules, order="post")

    def combined(self, number: int) -> Combination:
        """How a reduction combines its terms."""
        combination = self.rows.stages[number].combined
        assert combination is not None
        return combination

    def start(self, number: int) -> tirx.Expr:
        """The neutral element of a reduction."""
        return tirx.const(self.combined(number).start, "float32")

    def first(self, arguments: Arguments, number: int, spot: Spot) -> tirx.Expr:
        """The initial value of a reduction: the first term of a maximum or minimum, so that it is NaN if all are.

        `spot` is the place of this term, without the row's loops other than the vectors' axis.
        """
        if not self.combined(number).takes_first:
            return self.start(number)
        terms = self.rows.place((n, index(0)) for n in self.terms)
        value = self.value(arguments, number, replace(spot, place=[*spot.place, *terms]))
        return unless_empty([index(self.rows.extents[n]) for n in self.rows.terms], value, self.start(number))

    def computed(self, step: Pass) -> Iterator[tirx.Expr]:
        """The expressions of all stages that a pass computes for each element."""
        rows = self.rows
        open_, seen = [*step.stores, *step.reductions, *step.outputs], set[int]()
        while open_:
            number = open_.pop()
            if number in seen or (number in self.ready and number not in step.stores):
                continue
            seen.add(number)
            for node in outside_loads(rows.stages[number].value):
                yield node
                if isinstance(node, TensorLoad):
                    read = rows.number(node.source)
                    open_ += [read] if read is not None and is_row(rows, read) else []

    def write_pass(self, arguments: Arguments, step: Pass, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Write a pass over a row, or over the rows whose vectors have these starts."""
        raise NotImplementedError
