"""Matrix products whose factors are rounded to bfloat16: generated as those of float32, with terms in pairs.

Weights are packed in pairs. Other factors are rounded: numbers all at once, vectors panel by panel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.pairs import rounded
from heterocc.compiler.lower.cpu.generate.places import Place, index, offset_at
from heterocc.compiler.lower.cpu.generate.products.product import ProductWriter
from heterocc.compiler.lower.cpu.generate.products.product_form import find_product
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import PAIRS
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, is_one, moves

FEWEST_TERMS = 8
"""The number of terms below which a product stays in float32: rounding would take longer than it saves."""


def propose_paired_product(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a matrix product of fixed sizes."""
    product = find_product(kernel)
    if product is None or not can_store(kernel) or not all(map(is_number, kernel.extents)):
        return
    if as_number(product.terms.length) < FEWEST_TERMS:
        return

    def writer(isa: Isa) -> _Writer:
        return _Writer(kernel, product, isa.narrowed(product.columns.length), PAIRS)

    yield Candidate("product", writer(isa).cycles, writer, "of pairs", "int32")


class _Writer(ProductWriter):
    """A generator of a product of pairs."""

    rows: tirx.Buffer
    """The rounded numbers, row by row, if they are not a weight."""

    def must_copy(self) -> bool:
        """Whether vectors are copied: always, to round them."""
        return True

    @property
    def pitch(self) -> Size:
        """The distance of rounded rows in pairs: of whole vectors of 16."""
        return emit.spread(self.terms)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        if self.packed[0] is None:
            self._round(arguments)
        super().write(arguments)

    def _round(self, arguments: Arguments) -> None:
        """Round the numbers, row by row: zeros fill the last vector of 16 pairs.

        As many terms as fill vectors are read as they are, if they lie one beside the other.
        """
        product, side, lanes = self.product, self.product.numbers, 16
        flat, terms, chunk = arguments.flat(side.load.source), as_number(product.terms.length), 2 * lanes
        whole = terms // chunk if is_one(product.terms.step(side.form)) else 0
        axes = (*(a for a in product.outer if moves(side.form.steps[a.loops[0]])), product.rows)
        lengths = [axis.length for axis in axes]
        self.rows = emit.scratch(math.prod(lengths) * self.pitch, "int32")
        with emit.shared_loop(math.prod(lengths), product.work) as row:
            place = list(zip(axes, emit.unpacked(row, lengths), strict=True))

            def where(term: tirx.Expr) -> tirx.Expr:
                return offset_at(side.form, [*place, (product.terms, term)])

            def put(number: tirx.Expr, halves: Sequence[tirx.Expr]) -> None:
                emit.put(self.rows, rounded(*halves), row * index(self.pitch) + number * index(lanes), lanes)

            if whole:
                with emit.loop(whole) as number:
                    put(number, [emit.vector(flat, where(number * index(chunk) + index(n)), lanes) for n in (0, lanes)])
            if whole * chunk < terms:
                with emit.loop(-(-terms // chunk) - whole) as more:
                    number = index(whole) + more
                    held, start = emit.cleared(2, lanes), number * index(chunk)
                    with build.serial(index(0), tirx.min(index(terms) - start, index(chunk))) as term:
                        build.buffer_store(held, flat[where(start + term)], [term])
                    put(number, [emit.vector(held, index(n), lanes) for n in (0, lanes)])

    def numbers(
        self, arguments: Arguments, place: Place, rows: Run, first: tirx.Expr
    ) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
        """The pair of a row and a number of the pair."""
        if self.packed[0] is not None:
            return super().numbers(arguments, place, rows, first)
        base = self.number_of(self.product.numbers, place) * index(self.product.rows.length) + first
        return lambda row, term: self.rows[(base + row) * index(self.pitch) + term]
