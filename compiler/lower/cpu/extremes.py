"""Maxima and minima in plain loops, in which no NaN hides a number (decision 7).

`max(a, b)` is compiled to `a > b ? a : b`, which gives b if one of them is NaN. So the number so far is the second
operand: a NaN is left out, in place of all that was before it. The first term is the initial value, so that the
maximum of NaN alone is NaN; not of windows, which are combined in several kernels, and whose first element may be
padding.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.blocks import REDUCTION, of_windows
from heterocc.compiler.lower.kernels.expressions import dtype_of, substituted


def without_hidden_numbers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with blocks in which no NaN hides a number from a maximum or minimum."""
    body = tvm_ffi.structural_map(function.body, [(s_tir.SBlock, _without)], order="post")
    return tirx.PrimFunc(list(function.params), body, attrs=function.attrs)


def _without(block: s_tir.SBlock) -> s_tir.SBlock:
    """A block that combines floats with the number so far as the second operand, and the first term as initial value.

    Any other block unchanged.
    """
    store, init = block.body, block.init
    if init is None or not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Max | tirx.Min):
        return block
    held, term = store.value.a, store.value.b
    same = isinstance(held, TensorLoad) and held.source.same_as(store.buffer)
    if not same or not dtype_of(store.value).startswith(("float", "bfloat")):
        return block
    if not all(a.same_as(b) for a, b in zip(held.indices, store.indices, strict=True)):
        return block
    swapped = tirx.BufferStore(store.buffer, type(store.value)(term, held), store.indices)
    if not of_windows(block):
        terms = [i for i in block.iter_vars if int(i.iter_type) == REDUCTION]
        first = substituted(term, [(i.var, i.dom.min) for i in terms])
        first = unless_empty([i.dom.extent for i in terms], first, init.value)
        init = tirx.BufferStore(init.buffer, first, init.indices)
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        swapped,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def unless_empty(extents: Iterable[tirx.Expr], first: tirx.Expr, neutral: tirx.Expr) -> tirx.Expr:
    """The first of so many terms, or `neutral` if a run may have no terms and has none."""
    some = [extent > tirx.const(0, dtype_of(extent)) for extent in extents if not isinstance(extent, tirx.IntImm)]
    return tirx.if_then_else(tirx.all(*some), first, neutral) if some else first
