"""Copies of the columns of a matrix as tiles of products read them: for each term, or pair of these, some vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.maps.shuffles import interleaved
from heterocc.compiler.lower.cpu.generate.maps.transposes import FEWEST_LANES, transposed
from heterocc.compiler.lower.cpu.generate.pairs import rounded
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, is_one, smaller
from heterocc.compiler.lower.kernels.expressions import dtype_of

Vectors = tuple[Sequence[tirx.Expr], Size]
"""The first column of each vector, and how many lanes of each are columns."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a matrix of `terms` rows; `place(column, term)` is where in `flat` a number of it is.

    `beside` is whether columns lie beside each other in memory, `turns` whether the terms of a column do, and may be
    read in vectors.
    """

    flat: tirx.Buffer
    place: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    terms: Size
    beside: bool
    turns: bool

    @staticmethod
    def of(flat: tirx.Buffer, first: tirx.Expr, terms: Size, step: Size, down: Size, *, turns: bool) -> Columns:
        """Columns `step` apart whose terms are `down` apart; `turns` is whether these may be read in vectors."""

        def place(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            return first + column * index(step) + term * index(down)

        return Columns(flat, place, terms, is_one(step), turns and is_one(down) and not is_one(step))


def copy_columns(
    columns: Columns,
    vectors: Vectors,
    lanes: int,
    to: tirx.Buffer,
    first: tirx.Expr,
    pitch: Size,
    *,
    in_pairs: bool = False,
    once: bool = False,
) -> None:
    """Copy vectors for each term, `pitch` after those of the term before, with zeros in lanes beyond the columns.

    With `in_pairs`, terms are in pairs rounded to bfloat16; a zero is the second one of a last term. The code is
    written for each vector, or `once` in a loop over them.
    """
    (firsts, used), terms, together = vectors, columns.terms, 2 if in_pairs else 1
    each = partial(emit.loop, len(firsts), "serial" if once else "unroll")
    starts = emit.scratch(len(firsts), "int64")
    for number, start in enumerate(firsts):
        emit.put(starts, start, index(number), 1)
    long = is_number(terms) and terms >= together * lanes and lanes >= FEWEST_LANES
    whole = is_number(used) and used == lanes
    if columns.turns and long and (not in_pairs or (whole and as_number(terms) % 2 == 0)):
        _copy_turned(columns, starts, used, lanes, to, first, pitch, together, each)
        return
    kind = "vectorized" if is_number(used) and (columns.beside or once) else "serial"
    with emit.loop(-(-terms // together)) as step, each() as number:
        start, there = emit.bound(starts[number]), first + step * index(pitch) + number * index(lanes)
        halves = [emit.registers(1, lanes) for _ in range(2)] if in_pairs else [to]
        for place, half in enumerate(halves):
            term, begin = step * index(together) + index(place), index(0) if in_pairs else there
            beyond = bool(place and as_number(terms) % 2)
            if not is_number(used) or used < lanes or beyond:
                emit.put(half, emit.zeros(lanes, dtype_of(half)), begin, lanes)
            with ExitStack() as inside:
                if beyond:
                    inside.enter_context(build.If(term < index(terms)))
                    inside.enter_context(build.Then())
                lane = inside.enter_context(emit.loop(used, kind))
                value = emit.as_float(columns.flat[columns.place(start + lane, term)])
                build.buffer_store(half, value, [begin + lane])
        if in_pairs:
            both = [emit.vector(half, index(0), lanes) for half in halves]
            emit.put(to, rounded(*(interleaved(both, lanes, part) for part in range(2))), there, lanes)


def _copy_turned(
    columns: Columns,
    starts: tirx.Buffer,
    used: Size,
    lanes: int,
    to: tirx.Buffer,
    first: tirx.Expr,
    pitch: Size,
    together: int,
    each: Callable[[], AbstractContextManager[tirx.Expr]],
) -> None:
    """Copy columns whose terms are in a row, in square blocks of terms or pairs; the last may overlap the one before.

    Lanes that no column has get the last one's numbers. Vectors have these `starts`, and `used` lanes of each are
    columns; `each` loops over them.
    """
    flat = columns.flat
    dtype = dtype_of(emit.as_float(flat[index(0)]))
    with emit.loop(-(-columns.terms // (together * lanes))) as block:
        term = emit.bound(tirx.min(block * index(together * lanes), index(columns.terms - together * lanes)))
        with each() as number:
            start = emit.bound(starts[number])
            rows = [emit.registers(1, lanes, dtype) for _ in range(lanes)]
            for i, register in enumerate(rows):
                where = columns.place(start + index(smaller(i, used - 1)), term)
                read = [emit.as_float(emit.vector(flat, where + index(n * lanes), lanes)) for n in range(together)]
                value = read[0] if together == 1 else tirx.reinterpret(f"float32x{lanes}", rounded(*read))
                emit.put(register, value, index(0), lanes)
            for i, register in enumerate(transposed(rows, lanes, dtype)):
                value = emit.vector(register, index(0), lanes)
                value = value if together == 1 else tirx.reinterpret(f"int32x{lanes}", value)
                there = first + (tirx.floordiv(term, index(together)) + index(i)) * index(pitch)
                emit.put(to, value, there + number * index(lanes), lanes)
