"""Sums of few columns, of which a vector would be mostly empty: vectors lie along the rows of a tile of a weight.

The weight is read as it is packed for other numbers of columns: the numbers of a term follow each other for all rows
of a tile, which are about as many as a vector has lanes. Products and convolutions of any size have such code. A voice
detector (silero_vad), whose layers have four places, two and one, takes 2.5 times as long without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Walk
from heterocc.compiler.lower.cpu.generate.fetch import Weight
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.shuffles import interleaved
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import Size

FEW = 4
"""The most columns that have code of their own; of fewer, the rest are computed and dropped. With more, vectors of
columns are as fast or faster."""


def few_sums(
    rows: int,
    columns: int,
    terms: Size,
    isa: Isa,
    number: Callable[[tirx.Expr, Any], tirx.Expr],
    weights: Sequence[Weight],
    walk: Walk = emit.in_turn,
    held: tirx.Buffer | None = None,
) -> tirx.Buffer:
    """The sums of some tiles of so many rows of a weight, row by row in memory.

    `number(column, term)` is a factor, `weights` are those of each tile.
    """
    isa = isa.narrowed(rows)
    lanes = isa.lanes

    def loaded(tile: int, term: Any) -> tirx.Expr:
        flat, start = weights[tile](term)
        if lanes == rows:
            return emit.vector(flat, start, lanes)
        return masked_vector(flat, start, lanes, mask(index(0), lanes, rows))

    held = emit.scratch(columns * lanes) if held is None else held
    tiles = emit.product_tile(columns, len(weights), terms, isa, number, loaded, walk)
    for tile, sums in enumerate(tiles):
        vectors = [emit.vector(sums, index(column * lanes), lanes) for column in range(columns)]
        for part in range(columns):
            to = index((tile * columns + part) * lanes)
            emit.put(held, interleaved(vectors, lanes, part), to, lanes)
    return held


def put_few(
    sums: tirx.Buffer, first: tirx.Expr, rows: int, columns: int, line: tirx.Buffer, pitch: Size, lanes: int
) -> None:
    """Put the sums of a tile of few columns, from a place in memory on, into rows of a line, which begin with them."""
    with emit.loop(rows) as row:
        start = emit.bound(row * index(pitch))
        emit.put(line, emit.zeros(lanes), start, lanes)
        emit.put(line, emit.vector(sums, first + row * index(columns), columns), start, columns)
