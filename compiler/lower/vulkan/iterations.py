"""The number of loop iterations of a kernel's invocation.

Mesa's llvmpipe silently leaves a loop after 65535 iterations of all loops of an invocation in total
(`LP_MAX_TGSI_LOOP_ITERATIONS` of its gallivm; a sum of 70000 ones gave 65535), so the results of a kernel with more
iterations are wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm import tirx


LLVMPIPE_ITERATIONS = 65535
"""The most iterations of all loops of an invocation in llvmpipe."""


def iterations(statement: tirx.Stmt) -> int:
    """The most loop iterations of a statement; a loop whose extent is not constant counts as one iteration."""
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return sum(iterations(part) for part in statement.seq)
    if kind == "For":
        return int(getattr(statement.extent, "value", 1)) * (1 + iterations(statement.body))
    if kind == "IfThenElse":
        other = 0 if statement.else_case is None else iterations(statement.else_case)
        return max(iterations(statement.then_case), other)
    body = getattr(statement, "body", None)
    return 0 if body is None else iterations(body)
