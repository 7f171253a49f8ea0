"""Schedules for other kernels, block by block: parallel outside, vectors inside, reductions in several lanes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call

from heterocc.compiler.lower.cpu.blocks import BlockView
from heterocc.compiler.lower.kernels.expressions import divisor_up_to, dtype_of, itemsize, loads, nodes, uses

if TYPE_CHECKING:
    from tvm.s_tir.schedule import LoopRV


PARALLEL_WORK = 1 << 14
"""The smallest number of iterations for several threads; starting them takes some microseconds."""

MAX_UNROLL = 16


def schedule_spatial(sch: s_tir.Schedule, block: BlockView, lanes: int) -> None:
    """An elementwise or otherwise injective block: last dimension in vectors, the others in parallel."""
    loops = block.loops(sch)
    if not loops:
        return
    width = _lanes(block, lanes)
    last, vector = loops[-1], None
    if _vectorizable(block):
        step = divisor_up_to(block.extents[-1], width)
        if step >= min(4, width):
            last, vector = sch.split(loops[-1], [None, step])
    _parallel(
        sch, [*loops[:-1], last] if vector is not None else loops, block.work, keep=0 if vector is not None else 1
    )
    if vector is not None:
        sch.vectorize(vector)


def schedule_reduction(sch: s_tir.Schedule, block: BlockView, lanes: int) -> None:
    """A reduction: vectors along the last output dimension if it is long, else along the reduction itself."""
    spatial = [i for i, k in enumerate(block.kinds) if k == "S"]
    reduction = [i for i, k in enumerate(block.kinds) if k == "R"]
    width = _lanes(block, lanes)
    if spatial and _vectorizable(block) and _along_output(block, spatial[-1]):
        step = divisor_up_to(block.extents[spatial[-1]], width)
        if step >= min(4, width):
            _output_vectors(sch, block, spatial, reduction, step)
            return
    if isinstance(block.store.value, tirx.Add | tirx.Mul | tirx.Min | tirx.Max):
        total = math.prod(block.extents[i] for i in reduction)
        step = divisor_up_to(total, width)
        if step >= min(4, width) and total > step and _contiguous_reduction(block, reduction):
            _reduction_vectors(sch, block, spatial, reduction, step)
            return
    loops = block.loops(sch)
    order = [loops[i] for i in spatial] + [loops[i] for i in reduction]
    sch.reorder(*order)
    _parallel(sch, [loops[i] for i in spatial], block.work, keep=0)


def _output_vectors(sch: s_tir.Schedule, block: BlockView, spatial: list[int], reduction: list[int], step: int) -> None:
    """Accumulate a vector of outputs over all reduction loops, in a buffer that becomes a register."""
    copy = sch.cache_write(block.rv, 0, "global")
    loops = list(sch.get_loops(copy))
    outer, vector = sch.split(loops[-1], [None, step])
    sch.compute_at(block.rv, outer, preserve_unit_loops=True)
    inner = list(sch.get_loops(block.rv))[-len(block.kinds) :]
    rest = [inner[i] for i in spatial[:-1]]
    reduce = [inner[i] for i in reduction]
    sch.reorder(*rest, *reduce, inner[spatial[-1]])
    sch.vectorize(inner[spatial[-1]])
    sch.vectorize(vector)
    if block.extents[reduction[-1]] <= MAX_UNROLL and len(reduction) > 1:
        sch.unroll(reduce[-1])
    _parallel(sch, [*loops[:-1], outer], block.work, keep=0)
    sch.decompose_reduction(block.rv, reduce[0])


def _reduction_vectors(
    sch: s_tir.Schedule, block: BlockView, spatial: list[int], reduction: list[int], step: int
) -> None:
    """Reduce in `step` lanes and then over the lanes: another order of the same sum."""
    loops = block.loops(sch)
    sch.reorder(*(loops[i] for i in spatial), *(loops[i] for i in reduction))
    reduce = [loops[i] for i in reduction]
    fused = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    _, lane = sch.split(fused, [None, step])
    partial = sch.rfactor(lane, len(spatial))
    part = list(sch.get_loops(partial))
    final = block.loops(sch)
    count = len(spatial)
    # The partial block's loops are spatial…, reduction, lane: the lane goes inside and is initialised before.
    sch.reorder(part[count], part[count + 1])
    sch.vectorize(part[count + 1])
    if count:
        outer = final[:count]
        fused_final = sch.fuse(*outer) if count > 1 else outer[0]
        fused_part = sch.fuse(*part[:count]) if count > 1 else part[0]
        if block.work >= PARALLEL_WORK:
            sch.parallel(fused_part)
            sch.parallel(fused_final)
    sch.decompose_reduction(partial, part[count])


def _parallel(sch: s_tir.Schedule, loops: list[LoopRV], work: int, keep: int) -> None:
    """Fuse and parallelise all but the last `keep` of the loops."""
    outer = loops[: len(loops) - keep] if keep else loops
    if not outer or work < PARALLEL_WORK:
        return
    sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])


def without_inner_threads(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel in which no short parallel loop is in a serial one, which would start the threads in each iteration.

    TVM writes the updates of a scatter as such a loop for each slice.
    """

    def outer(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.SERIAL or (isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= 1):
            return loop
        return tvm_ffi.structural_map(loop, [(tirx.For, serial)], order="post")

    def serial(loop: tirx.For) -> tirx.For:
        short = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) < PARALLEL_WORK
        if loop.kind != tirx.ForKind.PARALLEL or not short:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(function, [(tirx.For, outer)], order="post")


def _lanes(block: BlockView, lanes: int) -> int:
    return max(1, lanes * 4 // max(itemsize(dtype_of(block.store.value)), 1))


_SCALAR_ONLY = frozenset(["tirx.cosh", "tirx.sinh"])
"""Functions that TVM calls in the C library for float64; code generation does not support them in vectors."""


def _vectorizable(block: BlockView) -> bool:
    """Whether explicit vectors are faster: not for booleans, which TVM stores bitwise, and narrow integers."""
    calls = [n for n in nodes(block.store) if isinstance(n, Call) and getattr(n.op, "name", "") in _SCALAR_ONLY]
    if any(dtype_of(call) == "float64" for call in calls):
        return False
    parts = [block.store.value, *(load for load in loads(block.store))]
    return all(dtype_of(p) in ("float32", "float64", "int32", "int64") for p in parts)


def _along_output(block: BlockView, last: int) -> bool:
    """Whether the last output dimension is the last dimension of the input, and no reduction is."""
    reads = [r for r in loads(block.store.value) if not r.source.same_as(block.store.buffer)]
    return any(r.indices and uses(r.indices[-1], block.iters[last]) for r in reads)


def _contiguous_reduction(block: BlockView, reduction: list[int]) -> bool:
    last = block.iters[reduction[-1]]
    return any(r.indices and uses(r.indices[-1], last) for r in loads(block.store.value))
