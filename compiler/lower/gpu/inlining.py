"""What is computed where it is read: blocks around a sum."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import s_tir, tirx

from heterocc.compiler.lower.gpu.plain import branches


def inlined(schedule: Any, blocks: list[Any], block: Any) -> tuple[list[Any], list[Any]]:
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


def store_of(schedule: Any, block: Any, after: list[Any]) -> Any:
    """The block that stores the sum, which then lies in registers: what comes `after`, at most one, or a copy."""
    if not after:
        return schedule.cache_write(block, 0, "local")
    schedule.set_scope(block, 0, "local")
    return after[0].block_rv


def broadens(schedule: Any, block: Any, after: Any) -> bool:
    """Whether what comes after a sum has more elements than it: each sum would be stored once for all that read it."""
    node, reader = schedule.get(block), schedule.get(after)
    sums = prod(int(v.dom.extent) for v in node.iter_vars if v.iter_type == tirx.IterVar.DataPar)
    return prod(int(v.dom.extent) for v in reader.iter_vars) > sums


def _try(step: Any, block: Any) -> bool:
    try:
        step(block)
    except s_tir.ScheduleError:
        return False
    return True
