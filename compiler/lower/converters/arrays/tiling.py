"""Tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import RESULTS, Context, converter
from heterocc.compiler.lower.converters.requested import requested
from heterocc.compiler.lower.converters.values import (
    dims_of,
    dtype_of,
    fixed,
)
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import as_int64, same

op = relax.op


@converter("Tile")
@converter("Tile", domain=RESULTS)
def _tile(ctx: Context, data: relax.Expr, times: relax.Expr) -> relax.Expr:
    counts = fixed(times)
    if not ctx.is_symbolic(0) or (ctx.backend == "cpu" and counts is not None and all(counts > 0)):
        return tiled(ctx, data, times)
    once = [axis for axis, (a, b) in enumerate(zip(dims_of(data), ctx.result(), strict=True)) if same([a], [b])]

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*place: tirx.Var) -> tirx.Expr:
            sizes = enumerate(zip(place, given[0].shape, strict=True))
            return given[0](*(i if axis in once else tirx.floormod(i, size) for axis, (i, size) in sizes))

        return te.compute(shape, at, name="tile")

    return emit_sized(ctx.bb, compute, [data], [], ctx.result(), dtype_of(data), "tile")


_VECTOR_TYPES = ("float32", "float64", "int32", "int64")


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
