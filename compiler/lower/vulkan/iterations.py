"""How often an invocation of a kernel goes round its loops.

Mesa's llvmpipe leaves a loop silently once an invocation has gone round all of its loops 65535 times together
(`LP_MAX_TGSI_LOOP_ITERATIONS` of its gallivm; a sum of 70000 ones gave 65535): a kernel beyond that is wrong there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm import tirx


LLVMPIPE_ITERATIONS = 65535
"""Times round loops, all of one invocation together."""


def iterations(statement: tirx.Stmt) -> int:
    """At most how often a statement goes round loops; loops whose extent is no constant count as one time round."""
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
