"""Rows of a table of codes in blocks: GatherBlockQuantized, as embeddings of language models are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.quantised.blocks import unpacked
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant

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

    def number(self, data: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None, at: Places) -> tirx.Expr:
        """The number at a place, as float32."""
        of_block = [tirx.floordiv(n, self.block) if axis == self.along else n for axis, n in enumerate(at)]
        zero = tirx.const(self.zeros, "int32") if zeros is None else tirx.Cast("int32", zeros(*of_block))
        return tirx.Cast("float32", self.code(data, at) - zero) * tirx.Cast("float32", scales(*of_block))


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
    rank, places = rank_of(data), dims_of(indices)
    axis = ctx.attrs.get("gather_axis", 0) % rank
    if axis == table.along:
        raise NotImplementedError("the blocks must lie along another axis than that of the rows")
    *before, last = table.codes.shape
    shape = [*before, last * table.each]
    wanted = (*shape[:axis], *places, *shape[axis + 1 :])
    result = ctx.values[ctx.node.output[0]].dtype

    def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        codes, chosen, factors, *offsets = tensors
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

    offsets = [] if isinstance(table.zeros, int) else [constant(table.zeros)]
    given = [constant(table.codes), indices, scales, *offsets]
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


def _unsigned(codes: Array, first: int) -> Array:
    return (codes.astype(np.int16) + first).astype(np.uint8)
