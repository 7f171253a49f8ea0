"""Builders of loops, launches and barriers for kernels that are generated directly rather than scheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, tirx

Replace = Callable[[tirx.Expr], tirx.Expr]


Size = Any
"""A number (int), or an expression (tirx.Expr) of sizes that are known only at run time."""


ROLLED = "heterocc.rolled"
"""The annotation of a loop that the driver is asked not to unroll."""


def index(value: Size) -> tirx.Expr:
    """A size as an index."""
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def divided_up(size: Size, step: int) -> Size:
    """The number of parts of `step` that cover a size."""
    if step == 1:
        return size
    return -(-size // step) if isinstance(size, int) else tirx.floordiv(size + (step - 1), index(step))


def loop(
    name: str,
    extent: Size,
    body: Callable[[tirx.Expr], tirx.Stmt],
    kind: tirx.ForKind = tirx.ForKind.SERIAL,
    *,
    rolled: bool = False,
) -> tirx.Stmt:
    """`body(i)` for i below `extent`, without a loop if `extent` is 1; `rolled` is for a loop to stay one."""
    if isinstance(extent, int) and extent == 1:
        return body(index(0))
    var = tirx.Var(name, "int64")
    annotations = {ROLLED: tirx.const(1, "int64")} if rolled else None
    return tirx.For(var, index(0), index(extent), kind, body(var), annotations=annotations)


def launch(tag: str, extent: Size, body: Callable[[tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """`body(i)` for each work group or item along an axis of the launch."""
    var = tirx.Var(tag.replace(".", "_"), "int64")
    bound = tirx.IterVar(None, tirx.Var(tag, "int64"), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, index(0), index(extent), tirx.ForKind.THREAD_BINDING, body(var), bound)


def launch_groups(count: int, most: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """`body(i)` for `count` work groups, along two axes of the grid if one allows fewer (`most`).

    With two axes i may reach or exceed `count` (see `beyond`).
    """
    outer = -(-count // most)
    inner = -(-count // outer)
    if outer == 1:
        return launch("blockIdx.x", count, body)
    return launch("blockIdx.y", outer, lambda y: launch("blockIdx.x", inner, lambda x: body(y * index(inner) + x)))


def beyond(count: int, most: int) -> bool:
    """Whether `launch_groups` launches more than `count` groups."""
    return -(-count // most) * -(-count // -(-count // most)) != count


def named(values: Sequence[tirx.Expr], body: Callable[[list[tirx.Var]], tirx.Stmt]) -> tirx.Stmt:
    """`body` of variables bound to the values, so that each value is computed only once."""
    names = [tirx.Var(f"at{i}", "int64") for i in range(len(values))]
    binds = [tirx.Bind(name, value) for name, value in zip(names, values, strict=True)]
    return sequence([*binds, body(names)])


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The sequence of the statements."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def when(condition: tirx.Expr | None, then: tirx.Stmt) -> tirx.Stmt:
    """The statement under a condition, or unconditional for None."""
    return then if condition is None else tirx.IfThenElse(condition, then, None)


def barrier() -> tirx.Stmt:
    """A barrier for all items of the group, after which their writes to shared memory are visible."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def kernel(function: tirx.PrimFunc, buffers: Sequence[tirx.Buffer], body: tirx.Stmt) -> tirx.PrimFunc:
    """The function with another body, which allocates `buffers`."""
    block = s_tir.SBlock([], [], [], "root", body, None, list(buffers))
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc(list(function.params), realize, attrs=function.attrs)


def add_part(buffers: list[tirx.Buffer], size: int, dtype: str) -> tirx.Buffer:
    """A new private buffer of `size` elements of each work item, added to those of the kernel."""
    buffer = tirx.decl_buffer((size,), dtype, f"part{len(buffers)}", scope="local")
    buffers.append(buffer)
    return buffer


def split_index(linear: tirx.Expr, extents: Sequence[Size]) -> list[tirx.Expr]:
    """The index along each axis for a linear index over all axes, with the last axis fastest."""
    found: list[tirx.Expr] = []
    step: Size = 1
    for place in range(len(extents) - 1, -1, -1):
        part = linear if isinstance(step, int) and step == 1 else tirx.floordiv(linear, index(step))
        found.append(part if place == 0 else tirx.floormod(part, index(extents[place])))
        step = step * extents[place]
    return found[::-1]


__all__ = [
    "add_part",
    "barrier",
    "divided_up",
    "index",
    "kernel",
    "launch",
    "loop",
    "sequence",
    "split_index",
    "when",
]
