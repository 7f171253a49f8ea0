"""Inlining of the blocks before and after a sum."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from tvm import s_tir, tirx

from heterocc.compiler.lower.gpu.plain import branches

if TYPE_CHECKING:
    from tvm.s_tir.dlight.analysis import SBlockInfo
    from tvm.s_tir.schedule import SBlockRV


def inlined(
    schedule: s_tir.Schedule, blocks: list[SBlockInfo], block: SBlockRV
) -> tuple[list[SBlockInfo], list[SBlockInfo]]:
    """Inline the blocks around the sum; return those that remain before and after it.

    Padding remains, as inlining it would cost a branch per load.
    """
    place = next(i for i, b in enumerate(blocks) if b.block_rv.same_as(block))
    before = [b for b in blocks[:place] if branches(schedule, b) or not _try(schedule.compute_inline, b.block_rv)]
    after = list(blocks[place + 1 :])
    while len(after) > 1:
        inlined = next((b for b in after if _try(schedule.compute_inline, b.block_rv)), None)
        if inlined is None:
            break
        after.remove(inlined)
    return before, after


def store_of(schedule: s_tir.Schedule, block: SBlockRV, after: list[SBlockInfo]) -> SBlockRV:
    """The block that stores the sum, which is kept in registers: the one block of `after`, or a new copy."""
    if not after:
        return schedule.cache_write(block, 0, "local")
    schedule.set_scope(block, 0, "local")
    return after[0].block_rv


def broadens(schedule: s_tir.Schedule, block: SBlockRV, after: SBlockRV) -> bool:
    """Whether the block after a sum has more elements than the sum, so that several of them read each."""
    node, reader = schedule.get(block), schedule.get(after)
    sums = prod(int(v.dom.extent) for v in node.iter_vars if v.iter_type == tirx.IterVar.DataPar)
    return prod(int(v.dom.extent) for v in reader.iter_vars) > sums


def _try(step: Callable[[SBlockRV], None], block: SBlockRV) -> bool:
    try:
        step(block)
    except s_tir.ScheduleError:
        return False
    return True
