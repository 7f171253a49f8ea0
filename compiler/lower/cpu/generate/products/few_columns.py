"""Sums of few columns, of which a vector would be mostly empty: vectors lie along the rows of a tile of a weight.

The weight is read as it is packed for other numbers of columns: the numbers of a term follow each other for all rows
of a tile, which are about as many as a vector has lanes.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index

FEW = 4
"""The most columns that have code of their own; of fewer, the rest are computed and dropped. With more, vectors of
columns are as fast or faster."""


def weight_vector(weights: tirx.Buffer, start: tirx.Expr, size: int, isa: Isa) -> tirx.Expr:
    """The weights that a tile of `size` rows has for a term, as one of the shortest vectors that hold them."""
    lanes = isa.narrowed(size).lanes
    if lanes == size:
        return emit.vector(weights, start, lanes)
    return masked_vector(weights, start, lanes, mask(index(0), lanes, size))


def of_columns(length: int, few: Callable[[int], None], many: Callable[[], None], most: int = FEW) -> None:
    """Write `few(most)` for a length of a few columns, and `many()` for a larger one."""
    emit.either(index(length) <= index(most), lambda: few(most), many)


def put_rows(
    buffer: tirx.Buffer, sums: tirx.Buffer, shape: tuple[int, int], isa: Isa, start: Callable[[tirx.Expr], tirx.Expr]
) -> None:
    """Put sums of rows and columns, of each column a vector along the rows, into one vector for each row.

    `shape` are the numbers of rows and columns, `start(row)` is the place of a row, whose vector ends with zeros.
    """
    rows, columns = shape
    lanes = isa.narrowed(rows).lanes
    held = emit.scratch(columns * lanes)
    with emit.loop(columns, "unroll") as column:
        emit.put(held, emit.vector(sums, column * index(lanes), lanes), column * index(lanes), lanes)
    with emit.loop(rows) as row:
        to = emit.bound(start(row))
        emit.put(buffer, emit.zeros(isa.lanes), to, isa.lanes)
        for number in range(columns):
            emit.put(buffer, held[index(number * lanes) + row], to + index(number), 1)
