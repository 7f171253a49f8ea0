"""Generation of matrix products: with a weight, of two matrices, batched, with a vector, and 1×1 convolutions.

Each output is a sum over terms of a number, shared by a row of outputs, times a vector along the output's last axis.
The numbers are of the factor that is constant along that axis (the left matrix; a convolution's weights), the vectors
of the other (the right matrix; the pixels). Weights are packed so that a tile reads them consecutively. Other factors
are read in place, or copied panel by panel if their vectors are not contiguous or their rows compete for the same sets
of the cache. The structure follows Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.any_rows import count_of, either_size, tile_of_any
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, copied, copy_rows, store_tile, store_vectors
from heterocc.compiler.lower.cpu.generate.fetch import epilogue_reads, written_forms
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, store_masked
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, offset_at, overlapping
from heterocc.compiler.lower.cpu.generate.products.few_columns import FEW, few_sums
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, find_product
from heterocc.compiler.lower.cpu.generate.products.product_reads import ROWS_A_TASK, Panel, ProductReads
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import FLOATS, NUMBERS, WIDENED
from heterocc.compiler.lower.cpu.generate.tiles import (
    Run,
    cycles_of,
)
from heterocc.compiler.lower.cpu.sizes import Size, is_number, is_one, larger, smaller, typical

NARROW_ROWS = 32
"""The most rows for which a weight stays in 16 bits: with 128, a BERT took 1.13 times as long as in float32."""

HELD_TERMS = 64
"""Terms from which on storing sums and reading them again takes little of the time of a tile."""


def propose_product(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a matrix product."""
    product = find_product(kernel)
    if product is None or not can_store(kernel):
        return

    packed = _packed(product, isa)
    kind = WIDENED.get(packed, NUMBERS[kernel.dtype])

    def writer(isa: Isa) -> ProductWriter:
        return ProductWriter(kernel, product, isa.of(kernel.dtype).narrowed(product.columns.length), kind)

    dtype = packed or kernel.dtype
    yield Candidate("product", writer(isa).cycles, writer, "" if dtype == "float32" else f"of {dtype}", packed or None)


def _packed(product: Product, isa: Isa) -> str:
    """The type of 16 bits in which the vectors' weight is packed, if it is read from farther than it is used for."""
    rows = math.prod(a.length for a in (*product.outer, product.rows))
    size = 4 * product.summed * product.columns.length
    far = rows <= NARROW_ROWS if is_number(rows) else typical(size) >= isa.core.far_bytes
    return isa.stored.get(product.vectors.weight, "") if far and product.vectors.weight is not None else ""


def _has_no_rows(product: Product) -> bool:
    """Whether neither columns nor terms of the vectors lie in a row in memory: numbers are copied one by one."""
    return not any(is_one(axis.step(product.vectors.form)) for axis in (product.columns, product.terms))


class ProductWriter(ProductReads):
    """A generator of a product: panels of columns, and for each all rows, tile by tile."""

    @property
    def cycles(self) -> float:
        """Modelled time, without that of copying whole vectors."""
        product, tiles = self.product, cycles_of(self.row_runs, self.column_runs, self.isa.core)
        copies = self.isa.core.copied_number * typical(self.length) if self.copies and _has_no_rows(product) else 0.0
        outer = math.prod(typical(a.length) for a in product.outer)
        return outer * (typical(self.terms) * tiles + typical(product.terms.length) * copies)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        product = self.product
        outer = math.prod(a.length for a in product.outer)
        groups = sum(r.count for r in self.column_runs)
        tiles = count_of(self.product.rows.length, self.row_runs)
        strips = -(-groups // self.strip) if self.strip > 1 else groups
        parts = emit.shares(product.work, outer * strips, tiles)
        if self.copies or (not self.masked and any(run.short for run in self.column_runs)):
            parts = larger(1, smaller(parts, product.rows.length // ROWS_A_TASK))
        # A thread takes consecutive tasks: parts of the rows if more rows are written than terms read, since a kernel
        # that takes rows of the result, such as a depthwise convolution, then finds them in the cache of its core.
        by_rows = typical(product.rows.length) > typical(product.summed)
        panels = self.packed[1]
        with emit.shared_loop(outer * strips * parts, product.work) as task:
            if panels is not None and panels.outer == 1 and typical(outer) > 1:  # a panel stays in the cache for all
                strip, place_number, part = emit.unpacked(task, (strips, outer, parts))
            elif by_rows:
                place_number, part, strip = emit.unpacked(task, (outer, parts, strips))
            else:
                place_number, strip, part = emit.unpacked(task, (outer, strips, parts))
            place, share = self._outer_place(place_number), emit.Part(part, parts)
            if self.strip > 1:
                first = strip * index(self.strip)
                self._strip(arguments, place, first, tirx.min(first + index(self.strip), index(groups)), share)
            else:
                emit.either_run(self.column_runs, strip, lambda run: self._panel(arguments, place, run, strip, share))

    def _strip(self, arguments: Arguments, place: Place, first: tirx.Expr, end: tirx.Expr, part: emit.Part) -> None:
        """Compute the panels from a first to an end for some rows: each tile of rows for all of them."""
        with (
            emit.share_loop(*part, count_of(self.product.rows.length, self.row_runs)) as tile,
            build.serial(first, end) as number,
        ):

            def panel(run: Run) -> None:
                self._rows_of_panel(arguments, place, self._panel_of(run, number), tile)

            emit.either_run(self.column_runs, number, panel)

    def _outer_place(self, place: tirx.Expr) -> list[tuple[Axis, tirx.Expr]]:
        every = self.kernel.axis([n for axis in self.product.outer for n in axis.loops])
        values = dict(emit.split(every, place))
        return [(axis, values[axis.loops[0]]) for axis in self.product.outer]

    def _panel(self, arguments: Arguments, place: Place, run: Run, group: tirx.Expr, part: emit.Part) -> None:
        """Compute one group of columns of some rows."""
        panel, tiles = self._panel_of(run, group), count_of(self.product.rows.length, self.row_runs)

        def every_tile(panel: Panel) -> None:
            short = run.short and not self.masked
            if not panel.few and (short or self.copies):
                panel = replace(panel, copied=self.copy(arguments, place, panel.starts, short=short))
            with emit.share_loop(*part, tiles) as tile:
                self._rows_of_panel(arguments, place, panel, tile)

        if run.short and self.takes_few_columns():
            few = replace(panel, few=True)
            emit.either(index(self.length) <= index(FEW), partial(every_tile, few), partial(every_tile, panel))
        else:
            every_tile(panel)

    def takes_few_columns(self) -> bool:
        """Whether few columns have code of their own: their number is any, and they are read by masks or copied."""
        numbers, vectors = self.packed
        known = is_number(self.terms) and is_number(self.product.rows.length) and not is_number(self.length)
        if not known or numbers is None or vectors is not None or self.kind is not FLOATS:
            return False
        fits = all(run.size <= self.isa.lanes for run in numbers.runs)
        return fits and (self.masked or (self.copies and self.isa.masks))

    def _few(self, arguments: Arguments, place: Place, rows: Run, first: tirx.Expr) -> tirx.Buffer:
        """The sums of a tile of rows of a few columns."""
        side = self.product.vectors
        vectors = arguments.flat(side.load.source)
        weights = self.numbers(arguments, place, rows, first)

        def number(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            # Columns that do not exist are the last one again, and are not stored.
            there = tirx.min(column, index(self.length - 1))
            return vectors[offset_at(side.form, [*place, (self.product.columns, there), (self.product.terms, term)])]

        def weight(term: tirx.Expr) -> tuple[tirx.Buffer, tirx.Expr]:
            first_of_term = weights(index(0), term)
            return first_of_term.source, first_of_term.indices[0]

        walk = partial(emit.in_turn, unroll=self.unroll(FEW))
        return few_sums(rows.size, FEW, self.terms, self.isa, number, [weight], walk)

    def _panel_of(self, run: Run, group: tirx.Expr) -> Panel:
        """The panel of this number, which is in the run."""
        number = emit.start_of(run, group)
        starts = [self.start((number + index(v)) * index(self.isa.lanes)) for v in range(run.size)]
        starts = [tirx.max(start, index(0)) for start in starts] if run.short else starts
        return Panel(run, number, starts if is_number(self.length) else [emit.bound(start) for start in starts])

    def start(self, column: tirx.Expr) -> tirx.Expr:
        """The start of a vector; a last one that would exceed the end overlaps the previous one."""
        return overlapping(column, self.length, self.isa.lanes)

    def _rows_of_panel(self, arguments: Arguments, place: Place, panel: Panel, tile: tirx.Expr) -> None:
        """Compute a tile of rows of a panel.

        Of any number of rows, long sums are copied to memory, and all sizes of tiles have one epilogue: those of each
        size took as long to generate and to compile as several kernels of fixed sizes.
        """
        count, tiles = self.product.rows.length, self.row_runs
        sums = partial(self.sums, arguments, place, panel, tile)
        store = partial(self._store, arguments, place, panel)

        def whole(rows: Run) -> None:
            first = emit.start_of(rows, tile)
            store(sums(rows, first), rows.size, first)

        if is_number(count) or typical(self.product.summed) < HELD_TERMS:
            emit.either_run(tiles, tile, whole)
            return
        most = max(rows.size for rows in tiles)
        held = [emit.registers(most, self.isa.lanes, self.kind.sums) for _ in range(panel.run.size)]
        # If the size were known to follow from the branch, LLVM would unroll the epilogue for the largest.
        size, first = map(emit.bound, tile_of_any(count, tiles, tile))

        def hold(rows: Run) -> None:
            for to, total in zip(held, sums(rows, first), strict=True):
                copy_rows(to, total, rows.size, self.isa.lanes)

        either_size(tiles, size, hold)
        store(held, size, first)

    def sums(
        self, arguments: Arguments, place: Place, panel: Panel, tile: tirx.Expr, rows: Run, first: tirx.Expr
    ) -> Sequence[tirx.Buffer]:
        """Compute the sums of a tile of this number, whose rows begin with the first."""
        run = panel.run
        if panel.few:
            return [self._few(arguments, place, rows, first)]
        broadcast = self.numbers(arguments, place, rows, first)
        loaded = self._vectors(arguments, place, panel)
        walk = self.fetching_epilogue(arguments, place, panel, rows.size, first)
        walk = self.fetched(arguments, place, panel, rows.size, tile, walk)
        return emit.product_tile(rows.size, run.size, self.terms, self.isa, broadcast, loaded, walk, kind=self.kind)

    def _store(
        self,
        arguments: Arguments,
        place: Place,
        panel: Panel,
        sums: Sequence[tirx.Buffer],
        rows: int | tirx.Expr,
        first: tirx.Expr,
    ) -> None:
        """Store the sums of a tile of rows from the first on."""
        product, run, starts = self.product, panel.run, panel.starts
        row_place = self._row_places(rows, first)
        if run.short:
            lanes = FEW if panel.few else self.isa.lanes
            self._store_short(arguments, place, sums[0], lanes, rows, row_place, starts[0])
            return
        store_tile(
            self.kernel,
            arguments,
            sums,
            rows,
            self.isa.lanes,
            lambda row, column, lane: [*place, *row_place(row), (product.columns, starts[column] + lane)],
            lambda _: min(self.isa.lanes, self.length) if is_number(self.length) else self.isa.lanes,
        )

    def _row_places(self, count: int | tirx.Expr, first: tirx.Expr) -> Callable[[tirx.Expr], Place]:
        """The place of a row of a tile; of several loops of unknown sizes, the values are computed once."""
        rows = self.product.rows
        used = (*written_forms(self.kernel), *epilogue_reads(self.kernel))
        if is_number(rows.length) or all(rows.step(form) is not None for _, form in used):
            return lambda row: [(rows, first + row)]
        axes = [self.kernel.axis([loop]) for loop in rows.loops]
        length, most = len(axes), max(r.size for r in self.row_runs)
        held = build.alloc_buffer((most * length,), "int64", scope="global")
        with emit.loop(count) as row:
            values = dict(rows.split(first + row))
            for number, axis in enumerate(axes):
                build.buffer_store(held, values[axis.loops[0]], [row * index(length) + index(number)])
        return lambda row: [(axis, held[row * index(length) + index(n)]) for n, axis in enumerate(axes)]

    def _store_short(
        self,
        arguments: Arguments,
        place: Place,
        sums: tirx.Buffer,
        lanes: int,
        count: int | tirx.Expr,
        row_place: Callable[[tirx.Expr], Place],
        start: tirx.Expr,
    ) -> None:
        """Store a tile of one vector of columns, which they may not fill: `count` rows at these places."""
        product = self.product

        def at_place(row: tirx.Expr, lane: tirx.Expr) -> Place:
            return [*place, *row_place(row), (product.columns, start + lane)]

        if self.masked:
            filled = mask(index(0), lanes, self.length)
            store_masked(self.kernel, arguments, sums, count, lanes, product.columns, at_place, filled)
            return
        held = sums if isinstance(count, tirx.Expr) else copied(sums, count, lanes)
        with emit.loop(count) as row:

            def store(length: Size, width: int, row: tirx.Expr = row) -> None:
                store_vectors(
                    self.kernel,
                    arguments,
                    lambda lane: held[row * index(lanes) + lane],
                    lambda lane: at_place(row, lane),
                    length,
                    width,
                )

            fits = index(self.length) >= index(lanes)
            emit.either(fits, partial(store, lanes, lanes), partial(store, self.length, max(lanes // 2, 1)))
