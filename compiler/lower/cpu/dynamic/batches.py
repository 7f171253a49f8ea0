"""Kernels for one item of a batch in a loop over the batch, so that a batch of any size runs code of fixed shapes.

Products of few rows are those of all items at once (`rows_of_items.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call

from heterocc.compiler.lower.cpu.sources import with_derived_source
from heterocc.compiler.lower.itemwise import carries_items, for_items, of_item
from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.written import ITEMS, ROWS


def can_loop(module: KernelModule) -> bool:
    """Whether `over_batch` supports the module: each value that depends on an input has dimensions, as each output."""
    return carries_items(module) and not module.homes


def over_batch(module: KernelModule, size: tirx.Var) -> KernelModule:
    """The module for `size` items, whose kernels are scheduled for one.

    Items lie one after the other in every value that depends on an input.
    """
    looped = for_items(
        module, size, lambda f, pattern, results: with_derived_source(_looped(f, pattern, results), f, pattern, results)
    )
    assert looped is not None  # every kernel runs in a loop
    return looped


def _looped(function: tirx.PrimFunc, pattern: Sequence[bool], results: int) -> tirx.PrimFunc:
    if ITEMS in function.attrs:
        return function
    count, item = tirx.Var("items", "int64"), tirx.Var("item", "int64")
    if ROWS in function.attrs:
        first = len(function.params) - results
        return tirx.PrimFunc(
            [*function.params[:first], count, *function.params[first:]], function.body, attrs=function.attrs
        )
    replace: list[tuple[tirx.Var, tirx.Var]] = []
    wide: list[tuple[tirx.Buffer, int]] = []
    for param, mark in zip(function.params, pattern, strict=True):
        if mark:
            buffer = _buffer(param, [count * param.shape[0], *param.shape[1:]], param.ty.elem_offset)
            replace.append((param, buffer))
            wide.append((buffer, int(param.shape[0])))

    def declared(statement: tirx.DeclBuffer) -> None:
        inside = statement.data.args if isinstance(statement.data, Call) else ()
        param = next((p for p, mark in zip(function.params, pattern, strict=True) if mark and _is_in(p, inside)), None)
        if param is not None:
            start = item * math.prod(int(d) for d in param.shape)
            replace.append((statement.buffer, _buffer(statement.buffer, statement.buffer.shape, start)))

    tvm_ffi.structural_walk(function.body, [(tirx.DeclBuffer, declared)], order="post")
    body = of_item(function.body, replace, item, lambda buffer: next((n for b, n in wide if b.same_as(buffer)), None))
    if isinstance(body, s_tir.SBlockRealize):
        root = body.block
        inner = tirx.For(item, tirx.const(0, "int64"), count, tirx.ForKind.SERIAL, root.body)
        block = s_tir.SBlock([], [], [], "root", inner, None, root.alloc_buffers)
        body = s_tir.SBlockRealize([], True, block)
    else:
        body = tirx.For(item, tirx.const(0, "int64"), count, tirx.ForKind.SERIAL, body)
    params = [next((new for old, new in replace if old.same_as(p)), p) for p in function.params]
    first = len(params) - results
    return tirx.PrimFunc([*params[:first], count, *params[first:]], body, attrs=function.attrs)


def _is_in(param: tirx.Var, expressions: Sequence[tirx.Expr]) -> bool:
    return any(param.same_as(e) for e in expressions)


def _buffer(like: tirx.Buffer, shape: Sequence[tirx.Expr], start: tirx.Expr) -> tirx.Buffer:
    ty = like.ty
    return tirx.decl_buffer(shape, ty.dtype, like.name, elem_offset=start, scope=ty.storage_scope, data_alignment=1)
