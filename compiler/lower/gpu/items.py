"""Kernels that are scheduled for one item of a batch, launched for all items: a further axis of the grid."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range

from heterocc.compiler.lower.itemwise import carries_items, for_items, of_item
from heterocc.compiler.lower.relax.kernels import KernelModule

_AXES = ("blockIdx.z", "blockIdx.y")
"""The axes of the grid for items, of which a kernel uses the first that its schedule leaves free."""

MOST_ITEMS = 65535
"""The most groups that every device launches along these axes."""


def over_items(module: KernelModule, size: tirx.Var) -> KernelModule | None:
    """The module for `size` items, whose kernels are scheduled for one; None if a kernel has no free axis.

    Items lie one after the other in every value that depends on an input.
    """
    return for_items(module, size, _for_items) if carries_items(module) else None


def _for_items(function: tirx.PrimFunc, pattern: Sequence[bool], results: int) -> tirx.PrimFunc | None:
    """A scheduled kernel with each of its launches extended by an axis for items; None if that is not possible."""
    root = function.body.block if isinstance(function.body, s_tir.SBlockRealize) else None
    if root is None or not _is_plain(root):
        return None
    count = tirx.Var("items", "int64")
    wide: list[tuple[tirx.Buffer, tirx.Buffer]] = []
    for param, mark in zip(function.params, pattern, strict=True):
        if mark:
            wide.append((param, _widened(param, count)))
    inner = [b for b in root.alloc_buffers if b.scope() == "global"]
    if any(len(b.shape) == 0 for b in inner):
        return None
    wide += [(b, _widened(b, count)) for b in inner]
    launches = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    bodies = [_launch_for_items(launch, wide, count) for launch in launches]
    if any(body is None for body in bodies):
        return None
    body = bodies[0] if len(bodies) == 1 else tirx.SeqStmt(bodies)
    new = dict(wide)
    allocated = [new.get(b, b) for b in root.alloc_buffers]
    block = s_tir.SBlock([], [], [], "root", body, None, allocated)
    params = [new.get(p, p) for p in function.params]
    first = len(params) - results
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc([*params[:first], count, *params[first:]], realize, attrs=function.attrs)


def _is_plain(root: s_tir.SBlock) -> bool:
    """Whether tensors are accessed by loads and stores alone, and only loops are bound to axes of the grid."""
    others: list[object] = []

    def visit(block: s_tir.SBlock) -> None:
        others.extend(block.match_buffers)
        others.extend(b for b in block.alloc_buffers if b.scope() == "global" and not block.same_as(root))

    rules = [(s_tir.SBlock, visit), (tirx.DeclBuffer, others.append), (tirx.AttrStmt, others.append)]
    tvm_ffi.structural_walk(root, rules, order="post")
    return not others


def _launch_for_items(
    launch: tirx.Stmt, wide: Sequence[tuple[tirx.Buffer, tirx.Buffer]], count: tirx.Var
) -> tirx.Stmt | None:
    used: list[str] = []
    tvm_ffi.structural_walk(launch, [(tirx.For, lambda loop: used.append(_axis(loop)))], order="post")
    axis = next((a for a in _AXES if a not in used), None)
    if axis is None or not any(used):
        return None
    item = tirx.Var("item", "int64")

    def rows_of(buffer: tirx.Buffer) -> tirx.Expr | None:
        return next((old.shape[0] for old, new in wide if new.same_as(buffer)), None)

    body = of_item(launch, wide, item, rows_of)
    thread = tirx.IterVar(Range(0, count), tirx.Var(axis, "int64"), tirx.IterVar.ThreadIndex, axis)
    start = tirx.const(0, "int64")
    return tirx.For(item, start, count, tirx.ForKind.THREAD_BINDING, body, thread_binding=thread)


def _axis(loop: tirx.For) -> str:
    """The axis of the grid that a loop is bound to; empty for other loops."""
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)


def _widened(buffer: tirx.Buffer, count: tirx.Var) -> tirx.Buffer:
    ty = buffer.ty
    shape = [count * buffer.shape[0], *buffer.shape[1:]]
    return tirx.decl_buffer(shape, ty.dtype, buffer.name, scope=ty.storage_scope)
