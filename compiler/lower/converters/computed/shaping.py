"""Operators that get the shape of their result as data: Reshape, Expand, Tile, ConstantOfShape, Range, OneHot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import (
    LARGEST,
    element,
    elements,
    product,
    results,
    sizes,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.variables import as_int64

op = relax.op
Buffers = Sequence[tirx.Buffer]

_LEAST = np.iinfo(np.int64).min


def _length(value: relax.Expr) -> int:
    size = dims_of(value)[0]
    if not isinstance(size, int):
        raise NotImplementedError("the rank of the result depends on data")
    return size


@sizes("Reshape")
def _reshape(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    """The sizes of a Reshape: 0 copies a size, unless `allowzero` is set, and -1 is what is left."""
    count, rank = _length(shape), rank_of(data)
    copies = not ctx.attrs.get("allowzero", 0)

    def asked(ins: Buffers) -> list[tirx.Expr]:
        found = []
        for axis in range(count):
            size = element(ins[1], axis)
            if copies and axis < rank:
                size = tirx.Select(size == whole(0), ins[0].shape[axis].astype("int64"), size)
            found.append(size)
        return found

    def known(ins: Buffers) -> tirx.Expr:
        return product([tirx.Select(size == whole(-1), whole(1), size) for size in asked(ins)])

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        rest = tirx.floordiv(product(ins[0].shape), tirx.max(known(ins), whole(1)))
        return [tirx.Select(size == whole(-1), rest, size) for size in asked(ins)]

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        least = [size >= whole(-1) for size in asked(ins)]
        right = product(numbers(ins)) == product(ins[0].shape)
        return [(tirx.all(right, *least), "the input cannot have the shape that it is given")]

    return vector(ctx, [data, shape], count, numbers, check)


@results("Reshape", "Unsqueeze", "Squeeze")
def _reshaped(ctx: Context, data: relax.Expr, _numbers: relax.Expr) -> relax.Expr:
    return op.reshape(data, [as_int64(n) for n in ctx.result()])


@sizes("Expand")
def _expand(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    count, rank = _length(shape), rank_of(data)
    full = max(count, rank)

    def pairs(ins: Buffers) -> list[tuple[tirx.Expr, tirx.Expr]]:
        own = [whole(1)] * (full - rank) + [d.astype("int64") for d in ins[0].shape]
        asked = [whole(1)] * (full - count) + [element(ins[1], i) for i in range(count)]
        return list(zip(own, asked, strict=True))

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        return [tirx.Select(a == whole(1), b, a) for a, b in pairs(ins)]

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        fits = [tirx.all(b >= whole(0), tirx.any(a == b, a == whole(1), b == whole(1))) for a, b in pairs(ins)]
        return [(tirx.all(*fits, whole(0) == whole(0)), "the input cannot be expanded to the shape that it is given")]

    return vector(ctx, [data, shape], full, numbers, check)


@sizes("Range")
def _range(ctx: Context, start: relax.Expr, limit: relax.Expr, delta: relax.Expr) -> relax.Expr:
    dtype = dtype_of(start)
    work = dtype if dtype == "float64" else "float64" if dtype.startswith("float") else "int64"

    def ends(ins: Buffers) -> list[tirx.Expr]:
        return [b[tuple([whole(0)] * len(b.shape))].astype(work) for b in ins]

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        first, last, step = ends(ins)
        if work == "int64":
            is_up = step > whole(0)
            span = tirx.Select(is_up, last - first, first - last)
            by = tirx.max(tirx.Select(is_up, step, -tirx.max(step, whole(_LEAST + 1))), whole(1))
            # The processor stops the process for a division by 0 or -1, and `by` is neither.
            count = tirx.Select(span > whole(0), tirx.floordiv(span - whole(1), by) + whole(1), whole(0))
        else:
            count = tirx.ceil((last - first) / step).astype("int64")
        return [tirx.max(count, whole(0))]

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        first, last, step = ends(ins)
        wide = [end.astype("float64") for end in (first, last, step)]
        count = (wide[1] - wide[0]) / wide[2]
        none, most = tirx.const(0, work), tirx.const(float(LARGEST), "float64")
        right = tirx.any(step > none, step < none)  # NaN is neither
        # An infinite step gives one element or none; other infinities and NaN have no count.
        finite = [tirx.all(end == end, tirx.abs(end) < tirx.infinity("float64")) for end in wide[:2]]
        near = tirx.abs(wide[1] - wide[0]) < tirx.const(2.0**63, "float64") if work == "int64" else right
        return [
            (right, "the step is 0 or not a number"),
            (tirx.all(*finite, near, count <= most), f"the range is not finite, or has more than {LARGEST} elements"),
        ]

    return vector(ctx, [start, limit, delta], 1, numbers, check)


@results("Range")
def _ranged(ctx: Context, start: relax.Expr, _limit: relax.Expr, delta: relax.Expr) -> relax.Expr:
    dtype = dtype_of(start)

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        first, step = (g(*[whole(0)] * len(g.shape)) for g in given)
        return (first + i[0].astype(dtype) * step).astype(dtype)

    return elements(ctx, [start, delta], at, dtype, "range")
