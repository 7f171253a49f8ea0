"""What the blocks of a kernel read, each part of a tensor once."""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorRegion


def with_single_reads(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel whose blocks name no part that they read twice, as that of x + x does after fusion.

    TVM cannot give such a block another tensor to read: `cache_write` of the block before it fails.
    """
    return tvm_ffi.structural_map(function, [(s_tir.SBlock, _once)], order="post")


def _once(block: s_tir.SBlock) -> s_tir.SBlock:
    reads: list[TensorRegion] = []
    for region in block.reads:
        if not any(region.source.same_as(r.source) and tvm_ffi.structural_equal(region, r) for r in reads):
            reads.append(region)
    if len(reads) == len(block.reads):
        return block
    return s_tir.SBlock(
        block.iter_vars,
        reads,
        block.writes,
        block.name_hint,
        block.body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
