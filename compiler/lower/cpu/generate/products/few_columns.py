"""Products of a weight and few columns, of which a vector would be mostly empty: vectors lie along a tile's rows.

The weight is read as it is packed for other numbers of columns: the numbers of a term follow each other for all rows
of a tile, which are about as many as a vector has lanes. The results are stored one by one.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_tile
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, at, index
from heterocc.compiler.lower.cpu.generate.products.product_reads import ProductReads
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import is_number

MOST_COLUMNS = 4
"""The columns up to which this is faster. Each number of them has code, which reads the weight once."""


class FewColumns(ProductReads):
    """The part of a generator of products that writes tiles of few columns.

    `masked` is whether it reads and stores vectors in part.
    """

    masked: bool

    @property
    def takes_few_columns(self) -> bool:
        """Whether a product has such code: it has any number of columns, which masked vectors read where they are."""
        known = is_number(self.terms) and is_number(self.found.rows.length)
        fits = all(run.size <= self.isa.lanes for run in self.row_runs)
        packed = isinstance(self.packed[0], Panels) and self.packed[1] is None
        return known and fits and packed and self.masked and not is_number(self.length)

    def write_few_columns(
        self,
        arguments: Arguments,
        place: Place,
        rows: Run,
        first: tirx.Expr,
        row_place: Callable[[tirx.Expr], Place],
    ) -> None:
        """Write a tile of rows from `first`, whose places are `row_place(row)`, for all columns."""
        found, lanes = self.found, self.isa.lanes
        filled = mask(index(0), lanes, rows.size)
        weights = self.numbers(arguments, place, rows, first)
        vectors = arguments.flat(found.vectors.load.source)

        def columns(count: int) -> None:
            def number(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
                where = at(found.vectors.form, [*place, (found.columns, column), (found.terms, term)])
                assert where is not None
                return vectors[where]

            def weight(_: int, term: tirx.Expr) -> tirx.Expr:
                one = weights(index(0), term)
                return masked_vector(one.source, one.indices[0], lanes, filled)

            (sums,) = emit.product_tile(count, 1, self.terms, self.isa, number, weight)
            held = emit.scratch(count * lanes)
            with emit.loop(count, "unroll") as column:
                emit.put(held, emit.vector(sums, column * index(lanes), lanes), column * index(lanes), lanes)

            def at_row(number: tirx.Expr, _column: int, _lane: tirx.Expr) -> Place:
                row, column = tirx.floordiv(number, index(count)), tirx.floormod(number, index(count))
                return [*place, *row_place(row), (found.columns, column)]

            turned = emit.registers(rows.size * count, 1)
            with emit.loop(rows.size, "unroll") as row, emit.loop(count, "unroll") as column:
                value = held[column * index(lanes) + row]
                emit.put(turned, value, row * index(count) + column, 1)
            store_tile(self.kernel, arguments, [turned], rows.size * count, 1, at_row, lambda _: 1, in_memory=True)

        def of(count: int) -> None:
            if count == MOST_COLUMNS:
                columns(count)
            else:
                emit.either(index(self.length) == index(count), lambda: columns(count), lambda: of(count + 1))

        of(1)
