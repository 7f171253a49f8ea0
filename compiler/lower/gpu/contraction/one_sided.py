"""Sums of products with all spatial axes in the first operand: depthwise convolutions and those to one channel.

A work item computes several neighbouring outputs, so that it loads a weight, and the elements that overlapping windows
share, once for all of them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tvm import s_tir, tirx

from heterocc.compiler.lower.gpu.contraction.axes import dtype_of, fuse_pixels, is_spatial, only_sum, operand_axes
from heterocc.compiler.lower.gpu.contraction.padding import padded
from heterocc.compiler.lower.gpu.contraction.tile import GPU_GROUP
from heterocc.compiler.lower.gpu.groups import MOST_IDLE, SIMD, LostGuardError, bind_items, move_to, needs_guard
from heterocc.compiler.lower.gpu.inlining import broadens, inlined, store_of
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.plain import bind_block
from heterocc.compiler.lower.gpu.window.depthwise import slides_items

if TYPE_CHECKING:
    from tvm.s_tir.schedule import LoopRV, SBlockRV


LONGEST = 16
"""The most outputs of a work item."""

BUSY = 128
"""The number of work items that keeps a device's cores busy. To have as many, each computes fewer outputs."""

FEWEST = 1024
"""The least outputs of a kernel; with fewer, rules that divide the sums are faster."""

WRITTEN_OUT = 512
"""The most products of an item along the sum's last axis that are unrolled."""


def schedule_one_sided(function: tirx.PrimFunc, limits: Limits) -> Packed | None:
    """The scheduled kernel; None if it has another form or another rule unrolls its window, or if the device is not a
    CPU that runs work items in SIMD lanes."""
    if not limits.side_by_side or slides_items(function):
        return None
    schedule = s_tir.Schedule(function)
    found = only_sum(schedule)
    if found is None:
        return None
    blocks, block = found
    if _axis(schedule, block) is None:
        return None
    before, after = inlined(schedule, blocks, block)
    if len(after) > 1 or (after and broadens(schedule, block, after[0].block_rv)):
        return None
    store = store_of(schedule, block, after)
    fuse_pixels(schedule, block, store)
    axis = _axis(schedule, block)
    if axis is None:
        return None
    names = [str(schedule.get(b).name_hint) for b in (block, store, *(b.block_rv for b in before))]
    bound = _bound(schedule, axis, names, [b.dom_kind() for b in before], limits)
    return None if bound is None else Packed(bound.with_attrs(dict(function.attrs.items())))


def _axis(schedule: s_tir.Schedule, block: SBlockRV) -> int | None:
    """The last spatial axis of the first operand alone; None if the second operand has such an axis, too."""
    node = schedule.get(block)
    if len(node.reads) != 2 or len(node.writes) != 1:
        return None
    if any(dtype_of(r) not in ("float32", "float16") for r in [*node.reads, *node.writes]):
        return None
    own, other = operand_axes(node)
    return own[-1] if own and not other else None


def _bound(
    schedule: s_tir.Schedule, axis: int, names: list[str], kinds: list[str], limits: Limits
) -> tirx.PrimFunc | None:
    """The function with tiles of outputs along the axis; `names` are those of the sum, its store, and the others."""
    node = schedule.get(schedule.get_sblock(names[0]))
    extents = {i: int(v.dom.extent) for i, v in enumerate(node.iter_vars)}
    others = prod(e for i, e in extents.items() if is_spatial(node, i) and i != axis)
    if others * extents[axis] < FEWEST:
        return None
    lengths = [n for n in range(LONGEST, 0, -1) if others * -(-extents[axis] // n) >= BUSY]
    length = min(lengths or [1], key=lambda n: -(-extents[axis] // n) * (n + 1))
    tiles = -(-extents[axis] // length)
    most = _group(others * tiles, limits)
    even = (n for n in range(tiles, int(tiles * MOST_IDLE) + 2) if not needs_guard(others * n, most))
    tiles = next(even, tiles)
    if tiles * length != extents[axis]:
        schedule = s_tir.Schedule(padded(schedule.mod["main"], node, {axis: tiles * length}, {}))
    block, store, *before = (schedule.get_sblock(name) for name in names)
    loops = list(schedule.get_loops(block))
    sums = [loops[i] for i in range(len(loops)) if not is_spatial(node, i)]
    outer = [loops[i] for i in range(len(loops)) if is_spatial(node, i) and i != axis]
    group, output = schedule.split(loops[axis], factors=[None, length])
    schedule.reorder(*outer, group, *sums, output)
    item = bind_items(schedule, schedule.fuse(*outer, group), most, limits)
    try:
        move_to(schedule, store, item)
    except LostGuardError:
        return None
    taps = int(schedule.get(sums[-1]).extent)
    written_out = max(n for n in range(1, taps + 1) if taps % n == 0 and n * length <= max(WRITTEN_OUT, length))
    sums[-1:] = schedule.split(sums[-1], factors=[None, written_out])
    schedule.unroll(sums[-1])
    schedule.unroll(output)
    start = schedule.decompose_reduction(block, sums[0])
    schedule.unroll(schedule.get_loops(start)[-1])
    _write_out(schedule, store, item)
    for copy, kind in zip(before, kinds, strict=True):
        bind_block(schedule, copy, kind, limits)
    return schedule.mod["main"]


def _group(items: int, limits: Limits) -> int:
    """The most items of a work group, limited so that every core gets several groups."""
    return min(limits.group, GPU_GROUP, max(SIMD, items // BUSY * SIMD))


def _write_out(schedule: s_tir.Schedule, store: SBlockRV, item: LoopRV) -> None:
    loops = list(schedule.get_loops(store))
    place = next(i for i, loop in enumerate(loops) if schedule.get(loop).same_as(schedule.get(item)))
    for loop in loops[place + 1 :]:
        schedule.unroll(loop)
