"""Binding of loops to work groups and work items."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from heterocc.compiler.lower.gpu.limits import ENDLESS, Limits

if TYPE_CHECKING:
    from tvm.s_tir.schedule import LoopRV, SBlockRV


SIMD = 8
"""The narrowest SIMD width of a device, in work items. In a group of another size than a multiple of it some lanes are
idle."""

_WORTHWHILE = 0.75
"""The least share of SIMD lanes in use for which an even group is better than a partial group at the end."""

MOST_IDLE = 1.25
"""The largest ratio of work done to work needed for which excess work is cheaper than a guard."""

_TRIES = 4096

_COLUMNS = 16
"""Work groups along the first axis of a grid whose size is known only at run time, on devices with short axes. The last
row of the grid has as many as the others, without work."""


class LostGuardError(Exception):
    """A block that was moved into a partial work group lacks the guard for items beyond the end."""


def extent_of(schedule: s_tir.Schedule, loop: LoopRV) -> int | None:
    """The number of iterations of a loop; None if it is known only at run time."""
    extent = schedule.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def bind_items(schedule: s_tir.Schedule, loop: LoopRV, most: int, limits: Limits) -> LoopRV:
    """Split a loop into work groups of at most `most` work items; return the loop over the items of a group.

    If it costs little, groups divide the loop evenly, so that a guard is not needed.
    """
    extent = extent_of(schedule, loop)
    size = most if extent is None else _group_size(extent, most, limits.vectors)
    groups, item = schedule.split(loop, factors=[None, size])
    bind_groups(schedule, groups, limits)
    schedule.bind(item, "threadIdx.x")
    return item


def bind_groups(schedule: s_tir.Schedule, loop: LoopRV, limits: Limits) -> None:
    """Bind a loop to work groups, along two axes of the grid if it is too long for one."""
    count = extent_of(schedule, loop)
    if count is None and limits.grid < ENDLESS:
        outer, inner = schedule.split(loop, factors=[None, _COLUMNS])
        schedule.bind(outer, "blockIdx.y")
        schedule.bind(inner, "blockIdx.x")
        return
    if count is None or count <= limits.grid:
        schedule.bind(loop, "blockIdx.x")
        return
    least = -(-count // limits.grid)
    rows = next((n for n in range(least, min(least + _TRIES, limits.grid)) if count % n == 0), least)
    outer, inner = schedule.split(loop, factors=[rows, None])
    schedule.bind(outer, "blockIdx.y")
    schedule.bind(inner, "blockIdx.x")


def move_to(schedule: s_tir.Schedule, block: SBlockRV, item: LoopRV) -> None:
    """Move a later block into the loop over work items.

    Raises LostGuardError if a group is partial and the block would also run for the items beyond its end. TVM does not
    notice this if the block's index is not a sum of loop variables.
    """
    guards = [g for child in schedule.get_child_blocks(item) for g in _guards(schedule, child)]
    schedule.reverse_compute_at(block, item)
    if not guards:
        return
    analyzer = sym.Analyzer()
    for loop in schedule.get_loops(block):
        node = schedule.get(loop)
        analyzer.bind(node.loop_var, ir.Range.from_min_extent(node.min, node.extent))
    with ExitStack() as known:
        for guard in _guards(schedule, block):
            known.enter_context(analyzer.constraint_scope(guard))
        if not all(analyzer.can_prove(guard) for guard in guards):
            raise LostGuardError(schedule.get(block).name_hint)


def _guards(schedule: s_tir.Schedule, block: SBlockRV) -> list[tirx.Expr]:
    """The conditions under which a block runs."""
    node = schedule.get(block)
    found: list[tirx.Expr] = []

    def visit(realize: s_tir.SBlockRealize) -> None:
        if realize.block.same_as(node):
            found.append(realize.predicate)

    tvm_ffi.structural_walk(schedule.mod["main"].body, [(s_tir.SBlockRealize, visit)], order="post")
    return [p for p in found if not isinstance(p, tirx.IntImm)]


def needs_guard(extent: int, most: int) -> bool:
    """Whether the last group of at most `most` work items is partial, on devices without `vectors`."""
    return extent % _group_size(extent, most, vectors=False) != 0


def _used(size: int) -> float:
    return size / (-(-size // SIMD) * SIMD)


def _group_size(extent: int, most: int, vectors: bool) -> int:
    if not vectors:
        if extent <= most:
            return extent
        even = [n for n in range(-(-most // 4), most + 1) if extent % n == 0 and _used(n) >= _WORTHWHILE]
        if even:
            return max(even, key=lambda n: (_used(n), n))
    size = 1
    while size * 2 <= most and size < extent:
        size *= 2
    return size
