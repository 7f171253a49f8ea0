"""Converters of operators with computed indices. Negative indices count from the end; accesses are always in bounds.

An index out of range ends a run on CPUs, as ONNX Runtime's; code for other devices reads or writes the nearest element.

TVM's converters do not check indices, and need shapes that are known only at run time.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.filling import MOST_STORED
from heterocc.compiler.lower.converters.checked_places import checked_lengths, checked_places, checked_starts
from heterocc.compiler.lower.converters.registry import RESULTS, Context, converter
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    dims_of,
    dtype_of,
    filled,
    fixed,
    fixed_size,
    inside,
    is_known_empty,
    rank_of,
    scalar,
)
from heterocc.compiler.lower.sized import checked, emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same
from heterocc.compiler.lower.written import INJECTIVE, PATTERN

op = relax.op

"""TVM's pattern of a kernel that moves elements, which its analysis does not see in an index that is read."""


@converter("GatherElements")
def gather_elements(ctx: Context, data: relax.Expr, indices: relax.Expr) -> relax.Expr:
    """GatherElements: a gather of single elements."""
    shape = dims_of(data)
    axis = ctx.attrs.get("axis", 0) % len(shape)
    _require_elements(shape[axis], indices)
    if axis == 0 and (rows := _rows_of(ctx, indices)) is not None and same(shape[1:], dims_of(indices)[1:]):
        return _taken(ctx, data, checked_places(ctx, rows, [shape[0]]), 0)
    indices = checked_places(ctx, indices, [shape[axis]])

    def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        x, table = tensors

        def at(*i: tirx.Var) -> tirx.Expr:
            return x(*i[:axis], inside(table(*i), sizes[0]), *i[axis + 1 :])

        return te.compute(wanted, at, name="gather_elements")

    return emit_sized(
        ctx.bb, compute, [data, indices], [shape[axis]], dims_of(indices), dtype_of(data), "gather_elements"
    )


@converter("GatherND")
def gather_nd(ctx: Context, data: relax.Expr, indices: relax.Expr) -> relax.Expr:
    """GatherND: a gather of slices by index tuples."""
    shape, places = dims_of(data), dims_of(indices)
    batch, depth = ctx.attrs.get("batch_dims", 0), places[-1]
    if not isinstance(depth, int):
        raise NotImplementedError("the length of the index tuples has no fixed size")
    outer = len(places) - 1
    indexed = shape[batch : batch + depth]
    for size in indexed:
        _require_elements(size, indices)
    indices = checked_places(ctx, indices, indexed)

    def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        x, table = tensors

        def at(*i: tirx.Var) -> tirx.Expr:
            index = [inside(table(*i[:outer], d), sizes[d]) for d in range(depth)]
            return x(*i[:batch], *index, *i[outer:])

        return te.compute(wanted, at, name="gather_nd")

    wanted = (*places[:-1], *shape[batch + depth :])
    return emit_sized(ctx.bb, compute, [data, indices], indexed, wanted, dtype_of(data), "gather_nd")


@converter("Scatter", "ScatterElements")
def scatter_elements(ctx: Context, data: relax.Expr, indices: relax.Expr, updates: relax.Expr) -> relax.Expr:
    """ScatterElements: a scatter of single elements."""
    axis = ctx.attrs.get("axis", 0) % rank_of(data)
    shape, places = dims_of(data), dims_of(indices)
    others = [n for n in range(len(shape)) if n != axis]
    alike = same([shape[n] for n in others], [places[n] for n in others])
    rows = _rows_of(ctx, indices) if alike and axis == 0 and ctx.backend == "cpu" else None
    if rows is not None and same(dims_of(updates), places):
        safe = ctx.bb.emit(safe_indices(ctx, rows, shape[0]))
        return op.scatter_nd(data, op.expand_dims(safe, 1), updates, _reduction(ctx))
    safe = safe_indices(ctx, indices, shape[axis])
    if alike:
        return op.scatter_elements(data, safe, updates, axis=axis, reduction=_reduction(ctx))
    # TVM takes the rows of the indices for those of the data, which may have more of them.
    return op.scatter_nd(data, _coordinates(ctx, safe, axis), updates, _reduction(ctx))


def _rows_of(ctx: Context, indices: relax.Expr) -> relax.Expr | None:
    """The index of each row, if one holds for all of it; None otherwise.

    Exporters of graph networks expand a vector of indices to the shape of the elements.
    """
    wide = ctx.bb.lookup_binding(indices) if isinstance(indices, relax.Var) else None
    if not isinstance(wide, relax.Call) or wide.op.name != "relax.broadcast_to":
        return None
    first, *others = dims_of(wide.args[0])
    count = dims_of(indices)
    if len(count) < 2 or len(others) != len(count) - 1 or any(d != 1 for d in others) or not same([first], count[:1]):
        return None
    return ctx.bb.emit(op.reshape(wide.args[0], (first,)))


def _coordinates(ctx: Context, indices: relax.Expr, axis: int) -> relax.Expr:
    """The place of each element of `indices`, with its value in place of that along the axis: [..., rank]."""

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            *place, number = i
            found = tensors[0](*place).astype("int64")
            for n, value in enumerate(place):
                if n != axis:
                    found = tirx.Select(number == n, value.astype("int64"), found)
            return found

        return te.compute(wanted, at, name="coordinates")

    wanted = (*dims_of(indices), rank_of(indices))
    return emit_sized(ctx.bb, compute, [indices], [], wanted, "int64", "coordinates")


@converter("ScatterND")
def scatter_nd(ctx: Context, data: relax.Expr, indices: relax.Expr, updates: relax.Expr) -> relax.Expr:
    """ScatterND: a scatter of slices by index tuples."""
    shape, places = dims_of(data), dims_of(indices)
    depth = fixed_size(indices, -1)
    if is_known_empty(indices):
        return data
    known = fixed(indices)
    if known is not None and all(isinstance(size, int) for size in shape[:depth]):
        safe = constant(np.stack([_wrapped(known[..., d], shape[d]) for d in range(depth)], axis=-1))
    else:
        indices = checked_places(ctx, indices, shape[:depth])

        def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
            (table,) = tensors

            def at(*i: tirx.Var) -> tirx.Expr:
                count = sizes[-1]
                for d in reversed(range(depth - 1)):
                    count = tirx.Select(i[-1] == d, sizes[d], count)
                index = table(*i).astype("int64")
                index = tirx.Select(index < 0, index + count, index)
                return tirx.max(tirx.const(0, "int64"), tirx.min(index, count - 1))

            return te.compute(wanted, at, name="safe_index")

        safe = emit_sized(ctx.bb, compute, [indices], shape[:depth], places, "int64", "safe_index")
    wanted = [*places[:-1], *shape[depth:]]
    if ctx.backend == "cpu" and not same(dims_of(updates), wanted):
        updates = checked(ctx.bb, updates, wanted)
    return op.scatter_nd(data, safe, updates, _reduction(ctx))


@converter("MaxUnpool")
@converter("MaxUnpool", domain=RESULTS)
def max_unpool(ctx: Context, data: relax.Expr, indices: relax.Expr, *_: relax.Expr | None) -> relax.Expr:
    """MaxUnpool: writes each value at its index in the flattened output."""
    shape = ctx.result()
    size = math.prod(shape)
    safe = safe_indices(ctx, ctx.bb.emit(op.reshape(indices, (-1,))), size, from_end=False)
    empty = filled([size], np.zeros((), dtype_of(data)))
    flat = op.scatter_elements(empty, safe, op.reshape(data, (-1,)), axis=0)
    return op.reshape(flat, shape)


@converter("MaxRoiPool")
def max_roi_pool(ctx: Context, data: relax.Expr, rois: relax.Expr) -> relax.Expr:
    """MaxRoiPool with the batch indices, the first number of each region, kept in range."""
    parts = ctx.bb.emit(op.split(rois, [1], axis=1))
    batches = safe_indices(ctx, ctx.bb.emit(as_dtype(parts[0], "int64")), dims_of(data)[0], from_end=False)
    return ctx.original(data, ctx.bb.emit(op.concat([as_dtype(batches, dtype_of(rois)), parts[1]], axis=1)))


@converter("ReverseSequence")
def reverse_sequence(ctx: Context, data: relax.Expr, lengths: relax.Expr) -> relax.Expr:
    """ReverseSequence. On GPUs a length greater than the time axis reverses the whole axis."""
    batch, time = ctx.attrs.get("batch_axis", 1), ctx.attrs.get("time_axis", 0)
    lengths = checked_lengths(ctx, lengths, dims_of(data)[time])

    def compute(x: te.Tensor, length: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            last = tirx.min(length[i[batch]].astype("int64"), as_int64(x.shape[time]))
            here = i[time].astype("int64")
            there = tirx.Select(here < last, last - tirx.const(1, "int64") - here, here)
            return x(*(there if d == time else v for d, v in enumerate(i)))

        return te.compute(x.shape, at, name="reverse_sequence")

    return ctx.bb.emit_te(compute, data, lengths, primfunc_name_hint="reverse_sequence")


@converter("TensorScatter")
def tensor_scatter(ctx: Context, past: relax.Expr, update: relax.Expr, starts: relax.Expr | None = None) -> relax.Expr:
    """TensorScatter: a cache whose elements from a start on, one for each batch, are replaced."""
    shape = dims_of(past)
    axis = ctx.attrs.get("axis", -2) % len(shape)
    size, count = shape[axis], dims_of(update)[axis]
    if axis == 0 or (isinstance(count, int) and isinstance(size, int) and count > size):
        raise NotImplementedError("the axis of the cache must come after the batch and take the update")
    circular = ctx.text("mode", "linear") == "circular"
    if starts is None:
        starts = ctx.bb.emit(op.zeros((shape[0],), "int64"))
    else:
        room = as_int64(size) - as_int64(count) + as_int64(1)
        starts = checked_starts(ctx, starts, 1 << 62 if circular else room)  # that of a circle may be any place

    def compute(old: te.Tensor, new: te.Tensor, begin: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            place = i[axis].astype("int64") - begin[i[0]].astype("int64")
            if circular:
                place = tirx.floormod(place, as_int64(old.shape[axis]))
            replaced = tirx.all(place >= tirx.const(0, "int64"), place < as_int64(new.shape[axis]))
            return tirx.if_then_else(replaced, new(*i[:axis], place, *i[axis + 1 :]), old(*i))

        return te.compute(shape, at, name="tensor_scatter")

    return ctx.bb.emit_te(compute, past, update, starts, primfunc_name_hint="tensor_scatter")


def _reduction(ctx: Context) -> str:
    reduction = ctx.text("reduction", "none")
    return "update" if reduction == "none" else reduction


def safe_indices(ctx: Context, indices: relax.Expr, size: Extent, *, from_end: bool = True) -> relax.Expr:
    """Indices that are inside an axis of this size; those outside are an error of the run, where it can be one."""
    _require_elements(size, indices)
    indices = checked_places(ctx, indices, [size], from_end=from_end)
    if not isinstance(size, int):

        def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
            return te.compute(wanted, lambda *i: inside(tensors[0](*i), sizes[0]), name="safe_index")

        return emit_sized(ctx.bb, compute, [indices], [size], dims_of(indices), "int64", "safe_index")
    known = fixed(indices)
    if known is not None:
        return constant(_wrapped(known, size))
    wide = ctx.bb.emit(as_dtype(indices, "int64"))
    counted = op.where(op.less(wide, scalar(0, "int64")), op.add(wide, scalar(size, "int64")), wide)
    return ctx.bb.emit(op.minimum(op.maximum(counted, scalar(0, "int64")), scalar(size - 1, "int64")))


def _wrapped(indices: np.ndarray, size: int) -> np.ndarray:
    """Constant indices, made non-negative. Raises NotImplementedError if one is out of range."""
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise NotImplementedError(f"a constant index is out of range for a dimension of {size}")
    return np.where(indices < 0, indices + size, indices).astype(np.int64)


def _require_elements(size: Extent, indices: relax.Expr) -> None:
    if isinstance(size, int) and size == 0 and not any(isinstance(d, int) and d == 0 for d in dims_of(indices)):
        raise NotImplementedError("an empty dimension cannot be indexed")


@converter("Gather")
def _gather(ctx: Context, data: relax.Expr, indices: relax.Expr) -> relax.Expr:
    """Gather. Negative indices count from the end."""
    axis = ctx.attrs.get("axis", 0) % rank_of(data)
    size = dims_of(data)[axis]
    if isinstance(size, int) and isinstance(indices, tvm.ir.GenericConst):
        known = _wrapped(indices.value.numpy().astype(np.int64), size)
        stored = data.value.numpy() if isinstance(data, tvm.ir.GenericConst) else None
        if stored is not None and known.size * stored.size // max(size, 1) <= max(stored.size, MOST_STORED):
            return constant(np.take(stored, known, axis))
        return _taken(ctx, data, constant(known.astype(np.int32)), axis)
    return _taken(ctx, data, checked_places(ctx, indices, [size]), axis)


@converter("Gather", domain=RESULTS)
def _gather_row(ctx: Context, data: relax.Expr, index: relax.Expr) -> relax.Expr:
    """The row of a turn of a loop, whose number is known to be inside: kernels that read the row take it themselves.

    The number may count from the end: 1 is the last row.
    """
    axis, from_end = ctx.attrs.get("axis", 0) % rank_of(data), ctx.attrs.get("from_end", 0)

    def compute(x: te.Tensor, number: te.Tensor) -> te.Tensor:
        shape = [*x.shape[:axis], *x.shape[axis + 1 :]]
        place = x.shape[axis] - number() if from_end else number()
        return te.compute(shape, lambda *i: x(*i[:axis], place, *i[axis:]), name="row")

    pattern = {PATTERN: INJECTIVE}
    return ctx.bb.emit_te(compute, data, index, primfunc_name_hint="row", primfunc_attrs=pattern)


def _taken(ctx: Context, data: relax.Expr, indices: relax.Expr, axis: int) -> relax.Expr:
    rank = rank_of(indices)

    def compute(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        shape = [*x.shape[:axis], *table.shape, *x.shape[axis + 1 :]]

        def at(*i: tirx.Var) -> tirx.Expr:
            index = table(*i[axis : axis + rank])
            size, zero, one = x.shape[axis].astype(index.ty), tirx.const(0, index.ty), tirx.const(1, index.ty)
            last = size - one
            index = tirx.Select(index < zero, index + size, index)
            return x(*i[:axis], tirx.max(tirx.min(index, last), zero), *i[axis + rank :])

        return te.compute(shape, at, name="gather")

    return ctx.bb.emit_te(compute, data, indices, primfunc_name_hint="gather")


def _one_hot_of_result(ctx: Context, indices: relax.Expr, values: relax.Expr, axis: int) -> relax.Expr:
    """OneHot whose depth is a size of the result."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            index = given[0](*i[:axis], *i[axis + 1 :]).astype("int64")
            index = tirx.Select(index < as_int64(0), index + shape[axis], index)
            return tirx.Select(index == i[axis].astype("int64"), given[1](1), given[1](0))

        return te.compute(shape, at, name="one_hot")

    return emit_sized(ctx.bb, compute, [indices, values], [], ctx.result(), dtype_of(values), "one_hot")


@converter("OneHot")
@converter("OneHot", domain=RESULTS)
def _one_hot(ctx: Context, indices: relax.Expr, depth: relax.Expr, values: relax.Expr) -> relax.Expr:
    """OneHot. Negative indices count from the end; an index out of range gives a row of the off value."""
    rank = rank_of(indices) + 1
    axis = ctx.attrs.get("axis", -1) % rank
    if not ctx.is_known(depth):
        return _one_hot_of_result(ctx, indices, values, axis)
    size = int(ctx.known(depth).flat[0])
    whole = indices if dtype_of(indices).startswith(("int", "uint")) else op.astype(indices, "int64")

    def compute(table: te.Tensor, pair: te.Tensor) -> te.Tensor:
        shape = list(table.shape)
        shape.insert(axis, size)

        def at(*i: tirx.Var) -> tirx.Expr:
            index = table(*(i[:axis] + i[axis + 1 :])).astype("int64")
            position = i[axis].astype("int64")
            hit = tirx.any(index == position, index + tirx.const(size, "int64") == position)
            return tirx.Select(hit, pair[1], pair[0])

        return te.compute(shape, at, name="one_hot")

    return ctx.bb.emit_te(compute, whole, values, primfunc_name_hint="one_hot")
