"""Converters of operators that order or accumulate along an axis."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import has_fixed_sizes, requested
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed, rank_of, scalar

op = relax.op

_IN_VECTORS = ("float32", "float64", "int32", "int64")


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
    """Values and places as a tuple: by a kernel of the CPU back end if sizes are fixed, else by TVM's runtime."""
    dtype, shape = dtype_of(data), dims_of(data)
    axis = ctx.attrs.get("axis", -1) % len(shape)
    fits = has_fixed_sizes(data) and len(shape) > 0 and math.prod(shape) < 1 << 31
    if ctx.backend != "cpu" or dtype not in ("float32", "int32") or not fits:
        return ctx.original(data, *rest)
    found = fixed(rest[0]) if rest else np.array(ctx.attrs.get("k", 1))
    if found is None or not 0 < int(found.flat[0]) <= shape[axis]:
        return ctx.original(data, *rest)
    k = int(found.flat[0])
    made = [k if d == axis else n for d, n in enumerate(shape)]
    options = {"axis": axis, "largest": int(ctx.attrs.get("largest", 1))}
    return requested(ctx, "top_k", [data], [(made, dtype), (made, "int64")], **options)


@converter("CumProd", "CumSum")
def accumulated(ctx: Context, data: relax.Expr, axis: relax.Expr) -> relax.Expr:
    """CumProd and CumSum. If the axis is computed, the results of all axes are, and one is chosen."""
    rank = rank_of(data)
    known = fixed(axis)
    if known is not None:
        return _along(ctx, data, int(known.flat[0]) % rank)
    wanted = ctx.bb.emit(op.reshape(as_dtype(axis, "int64"), ()))
    result = _along(ctx, data, 0)
    for number in range(1, rank):
        chosen = (op.equal(wanted, scalar(n, "int64")) for n in (number, number - rank))
        either = ctx.bb.emit(op.logical_or(*(ctx.bb.emit(c) for c in chosen)))
        result = ctx.bb.emit(op.where(either, _along(ctx, data, number), result))
    return result


def _along(ctx: Context, data: relax.Expr, axis: int) -> relax.Expr:
    reverse = bool(ctx.attrs.get("reverse", 0))
    shape, dtype = dims_of(data), dtype_of(data)
    is_last = all(n == 1 for n in shape[axis + 1 :])
    if ctx.backend == "cpu" and has_fixed_sizes(data) and dtype in _IN_VECTORS and not is_last:
        exclusive = int(ctx.attrs.get("exclusive", 0))
        of = "product" if ctx.node.op_type == "CumProd" else "sum"
        options: dict[str, int | str] = {"axis": axis, "of": of, "exclusive": exclusive, "reverse": int(reverse)}
        return requested(ctx, "running", [data], [(shape, dtype)], **options)
    value = ctx.bb.emit(op.flip(data, axis)) if reverse else data
    function = op.cumprod if ctx.node.op_type == "CumProd" else op.cumsum
    value = ctx.bb.emit(function(value, axis, dtype_of(data), bool(ctx.attrs.get("exclusive", 0))))
    return ctx.bb.emit(op.flip(value, axis)) if reverse else value
