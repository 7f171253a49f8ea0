"""ONNX Resize. Each output along a resized axis is a weighted sum of a few input positions, found when compiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.resize.computed import attributes, resize_computed
from heterocc.compiler.lower.converters.resize.positions import ARRAYS, CROP, nearest, rounding, source, weight
from heterocc.compiler.lower.converters.resize.sized import axes_of, resize_sized
from heterocc.compiler.lower.converters.values import shape_of
from heterocc.compiler.lower.straight import constant


def axis_table(size: int, scale: float, out: int, attrs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The source positions (int32) and weights (float64) of every output position, both of shape [out, taps].

    `scale` is the ratio of output to input, which may differ from `out / size`. `attrs` are the attributes of the
    Resize node, with strings decoded.
    """
    length, count = np.int64(size), np.int64(out)
    x = source(np.arange(out), length, count, np.float32(scale), None, attrs, ARRAYS).astype(np.float64)
    mode = attrs.get("mode", "nearest")
    if mode == "nearest":
        found = nearest(x, rounding(attrs.get("nearest_mode", "round_prefer_floor"), scale), scale, ARRAYS)
        return np.clip(found, 0, size - 1).astype(np.int32)[:, None], np.ones((out, 1))
    shrink = min(scale, 1.0) if attrs.get("antialias", 0) else 1.0
    taps = 2 * math.ceil((1.0 if mode == "linear" else 2.0) / shrink)
    index = np.ceil(x).astype(np.int64)[:, None] - taps // 2 + np.arange(taps)
    found = weight(x[:, None], index, length, np.float64(scale), attrs, ARRAYS)
    return np.clip(index, 0, size - 1).astype(np.int32), found / found.sum(axis=1, keepdims=True)


def apply_axis(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, index: np.ndarray, weight: np.ndarray
) -> relax.Expr:
    """Resample one axis of a tensor by a table of positions and weights."""
    dtype = str(data.ty.dtype.dtype)
    taps = index.shape[1]
    plain = taps == 1 and bool((weight == 1.0).all())
    times = index.shape[0] // shape_of(data)[axis] if plain else 0
    if times > 1 and np.array_equal(index[:, 0], np.arange(index.shape[0]) // times):
        return bb.emit_te(_repeated, data, axis, times, primfunc_name_hint="resize")
    # Equal distances are arithmetic on indices, too; a few taps may be computed again for another axis.
    apart = int(index[1, 0] - index[0, 0]) if index.shape[0] > 1 else 0
    spaced = apart > 1 and taps <= 2 and bool((np.diff(index, axis=0) == apart).all() and (weight == weight[0]).all())

    def compute(x: te.Tensor, *tables: te.Tensor) -> te.Tensor:
        shape = [index.shape[0] if d == axis else x.shape[d] for d in range(len(x.shape))]

        def place(k: int, out: tirx.Var) -> tirx.Expr:
            return out * tirx.const(apart, "int64") + int(index[0, k]) if spaced else tables[0][k, out]

        def factor(k: int, out: tirx.Var) -> tirx.Expr:
            return tirx.const(float(weight[0, k]), work) if spaced else tables[1][k, out]

        def at(*i: tirx.Var) -> tirx.Expr:
            def tap(k: int) -> tirx.Expr:
                value = x(*(place(k, v) if d == axis else v for d, v in enumerate(i)))
                return value if plain else value.astype(work) * factor(k, i[axis])

            total = tap(0)
            for k in range(1, taps):
                total = total + tap(k)
            if plain or work == dtype:
                return total
            return tirx.round(total).astype(dtype) if dtype.startswith(("int", "uint")) else total.astype(dtype)

        return te.compute(shape, at, name="resize")

    work = dtype if dtype in ("float32", "float64") else "float32"
    # Tap by tap, so that neighbours in the output find theirs in a row.
    rows = [np.ascontiguousarray(index.T), np.ascontiguousarray(weight.T.astype(work))]
    tables = [] if spaced else [constant(array) for array in (rows[:1] if plain else rows)]
    return bb.emit_te(compute, data, *tables, primfunc_name_hint="resize")


def _repeated(x: te.Tensor, axis: int, times: int) -> te.Tensor:
    """Each element of an axis several times in a row, by arithmetic on indices, which fuses, unlike a table."""
    shape = [n * times if d == axis else n for d, n in enumerate(x.shape)]
    return te.compute(
        shape,
        lambda *i: x(*(tirx.floordiv(v, tirx.const(times, "int64")) if d == axis else v for d, v in enumerate(i))),
        name="resize",
    )


@converter("Upsample")
def _upsample(ctx: Context, data: relax.Expr, scales: relax.Expr | None = None) -> relax.Expr:
    """Upsample: Resize of operator set 10."""
    factors = ctx.attrs["scales"] if scales is None else ctx.known(scales).tolist()
    return _by_scales(ctx, data, factors, attributes(ctx))


def _by_scales(ctx: Context, data: relax.Expr, factors: list[float], attrs: Mapping[str, Any]) -> relax.Expr:
    """Resize of operator sets before 11."""
    if ctx.is_symbolic(0):
        return resize_sized(ctx, data, factors, attrs)
    sizes = [_length(s, f) for s, f in zip(shape_of(data), factors, strict=True)]
    return _resample(ctx, data, range(len(sizes)), factors, sizes, attrs)


@converter("Resize")
def _resize(
    ctx: Context,
    data: relax.Expr,
    roi: relax.Expr | None = None,
    scales: relax.Expr | None = None,
    sizes: relax.Expr | None = None,
) -> relax.Expr:
    """Resize with all interpolation modes, along any axes, from scales or sizes."""
    attrs = attributes(ctx)
    if ctx.opset < 11:
        return _by_scales(ctx, data, ctx.known(roi).tolist(), attrs)
    crops = attrs.get("coordinate_transformation_mode") == CROP
    read = [value for value in (roi if crops else None, scales, sizes) if value is not None]
    if crops or any(not ctx.is_known(value) for value in read):
        return resize_computed(ctx, data, roi, scales, sizes)
    factors = [] if scales is None else [float(f) for f in ctx.known(scales)]
    if ctx.is_symbolic(0) or ctx.is_symbolic_data(data):
        return resize_sized(ctx, data, factors or None, attrs)
    shape = shape_of(data)
    axes = axes_of(attrs, len(shape))
    if factors:
        lengths = [_length(shape[a], f) for a, f in zip(axes, factors, strict=True)]
    else:
        lengths = [int(s) for s in ctx.known(sizes)]
        factors = [float(np.float32(s) / np.float32(shape[a])) for a, s in zip(axes, lengths, strict=True)]
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            lengths = [math.floor(float(np.float32(factor) * np.float32(shape[a])) + 0.5) for a in axes]
    return _resample(ctx, data, axes, factors, lengths, attrs)


def _length(size: int, factor: float) -> int:
    """The length of a resized axis: the product is rounded to float32, as in ONNX Runtime."""
    return math.floor(np.float32(size) * np.float32(factor))


def _resample(
    ctx: Context,
    data: relax.Expr,
    axes: Sequence[int],
    factors: list[float],
    sizes: list[int],
    attrs: Mapping[str, Any],
) -> relax.Expr:
    value = data
    if all(shape_of(data)[axis] == size for axis, size in zip(axes, sizes, strict=True)):
        return value  # ONNX Runtime copies then, whatever the scales
    order = list(zip(axes, factors, sizes, strict=True))
    if attrs.get("mode", "nearest") == "nearest":
        # In any order: of few rows the elements that a table selects, of long ones no more than are left.
        order.sort(key=lambda one: (one[1] > 1, -one[0] if one[1] > 1 else one[0]))
    for axis, factor, size in order:
        if factor == 1.0 and size == shape_of(data)[axis]:
            continue
        index, weight = axis_table(shape_of(data)[axis], float(factor), int(size), attrs)
        value = apply_axis(ctx.bb, value, axis, index, weight)
    return value


__all__ = ["apply_axis", "axis_table"]
