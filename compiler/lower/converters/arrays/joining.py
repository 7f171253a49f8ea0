"""Concat and Split."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tvm_ffi
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import element, elements, results, whole, within
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import MOST_ENDS, dims_of, dtype_of, fixed, groups, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent, as_int64, same
from heterocc.compiler.lower.written import JOINS

op = relax.op


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
    known = ctx.values.get(ctx.node.output[0])
    if known is None or not ctx.variables or not isinstance(joined.ty.shape, relax.ShapeExpr):
        return joined
    wanted, found = ctx.result(), list(joined.ty.shape.values)
    # TVM compares shapes of kernels that it fuses term by term: 1 + n + 10 is not n + 11 to it. A number in place of a
    # size is assumed.
    is_assumed = isinstance(wanted[axis], int) and not isinstance(found[axis], tirx.IntImm)
    if tvm_ffi.structural_equal(found[axis], as_int64(wanted[axis])) or not (is_assumed or same(found, wanted)):
        return joined
    return concatenated(ctx, parts, axis, wanted)


def concatenated(ctx: Context, parts: Sequence[relax.Expr], axis: int, shape: Sequence[Extent]) -> relax.Expr:
    """The parts one after another, with the shape as it is given, in a kernel apart from what reads them."""

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


@results("Split")
def _parts(ctx: Context, data: relax.Expr, parts: relax.Expr) -> list[relax.Expr]:
    axis = ctx.attrs.get("axis", 0) % rank_of(data)

    def one(part: int) -> relax.Expr:
        def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
            start = whole(0)
            for earlier in range(part):
                start = start + element(given[1], earlier)
            place = within(start + i[axis], given[0].shape[axis])
            return given[0](*i[:axis], place, *i[axis + 1 :])

        return elements(ctx, [data, parts], at, dtype_of(data), "split", part)

    return [one(part) for part in range(ctx.outputs)]
