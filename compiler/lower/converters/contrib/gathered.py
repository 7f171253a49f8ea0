"""Rows of a table of codes in blocks: GatherBlockQuantized, as embeddings of language models are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.quantised.operators import known_array
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.sized import emit_sized

Places = Sequence[tirx.Expr]


@dataclass(frozen=True, slots=True)
class _Table:
    """How codes of `bits` bits lie in a table: `each` in a byte along the last axis, in blocks of `block` `along` one.

    `middle` is the code that stands for 0 if there are no zero points.
    """

    bits: int
    each: int
    block: int
    along: int
    middle: int

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
        zero = tirx.const(self.middle, "int32") if zeros is None else self.code(zeros, of_block)
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
    rank, bits, dtype = rank_of(data), ctx.attrs.get("bits", 4), dtype_of(data)
    axis, along = ctx.attrs.get("gather_axis", 0) % rank, ctx.attrs.get("quantize_axis", 1) % rank
    block = ctx.attrs.get("block_size", 128)
    if any(v is not None and known_array(ctx, v) is None for v in (data, scales, zeros)):
        raise NotImplementedError("the table, scales and zero points must be constant")
    if not dtype.startswith(("int", "uint")) or bits not in (2, 4, 8) or axis == along or not block:
        raise NotImplementedError("the table must have integers, in blocks along another axis than that of its rows")
    packed = ctx.values[ctx.node.input[0]].dtype == "uint8"  # uint4 is stored in bytes of its own
    table = _Table(bits, 8 // bits if packed else 1, block, along, 1 << (bits - 1) if packed else 0)
    *before, last = dims_of(data)
    shape, places = [*before, last * table.each], dims_of(indices)
    result = ctx.values[ctx.node.output[0]].dtype
    wanted = (*shape[:axis], *places, *shape[axis + 1 :])

    def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        table_, chosen, factors, *offsets = tensors
        (count,) = sizes

        def at(*i: tirx.Var) -> tirx.Expr:
            given = tirx.Cast("int64", chosen(*i[axis : axis + len(places)]))
            row = tirx.Select(given < 0, given + count, given)
            inside = tirx.all(row >= 0, row < count)
            where = [*i[:axis], tirx.Select(inside, row, tirx.const(0, "int64")), *i[axis + len(places) :]]
            number = table.number(table_, factors, offsets[0] if offsets else None, where)
            return tirx.Cast(result, tirx.Select(inside, number, tirx.const(0.0, "float32")))

        return te.compute(wanted, at, name="gather_blocks")

    given = [data, indices, scales, *([] if zeros is None else [zeros])]
    return emit_sized(ctx.bb, compute, given, [shape[axis]], wanted, result, "gather_blocks")
