"""Parts of a side of a plane: tiles in loops, and those at the borders, which are written for their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs

Start: TypeAlias = "tirx.Expr | int"
"""A first row or a first vector: an int if code is written for this one only."""


def at_start(start: Start) -> tirx.Expr:
    """A start as an index."""
    return index(start) if isinstance(start, int) else start


@dataclass(frozen=True, slots=True)
class PlanePart:
    """`count` tiles of `size` from `start` on; `fixed` if they are written for their places, one by one."""

    start: int
    count: int
    size: int
    fixed: bool

    @contextmanager
    def at(self) -> Iterator[Start]:
        """The start of a tile: in a loop over all, a number for the one that is fixed."""
        if self.fixed:
            yield self.start
            return
        with emit.loop(self.count) as number:
            yield index(self.start) + number * index(self.size)


def tiled(total: int, most: int, inside: range) -> tuple[PlanePart, ...]:
    """`total` in tiles of at most `most`, those within `inside` in loops, the others fixed, with little code.

    Tiles of equal sizes, or if this is less code, tiles of `most` in a loop and what is left before and after them.
    """
    equal = _parts(runs(total, most), inside)
    before, after = inside.start, total - inside.stop
    if len(inside) < most or not before + after:
        return equal
    left = before + after + len(inside) % most
    first = min(max(before, -(-left // 2) if after else left), left - after)
    last = total - (left - first)
    ends = runs(first, most) if first else (), runs(total - last, most) if last < total else ()
    apart = (
        *_parts(ends[0], range(0)),
        PlanePart(first, (last - first) // most, most, False),
        *(replace(part, start=part.start + last) for part in _parts(ends[1], range(0))),
    )
    return min(equal, apart, key=lambda parts: sum(part.size for part in parts))


def _parts(tiles: Sequence[Run], inside: range) -> tuple[PlanePart, ...]:
    """The tiles in order: those within `inside` in loops, the others fixed."""
    parts: list[PlanePart] = []
    for run in tiles:
        for number in range(run.count):
            start = run.start + number * run.size
            fixed = not (inside.start <= start and start + run.size <= inside.stop)
            last = parts[-1] if parts else None
            if last is not None and not fixed and not last.fixed and last.size == run.size:
                parts[-1] = PlanePart(last.start, last.count + 1, run.size, False)
            else:
                parts.append(PlanePart(start, 1, run.size, fixed))
    return tuple(parts)
