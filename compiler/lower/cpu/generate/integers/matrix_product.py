"""Products of 8-bit integers by instructions that multiply whole matrices of them (AMX), on x86.

Source: Intel, Architecture Instruction Set Extensions Programming Reference, chapter on AMX.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_tile
from heterocc.compiler.lower.cpu.generate.integers.byte_product import ByteWriter, find_integer_product
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, index, offset_at
from heterocc.compiler.lower.cpu.generate.products.product_form import Product
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import as_number, exceeds, is_number, larger, smaller

_ROWS = 16
"""The most rows of a tile register."""

_BYTES = 64
"""The bytes of a row of a tile register."""

_GROUP = 4
"""Terms that lie beside each other for each column of a matrix of weights."""

_SUMS, _DATA, _WEIGHTS = (0, 1, 2, 3), (4, 5), (6, 7)
"""The numbers of the tile registers: for sums, two columns of each row of tiles, for data, and for weights."""

LEAST_ROWS = 4
"""Rows from which on matrices are faster: fewer leave most of an instruction's work unused."""

_LEAST_TERMS = 64
"""Terms from which on matrices are faster: the sums of each go through memory."""

_SUM_CYCLES = 1.0
"""The time of a row of sums, which goes through memory, more than one in registers takes."""

_LEAST_RUN = 16
"""Terms in a row from which on matrices are faster."""

_BLOCK = 1 << 19
"""Bytes of weights that stay in the second-level cache beside data and results."""


def propose_matrix_product(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as products of matrices of integers, if it is not too small."""
    product = find_integer_product(kernel) if isa.matrices else None
    if product is None or not is_number(product.work):
        return
    few = as_number(product.rows.length) < LEAST_ROWS or as_number(product.columns.length) < isa.lanes
    if few or as_number(product.terms.length) < _LEAST_RUN or as_number(product.summed) < _LEAST_TERMS:
        return
    writer = MatrixWriter(kernel, product, isa)
    yield Candidate("product of matrices", writer.cycles, lambda _: writer)


def terms_of(terms: int) -> int:
    """The terms of each matrix: as few matrices as possible, of equal sizes that do not exceed `terms`."""
    matrices = -(-terms // _BYTES)
    even = -(-terms // (_GROUP * matrices)) * _GROUP
    return even if even <= terms else terms // _GROUP * _GROUP


class MatrixWriter(ByteWriter):
    """Writes a product in tiles of up to 32 rows by 32 columns, whose sums are in four tile registers.

    The last rows and the last terms of a segment are read by a matrix that overlaps the one before, so that nothing
    beyond the data is read; weights of terms that are read twice are zeros there. A block of the weights stays in the
    second-level cache, while each tile of rows goes through all of its columns.
    """

    def __init__(self, kernel: Kernel, product: Product, isa: Isa) -> None:
        super().__init__(kernel, product, isa)
        rows = as_number(product.rows.length)
        matrices = -(-rows // _ROWS)
        self.height = -(-rows // matrices)  # of each matrix of the rows at a place of the outer axes
        self.outer = (*(a.length for a in product.outer), matrices)
        self.row_runs = runs(math.prod(self.outer), 2)
        self.column_runs = runs(-(-product.columns.length // isa.lanes), 2)
        self.panels = replace(self.panels, runs=self.column_runs, chunk=terms_of(as_number(product.terms.length)))
        self.packed, self.packings = (None, self.panels), (self.panels,)

    @property
    def cycles(self) -> float:
        """Modelled time: 16 cycles for each product of matrices, and some for each row of their sums."""
        matrices = self.panels.steps * self.panels.group // self.panels.chunk
        vectors = as_number(math.prod(self.outer)) * self.panels.vectors
        return vectors * (_ROWS * matrices + _SUM_CYCLES * self.height)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        self.data = arguments.flat(self.product.numbers.load.source)
        work = self.product.work
        tiles, columns = (sum(r.count for r in some) for some in (self.row_runs, self.column_runs))
        blocks = smaller(columns, larger(-(-self.panels.size // _BLOCK), emit.shares(work, tiles, columns)))
        parts = emit.shares(work, blocks, tiles)
        with emit.shared_loop(blocks * parts, work) as task, self._tile_registers():
            self.results = [emit.scratch(self.height * self.isa.lanes, "int32") for _ in _SUMS]
            block, part = emit.unpacked(task, (blocks, parts))
            with emit.share_loop(part, parts, tiles) as tile, emit.share_loop(block, blocks, columns) as column:
                emit.either_run(
                    self.row_runs,
                    tile,
                    lambda rows: emit.either_run(
                        self.column_runs, column, lambda run: self._block(arguments, rows, tile, run, column)
                    ),
                )

    @contextmanager
    def _tile_registers(self) -> Iterator[None]:
        """Set up the shapes of the tile registers, and free them at the end, which makes switching threads cheap."""
        shapes = {
            **dict.fromkeys(_SUMS, (self.height, _BYTES)),
            **dict.fromkeys(_DATA, (self.height, self.panels.chunk)),
            **dict.fromkeys(_WEIGHTS, (self.panels.chunk // _GROUP, _BYTES)),
        }
        held = emit.scratch(64, "uint8")
        emit.put(held, build.broadcast(tirx.const(0, "uint8"), 64), index(0), 64)
        palette, widths, heights = 0, 16, 48
        for place, byte in [
            (palette, 1),
            *((widths + 2 * register, width) for register, (_, width) in shapes.items()),
            *((heights + register, height) for register, (height, _) in shapes.items()),
        ]:
            emit.put(held, tirx.const(byte, "uint8"), index(place), 1)
        _run("ldtilecfg", tirx.address_of(held[index(0)]))
        yield
        _run("tilerelease")

    def _block(self, arguments: Arguments, rows: Run, tile: tirx.Expr, columns: Run, column: tirx.Expr) -> None:
        """Compute and store one tile, given by its runs and its numbers among the tiles of rows and of columns."""
        product, lanes, height = self.product, self.isa.lanes, self.height
        first, number = emit.start_of(rows, tile), emit.start_of(columns, column)
        places = [self._place(first + index(n)) for n in range(rows.size)]
        wide = columns.size
        registers = [[_SUMS[2 * n + v] for v in range(wide)] for n in range(len(places))]
        for held in registers:
            for register in held:
                _run("tilezero", _number(register))
        self._multiply(arguments, places, columns, number)
        starts = [self.start((number + index(v)) * index(lanes)) for v in range(wide)]
        for place, held in zip(places, registers, strict=True):
            for register in held:
                where = tirx.address_of(self.results[register][index(0)])
                _run("tilestored64", _number(register), where, index(_BYTES))

            def at_number(row: tirx.Expr, column: int, lane: tirx.Expr, place: Place = place) -> Place:
                *outer, (_, top) = place
                return [*outer, (product.rows, top + row), (product.columns, starts[column] + lane)]

            sums = [self.results[register] for register in held]
            store_tile(self.kernel, arguments, sums, height, lanes, at_number, lambda _: lanes, in_memory=True)

    def _place(self, matrix: tirx.Expr) -> Place:
        """The place of the first row of the matrix of this number."""
        length, height = self.product.rows.length, self.height
        *outer, tile = emit.unpacked(matrix, self.outer)
        top = tile * index(height)
        if exceeds(length, height):
            top = tirx.min(top, index(length - height))
        return [*zip(self.product.outer, outer, strict=True), (self.product.rows, emit.bound(top))]

    def _multiply(self, arguments: Arguments, places: list[Place], run: Run, number: tirx.Expr) -> None:
        """Add the products of all terms to the tile registers of the sums, for rows from each of `places` on."""
        product, panels = self.product, self.panels
        weights = arguments.flat(self.kernel.function.params[panels.argument])
        pitch = index(product.rows.stride(product.numbers.form))
        matrices = panels.groups * panels.group // panels.chunk
        size = panels.chunk * self.isa.lanes * run.size
        last = product.terms.length - panels.chunk
        with emit.loop(panels.segments) as segment:
            values = emit.unpacked(segment, [a.length for a in product.segments])
            inside = list(zip(product.segments, values, strict=True))
            starts = [offset_at(product.numbers.form, [*place, *inside]) for place in places]
            base = number * index(panels.pitch) + segment * index(matrices * size)
            with emit.loop(matrices) as matrix:
                term = matrix * index(panels.chunk)
                if exceeds(product.terms.length, panels.chunk):
                    term = tirx.min(term, index(last))
                columns = _WEIGHTS[: run.size]
                for v, register in enumerate(columns):
                    where = weights[base + matrix * index(size) + index(v * _BYTES)]
                    _run("tileloadd64", _number(register), tirx.address_of(where), index(run.size * _BYTES))
                for n, start in enumerate(starts):
                    data = tirx.address_of(self.data[start + term])
                    _run("tileloadd64", _number(_DATA[n]), data, pitch)
                    for v, register in enumerate(columns):
                        _run("tdpbusd", *map(_number, (_SUMS[2 * n + v], _DATA[n], register)))


def _number(register: int) -> tirx.Expr:
    return tirx.const(register, "int8")


def _run(instruction: str, *operands: tirx.Expr) -> None:
    build.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{instruction}", *operands))
