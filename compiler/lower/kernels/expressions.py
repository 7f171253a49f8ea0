"""What expressions of a kernel are and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad

_FIELDS = ("a", "b", "value", "indices", "args", "condition", "true_value", "false_value", "body")
"""The fields of expressions and stores that hold their parts; TVM has no visitor for them in Python."""


def nodes(body: tirx.BufferStore | tirx.Expr) -> Iterator[tirx.Expr | tirx.Stmt]:
    """All expressions and statements of a store or expression, itself included."""
    yield body
    if isinstance(body, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return
    for name in _FIELDS:
        part = getattr(body, name, None)
        if part is None:
            continue
        for child in part if name in ("indices", "args") else (part,):
            if isinstance(child, tvm.ir.Expr | tirx.Stmt) and not isinstance(child, tvm.ir.Op):
                yield from nodes(child)


def parts_of(code: Any, *kinds: type) -> list[Any]:
    """The parts of code or of an expression that are of these kinds, those that contain others before these."""
    parts: list[Any] = []
    tvm_ffi.structural_walk(code, [(kind, parts.append) for kind in kinds], order="pre")
    return parts


def loads(body: tirx.BufferStore | tirx.Expr) -> list[TensorLoad]:
    """All reads of buffers below a statement or expression."""
    return [n for n in nodes(body) if isinstance(n, TensorLoad)]


_ROUNDINGS = frozenset(f"tirx.{name}" for name in ("nearbyint", "floor", "ceil", "trunc"))


def is_conditional(expr: tirx.Expr) -> bool:
    """Whether an expression evaluates only one of two others; the other may be an invalid read."""
    return isinstance(expr, Call) and getattr(expr.op, "name", "") == "prim.if_then_else"


def is_function(expr: tirx.Expr) -> bool:
    """Whether an expression calls a function, which costs several times as much as arithmetic."""
    return isinstance(expr, Call) and not is_conditional(expr) and not is_rounding(expr)


def is_rounding(expr: tirx.Expr) -> bool:
    """Whether an expression rounds a number to an integer, which takes one instruction."""
    return isinstance(expr, Call) and getattr(expr.op, "name", "") in _ROUNDINGS


def outside_loads(expr: tirx.Expr) -> Iterator[tirx.Expr]:
    """All subexpressions, except the indices of loads."""
    yield expr
    if isinstance(expr, TensorLoad | tirx.Var | tirx.IntImm | tirx.FloatImm):
        return
    for name in ("a", "b", "value", "args", "condition", "true_value", "false_value"):
        part = getattr(expr, name, None)
        for child in () if part is None else part if name == "args" else (part,):
            if isinstance(child, tirx.Expr) or hasattr(child, "ty"):
                yield from outside_loads(child)


def is_iters(indices: Sequence[tirx.Expr], iters: list[tirx.Var]) -> bool:
    """Whether indices are exactly the iteration variables, in order."""
    return len(indices) == len(iters) and all(i.same_as(v) for i, v in zip(indices, iters, strict=True))


def is_zero(expr: tirx.Expr) -> bool:
    """Whether an integer is the constant 0."""
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def uses(expr: tirx.Expr, var: tirx.Var) -> bool:
    """Whether an expression contains a variable."""
    return any(n.same_as(var) for n in nodes(expr) if isinstance(n, tirx.Var))


def dtype_of(expr: tirx.Expr) -> str:
    """numpy's name of an expression's or buffer's element type."""
    ty = expr.ty
    dtype = getattr(ty, "dtype", ty)
    return str(getattr(dtype, "dtype", dtype))


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return max(1, int(tvm.runtime.DataType(dtype).bits) // 8)


def is_plain_arithmetic(body: tirx.BufferStore) -> bool:
    """Whether a body has no conditions and no function calls: cheap enough to compute twice."""
    return not any(isinstance(n, Call | tirx.Select | tirx.IfThenElse) for n in nodes(body))


def divisor_up_to(extent: int, limit: int) -> int:
    """The largest divisor of `extent` that is at most `limit`."""
    return max((d for d in range(1, min(extent, limit) + 1) if extent % d == 0), default=1)


def substituted(
    expr: tirx.Expr,
    values: Sequence[tuple[tirx.Var, tirx.Expr]],
    load: Callable[[TensorLoad], tirx.Expr] | None = None,
) -> tirx.Expr:
    """The expression or statement with variables replaced by their values, and then loads by the results of `load`."""

    def variable(var: tirx.Buffer | tirx.Var) -> tirx.Expr:
        return next((new for old, new in values if old.same_as(var)), var)

    rules: list[tuple[type, Callable[..., tirx.Expr]]] = [(tirx.Var, variable)]
    if load is not None:
        rules.append((TensorLoad, load))
    return tvm_ffi.structural_map(expr, rules, order="post")
