"""Loops over the rows and the columns of an array [outer, axis, inner]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Around

WIDE = 4
"""The vectors that a task advances together along the axis."""

ELEMENT = emit.PARALLEL_WORK >> 16
"""The work of an element, in multiply-adds: 65536 elements are divided among threads."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns: the index along the outer axis, and the starts of their vectors of `lanes` columns each."""

    outer: tirx.Expr
    starts: Sequence[tirx.Expr]
    lanes: int


@contextmanager
def rows(extent: int, elements: int) -> Iterator[tirx.Expr]:
    """A loop, shared by the threads if there are enough elements."""
    with emit.shared_loop(extent, elements * ELEMENT) as row:
        yield row


@contextmanager
def columns(around: Around, lanes: int, wide: int = WIDE) -> Iterator[Columns]:
    """A loop over tiles of up to `wide` vectors of columns. The last vectors overlap others."""
    outer, count, inner = around
    vectors = -(-inner // lanes)
    wide = min(wide, vectors)
    tiles = -(-vectors // wide)
    with rows(outer * tiles, outer * count * inner) as number:
        task = build.bind(tirx.floordiv(number, index(tiles)))
        first = build.bind(tirx.floormod(number, index(tiles)) * index(wide * lanes))
        last = index(inner - lanes)
        yield Columns(task, [build.bind(tirx.min(first + index(v * lanes), last)) for v in range(wide)], lanes)
