"""Plain loops, for kernels and sizes that no generator supports: LLVM computes them in vectors where it can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from heterocc.compiler.lower.cpu.blocks import REDUCTION, BlockView, has_blocks, view
from heterocc.compiler.lower.cpu.extremes import without_hidden_numbers
from heterocc.compiler.lower.kernels.expressions import is_iters, is_plain_arithmetic, loads
from heterocc.compiler.lower.variables import can_be_empty

if TYPE_CHECKING:
    from tvm.s_tir.schedule import SBlockRV

PARALLEL_WORK = 1 << 14
"""The smallest number of iterations for several threads; starting them takes some microseconds."""


def in_loops(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel in plain loops: cheap blocks are inlined, and threads share the outermost loops of the others."""
    sch = s_tir.Schedule(without_hidden_numbers(_without_inner_threads(function)), debug_mask="none")
    _inline(sch)
    for rv in _leaf_blocks(sch):
        _share(sch, rv)
    made = sch.mod["main"].with_attr("global_symbol", function.attrs["global_symbol"])
    body = tvm_ffi.structural_map(made.body, [(s_tir.SBlockRealize, _truncating)], order="post")
    return tirx.PrimFunc(list(made.params), body, attrs=made.attrs)


def _without_inner_threads(function: tirx.PrimFunc) -> tirx.PrimFunc:
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


def _leaf_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The kernel's blocks in order, without the root; none if it has no blocks.

    Asking TVM for its root is an error then, and the first one of a process reads the symbols of all libraries for a
    stack trace: a quarter of a second.
    """
    return list(sch.get_child_blocks(sch.get_sblock("root"))) if has_blocks(sch.mod["main"]) else []


def _inline(sch: s_tir.Schedule) -> None:
    """Inline cheap elementwise blocks into their readers: padding by zero elements, chains of epilogues."""
    for rv in _leaf_blocks(sch):
        consumers = list(sch.get_consumers(rv))
        block, *views = (view(sch.get(b), [sch.get(loop) for loop in sch.get_loops(b)]) for b in (rv, *consumers))
        if block is None or block.is_reduction or not consumers:
            continue
        copy = _is_copy(block)
        elementwise = all(v is not None and not v.is_reduction for v in views) and len(consumers) == 1
        cheap = all(v is not None for v in views) and is_plain_arithmetic(block.store)
        if copy or elementwise or (cheap and not _gathers(block)):
            try:
                sch.compute_inline(rv)
            except s_tir.ScheduleError:
                continue


def _is_copy(block: BlockView) -> bool:
    reads = loads(block.store.value)
    return len(reads) == 1 and reads[0].same_as(block.store.value) and is_iters(reads[0].indices, block.iters)


def _gathers(block: BlockView) -> bool:
    return any(
        not all(isinstance(i, tvm.tirx.Var | tvm.tirx.IntImm) for i in r.indices) for r in loads(block.store.value)
    )


def _share(sch: s_tir.Schedule, rv: SBlockRV) -> None:
    """Divide the outermost loops of a block among threads, if its work is worth it or known only at run time."""
    kinds = [int(i.iter_type) for i in sch.get(rv).iter_vars]
    loops = list(sch.get_loops(rv))
    if len(loops) != len(kinds) or not all(int(sch.get(loop).kind) == 0 for loop in loops):
        return
    extents = [sch.get(loop).extent for loop in loops]
    work = math.prod(map(int, extents)) if all(isinstance(n, tirx.IntImm) for n in extents) else None
    spatial = next((n for n, kind in enumerate(kinds) if kind == REDUCTION), len(kinds))
    across = 2 <= spatial < len(kinds) and _reads_across(sch.get(rv), spatial)
    if across:
        sch.reorder(*loops[spatial:], loops[spatial - 1])
    outer = loops[: spatial - across if spatial < len(kinds) else max(spatial - 1, int(work is not None))]
    # Indices of fused loops are quotients by all extents but the first, which must not be 0.
    fused = 1 + next((n for n, extent in enumerate(extents[1 : len(outer)]) if can_be_empty(extent)), len(outer) - 1)
    if outer and (work is None or work >= PARALLEL_WORK):
        sch.parallel(_fused(sch, outer[:fused]))
    if across or any(map(can_be_empty, extents[spatial:])):
        # The first of the terms sets the sum to 0: without terms nothing would.
        sch.decompose_reduction(rv, loops[spatial])


def _reads_across(block: s_tir.SBlock, spatial: int) -> bool:
    """Whether a sum of terms reads numbers beside each other for the last of its `spatial` axes, none for its terms.

    LLVM computes such sums in vectors along that axis, term by term, but not one sum of terms that are apart.
    """
    last, terms = block.iter_vars[spatial - 1].var, [i.var for i in block.iter_vars[spatial:]]
    ends = [load.indices[-1] for load in loads(block.body) if len(load.indices)]
    return any(end.same_as(last) for end in ends) and not any(end.same_as(term) for end in ends for term in terms)


def _fused(sch: s_tir.Schedule, loops: Sequence[s_tir.schedule.LoopRV]) -> s_tir.schedule.LoopRV:
    """Loops as one; the first of them if TVM cannot simplify the indices of the one."""
    if len(loops) == 1:
        return loops[0]
    try:
        return sch.fuse(*loops)
    except tvm.error.InternalError:
        # Its check of indices divided by sizes (PadDividendToDivisor) is fatal where it should only give up.
        return loops[0]


def _truncating(block: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    """A block whose indices of fused loops, which are not negative, are found by divisions that truncate.

    Divisions that round down ask for the signs of sizes. LLVM makes a copy of the inner loop for each answer, and of
    these for the next: with a power in the loop it does not come to an end.
    """
    kinds = [(tirx.FloorDiv, lambda e: tirx.truncdiv(e.a, e.b)), (tirx.FloorMod, lambda e: tirx.truncmod(e.a, e.b))]
    values = [tvm_ffi.structural_map(value, kinds, order="post") for value in block.iter_values]
    return s_tir.SBlockRealize(values, block.predicate, block.block, block.span)
