"""Properties of a kernel's blocks, as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

from heterocc.compiler.lower.cpu.sizes import Size, size_of

SPATIAL, REDUCTION = 0, 2
"""Kinds of a block's iteration variables."""


@dataclass(frozen=True)
class BlockView:
    """A leaf block whose loops are exactly its iteration variables: `kinds` is one of "S" and "R" per loop."""

    block: s_tir.SBlock
    kinds: str
    extents: tuple[Size, ...]

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


def view(block: s_tir.SBlock, loops: Sequence[tirx.For]) -> BlockView | None:
    """A block in these loops as a BlockView; None if it has another form (nested, several stores) or unknown extents.

    The block of a scalar has no loops, but an iteration variable with one value.
    """
    kinds = "".join({SPATIAL: "S", REDUCTION: "R"}.get(int(i.iter_type), "O") for i in block.iter_vars)
    if "O" in kinds or not isinstance(block.body, tirx.BufferStore):
        return None
    extents = [size_of(i.dom.extent) for i in block.iter_vars]
    sizes = tuple(e for e in extents if e is not None)
    if len(sizes) != len(extents) or (tuple(size_of(loop.extent) for loop in loops) or (1,)) != sizes:
        return None
    return BlockView(block, kinds, sizes)


def has_blocks(function: tirx.PrimFunc) -> bool:
    """Whether a kernel has blocks in a root; lowered code has none."""
    return isinstance(function.body, s_tir.SBlockRealize) and function.body.block.name_hint == "root"


def read_blocks(function: tirx.PrimFunc) -> list[BlockView] | None:
    """The kernel's blocks in order, each in a view; None if it has none, or other statements."""
    if not has_blocks(function):
        return None
    views = [None if block is None else view(block, loops) for block, loops in _leaves(function.body.block.body, ())]
    known = [v for v in views if v is not None]
    return known if len(known) == len(views) else None


def _leaves(body: tirx.Stmt, loops: tuple[tirx.For, ...]) -> Iterator[tuple[s_tir.SBlock | None, tuple[tirx.For, ...]]]:
    """The blocks of a statement with their loops; None for what is neither a block nor a loop."""
    if isinstance(body, tirx.SeqStmt):
        for part in body.seq:
            yield from _leaves(part, loops)
    elif isinstance(body, tirx.For):
        yield from _leaves(body.body, (*loops, body))
    else:
        yield (body.block if isinstance(body, s_tir.SBlockRealize) else None), loops
