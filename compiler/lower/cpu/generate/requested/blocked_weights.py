"""The arguments of a product with a weight in blocks, and how its codes are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.quantised.blocks import SIGN, TERMS, TILE
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.kernels.expressions import divisor_up_to

PLAIN = 32
"""The bits of weights that are numbers, of float32 or float16, in one block for each tile of columns."""

_TABLE, _TABLE_BITS = 16, 4
"""The numbers of a table in a register of AVX-512, and the bits that are a place in it."""

_SIGNS = -0x7F7F7F80
"""The highest bits of the bytes of a word: changing them makes bytes with a sign of those that are SIGN more."""


_CHUNK = 512
"""Terms whose weights are unpacked together: with the rows of a tile they stay in the nearest caches."""

RowPlaces = Callable[[tirx.Expr, int], Callable[[tirx.Expr], tirx.Expr]]
"""The places of some rows from the first on, by their numbers in a tile."""


def in_order(first: tirx.Expr, _: int) -> Callable[[tirx.Expr], tirx.Expr]:
    """Rows that follow each other."""
    return lambda row: first + row


@dataclass(frozen=True, slots=True)
class BlockedArguments:
    """The arguments of a kernel, as flat buffers.

    `rows` are the rows, their scales if they are int8, and their sums by block. `zeros` are the codes that stand for 0,
    one of each block and column, or one for all. `table` has the numbers that codes are places of. With `signed`, codes
    of 8 bits are read as numbers that are SIGN less. The others are as BlockedWeight has them. The weight begins with
    tile `begin` of its arrays; `sources` and `targets` are the places of rows, and of those of the result.
    """

    isa: Isa
    bits: int
    block: int
    blocks: int
    columns: int
    rows: Sequence[tirx.Buffer]
    words: tirx.Buffer
    scales: tirx.Buffer
    zeros: tirx.Buffer | int
    table: tirx.Buffer | None
    result: tirx.Buffer
    signed: bool = False
    begin: tirx.Expr | None = None
    sources: RowPlaces = in_order
    targets: RowPlaces = in_order

    @property
    def rounded(self) -> bool:
        """Whether the rows are int8."""
        return len(self.rows) > 2

    @property
    def plain(self) -> bool:
        """Whether the weights are numbers, not codes."""
        return self.bits == PLAIN

    @property
    def terms(self) -> int:
        """Terms of a row."""
        return self.blocks * self.block

    @property
    def chunk(self) -> int:
        """Blocks whose weights are unpacked together."""
        return divisor_up_to(self.blocks, max(1, _CHUNK // self.block))

    @property
    def steps(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits

    @property
    def words_of_block(self) -> int:
        """Words of a column in a block."""
        return self.block // (self.steps * TERMS)

    def column(self, vector: tirx.Expr, block: tirx.Expr) -> tirx.Expr:
        """The place of the first scale of a block, for a vector of columns."""
        start = vector * index(self.isa.lanes)
        tile, inside = tirx.floordiv(start, index(TILE)), tirx.floormod(start, index(TILE))
        tile = tile if self.begin is None else self.begin + tile
        return build.bind((tile * index(self.blocks) + block) * index(TILE) + inside)

    def plain_place(self, vector: tirx.Expr) -> tirx.Expr:
        """The place of the first number of a vector of columns, whose terms are TILE apart."""
        place = self.column(vector, index(0))
        inside = tirx.floormod(place, index(TILE))
        return build.bind((place - inside) * index(self.block) + inside)

    def scale(self, column: tirx.Expr) -> tirx.Expr:
        """The scales of a block."""
        lanes = self.isa.lanes
        return tirx.Cast(f"float32x{lanes}", emit.vector(self.scales, column, lanes))

    def zero(self, column: tirx.Expr, dtype: str) -> tirx.Expr:
        """The codes that stand for 0 in a block, as numbers of a dtype."""
        lanes = self.isa.lanes
        less = SIGN if self.signed else 0
        if not isinstance(self.zeros, tirx.Buffer):
            return emit.broadcast(tirx.const(self.zeros - less, dtype), lanes)
        zero = tirx.Cast(f"{dtype}x{lanes}", emit.vector(self.zeros, column, lanes))
        return zero - emit.broadcast(tirx.const(less, dtype), lanes) if less else zero

    def word(self, column: tirx.Expr, word: tirx.Expr) -> tirx.Buffer:
        """A register with the words of a number of a block."""
        lanes = self.isa.lanes
        inside = tirx.floormod(column, index(TILE))
        base = (column - inside) * index(self.words_of_block) + inside
        value = emit.vector(self.words, base + word * index(TILE), lanes)
        if self.signed:
            value = tirx.bitwise_xor(value, emit.broadcast(tirx.const(_SIGNS, "int32"), lanes))
        return emit.register(value, lanes, "int32")

    def codes(self, word: tirx.Buffer, step: int, term: int | None = None) -> tirx.Expr:
        """The codes of a step in their bytes, or those of one term in 32 bits."""
        lanes, ty = self.isa.lanes, f"int32x{self.isa.lanes}"
        value = emit.vector(word, index(0), lanes)
        if self.signed and term is not None:
            highest = tirx.shift_left(value, tirx.const(8 * (TERMS - 1 - term), ty))
            return tirx.shift_right(highest, tirx.const(8 * (TERMS - 1), ty))
        if shift := self.bits * step + (0 if term is None else 8 * term):
            value = tirx.shift_right(value, tirx.const(shift, ty))
        mask = ((1 << self.bits) - 1) * (1 if term is not None else 0x01010101)
        return value if term is None and self.bits == 8 else tirx.bitwise_and(value, tirx.const(mask, ty))

    def numbers(self, word: tirx.Buffer, step: int, term: int) -> tirx.Expr:
        """The numbers that the codes of one term stand for, or the codes themselves, as float32."""
        lanes, ty = self.isa.lanes, f"int32x{self.isa.lanes}"
        if lanes < _TABLE or self.bits > _TABLE_BITS:
            codes = self.codes(word, step, term)
            return tirx.Cast(f"float32x{lanes}", codes) if self.table is None else self.table[codes]
        # One instruction looks up the lowest four bits of each lane in a table.
        if self.table is None:
            every = build.ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
            table = tirx.Cast(f"float32x{lanes}", tirx.bitwise_and(every, tirx.const((1 << self.bits) - 1, ty)))
        else:
            table = emit.vector(self.table, index(0), lanes)
        places = emit.vector(word, index(0), lanes)
        if shift := self.bits * step + 8 * term:
            places = tirx.shift_right(places, tirx.const(shift, ty))
        return tirx.call_llvm_intrin(f"float32x{lanes}", "llvm.x86.avx512.permvar.sf.512", table, places)

    def store(
        self, sums: tirx.Buffer, first: tirx.Expr, count: int, vector: tirx.Expr, chunk: tirx.Expr | None = None
    ) -> None:
        """Store `count` rows of a vector of columns; from chunk 1 on they are added to what is there."""
        lanes = self.isa.lanes
        start, target = build.bind(vector * index(lanes)), self.targets(first, count)

        def write(width: int, *, adds: bool) -> None:
            step = lanes if width == lanes else 1  # what is left of a vector is stored number by number
            with emit.loop(count, "unroll") as row, emit.loop(width // step) as lane:
                place = target(row) * index(self.columns) + start + lane
                total = emit.vector(sums, row * index(lanes) + lane, step)
                if adds:
                    total = total + emit.vector(self.result, place, step)
                emit.put(self.result, total, place, step)

        def by_width(*, adds: bool) -> None:
            rest = self.columns % lanes
            if not rest:
                write(lanes, adds=adds)
            elif self.columns < lanes:
                write(rest, adds=adds)
            else:
                whole = start + index(lanes) <= index(self.columns)
                emit.either(whole, lambda: write(lanes, adds=adds), lambda: write(rest, adds=adds))

        if chunk is None:
            by_width(adds=False)
        else:
            emit.either(chunk.equal(index(0)), lambda: by_width(adds=False), lambda: by_width(adds=True))
