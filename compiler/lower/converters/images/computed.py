"""Operators that get the size of an image as data: AffineGrid, Col2Im."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.axes import count_of
from heterocc.compiler.lower.converters.computed.numbers import (
    element,
    elements,
    loop,
    product,
    results,
    sizes,
    table,
    unravelled,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dtype_of

Buffers = Sequence[tirx.Buffer]


@results("AffineGrid")
@converter("AffineGrid")
def _grid(ctx: Context, theta: relax.Expr, size: relax.Expr) -> relax.Expr:
    """The points of the grid, whose coordinates are between -1 and 1, transformed by each matrix [batch, n, n + 1]."""
    rank, dtype = count_of(size, "the rank of the image") - 2, dtype_of(theta)
    aligned = bool(ctx.attrs.get("align_corners", 0))
    work = dtype if dtype == "float64" else "float32"

    def coordinate(index: tirx.Expr, count: tirx.Expr) -> tirx.Expr:
        place, one = tirx.max(index.astype(work), tirx.const(0, work)), tirx.const(1, work)
        if aligned:
            steps = tirx.max(count - whole(1), whole(1)).astype(work)
            # Of a side of one point ONNX Runtime takes the far end.
            return tirx.Select(count == whole(1), one, place * (tirx.const(2, work) / steps) - one)
        return (place * tirx.const(2, work) + one) / count.astype(work) - one

    def at(given: list[te.Tensor], shape: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        total = given[0](i[0], i[-1], whole(rank)).astype(work)
        for place in range(rank):  # the first coordinate is that of the last axis
            axis = rank - place
            total = total + given[0](i[0], i[-1], whole(place)).astype(work) * coordinate(i[axis], shape[axis])
        return total.astype(dtype)

    return elements(ctx, [theta], at, dtype, "affine_grid")


@sizes("Col2Im")
def _col2im(ctx: Context, data: relax.Expr, image: relax.Expr, block: relax.Expr) -> relax.Expr:
    rank = count_of(image, "the rank of the image")

    def taps(ins: Buffers) -> tirx.Expr:
        return tirx.max(product([element(ins[2], d) for d in range(rank)]), whole(1))

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        channels = tirx.floordiv(ins[0].shape[1].astype("int64"), taps(ins))
        return [ins[0].shape[0], channels, *(element(ins[1], d) for d in range(rank))]

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        places = product(_places(ctx, ins, rank)) == ins[0].shape[2].astype("int64")
        rows = tirx.floormod(ins[0].shape[1].astype("int64"), taps(ins)) == whole(0)
        return [(tirx.all(places, rows), "the columns do not make an image of this size")]

    return vector(ctx, [data, image, block], rank + 2, numbers, check)


@results("Col2Im")
def _image(ctx: Context, data: relax.Expr, image: relax.Expr, block: relax.Expr) -> relax.Expr:
    """The sums of the columns' elements that overlap at each place."""
    rank, dtype = count_of(image, "the rank of the image"), dtype_of(data)
    strides, dilations, pads = _windows(ctx, rank)

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        kernel = [element(ins[2], d) for d in range(rank)]
        places = _places(ctx, ins, rank)

        def clear(i: tirx.Var) -> tirx.Stmt:
            return tirx.BufferStore(out, tirx.const(0, dtype), unravelled(i, out.shape))

        def add(i: tirx.Var) -> tirx.Stmt:
            batch, row, column = unravelled(i, ins[0].shape)
            channel, *tap = unravelled(row, [out.shape[1], *kernel])
            window = unravelled(column, places)
            at = [
                w * whole(s) + t * whole(d) - whole(p)
                for w, s, t, d, p in zip(window, strides, tap, dilations, pads[:rank], strict=True)
            ]
            spot = [batch, channel, *at]
            inside = tirx.all(*(tirx.all(a >= whole(0), a < n) for a, n in zip(at, out.shape[2:], strict=True)))
            total = out[tuple(spot)] + ins[0][batch, row, column]
            return tirx.IfThenElse(inside, tirx.BufferStore(out, total, spot), None)

        return tirx.SeqStmt([loop(product(out.shape), clear), loop(product(ins[0].shape), add)])

    return table(ctx, [data, image, block], ctx.result(), write, dtype, "col2im")


def _windows(ctx: Context, rank: int) -> tuple[list[int], list[int], list[int]]:
    strides, dilations = (list(ctx.attrs.get(k, None) or [1] * rank) for k in ("strides", "dilations"))
    return strides, dilations, list(ctx.attrs.get("pads", None) or [0] * 2 * rank)


def _places(ctx: Context, ins: Buffers, rank: int) -> list[tirx.Expr]:
    """The number of windows along each axis of the image."""
    strides, dilations, pads = _windows(ctx, rank)
    found = []
    for d in range(rank):
        reach = whole(dilations[d]) * (element(ins[2], d) - whole(1)) + whole(1)
        room = element(ins[1], d) + whole(pads[d] + pads[d + rank]) - reach
        found.append(tirx.floordiv(room, whole(strides[d])) + whole(1))
    return found
