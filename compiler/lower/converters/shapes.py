"""Converters of operators on shapes, and of operators that only move elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import mul

import numpy as np
import tvm_ffi
from onnx import helper
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import element, vector, whole
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import requested
from heterocc.compiler.lower.converters.values import MOST_ENDS, dims_of, dtype_of, fixed, groups, rank_of, shape_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same
from heterocc.compiler.lower.written import JOINS

op = relax.op

_VECTOR_TYPES = ("float32", "float64", "int32", "int64")


@converter("Shape")
def _shape_of(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Shape as a constant tensor. TVM's converter returns a shape expression, which cannot be an output."""
    shape = shape_of(data)
    return constant(np.array(shape[ctx.attrs.get("start", 0) : ctx.attrs.get("end")], dtype=np.int64))


@converter("Size")
def _size(_ctx: Context, data: relax.Expr) -> relax.Expr:
    return constant(np.array(math.prod(shape_of(data)), dtype=np.int64))


@converter("EyeLike")
def _eye_like(ctx: Context, data: relax.Expr) -> relax.Expr:
    shape, k = dims_of(data), ctx.attrs.get("k", 0)
    dtype = helper.tensor_dtype_to_np_dtype(ctx.attrs["dtype"]) if "dtype" in ctx.attrs else np.dtype(dtype_of(data))
    if all(isinstance(d, int) for d in shape):
        return constant(np.eye(shape[0], shape[1], k, dtype=dtype))

    def at(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        one, zero = (tirx.const(n, str(dtype)) for n in (1, 0))
        return tirx.Select(column - row == k, one, zero)

    return ctx.bb.emit_te(lambda: te.compute(shape, at, name="eye"), primfunc_name_hint="eye_like")


@converter("SpaceToDepth")
def _space_to_depth(ctx: Context, data: relax.Expr) -> relax.Expr:
    """SpaceToDepth in the modes DCR and CRD."""
    batch, channels, height, width = dims_of(data)
    size = ctx.attrs["blocksize"]
    if not isinstance(height, int) or not isinstance(width, int):
        return _blocks_of_any_size(ctx, data, size)
    split = op.reshape(data, (batch, channels, height // size, size, width // size, size))
    order = [0, 1, 3, 5, 2, 4] if ctx.text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = op.permute_dims(split, order)
    return op.reshape(moved, (batch, channels * size * size, height // size, width // size))


def _blocks_of_any_size(ctx: Context, data: relax.Expr, size: int) -> relax.Expr:
    """SpaceToDepth as one kernel. TVM does not know that the sides are multiples of `size`: it would divide by them."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        channels = given[0].shape[1]

        def at(image: tirx.Var, number: tirx.Var, row: tirx.Var, column: tirx.Var) -> tirx.Expr:
            if ctx.text("mode", "DCR") == "CRD":
                channel, block = tirx.floordiv(number, size * size), tirx.floormod(number, size * size)
            else:
                channel, block = tirx.floormod(number, channels), tirx.floordiv(number, channels)
            down, right = tirx.floordiv(block, size), tirx.floormod(block, size)
            return given[0](image, channel, row * size + down, column * size + right)

        return te.compute(shape, at, name="space_to_depth")

    return emit_sized(ctx.bb, compute, [data], [], ctx.result(), dtype_of(data), "space_to_depth")


@converter("Unsqueeze")
def _unsqueeze(ctx: Context, data: relax.Expr, axes: relax.Expr | None = None) -> relax.Expr:
    """Unsqueeze, whose only axis may be a scalar as in ONNX Runtime."""
    if axes is None:
        return ctx.original(data)
    if rank_of(axes) or not ctx.is_known(axes):
        return ctx.original(data, axes)
    return op.expand_dims(data, int(ctx.known(axes)))


_FURTHEST = 2**31 - 1
"""A diagonal of a matrix beyond all of its elements, of which TVM takes the number as one of int32."""


@converter("Trilu")
def _trilu(ctx: Context, data: relax.Expr, diagonal: relax.Expr | None = None) -> relax.Expr:
    """Trilu whose diagonal is so limited that no sum of it and an index leaves int64."""
    if diagonal is None:
        return ctx.original(data)
    known = fixed(diagonal)
    if known is not None:
        return ctx.original(data, constant(np.clip(known, -_FURTHEST, _FURTHEST).astype(np.int64)))

    def limited(ins: Sequence[tirx.Buffer]) -> list[tirx.Expr]:
        return [tirx.min(tirx.max(element(ins[0]), whole(-_FURTHEST)), whole(_FURTHEST))]

    # A kernel of its own: TVM would compare each index with the number and with the limits.
    return ctx.original(data, ctx.bb.emit(op.reshape(vector(ctx, [diagonal], 1, limited), ())))


def tiled(ctx: Context, data: relax.Expr, repeats: relax.Expr) -> relax.Expr:
    """Tile by a kernel that copies rows, and need not divide indices for each element.

    Repetitions of single elements are a broadcast, which operators behind it do not wait for.
    """
    shape, times = dims_of(data), fixed(repeats)
    has_elements = all(n > 0 for n in shape if isinstance(n, int))
    if ctx.backend != "cpu" or not has_elements or times is None or len(times) != len(shape) or not all(times > 0):
        return ctx.original(data, repeats)
    if all(times == 1):
        return data
    result = [n * int(count) for n, count in zip(shape, times, strict=True)]
    if all(count == 1 or (isinstance(n, int) and n == 1) for n, count in zip(shape, times, strict=True)):
        return op.broadcast_to(data, result)
    if dtype_of(data) not in _VECTOR_TYPES:
        return _tiled_by_axis(ctx, data, times.tolist())
    return requested(ctx, "tile", [data], [(result, dtype_of(data))], times=",".join(map(str, times)))


def _tiled_by_axis(ctx: Context, data: relax.Expr, times: Sequence[int]) -> relax.Expr:
    """Tile by a kernel for each axis, the last one first, which copy whole rows."""
    shape = list(dims_of(data))
    for axis in reversed(range(len(shape))):
        if times[axis] == 1:
            continue
        before, row = (reduce(mul, part, as_int64(1)) for part in (shape[:axis], shape[axis:]))
        rows = ctx.bb.emit(op.reshape(data, [before, row]))
        copies = emit_sized(
            ctx.bb, _repeated, [rows], [], [before, times[axis], row], dtype_of(data), "tile", opaque=True
        )
        shape[axis] *= times[axis]
        data = ctx.bb.emit(op.reshape(copies, shape))
    return data


def _repeated(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
    return te.compute(shape, lambda row, _, place: given[0](row, place), name="tile")


_MOST_SIZED = 64
"""The most parts of a concatenation that have sizes of their own: each index in the result is a sum of them."""


@converter("Concat")
def concat(ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    """Concat, also of weights only, for which TVM's converter expects arrays of its own. Empty parts are left out."""
    parts = [i for i in inputs if not any(isinstance(d, int) and d == 0 for d in dims_of(i))] or [inputs[0]]
    if len(parts) == 1:
        return parts[0]
    axis = int(ctx.attrs.get("axis", 1)) % rank_of(parts[0])
    sized = sum(not isinstance(dims_of(part)[axis], int) for part in parts)
    if sized > _MOST_SIZED:
        raise NotImplementedError(f"{sized} parts of sizes known only at run time are more than {_MOST_SIZED}")
    while len(parts) > MOST_ENDS:
        parts = [ctx.bb.emit(op.concat(group, axis)) for group in groups(parts)]
    joined = ctx.bb.normalize(op.concat(parts, axis))
    if not ctx.is_symbolic(0) or not isinstance(joined.ty.shape, relax.ShapeExpr):
        return joined
    wanted, found = ctx.result(), list(joined.ty.shape.values)
    # TVM compares shapes of kernels that it fuses term by term: 1 + n + 10 is not n + 11 to it.
    if not same(found, wanted) or tvm_ffi.structural_equal(found[axis], as_int64(wanted[axis])):
        return joined
    return _concatenated(ctx, parts, axis, wanted)


def _concatenated(ctx: Context, parts: Sequence[relax.Expr], axis: int, shape: Sequence[Extent]) -> relax.Expr:
    """The parts one after another, with the shape as it is given."""

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        starts = list(itertools.accumulate((t.shape[axis] for t in tensors[:-1]), initial=tirx.const(0, "int64")))

        def at(*i: tirx.Var) -> tirx.Expr:
            found = tensors[0](*i)
            for start, tensor in zip(starts[1:], tensors[1:], strict=True):
                there = tensor(*i[:axis], i[axis] - start, *i[axis + 1 :])
                found = tirx.if_then_else(start <= i[axis], there, found)
            return found

        return te.compute(wanted, at, name="T_concat")

    joins = {JOINS: axis}
    return emit_sized(ctx.bb, compute, parts, [], shape, dtype_of(parts[0]), "concatenate", opaque=True, attrs=joins)


@converter("Split")
def split(ctx: Context, data: relax.Expr, sizes: relax.Expr | None = None) -> relax.Expr | list[relax.Expr]:
    """Split. If a part is empty or follows from other sizes, each part becomes a separate slice."""
    axis = int(ctx.attrs.get("axis", 0)) % rank_of(data)
    known = ctx.sizes(1) if sizes is not None and fixed(sizes) is None else None
    if sizes is None and "split" not in ctx.attrs and not isinstance(dims_of(data)[axis], int):
        known = tuple(ctx.result(output)[axis] for output in range(ctx.outputs))
    if known is not None:
        return _parted(ctx, data, axis, known)
    parts = ctx.attrs.get("split") if sizes is None else ctx.known(sizes)
    if ctx.outputs > MOST_ENDS:
        written = [ctx.result(output)[axis] for output in range(ctx.outputs)] if parts is None else parts
        return _grouped(ctx, data, axis, [int(n) for n in written])
    if parts is None or all(parts):
        return ctx.original(data) if sizes is None else ctx.original(data, sizes)
    return _slices(data, axis, [int(n) for n in parts])


def _slices(data: relax.Expr, axis: int, sizes: Sequence[int]) -> list[relax.Expr]:
    """The parts of these sizes, each of which has a kernel of its own."""
    ends = list(itertools.accumulate(sizes))
    return [
        op.strided_slice(data, [axis], [end - size], [end], assume_inbound=True)
        for size, end in zip(sizes, ends, strict=True)
    ]


def _grouped(ctx: Context, data: relax.Expr, axis: int, sizes: Sequence[int]) -> list[relax.Expr]:
    """The parts of these sizes, taken out of parts that hold several of them."""
    if len(sizes) > MOST_ENDS:
        held = groups(sizes)
        wholes = _grouped(ctx, data, axis, [sum(group) for group in held])
        return [part for whole, group in zip(wholes, held, strict=True) for part in _grouped(ctx, whole, axis, group)]
    data = ctx.bb.emit(data)
    if not all(sizes) or len(sizes) == 1:
        return _slices(data, axis, sizes)
    parts = ctx.bb.emit(op.split(data, list(itertools.accumulate(sizes))[:-1], axis))
    return [ctx.bb.emit(relax.TupleGetItem(parts, i)) for i in range(len(sizes))]


def _parted(ctx: Context, data: relax.Expr, axis: int, sizes: Sequence[Extent]) -> list[relax.Expr]:
    """The parts of these sizes, in the shapes that are known of them."""
    starts = list(itertools.accumulate((as_int64(n) for n in sizes[:-1]), initial=tirx.const(0, "int64")))

    def part(given: list[te.Tensor], start: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return te.compute(shape, lambda *i: given[0](*i[:axis], i[axis] + start[0], *i[axis + 1 :]), name="split")

    return [
        emit_sized(ctx.bb, part, [data], [start], ctx.result(output), dtype_of(data), "split")
        for output, start in enumerate(starts)
    ]
