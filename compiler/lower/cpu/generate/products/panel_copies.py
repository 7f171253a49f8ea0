"""Copies of panels of a product's vectors: whether they pay, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.fetch import LINE
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.transposes import FEWEST_LANES, transposed
from heterocc.compiler.lower.cpu.generate.places import Place, at, index, offset
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, Side
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import Term
from heterocc.compiler.lower.cpu.generate.tiles import most_lines
from heterocc.compiler.lower.cpu.sizes import is_number, typical
from heterocc.compiler.lower.kernels.expressions import substituted

COPIED_ROWS = 128
"""The smallest number of rows for which panels are copied because loads from rows at uneven places are slow; if the
places are even, multiples of a cache line, of twice as many; of half as many if all of them may be inside a line, and
the rows are `FAR_ROWS` apart."""

FAR_ROWS = 4096
"""The distance in bytes from which on each row is in a page of its own."""

CROSSING_LANES = 8
"""Vectors of fewer lanes cross a line of the cache less often: their rows are read in place."""


class PanelCopies:
    """Copies of panels of the vectors' side of a product, of `length` columns.

    `edge` are the lanes of a last vector that they fill in part, or 0.
    """

    any_length = True
    """Whether rows may be shorter than a vector if their length is known only at run time."""

    kind: Term
    kernel: Kernel
    product: Product
    isa: Isa
    length: int
    edge: int

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
        if side.value is not None:
            return True
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
        """Copy a panel of one vector, which columns may not fill, term by term; zeros follow them."""
        product, lanes = self.product, self.isa.lanes
        copied = emit.scratch(product.terms.length * lanes, self.kind.sums)
        row = product.columns.step(product.vectors.form) == 1

        def take(length: int, kind: str) -> None:
            with emit.loop(product.terms.length) as term:
                if not is_number(length):
                    emit.put(copied, emit.zeros(lanes, self.kind.sums), term * index(lanes), lanes)
                with emit.loop(length, kind) as lane:
                    here = [*place, (product.columns, start + lane), (product.terms, term)]
                    build.buffer_store(copied, self._element(arguments, here), [term * index(lanes) + lane])

        fits = index(self.length) >= index(lanes)
        emit.either(fits, lambda: take(lanes, "vectorized" if row else "serial"), lambda: take(self.length, "serial"))
        return copied

    def copy(self, arguments: Arguments, place: Place, starts: list[tirx.Expr]) -> tirx.Buffer:
        """Copy a panel of the vectors, term by term."""
        product, lanes = self.product, self.isa.lanes
        width = len(starts) * lanes
        copied = emit.scratch(product.terms.length * width, self.kind.sums)
        row = product.columns.step(product.vectors.form) == 1
        known = is_number(self.length)
        widths = [self.edge if self.edge and column == len(starts) - 1 else lanes for column in range(len(starts))]
        widths = [min(used, self.length) if known else used for used in widths]
        if not row and self._terms_in_a_row():
            self._copy_turned(arguments, place, list(zip(starts, widths, strict=True)), copied)
            return copied
        with emit.loop(product.terms.length) as term:
            for column, (start, used) in enumerate(zip(starts, widths, strict=True)):
                to = term * index(width) + index(column * lanes)
                if known and self.length < lanes:
                    emit.put(copied, emit.zeros(lanes, self.kind.sums), to, lanes)
                with emit.loop(used, "vectorized" if row else "serial") as lane:
                    here = [*place, (product.columns, start + lane), (product.terms, term)]
                    build.buffer_store(copied, self._element(arguments, here), [to + lane])
        return copied

    def _terms_in_a_row(self) -> bool:
        """Whether the vectors' side has at least a vector of terms one after the other in memory, for each column."""
        side, terms = self.product.vectors, self.product.terms
        return (
            side.value is None
            and is_number(terms.length)
            and terms.length >= self.isa.lanes >= FEWEST_LANES
            and terms.step(side.form) == 1
        )

    def _copy_turned(
        self, arguments: Arguments, place: Place, columns: Sequence[tuple[tirx.Expr, int]], copied: tirx.Buffer
    ) -> None:
        """Copy a panel of columns whose terms are in a row, in square blocks; `columns` are starts and used lanes.

        The last block of terms may overlap the one before. Lanes that no column has get the last one's numbers.
        """
        product, lanes = self.product, self.isa.lanes
        flat, width = arguments.flat(product.vectors.load.source), len(columns) * lanes
        with emit.loop(-(-self.terms // lanes)) as block:
            begin = emit.bound(tirx.min(block * index(lanes), index(self.terms - lanes)))
            for column, (start, used) in enumerate(columns):
                rows = [emit.registers(1, lanes, self.kind.sums) for _ in range(lanes)]
                for i, register in enumerate(rows):
                    here = [*place, (product.columns, start + index(min(i, used - 1))), (product.terms, begin)]
                    where = at(product.vectors.form, here)
                    assert where is not None
                    emit.put(register, emit.vector(flat, where, lanes), index(0), lanes)
                for i, register in enumerate(transposed(rows, lanes, self.kind.sums)):
                    to = (begin + index(i)) * index(width) + index(column * lanes)
                    emit.put(copied, emit.vector(register, index(0), lanes), to, lanes)

    def _element(self, arguments: Arguments, place: Place, side: Side | None = None) -> tirx.Expr:
        """A number of a side, by default the vectors', read or computed."""
        side = side or self.product.vectors
        if side.value is not None:
            return self.value(arguments, side.value, place)
        where = at(side.form, place)
        assert where is not None
        return arguments.flat(side.load.source)[where]

    def value(self, arguments: Arguments, value: tirx.Expr, place: Place) -> tirx.Expr:
        """A computed number of a side."""

        def load(read: TensorLoad) -> tirx.Expr:
            form = offset(read.indices, read.source, self.kernel.loops)
            where = None if form is None else at(form, place)
            assert where is not None
            return arguments.flat(read.source)[where]

        return substituted(value, [], load)
