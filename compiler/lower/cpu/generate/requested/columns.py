"""Loops over the rows of an array."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit

ELEMENT = emit.PARALLEL_WORK >> 16
"""The work of an element, in multiply-adds: 65536 elements are divided among threads."""


@contextmanager
def rows(extent: int, elements: int) -> Iterator[tirx.Expr]:
    """A loop, shared by the threads if there are enough elements."""
    with emit.shared_loop(extent, elements * ELEMENT) as row:
        yield row
