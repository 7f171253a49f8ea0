"""Conditions that a kernel checks when it runs."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import StringImm

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler.lower.converters.registry import Context


def asserted(ctx: Context, condition: tirx.Expr, message: str) -> tirx.Stmt:
    """A statement that ends the run with an InputValueError that names the node, if the condition is false."""
    text = f"{InputValueError.MARK}{ctx.node.op_type} '{_plain(ctx.node.name)}': {message}"
    # TVM 0.27's constructor names these arguments in the other order, but does not exchange them.
    return tirx.AssertStmt(condition, StringImm("ValueError"), [StringImm(text)])


def _plain(name: str) -> str:
    return name.split(".", 1)[0]
