"""Converters of Clip, Max, Min and Sign, which propagate NaN (decision 7)."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import combined, dtype_of, fixed, is_float, rank_of, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

Extreme = Callable[[relax.Expr, relax.Expr], relax.Expr]


@converter("Max")
def _max(ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    return _of_all(ctx, op.maximum, inputs)


@converter("Min")
def _min(ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    return _of_all(ctx, op.minimum, inputs)


@converter("Clip")
def _clip(ctx: Context, data: relax.Expr, low: relax.Expr | None = None, high: relax.Expr | None = None) -> relax.Expr:
    """Clip. A bound that is absent is the least or the largest finite number; one that is NaN is none."""
    if ctx.opset < 11:  # the limits are those of the attributes' type
        largest = float(np.finfo(np.float32).max)
        low, high = (
            constant(np.array(ctx.attrs.get(name, default), dtype_of(data)))
            for name, default in (("min", -largest), ("max", largest))
        )
    for rule, bound, infinity in ((op.maximum, low, -math.inf), (op.minimum, high, math.inf)):
        if is_float(data):
            limits = ml_dtypes.finfo(ctx.stored_dtype(0))
            least = float(limits.min if rule is op.maximum else limits.max)
            bound = scalar(least, dtype_of(data)) if bound is None else _without_nan(bound, infinity)
        if bound is not None:
            data = ctx.bb.emit(_of_two(ctx, rule, data, bound))
    return data


@converter("Sign")
def _sign(ctx: Context, data: relax.Expr) -> relax.Expr:
    if dtype_of(data).startswith("uint"):
        return op.minimum(data, scalar(1, dtype_of(data)))
    if not is_float(data):
        return op.sign(data)
    return op.where(op.isnan(data), data, op.sign(data))


def _without_nan(bound: relax.Expr, instead: float) -> relax.Expr:
    known = fixed(bound)
    if known is not None:
        return constant(np.where(np.isnan(known), np.array(instead, known.dtype), known))
    return op.where(op.isnan(bound), constant(np.array(instead, dtype_of(bound))), bound)


def _of_all(ctx: Context, rule: Extreme, inputs: tuple[relax.Expr, ...]) -> relax.Expr:
    return combined(lambda one, other: ctx.bb.emit(_of_two(ctx, rule, one, other)), inputs)


def _of_two(ctx: Context, rule: Extreme, one: relax.Expr, other: relax.Expr) -> relax.Expr:
    """The larger or smaller of two operands, NaN where one is NaN."""
    if not is_float(one):
        return rule(one, other)
    for value, second in ((one, other), (other, one)):
        number = fixed(second)
        if number is not None and number.size == 1 and number.ndim <= rank_of(value) and not np.isnan(number).any():
            return rule(value, constant(number.reshape(())))  # compiled code has the constant first, and keeps NaN
    one, other = ctx.bb.emit(one), ctx.bb.emit(other)
    # NaN alone is not at least the least of all numbers: a comparison, unlike a function, is computed in vectors.
    least = scalar(-math.inf, dtype_of(one))
    numbers = [op.greater_equal(value, least) for value in (one, other)]
    return op.where(numbers[0], op.where(numbers[1], rule(one, other), other), one)
