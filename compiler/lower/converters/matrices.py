"""Converters of operators on square matrices."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed_size, is_known_empty, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

MOST = 16
"""The largest matrix whose elimination is written out, a step for each column."""


@converter("Det")
def det(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Determinants by Gaussian elimination; the pivot is the largest element of a column, as in LAPACK."""
    rows, batch = _square(data), dims_of(data)[:-2]
    count = math.prod(batch)
    left = ctx.bb.emit(op.reshape(data, (count, rows, rows)))
    product = None
    for size in range(rows, 0, -1):
        if size == 1:
            pivot = ctx.bb.emit(op.reshape(left, (count,)))
        else:
            best, row, swapped = _pivoted(ctx, left, size, size)
            first = ctx.bb.emit(op.reshape(_part(ctx, row, (0, 1), (0, 1)), (count,)))
            # The first row takes the place of the chosen one, which changes the sign.
            stays = ctx.bb.emit(op.equal(op.reshape(best, (count,)), scalar(0, "int64")))
            pivot = ctx.bb.emit(op.where(stays, first, op.negative(first)))
            left = _cleared(ctx, row, swapped, size, size)
        product = pivot if product is None else ctx.bb.emit(op.multiply(product, pivot))
    return op.reshape(product, batch)


@converter("Inverse", domain=MICROSOFT)
def inverse(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Inverse matrices by Gaussian elimination beside the unit matrix, with the same choice of pivots.

    Rows that are left over are solved for from the last one on, as in LAPACK and Eigen: only so has the inverse of a
    singular matrix the infinities of ONNX Runtime, which other orders turn into NaN.
    """
    rows, batch = _square(data), dims_of(data)[:-2]
    dtype = dtype_of(data)
    count = math.prod(batch)
    unit = op.broadcast_to(constant(np.eye(rows).astype(dtype)), (count, rows, rows))
    left = ctx.bb.emit(op.concat([op.reshape(data, (count, rows, rows)), unit], 2))
    upper = []  # of each column the row that cleared it, from its pivot on
    for size in range(rows, 1, -1):
        _, row, swapped = _pivoted(ctx, left, size, size + rows)
        upper.append(row)
        left = _cleared(ctx, row, swapped, size, size + rows)
    solved = ctx.bb.emit(op.divide(_part(ctx, left, (0, 1), (1, 1 + rows)), _part(ctx, left, (0, 1), (0, 1))))
    for size, row in enumerate(reversed(upper), 2):
        factors = op.reshape(_part(ctx, row, (0, 1), (1, size)), (count, size - 1, 1))
        known = op.sum(ctx.bb.emit(op.multiply(factors, solved)), 1, True)
        rest = ctx.bb.emit(op.subtract(_part(ctx, row, (0, 1), (size, size + rows)), ctx.bb.emit(known)))
        first = ctx.bb.emit(op.divide(rest, _part(ctx, row, (0, 1), (0, 1))))
        solved = ctx.bb.emit(op.concat([first, solved], 1))
    return op.reshape(solved, (*batch, rows, rows))


def _square(data: relax.Expr) -> int:
    """The rows of square matrices. Raises NotImplementedError for others, and for large ones."""
    rows, columns = (fixed_size(data, d) for d in (-2, -1))
    if rows != columns or not 0 < rows <= MOST:
        raise NotImplementedError(f"matrices of {rows} by {columns} are not supported, only square ones up to {MOST}")
    if is_known_empty(data):
        raise NotImplementedError("empty tensors are not supported")
    return rows


def _pivoted(ctx: Context, left: relax.Expr, among: int, columns: int) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """The place of the row with the largest first element among the first rows, the row, and the first in its place."""
    best = ctx.bb.emit(op.argmax(op.abs(_part(ctx, left, (0, among), (0, 1))), axis=1, keepdims=True))
    total = fixed_size(left, 1)
    numbers = constant(np.arange(total, dtype=np.int64).reshape(1, total, 1))
    chosen = ctx.bb.emit(op.equal(numbers, best))
    # The largest, not the sum, which would make 0 of -0: by its sign a singular matrix has one infinity or the other.
    row = ctx.bb.emit(op.max(op.where(chosen, left, scalar(-math.inf, dtype_of(left))), 1, True))
    return best, row, ctx.bb.emit(op.where(chosen, _part(ctx, left, (0, 1), (0, columns)), left))


def _cleared(ctx: Context, row: relax.Expr, swapped: relax.Expr, rows: int, columns: int) -> relax.Expr:
    """The other rows without their first column, which multiples of the pivot's row clear; one of zeros clears none."""
    pivot = _part(ctx, row, (0, 1), (0, 1))
    dtype = dtype_of(row)
    safe = op.where(op.equal(pivot, scalar(0, dtype)), scalar(1, dtype), pivot)
    factors = ctx.bb.emit(op.divide(_part(ctx, swapped, (1, rows), (0, 1)), ctx.bb.emit(safe)))
    removed = op.multiply(factors, _part(ctx, row, (0, 1), (1, columns)))
    return ctx.bb.emit(op.subtract(_part(ctx, swapped, (1, rows), (1, columns)), removed))


def _part(ctx: Context, value: relax.Expr, rows: tuple[int, int], columns: tuple[int, int]) -> relax.Expr:
    """The elements of matrices between two rows and between two columns."""
    begin, end = [rows[0], columns[0]], [rows[1], columns[1]]
    return ctx.bb.emit(op.strided_slice(value, [1, 2], begin, end, assume_inbound=True))
