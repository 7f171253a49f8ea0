"""Converters of normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import helper
from tvm import relax

from heterocc.compiler.lower.converters.arrays.reshaping import spread
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, rank_of, scalar, shape_of
from heterocc.compiler.lower.variables import as_int64

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


def standardised(
    ctx: Context, data: relax.Expr, axes: Sequence[int], work: str, epsilon: float = 1e-5
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """(data - mean) / sqrt(variance + epsilon), the mean and the divisor's reciprocal, computed in `work`.

    `epsilon` is for nodes that state none.

    The variance is the mean of the squared differences from the mean. ONNX's definitions of GroupNormalization and
    MeanVarianceNormalization subtract the square of the mean from the mean of the squares, of which nothing is right
    where the mean is much larger than the differences.
    """
    wide = as_dtype(data, work)
    mean = ctx.bb.emit(op.mean(wide, list(axes), True))
    centred = ctx.bb.emit(op.subtract(wide, mean))
    variance = op.mean(op.multiply(centred, centred), list(axes), True)
    root = op.sqrt(op.add(variance, scalar(ctx.attrs.get("epsilon", epsilon), work)))
    inverse = ctx.bb.emit(op.divide(scalar(1.0, work), root))
    return ctx.bb.normalize(op.multiply(centred, inverse)), mean, inverse


def _stash(ctx: Context) -> str:
    """The dtype of the statistics."""
    return str(helper.tensor_dtype_to_np_dtype(ctx.attrs.get("stash_type", onnx.TensorProto.FLOAT)))


def _wide_dtype(data: relax.Expr) -> str:
    """The dtype of statistics of which ONNX says nothing: float32 for numbers of 16 bits."""
    return "float64" if dtype_of(data) == "float64" else "float32"


@converter("LayerNormalization")
def _layer_normalization(
    ctx: Context, data: relax.Expr, scale: relax.Expr, bias: relax.Expr | None = None
) -> list[relax.Expr]:
    """LayerNormalization with all outputs (mean and inverse standard deviation), in the precision of `stash_type`."""
    rank = rank_of(data)
    axes = range(ctx.attrs.get("axis", -1) % rank, rank)
    scale, bias = (v if v is None else spread(ctx, v, dims_of(data)) for v in (scale, bias))
    normal, mean, inverse = standardised(ctx, data, axes, _stash(ctx))
    scaled = op.multiply(as_dtype(normal, dtype_of(data)), scale)
    return [scaled if bias is None else op.add(scaled, bias), mean, inverse][: max(1, ctx.outputs)]


@converter("InstanceNormalization")
def _instance_normalization(ctx: Context, data: relax.Expr, scale: relax.Expr, bias: relax.Expr) -> relax.Expr:
    rank = rank_of(data)
    normal, *_ = standardised(ctx, data, range(2, rank), _wide_dtype(data))
    along = (1, dims_of(data)[1], *(1 for _ in range(2, rank)))
    scale, bias = (op.reshape(v, [as_int64(n) for n in along]) for v in (scale, bias))
    return op.add(op.multiply(as_dtype(normal, dtype_of(data)), scale), bias)


@converter("GroupNormalization")
def _group_normalization(ctx: Context, data: relax.Expr, scale: relax.Expr, bias: relax.Expr) -> relax.Expr:
    """GroupNormalization: a scale and a bias for each channel, before operator set 21 for each group."""
    batch, channels, *spatial = dims_of(data)
    groups = int(ctx.attrs["num_groups"])
    each = channels // groups
    grouped = ctx.bb.emit(op.reshape(data, [as_int64(n) for n in (batch, groups, each, *spatial)]))
    normal, *_ = standardised(ctx, grouped, range(2, 3 + len(spatial)), _stash(ctx))
    along = (1, groups, each if ctx.opset >= 21 else 1, *(1 for _ in spatial))
    scale, bias = (op.reshape(v, [as_int64(n) for n in along]) for v in (scale, bias))
    result = op.add(op.multiply(as_dtype(normal, dtype_of(data)), scale), bias)
    return op.reshape(result, [as_int64(n) for n in (batch, channels, *spatial)])


@converter("MeanVarianceNormalization")
def _mean_variance_normalization(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Differences from the mean over their standard deviation, to which ONNX adds 1e-9."""
    axes = list(ctx.attrs.get("axes", (0, 2, 3)))
    work = _wide_dtype(data)
    wide = as_dtype(data, work)
    centred = ctx.bb.emit(op.subtract(wide, op.mean(wide, axes, True)))
    deviation = op.sqrt(op.mean(op.multiply(centred, centred), axes, True))
    return as_dtype(ctx.bb.normalize(op.divide(centred, op.add(deviation, scalar(1e-9, work)))), dtype_of(data))


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
        work = _stash(ctx)
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
