"""Products of 8-bit integers by a weight: matrix products, and convolutions of channels-last maps.

Each output is a sum over terms of one unsigned number, which a row of outputs shares, and a vector of signed weights
along the output's last axis. Terms that lie in a row in memory are taken in groups, as many as one instruction
multiplies and adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, index, offset_at
from heterocc.compiler.lower.cpu.generate.products.product import ProductWriter
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, find_product
from heterocc.compiler.lower.cpu.generate.products.product_reads import Panel
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import BYTES
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import Size, is_number, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of


def propose_integer_product(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a product of integers by a weight."""
    product = find_integer_product(kernel)
    if product is None:
        return

    def writer(isa: Isa) -> ByteWriter:
        if isa.dot == "pairs":  # their products are in a register of their own before they are added
            isa = replace(isa, registers=isa.registers - 1)
        return ByteWriter(kernel, product, isa if isa.dot == "bytes" else isa.narrowed(product.columns.length))

    yield Candidate("product of bytes", writer(isa).cycles, writer)


def find_integer_product(kernel: Kernel) -> Product | None:
    """Read a kernel as a product of unsigned numbers and a signed weight."""
    if not can_store(kernel) or (dtype_of(kernel.left), dtype_of(kernel.right)) != ("uint8", "int8"):
        return None
    return find_product(kernel, by_weight=True)


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers of groups of a segment that are added at once, with so many terms each, and the segment's places."""

    data: tirx.Expr
    weight: tirx.Expr
    groups: Sequence[tirx.Expr]
    terms: int


class ByteWriter(ProductWriter):
    """Writes a product: panels of columns, whose weights stay in a cache, each down all rows."""

    def __init__(self, kernel: Kernel, product: Product, isa: Isa) -> None:
        super().__init__(kernel, product, isa, BYTES[isa.dot])
        assert self.packed[1] is not None
        self.panels = self.packed[1]
        self.cost = self.panels.steps * self.kind.cost  # instructions for a row and a vector

    @property
    def cycles(self) -> float:
        """Modelled time of the multiplications and additions."""
        tiles = [(typical(r.count), r.size, typical(v.count) * v.size) for r in self.row_runs for v in self.column_runs]
        outer = math.prod(typical(a.length) for a in self.product.outer)
        return outer * self.cost / 2 * sum(count * rows * vectors for count, rows, vectors in tiles)

    def sums(
        self, arguments: Arguments, place: Place, panel: Panel, tile: tirx.Expr, rows: Run, first: tirx.Expr
    ) -> Sequence[tirx.Buffer]:
        """Compute the sums of a tile, whose rows begin with the first."""
        product, panels, run = self.product, self.panels, panel.run
        flat = arguments.flat(product.numbers.load.source)
        weights = arguments.flat(self.kernel.function.params[panels.argument])
        form, size = product.numbers.form, panels.lanes * panels.group
        pitch = product.rows.stride(form)

        def numbers(row: tirx.Expr, step: Groups) -> Sequence[tirx.Expr]:
            places = (step.data + row * index(pitch) + group * index(panels.group) for group in step.groups)
            return [self.kind.number(flat, where, step.terms) for where in places]

        def columns(column: int, step: Groups) -> Sequence[tirx.Expr]:
            places = (step.weight + (group * index(run.size) + index(column)) * index(size) for group in step.groups)
            return [emit.vector(weights, where, size) for where in places]

        def walk(_: Size, step: Step) -> None:
            with emit.loop(panels.segments) as segment:
                values = emit.unpacked(segment, [a.length for a in product.segments])
                inside = zip(product.segments, values, strict=True)
                data = offset_at(form, [*place, (product.rows, first), *inside])
                weight = panel.number * index(panels.pitch) + segment * index(panels.groups * size * run.size)
                self.walk(lambda groups, terms, n: step(Groups(data, weight, groups, terms), n))

        return emit.product_tile(rows.size, run.size, panels.steps, self.isa, numbers, columns, walk, kind=self.kind)

    def walk(self, step: Callable[[Sequence[tirx.Expr], int, int], None]) -> None:
        """Call `step` for the groups of a segment that are added at once, with the number of terms in each."""
        panels = self.panels
        whole, more = divmod(panels.terms, panels.group)
        if self.isa.dot == "pairs" and self.isa.core.few_registers:
            # Unrolled, LLVM widens the weights of several groups at once, and stores sums to have registers for them.
            unroll = 1
        else:
            # Rows of any number have code for many sizes of tiles, whose loops are kept short.
            unroll = emit.UNROLL if is_number(self.product.rows.length) else emit.UNROLL // 2
        emit.in_turn(whole, lambda group, number: step([group], panels.group, number), unroll)
        if more:
            step([index(whole)], more, 0)
