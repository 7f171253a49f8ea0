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
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import Place, at, index
from heterocc.compiler.lower.cpu.generate.products.product_reads import ProductReads
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import is_number

FEW = 4
"""The most columns that have code of their own; of fewer, the rest are computed and dropped. With more, vectors of
columns are as fast or faster."""


def weight_vector(weights: tirx.Buffer, start: tirx.Expr, size: int, isa: Isa) -> tirx.Expr:
    """The weights that a tile of `size` rows has for a term, as one of the shortest vectors that hold them."""
    lanes = isa.narrowed(size).lanes
    if lanes == size:
        return emit.vector(weights, start, lanes)
    return masked_vector(weights, start, lanes, mask(index(0), lanes, size))


def of_columns(length: int, few: Callable[[int], None], many: Callable[[], None], most: int = FEW) -> None:
    """Write `few(most)` for a length of a few columns, and `many()` for a larger one."""
    emit.either(index(length) <= index(most), lambda: few(most), many)


def put_rows(
    buffer: tirx.Buffer, sums: tirx.Buffer, shape: tuple[int, int], isa: Isa, start: Callable[[tirx.Expr], tirx.Expr]
) -> None:
    """Put sums of rows and columns, of each column a vector along the rows, into one vector for each row.

    `shape` are the numbers of rows and columns, `start(row)` is the place of a row, whose vector ends with zeros.
    """
    rows, columns = shape
    lanes = isa.narrowed(rows).lanes
    held = emit.scratch(columns * lanes)
    with emit.loop(columns, "unroll") as column:
        emit.put(held, emit.vector(sums, column * index(lanes), lanes), column * index(lanes), lanes)
    with emit.loop(rows) as row:
        to = emit.bound(start(row))
        emit.put(buffer, emit.zeros(isa.lanes), to, isa.lanes)
        for number in range(columns):
            emit.put(buffer, held[index(number * lanes) + row], to + index(number), 1)


class FewColumns(ProductReads):
    """The part of a generator of products that writes tiles of few columns.

    `masked` is whether it reads and stores vectors in part.
    """

    masked: bool
    copies: bool

    @property
    def takes_few_columns(self) -> bool:
        """Whether a product has such code: it has any number of columns, which are read by masks or copied."""
        known = is_number(self.terms) and is_number(self.product.rows.length)
        fits = all(run.size <= self.isa.lanes for run in self.row_runs)
        numbers, vectors = self.packed
        packed = numbers is not None and not numbers.pairs and vectors is None
        reads = self.masked or (self.copies and self.isa.has_masks)
        return known and fits and packed and reads and not is_number(self.length)

    def write_few_columns(
        self,
        arguments: Arguments,
        place: Place,
        rows: tuple[Run, tirx.Expr],
        row_place: Callable[[tirx.Expr], Place],
        count: int,
    ) -> None:
        """Write a tile of rows for all columns, at most `count`: the run and the first row, and the place of a row."""
        product, isa = self.product, self.isa.narrowed(rows[0].size)
        lanes = isa.lanes
        weights = self.numbers(arguments, place, *rows)
        vectors = arguments.flat(product.vectors.load.source)

        def number(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            # Columns that do not exist are the last one again, and are not stored.
            there = tirx.min(column, index(self.length - 1))
            where = at(product.vectors.form, [*place, (product.columns, there), (product.terms, term)])
            assert where is not None
            return vectors[where]

        def weight(_: int, term: tirx.Expr) -> tirx.Expr:
            one = weights(index(0), term)
            return weight_vector(one.source, one.indices[0], rows[0].size, self.isa)

        (sums,) = emit.product_tile(count, 1, self.terms, isa, number, weight)
        held = emit.scratch(count * lanes)
        with emit.loop(count, "unroll") as column:
            emit.put(held, emit.vector(sums, column * index(lanes), lanes), column * index(lanes), lanes)

        with emit.loop(self.length) as column:

            def at_row(row: tirx.Expr, _column: int, _lane: tirx.Expr) -> Place:
                return [*place, *row_place(row), (product.columns, column)]

            results = emit.registers(lanes, 1)
            emit.put(results, emit.vector(held, column * index(lanes), lanes), index(0), lanes)
            store_tile(self.kernel, arguments, [results], rows[0].size, 1, at_row, lambda _: 1, in_memory=True)
