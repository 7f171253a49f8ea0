"""Operators on shapes, and of blocks and triangles: Shape, Size, SpaceToDepth, DepthToSpace and Trilu."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import element, vector, whole
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed, shape_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant

op = relax.op


@converter("Shape")
def _shape_of(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Shape as a constant tensor. TVM's converter returns a shape expression, which cannot be an output."""
    shape = shape_of(data)
    return constant(np.array(shape[ctx.attrs.get("start", 0) : ctx.attrs.get("end")], dtype=np.int64))


@converter("Size")
def _size(_ctx: Context, data: relax.Expr) -> relax.Expr:
    return constant(np.array(math.prod(shape_of(data)), dtype=np.int64))


@converter("SpaceToDepth")
def _space_to_depth(ctx: Context, data: relax.Expr) -> relax.Expr:
    """SpaceToDepth in the modes DCR and CRD."""
    batch, channels, height, width = dims_of(data)
    size = ctx.attrs["blocksize"]
    if not isinstance(height, int) or not isinstance(width, int):
        return _blocks_of_any_size(ctx, data, size)
    split = op.reshape(data, (batch, channels, height // size, size, width // size, size))
    order = [0, 1, 3, 5, 2, 4] if ctx.text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = op.permute_dims(split, order)
    return op.reshape(moved, (batch, channels * size * size, height // size, width // size))


def _blocks_of_any_size(ctx: Context, data: relax.Expr, size: int) -> relax.Expr:
    """SpaceToDepth as one kernel. TVM does not know that the sides are multiples of `size`: it would divide by them."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        channels = given[0].shape[1]

        def at(image: tirx.Var, number: tirx.Var, row: tirx.Var, column: tirx.Var) -> tirx.Expr:
            if ctx.text("mode", "DCR") == "CRD":
                channel, block = tirx.floordiv(number, size * size), tirx.floormod(number, size * size)
            else:
                channel, block = tirx.floormod(number, channels), tirx.floordiv(number, channels)
            down, right = tirx.floordiv(block, size), tirx.floormod(block, size)
            return given[0](image, channel, row * size + down, column * size + right)

        return te.compute(shape, at, name="space_to_depth")

    return emit_sized(ctx.bb, compute, [data], [], ctx.result(), dtype_of(data), "space_to_depth")


_FURTHEST = 2**31 - 1
"""A diagonal of a matrix beyond all of its elements, of which TVM takes the number as one of int32."""


@converter("Trilu")
def _trilu(ctx: Context, data: relax.Expr, diagonal: relax.Expr | None = None) -> relax.Expr:
    """Trilu whose diagonal is so limited that no sum of it and an index leaves int64."""
    if diagonal is None:
        return ctx.original(data)
    known = fixed(diagonal)
    if known is not None:
        return ctx.original(data, constant(np.clip(known, -_FURTHEST, _FURTHEST).astype(np.int64)))

    def limited(ins: Sequence[tirx.Buffer]) -> list[tirx.Expr]:
        return [tirx.min(tirx.max(element(ins[0]), whole(-_FURTHEST)), whole(_FURTHEST))]

    # A kernel of its own: TVM would compare each index with the number and with the limits.
    return ctx.original(data, ctx.bb.emit(op.reshape(vector(ctx, [diagonal], 1, limited), ())))
