"""Converters of operators that read images at computed places: GridSample, RoiAlign, DeformConv."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.indexing import safe_indices
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, padded_place, rank_of, scalar, shape_of
from heterocc.compiler.lower.variables import Extent, as_int64

_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest"}

_FAR = float(1 << 30)
"""Coordinates beyond this are set to it, so that they are in the range of int32."""


@converter("GridSample")
def grid_sample(ctx: Context, data: relax.Expr, grid: relax.Expr) -> relax.Expr:
    """GridSample: by TVM's operator, or on the CPU a lookup of pixels, which are found once for all channels."""
    mode, padding = _MODES.get(ctx.text("mode", "linear")), ctx.text("padding_mode", "zeros")
    aligned = bool(ctx.attrs.get("align_corners", 0))
    images = dims_of(data)
    if ctx.backend != "cpu" or mode is None or len(images) != 4 or {dtype_of(data), dtype_of(grid)} != {"float32"}:
        mirrored = padding == "reflection" and aligned
        if mirrored and mode is None and len(images) == 4 and dtype_of(data) == dtype_of(grid):
            return ctx.bb.emit_te(_mirrored_cubic, data, grid, primfunc_name_hint="grid_sample")
        return ctx.original(_at_least_two(ctx, data) if mirrored else data, grid)

    def found(given: te.Tensor, image: Sequence[Extent]) -> list[te.Tensor]:
        return _pixels(given, image, mode == "linear", padding, aligned)

    def samples(pixels: te.Tensor, *near: te.Tensor) -> te.Tensor:
        def at(n: tirx.Var, c: tirx.Var, *place: tirx.Var) -> tirx.Expr:
            zero, terms = tirx.const(0.0, "float32"), []
            for number, weight in zip(near[::2], near[1::2], strict=True):
                share = weight(n, *place)
                term = pixels(n, c, number(n, *place))
                term = term * share if mode == "linear" else term
                terms.append(tirx.Select(share < zero, zero, term) if padding == "zeros" else term)
            return reduce(lambda total, term: total + term, terms)

        return te.compute([*pixels.shape[:2], *near[0].shape[1:]], at, name="grid_sample")

    pixels = ctx.bb.emit_te(found, grid, images[2:], primfunc_name_hint="grid_pixels")
    near = [ctx.bb.emit(relax.TupleGetItem(pixels, n)) for n in range(len(pixels.ty.fields))]
    flat = ctx.bb.emit(relax.op.reshape(data, [*images[:2], images[2] * images[3]]))
    return ctx.bb.emit_te(samples, flat, *near, primfunc_name_hint="grid_sample")


def _pixels(grid: te.Tensor, image: Sequence[Extent], linear: bool, padding: str, aligned: bool) -> list[te.Tensor]:
    """The number in an image and the weight of each pixel around each place: -1 if it is outside, where it is zero."""
    shape, pixels = grid.shape[:-1], image[0] * image[1]
    kind = "int32" if isinstance(pixels, int) and pixels < 1 << 31 else "int64"

    def corner(row: Sequence[te.Tensor], column: Sequence[te.Tensor]) -> list[te.Tensor]:
        def number(*i: tirx.Var) -> tirx.Expr:
            return row[0](*i).astype(kind) * as_int64(image[1]).astype(kind) + column[0](*i).astype(kind)

        def weight(*i: tirx.Var) -> tirx.Expr:
            outside = tirx.min(row[1](*i), column[1](*i)) < tirx.const(0.0, "float32")
            return tirx.Select(outside, tirx.const(-1.0, "float32"), row[1](*i) * column[1](*i))

        return [te.compute(shape, number, name="number"), te.compute(shape, weight, name="weight")]

    columns, rows = (_along(grid, d, image[1 - d], linear, padding, aligned) for d in range(2))
    return [tensor for row in rows for column in columns for tensor in corner(row, column)]


def _along(
    grid: te.Tensor, d: int, size: Extent, linear: bool, padding: str, aligned: bool
) -> list[tuple[te.Tensor, te.Tensor]]:
    """The pixels beside each place along an axis, with their weights as in `_pixels`."""
    shape = grid.shape[:-1]
    length, shift = (size - 1 if aligned else size), (0.0 if aligned else 0.5)

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, "float32")

    def integer(value: Extent) -> tirx.Expr:
        return as_int64(value).astype("int32")

    def exactly(*i: tirx.Var) -> tirx.Expr:
        there = (grid(*i, d) + number(1)) * (as_int64(length).astype("float32") * number(0.5)) - number(shift)
        # NaN becomes the lower limit: a comparison with it is false.
        return tirx.min(tirx.Select(there > number(-_FAR), there, number(-_FAR)), number(_FAR))

    exact = te.compute(shape, exactly, name="exact")
    whole = te.compute(shape, lambda *i: (tirx.floor if linear else tirx.nearbyint)(exact(*i)), name="whole")

    def side(step: int) -> tuple[te.Tensor, te.Tensor]:
        place = te.compute(shape, lambda *i: whole(*i).astype("int32") + integer(step), name="place")

        def inside(*i: tirx.Var) -> tirx.Expr:
            if padding != "reflection":
                return tirx.min(tirx.max(place(*i), integer(0)), integer(size - 1))
            # A row and its mirror image repeat; without the row's ends if these are the edges of the image.
            period = tirx.max(integer(2 * length), integer(1))
            mirrored = tirx.floormod(place(*i), period)
            return tirx.min(mirrored, period - integer(0 if aligned else 1) - mirrored)

        pixel = te.compute(shape, inside, name="pixel")

        def weight(*i: tirx.Var) -> tirx.Expr:
            part = exact(*i) - whole(*i)
            share = number(1) if not linear else part if step else number(1) - part
            return tirx.Select(place(*i).equal(pixel(*i)), share, number(-1)) if padding == "zeros" else share

        return pixel, te.compute(shape, weight, name="weight")

    return [side(step) for step in range(2 if linear else 1)]


def _mirrored_cubic(images: te.Tensor, grid: te.Tensor) -> te.Tensor:
    """Cubic samples of images that are mirrored at the centres of their outer pixels."""
    kind = images.dtype

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, kind)

    def along(size: tirx.Expr, coordinate: tirx.Expr) -> list[tuple[tirx.Expr, tirx.Expr]]:
        """The four nearest pixels of a row, and their weights."""
        exact = (coordinate + number(1)) * (size - as_int64(1)).astype(kind) * number(0.5)
        low = tirx.floor(exact)
        part = exact - low
        found = []
        for place, distance in enumerate((part + number(1), part, number(1) - part, number(2) - part)):
            at = padded_place(low.astype("int64") + as_int64(place - 1), size, "reflect")
            if place in (1, 2):
                weight = (number(1.25) * distance - number(2.25)) * distance * distance + number(1)
            else:
                weight = ((number(3.75) - number(0.75) * distance) * distance - number(6)) * distance + number(3)
            found.append((at, weight))
        return found

    height, width = (as_int64(n) for n in images.shape[2:])

    def at(n: tirx.Var, c: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        columns = along(width, grid(n, i, j, 0))
        total = number(0)
        for y, weight in along(height, grid(n, i, j, 1)):
            row = number(0)
            for x, share in columns:
                row = row + share * images(n, c, y, x)
            total = total + weight * row
        return total

    return te.compute([*images.shape[:2], *grid.shape[1:3]], at, name="grid_sample")


def _at_least_two(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Images whose spatial axes of one element have it twice: every coordinate is then between equal elements.

    TVM divides by the size less one to mirror a coordinate that is not in the image, or NaN: this ends the process if
    the size is 1.
    """
    shape = dims_of(data)
    if all(isinstance(size, int) and size > 1 for size in shape[2:]):
        return data
    two = as_int64(2)
    larger = [tirx.min(two * as_int64(n), tirx.max(as_int64(n), two)) for n in shape[2:]]  # one that is empty stays so

    def compute(x: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            last = [as_int64(n) - as_int64(1) for n in x.shape[2:]]
            return x(*i[:2], *(tirx.min(v.astype("int64"), n) for v, n in zip(i[2:], last, strict=True)))

        return te.compute([*shape[:2], *larger], at, name="at_least_two")

    return ctx.bb.emit_te(compute, data, primfunc_name_hint="at_least_two")


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
            # The number so far is the second operand, so that NaN hides none (decision 7).
            largest = reduce(lambda found, term: tirx.max(term, found), terms)
            return te.max(tirx.if_then_else(nothing, number(0), largest), axis=axes)
        mean = (terms[0] + terms[1] + terms[2] + terms[3]) / tirx.Cast(dtype, tirx.max(counts[0] * counts[1], 1))
        return te.sum(tirx.if_then_else(nothing, number(0), mean), axis=axes)

    return te.compute((rois.shape[0], data.shape[1], *shape), at, name="roi_align")


@converter("DeformConv")
def deform_conv(
    ctx: Context,
    data: relax.Expr,
    weight: relax.Expr,
    offset: relax.Expr,
    bias: relax.Expr | None = None,
    mask: relax.Expr | None = None,
) -> relax.Expr:
    """Deformable convolution of [batch, channels, height, width] tensors.

    `offset` is [batch, offset groups · places of the kernel · 2, rows, columns], `mask` the same without the 2. (Zhu et
    al., Deformable ConvNets v2: More Deformable, Better Results, CVPR 2019)
    """
    kernel = shape_of(weight)
    if rank_of(data) != 4:
        raise NotImplementedError("only deformable convolution of images is supported")
    batch, channels, height, width = dims_of(data)[0], *shape_of(data, 1)
    group, offset_group = ctx.attrs.get("group", 1), ctx.attrs.get("offset_group", 1)
    strides, dilations = ctx.attrs.get("strides", (1, 1)), ctx.attrs.get("dilations", (1, 1))
    pads = ctx.attrs.get("pads", (0, 0, 0, 0))
    rows, columns = shape_of(offset, 2)
    places, dtype = kernel[2] * kernel[3], dtype_of(data)
    shared = channels // offset_group

    def gather(x: te.Tensor, moved: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        def number(value: int) -> tirx.Expr:
            return tirx.const(value, dtype)

        def pixel(n: tirx.Expr, c: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
            """An element of the input, 0 outside. The index stays inside, because both branches may be computed."""
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            kept = [tirx.max(0, tirx.min(i, most - 1)) for i, most in ((row, height), (column, width))]
            return tirx.Select(inside, x(n, c, *kept), number(0))

        def at(n: tirx.Var, c: tirx.Var, p: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            first = ((c // shared) * places + p) * 2
            start = (i * strides[0] - pads[0] + (p // kernel[3]) * dilations[0]).astype(dtype)
            y = start + moved(n, first, i, j)
            start = (j * strides[1] - pads[1] + (p % kernel[3]) * dilations[1]).astype(dtype)
            z = start + moved(n, first + 1, i, j)
            # Places far outside have no pixel; bounded, they are integers.
            y, z = (tirx.max(number(-2), tirx.min(v, number(m + 1))) for v, m in ((y, height), (z, width)))
            top, left = tirx.floor(y), tirx.floor(z)
            down, right = y - top, z - left
            row, column = top.astype("int32"), left.astype("int32")
            value = (
                pixel(n, c, row, column) * (number(1) - down) * (number(1) - right)
                + pixel(n, c, row, column + 1) * (number(1) - down) * right
                + pixel(n, c, row + 1, column) * down * (number(1) - right)
                + pixel(n, c, row + 1, column + 1) * down * right
            )
            return value * masks[0](n, (c // shared) * places + p, i, j) if masks else value

        return te.compute((batch, channels, places, rows, columns), at, name="sample")

    given = [data, offset, *([] if mask is None else [mask])]
    taken = ctx.bb.emit_te(gather, *given, primfunc_name_hint="sample")
    parts = ctx.bb.emit(op.reshape(taken, (batch, group, channels // group * places, rows * columns)))
    weights = ctx.bb.emit(op.reshape(weight, (group, kernel[0] // group, kernel[1] * places)))
    product = ctx.bb.emit(op.matmul(weights, parts))
    result = ctx.bb.emit(op.reshape(product, (batch, kernel[0], rows, columns)))
    return result if bias is None else op.add(result, op.reshape(bias, (1, kernel[0], 1, 1)))
