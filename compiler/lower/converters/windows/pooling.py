"""Converters of pooling, of sums over windows that overlap, and of windows whose padding depends on the size.

A pool whose only window covers the input is a mean or maximum of the whole input. PyTorch exports a global average as a
pool with as large a window as the model has channels; TVM would add up all the padding that such a window takes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.overlaps import Windows, added_columns
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of, shape_of
from heterocc.compiler.lower.sized import emit_sized

op = relax.op


@converter("AveragePool")
def average_pool(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Means over windows."""
    padding_counts = bool(ctx.attrs.get("count_include_pad", 0)) and any(ctx.attrs.get("pads", ()))
    if _covers(ctx, data) and not padding_counts:
        return op.mean(data, list(range(2, rank_of(data))), keepdims=True)
    if keeps_size(ctx) and not all(isinstance(size, int) for size in dims_of(data)[2:]):
        ctx, data = padded_by_size(ctx, data, ctx.attrs["kernel_shape"], None)
    if ctx.attrs.get("ceil_mode") and not all(isinstance(size, int) for size in dims_of(data)[2:]):
        rank = rank_of(data) - 2
        more = rounded_up(ctx, rank)
        ctx, data = _with_zeros(more, data, ctx.attrs["pads"], rank) if padding_counts else (more, data)
    return with_pads(ctx, data).original(data)


def _with_zeros(ctx: Context, data: relax.Expr, pads: Sequence[int], rank: int) -> tuple[Context, relax.Expr]:
    """Data with padding that counts as elements of a window, and the context with the padding that does not."""
    ends = ctx.attrs["pads"]
    left = [more - counted for more, counted in zip(ends[rank:], pads[rank:], strict=True)]
    if min(left) < 0:
        raise NotImplementedError("padding that is longer than the windows is not supported")
    widths = [0] * 4 + [width for axis in range(rank) for width in (pads[axis], pads[axis + rank])]
    return ctx.changed({"pads": [0] * rank + left}, without=("count_include_pad",)), ctx.bb.emit(
        op.nn.pad(data, widths)
    )


@converter("MaxPool")
def max_pool(ctx: Context, data: relax.Expr) -> relax.Expr | list[relax.Expr]:
    """Maxima over windows, and their indices if they are wanted."""
    if ctx.outputs == 1 and _covers(ctx, data):
        return op.max(data, list(range(2, rank_of(data))), keepdims=True)
    ctx, data = padded(ctx, data, tirx.min_value(dtype_of(data)))
    if not _is_fixed(data):
        ctx = rounded_up(ctx, rank_of(data) - 2)
    if ctx.outputs > 1 and ctx.node.output[1]:
        return _with_indices(ctx, data)
    if ctx.backend == "cpu" and rank_of(data) == 5 and not ctx.attrs.get("ceil_mode") and _is_fixed(data):
        return _by_planes(ctx, data)
    return ctx.original(data)


def rounded_up(ctx: Context, rank: int) -> Context:
    """The context with padding behind the data in place of `ceil_mode`, whose sizes TVM cannot simplify.

    For pooling to which elements of the padding add nothing, and that does not count them.

    The padding ends with the last window that begins before it.
    """
    if not ctx.attrs.get("ceil_mode"):
        return ctx
    strides, dilations = (ctx.attrs.get(k, None) or [1] * rank for k in ("strides", "dilations"))
    pads, kernel = list(ctx.attrs.get("pads", None) or [0] * 2 * rank), ctx.attrs["kernel_shape"]
    for axis in range(rank):
        last = (kernel[axis] - 1) * dilations[axis]
        pads[axis + rank] = min(pads[axis + rank] + strides[axis] - 1, last)
    return ctx.changed({"pads": pads}, without=("ceil_mode",))


def _is_fixed(data: relax.Expr) -> bool:
    return all(isinstance(size, int) for size in dims_of(data))


def _by_planes(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The maxima over windows of three dimensions, as maxima over depth of those of each plane."""
    batch, channels, depth, *sizes = shape_of(data)
    strides, dilations = (ctx.attrs.get(k, None) or [1] * 3 for k in ("strides", "dilations"))
    kernel, pads = ctx.attrs["kernel_shape"], ctx.attrs.get("pads", None) or [0] * 6
    planes = op.nn.max_pool2d(
        op.reshape(data, [batch, channels * depth, *sizes]),
        kernel[1:],
        strides[1:],
        [*pads[1:3], *pads[4:]],
        dilations[1:],
    )
    planes = ctx.bb.emit(planes)
    places = shape_of(planes)[2:]
    columns = op.reshape(planes, [batch, channels, depth, math.prod(places)])
    ends = [pads[0], 0, pads[3], 0]
    found = op.nn.max_pool2d(columns, [kernel[0], 1], [strides[0], 1], ends, [dilations[0], 1])
    found = ctx.bb.emit(found)
    return op.reshape(found, [batch, channels, shape_of(found)[2], *places])


def padded(ctx: Context, data: relax.Expr, fill: tirx.Expr) -> tuple[Context, relax.Expr]:
    """The context with `pads` in place of an `auto_pad` that determines them, and the data, padded if need be."""
    if not keeps_size(ctx):
        return ctx, data
    sizes, kernel = dims_of(data)[2:], ctx.attrs["kernel_shape"]
    if not all(isinstance(size, int) for size in sizes):
        if ctx.outputs > 1 and ctx.node.output[1]:
            raise NotImplementedError("indices of maxima over padding that depends on the image's size")
        return padded_by_size(ctx, data, kernel, fill)
    return with_pads(ctx, data), data


def with_pads(ctx: Context, data: relax.Expr) -> Context:
    """The context of pooling with `pads` in place of an `auto_pad` that determines them for data of fixed sizes.

    ONNX Runtime adds the padding of a window without its dilation, and leaves out windows that do not fit.
    """
    sizes = dims_of(data)[2:]
    if not keeps_size(ctx) or not all(isinstance(size, int) for size in sizes):
        return ctx
    strides = ctx.attrs.get("strides", None) or [1] * len(sizes)
    axes = zip(sizes, ctx.attrs["kernel_shape"], strides, strict=True)
    total = [(-(-n // s) - 1) * s + k - n for n, k, s in axes]
    dilated = any(d != 1 for d in ctx.attrs.get("dilations", None) or ())
    if dilated and any(t < 0 for t in total):
        raise NotImplementedError("`auto_pad` of windows with dilation that are shorter than their strides")
    total = [max(0, t) for t in total]
    before = [(t + (ctx.text("auto_pad", "NOTSET") == "SAME_LOWER")) // 2 for t in total]
    pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
    return ctx.changed({"pads": pads}, without=("auto_pad",) if dilated else ("auto_pad", "ceil_mode"))


MOST_TAPS = 128
"""The most elements of a window among which that of the maximum is sought."""


def _with_indices(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    """Maxima, and for each the index of the first element of its window that equals it, in the flattened input."""
    shape = dims_of(data)
    sizes, rank = shape[2:], len(shape) - 2
    kernel = ctx.attrs["kernel_shape"]
    by_column = bool(ctx.attrs.get("storage_order", 0))
    if math.prod(kernel) > MOST_TAPS or (by_column and rank > 2):
        raise NotImplementedError("indices of the maxima of windows this large, or in column order, are not supported")
    most = ctx.bb.emit(dataclasses.replace(ctx, outputs=1).original(data))
    places = dims_of(most)[2:]
    strides = ctx.attrs.get("strides", None) or [1] * rank
    dilations = ctx.attrs.get("dilations", None) or [1] * rank
    before = (ctx.attrs.get("pads", None) or [0] * 2 * rank)[:rank]
    steps = [1] * rank
    for d in range(1, rank):
        if by_column:
            steps[d] = steps[d - 1] * sizes[d - 1]
        else:
            steps[rank - 1 - d] = steps[rank - d] * sizes[rank - d]

    def compute(x: te.Tensor, largest: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            wide = [v.astype("int64") for v in i]
            plane = (wide[0] * shape[1] + wide[1]) * math.prod(sizes)
            found = plane
            for taps in reversed(list(itertools.product(*map(range, kernel)))):
                at = [wide[2 + d] * strides[d] + (taps[d] * dilations[d] - before[d]) for d in range(rank)]
                inside = tirx.all(*(tirx.all(p >= 0, p < n) for p, n in zip(at, sizes, strict=True)))
                near = [tirx.max(tirx.min(p, n - 1), tirx.const(0, "int64")) for p, n in zip(at, sizes, strict=True)]
                here = plane
                for p, step in zip(near, steps, strict=True):
                    here = here + p * step
                hit = tirx.all(inside, x(i[0], i[1], *near) == largest(*i))
                found = tirx.Select(hit, here, found)
            return found

        return te.compute((*shape[:2], *places), at, name="places_of_maxima")

    return [most, ctx.bb.emit_te(compute, data, most, primfunc_name_hint="places_of_maxima")]


@converter("Col2Im")
def col2im(ctx: Context, data: relax.Expr, image: relax.Expr, block: relax.Expr) -> relax.Expr:
    """Col2Im: the sums of the columns' elements that overlap at each place of an image."""
    sizes, kernel = ([int(n) for n in ctx.known(v)] for v in (image, block))
    rank = len(sizes)
    strides, dilations = (ctx.attrs.get(k, None) or [1] * rank for k in ("strides", "dilations"))
    pads = ctx.attrs.get("pads", None) or [0] * 2 * rank
    batch, rows, count = dims_of(data)[0], *shape_of(data, 1)
    places = [
        (n + p + q - d * (k - 1) - 1) // s + 1
        for n, p, q, d, k, s in zip(sizes, pads[:rank], pads[rank:], dilations, kernel, strides, strict=True)
    ]
    if math.prod(places) != count or rows % math.prod(kernel):
        raise NotImplementedError(f"{rows} by {count} columns do not make an image of {sizes}")
    channels = rows // math.prod(kernel)
    split = ctx.bb.emit(op.reshape(data, (batch, channels, *kernel, *places)))
    return added_columns(ctx, split, list(map(Windows, strides, dilations, pads[:rank], sizes)))


def _covers(ctx: Context, data: relax.Expr) -> bool:
    """Whether there is one window, which takes in every element of the input's spatial dimensions."""
    if ctx.text("auto_pad", "NOTSET") != "NOTSET":
        return False
    sizes = dims_of(data)[2:]
    rank = len(sizes)
    if not all(isinstance(size, int) for size in sizes):
        return False
    kernel = ctx.attrs.get("kernel_shape", ())
    if len(kernel) != rank or not all(sizes) or any(d != 1 for d in ctx.attrs.get("dilations", ())):
        return False
    strides = ctx.attrs.get("strides", None) or [1] * rank
    pads = ctx.attrs.get("pads", None) or [0] * 2 * rank
    whole = math.ceil if ctx.attrs.get("ceil_mode", 0) else math.floor
    return all(
        taps >= before + size and whole((before + size + after - taps) / stride + 1) == 1
        for size, taps, stride, before, after in zip(sizes, kernel, strides, pads[:rank], pads[rank:], strict=True)
    )


@converter("Conv")
def _conv(ctx: Context, data: relax.Expr, weight: relax.Expr, *bias: relax.Expr | None) -> relax.Expr:
    """TVM's convolution; it cannot pad an image of any size."""
    if keeps_size(ctx) and not all(isinstance(n, int) for n in dims_of(data)[2:]):
        ctx, data = padded_by_size(ctx, data, shape_of(weight)[2:], tirx.const(0, dtype_of(data)))
    elif ctx.backend == "cpu" and _cuts_a_signal(ctx, data, weight):
        ctx, data = _padded_before(ctx, data)
    return ctx.original(data, weight, *bias)


def _cuts_a_signal(ctx: Context, data: relax.Expr, weight: relax.Expr) -> bool:
    """Whether a convolution reads strided frames of one channel of any length: a product, if nothing is padded.

    It has one dimension, or others of size 1 before it.
    """
    *others, length = dims_of(data)[2:]
    rank = len(others) + 1
    strides, pads = ctx.attrs.get("strides", None) or [1] * rank, ctx.attrs.get("pads", None) or [0] * 2 * rank
    if isinstance(length, int) or strides[-1] == 1 or not any(pads):
        return False
    if any(size != 1 for size in (*others, *shape_of(weight)[2:-1])):
        return False
    if any(pads[d] or pads[rank + d] for d in range(rank - 1)):
        return False
    return bool(ctx.attrs.get("group", 1) * shape_of(weight)[1] == 1)


def _padded_before(ctx: Context, data: relax.Expr) -> tuple[Context, relax.Expr]:
    """The context without padding, and the padded data."""
    pads = ctx.attrs["pads"]
    rank = len(pads) // 2
    widths = [0] * 4 + [width for d in range(rank) for width in (pads[d], pads[rank + d])]
    return ctx.changed({}, without=("pads",)), ctx.bb.emit(relax.op.nn.pad(data, widths))


def keeps_size(ctx: Context) -> bool:
    """Whether an operator pads so that its result has the input's size divided by the strides."""
    return ctx.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def padded_by_size(
    ctx: Context, data: relax.Expr, kernel: Sequence[int], fill: tirx.Expr | None
) -> tuple[Context, relax.Expr]:
    """The context without `auto_pad`, and the data that it is for: padded if the padding depends on the size.

    The padded data begin with the first window and end with the last one. Without `fill` such data are refused.
    """
    batch, channels, *sizes = dims_of(data)
    strides, dilations = (ctx.attrs.get(k, None) or [1] * len(sizes) for k in ("strides", "dilations"))
    if ctx.node.op_type != "Conv" and any(d != 1 for d in dilations):
        raise NotImplementedError("`auto_pad` of windows with dilation over images of any size")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    late = ctx.text("auto_pad", "NOTSET") == "SAME_LOWER"
    ctx = ctx.changed({}, without=("auto_pad", "ceil_mode"))
    if all(s == 1 for s in strides):
        before = [(r - 1 + late) // 2 for r in reach]
        pads = [*before, *(r - 1 - b for r, b in zip(reach, before, strict=True))]
        return ctx.changed({"pads": pads}), data
    if fill is None:
        raise NotImplementedError("means over windows whose padding depends on the image's size are not supported")
    axes = list(zip(sizes, strides, reach, strict=True))
    wanted = [(n + (s - 1)) // s * s - s + r for n, s, r in axes]

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        image = given[0]
        inner = list(zip(image.shape[2:], shape[2:], strict=True))
        first = [(tirx.max(whole - n, tirx.const(0, "int64")) + late) // 2 for n, whole in inner]

        def at(*i: tirx.Var) -> tirx.Expr:
            places = [v - f for v, f in zip(i[2:], first, strict=True)]
            inside = [tirx.all(p >= 0, p < n) for p, (n, _) in zip(places, inner, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), image(i[0], i[1], *places), fill)

        return te.compute(shape, at, name="padded")

    found = emit_sized(ctx.bb, compute, [data], [], [batch, channels, *wanted], dtype_of(data), "padded")
    return ctx, found
