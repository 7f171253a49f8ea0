"""Generation of kernels of rows, such as softmax: several reductions of the same rows, with maps between.

A row stays in the first-level cache during all its passes. Vectors are along the row, or across neighbouring rows if
these are contiguous in memory. A last vector that would exceed the end starts earlier and overlaps the previous one;
sums exclude repeated elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx
from tvm.ir import Call
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.rows.folded import Folded, folds
from heterocc.compiler.lower.cpu.generate.rows.neighbours import Along, beside_axis
from heterocc.compiler.lower.cpu.generate.rows.passes import Pass
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.compiler.lower.cpu.generate.rows.values import RowWriter, Spot
from heterocc.compiler.lower.cpu.generate.spans import folded
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of

CHAINS = 4
"""The number of accumulators of a reduction along a row."""

FEWEST = 2
"""The smallest number of neighbouring rows for vectors across them, or over several elements of all of them."""


def generate_rows(rows: Rows, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written in vectors; None if its accesses are not contiguous along or across rows."""
    beside, axis = beside_axis(rows, isa.lanes), vector_axis(rows)
    writer: Along | _Across
    if beside is not None:
        writer = Along(rows, isa.lanes, beside, as_number(rows.extents[rows.terms[0]]))
    elif axis is None:
        return None
    elif rows.kinds[axis.loops[-1]] == "R":
        writer = _Across(rows, isa.lanes, axis)
    else:
        writer = (Folded if folds(rows, isa.lanes, axis) else Along)(rows, isa.lanes, axis)
    return emit.written(rows, {}, writer.write), ()


def vector_axis(rows: Rows) -> Axis | None:
    """The axis of vectors: along rows or, if several neighbouring rows are contiguous, across them; else None."""
    forms = rows.accesses
    for loops, fewest in ((rows.terms, 1), (rows.places, FEWEST)):
        axis = rows.last_run(loops, forms)
        steps = {axis.step(f) for f in forms}
        if loops and steps <= {0, 1} and 1 in steps and typical(axis.length) >= fewest:
            return axis
    return None


class _Across(RowWriter):
    """A generator with vectors along a row: one row at a time; number by number if a row of any size has fewer."""

    any_length = True

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        length = prod((self.rows.extents[n] for n in self.terms), start=self.axis.length)
        start, lanes = [index(0)], self.lanes
        overlaps = not is_number(self.axis.length) or self.axis.length % lanes
        for stored, output in zip(self.kept[-1:], self.plan.passes[-1].outputs[-1:], strict=False):
            # The row is in the cache once, and the output's memory is fetched while functions are computed.
            if not overlaps and dtype_of(self.rows.stages[output].buffer) == "float32":
                self.homes = {stored: output}

        def write_row(row: tirx.Expr) -> None:
            outer = self.outer_place(row)

            def with_lanes(count: int) -> None:
                self.lanes = count
                self.write_passes(arguments, outer, start)

            if is_number(self.axis.length):
                with_lanes(lanes)
            else:
                fits = emit.bound(index(self.axis.length)) >= index(lanes)
                emit.either(fits, lambda: with_lanes(lanes), lambda: with_lanes(1))

        self.share_rows(self.outer.length, length, write_row)

    def write_pass(self, arguments: Arguments, step: Pass, outer: Place, starts: Sequence[tirx.Expr]) -> None:
        """Write a pass over the row."""
        whole, tail = self.axis.length // self.lanes, self.axis.length % self.lanes
        together = any(isinstance(node, Call) for node in self.computed(step))
        chains = emit.TOGETHER if together else CHAINS
        if is_number(whole):
            # A power of two: LLVM computes functions of vectors of another length one by one.
            chains = min(chains, 1 << max(1, whole).bit_length() - 1 if together else max(1, whole))
        wide = chains if together else 1
        totals = {n: emit.registers(chains, self.lanes) for n in step.reductions}
        for number, total in totals.items():
            spot = Spot([*outer, (self.axis, index(0))], index(0), 0, index(0), {})
            first = build.bind(self.first(arguments, number, spot))
            for chain in range(chains):
                emit.put(total, emit.broadcast(first, self.lanes), index(chain * self.lanes), self.lanes)

        def terms(place: list[tuple[Axis, tirx.Expr]], line: tirx.Expr) -> None:
            base = line * index(self.axis.length)

            def vector(start: tirx.Expr, chain: int, wide: int = 1, repeated: Size = 0) -> None:
                """`wide` vectors from `start`; their terms are added to accumulators from number `chain`."""
                rooms = self.rooms(wide)
                with emit.loop(wide * self.lanes, "vectorized") as lane:
                    spot = Spot([*outer, *place, (self.axis, start + lane)], lane, 0, base + start + lane, rooms)
                    self.write_vector(arguments, step, spot, totals, chain * self.lanes, repeated)

            with emit.loop(whole // chains) as number:
                for chain in range(0, chains, wide):
                    vector(number * index(chains * self.lanes) + index(chain * self.lanes), chain, wide)
            if not is_number(whole):
                with emit.loop(whole % chains) as rest:
                    vector((index(whole - whole % chains) + rest) * index(self.lanes), 0)
            for rest in range(whole % chains if is_number(whole) else 0):
                vector(index((whole - whole % chains + rest) * self.lanes), rest)
            if self.lanes > 1 and (not is_number(tail) or tail):
                vector(index(self.axis.length - self.lanes), 0, repeated=self.lanes - tail)

        self.over_terms(terms)
        for number, total in totals.items():
            self.held[number] = [folded(total, self.lanes, self.combined(number).combine, chains)]
            self.give_rows(arguments, number, outer, starts)
