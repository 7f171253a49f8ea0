"""Transforms of scores, and labels of classes, as the operators of `ai.onnx.ml` share them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""The names of transforms, in the order of their numbers in TreeEnsemble."""

_ZERO = 1e-7
"""The largest score that SOFTMAX_ZERO takes as zero."""


def matrix(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The data as rows [rows, features]; a vector is one row. Raises NotImplementedError for other ranks."""
    shape = dims_of(data)
    if len(shape) == 1:
        return ctx.bb.emit(op.expand_dims(data, 0))
    if len(shape) != 2:
        raise NotImplementedError(f"data of {len(shape)} dimensions is not supported")
    return data


def width(data: relax.Expr) -> int:
    """The number of features. Raises NotImplementedError if it is not fixed."""
    features = dims_of(data)[1]
    if not isinstance(features, int):
        raise NotImplementedError("the number of features is not fixed")
    return features


def row(values: Sequence[float] | np.ndarray, dtype: str) -> relax.Expr:
    """A constant [1, n]."""
    return constant(np.array(values, dtype).reshape(1, -1))


def column(ctx: Context, scores: relax.Expr, number: int) -> relax.Expr:
    """Column `number` of the scores, [rows, 1]."""
    if dims_of(scores)[1] == 1:
        return scores
    return ctx.bb.emit(op.strided_slice(scores, [1], [number], [number + 1], assume_inbound=True))


def labels_at(ctx: Context, labels: Sequence[int], places: relax.Expr) -> relax.Expr:
    """The labels of the classes with these numbers, which are [rows] or [rows, 1]; the result is [rows]."""
    found = places if len(dims_of(places)) == 1 else op.squeeze(places, [1])
    found = ctx.bb.emit(as_dtype(ctx.bb.emit(found), "int64"))
    if list(labels) == list(range(len(labels))):
        return found
    return op.take(constant(np.array(labels, np.int64)), found, axis=0, mode="clip")


def first_largest(ctx: Context, scores: relax.Expr) -> relax.Expr:
    """The number of the largest score of each row, the first of equal ones: [rows]."""
    return ctx.bb.emit(op.argmax(scores, axis=1, keepdims=False))


def transformed(ctx: Context, scores: relax.Expr, name: str) -> relax.Expr:
    """Scores [rows, classes] after a transform. Raises NotImplementedError for an unknown one."""
    scores = ctx.bb.normalize(scores)
    dtype = dtype_of(scores)
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return op.sigmoid(scores)
    if name == "SOFTMAX":
        return op.nn.softmax(scores, 1)
    if name == "SOFTMAX_ZERO":
        scores = ctx.bb.emit(scores)
        largest = ctx.bb.emit(op.max(scores, 1, keepdims=True))
        counts = op.greater(op.abs(scores), scalar(_ZERO, dtype))
        powers = ctx.bb.emit(op.where(counts, op.exp(op.subtract(scores, largest)), scalar(0, dtype)))
        others = op.where(counts, scalar(0, dtype), op.multiply(scores, op.exp(op.negative(largest))))
        return op.divide(op.add(powers, others), op.sum(powers, 1, keepdims=True))
    if name == "PROBIT":
        return _probit(ctx, scores)
    raise NotImplementedError(f"the transform {name} is not known")


def _probit(ctx: Context, scores: relax.Expr) -> relax.Expr:
    """The quantile of the normal distribution, by Winitzki's approximation, which ONNX Runtime uses too."""
    dtype = dtype_of(scores)

    def number(value: float) -> relax.Expr:
        return scalar(float(np.float32(value)), dtype)

    x = ctx.bb.emit(op.subtract(op.multiply(scores, number(2)), number(1)))
    sign = op.where(op.less(x, number(0)), number(-1), number(1))
    log = ctx.bb.emit(op.log(op.multiply(op.subtract(number(1), x), op.add(number(1), x))))
    v = ctx.bb.emit(op.add(number(2 / (3.14159 * 0.147)), op.multiply(number(0.5), log)))
    inner = op.subtract(op.multiply(v, v), op.multiply(number(1 / 0.147), log))
    root = op.sqrt(op.subtract(op.sqrt(inner), v))
    return op.multiply(number(1.41421356), op.multiply(sign, root))


def as_rows(value: relax.Expr, rows: tirx.Expr | int, columns: int) -> relax.Expr:
    """The value broadcast to [rows, columns]."""
    return op.broadcast_to(value, (rows, columns))
