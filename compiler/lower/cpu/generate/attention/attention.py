"""Generation of attention kernels: softmax(scores of Q Kᵀ) V, with the scores of a few rows at a time."""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.attention.description import Attention, Operand
from heterocc.compiler.lower.cpu.generate.attention.writer import AttentionWriter
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.sizes import assuming, at_least, attempt, index, is_number
from heterocc.compiler.lower.written import OPAQUE, PATTERN, WRITTEN

_ONE = tirx.const(1, "int64")


def write_attention(form: Attention, isa: Isa) -> tirx.PrimFunc | None:
    """The kernel for an instruction set; None if some of its sizes are not known before the run and cannot be used.

    It has other code for one row, unless that has one key. Where several query heads share keys, their rows are then
    rows of one head, for which keys are read once.
    """
    kernel = _any_rows(form, isa)
    one = _heads_as_rows(form) or (None if is_number(form.rows) else replace(form, rows=1))
    if kernel is None or one is None or form.has_a_key_for_each_row:
        return kernel
    together, sizes, others = _any_rows(one, isa), hidden_sizes(form), hidden_sizes(one)
    same = len(sizes) == len(others) and all(a.same_as(b) for a, b in zip(sizes, others, strict=True))
    if together is None or not same:
        return kernel
    return together if is_number(form.rows) else emit.guarded(together, [index(form.rows) == _ONE], kernel)


def _heads_as_rows(form: Attention) -> Attention | None:
    """An attention of one row with the innermost heads as rows, if they have the same keys and values."""
    if not form.outer or not is_number(form.outer[-1]) or form.outer[-1] == 1:
        return None
    if is_number(form.rows) and form.rows != 1:
        return None
    if any(o.repeats and o.repeats[-1] != 1 for o in form.operands):
        return None
    if any(not is_number(o.outer[-1]) or o.outer[-1] != 0 for o in (form.k, form.v)):
        return None

    def turned(operand: Operand) -> Operand:
        return replace(operand, outer=operand.outer[:-1], row=operand.outer[-1], repeats=operand.repeats[:-1])

    def same_rows(operand: Operand) -> Operand:
        return replace(operand, outer=operand.outer[:-1], repeats=operand.repeats[:-1])

    steps = tuple(s if s.operand is None else replace(s, operand=turned(s.operand)) for s in form.steps)
    return replace(
        form,
        outer=form.outer[:-1],
        rows=form.outer[-1],
        q=turned(form.q),
        k=same_rows(form.k),
        v=same_rows(form.v),
        out=turned(form.out),
        steps=steps,
        empty=None if form.empty is None else turned(form.empty),
    )


def _any_rows(form: Attention, isa: Isa) -> tirx.PrimFunc | None:
    """The kernel without other code for one row.

    Such a kernel has other code for fewer keys than a vector has lanes, of narrower vectors for fewer columns, and
    `hidden_sizes` as parameters before the result.
    """
    dims = _dynamic_sizes(form)
    if not dims:
        return _written(form, isa)
    with assuming(dims) as assumptions:
        kernel = attempt(lambda: _written(form, isa))
    if kernel is None or not assumptions.guards:
        return kernel
    with assuming(dims) as others:
        enough = at_least(form.keys, isa.narrowed(form.keys).lanes).guard
        few = [enough] if enough is not None and tvm_ffi.structural_equal([enough], assumptions.guards) else []
        other = attempt(lambda: _written(form, isa, few=True)) if few else None
    if (other is None or others.guards) and isa.lanes > 1:
        other = _any_rows(form, replace(isa, lanes=4 if isa.lanes > 4 else 1))
    return None if other is None else emit.guarded(kernel, assumptions.guards, other)


def hidden_sizes(form: Attention) -> list[tirx.Var]:
    """The sizes that no tensor has as a dimension, such as the number of keys of earlier tokens."""
    given = [index(n) for operand in form.operands for n in operand.shape]
    with assuming(_dynamic_sizes(form)) as assumptions:
        return [var for var in assumptions.variables if not any(var.same_as(n) for n in given)]


def _dynamic_sizes(form: Attention) -> list[tirx.Expr]:
    given = (n for operand in form.operands for n in operand.shape)
    sizes = (*form.outer, form.rows, form.keys, form.terms, form.columns, *given)
    return [index(size) for size in sizes if not is_number(size)]


def _written(form: Attention, isa: Isa, *, few: bool = False) -> tirx.PrimFunc:
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("attention")
        build.func_attr({"tirx.noalias": True, WRITTEN: True, PATTERN: OPAQUE})
        masks = [f"m{number}" for number in range(len(form.operands) - 4)]
        *read, result = form.operands
        names = ["q", "k", "v", *masks]
        arguments = [build.arg(name, _buffer(operand)) for name, operand in zip(names, read, strict=True)]
        for size in hidden_sizes(form):
            build.arg(size.name, size)
        arguments.append(build.arg("o", _buffer(result)))
        AttentionWriter(form, isa, list(map(emit.flat, arguments)), few=few)
    return builder.get()


def _buffer(operand: Operand) -> tirx.Buffer:
    return build.Buffer(tuple(index(n) for n in operand.shape), operand.dtype)
