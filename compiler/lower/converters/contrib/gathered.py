"""Rows of a table of codes in blocks: GatherBlockQuantized, as embeddings of language models are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.quantised.blocks import (
    TERMS,
    TILE,
    BlockedWeight,
    PackedCodes,
    table_constants,
    unpacked,
)
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, rank_of
from heterocc.compiler.lower.sized import emit_sized

Places = Sequence[tirx.Expr]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Table:
    """Codes of `bits` bits: `each` in a byte along the last axis, in blocks of `block` `along` one axis.

    `zeros` are the codes that stand for 0 in each block, or one for all; both are in the codes' unsigned form.
    """

    bits: int
    each: int
    block: int
    along: int
    codes: Array
    zeros: Array | int

    def code(self, table: te.Tensor, at: Places) -> tirx.Expr:
        """The code at a place, as int32."""
        *outer, last = at
        if self.each == 1:
            return tirx.Cast("int32", table(*at))
        byte = tirx.Cast("int32", table(*outer, tirx.floordiv(last, self.each)))
        shift = tirx.Cast("int32", tirx.floormod(last, self.each) * self.bits)
        return tirx.bitwise_and(tirx.shift_right(byte, shift), tirx.const((1 << self.bits) - 1, "int32"))

    def place(self, at: Places) -> Places:
        """The place of the block of a place in scales and zero points."""
        return [tirx.floordiv(n, self.block) if axis == self.along else n for axis, n in enumerate(at)]

    def stored(self, scales: Array) -> tuple[Array, ...]:
        """The codes, scales and zero points that are not one for all, as `code` and `place` find them."""
        return (self.codes, scales, *([] if isinstance(self.zeros, int) else [self.zeros]))

    @property
    def shape(self) -> list[int]:
        """The sizes of the table of numbers."""
        *before, last = self.codes.shape
        return [*before, last * self.each]

    def number(self, data: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None, at: Places) -> tirx.Expr:
        """The number at a place, as float32."""
        block = self.place(at)
        zero = tirx.const(self.zeros, "int32") if zeros is None else tirx.Cast("int32", zeros(*block))
        return tirx.Cast("float32", self.code(data, at) - zero) * tirx.Cast("float32", scales(*block))


@dataclass(frozen=True, slots=True)
class _Multiplied(_Table):
    """A matrix whose rows are columns of a product's weight too, in the layout of this one (decision 90)."""

    def code(self, table: te.Tensor, at: Places) -> tirx.Expr:
        """The code at a place, as int32."""
        one = BlockedWeight(self.bits, self.block, np.zeros((1, 1, self.block), np.uint8), np.ones((1, 1)), 0)
        return one.code(table, *at)

    def place(self, at: Places) -> Places:
        """The place of the block of a place in scales and zero points."""
        row, term = at
        return [tirx.floordiv(row, TILE), tirx.floordiv(term, self.block), tirx.floormod(row, TILE)]

    def stored(self, scales: Array) -> tuple[Array, ...]:
        """The codes, scales and zero points that are not one for all, as `code` and `place` find them."""
        rows, width = self.shape
        codes = PackedCodes(self.codes.reshape(rows, -1), self.bits, (rows, width // self.block, self.block))
        weight = BlockedWeight(self.bits, width, codes, scales, self.zeros)
        zeros = [] if isinstance(self.zeros, int) else [weight.in_tiles(self.zeros)]
        return (weight.words(), weight.in_tiles(scales), *zeros)


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    ctx: Context,
    data: relax.Expr,
    indices: relax.Expr,
    scales: relax.Expr,
    zeros: relax.Expr | None = None,
) -> relax.Expr:
    """Rows of a table, of which only those that are read are dequantised. Rows beyond its ends are zeros."""
    table = _table(ctx, data, scales, zeros)
    if _is_multiplied(ctx, table):
        table = _Multiplied(table.bits, table.each, table.block, table.along, table.codes, table.zeros)
    rank, places = rank_of(data), dims_of(indices)
    factors = ctx.array(scales)
    assert factors is not None
    axis = ctx.attrs.get("gather_axis", 0) % rank
    if axis == table.along:
        raise NotImplementedError("the blocks must lie along another axis than that of the rows")
    shape = table.shape
    wanted = (*shape[:axis], *places, *shape[axis + 1 :])
    result = ctx.values[ctx.node.output[0]].dtype

    def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        chosen, codes, factors, *offsets = tensors
        (count,) = sizes

        def at(*i: tirx.Var) -> tirx.Expr:
            given = tirx.Cast("int64", chosen(*i[axis : axis + len(places)]))
            row = tirx.Select(given < 0, given + count, given)
            inside = tirx.all(row >= 0, row < count)
            where = [*i[:axis], tirx.Select(inside, row, tirx.const(0, "int64")), *i[axis + len(places) :]]
            number = table.number(codes, factors, offsets[0] if offsets else None, where)
            # Not a Select: TVM knows in it that the row is inside, and reads the row that was given before it chooses.
            return tirx.Cast(result, tirx.if_then_else(inside, number, tirx.const(0.0, "float32")))

        return te.compute(wanted, at, name="gather_blocks")

    given = [indices, *table_constants(ctx, table.stored(factors))]
    return emit_sized(ctx.bb, compute, given, [shape[axis]], wanted, result, "gather_blocks")


def _table(ctx: Context, data: relax.Expr, scales: relax.Expr, zeros: relax.Expr | None) -> _Table:
    """The table in its unsigned form. ONNX's types of 4 bits have a byte for each code here: two are put in one."""
    bits, block = ctx.attrs.get("bits", 4), ctx.attrs.get("block_size", 128)
    along = ctx.attrs.get("quantize_axis", 1) % rank_of(data)
    codes, points = ctx.array(data), None if zeros is None else ctx.array(zeros)
    if codes is None or ctx.array(scales) is None or (zeros is not None and points is None):
        raise NotImplementedError("the table, scales and zero points must be constant")
    kind = ctx.values[ctx.node.input[0]].dtype
    if kind == "uint8" and bits in (2, 4, 8) and block:
        middle = 1 << (bits - 1) if points is None else unpacked(points, bits)
        return _Table(bits, 8 // bits, block, along, codes, middle)
    if kind not in ("int4", "uint4") or not block:
        raise NotImplementedError("the table must have integers of 2, 4 or 8 bits in blocks")
    first = 8 if kind == "int4" else 0
    middle = first if points is None else _unsigned(points, first)
    codes = _unsigned(codes, first)
    if codes.shape[-1] % 2:
        return _Table(4, 1, block, along, codes, middle)
    return _Table(4, 2, block, along, codes[..., 0::2] | (codes[..., 1::2] << 4), middle)


def _is_multiplied(ctx: Context, table: _Table) -> bool:
    """Whether a product of the partition has a weight of this form: the same one in models with tied embeddings.

    The layout of the product costs little where rows are read: they are few.
    """
    shape = table.shape
    if ctx.backend != "cpu" or len(shape) != 2 or table.along != 1 or 8 // table.bits != table.each:
        return False
    if shape[1] % table.block or table.block % (TERMS * table.each) or ctx.attrs.get("gather_axis", 0) % 2:
        return False
    wanted = {"N": shape[0], "K": shape[1], "bits": table.bits, "block_size": table.block}
    products = (node for node in ctx.partition if node.op_type == "MatMulNBits" and node.domain == MICROSOFT)
    return any(wanted == {"bits": 4} | {a.name: a.i for a in n.attribute if a.name in wanted} for n in products)


def _unsigned(codes: Array, first: int) -> Array:
    return (codes.astype(np.int16) + first).astype(np.uint8)
