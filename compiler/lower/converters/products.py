"""The converter of Gemm."""

from __future__ import annotations

from tvm import relax

from heterocc.compiler.lower.converters.arrays.reshaping import spread
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of


@converter("Gemm")
def _gemm(ctx: Context, a: relax.Expr, b: relax.Expr, c: relax.Expr | None = None) -> relax.Expr:
    return ctx.original(a, b, added_bias(ctx, a, b, c))


def added_bias(ctx: Context, a: relax.Expr, b: relax.Expr, bias: relax.Expr | None) -> relax.Expr | None:
    """The bias of a Gemm, in the shape of the result if only a run knows which of its sizes are 1."""
    if bias is None:
        return None
    rows = dims_of(a)[1 if ctx.attrs.get("transA", 0) else 0]
    columns = dims_of(b)[0 if ctx.attrs.get("transB", 0) else 1]
    return spread(ctx, bias, (rows, columns))
