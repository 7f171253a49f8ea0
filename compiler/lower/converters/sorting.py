"""Converters of operators that order or accumulate along an axis."""

from __future__ import annotations

from tvm import relax

from heterocc.compiler.lower.converters.along_axis import Running, has_columns, write_running
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed, rank_of, scalar

op = relax.op

_IN_VECTORS = ("float32", "float64", "int32", "int64")


@converter("TopK")
def top_k(ctx: Context, data: relax.Expr, *rest: relax.Expr) -> relax.Expr | list[relax.Expr]:
    """TopK. Dtypes that TVM's runtime cannot sort are cast to wider ones with the same order.

    Other dtypes are refused, as the runtime would fail on them only when it runs.
    """
    wider = {"float16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32"}
    dtype = dtype_of(data)
    if dtype in wider:
        whole = ctx.bb.emit(ctx.original(ctx.bb.emit(op.astype(data, wider[dtype])), *rest))
        return [op.astype(relax.TupleGetItem(whole, 0), dtype), relax.TupleGetItem(whole, 1)][: ctx.outputs]
    if dtype not in ("float32", "float64", "int32", "int64"):
        raise NotImplementedError(f"dtype {dtype} is not supported")
    return ctx.original(data, *rest)


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
    static = all(isinstance(n, int) and n > 0 for n in shape)
    if ctx.backend == "cpu" and static and dtype in _IN_VECTORS and has_columns(shape, axis):
        exclusive = bool(ctx.attrs.get("exclusive", 0))
        kind: Running = "product" if ctx.node.op_type == "CumProd" else "sum"
        written = write_running(shape, axis, dtype, kind, exclusive=exclusive, reverse=reverse)
        kernel = ctx.bb.add_func(written, ctx.node.op_type.lower())
        return ctx.bb.emit(relax.call_tir(kernel, [ctx.bb.emit(data)], relax.TensorType(shape, dtype)))
    value = ctx.bb.emit(op.flip(data, axis)) if reverse else data
    function = op.cumprod if ctx.node.op_type == "CumProd" else op.cumsum
    value = ctx.bb.emit(function(value, axis, dtype_of(data), bool(ctx.attrs.get("exclusive", 0))))
    return ctx.bb.emit(op.flip(value, axis)) if reverse else value
