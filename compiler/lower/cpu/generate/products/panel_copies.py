"""Copies of panels of a product's vectors: whether they pay, and how they are made."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.fetch import LINE
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, at, index
from heterocc.compiler.lower.cpu.generate.products.copied_columns import Columns, copy_columns, copy_pairs
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, Side
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import PAIRS, Term
from heterocc.compiler.lower.cpu.generate.tiles import most_lines
from heterocc.compiler.lower.cpu.sizes import is_number, typical

COPIED_ROWS = 128
"""The smallest number of rows for which panels are copied because loads from rows at uneven places are slow; if the
places are even, multiples of a cache line, of twice as many; of half as many if all of them may be inside a line, and
the rows are `FAR_ROWS` apart."""

FAR_ROWS = 4096
"""The distance in bytes from which on each row is in a page of its own."""

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
        convolutions of 256 channels at 50x38 take 0.9 of the time with a copy (measured on an Intel CPU), those of 64
        to 128 at 56x56 that read an input of the model, all of whose vectors may cross a line, 0.7 to 0.9. Where
        vectors are computed in halves, multiply-adds take long enough to hide the loads.
        """
        fixed = is_number(self.length) and is_number(self.terms)
        if not fixed or self.isa.lanes < CROSSING_LANES or self.isa.core.halves:
            return False
        rows = typical(self.product.rows.length)
        least = COPIED_ROWS if self.distance % (4 * LINE) else 2 * COPIED_ROWS
        if rows >= least or rows < COPIED_ROWS // 2 or self.distance < FAR_ROWS:
            return rows >= least
        return self.kernel.argument(self.product.vectors.load.source) in self.isa.unaligned

    def copy_short(self, arguments: Arguments, place: Place, start: tirx.Expr) -> tirx.Buffer:
        """Copy a panel of one vector, which columns may not fill."""
        lanes = self.isa.lanes
        copied = emit.scratch(self.product.terms.length * lanes, self.kind.sums)

        def take(used: int) -> None:
            copy_columns(self._columns(arguments, place), [(start, used)], lanes, copied, index(0), lanes)

        emit.either(index(self.length) >= index(lanes), lambda: take(lanes), lambda: take(self.length))
        return copied

    def copy(self, arguments: Arguments, place: Place, starts: list[tirx.Expr]) -> tirx.Buffer:
        """Copy a panel of the vectors."""
        width = len(starts) * self.isa.lanes
        copied = emit.scratch(self.terms * width, self.kind.read)
        used = min(self.isa.lanes, self.length) if is_number(self.length) else self.isa.lanes
        copies = copy_pairs if self.kind is PAIRS else copy_columns
        vectors = [(start, used) for start in starts]
        copies(self._columns(arguments, place), vectors, self.isa.lanes, copied, index(0), width)
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
