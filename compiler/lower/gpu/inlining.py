"""What is computed where it is read: blocks around a sum."""

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
    """Inline around the sum: what remains before it (padding: a branch per load costs more) and after it."""
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
    """The block that stores the sum, which then lies in registers: what comes `after`, at most one, or a copy."""
    if not after:
        return schedule.cache_write(block, 0, "local")
    schedule.set_scope(block, 0, "local")
    return after[0].block_rv


def broadens(schedule: s_tir.Schedule, block: SBlockRV, after: SBlockRV) -> bool:
    """Whether what comes after a sum has more elements than it: each sum would be stored once for all that read it."""
    node, reader = schedule.get(block), schedule.get(after)
    sums = prod(int(v.dom.extent) for v in node.iter_vars if v.iter_type == tirx.IterVar.DataPar)
    return prod(int(v.dom.extent) for v in reader.iter_vars) > sums


def _try(step: Callable[[SBlockRV], None], block: SBlockRV) -> bool:
    try:
        step(block)
    except s_tir.ScheduleError:
        return False
    return True
