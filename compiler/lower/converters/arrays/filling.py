"""Tensors of numbers: ConstantOfShape, Range, EyeLike, and integers that follow from sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import LARGEST, elements, results, sizes, vector, whole
from heterocc.compiler.lower.converters.registry import RESULTS, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, filled, fixed
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent

Buffers = Sequence[tirx.Buffer]

MOST_STORED = 1 << 12
"""The most elements of a result that is computed when compiling and stored: a small model must not make a large one.

The import has stored what it has room for.
"""


def _static_elements(ctx: Context) -> int:
    """The elements of the result; 0 if they are not known."""
    value = ctx.values.get(ctx.node.output[0])
    return 0 if value is None or value.numbers is None else math.prod(value.numbers)


@converter("ConstantOfShape")
@converter("ConstantOfShape", domain=RESULTS)
def _constant_of_shape(ctx: Context, shape: relax.Expr) -> relax.Expr:
    large = _static_elements(ctx) > MOST_STORED
    if not ctx.is_symbolic(0) and not large:
        return ctx.original(shape)
    attribute = ctx.attrs.get("value")
    value = np.zeros(1, np.float32) if attribute is None else onnx.numpy_helper.to_array(attribute)
    return filled((ctx.values[ctx.node.output[0]].numbers or ()) if large else ctx.result(), value)


@converter("Range")
def _range(ctx: Context, start: relax.Expr, limit: relax.Expr, delta: relax.Expr) -> relax.Expr:
    """Range between integers that follow from sizes, or with many elements."""
    if not ctx.is_symbolic(0):
        found = _large_range(ctx, fixed(start), fixed(delta))
        return ctx.original(start, limit, delta) if found is None else found
    known = [ctx.sizes(index) or _whole_constant(value) for index, value in enumerate((start, limit, delta))]
    if any(k is None for k in known):
        raise NotImplementedError("the ends of the range are computed from data")
    dtype = dtype_of(start)

    def compute(_: list[te.Tensor], ends: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        first, step = ends
        return te.compute(shape, lambda i: (first + i.astype("int64") * step).astype(dtype), name="range")

    ends = [k[0] for k in known if k is not None]
    return emit_sized(ctx.bb, compute, [], [ends[0], ends[2]], ctx.result(), dtype, "range")


def _large_range(ctx: Context, start: np.ndarray | None, delta: np.ndarray | None) -> relax.Expr | None:
    """A range between constants that is computed in each run; None for one that is stored."""
    count = _static_elements(ctx)
    if start is None or delta is None or count <= MOST_STORED:
        return None
    dtype = start.dtype.name
    first, step = (tirx.const(array.reshape(-1)[0].item(), dtype) for array in (start, delta))

    def compute(_: list[te.Tensor], _ends: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return te.compute(shape, lambda i: first + i.astype(dtype) * step, name="range")

    return emit_sized(ctx.bb, compute, [], [], [count], dtype, "range")


def _whole_constant(value: relax.Expr) -> tuple[int] | None:
    """The element of a constant of one whole number."""
    array = fixed(value)
    return None if array is None or array.size != 1 or not float(array.flat[0]).is_integer() else (int(array.flat[0]),)


def from_sizes(bb: relax.BlockBuilder, elements: tuple[Extent, ...], shape: tuple[int, ...], dtype: str) -> relax.Expr:
    """A tensor of integers that follow from sizes."""
    if all(isinstance(e, int) for e in elements):
        return constant(np.array(elements, dtype).reshape(shape))

    def compute(_: list[te.Tensor], elements: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            place = tirx.const(0, "int64")
            for n, v in zip(shape, i, strict=True):
                place = place * n + v.astype("int64")
            found = elements[-1]
            for index in range(len(elements) - 2, -1, -1):
                found = tirx.Select(place == tirx.const(index, "int64"), elements[index], found)
            return found.astype(dtype)

        return te.compute(shape, at, name="sizes")

    return emit_sized(bb, compute, [], elements, shape, dtype, "sizes")


_LEAST = np.iinfo(np.int64).min


@sizes("Range")
def _range_sizes(ctx: Context, start: relax.Expr, limit: relax.Expr, delta: relax.Expr) -> relax.Expr:
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


@converter("EyeLike")
def _eye_like(ctx: Context, data: relax.Expr) -> relax.Expr:
    shape, k = dims_of(data), ctx.attrs.get("k", 0)
    dtype = helper.tensor_dtype_to_np_dtype(ctx.attrs["dtype"]) if "dtype" in ctx.attrs else np.dtype(dtype_of(data))
    if all(isinstance(d, int) for d in shape) and math.prod(shape) <= MOST_STORED:
        return constant(np.eye(shape[0], shape[1], k, dtype=dtype))

    def at(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        one, zero = (tirx.const(n, str(dtype)) for n in (1, 0))
        return tirx.Select(column - row == k, one, zero)

    return ctx.bb.emit_te(lambda: te.compute(shape, at, name="eye"), primfunc_name_hint="eye_like")
