"""Loops, stores and shared memory of kernels that are written rather than scheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

Replace = Callable[[Any], Any]


def index(value: int) -> Any:
    """A constant index."""
    return tirx.const(value, "int64")


def loop(name: str, extent: int, body: Callable[[Any], Any], kind: Any = tirx.ForKind.SERIAL) -> Any:
    """`body(i)` for i below `extent`; no loop where there is but one."""
    if extent == 1:
        return body(index(0))
    var = tirx.Var(name, "int64")
    return tirx.For(var, index(0), index(extent), kind, body(var))


def launch(tag: str, extent: int, body: Callable[[Any], Any]) -> Any:
    """`body(i)` for each work group or item along an axis of the launch."""
    var = tirx.Var(tag.replace(".", "_"), "int64")
    bound = tirx.IterVar(None, tirx.Var(tag, "int64"), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, index(0), index(extent), tirx.ForKind.THREAD_BINDING, body(var), bound)


def launch_groups(count: int, most: int, body: Callable[[Any], Any]) -> Any:
    """`body(i)` for `count` work groups, along two axes where one takes fewer: then some may lie beyond the last."""
    outer = -(-count // most)
    inner = -(-count // outer)
    if outer == 1:
        return launch("blockIdx.x", count, body)
    return launch("blockIdx.y", outer, lambda y: launch("blockIdx.x", inner, lambda x: body(y * index(inner) + x)))


def beyond(count: int, most: int) -> bool:
    """Whether `launch_groups` has groups beyond the last."""
    return -(-count // most) * -(-count // -(-count // most)) != count


def named(values: Sequence[Any], body: Callable[[list[Any]], Any]) -> Any:
    """`body` of variables that have the values: what is used often is computed, and read, once."""
    names = [tirx.Var(f"at{i}", "int64") for i in range(len(values))]
    binds = [tirx.Bind(name, value) for name, value in zip(names, values, strict=True)]
    return sequence([*binds, body(names)])


def sequence(statements: Sequence[Any]) -> Any:
    """The statements one after another."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def when(condition: Any, then: Any) -> Any:
    """The statement under a condition; alone where there is none."""
    return then if condition is None else tirx.IfThenElse(condition, then, None)


def barrier() -> Any:
    """All items of the group have written their shared memory."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def kernel(function: Any, buffers: Sequence[Any], body: Any) -> Any:
    """The function with another body, which owns `buffers`."""
    block = s_tir.SBlock([], [], [], "root", body, None, list(buffers))
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc(list(function.params), realize, attrs=function.attrs)


def substituted(expr: Any, values: Sequence[tuple[Any, Any]], load: Replace | None = None) -> Any:
    """The expression with variables replaced, then loads as `load` says."""

    def variable(var: Any) -> Any:
        return next((new for old, new in values if old.same_as(var)), var)

    rules: list[tuple[type, Replace]] = [(tirx.Var, variable)]
    if load is not None:
        rules.append((TensorLoad, load))
    return tvm_ffi.structural_map(expr, rules, order="post")


def split_index(linear: Any, extents: Sequence[int]) -> list[Any]:
    """The index along each axis of the `linear` index over all, the last axis fastest."""
    found: list[Any] = []
    step = 1
    for place in range(len(extents) - 1, -1, -1):
        part = linear if step == 1 else tirx.floordiv(linear, index(step))
        found.append(part if place == 0 else tirx.floormod(part, index(extents[place])))
        step *= extents[place]
    return found[::-1]


__all__ = [
    "barrier",
    "index",
    "kernel",
    "launch",
    "loop",
    "sequence",
    "split_index",
    "substituted",
    "when",
]
