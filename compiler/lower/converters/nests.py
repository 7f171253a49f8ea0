"""Loops over the elements of a tensor, for kernels that consist of statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from heterocc.compiler.lower.variables import as_int64


def nest(extents: Sequence[tirx.Expr], lines: Callable[[Sequence[tirx.Var]], list[tirx.Stmt]]) -> tirx.Stmt:
    """Serial loops over dimensions."""
    variables = [tirx.Var(f"i{n}", "int64") for n in range(len(extents))]
    inner = lines(variables)
    body = tirx.SeqStmt(inner) if len(inner) > 1 else inner[0]
    for variable, extent in zip(reversed(variables), reversed(list(extents)), strict=True):
        body = tirx.For(variable, as_int64(0), extent.astype("int64"), tirx.ForKind.SERIAL, body)
    return body
