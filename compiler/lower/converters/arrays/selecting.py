"""Operators that select by their data: NonZero, Compress."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import (
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
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.variables import as_int64

op = relax.op
Buffers = Sequence[tirx.Buffer]


def _at(buffer: tirx.Buffer, place: tirx.Expr) -> tirx.Expr:
    """Whether the element at a place in row-major order is not zero, as NaN is."""
    value, dtype = buffer[tuple(unravelled(place, buffer.shape))], str(buffer.dtype)
    if dtype == "bool":
        return value
    differs = value != tirx.const(0, dtype)
    # LLVM's code for `!=` is an ordered comparison, which no NaN passes.
    return tirx.any(differs, tirx.isnan(value)) if "float" in dtype else differs


def _positions(ctx: Context, flags: relax.Expr, most: relax.Expr | None = None) -> relax.Expr:
    """For each element the number of those before it that are not zero; at last the number of all."""
    size = whole(1)
    for dim in dims_of(flags):
        size = size * (whole(dim) if isinstance(dim, int) else dim)

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        def step(i: tirx.Var) -> tirx.Stmt:
            flag = _at(ins[0], i)
            if len(ins) > 1:  # a condition of Compress may be longer than the data
                flag = tirx.all(flag, i < product(ins[1].shape))
            return tirx.BufferStore(out, out[i] + tirx.Select(flag, whole(1), whole(0)), [i + whole(1)])

        return tirx.SeqStmt([tirx.BufferStore(out, whole(0), [whole(0)]), loop(product(ins[0].shape), step)])

    given = [flags] if most is None else [flags, most]
    return table(ctx, given, [size + whole(1)], write, name="positions")


def _count(positions: tirx.Buffer) -> tirx.Expr:
    """The last of the positions."""
    return positions[positions.shape[0].astype("int64") - whole(1)]


def _picked(ctx: Context, flags: relax.Expr, positions: relax.Expr, count: object) -> relax.Expr:
    """The places of the elements that are not zero."""

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        def step(i: tirx.Var) -> tirx.Stmt:
            here, after = ins[1][i], ins[1][i + whole(1)]
            return tirx.IfThenElse(here < after, tirx.BufferStore(out, i, [here]), None)

        return loop(product(ins[0].shape), step)

    return table(ctx, [flags, positions], [count], write, name="picked")


@sizes("NonZero")
def _non_zero(ctx: Context, data: relax.Expr) -> relax.Expr:
    rank = rank_of(data)
    return vector(ctx, [_positions(ctx, data)], 2, lambda ins: [whole(rank), _count(ins[0])])


@results("NonZero")
def _places(ctx: Context, data: relax.Expr) -> relax.Expr:
    count = ctx.result()[1]
    picked = _picked(ctx, data, _positions(ctx, data), count)
    rank = rank_of(data)
    if rank == 0:
        raise NotImplementedError("the data is a scalar")

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        spots = unravelled(given[0](i[1]), given[1].shape)
        found = spots[-1]
        for axis in range(rank - 2, -1, -1):
            found = tirx.Select(i[0] == whole(axis), spots[axis], found)
        return found

    return elements(ctx, [picked, data], at, "int64", "non_zero")


def _flags(ctx: Context, data: relax.Expr, condition: relax.Expr) -> tuple[relax.Expr, relax.Expr, int | None]:
    """The condition, a tensor with as many elements as there are to select from, and the axis; None for all."""
    if "axis" not in ctx.attrs:
        return condition, data, None
    axis = int(ctx.attrs["axis"]) % rank_of(data)
    return condition, ctx.bb.emit(op.zeros((as_int64(dims_of(data)[axis]),), "bool")), axis


@sizes("Compress")
def _compress(ctx: Context, data: relax.Expr, condition: relax.Expr) -> relax.Expr:
    flags, most, axis = _flags(ctx, data, condition)
    positions = _positions(ctx, flags, most)
    if axis is None:
        return vector(ctx, [positions], 1, lambda ins: [_count(ins[0])])

    def lengths(ins: Buffers) -> list[tirx.Expr]:
        return [_count(ins[0]) if n == axis else d.astype("int64") for n, d in enumerate(ins[1].shape)]

    return vector(ctx, [positions, data], rank_of(data), lengths)


@results("Compress")
def _compressed(ctx: Context, data: relax.Expr, condition: relax.Expr) -> relax.Expr:
    flags, most, axis = _flags(ctx, data, condition)
    picked = _picked(ctx, flags, _positions(ctx, flags, most), ctx.result()[axis or 0])

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        if axis is None:
            return given[1](*unravelled(given[0](i[0]), given[1].shape))
        return given[1](*i[:axis], given[0](i[axis]), *i[axis + 1 :])

    return elements(ctx, [picked, data], at, dtype_of(data), "compress")
