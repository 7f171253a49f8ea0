"""Copies of panels of a product's vectors: whether they pay, and how they are made."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.fetch import LINE
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, at, index
from heterocc.compiler.lower.cpu.generate.products.copied_columns import Columns, copy_columns
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, Side
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import PAIRS, Term
from heterocc.compiler.lower.cpu.generate.tiles import most_lines
from heterocc.compiler.lower.cpu.sizes import is_number, typical

COPIED_ROWS = 128
"""The smallest number of rows for which panels are copied because loads from rows at uneven places are slow; if the
places are even, multiples of a cache line, of twice as many."""

CROSSING_LANES = 8
"""Vectors of fewer lanes cross a line of the cache less often: their rows are read in place."""


class PanelCopies:
    """Copies of panels of the vectors' side of a product, of `length` columns."""

    any_length = True
    """Whether rows may be shorter than a vector if their length is known only at run time."""

    kind: Term
    kernel: Kernel
    product: Product
    isa: Isa
    length: int

    @property
    def terms(self) -> int:
        """The number of steps of the reduction."""
        return self.product.terms.length

    @property
    def distance(self) -> int:
        """The distance in bytes between the rows of the vectors, one for each term; 0 if there is one only."""
        return 4 * abs(typical(self.product.terms.step(self.product.vectors.form) or 0))

    @property
    def evicts(self) -> bool:
        """Whether the rows that a panel reads evict each other from a second-level cache.

        Rows whose distance is a multiple of a large power of two map to few of its sets.
        """
        return self.distance > 0 and typical(self.product.terms.length) > most_lines(self.distance, self.isa.core)

    def must_copy(self) -> bool:
        """Whether panels of the vectors are copied before use."""
        side = self.product.vectors
        if self.product.columns.step(side.form) != 1:
            return True
        if (is_number(self.length) or not self.any_length) and self.length < self.isa.lanes:
            return True
        return self.evicts or self._slow_in_place()

    def _slow_in_place(self) -> bool:
        """Whether a copy, shared by many rows, is read so much faster than rows in place that it pays.

        Most vectors of rows at uneven places cross a line of the cache, and each row is in a page of its own: 1x1
        convolutions of 256 channels at 50x38 take 0.9 of the time with a copy (measured on an Intel CPU). Where vectors
        are computed in halves, multiply-adds take long enough to hide the loads.
        """
        fixed = is_number(self.length) and is_number(self.terms)
        if not fixed or self.isa.lanes < CROSSING_LANES or self.isa.core.halves:
            return False
        least = COPIED_ROWS if self.distance % (4 * LINE) else 2 * COPIED_ROWS
        return typical(self.product.rows.length) >= least

    def copy(self, arguments: Arguments, place: Place, starts: list[tirx.Expr], *, short: bool) -> tirx.Buffer:
        """Copy a panel of the vectors; columns may not fill a `short` one, of one vector."""
        lanes = self.isa.lanes
        width = len(starts) * lanes
        copied = emit.scratch(self.terms * width, self.kind.read)

        def take(used: int) -> None:
            vectors, in_pairs = [(start, used) for start in starts], self.kind is PAIRS
            copy_columns(self._columns(arguments, place), vectors, lanes, copied, index(0), width, in_pairs=in_pairs)

        if short:
            emit.either(index(self.length) >= index(lanes), lambda: take(lanes), lambda: take(self.length))
        else:
            take(min(lanes, self.length) if is_number(self.length) else lanes)
        return copied

    def _columns(self, arguments: Arguments, place: Place) -> Columns:
        """The vectors' side at a place of the outer axes."""
        side, columns, terms = self.product.vectors, self.product.columns, self.product.terms

        def there(column: tirx.Expr, term: tirx.Expr) -> Place:
            return [*place, (columns, column), (terms, term)]

        def read(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            return self._element(arguments, there(column, term))

        beside = columns.step(side.form) == 1
        if beside or terms.step(side.form) != 1:
            return Columns(terms.length, read, beside)

        def where(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            found = at(side.form, there(column, term))
            assert found is not None
            return found

        return Columns(terms.length, read, beside, arguments.flat(side.load.source), where)

    def _element(self, arguments: Arguments, place: Place, side: Side | None = None) -> tirx.Expr:
        """A number of a side, by default the vectors'."""
        side = side or self.product.vectors
        where = at(side.form, place)
        assert where is not None
        return arguments.flat(side.load.source)[where]
