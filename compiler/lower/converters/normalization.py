"""Converters of normalisations."""

from __future__ import annotations

import math

import onnx
from onnx import helper
from tvm import relax

from heterocc.compiler.lower.converters.arrays.reshaping import spread
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, rank_of, scalar, shape_of

op = relax.op


@converter("BatchNormalization")
def _batch_normalization(
    ctx: Context, data: relax.Expr, scale: relax.Expr, bias: relax.Expr, mean: relax.Expr, variance: relax.Expr
) -> relax.Expr | list[relax.Expr]:
    """BatchNormalization: one multiplication and one addition, whose operands are folded in inference mode.

    In training mode the statistics are those of the batch, and the running ones are outputs.
    """
    running: list[relax.Expr] = []
    if ctx.attrs.get("training_mode", 0):
        axes = [d for d in range(rank_of(data)) if d != 1]
        wide = ctx.bb.emit(as_dtype(data, dtype_of(mean)))
        now = ctx.bb.emit(op.mean(wide, axes, True))
        centred = ctx.bb.emit(op.subtract(wide, now))
        spread = ctx.bb.emit(op.mean(op.multiply(centred, centred), axes))
        now = ctx.bb.emit(op.reshape(now, dims_of(mean)))
        kept = scalar(ctx.attrs.get("momentum", 0.9), dtype_of(mean))
        for old, new in ((mean, now), (variance, spread)):
            part = op.multiply(new, op.subtract(scalar(1, dtype_of(mean)), kept))
            running.append(ctx.bb.emit(op.add(op.multiply(old, kept), part)))
        mean, variance = now, spread
    elif ctx.outputs > 1:
        raise NotImplementedError("further outputs are those of training mode")
    dtype = dtype_of(scale)
    epsilon = scalar(ctx.attrs.get("epsilon", 1e-5), dtype_of(variance))
    factor = op.divide(scale, op.astype(op.sqrt(op.add(variance, epsilon)), dtype))
    shift = op.subtract(bias, op.multiply(op.astype(mean, dtype), factor))
    channels = dims_of(scale)[0]
    along = (1, channels, *(1 for _ in range(2, rank_of(data)))) if rank_of(data) > 1 else (channels,)
    factor, shift = (op.astype(op.reshape(v, along), dtype_of(data)) for v in (factor, shift))
    result = op.add(op.multiply(data, factor), shift)
    return [result, *running][: ctx.outputs] if running else result


@converter("LayerNormalization")
def _layer_normalization(
    ctx: Context, data: relax.Expr, scale: relax.Expr, bias: relax.Expr | None = None
) -> list[relax.Expr]:
    """LayerNormalization with all outputs (mean and inverse standard deviation), in the precision of `stash_type`."""
    rank = rank_of(data)
    axes = list(range(ctx.attrs.get("axis", -1) % rank, rank))
    scale, bias = (v if v is None else spread(ctx, v, dims_of(data)) for v in (scale, bias))
    work = helper.tensor_dtype_to_np_dtype(ctx.attrs.get("stash_type", onnx.TensorProto.FLOAT)).name
    wide = data if dtype_of(data) == work else op.astype(data, work)
    mean = ctx.bb.emit(op.mean(wide, axes, True))
    centred = ctx.bb.emit(op.subtract(wide, mean))
    variance = op.mean(op.multiply(centred, centred), axes, True)
    inverse = ctx.bb.emit(
        op.divide(scalar(1.0, work), op.sqrt(op.add(variance, scalar(ctx.attrs.get("epsilon", 1e-5), work))))
    )
    normal = op.multiply(centred, inverse)
    normal = op.multiply(normal if work == dtype_of(data) else op.astype(normal, dtype_of(data)), scale)
    return [normal if bias is None else op.add(normal, bias), mean, inverse][: max(1, ctx.outputs)]


@converter("LpNormalization")
def _lp_normalization(ctx: Context, data: relax.Expr) -> relax.Expr:
    axis, order = ctx.attrs.get("axis", -1), ctx.attrs.get("p", 2)
    powers = op.sum(op.abs(data) if order == 1 else op.multiply(data, data), [axis], True)
    zero = scalar(0.0, dtype_of(data))
    norm = ctx.bb.emit(powers if order == 1 else op.sqrt(powers))
    return op.where(op.equal(norm, zero), zero, op.divide(data, op.where(op.equal(norm, zero), _one(data), norm)))


def _one(data: relax.Expr) -> relax.Expr:
    return scalar(1.0, dtype_of(data))


@converter("RMSNormalization")
def rms_normalization(ctx: Context, data: relax.Expr, scale: relax.Expr) -> relax.Expr:
    """RMSNormalization as that of a matrix's rows: TVM's kernel needs a 1-D scale and an input of higher rank.

    Rows of sizes that are known only at run time are computed by single operators.
    """
    shape = dims_of(data)
    axis = int(ctx.attrs.get("axis", -1)) % len(shape)
    if not all(isinstance(size, int) for size in (*shape[axis:], *dims_of(scale))):
        scale = spread(ctx, scale, shape)
        work = helper.tensor_dtype_to_np_dtype(ctx.attrs.get("stash_type", onnx.TensorProto.FLOAT)).name
        wide = ctx.bb.emit(as_dtype(data, work))
        mean = op.mean(op.multiply(wide, wide), list(range(axis, len(shape))), True)
        root = ctx.bb.emit(op.sqrt(op.add(mean, scalar(ctx.attrs.get("epsilon", 1e-5), work))))
        return op.multiply(as_dtype(ctx.bb.emit(op.divide(wide, root)), dtype_of(data)), scale)
    row = shape_of(data, axis)
    whole = math.prod(row)
    if shape_of(scale) != row:
        scale = op.broadcast_to(scale, row)
    flat = ctx.bb.emit(op.reshape(data, (math.prod(shape[:axis]), whole)))
    last = ctx.changed({"axis": -1})
    scaled = last.original(flat, ctx.bb.emit(op.reshape(scale, (whole,))))
    return op.reshape(ctx.bb.emit(scaled), shape)
