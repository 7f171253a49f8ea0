"""Converter of RoiAlign."""

from __future__ import annotations

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.indexing import safe_indices
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, scalar

op = relax.op

_MOST_POINTS = 1 << 26
"""The most points of a region with one for each pixel, of which ONNX Runtime makes a table; 8192 x 8192."""


@converter("RoiAlign")
def roi_align(ctx: Context, data: relax.Expr, rois: relax.Expr, batches: relax.Expr) -> relax.Expr:
    """RoiAlign. TVM's operator shifts regions before it scales them, and leaves out the results of empty ones."""
    if dtype_of(data) != dtype_of(rois):
        raise NotImplementedError("regions of another type than the map")
    # A region that is not finite is an error, as in ONNX Runtime, and one of too many points: no image has number -1.
    usable = op.astype(op.min(op.astype(ctx.bb.emit(op.isfinite(rois)), "int8"), axis=1), "bool")
    scale, samples = ctx.attrs.get("spatial_scale", 1.0), int(ctx.attrs.get("sampling_ratio", 0))
    if samples <= 0:
        wide = op.astype(ctx.bb.emit(rois), "float32")
        first, last = (op.strided_slice(wide, axes=[1], begin=[n], end=[n + 2]) for n in (0, 2))
        sides = op.maximum(op.subtract(last, first), scalar(0, "float32"))
        points = ctx.bb.emit(op.prod(sides, axis=1))
        usable = op.logical_and(usable, op.less_equal(points, scalar(_MOST_POINTS / scale**2, "float32")))
    batches = ctx.bb.emit(op.where(usable, batches, scalar(-1, dtype_of(batches))))
    batches = safe_indices(ctx, batches, dims_of(data)[0], from_end=False)
    halves = ctx.text("coordinate_transformation_mode", "half_pixel" if ctx.opset >= 16 else "output_half_pixel")
    mode = ctx.text("mode", "avg")
    if mode not in ("avg", "max") or halves not in ("half_pixel", "output_half_pixel"):
        raise NotImplementedError(f"mode {mode} with {halves} is not supported")
    scaled = op.multiply(rois, scalar(scale, dtype_of(rois)))
    if halves == "half_pixel":
        scaled = op.subtract(scaled, scalar(0.5, dtype_of(rois)))
    shape = int(ctx.attrs.get("output_height", 1)), int(ctx.attrs.get("output_width", 1))
    given = data, ctx.bb.emit(scaled), batches
    return ctx.bb.emit_te(
        _aligned, *given, shape, samples, mode, halves == "half_pixel", primfunc_name_hint="roi_align"
    )


def _aligned(
    data: te.Tensor, rois: te.Tensor, batches: te.Tensor, shape: tuple[int, int], samples: int, mode: str, halves: bool
) -> te.Tensor:
    """The mean of the points of each part of a region, or the largest term: a pixel times its weight in a point."""
    dtype = rois.dtype
    lengths = data.shape[2:]

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, dtype)

    def points(roi: int | tirx.Var, d: int) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """The start of a region along an axis, the length of its parts, and the points in each."""
        start, end = rois[roi, 1 - d], rois[roi, 3 - d]
        length = end - start if halves else tirx.max(end - start, number(1))
        part = length / number(shape[d])
        count = tirx.const(samples, "int32") if samples > 0 else tirx.ceil(part).astype("int32")
        return start, part, count

    def corners(x: tirx.Expr, size: tirx.Expr) -> list[tuple[tirx.Expr, tirx.Expr]]:
        """The two pixels around a place, with their weights."""
        last = size - 1
        inside = tirx.min(tirx.max(x, number(0)), tirx.Cast(dtype, last))
        # What is not finite is converted to any integer.
        low = tirx.max(tirx.min(tirx.floor(inside).astype("int32"), tirx.Cast("int32", last)), tirx.const(0, "int32"))
        share = inside - tirx.Cast(dtype, low)
        return [(low, number(1) - share), (tirx.min(low + 1, tirx.Cast("int32", last)), share)]

    def at(i: tirx.Var, c: tirx.Var, *place: tirx.Var) -> tirx.Expr:
        axes, places, counts = [], [], []
        for d in range(2):
            start, part, count = points(i, d)
            counts.append(count)
            # At least one: code without an iteration would write no result.
            axes.append(te.reduce_axis((0, tirx.max(count, tirx.const(1, "int32"))), name="hw"[d]))
            step = (tirx.Cast(dtype, axes[d]) + number(0.5)) * part / tirx.Cast(dtype, tirx.max(count, 1))
            places.append(start + tirx.Cast(dtype, place[d]) * part + step)
        ends = zip(places, lengths, strict=True)
        outside = tirx.any(*(tirx.any(x < number(-1), x > tirx.Cast(dtype, n)) for x, n in ends))
        nothing = tirx.any(outside, *(count <= 0 for count in counts))
        rows, columns = (corners(x, n) for x, n in zip(places, lengths, strict=True))
        batch = batches[i].astype("int32")
        terms = [data[batch, c, y, x] * (a * b) for y, a in rows for x, b in columns]
        if mode == "max":
            largest = tirx.max(tirx.max(terms[0], terms[1]), tirx.max(terms[2], terms[3]))
            return te.max(tirx.if_then_else(nothing, number(0), largest), axis=axes)
        mean = (terms[0] + terms[1] + terms[2] + terms[3]) / tirx.Cast(dtype, tirx.max(counts[0] * counts[1], 1))
        return te.sum(tirx.if_then_else(nothing, number(0), mean), axis=axes)

    return te.compute((rois.shape[0], data.shape[1], *shape), at, name="roi_align")
