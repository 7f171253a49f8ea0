"""Loops over the rows and the columns of an array [outer, axis, inner]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Around

ELEMENT = emit.PARALLEL_WORK >> 16
"""The work of an element, in multiply-adds: 65536 elements are divided among threads."""


@contextmanager
def rows(extent: int, elements: int) -> Iterator[tirx.Expr]:
    """A loop, shared by the threads if there are enough elements."""
    with emit.shared_loop(extent, elements * ELEMENT) as row:
        yield row


@contextmanager
def columns(around: Around, lanes: int, wide: int) -> Iterator[tuple[tirx.Expr, Sequence[tirx.Expr]]]:
    """A loop over tiles of up to `wide` vectors of columns: the outer index, and the starts of the vectors.

    The last vectors overlap others.
    """
    outer, count, inner = around
    vectors = -(-inner // lanes)
    wide = min(wide, vectors)
    tiles = -(-vectors // wide)
    with rows(outer * tiles, outer * count * inner) as number:
        task = build.bind(tirx.floordiv(number, index(tiles)))
        first = build.bind(tirx.floormod(number, index(tiles)) * index(wide * lanes))
        last = index(inner - lanes)
        yield task, [build.bind(tirx.min(first + index(v * lanes), last)) for v in range(wide)]
