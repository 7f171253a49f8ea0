"""Weights of 2, 4 or 8 bits in blocks, each with a scale and a zero point, and products with them (decision 90)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.requested import has_plain_sizes, requested
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, rank_of, scalar
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import array_of, constant
from heterocc.compiler.lower.variables import as_int64
from heterocc.runtime.execute.memory import aligned_bytes

op = relax.op

TILE = 16
"""Columns of the product whose codes lie side by side."""

TERMS = 4
"""Codes of a column that lie side by side in a word of 32 bits, one in each byte, for products of bytes."""


BYTE = 8
"""Bits of codes that can have a sign."""

SIGN = 128
"""The difference of a byte without a sign from one with it; also its highest bit."""


PIECE = 1 << 22
"""Codes that are unpacked at once: a table of tokens has a billion, a byte each."""


def fills_words(bits: int, block: int) -> bool:
    """Whether a block of codes of so many bits has a whole number of words."""
    return block % (TERMS * 8 // bits) == 0


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """Codes uint8 [columns, blocks, block] in bytes [columns, …], which a slice of the columns unpacks."""

    packed: np.ndarray
    bits: int
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, columns: slice) -> np.ndarray:
        _, blocks, block = self.shape
        return unpacked(self.packed[columns], self.bits)[:, : blocks * block].reshape(-1, blocks, block)


@dataclass(frozen=True, slots=True)
class MatrixCodes:
    """Codes uint8 [columns, blocks, block] of the integers of a matrix, each `added` to one; a slice computes them.

    The terms lie along `axis`; codes beyond them are those of 0.
    """

    matrix: np.ndarray | PackedArray
    axis: int
    added: int
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, columns: slice) -> np.ndarray:
        first, last, _ = columns.indices(len(self))
        side = 1 - self.axis
        if isinstance(self.matrix, PackedArray):
            part = self.matrix.part(side, first, last)
        else:
            part = self.matrix[first:last] if self.axis else self.matrix[:, first:last]
        numbers = part.view(np.uint8) if self.axis else part.view(np.uint8).T
        _, blocks, block = self.shape
        codes = np.full((len(numbers), blocks * block), self.added, np.uint8)
        codes[:, : numbers.shape[1]] = numbers + np.uint8(self.added)  # beyond 255, 0 follows
        return codes.reshape(-1, blocks, block)


@dataclass(frozen=True, slots=True)
class OrderedCodes:
    """Codes in another order: `source` has the place of each along the terms, and their number for none: 0 is there."""

    codes: PackedCodes
    source: np.ndarray
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, columns: slice) -> np.ndarray:
        found = self.codes[columns]
        flat = np.pad(found.reshape(len(found), -1), ((0, 0), (0, 1)))
        return flat[:, self.source].reshape(len(found), *self.shape[1:])


@dataclass(frozen=True, slots=True)
class BlockedWeight:
    """A weight of `columns` × `terms`: (code - zero point) · scale.

    `codes` are uint8 [columns, blocks, block]; those beyond `terms` are not used. `scales` are float [columns, blocks],
    `zeros` are the codes that stand for 0: uint8 or float [columns, blocks], or one for all. With `table`, [16] of
    float32, a code is the place of a number in it, and `zeros` is 0.
    """

    bits: int
    terms: int
    codes: np.ndarray | PackedCodes | MatrixCodes | OrderedCodes
    scales: np.ndarray
    zeros: np.ndarray | int
    table: np.ndarray | None = None

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return len(self.codes)

    @property
    def block(self) -> int:
        """Codes of a block."""
        return int(self.codes.shape[2])

    @property
    def fills_words(self) -> bool:
        """Whether a block has a whole number of `words`."""
        return fills_words(self.bits, self.block)

    def unpacked(self, dtype: str) -> np.ndarray:
        """The weight [terms, columns] as numbers."""
        middle = self.zeros if isinstance(self.zeros, int) else self.zeros[..., None].astype(np.float32)
        numbers = self.codes[:].astype(np.float32) if self.table is None else self.table[self.codes[:]]
        values = (numbers - middle) * self.scales[..., None].astype(np.float32)
        return np.ascontiguousarray(values.reshape(self.columns, -1)[:, : self.terms].T).astype(dtype)

    def words(self) -> np.ndarray:
        """The codes as int32 [tiles, blocks, words, TILE], which the CPU's kernel reads.

        A word has 4 bytes of 8 / bits codes of a column. With as many steps of 4 terms, byte j has in its lowest bits
        term j of the first step, then that of the next step.
        """
        steps = 8 // self.bits
        columns, blocks, block = self.codes.shape
        tiles = -(-columns // TILE)
        shape = (tiles, blocks, block // (steps * TERMS), TILE, TERMS)
        made = aligned_bytes(math.prod(shape)).reshape(shape)
        made[...] = 0
        piece = max(1, PIECE // (TILE * blocks * block))
        for first in range(0, tiles, piece):
            codes = self.codes[first * TILE : (first + piece) * TILE]
            padded = np.zeros((-(-len(codes) // TILE) * TILE, blocks, block), np.uint8)
            padded[: len(codes)] = codes
            split = padded.reshape(-1, TILE, blocks, block // (steps * TERMS), steps, TERMS)
            for step in range(steps):
                made[first : first + piece] |= (split[:, :, :, :, step] << (self.bits * step)).transpose(0, 2, 3, 1, 4)
        return made.view("<i4")[..., 0]

    def code(self, words: te.Tensor, row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
        """The code of a column, here a row, and a term in `words`, as int32."""
        steps = 8 // self.bits
        block, inside = tirx.floordiv(term, self.block), tirx.floormod(term, self.block)
        step, byte = tirx.floormod(tirx.floordiv(inside, TERMS), steps), tirx.floormod(inside, TERMS)
        word = words(tirx.floordiv(row, TILE), block, tirx.floordiv(inside, TERMS * steps), tirx.floormod(row, TILE))
        shift = tirx.Cast("int32", byte * 8 + step * self.bits)
        return tirx.bitwise_and(tirx.shift_right(word, shift), tirx.const((1 << self.bits) - 1, "int32"))

    def in_tiles(self, values: np.ndarray) -> np.ndarray:
        """Numbers of each block [columns, blocks] as [tiles, blocks, TILE]; zeros follow the last column."""
        whole, rest = divmod(self.columns, TILE)
        shape = (whole + (rest > 0), values.shape[1], TILE)
        # Constants share aligned memory: of scales they would be copies, as large as a quarter of the codes.
        made = aligned_bytes(math.prod(shape) * values.itemsize).view(values.dtype).reshape(shape)
        made[whole:] = 0
        made[:whole] = values[: whole * TILE].reshape(whole, TILE, shape[1]).transpose(0, 2, 1)
        made[whole:, :, :rest] = values[whole * TILE :].T
        return made


def blocked_product(ctx: Context, a: relax.Expr, weight: BlockedWeight, *, rounded: bool) -> relax.Expr:
    """`a` [..., terms] times the weight. With `rounded` the numbers of `a` are int8 times a scale for each block."""
    if ctx.backend == "cpu" and has_plain_sizes(a) and weight.fills_words:
        return _of_codes(ctx, a, weight, rounded=rounded)
    return ctx.bb.normalize(op.matmul(a, constant(weight.unpacked(dtype_of(a)))))


def _of_codes(ctx: Context, a: relax.Expr, weight: BlockedWeight, *, rounded: bool) -> relax.Expr:
    dtype = dtype_of(a)
    factor = block_factor(ctx, a, weight, rounded=rounded)
    tables, options = weight_tables(ctx, weight, rounded=rounded)
    result = [((*dims_of(factor[0])[:-1], weight.columns), "float32")]
    return as_dtype(requested(ctx, "blocked_product", [*factor, *tables], result, **options), dtype)


def block_factor(ctx: Context, a: relax.Expr, weight: BlockedWeight, *, rounded: bool) -> list[relax.Expr]:
    """The other factor as kernels read it: numbers and their sums by block, or codes, their scales and sums."""
    data = as_dtype(ctx.bb.normalize(a), "float32")
    if more := weight.codes.shape[1] * weight.block - weight.terms:
        data = op.nn.pad(data, [0, 0] * (rank_of(a) - 1) + [0, more])
    data = ctx.bb.normalize(data)
    *rows, terms = dims_of(data)
    blocks = [as_int64(n) for n in (*rows, terms // weight.block)]
    apart = ctx.bb.emit(op.reshape(data, [*blocks, as_int64(weight.block)]))
    if not rounded:
        return [data, ctx.bb.emit(op.sum(apart, -1))]
    # The largest of numbers leaves a NaN out, of which a sum is NaN.
    most = ctx.bb.emit(op.max(op.abs(apart), -1, keepdims=True))
    zero, levels = scalar(0.0, "float32"), scalar(_LEVELS, "float32")
    inverse = op.where(op.equal(most, zero), zero, op.divide(levels, most))
    found = ctx.bb.emit(op.round(op.multiply(apart, ctx.bb.emit(inverse))))
    total = ctx.bb.emit(op.sum(found, -1))
    scales = op.where(op.isnan(total), total, op.reshape(op.divide(most, levels), blocks))
    codes = op.reshape(op.astype(found, "int8"), data.ty.shape)
    return [ctx.bb.emit(value) for value in (codes, scales, op.astype(total, "int32"))]


def weight_tables(ctx: Context, weight: BlockedWeight, *, rounded: bool) -> tuple[list[relax.Expr], dict[str, int]]:
    """The weight as kernels read it, words, scales, and what they need of zero points and a table; and its options."""
    # Most codes are near the zero point: sums of codes without signs would lose digits to cancellation.
    signed = not rounded and weight.bits == BYTE and (isinstance(weight.zeros, int) or weight.zeros.dtype == np.uint8)
    options = {
        "bits": weight.bits,
        "block": weight.block,
        "table": int(weight.table is not None),
        "signed": int(signed),
    }
    tables: list[relax.Expr] = []
    if isinstance(weight.zeros, int):
        options["zero"] = weight.zeros
    else:
        tables.append(_shared(ctx, weight.in_tiles(weight.zeros)))
    if weight.table is not None:
        tables.append(constant(weight.table))
    return [_shared(ctx, weight.words()), _shared(ctx, weight.in_tiles(weight.scales)), *tables], options


_LEVELS = 127.0
"""The code of the largest number of a block."""

_TABLES = "tables of rows"


def table_constants(ctx: Context, arrays: Iterable[np.ndarray]) -> list[relax.Expr]:
    """Constants of a table in a product's layout, which a product with the same ones shares."""
    found = [constant(array) for array in arrays]
    known = ctx.notes.setdefault(_TABLES, [])
    assert isinstance(known, list)
    known.extend(found)
    return found


def _shared(ctx: Context, array: np.ndarray) -> relax.Expr:
    """A constant; that of a table if it has the same contents: until they are packed, both would need memory."""
    known = ctx.notes.get(_TABLES, [])
    assert isinstance(known, list)
    for table in known:
        other = array_of(table)
        if (other.shape, other.dtype) == (array.shape, array.dtype) and np.array_equal(other, array):
            return table
    return constant(array)


def gathered_rows(ctx: Context, weight: BlockedWeight, rows: relax.Expr) -> relax.Expr:
    """The columns of a weight with these numbers, as rows of float32: a table that is a product's weight, too.

    Such a table is stored once, in the product's layout, in which a row lies apart; few are read. A run ends with an
    error for a number that is out of range; negative ones count from the end.
    """
    places, most = dims_of(rows), weight.columns
    known = checked_places(ctx, rows, [most])
    stored = [weight.words(), weight.in_tiles(weight.scales.astype(np.float32))]
    if not isinstance(weight.zeros, int):
        stored.append(weight.in_tiles(weight.zeros))

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        chosen, words, scales, *zeros = tensors

        def at(*i: tirx.Var) -> tirx.Expr:
            *outer, term = i
            given = tirx.Cast("int64", chosen(*outer))
            row = tirx.max(tirx.min(given, as_int64(most - 1)), as_int64(0))
            block = [tirx.floordiv(row, TILE), tirx.floordiv(term, weight.block), tirx.floormod(row, TILE)]
            middle = tirx.Cast("int32", zeros[0](*block)) if zeros else tirx.const(weight.zeros, "int32")
            return tirx.Cast("float32", weight.code(words, row, term) - middle) * scales(*block)

        return te.compute(wanted, at, name="gather_rows")

    given = [known, *table_constants(ctx, stored)]
    return emit_sized(ctx.bb, compute, given, [], [*places, weight.terms], "float32", "gather_rows")


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes of bytes along the last axis, the first of a byte in its lowest bits."""
    count = 8 // bits
    made = np.empty((*packed.shape[:-1], packed.shape[-1] * count), np.uint8)
    for place in range(count):
        np.right_shift(packed, place * bits, out=made[..., place::count])
    made &= (1 << bits) - 1
    return made
