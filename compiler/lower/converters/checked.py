"""Statements of kernels: conditions that end a run, and loops over the elements of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import StringImm

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.variables import as_int64


def asserted(ctx: Context, condition: tirx.Expr, message: str) -> tirx.Stmt:
    """A statement that ends the run with an InputValueError that names the node, if the condition is false."""
    # TVM 0.27's constructor names these arguments in the other order, but does not exchange them.
    return tirx.AssertStmt(condition, StringImm("ValueError"), [StringImm(complaint_of(ctx, message))])


def complaint_of(ctx: Context, message: str) -> str:
    """The text of an assertion that ends the run with an InputValueError that names the node."""
    return f"{InputValueError.MARK}{ctx.node.op_type} '{_plain(ctx.node.name)}': {message}"


def _plain(name: str) -> str:
    return name.split(".", 1)[0]


def nest(extents: Sequence[tirx.Expr], lines: Callable[[Sequence[tirx.Var]], list[tirx.Stmt]]) -> tirx.Stmt:
    """Serial loops over dimensions."""
    variables = [tirx.Var(f"i{n}", "int64") for n in range(len(extents))]
    inner = lines(variables)
    body = tirx.SeqStmt(inner) if len(inner) > 1 else inner[0]
    for variable, extent in zip(reversed(variables), reversed(list(extents)), strict=True):
        body = tirx.For(variable, as_int64(0), extent.astype("int64"), tirx.ForKind.SERIAL, body)
    return body
