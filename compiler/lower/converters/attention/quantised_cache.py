"""Caches of GroupQueryAttention in 8 or 4 bits: integers times a scale for all, or one for each place of each head.

New keys and values are rounded as ONNX Runtime rounds them: times the inverse of the scale, to the nearest integer,
and to the nearest that the bits have; a scale of 0 stands for 1. Two integers of 4 bits share a byte, the first in its
low half, 8 above what they stand for. Scales of keys multiply the queries, those of values the results, so that
attention reads integers: those of 4 bits as bytes, in another order, that queries and results have there, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent, same

op = relax.op

_HALF_BYTE = 8
"""What is added to integers of 4 bits."""


@dataclass(frozen=True, slots=True)
class QuantisedCache:
    """The bits of keys and values, and their scales [1, heads or 1, 1, size or 1]."""

    bits: int
    keys: relax.Expr
    values: relax.Expr

    @staticmethod
    def of(ctx: Context, past: relax.Expr | None, size: Extent, *scales: relax.Expr | None) -> QuantisedCache | None:
        """That of a node, whose heads have this size; None if it has none. `scales` are those of keys and of values."""
        kinds = {_text(ctx.attrs.get(f"{side}_quant_type", "NONE")) for side in "kv"}
        bits = ctx.attrs.get("kv_cache_bit_width", 0)
        if kinds == {"NONE"} and bits == 0 and not any(v is not None for v in scales):
            return None
        if len(kinds) > 1 or kinds & {"NONE"} or bits not in (4, 8):
            raise NotImplementedError("quantised caches need one kind of scales for keys and values, and 4 or 8 bits")
        stored = None if past is None else dtype_of(past)
        if stored != {4: "uint8", 8: "int8"}[bits]:
            raise NotImplementedError(f"past keys of {stored} do not have {bits} bits")
        whole = (1, 1, 1, 1) if kinds == {"PER_TENSOR"} else (1, ctx.attrs["kv_num_heads"], 1, size)
        keys, values = (None if v is None else ctx.bb.emit(op.reshape(v, whole)) for v in scales)
        if keys is None or values is None:
            raise NotImplementedError("quantised caches need scales")
        return QuantisedCache(bits, keys, values)

    def rounded(self, ctx: Context, new: relax.Expr, scale: relax.Expr) -> relax.Expr:
        """New keys or values [batch, heads, sequence, size] as the cache stores them."""
        batch, heads, rows, size = dims_of(new)
        most, packed = (1 << self.bits - 1) - 1, self.bits == 4
        dtype = "uint8" if packed else "int8"

        def compute(tensors: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
            x, factors = tensors
            one, highest, lowest = (tirx.const(float(n), "float32") for n in (1, most, -most - 1))

            def integer(b: tirx.Var, h: tirx.Var, t: tirx.Var, d: tirx.Expr) -> tirx.Expr:
                zero = tirx.const(0, "int64")
                own = [zero if same((n,), (1,)) else i for n, i in zip(dims_of(scale)[1::2], (h, d), strict=True)]
                factor = factors(zero, own[0], zero, own[1])
                inverse = tirx.Select(factor != tirx.const(0.0, "float32"), one / factor, one)
                number = tirx.nearbyint(x(b, h, t, d) * inverse)
                number = tirx.Select(number < highest, number, highest)  # NaN becomes the highest
                return tirx.Cast("int32", tirx.Select(number > lowest, number, lowest))

            def at(b: tirx.Var, h: tirx.Var, t: tirx.Var, d: tirx.Var) -> tirx.Expr:
                if not packed:
                    return tirx.Cast("int8", integer(b, h, t, d))
                low, high = (integer(b, h, t, 2 * d + side) + tirx.const(_HALF_BYTE, "int32") for side in (0, 1))
                return tirx.Cast("uint8", low + high * tirx.const(16, "int32"))

            return te.compute(shape, at, name="rounded")

        wanted = [batch, heads, rows, size // 2 if packed else size]
        return emit_sized(ctx.bb, compute, [new, scale], [], wanted, dtype, "rounded")

    def integers(self, ctx: Context, cache: relax.Expr, size: Extent) -> relax.Expr:
        """What is in a cache, whose heads have this size, before it is multiplied by scales, as float32.

        Of integers of 4 bits those in the low bits of all bytes of a head come first: vectors of them are bytes apart.
        """
        if self.bits == 4:
            half = size // 2

            def compute(tensors: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
                def at(b: tirx.Var, h: tirx.Var, t: tirx.Var, side: tirx.Var, d: tirx.Var) -> tirx.Expr:
                    byte = tensors[0](b, h, t, d)
                    low = tirx.bitwise_and(byte, tirx.const(15, "uint8"))
                    number = tirx.Select(side == 0, low, tirx.shift_right(byte, tirx.const(4, "uint8")))
                    return tirx.Cast("int8", number) - tirx.const(_HALF_BYTE, "int8")

                return te.compute(shape, at, name="integers")

            dims = dims_of(cache)[:3]
            apart = emit_sized(ctx.bb, compute, [cache], [], [*dims, 2, half], "int8", "integers")
            cache = ctx.bb.emit(op.reshape(apart, (*dims, size)))
        return ctx.bb.emit(op.astype(cache, "float32"))

    def scaled_queries(self, ctx: Context, query: relax.Expr) -> relax.Expr:
        """Queries [batch, heads, sequence, size] times the scales of keys, in the order of `integers`."""
        heads, size = dims_of(self.keys)[1::2]
        if same((heads,), (1,)):
            return self._exchanged(ctx, ctx.bb.emit(op.multiply(query, self.keys)), 2)
        every = dims_of(query)[1]
        factors = ctx.bb.emit(op.broadcast_to(op.reshape(self.keys, (heads, 1, size)), (heads, every // heads, size)))
        return self._exchanged(ctx, ctx.bb.emit(op.multiply(query, op.reshape(factors, (1, every, 1, size)))), 2)

    def scaled_result(self, ctx: Context, result: relax.Expr) -> relax.Expr:
        """A result of `attend` times the scales of the values."""
        factors = self.values
        if rank_of(result) == 5:
            factors = ctx.bb.emit(op.expand_dims(factors, 2))
        return ctx.bb.emit(op.multiply(self._exchanged(ctx, result, dims_of(result)[-1] // 2), factors))

    def _exchanged(self, ctx: Context, value: relax.Expr, inner: Extent) -> relax.Expr:
        """Numbers of heads as `integers` of 4 bits has them (`inner` of 2), or from that order to the other (half)."""
        if self.bits == 8:
            return value
        dims = dims_of(value)
        apart = ctx.bb.emit(op.reshape(value, (*dims[:-1], dims[-1] // inner, inner)))
        axes = [*range(len(dims) - 1), len(dims), len(dims) - 1]
        return ctx.bb.emit(op.reshape(ctx.bb.emit(op.permute_dims(apart, axes)), dims))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
