"""The converter of Gemm."""

from __future__ import annotations

from tvm import relax

from heterocc.compiler.lower.converters.arrays.reshaping import spread
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of


@converter("Gemm")
def _gemm(ctx: Context, a: relax.Expr, b: relax.Expr, c: relax.Expr | None = None) -> relax.Expr:
    """Gemm; its bias has the shape of the result if only a run knows which of the sizes are 1."""
    if c is not None:
        rows = dims_of(a)[1 if ctx.attrs.get("transA", 0) else 0]
        columns = dims_of(b)[0 if ctx.attrs.get("transB", 0) else 1]
        c = spread(ctx, c, (rows, columns))
    return ctx.original(a, b, c)
