"""Reads of the factors of a matrix product: packed, in place, or from copied panels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.any_rows import count_of, row_runs
from heterocc.compiler.lower.cpu.generate.candidates import Packing
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step, Walk
from heterocc.compiler.lower.cpu.generate.fetch import epilogue_reads, fetching_shares, lines_after, written_forms
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, mask, masked_vector
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index, offset_at, shape_of
from heterocc.compiler.lower.cpu.generate.products.copied_columns import Columns, copy_columns
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, Side
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import PAIRS, Term
from heterocc.compiler.lower.cpu.generate.tiles import (
    MOST_ROWS,
    ROW_PLACES,
    Run,
    column_runs,
    most_lines,
    most_rows,
    pick_tile,
)
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, is_one, moves, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of, itemsize

ROWS_A_TASK = 64
"""The smallest number of rows for which a panel is copied."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of vectors: its run, the number of its first vector, the starts of all, and its copy if it has one.

    Of a `few` columns, vectors are along the rows.
    """

    run: Run
    number: tirx.Expr
    starts: list[tirx.Expr]
    copied: tirx.Buffer | None = None
    few: bool = False


class ProductReads:
    """Reads of a product's two sides: of numbers, each shared by a row, and of vectors along `length` columns.

    If the number of columns is known only at run time, those that whole tiles leave may not fill a vector: it is
    `masked`, or they are copied to a panel of one vector. `packed` are the packings of the sides that are weights,
    `copies` says whether panels of others are copied, and `strip` how many of them each tile of rows takes in turn. The
    runs are those of tiles of rows and of panels.
    """

    def __init__(self, kernel: Kernel, product: Product, isa: Isa, kind: Term) -> None:
        self.kernel, self.product, self.isa, self.kind = kernel, product, isa, kind
        self.length = product.columns.length
        count = -(-self.length // isa.lanes)
        tall, wide = pick_tile(product.rows.length, count, isa, self._most_rows())
        self.row_runs = row_runs(product.rows.length, tall, near=self.reads_near)
        self.column_runs = column_runs(self.length, isa.lanes, wide)
        self.packed = (
            self.packing(product.numbers, product.rows, 1, self.row_runs),
            self.packing(product.vectors, product.columns, isa.lanes, self.column_runs),
        )
        self.packings: tuple[Packing, ...] = tuple(p for p in self.packed if p is not None)
        self.copies = self.packed[1] is None and self.must_copy()
        self.strip = self._strip_size()
        self.masked = isa.masks and isa.lanes > 1 and not self.copies and can_mask(kernel, product.columns)

    def _most_rows(self) -> int:
        """The limit on rows of a tile; rows of a factor that is read in place may compete for a set of the cache."""
        numbers = self.product.numbers
        pitch = self.product.rows.step(numbers.form)
        if numbers.weight is not None or pitch is None or not moves(pitch):
            return MOST_ROWS
        if not is_number(pitch):
            return ROW_PLACES
        return most_rows(itemsize(dtype_of(numbers.load.source)) * abs(pitch), self.isa.core)

    def packing(self, side: Side, places: Axis, lanes: int, tiles: tuple[Run, ...]) -> Panels | None:
        """The layout of a side that is a weight, None for another."""
        if side.weight is None:
            return None
        axes = {n: i for i, e in enumerate(side.load.indices) if (n := self.kernel.loop_of(e)) is not None}
        outer = [a for a in self.product.outer if a.loops[0] in axes]
        ones = [i for i in range(len(side.load.indices)) if i not in axes.values()]
        ones += [axes[n] for n in axes if is_one(self.kernel.extents[n])]
        segments, terms = self.product.segments, self.product.terms
        order = (*ones, *(axes[n] for axis in (*outer, *segments, terms, places) for n in axis.loops))
        groups = (outer, [terms], [places], segments)
        of_outer, of_terms, of_places, of_segments = (as_number(math.prod(a.length for a in some)) for some in groups)
        shape = tuple(map(as_number, shape_of(side.load.source) or ()))
        sizes = (of_outer, of_terms, of_places, lanes, tiles)
        group, packed = 2 if self.kind is PAIRS else self.kind.together, self.kind.packed
        return Panels(side.weight, shape, order, *sizes, segments=of_segments, group=group, packed=packed)

    def _strip_size(self) -> int:
        """The number of panels of columns, a strip, that are stored one after the other for each tile of rows.

        Panel by panel, each row of outputs gets few numbers at a time: with few terms most time would be spent waiting
        for the cache lines of many rows, which the hardware does not prefetch, and which compete for few sets.
        """
        product, isa = self.product, self.isa
        terms = product.terms.length
        if not is_number(self.length) or not is_number(terms):
            return 1
        if self.copies or self.kind.read != "float32" or any(run.short for run in self.column_runs):
            return 1
        groups = as_number(sum(r.count for r in self.column_runs))
        if typical(product.work) >= emit.PARALLEL_WORK:
            groups = typical(math.prod(a.length for a in product.outer)) * groups // emit.TASKS
        near = isa.core.first_cache * 3 // 4  # the vectors of a strip are to stay there
        wide = max(run.size for run in self.column_runs)
        return max(1, min(groups, near // (4 * terms * wide * isa.lanes)))

    @property
    def reads_near(self) -> bool:
        """Whether the vectors are a weight that stays in a second-level cache while tiles of rows follow each other."""
        size = 4 * typical(self.product.terms.length) * typical(self.product.columns.length)
        return self.product.vectors.weight is not None and size < self.isa.core.fetched_weights

    def numbers(
        self, arguments: Arguments, place: Place, rows: Run, first: tirx.Expr
    ) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
        """The number of a row and a term, for the tile of rows from `first`."""
        product, packing = self.product, self.packed[0]
        flat = arguments.flat(product.numbers.load.source)

        def broadcast(row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            if packing is not None:
                base = self._packed_base(packing, place) + first * index(packing.steps)
                return flat[base + term * index(rows.size) + row]
            here = [*place, (product.rows, first + row), (product.terms, term)]
            return flat[offset_at(product.numbers.form, here)]

        return broadcast

    def _vectors(
        self,
        arguments: Arguments,
        place: Place,
        panel: Panel,
    ) -> Callable[[int, tirx.Expr], tirx.Expr]:
        """The vector of a column of a panel and a term."""
        product, packing, lanes = self.product, self.packed[1], self.isa.lanes
        run, number, starts, copied = panel.run, panel.number, panel.starts, panel.copied

        def loaded(column: int, term: tirx.Expr) -> tirx.Expr:
            if copied is not None:
                return emit.vector(copied, term * index(run.size * lanes) + index(column * lanes), lanes)
            flat = arguments.flat(product.vectors.load.source)
            if packing is not None:
                base = self._packed_base(packing, place) + number * index(lanes * packing.steps)
                start = base + term * index(run.size * lanes) + index(column * lanes)
                return emit.as_float(emit.vector(flat, start, lanes))
            where = offset_at(product.vectors.form, [*place, (product.columns, starts[column]), (product.terms, term)])
            if run.short:
                return masked_vector(flat, where, lanes, mask(index(0), lanes, self.length))
            return emit.vector(flat, where, lanes)

        return loaded

    def fetched(
        self, arguments: Arguments, place: Place, panel: Panel, rows: int, tile: tirx.Expr, inner: Walk
    ) -> Walk:
        """The walk over the terms of a tile of rows of a panel, which prefetches vectors that are far.

        They are read by all tiles of a panel, which fetch those of the next one. Weights that a single tile reads are
        one stream, which hardware prefetches best: fetching them too took 1.1 to 1.5 times as long on a Zen 5.
        """
        product, packing, tiles = self.product, self.packed[1], count_of(self.product.rows.length, self.row_runs)
        unroll = self.unroll(rows * panel.run.size)
        fetch: Callable[[tirx.Expr], None]
        if packing is None and self._reads_far(panel):
            # The rows of a map are so far apart that hardware takes none of these lines for the next of a stream.
            flat, ahead = arguments.flat(product.vectors.load.source), self.strip * panel.run.size * self.isa.lanes

            def fetch_row(term: tirx.Expr) -> None:
                for start in panel.starts:
                    next_ = (product.columns, start + index(ahead))
                    emit.prefetch(flat, offset_at(product.vectors.form, [*place, next_, (product.terms, term)]))

            items, fetch = product.terms.length, fetch_row
        elif packing is None or 4 * packing.size <= self.isa.core.fetched_weights or (is_number(tiles) and tiles == 1):
            return inner
        else:
            flat = arguments.flat(self.kernel.function.params[packing.argument])
            first = self._packed_base(packing, place) + panel.number * index(self.isa.lanes * packing.steps)
            items, fetch = lines_after(flat, first, panel.run.size * self.isa.lanes * packing.steps)
        part = emit.Part(tile, typical(tiles))

        def walk(terms: Size, step: Step) -> None:
            inner(terms, fetching_shares(step, self.terms, items, fetch, sum_=part, unroll=unroll))

        return walk

    def fetching_epilogue(self, arguments: Arguments, place: Place, panel: Panel, count: int, first: tirx.Expr) -> Walk:
        """A walk over the terms of a tile of `count` rows that also prefetches what its epilogue reads and writes."""
        product = self.product
        used = (*epilogue_reads(self.kernel), *written_forms(self.kernel))
        beside = [(b, form, product.rows.step(form)) for b, form in used if is_one(product.columns.step(form))]
        wanted = [(b, form) for b, form, step in beside if step is not None and moves(step)]
        unroll = self.unroll(count * panel.run.size)

        def fetch(row: tirx.Expr) -> None:
            for (buffer, form), start in itertools.product(wanted, panel.starts):
                where = at(form, [*place, (product.rows, first + row), (product.columns, start)])
                if where is not None:
                    emit.prefetch(arguments.flat(buffer), where)

        def walk(terms: Size, step: Step) -> None:
            if is_number(self.terms) and typical(product.work) >= emit.PARALLEL_WORK and not panel.run.short:
                step = fetching_shares(step, self.terms, count, fetch, unroll=unroll)
            emit.in_turn(terms, step, unroll)

        return walk

    def _reads_far(self, panel: Panel) -> bool:
        """Whether panels are read, one after the other, from rows that a second-level cache may not hold.

        A Zen 4 takes 0.88 to 0.95 of the time for maps of 24 and 48 channels at 192x192, and as long for smaller ones.
        Maps of any size count by their typical one.
        """
        if panel.run.short or panel.copied is not None or not is_number(self.terms):
            return False
        return 4 * self.terms * typical(self.length) >= self.isa.core.fetched_bytes

    def unroll(self, sums: int) -> int:
        """The number of terms that are unrolled for so many vectors of sums.

        Of any sizes there is code for many tiles, whose loops are kept short.
        """
        if all(map(is_number, (self.terms, self.product.rows.length, self.length))):
            return emit.UNROLL
        return emit.terms_of_turn(sums * self.isa.lanes)

    def _packed_base(self, packing: Panels, place: Place) -> tirx.Expr:
        """The start of the panels of the outer place."""
        side = self.product.numbers if packing is self.packed[0] else self.product.vectors
        return self.number_of(side, place) * index(packing.block)

    @staticmethod
    def number_of(side: Side, place: Place) -> tirx.Expr:
        """The number of an outer place among those that differ for a side."""
        total: tirx.Expr = index(0)
        for axis, value in place:
            if moves(side.form.steps[axis.loops[0]]):
                total = total * index(axis.length) + value
        return total

    @property
    def terms(self) -> Size:
        """The number of steps of the reduction."""
        return -(-self.product.terms.length // (2 if self.kind is PAIRS else 1))

    @property
    def evicts(self) -> bool:
        """Whether the rows that a panel reads evict each other from a second-level cache, or from the first one.

        Rows whose distance is a multiple of a large power of two map to few of its sets. The first one matters where
        small tiles read a panel again and again: 1x1 convolutions of 32x32 maps take half the time with AVX2.
        """
        step, terms = self.product.terms.step(self.product.vectors.form), typical(self.product.terms.length)
        if step is None or typical(step) == 0:
            return False
        distance, core = 4 * abs(typical(step)), self.isa.core
        lines = most_lines(distance, core)
        if core.few_registers and is_number(step) and typical(self.product.rows.length) >= ROWS_A_TASK:
            lines = 2 * core.first_ways * (4096 // math.gcd(distance, 4096))  # just over once costs less than copies
        return terms > lines

    def must_copy(self) -> bool:
        """Whether panels of the vectors are copied before use."""
        few = is_number(self.length) and self.length < self.isa.lanes
        return few or self.evicts or not is_one(self.product.columns.step(self.product.vectors.form))

    def copy(self, arguments: Arguments, place: Place, starts: list[tirx.Expr], *, short: bool) -> tirx.Buffer:
        """Copy a panel of the vectors; columns may not fill a `short` one, of one vector."""
        lanes = self.isa.lanes
        width = len(starts) * lanes
        copied = emit.scratch(self.terms * width, self.kind.read)

        def take(used: Size) -> None:
            columns, in_pairs = self._columns(arguments, place), self.kind is PAIRS
            copy_columns(columns, (starts, used), lanes, copied, index(0), width, in_pairs=in_pairs)

        if short:
            emit.either(index(self.length) >= index(lanes), lambda: take(lanes), lambda: take(self.length))
        else:
            take(min(lanes, self.length) if is_number(self.length) else lanes)
        return copied

    def _columns(self, arguments: Arguments, place: Place) -> Columns:
        """The vectors' side at a place of the outer axes."""
        side, columns, terms = self.product.vectors, self.product.columns, self.product.terms

        def where(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            return offset_at(side.form, [*place, (columns, column), (terms, term)])

        beside = is_one(columns.step(side.form))
        turns = not beside and is_one(terms.step(side.form))
        return Columns(arguments.flat(side.load.source), where, terms.length, beside, turns)
