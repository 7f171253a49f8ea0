"""Sums of products of float16, computed in float32.

A sum of some hundred products in float16 loses most digits, and may exceed 65504 although its result does not. The
schedules that keep sums in registers of their own have float32 there; others keep them in the type of the kernel's
tensor, which is therefore float32 here, and rounded by the block that reads it.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx

from heterocc.compiler.lower.kernels.expressions import dtype_of


def with_wide_sums(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with each sum of products of float16 in a tensor of float32."""
    narrow: list[s_tir.SBlock] = []

    def visit(block: s_tir.SBlock) -> None:
        if _products(block):
            narrow.append(block)

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    if not narrow:
        return function
    schedule = s_tir.Schedule(function)
    results = {parameter.name for parameter in function.params}
    for found in narrow:
        block = schedule.get_sblock(str(found.name_hint))
        if found.body.buffer.name in results:
            schedule.cache_write(block, 0, "global")
        schedule.unsafe_set_dtype(block, 0, "float32")
    names = {str(block.name_hint) for block in narrow}
    widened = tvm_ffi.structural_map(
        schedule.mod["main"],
        [(s_tir.SBlock, lambda block: _widened(block) if str(block.name_hint) in names else block)],
        order="post",
    )
    return widened.with_attrs(dict(function.attrs.items()))


def _products(block: s_tir.SBlock) -> bool:
    """Whether a block adds products of float16 to a sum of float16."""
    store = block.body
    if block.init is None or not isinstance(store, tirx.BufferStore) or dtype_of(store.value) != "float16":
        return False
    return isinstance(store.value, tirx.Add) and isinstance(store.value.b, tirx.Mul)


def _widened(block: s_tir.SBlock) -> s_tir.SBlock:
    """The block with float32 factors, and its sum read as it is; TVM has put casts around both."""
    store = block.body
    added = store.value.value
    product = added.b.a.astype("float32") * added.b.b.astype("float32")
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.BufferStore(store.buffer, added.a.value + product, store.indices),
        tirx.BufferStore(store.buffer, tirx.const(0, "float32"), block.init.indices),
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
