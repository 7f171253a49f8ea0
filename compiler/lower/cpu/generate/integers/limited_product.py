"""Products of 8-bit integers by weights that are limited, and by what is left of these, on x86 without AVX512-VNNI.

Their numbers are read as bytes, four terms by one instruction, in place of two terms in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.integers.byte_product import ByteWriter, find_integer_product
from heterocc.compiler.lower.cpu.generate.integers.limited import (
    GROUP,
    LimitedPanels,
    groups_left,
    room_for,
)
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, index, offset_at
from heterocc.compiler.lower.cpu.generate.products.product_form import Product
from heterocc.compiler.lower.cpu.generate.products.product_reads import Panel
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import has_limited
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import as_number

_SPARE = 3
"""Registers for products, the numbers of another group, and the ones that add up products."""

_COSTS = {2: 2.5, 1: 3.0}
"""Instructions for a group of four terms, a row and a vector, by depth."""
_LEFT_COST = 3.4


def propose_limited_product(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a product by limited weights: with sums of the products of two groups, or of one."""
    product = find_integer_product(kernel) if has_limited(isa) else None
    if product is None or as_number(product.columns.length) < isa.lanes or as_number(product.terms.length) < GROUP:
        return
    steps = tuple((as_number(a.length), as_number(a.stride(product.numbers.form))) for a in product.segments)
    isa = replace(isa, registers=isa.registers - _SPARE, dot="limited")
    panels = ByteWriter(kernel, product, isa).panels
    for depth in _COSTS:
        left = [groups_left(panels, array, depth) for array in isa.weights_of(panels.argument)]
        if left:
            limited = LimitedPanels(panels, depth, room_for(max(left)), steps)
            writer = LimitedWriter(kernel, product, isa, limited)

            def as_proposed(_: Isa, writer: LimitedWriter = writer) -> LimitedWriter:
                return writer

            yield Candidate("limited product", writer.cycles, as_proposed, f"of {depth}")


class LimitedWriter(ByteWriter):
    """Writes a product by `limited` weights: for each tile those, then what is left of its vectors."""

    def __init__(self, kernel: Kernel, product: Product, isa: Isa, limited: LimitedPanels) -> None:
        super().__init__(kernel, product, isa)
        self.limited, self.packings = limited, (limited,)
        self.cost = _COSTS[limited.depth] * self.panels.steps + _LEFT_COST * limited.capacity / self.panels.vectors

    def sums(
        self, arguments: Arguments, place: Place, panel: Panel, tile: tirx.Expr, rows: Run, first: tirx.Expr
    ) -> Sequence[tirx.Buffer]:
        """The sums of a tile, of the limited weights and of what is left."""
        sums = super().sums(arguments, place, panel, tile, rows, first)
        if self.limited.capacity:
            self._add_left(arguments, [*place, (self.product.rows, first)], panel.number, sums, rows.size)
        return sums

    def walk(self, step: Callable[[Sequence[tirx.Expr], int, int], None]) -> None:
        """Call `step` for as many groups as are added at once, then for single ones."""
        panels, depth = self.panels, self.limited.depth
        whole, more = divmod(panels.terms, panels.group)
        if whole // depth:
            with emit.loop(whole // depth) as several:
                step([several * index(depth) + index(n) for n in range(depth)], panels.group, 0)
        for group in range(whole // depth * depth, whole):
            step([index(group)], panels.group, 0)
        if more:
            step([index(whole)], more, 0)

    def _add_left(
        self, arguments: Arguments, place: Place, number: tirx.Expr, sums: Sequence[tirx.Buffer], rows: int
    ) -> None:
        """Add the products of what is left of the vectors of a tile, of which `number` is the first."""
        product, lanes, limited = self.product, self.isa.lanes, self.limited
        data, param = product.numbers.load.source, self.kernel.function.params[self.panels.argument]
        flat, weights = arguments.flat(data), arguments.flat(param)
        pitch = product.rows.stride(product.numbers.form)
        start = offset_at(product.numbers.form, [*place, *((axis, index(0)) for axis in product.segments)])

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
                    column_ = emit.vector(weights, weight, lanes * self.panels.group)
                    added = self.kind.add(total, self.kind.number(flat, where), column_)
                    emit.put(buffer, added, row * index(lanes), lanes)
