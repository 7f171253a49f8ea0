"""Generation of kernels of rows, such as softmax: several reductions of the same rows, with maps between.

A row stays in the first-level cache during all its passes. Vectors are along the row, or across neighbouring rows if
these are contiguous in memory. A last vector that would exceed the end starts earlier and overlaps the previous one;
sums exclude repeated elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, offset
from heterocc.compiler.lower.cpu.generate.rows.folded import Folded, folds
from heterocc.compiler.lower.cpu.generate.rows.neighbours import Along, beside_axis
from heterocc.compiler.lower.cpu.generate.rows.passes import Pass
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.compiler.lower.cpu.generate.rows.values import RowWriter, Spot
from heterocc.compiler.lower.cpu.generate.spans import folded
from heterocc.compiler.lower.cpu.sizes import is_number, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of

CHAINS = 4
"""The number of accumulators of a reduction along a row."""

FEWEST = 4
"""The smallest number of neighbouring rows for vectors across them."""

FEWEST_FOLDED = 2
"""The same for vectors over several elements of all of them."""

SMALLEST, LARGEST = 2.0**-100, 2.0**100
"""Divisors for which multiplication by the reciprocal differs from division by at most one rounding."""


def generate_rows(rows: Rows, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written in vectors; None if its accesses are not contiguous along or across rows."""
    beside, axis = beside_axis(rows, isa.lanes), vector_axis(rows)
    few = vector_axis(rows, FEWEST_FOLDED) if axis is None else axis
    writer: RowWriter
    if beside is not None:
        writer = Along(rows, isa.lanes, beside, rows.extents[rows.terms[0]])
    elif few is not None and rows.kinds[few.loops[-1]] != "R" and folds(rows, isa.lanes, few):
        writer = Folded(rows, isa.lanes, few)
    elif axis is None:
        return None
    else:
        across = rows.kinds[axis.loops[-1]] == "R"
        writer = _Across(rows, isa.lanes, axis, masks=isa.has_masks) if across else Along(rows, isa.lanes, axis)
    return emit.written(rows, {}, writer.write), ()


def vector_axis(rows: Rows, fewest_rows: int = FEWEST) -> Axis | None:
    """The axis of vectors: along rows or, if `fewest_rows` neighbouring rows are contiguous, across them; else None."""
    forms = rows.accesses
    for loops, fewest in ((rows.terms, 1), (rows.places, fewest_rows)):
        axis = rows.last_run(loops, forms)
        steps = {axis.step(f) for f in forms}
        if loops and steps <= {0, 1} and 1 in steps and typical(axis.length) >= fewest:
            return axis
    return None


class _Across(RowWriter):
    """A generator with vectors along a row: one row at a time."""

    def __init__(self, rows: Rows, lanes: int, axis: Axis, *, masks: bool) -> None:
        self.masked = masks and not is_number(axis.length)
        super().__init__(rows, lanes, axis, any_length=self.masked)
        self.pitch = -(-axis.length // self.lanes) * self.lanes if self.masked else axis.length
        """The numbers of a stored row; the last vector of it may be only in part in the row."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        length = self.pitch
        for number in self.terms:
            length *= self.rows.extents[number]
        self.homes = self._homes()
        start = [index(0)]
        self.share_rows(self.outer.length, length, lambda n: self.write_passes(arguments, self.outer_place(n), start))

    def _homes(self) -> dict[int, int]:
        """A stage stored for later passes and the output whose memory holds it until it has the output itself.

        The row is then in the cache once, and the memory of the output is fetched while functions are computed.
        """
        rows, outputs = self.rows, self.plan.passes[-1].outputs
        stored = self.kept_rows
        for output in outputs:
            stage = rows.stages[output]
            form = offset(stage.indices, stage.buffer, rows.loops)
            alike = dtype_of(stage.buffer) == "float32" and form is not None and self.axis.step(form) == 1
            if alike and stored and stage.loops == rows.stages[stored[-1]].loops:
                return {stored[-1]: output}
        return {}

    def write_pass(self, arguments: Arguments, step: Pass, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Write a pass over the row."""
        whole, tail = divmod(self.axis.length, self.lanes)
        together = self.calls_function(step)
        few = self.heavy and not step.reductions
        chains = emit.TOGETHER if together else 2 if few else CHAINS
        if is_number(whole):
            # A power of two: LLVM computes functions of vectors of another length one by one.
            chains = min(chains, 1 << max(1, whole).bit_length() - 1 if together else max(1, whole))
        wide = chains if together else 1
        totals = {n: emit.registers(chains, self.lanes) for n in step.reductions}
        for number, total in totals.items():
            spot = Spot([*outer, (self.axis, index(0))], index(0), 0, index(0), {}, {})
            first = build.bind(self.first(arguments, number, spot))
            for chain in range(chains):
                emit.put(total, emit.broadcast(first, self.lanes), index(chain * self.lanes), self.lanes)

        def walk(reciprocals: dict[int, tirx.Buffer]) -> None:
            def terms(place: list[tuple[Axis, tirx.Expr]], line: tirx.Expr) -> None:
                base = line * index(self.pitch)

                end = index(self.axis.length - self.lanes)
                overlaps = not self.masked and (not is_number(tail) or tail > 0)
                last = self._raw(arguments, step, [*outer, *place], end) if overlaps else {}

                def vector(start: tirx.Expr, chain: int, wide: int = 1) -> None:
                    """`wide` vectors from `start`; their terms are added to accumulators from number `chain`."""
                    write(start, chain, wide, 0, {})

                def write(start: tirx.Expr, chain: int, wide: int, repeated: int, kept: dict[int, tirx.Buffer]) -> None:
                    rooms = self.rooms(wide)
                    with emit.loop(wide * self.lanes, "vectorized") as lane:
                        every = [*outer, *place, (self.axis, start + lane)]
                        spot = Spot(every, lane, 0, base + start + lane, rooms, reciprocals, kept)
                        self.write_vector(arguments, step, spot, totals, chain * self.lanes, repeated)

                def masked(start: tirx.Expr) -> None:
                    """The last vector, of which some lanes are beyond the row."""
                    here = [*outer, *place]
                    tail, read = self.tail(arguments, step, here, start)
                    rooms = self.rooms()
                    with emit.loop(self.lanes, "vectorized") as lane:
                        every = [*here, (self.axis, start + lane)]
                        spot = Spot(every, lane, 0, base + start + lane, rooms, reciprocals, read=read, tail=tail)
                        self.write_vector(arguments, step, spot, totals)
                    self.give_tail(arguments, tail, here, start)

                with emit.loop(whole // chains) as number:
                    for chain in range(0, chains, wide):
                        vector(number * index(chains * self.lanes) + index(chain * self.lanes), chain, wide)
                if not is_number(whole):
                    with emit.loop(whole % chains) as rest:
                        vector((index(whole - whole % chains) + rest) * index(self.lanes), 0)
                for rest in range(whole % chains if is_number(whole) else 0):
                    vector(index((whole - whole % chains + rest) * self.lanes), rest)
                if overlaps:
                    write(end, 0, 1, self.lanes - tail, last)
                if self.masked:
                    start = index(whole * self.lanes)
                    with build.If(start < index(self.axis.length)), build.Then():
                        masked(start)

            self.over_terms(terms)

        divisors = self.divisors(step) if not step.reductions else []
        if divisors:
            reciprocals = {n: emit.registers(1, 1) for n in divisors}
            for number, register in reciprocals.items():
                emit.put(register, tirx.const(1.0, "float32") / self.held[number][0][index(0)], index(0), 1)
            values = [self.held[n][0][index(0)] for n in divisors]
            bounds = [tirx.const(b, "float32") for b in (SMALLEST, LARGEST)]
            plain = tirx.all(*(c for v in values for c in (v >= bounds[0], v <= bounds[1])))
            emit.either(plain, lambda: walk(reciprocals), lambda: walk({}))
        else:
            walk({})
        for number, total in totals.items():
            self.held[number] = [folded(total, self.lanes, self.combined(number).combine, chains)]
            self.give_rows(arguments, number, outer, starts)

    def _raw(
        self, arguments: Arguments, step: Pass, place: list[tuple[Axis, tirx.Expr]], start: tirx.Expr
    ) -> dict[int, tirx.Buffer]:
        """The last vector of stages whose memory a pass overwrites: the vector before it overlaps it."""
        held = {}
        for number, output in self.homes.items():
            if output in step.outputs and number in self.ready:
                held[number] = emit.registers(1, self.lanes)
                with emit.loop(self.lanes, "vectorized") as lane:
                    value = self.at_home(arguments, number, [*place, (self.axis, start + lane)])
                    build.buffer_store(held[number], value, [lane])
        return held
