"""Converters of operators on square matrices."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, is_known_empty, scalar, shape_of
from heterocc.compiler.lower.straight import constant

op = relax.op

MOST = 16
"""The largest matrix whose elimination is written out, a step for each column."""


@converter("Det")
def det(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Determinants by Gaussian elimination; the pivot is the largest element of a column, as in LAPACK."""
    batch, rows, columns = dims_of(data)[:-2], *shape_of(data, -2)
    if rows != columns or not 0 < rows <= MOST:
        raise NotImplementedError(f"matrices of {rows} by {columns} are not supported, only square ones up to {MOST}")
    if is_known_empty(data):
        raise NotImplementedError("empty tensors are not supported")
    dtype = dtype_of(data)
    count = math.prod(batch)
    left = ctx.bb.emit(op.reshape(data, (count, rows, rows)))
    product = None
    for size in range(rows, 0, -1):
        column = _part(ctx, left, (0, size), (0, 1))
        if size == 1:
            pivot = ctx.bb.emit(op.reshape(column, (count,)))
        else:
            best = ctx.bb.emit(op.argmax(op.abs(column), axis=1, keepdims=True))
            numbers = constant(np.arange(size, dtype=np.int64).reshape(1, size, 1))
            chosen = ctx.bb.emit(op.equal(numbers, best))
            row = ctx.bb.emit(op.sum(op.where(chosen, left, scalar(0, dtype)), 1, True))
            # The first row takes the place of the chosen one, which changes the sign.
            swapped = ctx.bb.emit(op.where(chosen, _part(ctx, left, (0, 1), (0, size)), left))
            first = ctx.bb.emit(op.reshape(_part(ctx, row, (0, 1), (0, 1)), (count,)))
            stays = ctx.bb.emit(op.equal(op.reshape(best, (count,)), scalar(0, "int64")))
            pivot = ctx.bb.emit(op.where(stays, first, op.negative(first)))
            safe = op.where(op.equal(first, scalar(0, dtype)), scalar(1, dtype), first)
            factors = op.divide(_part(ctx, swapped, (1, size), (0, 1)), op.reshape(safe, (count, 1, 1)))
            removed = op.multiply(ctx.bb.emit(factors), _part(ctx, row, (0, 1), (1, size)))
            left = ctx.bb.emit(op.subtract(_part(ctx, swapped, (1, size), (1, size)), removed))
        product = pivot if product is None else ctx.bb.emit(op.multiply(product, pivot))
    return op.reshape(product, batch)


def _part(ctx: Context, value: relax.Expr, rows: tuple[int, int], columns: tuple[int, int]) -> relax.Expr:
    """The elements of matrices between two rows and between two columns."""
    begin, end = [rows[0], columns[0]], [rows[1], columns[1]]
    return ctx.bb.emit(op.strided_slice(value, [1, 2], begin, end))
