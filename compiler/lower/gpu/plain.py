"""The schedule for any kernel: one work item per output element, sums in a register."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import try_inline
from tvm.tirx.analysis import undefined_vars

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.gpu.groups import LostGuardError, bind_items, extent_of, move_to
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.launches import launches

if TYPE_CHECKING:
    from tvm.s_tir.dlight.analysis import SBlockInfo
    from tvm.s_tir.schedule import LoopRV, SBlockRV


GROUP = 256
"""The most work items of a group: every device of the last decade allows it, and it is enough to hide latency."""

TILE = 4
"""The neighbours along an axis of fixed size that a work item computes if other sizes are known only at run time."""

LEAST_TILED = 16
"""The least size of such an axis."""

UNROLLED = 32
"""The most terms of a sum that is unrolled; without loops a driver can vectorise over work items."""


def schedule_plain(function: tirx.PrimFunc, limits: Limits) -> tirx.PrimFunc:
    """Inline blocks where possible, and bind the others. Raises LoweringError if a block does not have plain loops."""
    try:
        return _scheduled(function, limits, in_register=True)
    except (LostGuardError, s_tir.ScheduleError):
        return _scheduled(function, limits, in_register=False)


def _scheduled(function: tirx.PrimFunc, limits: Limits, in_register: bool) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if blocks is None:
        raise LoweringError("a kernel has loops that cannot be bound to work items", hint="list CPU after this device")
    for info in _inlined(schedule, blocks):
        if launches(schedule.get(info.block_rv)):
            continue
        bind_block(schedule, info.block_rv, info.dom_kind(), limits, in_register)
    return schedule.mod["main"].with_attrs(dict(function.attrs.items()))


def _inlined(schedule: s_tir.Schedule, blocks: list[SBlockInfo]) -> list[SBlockInfo]:
    """Inline blocks where possible, except padding into a sum, which would cost a test per term."""
    sums = any("R" in b.dom_kind() for b in blocks)
    kept = [b for b in blocks if sums and branches(schedule, b)]
    rest = try_inline(schedule, [b for b in blocks if b not in kept])
    return [b for b in blocks if b in kept or b in rest]


def branches(schedule: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether a block has conditional expressions, as padding does."""
    return "if_then_else" in str(schedule.get(info.block_rv).body)


def bind_block(schedule: s_tir.Schedule, block: SBlockRV, kinds: str, limits: Limits, in_register: bool = True) -> None:
    """Bind the block's spatial loops to work items, one per point; reductions run inside a work item.

    `kinds` has one letter per loop: S spatial, R reduction, O other (run in order by one work item). Sums are kept in a
    register, or in the output itself if not `in_register`. Raises LostGuardError if the register cannot be stored
    safely.
    """
    loops = list(schedule.get_loops(block))
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    opaque = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "O"]
    if not spatial:
        spatial = [schedule.add_unit_loop(loops[0] if loops else block)]
    if len(loops) > 1:
        schedule.reorder(*spatial, *reduced, *opaque)
    if in_register and _sums_at_sizes(schedule, block, spatial, reduced, opaque):
        _bind_sum(schedule, block, len(spatial), len(reduced), limits)
        return
    terms = [extent_of(schedule, loop) for loop in reduced]
    short = bool(reduced) and prod(UNROLLED + 1 if n is None else n for n in terms) <= UNROLLED
    lanes = _lanes(schedule, block, spatial[-1]) if short and not opaque and limits.vectors else 1
    lane = None
    if lanes > 1:
        rest, lane = schedule.split(spatial[-1], factors=[None, lanes])
        spatial = [*spatial[:-1], rest]
        schedule.reorder(*spatial, *reduced, lane)
    item = bind_items(schedule, schedule.fuse(*spatial), min(GROUP // lanes, limits.group), limits)
    if not reduced or opaque:
        return
    if in_register and len(schedule.get(block).writes) == 1:  # TVM cannot move the second write of ArgMax
        copy = schedule.cache_write(block, 0, "local")
        move_to(schedule, copy, item)
        if lane is not None:
            schedule.vectorize(schedule.get_loops(copy)[-1])
    if short:
        for loop in reduced:
            schedule.unroll(loop)
    if lane is not None:
        schedule.vectorize(lane)
    start = schedule.decompose_reduction(block, reduced[0])
    if lane is not None:
        schedule.vectorize(schedule.get_loops(start)[-1])


def _sums_at_sizes(
    schedule: s_tir.Schedule, block: SBlockRV, spatial: list[LoopRV], reduced: list[LoopRV], opaque: list[LoopRV]
) -> bool:
    """Whether a block is one sum whose number of results or terms is known only at run time."""
    if not reduced or opaque or len(schedule.get(block).writes) != 1:
        return False
    return any(extent_of(schedule, loop) is None for loop in (*spatial, *reduced))


def _bind_sum(schedule: s_tir.Schedule, block: SBlockRV, results: int, terms: int, limits: Limits) -> None:
    """Bind the store of a sum's results to work items, and compute each sum there, in a register.

    TVM guards a block that is moved before its reader, with sizes that are known only at run time too, but not always
    one that is moved behind its writer (`move_to`).
    """
    tile = _shared_axis(schedule, block, results)
    store = schedule.cache_write(block, 0, "local")
    loops = list(schedule.get_loops(store))
    lane = None
    if tile is not None:
        loops[tile], lane = schedule.split(loops[tile], factors=[None, TILE])
        schedule.reorder(*loops, lane)
    item = bind_items(schedule, schedule.fuse(*loops), min(GROUP, limits.group), limits)
    schedule.compute_at(block, item, preserve_unit_loops=True)
    if lane is not None:
        schedule.unroll(lane)
    own = schedule.get_loops(block)[-results - terms :]
    lanes, sums = own[:results], own[results:]
    schedule.reorder(*sums, *lanes)
    if tile is not None:
        schedule.unroll(lanes[tile])


def _shared_axis(schedule: s_tir.Schedule, block: SBlockRV, results: int) -> int | None:
    """The axis along which a work item computes TILE sums: one factor of the terms is the same for all of them."""
    node = schedule.get(block)
    if len(node.reads) < 2 or [a.iter_type for a in node.iter_vars[:results]] != [tirx.IterVar.DataPar] * results:
        return None
    used = [{v for r in read.region for v in undefined_vars(r.min)} for read in node.reads]
    loops = list(schedule.get_loops(block))
    for place in reversed(range(results)):
        extent = extent_of(schedule, loops[place])
        if extent is None or extent % TILE or extent < LEAST_TILED:
            continue
        if len({node.iter_vars[place].var in variables for variables in used}) == 2:
            return place
    return None


def _lanes(schedule: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> int:
    """The number of neighbours along a loop that one work item may compute as a vector; 1 if not plain float32."""
    node = schedule.get(block)
    dtypes = [r.source.dtype for r in [*node.reads, *node.writes]]
    plain = len(node.writes) == 1 and all(str(getattr(d, "dtype", d)) == "float32" for d in dtypes)
    text = str(node.body)
    if not plain or any(word in text for word in ("if_then_else", "Select", "Cast", "//", "%")):
        return 1
    extent = extent_of(schedule, loop)
    return 1 if extent is None else next(n for n in (16, 8, 4, 2, 1) if extent % n == 0)
