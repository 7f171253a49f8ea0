"""Converters of reductions that TVM's importer converts wrongly for infinities, or with warnings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.onnx import onnx_frontend

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import has_plain_sizes, requested
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    dims_of,
    dtype_of,
    filled,
    is_float,
    is_known_empty,
    rank_of,
    scalar,
)
from heterocc.compiler.lower.converters.windows.pooling import padded, rounded_up
from heterocc.compiler.lower.variables import as_int64, can_be_empty

op = relax.op

_NO_INDEX = (1 << 62, -1)
"""Initial indices that lose every tie: if the first of equal elements wins, and if the last wins."""


@converter("ArgMax")
def arg_max(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The index of the largest element."""
    return _arg(ctx, data, largest=True)


@converter("ArgMin")
def arg_min(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The index of the smallest element."""
    return _arg(ctx, data, largest=False)


def _arg(ctx: Context, data: relax.Expr, largest: bool) -> relax.Expr:
    axis = ctx.attrs.get("axis", 0) % rank_of(data)
    return _index(
        ctx, data, axis, largest, bool(ctx.attrs.get("keepdims", 1)), bool(ctx.attrs.get("select_last_index"))
    )


def _index(ctx: Context, data: relax.Expr, axis: int, largest: bool, keepdims: bool, last: bool) -> relax.Expr:
    """The index of the extreme element along `axis`. It is valid for infinite elements too; a NaN wins only if first.

    ONNX Runtime behaves the same, because it compares each element with the first.
    """
    count, dtype = dims_of(data)[axis], dtype_of(data)
    if isinstance(count, int) and count == 0:
        raise NotImplementedError("the dimension along the axis is empty")
    sizes = dims_of(data)
    inner = sizes[axis + 1 :]
    written = has_plain_sizes(data) and all(isinstance(n, int) for n in inner)
    if ctx.backend == "cpu" and dtype == "float32" and written:
        kept = [1 if d == axis else n for d, n in enumerate(sizes) if keepdims or d != axis]
        options = {"axis": axis, "largest": int(largest), "last": int(last)}
        return requested(ctx, "index_of", [data], [(kept, "int64")], few="the axis has no elements", **options)

    def wins(a: tirx.Var, b: tirx.Var) -> tirx.Expr:
        return a > b if largest else a < b

    def start(kind: str) -> tirx.Expr:
        if kind.startswith(("float", "bfloat")):
            return -tirx.infinity(kind) if largest else tirx.infinity(kind)
        return tirx.min_value(kind) if largest else tirx.max_value(kind)

    def combine(left: list[tirx.Var], right: list[tirx.Var]) -> tuple[tirx.Expr, tirx.Expr]:
        nearer = right[0] > left[0] if last else right[0] < left[0]
        take = tirx.any(wins(right[1], left[1]), tirx.all(right[1] == left[1], nearer))
        return tuple(tirx.Select(take, r, one) for one, r in zip(left, right, strict=True))

    best = te.comm_reducer(
        combine, lambda place, kind: (tirx.const(_NO_INDEX[last], place), start(str(kind))), name="index_of"
    )

    def compute(x: te.Tensor) -> te.Tensor:
        shape = [*x.shape]
        along = te.reduce_axis((0, shape[axis]), "k")
        kept = [1 if d == axis else n for d, n in enumerate(shape)]

        def both(*i: tirx.Var) -> Any:
            value = x(*i[:axis], along, *i[axis + 1 :])
            if dtype.startswith(("float", "bfloat")):
                no_number = tirx.Select(along == 0, -start(dtype), start(dtype))
                value = tirx.Select(tirx.isnan(value), no_number, value)
            return best((along.var.astype("int64"), value), axis=along)

        index, _ = te.compute(kept, both, name="index_of")
        if keepdims:
            return te.compute(kept, lambda *i: index(*i), name="index")
        return te.compute([*shape[:axis], *shape[axis + 1 :]], lambda *i: index(*i[:axis], 0, *i[axis:]), name="index")

    return ctx.bb.emit_te(compute, data, primfunc_name_hint=ctx.node.op_type.lower())


@converter("Hardmax")
def hardmax(ctx: Context, data: relax.Expr) -> relax.Expr:
    """One at the largest element, or at the first of several; zero elsewhere."""
    shape, rank = dims_of(data), rank_of(data)
    axis = ctx.attrs.get("axis", -1 if ctx.opset >= 13 else 1) % rank
    if ctx.opset < 13:  # all dimensions from `axis` on are flattened
        rows = [1, 1]
        for d, n in enumerate(shape):
            rows[d >= axis] *= n
        data = ctx.bb.emit(op.reshape(data, rows))
    along = axis if ctx.opset >= 13 else 1
    best = _index(ctx, data, along, largest=True, keepdims=True, last=False)

    def compute(x: te.Tensor, first: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            is_first = i[along].astype("int64").equal(first(*i[:along], 0, *i[along + 1 :]))
            return tirx.Select(is_first, tirx.const(1, x.dtype), tirx.const(0, x.dtype))

        return te.compute(x.shape, at, name="hardmax")

    result = ctx.bb.emit_te(compute, data, best, primfunc_name_hint="hardmax")
    return result if ctx.opset >= 13 else op.reshape(result, shape)


def _along(ctx: Context, data: relax.Expr, axes: relax.Expr | None) -> list[int] | None:
    """The axes of a reduction, in order; None if it has none, and is to return its input."""
    listed = ctx.attrs.get("axes") if axes is None else ctx.known(axes).ravel()
    rank = rank_of(data)
    if listed is not None and len(listed):
        return sorted({int(a) % rank for a in listed})
    return None if ctx.attrs.get("noop_with_empty_axes", 0) else list(range(rank))


@converter("ReduceL2", "ReduceLogSum")
def reduce_to_root(ctx: Context, data: relax.Expr, axes: relax.Expr | None = None) -> relax.Expr:
    """The root of a sum of squares, and the logarithm of a sum: of integers rounded towards zero."""
    dims = _along(ctx, data, axes)
    if is_float(data) or dims is None:
        return ctx.original(data) if axes is None else ctx.original(data, axes)
    is_norm = ctx.record.reduces == "norm"
    total = op.sum(op.multiply(data, data) if is_norm else data, dims, bool(ctx.attrs.get("keepdims", 1)))
    wide = ctx.bb.emit(op.astype(total, "float64"))
    return op.astype(op.sqrt(wide) if is_norm else op.log(wide), dtype_of(data))


def _of_nothing(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The reduction of a tensor without elements, whose loops TVM leaves out with the initial value in them."""
    kind, dtype = ctx.record.reduces, np.dtype(dtype_of(data))
    for name in ("axes", "keepdims", "noop_with_empty_axes"):
        ctx.attrs.get(name)  # the shape of the result follows from them
    if kind == "mean":  # as in ONNX Runtime; ONNX leaves it undefined
        return filled(ctx.result(), np.zeros((), dtype))
    first = {"largest": -np.inf, "log sum exp": -np.inf, "smallest": np.inf}[kind or ""]
    if dtype.kind == "b":
        first = float(first > 0)
    elif dtype.kind in "iu":
        first = np.iinfo(dtype).max if first > 0 else np.iinfo(dtype).min
    return filled(ctx.result(), np.array(first, dtype))


@converter("ReduceLogSumExp")
def reduce_log_sum_exp(ctx: Context, data: relax.Expr, axes: relax.Expr | None = None) -> relax.Expr:
    """ReduceLogSumExp. The largest element is subtracted only if it is finite, as inf - inf is NaN."""
    dims = _along(ctx, data, axes)
    if dims is None:
        return data
    shape = dims_of(data)
    if is_known_empty(data):
        return _of_nothing(ctx, data)
    kind = dtype_of(data)
    work = kind if kind.startswith(("float", "bfloat")) else "float64"
    wide = data if work == kind else ctx.bb.emit(as_dtype(data, work))
    largest = ctx.bb.emit(op.max(wide, dims, True))
    infinite = op.equal(op.abs(largest), scalar(float("inf"), work))
    shift = ctx.bb.emit(op.where(infinite, scalar(0, work), largest))
    total = op.sum(op.exp(op.subtract(wide, shift)), dims, True)
    result = as_dtype(ctx.bb.emit(op.add(op.log(total), shift)), kind)
    kept = bool(ctx.attrs.get("keepdims", 1))
    return result if kept else op.reshape(result, [n for d, n in enumerate(shape) if d not in dims])


@converter("LpPool")
def lp_pool(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The p-norm of each window."""
    p = float(ctx.attrs.get("p", 2))
    powers = ctx.bb.emit(_power(ctx, op.abs(data), p))
    ctx, powers = padded(ctx, powers, tirx.const(0, dtype_of(data)))
    ctx = rounded_up(ctx, rank_of(data) - 2)
    attrs = ctx.attrs.changed({"count_include_pad": True})
    inputs = onnx_frontend.onnx_input([powers])
    mean = ctx.bb.emit(onnx_frontend.AveragePool._impl_v1(ctx.bb, inputs, attrs, list(ctx.tables)))
    count = scalar(float(math.prod(ctx.attrs["kernel_shape"])), dtype_of(data))
    return _power(ctx, op.multiply(mean, count), 1 / p)


@converter("GlobalLpPool")
def global_lp_pool(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The p-norm of each channel."""
    p = float(ctx.attrs.get("p", 2))
    powers = _power(ctx, op.abs(data), p)
    return _power(ctx, op.sum(powers, list(range(2, rank_of(data))), keepdims=True), 1 / p)


def _power(ctx: Context, value: relax.Expr, exponent: float) -> relax.Expr:
    """`value` to the power `exponent`. The exponent is an operand because TVM warns about a literal one."""
    value = ctx.bb.emit(value)
    if exponent == 2:
        return op.multiply(value, value)
    if exponent == 0.5:
        return op.sqrt(value)

    def compute(x: te.Tensor, e: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.power(x(*i), e()), name="power")

    return ctx.bb.emit_te(compute, value, scalar(exponent, dtype_of(value)), primfunc_name_hint="power")


@converter("ReduceMean")
def reduce_mean(ctx: Context, data: relax.Expr, axes: relax.Expr | None = None) -> relax.Expr:
    """ReduceMean. The mean of integers is rounded towards zero.

    That of nothing is 0, as in ONNX Runtime; ONNX leaves it undefined.
    """
    dims, kept = _along(ctx, data, axes), bool(ctx.attrs.get("keepdims", 1))
    if dims is None:
        return data
    if is_known_empty(data):
        return _of_nothing(ctx, data)
    along = [dims_of(data)[a] for a in dims]
    is_real = dtype_of(data).startswith(("float", "bfloat"))
    if is_real and not any(can_be_empty(as_int64(n)) for n in along):
        return ctx.original(data) if axes is None else ctx.original(data, axes)

    def mean(x: te.Tensor) -> te.Tensor:
        count = tirx.max(math.prod((x.shape[a] for a in dims), start=as_int64(1)), as_int64(1))
        total = topi.sum(x, dims, kept)
        if is_real:
            return topi.divide(total, count)
        return te.compute(total.shape, lambda *i: tirx.truncdiv(total(*i), count.astype(x.dtype)), name="mean")

    return ctx.bb.emit_te(mean, data, primfunc_name_hint="mean")


@converter("ReduceMax", "ReduceMin")
def reduce_extreme(ctx: Context, data: relax.Expr, *rest: relax.Expr) -> relax.Expr:
    """ReduceMax and ReduceMin, of booleans too."""
    if is_known_empty(data):
        return _of_nothing(ctx, data)
    if dtype_of(data) != "bool":
        return ctx.original(data, *rest)
    number = ctx.bb.emit(op.astype(data, "uint8"))
    return op.astype(ctx.bb.normalize(ctx.original(number, *rest)), "bool")
