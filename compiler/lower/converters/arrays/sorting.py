"""Converters of operators that order or accumulate along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted, complaint_of
from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.computed.numbers import elements, results, within
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import requested
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed, rank_of, scalar
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import as_int64

op = relax.op

_MOST_OF_ANY = 32
"""The most elements that are searched for along an axis of any size: a longer list is sorted faster than it is kept."""

_TOO_FEW = "k is larger than the size of the dimension"

_COLUMNS = 1024
"""The columns of running totals that are computed in turn: rows are often far apart, in few sets of a cache."""

_SHARED = 1 << 16
"""The least number of running totals that threads share."""


@converter("TopK")
def top_k(ctx: Context, data: relax.Expr, *rest: relax.Expr) -> relax.Expr | list[relax.Expr]:
    """TopK. Dtypes that cannot be sorted are cast to wider ones with the same order.

    Other dtypes are refused, as TVM's runtime would fail on them only when it runs.
    """
    wider = {"float16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32"}
    dtype = dtype_of(data)
    if dtype in wider:
        whole = ctx.bb.emit(_top(ctx, ctx.bb.emit(op.astype(data, wider[dtype])), *rest))
        return [op.astype(relax.TupleGetItem(whole, 0), dtype), relax.TupleGetItem(whole, 1)][: ctx.outputs]
    if dtype not in ("float32", "float64", "int32", "int64"):
        raise NotImplementedError(f"dtype {dtype} is not supported")
    return _top(ctx, data, *rest)


def _top(ctx: Context, data: relax.Expr, *rest: relax.Expr) -> relax.Expr:
    """Values and places as a tuple: by a kernel of the CPU back end if rows are fixed, else by TVM's runtime."""
    dtype, shape = dtype_of(data), dims_of(data)
    axis = ctx.attrs.get("axis", -1) % len(shape)
    k, size, inner = _wanted(ctx, rest), shape[axis], shape[axis + 1 :]
    fits = all(isinstance(n, int) for n in inner) and (not isinstance(size, int) or math.prod(shape[axis:]) < 1 << 31)
    suits = k is not None and 0 < k <= (size if isinstance(size, int) else _MOST_OF_ANY)
    if ctx.backend != "cpu" or dtype not in ("float32", "int32") or not fits or not suits:
        return ctx.original(data, *rest) if isinstance(size, int) else relax.Tuple(_top_of_any(ctx, data, axis))
    made = [k if d == axis else n for d, n in enumerate(shape)]
    options: dict[str, int | str] = {"axis": axis, "largest": int(ctx.attrs.get("largest", 1))}
    options["few"] = complaint_of(ctx, _TOO_FEW)
    return requested(ctx, "top_k", [data], [(made, dtype), (made, "int64")], **options)


def _wanted(ctx: Context, rest: Sequence[relax.Expr]) -> int | None:
    """The number of elements that are asked for, if it is fixed and not computed by the run."""
    found = fixed(rest[0]) if rest else ctx.attrs.get("k")
    return None if found is None else int(np.asarray(found).flat[0])


@results("TopK")
def _first(ctx: Context, data: relax.Expr, _k: relax.Expr) -> list[relax.Expr]:
    """TopK of a computed number: the first elements of all, in order."""
    axis = ctx.attrs.get("axis", -1) % rank_of(data)
    size = dims_of(data)[axis]
    if not isinstance(size, int):
        found = top_k(ctx, data)
        return found if isinstance(found, list) else list(found.fields)[: ctx.outputs]
    full = top_k(ctx, data, constant(np.array([size], np.int64)))
    full = ctx.bb.emit(full) if isinstance(full, relax.Expr) else full
    parts = [
        ctx.bb.emit(full[n]) if isinstance(full, list) else relax.TupleGetItem(full, n) for n in range(ctx.outputs)
    ]

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        return given[0](*(within(v, d) for v, d in zip(i, given[0].shape, strict=True)))

    dtypes = [dtype_of(data), "int64"]
    emitted = [ctx.bb.emit(p) for p in parts]
    return [elements(ctx, [p], at, dtypes[n], "first", n) for n, p in enumerate(emitted)]


def _top_of_any(ctx: Context, data: relax.Expr, axis: int) -> list[relax.Expr]:
    """Values and places along an axis without a fixed size, by the sort of TVM's runtime."""
    if ctx.backend != "cpu":
        raise NotImplementedError("the data has no fixed size along the axis")
    smallest = not ctx.attrs.get("largest", 1)
    named = [bool(name) for name in (*ctx.node.output, "")[:2]]
    shapes = [ctx.result(n if named[n] else 1 - n) for n in range(2)]  # equal, but for names of unknown sizes

    def places(given: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        def sort(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            count = wanted[axis]
            call = tirx.call_packed("tvm.contrib.sort.topk", ins[0], outs[0], count, axis, "indices", smallest)
            # The function takes a count of 0 as that of all elements.
            sorted_ = tirx.IfThenElse(count > tirx.const(0, "int64"), tirx.Evaluate(call), None)
            enough = count <= as_int64(ins[0].shape[axis])
            return tirx.SeqStmt([asserted(ctx, enough, _TOO_FEW), sorted_])

        return te.extern([tuple(wanted)], [given[0]], sort, name="places", dtype=["int64"])

    def values(given: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        return te.compute(wanted, lambda *i: given[0](*i[:axis], given[1](*i), *i[axis + 1 :]), name="values")

    found = emit_sized(ctx.bb, places, [data], [], shapes[1], "int64", "places", opaque=True)
    return [emit_sized(ctx.bb, values, [data, found], [], shapes[0], dtype_of(data), "values"), found]


@converter("CumProd", "CumSum")
def accumulated(ctx: Context, data: relax.Expr, axis: relax.Expr) -> relax.Expr:
    """CumProd and CumSum. If the axis is computed, the results of all axes are, and one is chosen."""
    rank = rank_of(data)
    known = fixed(axis)
    if known is not None:
        return _along(ctx, data, int(known.flat[0]) % rank)
    wanted = ctx.bb.emit(op.reshape(as_dtype(axis, "int64"), ()))
    wanted = checked_places(ctx, wanted, [rank])
    # Also of one axis: a check whose result is not read is left out.
    result = data
    for number in range(rank):
        chosen = (op.equal(wanted, scalar(n, "int64")) for n in (number, number - rank))
        either = ctx.bb.emit(op.logical_or(*(ctx.bb.emit(c) for c in chosen)))
        result = ctx.bb.emit(op.where(either, _along(ctx, data, number), result))
    return result


def _along(ctx: Context, data: relax.Expr, axis: int) -> relax.Expr:
    product, reverse = ctx.node.op_type == "CumProd", bool(ctx.attrs.get("reverse", 0))
    exclusive, dtype = bool(ctx.attrs.get("exclusive", 0)), dtype_of(data)
    if ctx.backend == "cpu":
        compute = partial(_running, axis=axis, product=product, exclusive=exclusive, reverse=reverse)
        return emit_sized(ctx.bb, compute, [data], [], dims_of(data), dtype, "running", opaque=True)
    value = ctx.bb.emit(op.flip(data, axis)) if reverse else data
    value = ctx.bb.emit((op.cumprod if product else op.cumsum)(value, axis, dtype, exclusive))
    return ctx.bb.emit(op.flip(value, axis)) if reverse else value


def _running(
    given: list[te.Tensor],
    _: list[tirx.Expr],
    shape: list[tirx.Expr],
    *,
    axis: int,
    product: bool,
    exclusive: bool,
    reverse: bool,
) -> te.Tensor:
    """Running totals along an axis, of some columns in turn, whose last row is in a near cache."""
    zero, one, most = (as_int64(n) for n in (0, 1, _COLUMNS))
    steps = shape[axis]
    outer, inner = (math.prod(sizes, start=one) for sizes in (shape[:axis], shape[axis + 1 :]))
    every, blocks = outer * steps * inner, tirx.floordiv(inner + most - one, most)
    width = tirx.floordiv(inner + blocks - one, tirx.max(blocks, one))
    row, block = (tirx.Var(name, "int64") for name in ("row", "block"))

    def write(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        memory = [tirx.buffer_data(buffer) for buffer in (*ins, *outs)]
        data, results = (tirx.decl_buffer((every,), ins[0].dtype, data=m) for m in memory)

        def totals(begin: tirx.Expr, end: tirx.Expr) -> tirx.Stmt:
            """Those of steps that all have one before them, or of the first step."""
            step, column = (tirx.Var(name, "int64") for name in ("step", "column"))

            def at(number: tirx.Expr) -> tirx.Expr:
                place = row * steps + (steps - one - number if reverse else number)
                return place * inner + block * width + column

            if end.same_as(one):
                value = tirx.const(int(product), data.dtype) if exclusive else data[at(step)]
            else:
                added, before = data[at(step - one if exclusive else step)], results[at(step - one)]
                value = before * added if product else before + added
            columns = tirx.min(width, inner - block * width)
            body = tirx.For(column, zero, columns, tirx.ForKind.SERIAL, tirx.BufferStore(results, value, [at(step)]))
            return tirx.For(step, begin, end - begin, tirx.ForKind.SERIAL, body)

        some = tirx.IfThenElse(steps > zero, totals(zero, one), None)
        body: tirx.Stmt = tirx.SeqStmt([some, totals(one, tirx.max(one, steps))])
        few = isinstance(every, tirx.IntImm) and int(every) < _SHARED
        shared = block if isinstance(outer, tirx.IntImm) and int(outer) == 1 else row
        for var, extent in ((block, blocks), (row, outer)):
            kind = tirx.ForKind.PARALLEL if var.same_as(shared) and not few else tirx.ForKind.SERIAL
            body = tirx.For(var, zero, extent, kind, body)
        flat = [tirx.DeclBuffer(b, data=m) for b, m in zip((data, results), memory, strict=True)]
        return tirx.SeqStmt([*flat, body])

    return te.extern([tuple(shape)], given, write, name="running", dtype=[given[0].dtype])
