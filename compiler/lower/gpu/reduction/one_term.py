"""Reductions of a single term, such as a matrix product of depth 1, rewritten as assignments.

TVM's schedules are inconsistent about whether a block with an initial value and one term is a reduction. A block that
is inlined into it (such as a later addition) may be counted twice.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad


def without_single_terms(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with each reduction of one term replaced by a store of its value."""
    return tvm_ffi.structural_map(function, [(s_tir.SBlock, _assigned)], order="post")


def _assigned(block: s_tir.SBlock) -> s_tir.SBlock:
    reduced = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    start, store = block.init, block.body
    if not isinstance(start, tirx.BufferStore) or not isinstance(store, tirx.BufferStore):
        return block
    if any(not isinstance(v.dom.extent, tirx.IntImm) or int(v.dom.extent) != 1 for v in reduced):
        return block

    def first(load: TensorLoad) -> tirx.Expr:
        return start.value if load.source.same_as(store.buffer) else load

    value = tvm_ffi.structural_map(store.value, [(TensorLoad, first)], order="post")
    iterators = [tirx.IterVar(v.dom, v.var, tirx.IterVar.DataPar, v.thread_tag, v.span) for v in block.iter_vars]
    return s_tir.SBlock(
        iterators,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.BufferStore(store.buffer, value, store.indices),
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
