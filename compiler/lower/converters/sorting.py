"""Converters of operators that order or accumulate along an axis."""

from __future__ import annotations

from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dtype_of, shape_of

op = relax.op


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


@converter("CumProd")
def _cum_prod(ctx: Context, data: relax.Expr, axis: relax.Expr) -> relax.Expr:
    along = int(ctx.known(axis).flat[0]) % len(shape_of(data))
    reverse = bool(ctx.attrs.get("reverse", 0))
    value = op.flip(data, along) if reverse else data
    value = op.cumprod(value, along, dtype_of(data), bool(ctx.attrs.get("exclusive", 0)))
    return op.flip(value, along) if reverse else value
