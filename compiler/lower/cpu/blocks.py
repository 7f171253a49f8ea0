"""Properties of a kernel's blocks, as they are read."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tvm import s_tir, tirx

from heterocc.compiler.lower.cpu.sizes import size_of

if TYPE_CHECKING:
    from tvm.s_tir.schedule import SBlockRV


_SPATIAL, _REDUCTION = 0, 2

# TVM's checks of their arguments' types take several times as long as these methods themselves.
_get = inspect.unwrap(s_tir.Schedule.get)
_get_loops = inspect.unwrap(s_tir.Schedule.get_loops)
_get_sblock = inspect.unwrap(s_tir.Schedule.get_sblock)
_get_child_blocks = inspect.unwrap(s_tir.Schedule.get_child_blocks)
_add_unit_loop = inspect.unwrap(s_tir.Schedule.add_unit_loop)


@dataclass(frozen=True)
class BlockView:
    """A leaf block whose loops are exactly its iteration variables: `kinds` is one of "S" and "R" per loop."""

    rv: SBlockRV
    name: str
    block: s_tir.SBlock
    kinds: str
    extents: tuple[int, ...]

    @property
    def iters(self) -> list[tirx.Var]:
        """The block's iteration variables, in loop order."""
        return [i.var for i in self.block.iter_vars]

    @property
    def is_reduction(self) -> bool:
        """Whether any loop reduces."""
        return "R" in self.kinds

    @property
    def store(self) -> tirx.BufferStore:
        """The block's single store."""
        return self.block.body


def of_windows(block: s_tir.SBlock) -> bool:
    """Whether a maximum is that of pooling."""
    return "pool_max" in str(block.name_hint)


def view(sch: s_tir.Schedule, rv: SBlockRV) -> BlockView | None:
    """The block as a BlockView, or None if it has another form (nested, opaque, several stores) or unknown extents."""
    block = _get(sch, rv)
    loops = [_get(sch, loop) for loop in _get_loops(sch, rv)]
    kinds = "".join({_SPATIAL: "S", _REDUCTION: "R"}.get(int(i.iter_type), "O") for i in block.iter_vars)
    extents = [size_of(i.dom.extent) for i in block.iter_vars]
    if "O" in kinds or len(loops) != len(extents) or not isinstance(block.body, tirx.BufferStore):
        return None
    sizes = tuple(e for e in extents if e is not None)
    if len(sizes) != len(extents) or tuple(size_of(lo.extent) for lo in loops) != sizes:
        return None
    return BlockView(rv, str(block.name_hint), block, kinds, sizes)


def leaf_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The kernel's blocks in order, without the root; empty if there is no root block."""
    # A kernel without blocks is lowered code already. Asking TVM for its root is an error, and the first one of a
    # process reads the symbols of all libraries for a stack trace: a quarter of a second.
    body = sch.mod["main"].body
    if not isinstance(body, s_tir.SBlockRealize) or body.block.name_hint != "root":
        return []
    return list(_get_child_blocks(sch, _get_sblock(sch, "root")))


def with_loops(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The leaf blocks, each with a loop: a block without one, of a scalar, gets one that runs once."""
    blocks = leaf_blocks(sch)
    for rv in blocks:
        if not _get_loops(sch, rv):
            _add_unit_loop(sch, rv)
    return leaf_blocks(sch)


def read_blocks(function: tirx.PrimFunc, *, unit_loops: bool = False) -> list[BlockView] | None:
    """The kernel's blocks in order, each in a view; None if one has another form.

    With `unit_loops`, the block of a scalar has a loop that runs once.
    """
    schedule, blocks = _opened(function, unit_loops)
    views = [view(schedule, rv) for rv in blocks]
    known = [v for v in views if v is not None]
    return known if len(known) == len(views) else None


@lru_cache(maxsize=256)
def _opened(function: tirx.PrimFunc, unit_loops: bool) -> tuple[s_tir.Schedule, tuple[SBlockRV, ...]]:
    """A schedule to read a kernel's blocks by: half a millisecond of work, and every pass asks for it again."""
    if unit_loops:
        schedule, blocks = _opened(function, False)
        if all(_get_loops(schedule, rv) for rv in blocks):
            return schedule, blocks
    schedule = s_tir.Schedule(function, debug_mask="none")
    return schedule, tuple(with_loops(schedule) if unit_loops else leaf_blocks(schedule))
