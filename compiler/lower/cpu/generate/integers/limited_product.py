"""Products of 8-bit integers by weights that are limited, and by what is left of these, on x86 without AVX512-VNNI.

Their numbers are read as bytes, four terms by one instruction, in place of two terms in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.integers.dot import dot, dot_limited, has_limited, numbers
from heterocc.compiler.lower.cpu.generate.integers.limited import LimitedPanels, limited_panels, steps_of
from heterocc.compiler.lower.cpu.generate.integers.product import (
    IntegerProduct,
    ProductWriter,
    find_integer_product,
)
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, at, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run

_SPARE = 3
"""Registers for products, the numbers of another group, and the ones that add up products."""


def generate_limited_product(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[LimitedPanels, ...]] | None:
    """The kernel written as a product by limited weights, None if it is not one or if that takes more instructions."""
    if not has_limited(isa):
        return None
    found = find_integer_product(kernel)
    if found is None or found.columns.length < isa.lanes:
        return None
    steps = steps_of([a.length for a in found.segments], [a.step(found.data) for a in found.segments])
    if steps is None:
        return None
    writer = LimitedWriter(kernel, found, isa)
    panels = limited_panels(writer.panels, isa.weights_of(writer.panels.argument), steps)
    if panels is None:
        return None
    writer.limited = panels
    return emit.written(kernel, {panels.argument: panels.size}, writer.write), (panels,)


class LimitedWriter(ProductWriter):
    """Writes a product by `limited` weights: for each tile those, then what is left of its vectors."""

    limited: LimitedPanels

    def __init__(self, kernel: Kernel, found: IntegerProduct, isa: Isa) -> None:
        spared = replace(isa, registers=isa.registers - _SPARE, dot="limited")
        super().__init__(kernel, found, spared.decided)
        self.isa = replace(isa, dot="limited")

    def add_terms(
        self, arguments: Arguments, place: Place, panel: tuple[Run, tirx.Expr], sums: list[tirx.Buffer], rows: int
    ) -> None:
        """Add up all terms of a tile."""
        super().add_terms(arguments, place, panel, sums, rows)
        if self.limited.capacity:
            self._add_left(arguments, place, panel[1], sums, rows)

    def add_segment(
        self, arguments: Arguments, start: tirx.Expr, base: tirx.Expr, sums: list[tirx.Buffer], rows: int
    ) -> None:
        """Add up the terms of a segment: those of several groups at a time, then what is left."""
        panels, depth = self.panels, self.limited.depth
        whole, more = divmod(panels.terms, panels.group)
        if whole // depth:
            with emit.loop(whole // depth) as several:
                self._step(arguments, start, base, sums, rows, several * index(depth), [panels.group] * depth)
        for group in range(whole // depth * depth, whole):
            self._step(arguments, start, base, sums, rows, index(group), [panels.group])
        if more:
            self._step(arguments, start, base, sums, rows, index(whole), [more])

    def _step(
        self,
        arguments: Arguments,
        start: tirx.Expr,
        base: tirx.Expr,
        sums: list[tirx.Buffer],
        rows: int,
        first: tirx.Expr,
        counts: list[int],
    ) -> None:
        """Add the products of neighbouring groups, with as many terms as `counts` says."""
        panels, lanes = self.panels, self.isa.lanes
        weights = arguments.flat(self.kernel.function.params[panels.argument])
        pitch = self.found.rows.step(self.found.data) or 0
        size = lanes * panels.group

        def places(column: int) -> list[tirx.Expr]:
            return [
                base + ((first + index(n)) * index(len(sums)) + index(column)) * index(size) for n in range(len(counts))
            ]

        with emit.loop(rows, "unroll") as row:
            where = start + row * index(pitch) + first * index(panels.group)
            given = [
                numbers(self.data, where + index(n * panels.group), count, self.isa) for n, count in enumerate(counts)
            ]
            for column, buffer in enumerate(sums):
                columns = [emit.vector(weights, place, size) for place in places(column)]
                total = emit.vector(buffer, row * index(lanes), lanes)
                pairs = list(zip(given, columns, strict=True))
                emit.put(buffer, dot_limited(total, pairs, self.isa), row * index(lanes), lanes)

    def _add_left(
        self, arguments: Arguments, place: Place, number: tirx.Expr, sums: list[tirx.Buffer], rows: int
    ) -> None:
        """Add the products of what is left of the vectors of a tile, of which `number` is the first."""
        found, lanes, limited = self.found, self.isa.lanes, self.limited
        weights = arguments.flat(self.kernel.function.params[self.panels.argument])
        pitch = found.rows.step(found.data) or 0
        start = at(found.data, [*place, *((axis, index(0)) for axis in found.segments)])
        assert start is not None

        def word(place: int, number: tirx.Expr) -> tirx.Expr:
            where = index(place) + number * index(4)
            return tirx.Cast("int64", tirx.reinterpret("int32", emit.vector(weights, where, 4)))

        def entry_of(vector: tirx.Expr) -> tirx.Expr:
            return emit.bound(tirx.min(word(self.panels.size, vector), index(limited.capacity)))

        for column, buffer in enumerate(sums):
            vector = number + index(column)
            with build.serial(entry_of(vector), entry_of(vector + index(1))) as entry:
                offset = emit.bound(word(limited.left_offsets, entry))
                weight = index(limited.left_weights) + entry * index(lanes * self.panels.group)
                with emit.loop(rows, "unroll") as row:
                    where = start + row * index(pitch) + offset
                    total = emit.vector(buffer, row * index(lanes), lanes)
                    added = dot(
                        total, numbers(self.data, where, self.panels.group, self.isa), weights, weight, self.isa
                    )
                    emit.put(buffer, added, row * index(lanes), lanes)
